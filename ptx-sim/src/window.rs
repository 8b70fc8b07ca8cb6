//! Where the state spaces lie in the generic address space (PTX ISA §5.1, §9.7.9.20). Global and constant addresses are
//! their own generic addresses.

/// Bytes of each window below.
const WINDOW_BYTES: u64 = 1 << 32;
/// Generic address of shared address 0.
pub(crate) const SHARED_WINDOW: u64 = 0x0100_0000_0000;
/// Generic address of local address 0.
pub(crate) const LOCAL_WINDOW: u64 = 0x0200_0000_0000;
/// Generic address of parameter 0.
pub(crate) const PARAM_WINDOW: u64 = 0x0300_0000_0000;
/// Address of function 0; functions are 16 apart.
pub(crate) const CODE_WINDOW: u64 = 0x0400_0000_0000;
/// Constant variables lie here.
pub(crate) const CONST_WINDOW: u64 = 0x0500_0000_0000;
/// Global addresses start here.
pub(crate) const GLOBAL_BASE: u64 = 0x7000_0000_0000;
/// Shared addresses start here, as on devices that reserve the first KiB.
pub(crate) const SHARED_BASE: u64 = 1024;

/// Bits of an address. Above them a generic address of shared or local memory keeps whose memory it is of: on a device
/// the same address means every CTA's own shared memory and every thread's own local memory, so that a pointer which
/// another CTA or thread is given leads somewhere else than meant, without a fault.
const ADDRESS_BITS: u32 = 48;

/// The generic address without its owner.
pub(crate) fn anyones(address: u64) -> u64 {
    address & ((1 << ADDRESS_BITS) - 1)
}

/// The window of the owner of that number. Owners a multiple of 65,535 apart look alike.
pub(crate) fn owned_by(number: u64, window: u64) -> u64 {
    window | (1 + number % 0xffff) << ADDRESS_BITS
}

/// Whether a generic address says whose memory it is of, and that is not the memory of `window`.
pub(crate) fn is_of_another(window: u64, address: u64) -> bool {
    address >> ADDRESS_BITS != 0 && (address ^ window) >> ADDRESS_BITS != 0
}

/// Whether a generic address lies in the window, whoever owns it.
pub(crate) fn holds(window: u64, address: u64) -> bool {
    anyones(address).wrapping_sub(window) < WINDOW_BYTES
}

/// Whether a generic address lies in no other window.
pub(crate) fn is_global(address: u64) -> bool {
    ![SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, CODE_WINDOW, CONST_WINDOW]
        .into_iter()
        .any(|w| holds(w, address))
}

/// Bits of a shared address within its CTA; above them is the rank of the CTA in its cluster plus one, or zero for the own
/// CTA.
const RANK_SHIFT: u32 = 24;

/// The address in the shared memory of its CTA.
pub(crate) fn in_cta(address: u64) -> u64 {
    if address >> RANK_SHIFT < 1 << 8 { address & ((1 << RANK_SHIFT) - 1) } else { address }
}

/// The rank that an address names; `None` for the own CTA.
pub(crate) fn rank(address: u64) -> Option<u32> {
    ((address >> RANK_SHIFT) as u32).checked_sub(1)
}

/// The address of what lies at `address` in each CTA, in the CTA of that rank.
pub(crate) fn of_rank(rank: u32, address: u64) -> u64 {
    in_cta(address) | u64::from(rank + 1) << RANK_SHIFT
}
