//! What a score keeps of queries, in shared memory, where a warp that copies works it out for those that compute.

use crate::ptx::memory::{ld_shared_v2_f32, st_shared};

/// Writes what a score keeps of a query row to shared memory, if it keeps anything.
///
/// # Safety
/// `smem` is a multiple of 8 with 8 writable bytes behind it.
#[inline(always)]
pub unsafe fn store_row<R: Copy>(smem: u32, row: R) {
    const { assert!(matches!(size_of::<R>(), 0 | 8)) }
    if size_of::<R>() == 8 {
        // SAFETY: of the same size; the caller's.
        unsafe {
            let [low, high]: [u32; 2] = core::mem::transmute_copy(&row);
            st_shared(smem, low);
            st_shared(smem + 4, high);
        }
    }
}

/// What [`store_row`] has written.
///
/// # Safety
/// As for [`store_row`], which has written a row of the same type there.
#[inline(always)]
pub unsafe fn load_row<R: Copy>(smem: u32) -> R {
    const { assert!(matches!(size_of::<R>(), 0 | 8)) }
    let mut words = [0.0; 2];
    if size_of::<R>() == 8 {
        // SAFETY: the caller's.
        words = unsafe { ld_shared_v2_f32(smem) };
    }
    // SAFETY: no larger than the words, which a row of this type was made into.
    unsafe { core::mem::transmute_copy(&words) }
}
