//! The entry points: one for each row of the tables.

use crate::element;
use crate::forward::Config;
use crate::row::Row;
use crate::table::row_of;
use cuda_std::kernel;

#[cfg(not(ferroflash_wgmma))]
use crate::{
    combine::combine,
    forward::forward,
    geometry::{m_tiles, n_tiles},
    params::{CombineParams, ForwardParams},
};
#[cfg(ferroflash_wgmma)]
use crate::{
    forward_wgmma::{WgmmaConfig, forward_wgmma},
    geometry::{consumer_registers, producer_registers},
    params::WgmmaParams,
    ptx::bulk::parameter_address,
};

#[cfg(not(ferroflash_wgmma))]
macro_rules! accumulation {
    (F32) => {
        element::F32Accumulation
    };
    (F16) => {
        element::F16Accumulation
    };
}

#[cfg(not(ferroflash_wgmma))]
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
#[cfg(not(ferroflash_wgmma))]
for_each_forward_kernel!(entries);

#[cfg(ferroflash_wgmma)]
macro_rules! wgmma_entries {
    ($($entry:ident => {
        $dtype:ident, $head_dim:literal, $block_m:literal, $block_n:literal,
        $warps:literal, $stages:literal, $acc:ident, $min_ctas:literal, $warp_rows:literal, $schedule:ident
    };)*) => { $(
        /// # Safety
        /// As for [`forward_wgmma`].
        #[kernel]
        pub unsafe fn $entry(params: WgmmaParams) {
            enum Kernel {}
            impl Config for Kernel {
                type Element = element::$dtype;
                type Scores = element::F32Accumulation;
                const ROW: Row = row_of(stringify!($entry));
            }
            impl WgmmaConfig for Kernel {
                #[inline(always)]
                fn parameter_address() -> u64 {
                    parameter_address!($entry)
                }
            }
            // SAFETY: the caller's.
            unsafe {
                forward_wgmma::<
                    Kernel,
                    { $block_n / 8 },
                    { $head_dim / 8 },
                    { $block_n / 16 },
                    { producer_registers(&Kernel::ROW) },
                    { consumer_registers(&Kernel::ROW) },
                >(&params.forward)
            }
        }
    )* };
}
#[cfg(ferroflash_wgmma)]
for_each_wgmma_kernel!(wgmma_entries);

#[cfg(not(ferroflash_wgmma))]
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
#[cfg(not(ferroflash_wgmma))]
for_each_combine_kernel!(combine_entries);
