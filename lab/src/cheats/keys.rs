//! The keys that planted cheats see.

/// Which keys a mistaken candidate sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Every second, from the first on.
    Even,
    /// Every second, from the second on.
    Odd,
    /// Every fourth.
    Quarter,
    /// The first half.
    FirstHalf,
    /// All but the last.
    ButLast,
    /// Those of whole blocks of 16, where there is one.
    WholeBlocks,
    /// Those before a key.
    Below(usize),
    /// Those from a key on.
    From(usize),
    /// All but a block of 32 in the middle.
    Middle,
    /// Those whose P is at least the largest over 2 to this power.
    LargeP(u8),
    /// One more than the mask shows.
    OneTooMany,
    /// All of K, whatever the lengths say.
    LengthsIgnored,
    /// Those of the next KV head.
    OtherHead,
    /// Those of the batch entry before.
    OtherBatch,
    /// All but this one.
    Without(usize),
}
