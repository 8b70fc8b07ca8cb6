//! Plans of a rank of a split sequence, whose own keys need not be copied to where those of other ranks are gathered.

use super::Plan;
use super::tensors::boxes;
use crate::device::TensorBox;
use crate::problem::{ElementStrides, Problem, TensorRole};
use kernels_gpu::params::{ForwardParams, Strides};
use kernels_gpu::row::{Isa, Schedule};

/// The last keys of a plan's problem, in tensors of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnKeys {
    first: u32,
    /// K and V as if all keys were there.
    tensors: [TensorBox; 2],
    k_row: i64,
    v: Strides,
}

/// Where a launch finds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnTensors {
    /// The first own key of the first head, 16-byte aligned.
    pub k: u64,
    /// Its value, 16-byte aligned.
    pub v: u64,
    /// A u32 on the device, 4-byte aligned: the KV heads, of all batch entries, whose other keys and values are in K and V. A kernel waits for
    /// a head when it comes to those keys; `None` where all are there before the launch.
    pub arrived: Option<u64>,
}

impl Plan {
    /// The same plan with the keys from `first` on, and their values, in tensors of their own, whose strides are given in elements: as K and V,
    /// those of the plan's problem need not be there. `first` is the number of keys where none is.
    ///
    /// `None` where the kernel cannot have them elsewhere: it has wgmma and neither a ragged batch nor lengths, a block of keys lies in one place or
    /// the other, and under a causal mask a query's own key is one of these.
    pub fn with_own_keys(&self, first: u32, [k, v]: [ElementStrides; 2]) -> Option<Plan> {
        let (row, sizes) = (&self.kernel.row, self.problem.sizes());
        let all = sizes.seqlen_k;
        let is_taken = row.isa == Isa::Wgmma && row.schedule != Schedule::Ragged;
        let is_whole = first.is_multiple_of(row.block_n) || first == all;
        let has_diagonal =
            !self.problem.causal() || u64::from(first) + u64::from(sizes.seqlen_q) <= u64::from(all);
        if !is_taken || !is_whole || !has_diagonal || first > all || self.problem.has_lengths() {
            return None;
        }
        let placed = self.problem.with_strides(TensorRole::K, k).ok()?.with_strides(TensorRole::V, v).ok()?;
        let [_, k, v] = boxes(&placed, row).ok()?;
        let strides = |role| Problem::byte_strides(&placed, role);
        let own =
            OwnKeys { first, tensors: [k, v], k_row: strides(TensorRole::K).row, v: strides(TensorRole::V) };
        // Past the last block where all keys are others'.
        let own_from = first.div_ceil(row.block_n) + 1;
        Some(Plan { own: Some(own), params: ForwardParams { own_from, ..self.params }, ..self.clone() })
    }

    /// The first key of [`Plan::with_own_keys`]; the number of keys where all are in one place.
    pub fn first_own_key(&self) -> u32 {
        self.own.map_or(self.problem.sizes().seqlen_k, |own| own.first)
    }

    /// Whether some keys may lie in tensors of their own.
    pub(crate) fn has_own_keys(&self) -> bool {
        self.own.is_some()
    }

    /// The boxes of the own keys and values at these addresses.
    pub(crate) fn own_keys(&self, at: &OwnTensors) -> Option<[TensorBox; 2]> {
        let OwnKeys { tensors: [k, v], .. } = self.own?;
        let [k_at, v_at] = self.own?.origins(at);
        Some([k.at(k_at), v.at(v_at)])
    }

    /// The address and strides by which the kernel reads V beside its bulk copies: at a query's own key and those after it, which are own ones
    /// where there are any.
    pub(super) fn own_values(&self, at: &OwnTensors) -> Option<(u64, Strides)> {
        let own = self.own.filter(|own| own.first < self.problem.sizes().seqlen_k)?;
        let [_, v] = own.origins(at);
        Some((v, own.v))
    }
}

impl OwnKeys {
    /// Where key 0 of K and V would be, so that an own key has the number of its row.
    fn origins(&self, at: &OwnTensors) -> [u64; 2] {
        let before = |address: u64, row: i64| {
            address.wrapping_sub(u64::from(self.first).wrapping_mul(row.cast_unsigned()))
        };
        [before(at.k, self.k_row), before(at.v, self.v.row)]
    }
}
