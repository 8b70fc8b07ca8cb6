//! The entry points: one for each row of the tables.

use crate::combine::combine;
use crate::element;
use crate::forward::{Config, forward};
use crate::geometry::{m_tiles, n_tiles};
use crate::params::{CombineParams, ForwardParams};
use crate::row::Row;
use crate::table::row_of;
use cuda_std::kernel;

macro_rules! accumulation {
    (F32) => {
        element::F32Accumulation
    };
    (F16) => {
        element::F16Accumulation
    };
}

macro_rules! entries {
    ($($entry:ident => {
        $dtype:ident, $head_dim:literal, $block_m:literal, $block_n:literal,
        $warps:literal, $stages:literal, $acc:ident, $min_ctas:literal, $warp_rows:literal, $schedule:ident
    };)*) => { $(
        /// # Safety
        /// As for [`forward`].
        #[kernel]
        pub unsafe fn $entry(params: ForwardParams) {
            enum Kernel {}
            impl Config for Kernel {
                type Element = element::$dtype;
                type Scores = accumulation!($acc);
                const ROW: Row = row_of(stringify!($entry));
            }
            const M: usize = m_tiles(&Kernel::ROW) as usize;
            const N: usize = n_tiles(&Kernel::ROW) as usize;
            // SAFETY: the caller's.
            unsafe { forward::<Kernel, M, N, { $head_dim / 8 }, { $head_dim / 16 }>(&params) }
        }
    )* };
}
for_each_forward_kernel!(entries);

macro_rules! combine_entries {
    ($($entry:ident => $dtype:ident;)*) => { $(
        /// # Safety
        /// As for [`combine`].
        #[kernel]
        pub unsafe fn $entry(params: CombineParams) {
            // SAFETY: the caller's.
            unsafe { combine::<element::$dtype>(&params) }
        }
    )* };
}
for_each_combine_kernel!(combine_entries);
