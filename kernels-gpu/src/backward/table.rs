//! The table of the backward pass's kernels. One line a kernel: pass, dtype, head_dim, block_m, block_n, warps, stages, and the score unless
//! it is plain.

use super::row::{BackwardRow, Pass};
use crate::row::{Dtype, Isa, ScoreKind};

/// Calls `$callback!` back with every kernel of the backward pass of [`Isa::Mma`]: its entry and its row.
#[cfg(not(ferroflash_rows))]
#[macro_export]
macro_rules! for_each_backward_kernel {
    ($callback:ident) => {
        $callback! {
            bwd_dq_f16_d64_m64n32_w4s2     => { Dq,  F16,   64,  64,  32,  4, 2 };
            bwd_dq_bf16_d64_m64n32_w4s2    => { Dq,  Bf16,  64,  64,  32,  4, 2 };
            bwd_dq_f16_d128_m64n32_w4s2    => { Dq,  F16,  128,  64,  32,  4, 2 };
            bwd_dq_bf16_d128_m64n32_w4s2   => { Dq,  Bf16, 128,  64,  32,  4, 2 };
            bwd_dkv_f16_d64_m32n128_w4s2   => { Dkv, F16,   64,  32, 128,  4, 2 };
            bwd_dkv_bf16_d64_m32n128_w4s2  => { Dkv, Bf16,  64,  32, 128,  4, 2 };
            bwd_dkv_f16_d64_m64n64_w4s2    => { Dkv, F16,   64,  64,  64,  4, 2 };
            bwd_dkv_bf16_d64_m64n64_w4s2   => { Dkv, Bf16,  64,  64,  64,  4, 2 };
            bwd_dkv_f16_d128_m32n64_w4s2   => { Dkv, F16,  128,  32,  64,  4, 2 };
            bwd_dkv_bf16_d128_m32n64_w4s2  => { Dkv, Bf16, 128,  32,  64,  4, 2 };
            // Five products: dS goes through memory.
            bwd_dkvds_f16_d64_m32n128_w4s2  => { DkvDs, F16,   64,  32, 128, 4, 2 };
            bwd_dkvds_bf16_d64_m32n128_w4s2 => { DkvDs, Bf16,  64,  32, 128, 4, 2 };
            bwd_dqds_f16_d64_m128n64_w4s4   => { DqDs,  F16,   64, 128,  64, 4, 4 };
            bwd_dqds_bf16_d64_m128n64_w4s4  => { DqDs,  Bf16,  64, 128,  64, 4, 4 };
            bwd_dkvds_f16_d128_m32n64_w4s2  => { DkvDs, F16,  128,  32,  64, 4, 2 };
            bwd_dkvds_bf16_d128_m32n64_w4s2 => { DkvDs, Bf16, 128,  32,  64, 4, 2 };
            bwd_dqds_f16_d128_m128n64_w4s2  => { DqDs,  F16,  128, 128,  64, 4, 2 };
            bwd_dqds_bf16_d128_m128n64_w4s2 => { DqDs,  Bf16, 128, 128,  64, 4, 2 };
            // Every width above 128.
            bwd_dq_f16_d256_m64n16_w4s2    => { Dq,  F16,  256,  64,  16,  4, 2 };
            bwd_dq_bf16_d256_m64n16_w4s2   => { Dq,  Bf16, 256,  64,  16,  4, 2 };
            bwd_dkv_f16_d256_m16n64_w4s2   => { Dkv, F16,  256,  16,  64,  4, 2 };
            bwd_dkv_bf16_d256_m16n64_w4s2  => { Dkv, Bf16, 256,  16,  64,  4, 2 };
            // Scores, in one tile for every width up to 128, and above a softcap.
            bwd_dq_f16_d128_m64n32_w4s2_softcap   => { Dq,  F16,  128,  64,  32,  4, 2, Softcap };
            bwd_dq_bf16_d128_m64n32_w4s2_softcap  => { Dq,  Bf16, 128,  64,  32,  4, 2, Softcap };
            bwd_dkv_f16_d128_m16n64_w4s2_softcap  => { Dkv, F16,  128,  16,  64,  4, 2, Softcap };
            bwd_dkv_bf16_d128_m16n64_w4s2_softcap => { Dkv, Bf16, 128,  16,  64,  4, 2, Softcap };
            bwd_dq_f16_d256_m64n16_w4s2_softcap   => { Dq,  F16,  256,  64,  16,  4, 2, Softcap };
            bwd_dq_bf16_d256_m64n16_w4s2_softcap  => { Dq,  Bf16, 256,  64,  16,  4, 2, Softcap };
            bwd_dkv_f16_d256_m16n64_w4s2_softcap  => { Dkv, F16,  256,  16,  64,  4, 2, Softcap };
            bwd_dkv_bf16_d256_m16n64_w4s2_softcap => { Dkv, Bf16, 256,  16,  64,  4, 2, Softcap };
            bwd_dq_f16_d128_m64n32_w4s2_alibi     => { Dq,  F16,  128,  64,  32,  4, 2, Alibi };
            bwd_dq_bf16_d128_m64n32_w4s2_alibi    => { Dq,  Bf16, 128,  64,  32,  4, 2, Alibi };
            bwd_dkv_f16_d128_m32n64_w4s2_alibi    => { Dkv, F16,  128,  32,  64,  4, 2, Alibi };
            bwd_dkv_bf16_d128_m32n64_w4s2_alibi   => { Dkv, Bf16, 128,  32,  64,  4, 2, Alibi };
            // Biases.
            bwd_dq_f16_d64_m64n64_w4s2_bias       => { Dq,  F16,   64,  64,  64,  4, 2, Bias };
            bwd_dq_bf16_d64_m64n64_w4s2_bias      => { Dq,  Bf16,  64,  64,  64,  4, 2, Bias };
            bwd_dkv_f16_d64_m64n64_w4s2_bias      => { Dkv, F16,   64,  64,  64,  4, 2, Bias };
            bwd_dkv_bf16_d64_m64n64_w4s2_bias     => { Dkv, Bf16,  64,  64,  64,  4, 2, Bias };
            bwd_dq_f16_d128_m64n32_w4s2_bias      => { Dq,  F16,  128,  64,  32,  4, 2, Bias };
            bwd_dq_bf16_d128_m64n32_w4s2_bias     => { Dq,  Bf16, 128,  64,  32,  4, 2, Bias };
            bwd_dkv_f16_d128_m32n64_w4s2_bias     => { Dkv, F16,  128,  32,  64,  4, 2, Bias };
            bwd_dkv_bf16_d128_m32n64_w4s2_bias    => { Dkv, Bf16, 128,  32,  64,  4, 2, Bias };
            bwd_dq_f16_d256_m64n16_w4s2_bias      => { Dq,  F16,  256,  64,  16,  4, 2, Bias };
            bwd_dq_bf16_d256_m64n16_w4s2_bias     => { Dq,  Bf16, 256,  64,  16,  4, 2, Bias };
            bwd_dkv_f16_d256_m16n64_w4s2_bias     => { Dkv, F16,  256,  16,  64,  4, 2, Bias };
            bwd_dkv_bf16_d256_m16n64_w4s2_bias    => { Dkv, Bf16, 256,  16,  64,  4, 2, Bias };
            // Trees, in one tile for every width up to 128, and above.
            bwd_dq_f16_d128_m64n32_w4s2_tree      => { Dq,  F16,  128,  64,  32,  4, 2, Tree };
            bwd_dq_bf16_d128_m64n32_w4s2_tree     => { Dq,  Bf16, 128,  64,  32,  4, 2, Tree };
            bwd_dkv_f16_d128_m16n64_w4s2_tree     => { Dkv, F16,  128,  16,  64,  4, 2, Tree };
            bwd_dkv_bf16_d128_m16n64_w4s2_tree    => { Dkv, Bf16, 128,  16,  64,  4, 2, Tree };
            bwd_dq_f16_d256_m64n16_w4s2_tree      => { Dq,  F16,  256,  64,  16,  4, 2, Tree };
            bwd_dq_bf16_d256_m64n16_w4s2_tree     => { Dq,  Bf16, 256,  64,  16,  4, 2, Tree };
            bwd_dkv_f16_d256_m16n64_w4s2_tree     => { Dkv, F16,  256,  16,  64,  4, 2, Tree };
            bwd_dkv_bf16_d256_m16n64_w4s2_tree    => { Dkv, Bf16, 256,  16,  64,  4, 2, Tree };
            // Dropout.
            bwd_dq_f16_d64_m64n64_w4s2_dropout    => { Dq,  F16,   64,  64,  64,  4, 2, Dropout };
            bwd_dq_bf16_d64_m64n64_w4s2_dropout   => { Dq,  Bf16,  64,  64,  64,  4, 2, Dropout };
            bwd_dkv_f16_d64_m64n64_w4s2_dropout   => { Dkv, F16,   64,  64,  64,  4, 2, Dropout };
            bwd_dkv_bf16_d64_m64n64_w4s2_dropout  => { Dkv, Bf16,  64,  64,  64,  4, 2, Dropout };
            bwd_dq_f16_d128_m64n32_w4s2_dropout   => { Dq,  F16,  128,  64,  32,  4, 2, Dropout };
            bwd_dq_bf16_d128_m64n32_w4s2_dropout  => { Dq,  Bf16, 128,  64,  32,  4, 2, Dropout };
            bwd_dkv_f16_d128_m16n64_w4s2_dropout  => { Dkv, F16,  128,  16,  64,  4, 2, Dropout };
            bwd_dkv_bf16_d128_m16n64_w4s2_dropout => { Dkv, Bf16, 128,  16,  64,  4, 2, Dropout };
            bwd_dq_f16_d256_m64n16_w4s2_dropout   => { Dq,  F16,  256,  64,  16,  4, 2, Dropout };
            bwd_dq_bf16_d256_m64n16_w4s2_dropout  => { Dq,  Bf16, 256,  64,  16,  4, 2, Dropout };
            bwd_dkv_f16_d256_m16n64_w4s2_dropout  => { Dkv, F16,  256,  16,  64,  4, 2, Dropout };
            bwd_dkv_bf16_d256_m16n64_w4s2_dropout => { Dkv, Bf16, 256,  16,  64,  4, 2, Dropout };
        }
    };
}

