//! What both families compute from scores on: mask, softmax, epilogue, the merge of splits and of whole calls, NaN and infinities of V.

pub mod combine;
pub mod epilogue;
pub mod mask;
#[cfg(not(ferroflash_wgmma))]
pub mod merge;
pub mod restore;
pub mod scrub;
pub mod softmax;
