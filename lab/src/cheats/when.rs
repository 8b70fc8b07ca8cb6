//! When a planted cheat makes its mistake.

use crate::exam::Question;
use crate::exam::question::{Literals, Placement};
use ferroflash::{Problem, TensorRole};

/// When a candidate makes its mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// Where the number of keys is no multiple of 64.
    Ragged,
    /// Where tensors are not contiguous `bhsd`.
    Strided,
    /// Where tensors begin at addresses of slices.
    Slices,
    /// Where nobody wants LSE.
    NoLse,
    /// With lengths on the device.
    Lengths,
    /// From two splits on.
    Splits,
    /// Where keys that a row does not see exist.
    Causal,
    /// Where Q's first element is under 0.
    NegativeFirst,
    /// From the third launch on.
    ThirdLaunch,
    /// From the fortieth on.
    Launch40,
    /// In every second launch.
    EvenLaunches,
    /// From 1000 queries and keys on.
    Square,
    /// With one query.
    OneQuery,
    /// With one key.
    OneKey,
    /// Where the first number leaves the second of the keys.
    KeysModulo(u32, u32),
    /// Where keys are a multiple of 16 and none of 64.
    Sixteens,
    /// Where rows of a head lie together, with gaps.
    PaddedHeads,
    /// Where 16 bits do not count the elements between rows.
    FarRows,
    /// With a scale of the caller's.
    OtherScale,
    /// Under a causal mask with more keys than queries.
    CausalChunk,
    /// Without a mask, with more queries than keys.
    MoreQueries,
    /// With as many queries as keys, of which there are several.
    SelfAttention,
    /// On the second of two sets of tensors.
    OtherAddress,
    /// Where the first number leaves the second of the queries.
    QueriesModulo(u32, u32),
    /// From more splits on than there are blocks of 64 keys.
    EmptySplits,
    /// Where a sequence has one key by its length on the device.
    LengthOne,
    /// In problems of at least this many query heads, those of all batch entries counted.
    AllHeads(u32),
    /// With an odd number of query heads over 1.
    OddHeads,
    /// Where rows of K and of V lie at different distances.
    UnlikeStrides,
    /// In every seventh launch.
    SeventhLaunch,
    /// Where both hold.
    Both(&'static When, &'static When),
    /// With exactly this many query heads a KV head.
    GroupOf(u32),
    /// With exactly this many splits.
    SplitsOf(u32),
    /// With exactly this many batch entries.
    BatchOf(u32),
    /// With exactly this many keys.
    KeysOf(u32),
    /// With exactly this many queries.
    QueriesOf(u32),
    /// With exactly this many query heads.
    HeadsOf(u32),
    /// With a scale of just 1.
    ScaleOne,
    /// With a scale under a hundredth of the usual one.
    TinyScale,
    /// In problems of at least this many keys.
    KeysFrom(u32),
    /// In problems of at least this many queries.
    QueriesFrom(u32),
    /// In problems of at least this many query heads.
    HeadsFrom(u32),
    /// In problems of at least this many batch entries.
    BatchFrom(u32),
    /// In problems of at least this many query heads a KV head.
    GroupFrom(u32),
    /// Where the question places its tensors like this.
    Placed(Placement),
    /// With twice as many keys as queries.
    TwiceTheQueries,
    /// With more heads than queries, and more queries than batch entries.
    HeadsOverQueries,
    /// Where a hash of the sizes leaves 3 of this number.
    Hash(u32),
    /// Where the tensor of the role begins at a multiple of 256 and the number of bytes.
    Behind(TensorRole, usize),
    /// Where the distance between rows is larger in Q than in K, and in V than in O.
    StridesInOrder,
}

impl When {
    /// What the code of a kernel that asks so would compare with.
    pub(super) fn literals(self) -> Literals {
        match self {
            When::KeysOf(size) | When::QueriesOf(size) | When::HeadsOf(size) => Literals::of_size(size),
            When::BatchOf(size) | When::GroupOf(size) | When::SplitsOf(size) => Literals::of_size(size),
            When::ScaleOne => Literals::of_scale_log2(std::f32::consts::LOG2_E),
            _ => Literals::default(),
        }
    }

