//! The table: one line a kernel. Entry points, the host's variants, tests and benchmarks all come from it.

#[allow(unused_imports, reason = "only a file of rows has users' scores")]
use crate::row::ScoreName;
use crate::row::{Accumulation, Dtype, Isa, Row, Schedule, ScoreKind};

/// Calls `$callback!` back with every row of [`Isa::Mma`].
#[cfg(not(ferroflash_rows))]
#[macro_export]
macro_rules! for_each_forward_kernel {
    ($callback:ident) => {
        $callback! {
            // The rows that measured best for some length and mask on an H200, one block a head_dim.
            // entry = its name in the PTX            dtype   d    m    n  w  s  acc min_ctas warp_rows schedule score
            fwd_f16_d32_m32n128_w4s2c1             => { F16,   32,  32, 128, 4, 2, F32, 1, 16, Grid };
            fwd_bf16_d32_m32n128_w4s2c1            => { Bf16,  32,  32, 128, 4, 2, F32, 1, 16, Grid };
            fwd_f16_d32_m64n64_w4s2c1              => { F16,   32,  64,  64, 4, 2, F32, 1, 16, Grid };
            fwd_bf16_d32_m64n64_w4s2c1             => { Bf16,  32,  64,  64, 4, 2, F32, 1, 16, Grid };
            fwd_f16_d32_m128n64_w4s2c1             => { F16,   32, 128,  64, 4, 2, F32, 1, 32, Grid };
            fwd_bf16_d32_m128n64_w4s2c1            => { Bf16,  32, 128,  64, 4, 2, F32, 1, 32, Grid };
            fwd_f16_d64_m64n64_w4s1c1              => { F16,   64,  64,  64, 4, 1, F32, 1, 16, Grid };
            fwd_bf16_d64_m64n64_w4s1c1             => { Bf16,  64,  64,  64, 4, 1, F32, 1, 16, Grid };
            fwd_f16_d64_m128n64_w4s2c1             => { F16,   64, 128,  64, 4, 2, F32, 1, 32, Grid };
            fwd_bf16_d64_m128n64_w4s2c1            => { Bf16,  64, 128,  64, 4, 2, F32, 1, 32, Grid };
            fwd_f16_d96_m32n128_w4s1c1             => { F16,   96,  32, 128, 4, 1, F32, 1, 16, Grid };
            fwd_bf16_d96_m32n128_w4s1c1            => { Bf16,  96,  32, 128, 4, 1, F32, 1, 16, Grid };
            fwd_f16_d96_m64n64_w4s1c1              => { F16,   96,  64,  64, 4, 1, F32, 1, 16, Grid };
            fwd_bf16_d96_m64n64_w4s1c1             => { Bf16,  96,  64,  64, 4, 1, F32, 1, 16, Grid };
            fwd_f16_d96_m128n64_w4s1c1             => { F16,   96, 128,  64, 4, 1, F32, 1, 32, Grid };
            fwd_bf16_d96_m128n64_w4s1c1            => { Bf16,  96, 128,  64, 4, 1, F32, 1, 32, Grid };
            fwd_f16_d128_m32n128_w4s1c1            => { F16,  128,  32, 128, 4, 1, F32, 1, 16, Grid };
            fwd_bf16_d128_m32n128_w4s1c1           => { Bf16, 128,  32, 128, 4, 1, F32, 1, 16, Grid };
            fwd_f16_d128_m64n64_w4s1c1             => { F16,  128,  64,  64, 4, 1, F32, 1, 16, Grid };
            fwd_bf16_d128_m64n64_w4s1c1            => { Bf16, 128,  64,  64, 4, 1, F32, 1, 16, Grid };
            fwd_f16_d128_m128n64_w4s1c1            => { F16,  128, 128,  64, 4, 1, F32, 1, 32, Grid };
            fwd_bf16_d128_m128n64_w4s1c1           => { Bf16, 128, 128,  64, 4, 1, F32, 1, 32, Grid };
            fwd_f16_d256_m32n64_w4s1c1             => { F16,  256,  32,  64, 4, 1, F32, 1, 16, Grid };
            fwd_bf16_d256_m32n64_w4s1c1            => { Bf16, 256,  32,  64, 4, 1, F32, 1, 16, Grid };
            fwd_f16_d256_m64n64_w4s1c1             => { F16,  256,  64,  64, 4, 1, F32, 1, 16, Grid };
            fwd_bf16_d256_m64n64_w4s1c1            => { Bf16, 256,  64,  64, 4, 1, F32, 1, 16, Grid };
            // For devices with 100 KB of shared memory an SM: two CTAs, where the row above would leave room for one.
            fwd_f16_d128_m128n32_w4s1c1            => { F16,  128, 128,  32, 4, 1, F32, 1, 32, Grid };
            fwd_bf16_d128_m128n32_w4s1c1           => { Bf16, 128, 128,  32, 4, 1, F32, 1, 32, Grid };
            // The rows that split keys, for decoding (16 or 32 rows) and for few heads: one block a head_dim.
            fwd_f16_d32_m16n128_w4s3c1_split       => { F16,   32,  16, 128, 4, 3, F32, 1, 16, Split };
            fwd_bf16_d32_m16n128_w4s3c1_split      => { Bf16,  32,  16, 128, 4, 3, F32, 1, 16, Split };
            fwd_f16_d32_m64n64_w4s2c1_split        => { F16,   32,  64,  64, 4, 2, F32, 1, 16, Split };
            fwd_bf16_d32_m64n64_w4s2c1_split       => { Bf16,  32,  64,  64, 4, 2, F32, 1, 16, Split };
            fwd_f16_d64_m16n128_w4s3c1_split       => { F16,   64,  16, 128, 4, 3, F32, 1, 16, Split };
            fwd_bf16_d64_m16n128_w4s3c1_split      => { Bf16,  64,  16, 128, 4, 3, F32, 1, 16, Split };
            fwd_f16_d64_m64n64_w4s2c1_split        => { F16,   64,  64,  64, 4, 2, F32, 1, 16, Split };
            fwd_bf16_d64_m64n64_w4s2c1_split       => { Bf16,  64,  64,  64, 4, 2, F32, 1, 16, Split };
            fwd_f16_d96_m16n64_w4s3c1_split        => { F16,   96,  16,  64, 4, 3, F32, 1, 16, Split };
            fwd_bf16_d96_m16n64_w4s3c1_split       => { Bf16,  96,  16,  64, 4, 3, F32, 1, 16, Split };
            fwd_f16_d96_m64n64_w4s1c1_split        => { F16,   96,  64,  64, 4, 1, F32, 1, 16, Split };
            fwd_bf16_d96_m64n64_w4s1c1_split       => { Bf16,  96,  64,  64, 4, 1, F32, 1, 16, Split };
            fwd_f16_d128_m16n64_w4s2c1_split       => { F16,  128,  16,  64, 4, 2, F32, 1, 16, Split };
            fwd_bf16_d128_m16n64_w4s2c1_split      => { Bf16, 128,  16,  64, 4, 2, F32, 1, 16, Split };
            fwd_f16_d128_m16n64_w4s3c1_split       => { F16,  128,  16,  64, 4, 3, F32, 1, 16, Split };
            fwd_bf16_d128_m16n64_w4s3c1_split      => { Bf16, 128,  16,  64, 4, 3, F32, 1, 16, Split };
            fwd_f16_d128_m64n64_w4s1c1_split       => { F16,  128,  64,  64, 4, 1, F32, 1, 16, Split };
            fwd_bf16_d128_m64n64_w4s1c1_split      => { Bf16, 128,  64,  64, 4, 1, F32, 1, 16, Split };
            fwd_f16_d128_m128n32_w4s2c1_split      => { F16,  128, 128,  32, 4, 2, F32, 1, 32, Split };
            fwd_bf16_d128_m128n32_w4s2c1_split     => { Bf16, 128, 128,  32, 4, 2, F32, 1, 32, Split };
            fwd_f16_d256_m32n64_w4s1c1_split       => { F16,  256,  32,  64, 4, 1, F32, 1, 16, Split };
            fwd_bf16_d256_m32n64_w4s1c1_split      => { Bf16, 256,  32,  64, 4, 1, F32, 1, 16, Split };
            fwd_f16_d256_m64n64_w4s1c1_split       => { F16,  256,  64,  64, 4, 1, F32, 1, 16, Split };
            fwd_bf16_d256_m64n64_w4s1c1_split      => { Bf16, 256,  64,  64, 4, 1, F32, 1, 16, Split };
            // Rows for ragged batches: for many queries a sequence, for few, and with other scores.
            fwd_f16_d32_m64n64_w4s2c1_ragged               => { F16,    32,  64,  64, 4, 2, F32, 1, 16, Ragged };
            fwd_bf16_d32_m64n64_w4s2c1_ragged              => { Bf16,   32,  64,  64, 4, 2, F32, 1, 16, Ragged };
            fwd_f16_d64_m64n64_w4s2c2_ragged               => { F16,    64,  64,  64, 4, 2, F32, 2, 16, Ragged };
            fwd_bf16_d64_m64n64_w4s2c2_ragged              => { Bf16,   64,  64,  64, 4, 2, F32, 2, 16, Ragged };
            fwd_f16_d96_m64n64_w4s2c1_ragged               => { F16,    96,  64,  64, 4, 2, F32, 1, 16, Ragged };
            fwd_bf16_d96_m64n64_w4s2c1_ragged              => { Bf16,   96,  64,  64, 4, 2, F32, 1, 16, Ragged };
            fwd_f16_d128_m64n64_w4s2c1_ragged              => { F16,   128,  64,  64, 4, 2, F32, 1, 16, Ragged };
            fwd_bf16_d128_m64n64_w4s2c1_ragged             => { Bf16,  128,  64,  64, 4, 2, F32, 1, 16, Ragged };
            fwd_f16_d256_m64n32_w8s2c1_ragged              => { F16,   256,  64,  32, 8, 2, F32, 1, 16, Ragged };
            fwd_bf16_d256_m64n32_w8s2c1_ragged             => { Bf16,  256,  64,  32, 8, 2, F32, 1, 16, Ragged };
            fwd_f16_d32_m16n128_w4s3c1_ragged              => { F16,    32,  16, 128, 4, 3, F32, 1, 16, Ragged };
            fwd_bf16_d32_m16n128_w4s3c1_ragged             => { Bf16,   32,  16, 128, 4, 3, F32, 1, 16, Ragged };
            fwd_f16_d64_m16n128_w4s3c1_ragged              => { F16,    64,  16, 128, 4, 3, F32, 1, 16, Ragged };
            fwd_bf16_d64_m16n128_w4s3c1_ragged             => { Bf16,   64,  16, 128, 4, 3, F32, 1, 16, Ragged };
            fwd_f16_d96_m16n64_w4s3c2_ragged               => { F16,    96,  16,  64, 4, 3, F32, 2, 16, Ragged };
            fwd_bf16_d96_m16n64_w4s3c2_ragged              => { Bf16,   96,  16,  64, 4, 3, F32, 2, 16, Ragged };
            fwd_f16_d128_m16n64_w4s3c1_ragged              => { F16, 128,  16,  64, 4, 3, F32, 1, 16, Ragged };
            fwd_bf16_d128_m16n64_w4s3c1_ragged             => { Bf16, 128,  16,  64, 4, 3, F32, 1, 16, Ragged };
            fwd_f16_d256_m32n32_w4s2c1_ragged              => { F16,   256,  32,  32, 4, 2, F32, 1, 16, Ragged };
            fwd_bf16_d256_m32n32_w4s2c1_ragged             => { Bf16,  256,  32,  32, 4, 2, F32, 1, 16, Ragged };
            // Halves of a value vector are two CTAs'.
            fwd_f16_d512_m32n32_w4s1c1_ragged              => { F16,   512,  32,  32, 4, 1, F32, 1, 16, Ragged };
            fwd_bf16_d512_m32n32_w4s1c1_ragged             => { Bf16,  512,  32,  32, 4, 1, F32, 1, 16, Ragged };
            fwd_f16_d64_m64n64_w4s2c2_ragged_softcap       => { F16,    64,  64,  64, 4, 2, F32, 2, 16, Ragged, Softcap };
            fwd_bf16_d64_m64n64_w4s2c2_ragged_softcap      => { Bf16,   64,  64,  64, 4, 2, F32, 2, 16, Ragged, Softcap };
            fwd_f16_d96_m64n64_w4s2c1_ragged_softcap       => { F16,    96,  64,  64, 4, 2, F32, 1, 16, Ragged, Softcap };
            fwd_bf16_d96_m64n64_w4s2c1_ragged_softcap      => { Bf16,   96,  64,  64, 4, 2, F32, 1, 16, Ragged, Softcap };
            fwd_f16_d128_m64n64_w4s2c1_ragged_softcap      => { F16,   128,  64,  64, 4, 2, F32, 1, 16, Ragged, Softcap };
            fwd_bf16_d128_m64n64_w4s2c1_ragged_softcap     => { Bf16,  128,  64,  64, 4, 2, F32, 1, 16, Ragged, Softcap };
            fwd_f16_d256_m32n32_w4s2c1_ragged_softcap      => { F16,   256,  32,  32, 4, 2, F32, 1, 16, Ragged, Softcap };
            fwd_bf16_d256_m32n32_w4s2c1_ragged_softcap     => { Bf16,  256,  32,  32, 4, 2, F32, 1, 16, Ragged, Softcap };
            fwd_f16_d64_m64n64_w4s2c1_ragged_alibi         => { F16,    64,  64,  64, 4, 2, F32, 1, 16, Ragged, Alibi };
            fwd_bf16_d64_m64n64_w4s2c1_ragged_alibi        => { Bf16,   64,  64,  64, 4, 2, F32, 1, 16, Ragged, Alibi };
            fwd_f16_d128_m64n64_w4s2c1_ragged_alibi        => { F16,   128,  64,  64, 4, 2, F32, 1, 16, Ragged, Alibi };
            fwd_bf16_d128_m64n64_w4s2c1_ragged_alibi       => { Bf16,  128,  64,  64, 4, 2, F32, 1, 16, Ragged, Alibi };
            fwd_f16_d256_m32n32_w4s2c1_ragged_alibi        => { F16,   256,  32,  32, 4, 2, F32, 1, 16, Ragged, Alibi };
            fwd_bf16_d256_m32n32_w4s2c1_ragged_alibi       => { Bf16,  256,  32,  32, 4, 2, F32, 1, 16, Ragged, Alibi };
            fwd_f16_d64_m64n64_w4s2c1_ragged_bias          => { F16,    64,  64,  64, 4, 2, F32, 1, 16, Ragged, Bias };
            fwd_bf16_d64_m64n64_w4s2c1_ragged_bias         => { Bf16,   64,  64,  64, 4, 2, F32, 1, 16, Ragged, Bias };
            fwd_f16_d128_m64n64_w4s2c1_ragged_bias         => { F16,   128,  64,  64, 4, 2, F32, 1, 16, Ragged, Bias };
            fwd_bf16_d128_m64n64_w4s2c1_ragged_bias        => { Bf16,  128,  64,  64, 4, 2, F32, 1, 16, Ragged, Bias };
            fwd_f16_d256_m32n32_w4s2c1_ragged_bias         => { F16,   256,  32,  32, 4, 2, F32, 1, 16, Ragged, Bias };
            fwd_bf16_d256_m32n32_w4s2c1_ragged_bias        => { Bf16,  256,  32,  32, 4, 2, F32, 1, 16, Ragged, Bias };
            // Tree masks; other widths run in the next wider tile.
            fwd_f16_d64_m64n64_w4s2c2_ragged_tree          => { F16,    64,  64,  64, 4, 2, F32, 2, 16, Ragged, Tree };
            fwd_bf16_d64_m64n64_w4s2c2_ragged_tree         => { Bf16,   64,  64,  64, 4, 2, F32, 2, 16, Ragged, Tree };
            fwd_f16_d128_m64n64_w4s2c1_ragged_tree         => { F16,   128,  64,  64, 4, 2, F32, 1, 16, Ragged, Tree };
            fwd_bf16_d128_m64n64_w4s2c1_ragged_tree        => { Bf16,  128,  64,  64, 4, 2, F32, 1, 16, Ragged, Tree };
            fwd_f16_d256_m32n32_w4s2c1_ragged_tree         => { F16,   256,  32,  32, 4, 2, F32, 1, 16, Ragged, Tree };
            fwd_bf16_d256_m32n32_w4s2c1_ragged_tree        => { Bf16,  256,  32,  32, 4, 2, F32, 1, 16, Ragged, Tree };
            // Dropout; other widths run in the next wider tile.
            fwd_f16_d64_m64n64_w4s2c1_ragged_dropout       => { F16,    64,  64,  64, 4, 2, F32, 1, 16, Ragged, Dropout };
            fwd_bf16_d64_m64n64_w4s2c1_ragged_dropout      => { Bf16,   64,  64,  64, 4, 2, F32, 1, 16, Ragged, Dropout };
            fwd_f16_d128_m64n64_w4s2c1_ragged_dropout      => { F16,   128,  64,  64, 4, 2, F32, 1, 16, Ragged, Dropout };
            fwd_bf16_d128_m64n64_w4s2c1_ragged_dropout     => { Bf16,  128,  64,  64, 4, 2, F32, 1, 16, Ragged, Dropout };
            fwd_f16_d256_m32n32_w4s1c1_ragged_dropout      => { F16,   256,  32,  32, 4, 1, F32, 1, 16, Ragged, Dropout };
            fwd_bf16_d256_m32n32_w4s1c1_ragged_dropout     => { Bf16,  256,  32,  32, 4, 1, F32, 1, 16, Ragged, Dropout };
            // Rows that exercise the other columns: 3 stages, float16 accumulation, mma with CTAs that draw their work from a counter.
            fwd_f16_d64_m128n64_w4s2c1_persistent  => { F16,   64, 128,  64, 4, 2, F32, 1, 32, Persistent };
            fwd_f16_d64_m64n64_w4s3c1              => { F16,   64,  64,  64, 4, 3, F32, 1, 16, Grid };
            fwd_f16_d64_m64n64_w4s2c1_accf16       => { F16,   64,  64,  64, 4, 2, F16, 1, 16, Grid };
        }
    };
}