/// Calls `$callback!` back with every kernel of the backward pass of [`Isa::Wgmma`].
#[cfg(not(ferroflash_rows))]
#[macro_export]
macro_rules! for_each_wgmma_backward_kernel {
    ($callback:ident) => {
        $callback! {
            bwd_wgmma_dq_f16_d64_m128n128_w12s2   => { Dq,  F16,   64, 128, 128, 12, 2 };
            bwd_wgmma_dq_bf16_d64_m128n128_w12s2  => { Dq,  Bf16,  64, 128, 128, 12, 2 };
            bwd_wgmma_dq_f16_d96_m128n128_w12s2   => { Dq,  F16,   96, 128, 128, 12, 2 };
            bwd_wgmma_dq_bf16_d96_m128n128_w12s2  => { Dq,  Bf16,  96, 128, 128, 12, 2 };
            bwd_wgmma_dq_f16_d128_m128n128_w12s2  => { Dq,  F16,  128, 128, 128, 12, 2 };
            bwd_wgmma_dq_bf16_d128_m128n128_w12s2 => { Dq,  Bf16, 128, 128, 128, 12, 2 };
            bwd_wgmma_dkv_f16_d64_m96n128_w12s2   => { Dkv, F16,   64,  96, 128, 12, 2 };
            bwd_wgmma_dkv_bf16_d64_m96n128_w12s2  => { Dkv, Bf16,  64,  96, 128, 12, 2 };
            bwd_wgmma_dkv_f16_d96_m64n128_w12s2   => { Dkv, F16,   96,  64, 128, 12, 2 };
            bwd_wgmma_dkv_bf16_d96_m64n128_w12s2  => { Dkv, Bf16,  96,  64, 128, 12, 2 };
            bwd_wgmma_dkv_f16_d128_m64n128_w12s2  => { Dkv, F16,  128,  64, 128, 12, 2 };
            bwd_wgmma_dkv_bf16_d128_m64n128_w12s2 => { Dkv, Bf16, 128,  64, 128, 12, 2 };
            // Five products: dS goes through memory, in two launches where it has little room.
            bwd_wgmma_dkvds_f16_d128_m64n128_w12s2 => { DkvDs, F16, 128, 64, 128, 12, 2 };
            bwd_wgmma_dqds_f16_d128_m256n128_w12s2 => { DqDs, F16, 128, 256, 128, 12, 2 };
            bwd_wgmma_dkvds_bf16_d128_m64n128_w12s2 => { DkvDs, Bf16, 128, 64, 128, 12, 2 };
            bwd_wgmma_dqds_bf16_d128_m256n128_w12s2 => { DqDs, Bf16, 128, 256, 128, 12, 2 };
            // In one launch.
            bwd_wgmma_dqdkv_f16_d64_m64n128_w12s3 => { DqDkv, F16, 64, 64, 128, 12, 3 };
            bwd_wgmma_dqdkv_bf16_d64_m64n128_w12s3 => { DqDkv, Bf16, 64, 64, 128, 12, 3 };
            bwd_wgmma_dqdkv_f16_d96_m64n128_w12s2 => { DqDkv, F16, 96, 64, 128, 12, 2 };
            bwd_wgmma_dqdkv_bf16_d96_m64n128_w12s2 => { DqDkv, Bf16, 96, 64, 128, 12, 2 };
            bwd_wgmma_dqdkv_f16_d128_m64n128_w12s2 => { DqDkv, F16, 128, 64, 128, 12, 2 };
            bwd_wgmma_dqdkv_bf16_d128_m64n128_w12s2 => { DqDkv, Bf16, 128, 64, 128, 12, 2 };
            bwd_wgmma_dqdkv_f16_d256_m64n64_w12s2 => { DqDkv, F16, 256, 64, 64, 12, 2 };
            bwd_wgmma_dqdkv_bf16_d256_m64n64_w12s2 => { DqDkv, Bf16, 256, 64, 64, 12, 2 };
            // The same of scores.
            bwd_wgmma_dqdkv_f16_d64_m96n128_w12s2_softcap => { DqDkv, F16, 64, 96, 128, 12, 2, Softcap };
            bwd_wgmma_dqdkv_bf16_d64_m96n128_w12s2_softcap => { DqDkv, Bf16, 64, 96, 128, 12, 2, Softcap };
            bwd_wgmma_dqdkv_f16_d256_m64n64_w12s2_softcap => { DqDkv, F16, 256, 64, 64, 12, 2, Softcap };
            bwd_wgmma_dqdkv_bf16_d256_m64n64_w12s2_softcap => { DqDkv, Bf16, 256, 64, 64, 12, 2, Softcap };
            bwd_wgmma_dqdkv_f16_d64_m64n128_w12s2_alibi => { DqDkv, F16, 64, 64, 128, 12, 2, Alibi };
            bwd_wgmma_dqdkv_bf16_d64_m64n128_w12s2_alibi => { DqDkv, Bf16, 64, 64, 128, 12, 2, Alibi };
            bwd_wgmma_dqdkv_f16_d128_m64n128_w12s2_alibi => { DqDkv, F16, 128, 64, 128, 12, 2, Alibi };
            bwd_wgmma_dqdkv_bf16_d128_m64n128_w12s2_alibi => { DqDkv, Bf16, 128, 64, 128, 12, 2, Alibi };
            bwd_wgmma_dqdkv_f16_d64_m64n128_w12s2_bias => { DqDkv, F16, 64, 64, 128, 12, 2, Bias };
            bwd_wgmma_dqdkv_bf16_d64_m64n128_w12s2_bias => { DqDkv, Bf16, 64, 64, 128, 12, 2, Bias };
            bwd_wgmma_dqdkv_f16_d64_m96n128_w12s2_dropout => { DqDkv, F16, 64, 96, 128, 12, 2, Dropout };
            bwd_wgmma_dqdkv_bf16_d64_m96n128_w12s2_dropout => { DqDkv, Bf16, 64, 96, 128, 12, 2, Dropout };
            bwd_wgmma_dqdkv_f16_d128_m64n128_w12s2_dropout => { DqDkv, F16, 128, 64, 128, 12, 2, Dropout };
            bwd_wgmma_dqdkv_bf16_d128_m64n128_w12s2_dropout => { DqDkv, Bf16, 128, 64, 128, 12, 2, Dropout };
            bwd_wgmma_dqdkv_f16_d256_m64n64_w12s2_dropout => { DqDkv, F16, 256, 64, 64, 12, 2, Dropout };
            bwd_wgmma_dqdkv_bf16_d256_m64n64_w12s2_dropout => { DqDkv, Bf16, 256, 64, 64, 12, 2, Dropout };
        }
    };
}

