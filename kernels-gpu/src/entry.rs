//! The entry points: one for each row of the tables. A row's columns become types and constants here, by its name alone.

#![cfg_attr(
    ferroflash_rows,
    allow(unused_imports, unused_macros, reason = "a file of rows may have none of a pass")
)]

use crate::backward::{row::BackwardRow, table::backward_row_of};
use crate::config::{BackwardConfig, Config};
use crate::element::{AccumulationOf, ElementOf, TypeOf};
use crate::geometry::{m_tiles, n_tiles, value_width};
use crate::row::Row;
use crate::score::ScoreOf;
use crate::shape::TileOf;
use crate::table::row_of;
use crate::tile::warp_tile::Fragments;
use crate::user_score::score_number;
use cuda_std::kernel;

#[cfg(not(ferroflash_wgmma))]
use crate::{
    append::append,
    backward::{bias, params::BackwardParams, sinks, statistics, sums},
    copy::copy,
    element,
    math::{combine::combine, merge::merge},
    mma::forward::forward,
    params::{CombineParams, ForwardParams},
    ptx::grid::wait_for_prerequisites,
    step_params::{AppendParams, BiasGradientParams, CopyParams, MergeParams, SinkGradientParams},
};
#[cfg(ferroflash_wgmma)]
use crate::{
    backward::params::WgmmaBackwardParams,
    geometry::{consumer_registers, producer_registers},
    params::{DenseParams, WgmmaBlock, WgmmaParams},
    ptx::bulk::parameter_address,
    row::Schedule,
    wgmma::{backward::config::WgmmaBackwardConfig, config::WgmmaConfig, forward::forward_wgmma},
};

/// The type `Kernel` of an entry, in the entry's own scope.
macro_rules! config {
    ($entry:ident) => {
        enum Kernel {}
        const ROW: Row = row_of(stringify!($entry));
        const N: usize = n_tiles(&ROW) as usize;
        const VALUE_WIDTH: u32 = value_width(&ROW);
        impl Config for Kernel {
            const ROW: Row = ROW;
            type Element = <ElementOf<{ ROW.dtype as u8 }> as TypeOf>::Type;
            type Accumulation = <AccumulationOf<{ ROW.acc as u8 }> as TypeOf>::Type;
            type Score = <ScoreOf<{ score_number(ROW.score) }, Self::Element> as TypeOf>::Type;
            type Q = TileOf<{ ROW.block_m }, { ROW.head_dim }>;
            type K = TileOf<{ ROW.block_n }, { ROW.head_dim }>;
            type V = TileOf<{ ROW.block_n }, VALUE_WIDTH>;
            type O = TileOf<{ ROW.block_m }, VALUE_WIDTH>;
            type Warp = Fragments<
                { m_tiles(&ROW) as usize },
                N,
                { N / 2 },
                { VALUE_WIDTH as usize / 8 },
                { ROW.head_dim as usize / 16 },
            >;
        }
    };
}

#[cfg(not(ferroflash_wgmma))]
macro_rules! entries {
    ($($entry:ident => $columns:tt;)*) => { $(
        /// # Safety
        /// As for [`forward`].
        #[kernel]
        pub unsafe fn $entry(params: ForwardParams) {
            config!($entry);
            // SAFETY: the caller's.
            unsafe { forward::<Kernel>(&params) }
        }
    )* };
}
#[cfg(not(ferroflash_wgmma))]
for_each_forward_kernel!(entries);

/// Parameter blocks, by whether they have what ragged batches need.
#[cfg(ferroflash_wgmma)]
pub enum Blocks<const RAGGED: bool> {}

#[cfg(ferroflash_wgmma)]
impl TypeOf for Blocks<false> {
    type Type = DenseParams;
}

#[cfg(ferroflash_wgmma)]
impl TypeOf for Blocks<true> {
    type Type = WgmmaParams;
}

/// The parameter block of a row.
#[cfg(ferroflash_wgmma)]
type BlockOf<const RAGGED: bool> = <Blocks<RAGGED> as TypeOf>::Type;

