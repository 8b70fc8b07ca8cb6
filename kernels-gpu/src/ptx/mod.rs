//! The crate's only inline assembly: one function an instruction, under the instruction's name.
//!
//! Shared-memory addresses are `u32` in the shared window; global addresses are `u64` in the global window.

#[cfg(ferroflash_wgmma)]
pub mod bulk;
pub mod cp_async;
pub mod grid;
pub mod ldmatrix;
pub mod math;
#[cfg(ferroflash_wgmma)]
pub mod mbarrier;
pub mod memory;
pub mod mma;
pub mod warp;
#[cfg(ferroflash_wgmma)]
pub mod warpgroup;
#[cfg(ferroflash_wgmma)]
pub mod wgmma;

/// The same value, but the compiler neither knows it nor that it is the same: what is derived from it is neither
/// unrolled nor kept from elsewhere.
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let r;
    // SAFETY: a move between registers.
    unsafe {
        core::arch::asm!("mov.u32 {r}, {v};", r = out(reg32) r, v = in(reg32) value, options(nomem, nostack));
    }
    r
}

/// The halves of 64 bits, the lower one first.
#[inline(always)]
pub fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// 64 bits of their [`halves`].
#[inline(always)]
pub fn of_halves([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

macro_rules! read_again {
    ($($(#[$doc:meta])* $name:ident => $register:literal;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            let r;
            // SAFETY: reads a special register.
            unsafe {
                core::arch::asm!(concat!("mov.u32 {r}, ", $register, ";"), r = out(reg32) r, options(nomem, nostack));
            }
            r
        }
    )* };
}

// As cuda_std's functions, but each call reads the special register: what is derived from one call is not kept in
// registers until the next.
read_again! {
    /// `%tid.x`, read again.
    thread_idx_x_again => "%tid.x";
    /// `%ctaid.x`, read again.
    block_idx_x_again => "%ctaid.x";
}
