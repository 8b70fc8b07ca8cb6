//! The table of the backward pass's kernels. One line a kernel: pass, dtype, head_dim, block_m, block_n, warps, stages.

use super::row::BackwardRow;

/// Calls `$callback!` back with every kernel of the backward pass: its entry and its row.
#[cfg(not(ferroflash_rows))]
#[macro_export]
macro_rules! for_each_backward_kernel {
    ($callback:ident) => {
        $callback! {
            bwd_dq_f16_d64_m128n64_w8s2    => { Dq,  F16,   64, 128,  64, 8, 2 };
            bwd_dq_bf16_d64_m128n64_w8s2   => { Dq,  Bf16,  64, 128,  64, 8, 2 };
            bwd_dq_f16_d128_m128n32_w8s2   => { Dq,  F16,  128, 128,  32, 8, 2 };
            bwd_dq_bf16_d128_m128n32_w8s2  => { Dq,  Bf16, 128, 128,  32, 8, 2 };
            bwd_dkv_f16_d64_m64n128_w8s2   => { Dkv, F16,   64,  64, 128, 8, 2 };
            bwd_dkv_bf16_d64_m64n128_w8s2  => { Dkv, Bf16,  64,  64, 128, 8, 2 };
            bwd_dkv_f16_d128_m32n128_w8s2  => { Dkv, F16,  128,  32, 128, 8, 2 };
            bwd_dkv_bf16_d128_m32n128_w8s2 => { Dkv, Bf16, 128,  32, 128, 8, 2 };
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

macro_rules! backward_variants {
    ($($entry:ident => {
        $pass:ident, $dtype:ident, $head_dim:literal, $block_m:literal, $block_n:literal, $warps:literal, $stages:literal
    };)*) => {
        /// Every kernel of the backward pass.
        pub const BACKWARD_VARIANTS: &[BackwardVariant] = &[$(BackwardVariant {
            entry: stringify!($entry),
            row: BackwardRow {
                pass: $crate::backward::row::Pass::$pass,
                dtype: $crate::row::Dtype::$dtype,
                head_dim: $head_dim,
                block_m: $block_m,
                block_n: $block_n,
                warps: $warps,
                stages: $stages,
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
for_each_backward_kernel!(backward_variants);

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
    let BackwardRow { pass, dtype, head_dim, block_m, block_n, warps, stages } = row;
    alloc::format!(
        "{entry} => {{ {pass:?}, {dtype:?}, {head_dim}, {block_m}, {block_n}, {warps}, {stages} }};"
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
    fn every_dtype_and_head_dim_has_both_passes() {
        for variant in BACKWARD_VARIANTS {
            let other = |other: &&BackwardVariant| {
                other.row.pass != variant.row.pass
                    && (other.row.dtype, other.row.head_dim) == (variant.row.dtype, variant.row.head_dim)
            };
            assert!(BACKWARD_VARIANTS.iter().any(|variant| other(&variant)), "{}", variant.entry);
        }
    }
}