#[cfg(ferroflash_wgmma)]
const fn is_ragged(entry: &str) -> bool {
    matches!(row_of(entry).schedule, Schedule::Ragged)
}

#[cfg(ferroflash_wgmma)]
macro_rules! wgmma_entries {
    ($($entry:ident => $columns:tt;)*) => { $(
        /// # Safety
        /// As for [`forward_wgmma`].
        #[kernel]
        pub unsafe fn $entry(params: BlockOf<{ is_ragged(stringify!($entry)) }>) {
            config!($entry);
            impl WgmmaConfig for Kernel {
                #[inline(always)]
                fn parameter_address() -> u64 {
                    parameter_address!($entry)
                }
            }
            // SAFETY: the caller's.
            unsafe {
                forward_wgmma::<Kernel, { producer_registers(&ROW) }, { consumer_registers(&ROW) }>(
                    params.forward(),
                    params.arrived(),
                )
            }
        }
    )* };
}
#[cfg(ferroflash_wgmma)]
for_each_wgmma_kernel!(wgmma_entries);

/// The type of a row of the backward pass, in an entry's own scope.
macro_rules! backward_config {
    ($kernel:ident: $row:expr) => {
        enum $kernel {}
        impl BackwardConfig for $kernel {
            const ROW: BackwardRow = $row;
            type Element = <ElementOf<{ $row.dtype as u8 }> as TypeOf>::Type;
            type Stationary = TileOf<{ $row.stationary_rows() }, { $row.head_dim }>;
            type Streamed = TileOf<{ $row.streamed_rows() }, { $row.head_dim }>;
            type Warp = Fragments<
                { $row.m_tiles() as usize },
                { $row.streamed_rows() as usize / 8 },
                { $row.streamed_rows() as usize / 16 },
                { $row.head_dim as usize / 8 },
                { $row.head_dim as usize / 16 },
            >;
            type Score = <ScoreOf<{ score_number($row.score) }, Self::Element> as TypeOf>::Type;
        }
    };
}

#[cfg(not(ferroflash_wgmma))]
macro_rules! backward_entries {
    ($($entry:ident => { $pass:ident, $($columns:tt)* };)*) => { $(
        /// # Safety
        /// As for [`crate::mma::backward::dq::dq`].
        #[kernel]
        pub unsafe fn $entry(params: BackwardParams) {
            const ROW: BackwardRow = backward_row_of(stringify!($entry));
            backward_config!(Kernel: ROW);
            // SAFETY: the caller's.
            unsafe { pass!($pass)(&params) }
        }
    )* };
}
#[cfg(not(ferroflash_wgmma))]
macro_rules! pass {
    (Dq) => {
        crate::mma::backward::dq::dq::<Kernel>
    };
    (Dkv) => {
        crate::mma::backward::dkv::dkv::<Kernel>
    };
    (DkvDs) => {
        crate::mma::backward::dkv::dkv::<Kernel>
    };
    (DqDs) => {
        crate::mma::backward::dqds::dqds::<Kernel>
    };
}
#[cfg(not(ferroflash_wgmma))]
for_each_backward_kernel!(backward_entries);

