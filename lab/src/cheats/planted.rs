//! The table of planted cheats.

use super::keys::Keys;
use super::when::When;
use crate::exam::Fault;
use crate::exam::question::Placement;
use ferroflash::{Dtype, TensorRole};

/// Rows of O that a mistake is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Of the last of several batch entries.
    LastBatch,
    /// Of query heads with an odd number among those that share a KV head.
    OddOfGroup,
    /// From this query on.
    From(usize),
    /// Of the last query of each block of 64.
    EndOfBlock,
    /// Of heads from this one on.
    HeadsFrom(usize),
    /// Of this batch entry, of several.
    Batch(usize),
    /// Of this query alone.
    Query(usize),
}

/// What a candidate does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    /// O is 0, or another value, everywhere.
    Constant(f64),
    /// The last row is not written.
    LastRow,
    /// The LSE is not written.
    NoLse,
    /// Only some keys are seen.
    Keys(Keys),
    /// Another scale: the problem's times this.
    Scale(f64),
    /// 1/√head_dim, whatever the caller says.
    OwnScale,
    /// O times this.
    Factor(f64),
    /// O times 1.03 in some rows.
    FactorIn(Rows),
    /// Where O is NaN, infinity.
    InfinityForNan,
    /// Where O is NaN, 0.
    ZeroForNan,
    /// LSE below 0 is 0.
    LseClamped,
    /// LSE times this.
    LseFactor(f64),
    /// LSE as such a number.
    LseRounded(Dtype),
    /// LSE of P as it is rounded for P·V.
    LseOfRoundedP,
    /// NaN and infinities of the inputs become 0.
    NanSwallowed,
    /// Those of one input do.
    NanSwallowedIn(TensorRole),
    /// The usual NaN with a sign is.
    NegativeNanSwallowed,
    /// Infinities of the inputs become the largest number.
    InfinityClamped,
    /// A row with NaN gives it to all of its block of 16.
    NanSpreads,
    /// Each P is rounded to this many bits behind its leading one.
    CoarseP(i32),
    /// Exponentials in float32 of scores from which this is taken, and not the largest, unless that is larger.
    MaximumFrom(f32),
    /// Exponentials of nothing less than this: keys with hardly any weight have more.
    ExpFloor(f64),
    /// Hidden keys have this score, and not −∞.
    HiddenScore(f64),
    /// LSE is written only where NaN stands.
    LseOverNan,
    /// Exponentials in float32 of scores as they are.
    NoMaximum,
    /// O is written only where NaN stands.
    OverNan,
    /// O is written only where one of two bytes stands everywhere, by which a kernel may think that it is examined.
    OverKnownBytes,
    /// What the call before computed.
    LastCall,
    /// Computed once for each address.
    CachedByPointer,
    /// Computed once for each Q, K or V, whatever the others are.
    CachedBy(TensorRole),
    /// What a launch left in the workspace, where it is still there.
    LeftOver,
    /// A byte that lies in the workspace before the launch changes O's first number.
    Workspace,
    /// A counter is left at 1.
    Counter,
    /// On a stream that nobody times.
    OtherStream,
    /// Behind the event.
    LateWrite,
    /// What of O is larger than this is infinity.
    InfinityOver(f64),
    /// The inputs are replaced.
    InputsChanged,
    /// One element too many.
    OutOfBounds,
    /// The gaps between rows are written.
    Gaps,
    /// Another bit every time.
    Chance,
    /// The simulator finds this.
    Breaks(&'static str),
    /// The candidate adds O to the output buffer instead of overwriting it.
    Accumulates,
    /// Rows without keys have NaN.
    BlindNan,
    /// They have the mean of V.
    BlindMean,
    /// The LSE of rows without keys is 0.
    BlindLse,
    /// Lengths over the number of keys are taken as they are.
    LengthsNotClamped,
    /// One element of O is another.
    OneElement,
    /// Halves of each row of O in the other order.
    SwappedChannels,
    /// Every second row is the one before.
    RowTwice,
    /// The first 16 keys count twice.
    KeysTwice,
    /// LSE plus this.
    LseOffset(f64),
    /// V of float16's subnormal numbers is 0.
    FlushedV,
    /// Q and K of these are.
    FlushedQk,
    /// Products of a query and a key are no larger than this.
    ProductsUpTo(f64),
    /// Exponentials are off by such a share, which goes up and down with their argument.
    CrudeExp(f64),
    /// P is rounded to e4m3.
    Fp8P,
    /// P·V accumulates in float16.
    Acc16,
    /// The sum of P does.
    RowSum16,
    /// Where the maximum grows, O is not rescaled.
    StaleO,
    /// The sum of P is not.
    StaleSum,
    /// O is not rescaled for the last block.
    StaleOLast,
    /// The sum of P is not, for the last block.
    StaleSumLast,
    /// P·V accumulates in bfloat16.
    AccBf16,
    /// The sum of P does.
    RowSumBf16,
    /// Exponentials by a polynomial of degree 2.
    SquareExp,
    /// The scale is rounded to bfloat16.
    ScaleBf16,
    /// Two heads of a group have each other's O.
    GroupSwapped,
}

