//! The work tile of a CTA, from its index: what both families' kernels ask of the parameter block.

use crate::config::Config;
use crate::params::ForwardParams;
use crate::scheduler::Work;
use crate::sequence::Sequence;
use crate::shape::Shape;
use crate::visible::KeyBlocks;

/// The tile of this index, or its split.
///
/// # Safety
/// As for [`Sequence::of_batch`].
#[inline(always)]
pub unsafe fn work_of<C: Config>(params: &ForwardParams, index: u32) -> Work<'_> {
    let rows = C::BLOCK.rows_used(params.group);
    if C::SPLIT {
        // SAFETY: the caller's.
        Work::of_split(params, index, rows, |batch| unsafe { Sequence::of_batch(params, batch) })
    } else {
        Work::of_head(params, index, rows)
    }
}

/// The blocks of keys that a tile works on.
#[inline(always)]
pub fn key_blocks<C: Config>(params: &ForwardParams, work: &Work<'_>) -> KeyBlocks {
    let blocks = C::BLOCK.key_blocks(params, work, C::K::ROWS);
    if C::SPLIT { blocks.of_split(work.split, params.split.split_blocks) } else { blocks }
}

/// Whether the keys are divided among CTAs, whose O and LSE are partial.
#[inline(always)]
pub fn is_partial<C: Config>(params: &ForwardParams) -> bool {
    C::SPLIT && params.split.splits.value > 1
}

/// Whether rows of one block may see different keys of what was copied: under a causal mask, or where sequences end before what
/// the tensor maps know. Bulk copies read 0 past the end that they know.
#[inline(always)]
pub fn rows_differ(params: &ForwardParams) -> bool {
    params.causal != 0 || params.split.seqlens_k != 0
}
