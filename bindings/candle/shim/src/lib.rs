//! candle-flash-attn's functions under its name, computed by Ferroflash: for `[patch.crates-io]` of programs that use that crate.

pub use ferroflash_candle::*;