#[cfg(ferroflash_wgmma)]
macro_rules! wgmma_backward_entries {
    ($($entry:ident => { $pass:ident, $($columns:tt)* };)*) => { $(
        /// # Safety
        /// As for [`crate::wgmma::backward::dq::dq`].
        #[kernel]
        pub unsafe fn $entry(params: WgmmaBackwardParams) {
            const ROW: BackwardRow = backward_row_of(stringify!($entry));
            // SAFETY: the caller's.
            unsafe { wgmma_pass!($pass, $entry)(&params.backward) }
        }
    )* };
}
/// The type of a row of the backward pass on wgmma, in its entry's own scope.
#[cfg(ferroflash_wgmma)]
macro_rules! wgmma_backward_config {
    ($entry:ident, $kernel:ident: $row:expr, $tile_offset:expr) => {
        backward_config!($kernel: $row);
        impl WgmmaBackwardConfig for $kernel {
            const TILE_OFFSET: Option<u32> = $tile_offset;
            #[inline(always)]
            fn parameter_address() -> u64 {
                parameter_address!($entry)
            }
        }
    };
}
#[cfg(ferroflash_wgmma)]
macro_rules! wgmma_pass {
    (Dq, $entry:ident) => {
        wgmma_pass!($entry: dq::dq)
    };
    (Dkv, $entry:ident) => {
        wgmma_pass!($entry: dkv::dkv)
    };
    (DkvDs, $entry:ident) => {
        wgmma_pass!($entry: dkv::dkv)
    };
    (DqDs, $entry:ident) => {
        wgmma_pass!($entry: dqds::dqds)
    };
    (DqDkv, $entry:ident) => {{
        wgmma_backward_config!($entry, Keys: ROW.parts()[0], Some(ROW.tile_offset()));
        wgmma_backward_config!($entry, Queries: ROW.parts()[1], Some(ROW.tile_offset()));
        crate::wgmma::backward::dqdkv::dqdkv::<
            Keys,
            Queries,
            { ROW.producer_registers() },
            { ROW.consumer_registers() },
        >
    }};
    ($entry:ident: $module:ident::$kernel:ident) => {{
        wgmma_backward_config!($entry, Kernel: ROW, None);
        crate::wgmma::backward::$module::$kernel::<
            Kernel,
            { ROW.producer_registers() },
            { ROW.consumer_registers() },
        >
    }};
}
#[cfg(ferroflash_wgmma)]
for_each_wgmma_backward_kernel!(wgmma_backward_entries);

#[cfg(not(ferroflash_wgmma))]
macro_rules! step_entries {
    ($($entry:ident => { $step:ident, $input:ident, $output:ident };)*) => {
        $(step_entry!($entry: $step, $input, $output);)*
    };
}
#[cfg(not(ferroflash_wgmma))]
macro_rules! step_entry {
    ($entry:ident: Combine, F32, $output:ident) => {
        /// # Safety
        /// As for [`combine`].
        #[kernel]
        pub unsafe fn $entry(params: CombineParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { combine::<element::$output>(&params) }
        }
    };
    ($entry:ident: Merge, $input:ident, $output:ident) => {
        /// # Safety
        /// As for [`merge`].
        #[kernel]
        pub unsafe fn $entry(params: MergeParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { merge::<element::$input, element::$output>(&params) }
        }
    };
    ($entry:ident: Append, $input:ident, $output:ident) => {
        /// # Safety
        /// As for [`append`].
        #[kernel]
        pub unsafe fn $entry(params: AppendParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { append::<element::$output>(&params) }
        }
    };
    ($entry:ident: Copy, $input:ident, $output:ident) => {
        /// # Safety
        /// As for [`copy`].
        #[kernel]
        pub unsafe fn $entry(params: CopyParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { copy(&params) }
        }
    };
    ($entry:ident: SinkGradient, $input:ident, $output:ident) => {
        /// # Safety
        /// As for [`sinks::gradient`].
        #[kernel]
        pub unsafe fn $entry(params: SinkGradientParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { sinks::gradient(&params) }
        }
    };
    ($entry:ident: BiasGradient, $input:ident, $output:ident) => {
        /// # Safety
        /// As for [`bias::gradient`].
        #[kernel]
        pub unsafe fn $entry(params: BiasGradientParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { bias::gradient::<element::$output>(&params) }
        }
    };
    ($entry:ident: Statistics, $input:ident, $output:ident) => {
        /// # Safety
        /// As for [`statistics::statistics`].
        #[kernel]
        pub unsafe fn $entry(params: BackwardParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { statistics::statistics::<element::$input>(&params) }
        }
    };
    ($entry:ident: SumGradients, $input:ident, $output:ident) => {
        /// # Safety
        /// As for [`sums::sum`].
        #[kernel]
        pub unsafe fn $entry(params: BackwardParams) {
            wait_for_prerequisites();
            // SAFETY: the caller's.
            unsafe { sums::sum::<element::$output>(&params) }
        }
    };
}
#[cfg(not(ferroflash_wgmma))]
for_each_step_kernel!(step_entries);