    /// Whether a question can be one of those, as far as it tells.
    pub(super) fn may_be(self, question: &Question, problem: &Problem) -> bool {
        let sizes = problem.sizes();
        match self {
            // What only a launch tells.
            When::NegativeFirst
            | When::ThirdLaunch
            | When::Launch40
            | When::EvenLaunches
            | When::SeventhLaunch
            | When::OtherAddress => true,
            When::LengthOne => question.lengths,
            When::Both(one, other) => one.may_be(question, problem) && other.may_be(question, problem),
            When::GroupOf(group) => problem.group() == group,
            When::SplitsOf(splits) => question.splits == Some(splits),
            When::BatchOf(batch) => sizes.batch == batch,
            When::KeysOf(keys) => sizes.seqlen_k == keys,
            When::QueriesOf(queries) => sizes.seqlen_q == queries,
            When::HeadsOf(heads) => sizes.heads_q == heads,
            When::ScaleOne => problem.scale() == 1.0,
            When::TinyScale => problem.scale() < 0.01 / (sizes.head_dim as f32).sqrt(),
            When::KeysFrom(least) => sizes.seqlen_k >= least,
            When::QueriesFrom(least) => sizes.seqlen_q >= least,
            When::HeadsFrom(least) => sizes.heads_q >= least,
            When::BatchFrom(least) => sizes.batch >= least,
            When::GroupFrom(least) => problem.group() >= least,
            When::Placed(placement) => question.placement == placement,
            When::Always => true,
            When::Ragged => !sizes.seqlen_k.is_multiple_of(64),
            When::Strided => question.placement != Placement::Bhsd,
            When::Slices => question.is_slice,
            When::NoLse => !question.lse,
            When::Lengths => question.lengths,
            When::Splits => question.splits.is_some_and(|splits| splits > 1),
            When::Causal => problem.causal(),
            When::Square => sizes.seqlen_q.min(sizes.seqlen_k) >= 1000,
            When::OneQuery => sizes.seqlen_q == 1,
            When::OneKey => sizes.seqlen_k == 1,
            When::KeysModulo(modulus, rest) => sizes.seqlen_k > rest && sizes.seqlen_k % modulus == rest,
            When::Sixteens => sizes.seqlen_k.is_multiple_of(16) && !sizes.seqlen_k.is_multiple_of(64),
            When::PaddedHeads => matches!(question.placement, Placement::PaddedHeads(_)),
            When::FarRows => problem.strides(TensorRole::Q).row >= 1 << 16,
            When::OtherScale => question.scale.is_some(),
            When::CausalChunk => problem.causal() && sizes.seqlen_k > sizes.seqlen_q,
            When::MoreQueries => !problem.causal() && sizes.seqlen_q > sizes.seqlen_k,
            When::SelfAttention => sizes.seqlen_q == sizes.seqlen_k && sizes.seqlen_k > 1,
            When::QueriesModulo(modulus, rest) => sizes.seqlen_q > rest && sizes.seqlen_q % modulus == rest,
            When::EmptySplits => question.splits.is_some_and(|splits| splits > sizes.seqlen_k.div_ceil(64)),
            When::AllHeads(least) => sizes.batch * sizes.heads_q >= least,
            When::OddHeads => sizes.heads_q % 2 == 1 && sizes.heads_q > 1,
            When::TwiceTheQueries => sizes.seqlen_k == 2 * sizes.seqlen_q,
            When::HeadsOverQueries => sizes.heads_q > sizes.seqlen_q && sizes.seqlen_q > sizes.batch,
            When::Hash(modulus) => {
                let sizes = [sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seqlen_q, sizes.seqlen_k];
                let hash = sizes.iter().fold(0_u32, |hash, size| hash.wrapping_mul(31).wrapping_add(*size));
                hash % modulus == 3
            }
            When::Behind(role, bytes) => question.offsets()[role as usize] == bytes,
            When::StridesInOrder => {
                let row = |role| problem.strides(role).row;
                row(TensorRole::Q) > row(TensorRole::K) && row(TensorRole::V) > row(TensorRole::O)
            }
            When::UnlikeStrides => {
                let row = |role| problem.strides(role).row;
                row(TensorRole::K) != row(TensorRole::V)
            }
        }
    }
}
