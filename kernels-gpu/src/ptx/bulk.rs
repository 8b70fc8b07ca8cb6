//! Bulk copies (PTX ISA, "cp.async.bulk" and "cp.async.bulk.tensor", the TMA). sm_90. One thread starts a whole box; the barrier counts
//! its bytes when they have landed.

use core::arch::asm;

/// The generic address of the one parameter of a kernel, by the kernel's name: found again each time. A Rust reference would be one to
/// a copy.
macro_rules! parameter_address {
    ($entry:ident) => {{
        let address: u64;
        // SAFETY: the address of a parameter of the kernel that this is inlined in.
        unsafe {
            core::arch::asm!(
                concat!("mov.b64 {r}, ", stringify!($entry), "_param_0; cvta.param.u64 {r}, {r};"),
                r = out(reg64) address, options(nomem, nostack)
            );
        }
        address
    }};
}
pub(crate) use parameter_address;

/// `prefetch.tensormap`: a copy that uses the map soon finds it in the cache.
///
/// # Safety
/// `map` is the generic address of a tensor map.
#[inline(always)]
pub unsafe fn prefetch_tensor_map(map: u64) {
    // SAFETY: the caller's.
    unsafe { asm!("prefetch.tensormap [{m}];", m = in(reg64) map, options(nostack)) }
}

/// `cp.async.bulk` from global to shared memory.
///
/// # Safety
/// `smem`, `global` and `bytes` are multiples of 16, both are as long as that, and `barrier` expects those bytes.
#[inline(always)]
pub unsafe fn bulk_copy(smem: u32, global: u64, bytes: u32, barrier: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{s}], [{g}], {n}, [{w}];",
            s = in(reg32) smem, g = in(reg64) global, n = in(reg32) bytes, w = in(reg32) barrier,
            options(nostack));
    }
}

/// `cp.async.bulk.tensor.4d` from global to shared memory.
///
/// # Safety
/// `map` is the generic address of a tensor map of four dimensions, `smem` has room for its box and is aligned to the swizzle's
/// pattern, and `barrier` expects the box's bytes.
#[inline(always)]
pub unsafe fn bulk_tensor_4d(smem: u32, map: u64, at: [u32; 4], barrier: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{s}], [{m}, {{{a}, {b}, {c}, {d}}}], [{w}];",
            s = in(reg32) smem, m = in(reg64) map, w = in(reg32) barrier, a = in(reg32) at[0],
            b = in(reg32) at[1], c = in(reg32) at[2], d = in(reg32) at[3], options(nostack));
    }
}

/// `cp.async.bulk.tensor.5d` from global to shared memory.
///
/// # Safety
/// As for [`bulk_tensor_4d`], with five dimensions.
#[inline(always)]
pub unsafe fn bulk_tensor_5d(smem: u32, map: u64, at: [u32; 5], barrier: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{s}], [{m}, {{{a}, {b}, {c}, {d}, {e}}}], [{w}];",
            s = in(reg32) smem, m = in(reg64) map, w = in(reg32) barrier, a = in(reg32) at[0],
            b = in(reg32) at[1], c = in(reg32) at[2], d = in(reg32) at[3], e = in(reg32) at[4],
            options(nostack));
    }
}