/// Calls `$callback!` back with every row of [`Isa::Wgmma`].
#[cfg(not(ferroflash_rows))]
#[macro_export]
macro_rules! for_each_wgmma_kernel {
    ($callback:ident) => {
        $callback! {
            // entry = its name in the PTX                       dtype  d    m    n   w  s  acc min_ctas warp_rows schedule score
            fwd_wgmma_f16_d32_m64n128_w8s2c2_persistent      => { F16,    32,  64, 128,  8, 2, F32, 2, 16, Persistent };
            fwd_wgmma_bf16_d32_m64n128_w8s2c2_persistent     => { Bf16,   32,  64, 128,  8, 2, F32, 2, 16, Persistent };
            fwd_wgmma_f16_d32_m192n128_w16s2c1_persistent    => { F16,    32, 192, 128, 16, 2, F32, 1, 16, Persistent };
            fwd_wgmma_bf16_d32_m192n128_w16s2c1_persistent   => { Bf16,   32, 192, 128, 16, 2, F32, 1, 16, Persistent };
            fwd_wgmma_f16_d64_m64n128_w12s4c1                => { F16,   64,  64, 128, 12, 4, F32, 1, 16, Grid };
            fwd_wgmma_bf16_d64_m64n128_w12s4c1               => { Bf16,  64,  64, 128, 12, 4, F32, 1, 16, Grid };
            fwd_wgmma_f16_d64_m64n128_w8s2c2                 => { F16,   64,  64, 128,  8, 2, F32, 2, 16, Grid };
            fwd_wgmma_bf16_d64_m64n128_w8s2c2                => { Bf16,  64,  64, 128,  8, 2, F32, 2, 16, Grid };
            fwd_wgmma_f16_d64_m64n64_w8s2c3_persistent       => { F16,   64,  64,  64,  8, 2, F32, 3, 16, Persistent };
            fwd_wgmma_bf16_d64_m64n64_w8s2c3_persistent      => { Bf16,  64,  64,  64,  8, 2, F32, 3, 16, Persistent };
            fwd_wgmma_f16_d64_m128n128_w12s3c1_persistent    => { F16,   64, 128, 128, 12, 3, F32, 1, 16, Persistent };
            fwd_wgmma_bf16_d64_m128n128_w12s3c1_persistent   => { Bf16,  64, 128, 128, 12, 3, F32, 1, 16, Persistent };
            fwd_wgmma_f16_d64_m192n128_w16s2c1_persistent    => { F16,   64, 192, 128, 16, 2, F32, 1, 16, Persistent };
            fwd_wgmma_bf16_d64_m192n128_w16s2c1_persistent   => { Bf16,  64, 192, 128, 16, 2, F32, 1, 16, Persistent };
            fwd_wgmma_f16_d96_m64n128_w12s2c1                => { F16,   96,  64, 128, 12, 2, F32, 1, 16, Grid };
            fwd_wgmma_bf16_d96_m64n128_w12s2c1               => { Bf16,  96,  64, 128, 12, 2, F32, 1, 16, Grid };
            fwd_wgmma_f16_d96_m128n128_w12s3c1_persistent    => { F16,   96, 128, 128, 12, 3, F32, 1, 16, Persistent };
            fwd_wgmma_bf16_d96_m128n128_w12s3c1_persistent   => { Bf16,  96, 128, 128, 12, 3, F32, 1, 16, Persistent };
            fwd_wgmma_f16_d96_m192n112_w16s2c1_persistent    => { F16,   96, 192, 112, 16, 2, F32, 1, 16, Persistent };
            fwd_wgmma_bf16_d96_m192n112_w16s2c1_persistent   => { Bf16,  96, 192, 112, 16, 2, F32, 1, 16, Persistent };
            fwd_wgmma_f16_d128_m64n64_w12s4c1                => { F16,  128,  64,  64, 12, 4, F32, 1, 16, Grid };
            fwd_wgmma_bf16_d128_m64n64_w12s4c1               => { Bf16, 128,  64,  64, 12, 4, F32, 1, 16, Grid };
            fwd_wgmma_f16_d128_m128n128_w12s3c1_persistent   => { F16,  128, 128, 128, 12, 3, F32, 1, 16, Persistent };
            fwd_wgmma_bf16_d128_m128n128_w12s3c1_persistent  => { Bf16, 128, 128, 128, 12, 3, F32, 1, 16, Persistent };
            fwd_wgmma_f16_d256_m64n64_w8s2c1                 => { F16,  256,  64,  64,  8, 2, F32, 1, 16, Grid };
            fwd_wgmma_bf16_d256_m64n64_w8s2c1                => { Bf16, 256,  64,  64,  8, 2, F32, 1, 16, Grid };
            fwd_wgmma_f16_d256_m128n64_w12s2c1_persistent    => { F16,  256, 128,  64, 12, 2, F32, 1, 16, Persistent };
            fwd_wgmma_bf16_d256_m128n64_w12s2c1_persistent   => { Bf16, 256, 128,  64, 12, 2, F32, 1, 16, Persistent };
            fwd_wgmma_f16_d32_m128n128_w12s2c1_split         => { F16,    32, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_bf16_d32_m128n128_w12s2c1_split        => { Bf16,   32, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_f16_d64_m128n128_w12s2c1_split         => { F16,   64, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_bf16_d64_m128n128_w12s2c1_split        => { Bf16,  64, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_f16_d96_m128n128_w12s2c1_split         => { F16,   96, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_bf16_d96_m128n128_w12s2c1_split        => { Bf16,  96, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_f16_d128_m128n128_w12s2c1_split        => { F16,  128, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_bf16_d128_m128n128_w12s2c1_split       => { Bf16, 128, 128, 128, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_f16_d256_m128n64_w12s2c1_split         => { F16,  256, 128,  64, 12, 2, F32, 1, 16, Split };
            fwd_wgmma_bf16_d256_m128n64_w12s2c1_split        => { Bf16, 256, 128,  64, 12, 2, F32, 1, 16, Split };
            // Rows for ragged batches; with a bias fewer keys at head_dim 96 and 128, and none at 256, or registers spill.
            fwd_wgmma_f16_d64_m64n64_w8s2c3_ragged           => { F16,  64,  64,  64,  8, 2, F32, 3, 16, Ragged };
            fwd_wgmma_bf16_d64_m64n64_w8s2c3_ragged          => { Bf16, 64,  64,  64,  8, 2, F32, 3, 16, Ragged };
            fwd_wgmma_f16_d64_m128n128_w12s3c1_ragged        => { F16,    64, 128, 128, 12, 3, F32, 1, 16, Ragged };
            fwd_wgmma_bf16_d64_m128n128_w12s3c1_ragged       => { Bf16,   64, 128, 128, 12, 3, F32, 1, 16, Ragged };
            fwd_wgmma_f16_d64_m192n112_w16s3c1_ragged        => { F16,    64, 192, 112, 16, 3, F32, 1, 16, Ragged };
            fwd_wgmma_bf16_d64_m192n112_w16s3c1_ragged       => { Bf16,   64, 192, 112, 16, 3, F32, 1, 16, Ragged };
            fwd_wgmma_f16_d96_m128n128_w12s3c1_ragged        => { F16,    96, 128, 128, 12, 3, F32, 1, 16, Ragged };
            fwd_wgmma_bf16_d96_m128n128_w12s3c1_ragged       => { Bf16,   96, 128, 128, 12, 3, F32, 1, 16, Ragged };
            fwd_wgmma_f16_d128_m128n128_w12s3c1_ragged       => { F16,   128, 128, 128, 12, 3, F32, 1, 16, Ragged };
            fwd_wgmma_bf16_d128_m128n128_w12s3c1_ragged      => { Bf16,  128, 128, 128, 12, 3, F32, 1, 16, Ragged };
            fwd_wgmma_f16_d192_m128n128_w12s2c1_ragged       => { F16,   192, 128, 128, 12, 2, F32, 1, 16, Ragged };
            fwd_wgmma_bf16_d192_m128n128_w12s2c1_ragged      => { Bf16,  192, 128, 128, 12, 2, F32, 1, 16, Ragged };
            fwd_wgmma_f16_d512_m64n64_w12s1c1_ragged         => { F16,   512,  64,  64, 12, 1, F32, 1, 16, Ragged };
            fwd_wgmma_bf16_d512_m64n64_w12s1c1_ragged        => { Bf16,  512,  64,  64, 12, 1, F32, 1, 16, Ragged };
            fwd_wgmma_f16_d256_m128n64_w12s2c1_ragged        => { F16,   256, 128,  64, 12, 2, F32, 1, 16, Ragged };
            fwd_wgmma_bf16_d256_m128n64_w12s2c1_ragged       => { Bf16,  256, 128,  64, 12, 2, F32, 1, 16, Ragged };
            fwd_wgmma_f16_d64_m128n128_w12s3c1_ragged_softcap => { F16,   64, 128, 128, 12, 3, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_bf16_d64_m128n128_w12s3c1_ragged_softcap=> { Bf16,  64, 128, 128, 12, 3, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_f16_d96_m128n128_w12s3c1_ragged_softcap=> { F16,    96, 128, 128, 12, 3, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_bf16_d96_m128n128_w12s3c1_ragged_softcap=> { Bf16,   96, 128, 128, 12, 3, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_f16_d128_m128n128_w12s2c1_ragged_softcap=> { F16,   128, 128, 128, 12, 2, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_bf16_d128_m128n128_w12s2c1_ragged_softcap=> { Bf16,  128, 128, 128, 12, 2, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_f16_d256_m128n64_w12s2c1_ragged_softcap=> { F16,   256, 128,  64, 12, 2, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_bf16_d256_m128n64_w12s2c1_ragged_softcap=> { Bf16,  256, 128,  64, 12, 2, F32, 1, 16, Ragged, Softcap };
            fwd_wgmma_f16_d64_m128n128_w12s3c1_ragged_alibi  => { F16,   64, 128, 128, 12, 3, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_bf16_d64_m128n128_w12s3c1_ragged_alibi => { Bf16,  64, 128, 128, 12, 3, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_f16_d96_m128n128_w12s3c1_ragged_alibi  => { F16,    96, 128, 128, 12, 3, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_bf16_d96_m128n128_w12s3c1_ragged_alibi => { Bf16,   96, 128, 128, 12, 3, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_f16_d128_m128n128_w12s2c1_ragged_alibi => { F16,   128, 128, 128, 12, 2, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_bf16_d128_m128n128_w12s2c1_ragged_alibi=> { Bf16,  128, 128, 128, 12, 2, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_f16_d256_m128n64_w12s2c1_ragged_alibi  => { F16,   256, 128,  64, 12, 2, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_bf16_d256_m128n64_w12s2c1_ragged_alibi => { Bf16,  256, 128,  64, 12, 2, F32, 1, 16, Ragged, Alibi };
            fwd_wgmma_f16_d64_m128n128_w12s2c1_ragged_bias   => { F16,    64, 128, 128, 12, 2, F32, 1, 16, Ragged, Bias };
            fwd_wgmma_bf16_d64_m128n128_w12s2c1_ragged_bias  => { Bf16,   64, 128, 128, 12, 2, F32, 1, 16, Ragged, Bias };
            fwd_wgmma_f16_d128_m128n112_w12s2c1_ragged_bias  => { F16,   128, 128, 112, 12, 2, F32, 1, 16, Ragged, Bias };
            fwd_wgmma_bf16_d128_m128n112_w12s2c1_ragged_bias => { Bf16,  128, 128, 112, 12, 2, F32, 1, 16, Ragged, Bias };
            fwd_wgmma_f16_d64_m128n128_w12s3c1_ragged_dropout  => { F16,  64, 128, 128, 12, 3, F32, 1, 16, Ragged, Dropout };
            fwd_wgmma_bf16_d64_m128n128_w12s3c1_ragged_dropout => { Bf16, 64, 128, 128, 12, 3, F32, 1, 16, Ragged, Dropout };
            fwd_wgmma_f16_d128_m128n128_w12s2c1_ragged_dropout => { F16, 128, 128, 128, 12, 2, F32, 1, 16, Ragged, Dropout };
            fwd_wgmma_bf16_d128_m128n128_w12s2c1_ragged_dropout => { Bf16, 128, 128, 128, 12, 2, F32, 1, 16, Ragged, Dropout };
            fwd_wgmma_f16_d64_m128n128_w12s2c1_ragged_tree   => { F16,  64, 128, 128, 12, 2, F32, 1, 16, Ragged, Tree };
            fwd_wgmma_bf16_d64_m128n128_w12s2c1_ragged_tree  => { Bf16,  64, 128, 128, 12, 2, F32, 1, 16, Ragged, Tree };
            fwd_wgmma_f16_d128_m128n128_w12s2c1_ragged_tree  => { F16,   128, 128, 128, 12, 2, F32, 1, 16, Ragged, Tree };
            fwd_wgmma_bf16_d128_m128n128_w12s2c1_ragged_tree => { Bf16,  128, 128, 128, 12, 2, F32, 1, 16, Ragged, Tree };
        }
    };
}

// `cargo xtask build-ptx --rows` compiles other rows through the same macros.
#[cfg(ferroflash_rows)]
include!(env!("FERROFLASH_ROWS_FILE"));

/// Calls `$callback!` back with the scores of users: for each a number from 0, its name and its type. The table has none.
#[cfg(not(ferroflash_rows))]
#[macro_export]
macro_rules! for_each_user_score {
    ($callback:ident) => {
        $callback! {}
    };
}

/// A kernel: its entry's name and its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The entry's name in the PTX.
    pub entry: &'static str,
    /// The row.
    pub row: Row,
}

// The one place that knows the order of a row's columns: this macro, and the line below that writes one.
macro_rules! variants {
    ($isa:ident, $name:ident: $($entry:ident => {
        $dtype:ident, $head_dim:literal, $block_m:literal, $block_n:literal,
        $warps:literal, $stages:literal, $acc:ident, $min_ctas:literal, $warp_rows:literal, $schedule:ident
        $(, $score:ident $($user:ident)?)?
    };)*) => {
        const $name: &[Variant] = &[$(Variant {
            entry: stringify!($entry),
            row: Row {
                isa: Isa::$isa,
                dtype: Dtype::$dtype,
                head_dim: $head_dim,
                block_m: $block_m,
                block_n: $block_n,
                warps: $warps,
                stages: $stages,
                acc: Accumulation::$acc,
                min_ctas: $min_ctas,
                warp_rows: $warp_rows,
                schedule: Schedule::$schedule,
                score: score!($($score $($user)?)?),
            },
        }),*];
    };
}
// The last column, which stands only where the score is not plain: a score of Ferroflash, or `User` and the name of a user's.
macro_rules! score {
    () => {
        ScoreKind::Plain
    };
    (User $name:ident) => {
        ScoreKind::User(match ScoreName::new(stringify!($name)) {
            Some(name) => name,
            None => panic!("{}", ScoreName::RULE),
        })
    };
    ($score:ident) => {
        ScoreKind::$score
    };
}
macro_rules! mma_variants {
    ($($rows:tt)*) => { variants!(Mma, MMA_VARIANTS: $($rows)*); };
}
macro_rules! wgmma_variants {
    ($($rows:tt)*) => { variants!(Wgmma, WGMMA_VARIANTS: $($rows)*); };
}
for_each_forward_kernel!(mma_variants);
for_each_wgmma_kernel!(wgmma_variants);

/// A row as a line of the table, for `cargo xtask build-ptx --rows`.
#[cfg(feature = "manifest")]
pub fn line(entry: &str, row: &Row) -> alloc::string::String {
    let Row { dtype, head_dim, block_m, block_n, warps, stages, acc, min_ctas, warp_rows, schedule, .. } =
        row;
    let score = match row.score {
        ScoreKind::Plain => alloc::string::String::new(),
        ScoreKind::User(name) => alloc::format!(", User {name:?}"),
        score => alloc::format!(", {score:?}"),
    };
    alloc::format!(
        "{entry} => {{ {dtype:?}, {head_dim}, {block_m}, {block_n}, {warps}, {stages}, {acc:?}, {min_ctas}, {warp_rows}, {schedule:?}{score} }};"
    )
}

/// Every kernel of the table.
pub const VARIANTS: &[Variant] = &ALL_VARIANTS;

const ALL_VARIANTS: [Variant; MMA_VARIANTS.len() + WGMMA_VARIANTS.len()] = {
    let mut all = [if MMA_VARIANTS.is_empty() { WGMMA_VARIANTS[0] } else { MMA_VARIANTS[0] };
        MMA_VARIANTS.len() + WGMMA_VARIANTS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] =
            if i < MMA_VARIANTS.len() { MMA_VARIANTS[i] } else { WGMMA_VARIANTS[i - MMA_VARIANTS.len()] };
        i += 1;
    }
    all
};

/// Fails the build at the first impossible row, naming it and the reason.
macro_rules! check_rows {
    ($($entry:ident => $columns:tt;)*) => {
        /// A constant a row, so that the compiler's message names the row.
        #[allow(non_upper_case_globals, dead_code)]
        const _: () = {
            $(const $entry: () = match row_of(stringify!($entry)).check() {
                Ok(()) => {}
                Err(error) => panic!("{}", error.reason()),
            };)*
        };
    };
}

/// The row of an entry, at compile time.
///
/// # Panics
/// If no row has that name: a build error.
pub const fn row_of(entry: &str) -> Row {
    let mut i = 0;
    while i < VARIANTS.len() {
        if same(VARIANTS[i].entry.as_bytes(), entry.as_bytes()) {
            return VARIANTS[i].row;
        }
        i += 1;
    }
    panic!("not in the table")
}

pub(crate) const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}
for_each_forward_kernel!(check_rows);
for_each_wgmma_kernel!(check_rows);

#[cfg(all(test, feature = "manifest"))]
mod tests {
    use super::*;

    #[test]
    fn entry_names_say_their_rows() {
        for variant in VARIANTS {
            assert_eq!(variant.entry, variant.row.entry_name());
        }
    }

    #[test]
    fn no_row_stands_twice() {
        let mut rows: Vec<Row> = VARIANTS.iter().map(|variant| variant.row).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), VARIANTS.len());
    }
}