/// A cheat and the names that it may be refused by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planted {
    /// When it is wrong.
    pub when: When,
    /// What is wrong.
    pub wrong: Wrong,
    /// The name.
    pub fault: Fault,
    /// Others that are as true of the wrong output, where there are any: what a mistake writes depends on the question.
    pub or: [Option<Fault>; 2],
}

impl Planted {
    const fn or(self, fault: Fault) -> Planted {
        let or = if self.or[0].is_none() { [Some(fault), None] } else { [self.or[0], Some(fault)] };
        Planted { or, ..self }
    }

    /// Whether it is refused by one of its names.
    pub fn is_named(&self, found: Fault) -> bool {
        found == self.fault || self.or.contains(&Some(found))
    }
}

const fn planted(when: When, wrong: Wrong, fault: Fault) -> Planted {
    Planted { when, wrong, fault, or: [None; 2] }
}

const fn both(one: &'static When, other: &'static When) -> When {
    When::Both(one, other)
}

/// What every cheat is where it makes no mistake.
pub(super) const RIGHT: Planted = planted(When::Always, Wrong::Factor(1.0), Fault::WrongFactor);

/// Every cheat: outside the shapes that are counted, outside the inputs that are timed, in state, and in time.
pub const PLANTED: [Planted; 202] = [
    planted(When::Always, Wrong::Constant(0.0), Fault::Zeros),
    planted(When::Always, Wrong::Constant(0.125), Fault::Constant),
    planted(When::Always, Wrong::LastRow, Fault::NotWritten),
    planted(When::Always, Wrong::Keys(Keys::Even), Fault::HalfTheKeys),
    planted(When::Always, Wrong::Keys(Keys::FirstHalf), Fault::HalfTheKeys),
    planted(When::Always, Wrong::Scale(0.5), Fault::WrongScale),
    planted(When::Always, Wrong::Scale(0.99), Fault::WrongScale),
    planted(When::Always, Wrong::Factor(1.02), Fault::WrongFactor),
    planted(When::HeadsFrom(8), Wrong::Keys(Keys::Quarter), Fault::DroppedKeys),
    planted(When::HeadsFrom(8), Wrong::Keys(Keys::OtherHead), Fault::WrongHead),
    planted(When::BatchFrom(3), Wrong::Keys(Keys::OtherBatch), Fault::WrongHead),
    planted(When::GroupFrom(5), Wrong::Keys(Keys::OtherHead), Fault::WrongHead),
    planted(When::KeysFrom(2048), Wrong::Keys(Keys::Below(2000)), Fault::DroppedTail),
    planted(When::KeysFrom(2048), Wrong::Keys(Keys::From(64)), Fault::DroppedKeys),
    planted(When::QueriesFrom(1000), Wrong::LastRow, Fault::NotWritten),
    planted(When::QueriesFrom(1000), Wrong::Constant(0.0), Fault::Zeros),
    planted(both(&When::KeysFrom(2048), &When::AllHeads(6)), Wrong::Keys(Keys::Even), Fault::HalfTheKeys),
    planted(both(&When::QueriesFrom(1000), &When::AllHeads(6)), Wrong::LastRow, Fault::NotWritten),
    planted(When::Slices, Wrong::Factor(1.02), Fault::WrongFactor),
    planted(When::Always, Wrong::NoMaximum, Fault::WrongNan),
    planted(When::Always, Wrong::MaximumFrom(0.0), Fault::WrongNan),
    planted(When::Always, Wrong::OverNan, Fault::State),
    planted(When::Always, Wrong::OverKnownBytes, Fault::NotWritten).or(Fault::State),
    planted(When::Always, Wrong::NegativeNanSwallowed, Fault::WrongNan),
    planted(When::KeysModulo(64, 0), Wrong::Keys(Keys::ButLast), Fault::DroppedTail),
    planted(When::Ragged, Wrong::Keys(Keys::WholeBlocks), Fault::DroppedTail),
    planted(When::Strided, Wrong::Keys(Keys::Odd), Fault::HalfTheKeys),
    planted(When::Strided, Wrong::Gaps, Fault::OutOfBounds),
    planted(When::NoLse, Wrong::Factor(0.97), Fault::WrongFactor),
    // In a sequence without keys what is hidden is NaN, and so is 0 / 0.
    planted(When::Lengths, Wrong::Keys(Keys::LengthsIgnored), Fault::WrongMask).or(Fault::WrongNan),
    planted(When::Splits, Wrong::Keys(Keys::Middle), Fault::DroppedKeys),
    planted(When::Causal, Wrong::Keys(Keys::OneTooMany), Fault::WrongMask),
    planted(When::Always, Wrong::OwnScale, Fault::WrongScale),
    planted(When::Always, Wrong::NoLse, Fault::NotWritten),
    planted(When::Always, Wrong::LseFactor(std::f64::consts::LOG2_E), Fault::WrongLse),
    planted(When::Always, Wrong::LseRounded(Dtype::Bf16), Fault::RoundedLse),
    planted(When::Always, Wrong::NanSwallowed, Fault::WrongNan),
    planted(When::Always, Wrong::Keys(Keys::LargeP(5)), Fault::SmallP),
    planted(When::Always, Wrong::CoarseP(4), Fault::Imprecise),
    planted(When::NegativeFirst, Wrong::Constant(0.0), Fault::Zeros),
    // What another question left behind is not looked for.
    planted(When::Always, Wrong::LastCall, Fault::LastCall).or(Fault::State),
    planted(When::Always, Wrong::CachedByPointer, Fault::CachedByPointer).or(Fault::State),
    planted(When::ThirdLaunch, Wrong::Constant(0.0), Fault::State),
    planted(When::Always, Wrong::Workspace, Fault::State),
    planted(When::Always, Wrong::Counter, Fault::State),
    planted(When::Always, Wrong::OtherStream, Fault::OtherStream),
    planted(When::Always, Wrong::LateWrite, Fault::LateWrite),
    planted(When::Always, Wrong::InputsChanged, Fault::InputsChanged),
    planted(When::Always, Wrong::OutOfBounds, Fault::OutOfBounds),
    planted(When::Always, Wrong::Chance, Fault::NotRepeatable),
    planted(When::HeadsFrom(64), Wrong::Keys(Keys::OtherHead), Fault::WrongHead),
    planted(When::BatchFrom(16), Wrong::Keys(Keys::OtherBatch), Fault::WrongHead),
    planted(When::BatchOf(1), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Square, Wrong::Keys(Keys::Below(700)), Fault::DroppedTail),
    planted(When::Square, Wrong::LastRow, Fault::NotWritten),
    planted(When::KeysFrom(2048), Wrong::LseFactor(std::f64::consts::LOG2_E), Fault::WrongLse),
    planted(When::QueriesFrom(1000), Wrong::NoLse, Fault::NotWritten),
    planted(When::Causal, Wrong::LseFactor(-1.0), Fault::WrongLse),
    planted(When::OtherScale, Wrong::LseRounded(Dtype::Bf16), Fault::RoundedLse),
    planted(When::Slices, Wrong::NoLse, Fault::NotWritten),
    planted(When::OneQuery, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::OneKey, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Sixteens, Wrong::Keys(Keys::ButLast), Fault::DroppedTail),
    planted(When::KeysModulo(64, 1), Wrong::Keys(Keys::ButLast), Fault::DroppedTail),
    planted(When::KeysModulo(64, 63), Wrong::Keys(Keys::ButLast), Fault::DroppedTail),
    planted(When::KeysModulo(128, 0), Wrong::Keys(Keys::ButLast), Fault::DroppedTail),
    planted(When::PaddedHeads, Wrong::Gaps, Fault::OutOfBounds),
    planted(When::FarRows, Wrong::Constant(0.0), Fault::Zeros),
    planted(When::Always, Wrong::BlindNan, Fault::WrongNan),
    planted(When::Always, Wrong::BlindMean, Fault::WrongMask),
    planted(When::Always, Wrong::BlindLse, Fault::WrongNan),
    planted(When::Lengths, Wrong::BlindNan, Fault::WrongNan),
    planted(When::Lengths, Wrong::LengthsNotClamped, Fault::WrongNan),
    planted(When::KeysFrom(2048), Wrong::Breaks("budget"), Fault::Hang),
    planted(When::Sixteens, Wrong::Breaks("deadlock"), Fault::Hang),
    planted(When::KeysModulo(64, 1), Wrong::Breaks("out-of-bounds"), Fault::OutOfBounds),
    planted(When::HeadsFrom(64), Wrong::Breaks("shared-race"), Fault::Race),
    planted(When::Strided, Wrong::Breaks("uninitialized"), Fault::RuleBroken),
    planted(When::Always, Wrong::Accumulates, Fault::WrongNan),
    planted(When::Always, Wrong::OneElement, Fault::WrongNumbers),
    planted(When::Always, Wrong::SwappedChannels, Fault::WrongNumbers),
    // Behind a row that sees no key the row is 0.
    planted(When::Always, Wrong::RowTwice, Fault::WrongNumbers).or(Fault::Zeros),
    planted(When::Always, Wrong::KeysTwice, Fault::WrongNumbers),
    planted(When::Always, Wrong::Scale(1.003), Fault::WrongScale),
    planted(When::Always, Wrong::LseOffset(1e-3), Fault::WrongLse),
    planted(When::Always, Wrong::FlushedV, Fault::Zeros),
    planted(When::Always, Wrong::CrudeExp(0.03), Fault::Imprecise),
    planted(When::Always, Wrong::Fp8P, Fault::Imprecise),
    planted(When::Always, Wrong::Keys(Keys::LargeP(9)), Fault::SmallP),
    planted(When::Always, Wrong::Acc16, Fault::Imprecise),
    // O is divided by the sum too: it shows where O's bounds are narrow enough.
    planted(When::Always, Wrong::RowSum16, Fault::WrongLse).or(Fault::WrongFactor),
    planted(When::Always, Wrong::StaleO, Fault::WrongNumbers),
    planted(When::Always, Wrong::StaleSum, Fault::WrongFactor),
    planted(When::EvenLaunches, Wrong::Constant(0.0), Fault::State),
    planted(When::Launch40, Wrong::Factor(1.03), Fault::State),
    planted(When::CausalChunk, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::MoreQueries, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::SelfAttention, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::OtherAddress, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::QueriesModulo(64, 1), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::QueriesModulo(64, 63), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::QueriesModulo(128, 0), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::EmptySplits, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::LengthOne, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::AllHeads(512), Wrong::Keys(Keys::OtherHead), Fault::WrongHead),
    planted(When::OddHeads, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::UnlikeStrides, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::SeventhLaunch, Wrong::Factor(1.03), Fault::State),
    planted(When::Always, Wrong::FactorIn(Rows::LastBatch), Fault::WrongFactor),
    planted(When::Always, Wrong::FactorIn(Rows::OddOfGroup), Fault::WrongFactor),
    planted(When::Always, Wrong::FactorIn(Rows::From(1000)), Fault::WrongFactor),
    planted(When::Always, Wrong::FactorIn(Rows::EndOfBlock), Fault::WrongFactor),
    planted(When::Always, Wrong::InfinityForNan, Fault::WrongNan),
    planted(When::Always, Wrong::LseClamped, Fault::WrongLse),
    planted(both(&When::Causal, &When::NoLse), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::Causal, &When::Lengths), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::Splits, &When::Strided), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::GroupFrom(5), &When::Causal), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::Slices, &When::NoLse), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::OtherScale, &When::Causal), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::Lengths, &When::NoLse), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::OneQuery, &When::Lengths), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::KeysFrom(2048), &When::Lengths), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::BatchFrom(3), &When::Strided), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::KeysFrom(2048), &When::Strided), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(both(&When::OneQuery, &When::GroupFrom(5)), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::GroupOf(7), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::SplitsOf(3), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::BatchOf(2), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::TinyScale, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::KeysFrom(16384), Wrong::Keys(Keys::FirstHalf), Fault::HalfTheKeys),
    planted(When::KeysModulo(64, 33), Wrong::Keys(Keys::ButLast), Fault::DroppedTail),
    planted(When::Splits, Wrong::LseOffset(1e-3), Fault::WrongLse),
    planted(When::Causal, Wrong::LseRounded(Dtype::F16), Fault::RoundedLse),
    planted(When::Always, Wrong::LseOfRoundedP, Fault::WrongLse),
    planted(When::Always, Wrong::FactorIn(Rows::HeadsFrom(40)), Fault::WrongFactor),
    planted(When::Always, Wrong::FactorIn(Rows::Batch(1)), Fault::WrongFactor),
    planted(When::Always, Wrong::FactorIn(Rows::Query(127)), Fault::WrongFactor),
    planted(When::Always, Wrong::Keys(Keys::Without(127)), Fault::DroppedKeys).or(Fault::DroppedTail),
    planted(When::Always, Wrong::AccBf16, Fault::Imprecise),
    planted(When::Always, Wrong::RowSumBf16, Fault::WrongLse).or(Fault::WrongFactor),
    planted(When::Always, Wrong::SquareExp, Fault::Imprecise).or(Fault::WrongLse),
    planted(When::Always, Wrong::StaleOLast, Fault::WrongNumbers),
    planted(When::Always, Wrong::StaleSumLast, Fault::WrongLse).or(Fault::WrongFactor),
    planted(When::Always, Wrong::ScaleBf16, Fault::WrongScale).or(Fault::WrongLse),
    // Where the scale is tiny all heads of a group are alike.
    planted(When::Always, Wrong::GroupSwapped, Fault::WrongNumbers).or(Fault::Imprecise),
    planted(When::Always, Wrong::CachedBy(TensorRole::Q), Fault::CachedByPointer).or(Fault::State),
    planted(When::Always, Wrong::CachedBy(TensorRole::K), Fault::CachedByPointer).or(Fault::State),
    planted(When::Always, Wrong::CachedBy(TensorRole::V), Fault::CachedByPointer).or(Fault::State),
    planted(When::Always, Wrong::LeftOver, Fault::State).or(Fault::CachedByPointer),
    planted(When::Always, Wrong::NanSwallowedIn(TensorRole::V), Fault::WrongNan),
    planted(When::Always, Wrong::InfinityClamped, Fault::WrongNan),
    planted(When::Always, Wrong::NanSpreads, Fault::WrongNan).or(Fault::WrongMask),
    planted(When::GroupFrom(9), Wrong::Keys(Keys::OtherHead), Fault::WrongHead),
    planted(When::GroupFrom(33), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::GroupFrom(9), Wrong::LastRow, Fault::NotWritten),
    planted(When::KeysFrom(32_768), Wrong::Keys(Keys::FirstHalf), Fault::HalfTheKeys),
    planted(When::KeysFrom(65_537), Wrong::Keys(Keys::Below(65_536)), Fault::DroppedTail),
    planted(When::QueriesFrom(4097), Wrong::LastRow, Fault::NotWritten),
    planted(When::QueriesFrom(65_537), Wrong::FactorIn(Rows::From(65_536)), Fault::WrongFactor),
    planted(When::BatchFrom(256), Wrong::FactorIn(Rows::LastBatch), Fault::WrongFactor),
    planted(When::AllHeads(1024), Wrong::Keys(Keys::OtherBatch), Fault::WrongHead),
    planted(When::Placed(Placement::Mixed), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Placed(Placement::Crossed), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Placed(Placement::Shared), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Placed(Placement::OneBatch), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Always, Wrong::MaximumFrom(-1e4), Fault::WrongNan),
    planted(When::Always, Wrong::MaximumFrom(-100.0), Fault::WrongNan),
    // Behind a length lies NaN, of which any weight is NaN.
    planted(When::Always, Wrong::HiddenScore(-1e4), Fault::WrongMask).or(Fault::WrongNan).or(Fault::WrongLse),
    planted(When::Always, Wrong::HiddenScore(-100.0), Fault::WrongMask)
        .or(Fault::WrongNan)
        .or(Fault::WrongLse),
    // Where values have no mean, weights of no key's make O smaller.
    planted(When::Always, Wrong::ExpFloor(-9.0), Fault::WrongFactor).or(Fault::WrongLse),
    planted(When::Always, Wrong::LseOverNan, Fault::State),
    // Where all are, every score is 0: that of a scale of 0.
    planted(When::Always, Wrong::FlushedQk, Fault::WrongScale).or(Fault::WrongNumbers),
    planted(When::Always, Wrong::ProductsUpTo(8192.0), Fault::WrongNumbers).or(Fault::WrongScale),
    // What is wrong at one number alone has it in its code.
    planted(When::KeysOf(777), Wrong::Keys(Keys::FirstHalf), Fault::HalfTheKeys),
    planted(When::KeysOf(4096), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::QueriesOf(512), Wrong::LastRow, Fault::NotWritten),
    planted(When::HeadsOf(48), Wrong::FactorIn(Rows::HeadsFrom(40)), Fault::WrongFactor),
    planted(When::GroupOf(48), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::BatchOf(64), Wrong::FactorIn(Rows::LastBatch), Fault::WrongFactor),
    planted(When::ScaleOne, Wrong::Factor(1.03), Fault::WrongFactor),
    // In a split of few blocks little is not rescaled.
    planted(both(&When::BatchFrom(5), &When::KeysFrom(129)), Wrong::StaleO, Fault::WrongNumbers)
        .or(Fault::Imprecise),
    // What no number in the code tells.
    planted(When::TwiceTheQueries, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::HeadsOverQueries, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Hash(509), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::StridesInOrder, Wrong::Factor(1.03), Fault::WrongFactor),
    planted(
        both(&both(&When::KeysFrom(1000), &When::OddHeads), &When::Causal),
        Wrong::Factor(1.03),
        Fault::WrongFactor,
    ),
    planted(
        both(&both(&When::NoLse, &When::GroupFrom(5)), &When::Strided),
        Wrong::Factor(1.03),
        Fault::WrongFactor,
    ),
    planted(
        both(&both(&When::OtherScale, &When::Slices), &When::BatchFrom(5)),
        Wrong::LastRow,
        Fault::NotWritten,
    ),
    planted(
        both(&both(&When::HeadsFrom(9), &When::QueriesFrom(65)), &When::Hash(7)),
        Wrong::Keys(Keys::OtherHead),
        Fault::WrongHead,
    ),
    planted(When::Behind(TensorRole::K, 48), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Behind(TensorRole::O, 128), Wrong::Factor(1.03), Fault::WrongFactor),
    planted(When::Placed(Placement::OneTensor), Wrong::Factor(1.03), Fault::WrongFactor),
    // NaN and infinities beside other properties.
    planted(When::Causal, Wrong::NanSwallowedIn(TensorRole::V), Fault::WrongNan),
    planted(When::Splits, Wrong::NanSwallowedIn(TensorRole::K), Fault::WrongNan),
    planted(When::NoLse, Wrong::NanSwallowedIn(TensorRole::Q), Fault::WrongNan),
    planted(When::Lengths, Wrong::InfinityClamped, Fault::WrongNan),
    planted(When::KeysFrom(2048), Wrong::NanSwallowedIn(TensorRole::V), Fault::WrongNan),
    planted(When::GroupFrom(5), Wrong::InfinityForNan, Fault::WrongNan),
    planted(When::OneQuery, Wrong::NanSwallowed, Fault::WrongNan).or(Fault::WrongLse),
    planted(When::Always, Wrong::InfinityOver(50_000.0), Fault::WrongNan),
    planted(When::Causal, Wrong::ZeroForNan, Fault::WrongNan),
];