/// A kernel of the backward pass: its entry's name and its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardVariant {
    /// The entry's name in the PTX.
    pub entry: &'static str,
    /// The row.
    pub row: BackwardRow,
}

macro_rules! variants {
    ($isa:ident, $name:ident: $($entry:ident => {
        $pass:ident, $dtype:ident, $head_dim:literal, $block_m:literal, $block_n:literal, $warps:literal, $stages:literal
        $(, $score:ident)?
    };)*) => {
        const $name: &[BackwardVariant] = &[$(BackwardVariant {
            entry: stringify!($entry),
            row: BackwardRow {
                pass: Pass::$pass,
                isa: Isa::$isa,
                dtype: Dtype::$dtype,
                head_dim: $head_dim,
                block_m: $block_m,
                block_n: $block_n,
                warps: $warps,
                stages: $stages,
                score: score!($($score)?),
            },
        }),*];

        /// A constant a row, so that the compiler's message names the row.
        #[allow(non_upper_case_globals, dead_code)]
        const _: () = {
            $(const $entry: () = match backward_row_of(stringify!($entry)).check() {
                Ok(()) => {}
                Err(error) => panic!("{}", error.reason()),
            };)*
        };
    };
}
// The last column, which stands only where the score is not plain.
#[allow(unused_macros)] // A file of rows may have none.
macro_rules! score {
    () => {
        ScoreKind::Plain
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
for_each_backward_kernel!(mma_variants);
for_each_wgmma_backward_kernel!(wgmma_variants);

/// Every kernel of the backward pass.
pub const BACKWARD_VARIANTS: &[BackwardVariant] = &ALL;

const ALL: [BackwardVariant; MMA_VARIANTS.len() + WGMMA_VARIANTS.len()] = {
    // Replaced below; files of rows may leave either list empty.
    let none = BackwardRow {
        pass: Pass::Dq,
        isa: Isa::Mma,
        dtype: Dtype::F16,
        head_dim: 0,
        block_m: 0,
        block_n: 0,
        warps: 0,
        stages: 0,
        score: ScoreKind::Plain,
    };
    let mut all = [BackwardVariant { entry: "", row: none }; MMA_VARIANTS.len() + WGMMA_VARIANTS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] =
            if i < MMA_VARIANTS.len() { MMA_VARIANTS[i] } else { WGMMA_VARIANTS[i - MMA_VARIANTS.len()] };
        i += 1;
    }
    all
};

/// The row of an entry, at compile time.
///
/// # Panics
/// If no row has that name: a build error.
pub const fn backward_row_of(entry: &str) -> BackwardRow {
    let mut i = 0;
    while i < BACKWARD_VARIANTS.len() {
        if crate::table::same(BACKWARD_VARIANTS[i].entry.as_bytes(), entry.as_bytes()) {
            return BACKWARD_VARIANTS[i].row;
        }
        i += 1;
    }
    panic!("not in the table")
}

/// A row as a line of the table, for `cargo xtask build-ptx --rows`.
#[cfg(feature = "manifest")]
pub fn line(entry: &str, row: &BackwardRow) -> alloc::string::String {
    let BackwardRow { pass, isa: _, dtype, head_dim, block_m, block_n, warps, stages, score } = row;
    let score = match score {
        ScoreKind::Plain => alloc::string::String::new(),
        score => alloc::format!(", {score:?}"),
    };
    alloc::format!(
        "{entry} => {{ {pass:?}, {dtype:?}, {head_dim}, {block_m}, {block_n}, {warps}, {stages}{score} }};"
    )
}

#[cfg(all(test, feature = "manifest"))]
mod tests {
    use super::*;

    #[test]
    fn entry_names_say_their_rows_and_no_row_stands_twice() {
        let mut rows: Vec<BackwardRow> = BACKWARD_VARIANTS.iter().map(|variant| variant.row).collect();
        for variant in BACKWARD_VARIANTS {
            assert_eq!(variant.entry, variant.row.entry_name());
        }
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), BACKWARD_VARIANTS.len());
    }

    #[test]
    fn every_dtype_head_dim_and_score_has_both_passes() {
        let of = |row: &BackwardRow| (row.dtype, row.score);
        for BackwardVariant { entry, row } in BACKWARD_VARIANTS {
            // Those that keep nothing of dS, for limits that have no room for it, may be of a wider tile.
            let has = |pass: Pass| {
                BACKWARD_VARIANTS.iter().any(|BackwardVariant { row: other, .. }| {
                    let is_wide_enough = match row.pass {
                        Pass::Dq | Pass::Dkv => other.head_dim == row.head_dim,
                        _ => other.head_dim >= row.head_dim,
                    };
                    other.pass == pass && of(other) == of(row) && is_wide_enough
                })
            };
            assert!(has(Pass::Dq) && has(Pass::Dkv), "{entry}");
        }
    }
}
