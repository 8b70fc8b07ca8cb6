//! The cost model: how long a plan takes on a device, from what it has to do. Nothing in here was measured; coefficients are data.
//!
//! A CTA takes a start and a time a block of keys, both twice: alone on a multiprocessor, where latency bounds it, and its share of a
//! busy one, where throughput does. Multiprocessors work off their CTAs in rounds of as many as they hold; the larger of this and of the
//! time that memory takes, softly, is the kernel's. Merging splits comes on top.

use super::numbers::{ceil, floor, greater, lesser, within};
use super::splitting::Splitting;
use super::work::{Filled, Merge, Work};
use serde::{Deserialize, Serialize};

/// Declares the coefficients: each with what it is before anything is fitted, and its meaning.
macro_rules! coefficients {
    ($($name:ident = $start:literal, $meaning:literal;)*) => {
        /// What a kernel costs on a device. All are positive; times in microseconds. A profile that was fitted before there was one of them has
        /// what a fit starts from.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Coefficients { $(#[doc = $meaning] pub $name: f64,)* }

        impl Default for Coefficients {
            fn default() -> Coefficients {
                Coefficients::START
            }
        }

        impl Coefficients {
            /// The names, in order.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];
            /// What a fit starts from.
            pub const START: Coefficients = Coefficients { $($name: $start),* };

            /// The values, in order.
            pub fn to_vec(self) -> Vec<f64> {
                vec![$(self.$name),*]
            }

            /// Each times its factor.
            pub fn scaled(&self, factors: &Coefficients) -> Coefficients {
                Coefficients { $($name: self.$name * factors.$name),* }
            }

            /// Coefficients of these values, in order; those that are missing are what a fit starts from.
            pub fn from_slice(values: &[f64]) -> Coefficients {
                let mut values = values.iter().copied();
                Coefficients { $($name: values.next().unwrap_or($start)),* }
            }
        }
    };
}

coefficients! {
    launch = 2.0, "A launch.";
    start = 1.0, "A CTA's start and end, alone on a multiprocessor.";
    start_busy = 0.5, "The same, its share of a busy one.";
    block = 0.4, "A block of keys, alone.";
    block_busy = 0.3, "The same, its share of a busy multiprocessor.";
    early = 0.1, "By how much the first blocks take longer, alone.";
    early_busy = 0.05, "The same, busy.";
    rows = 0.3, "Q in and O out, for 8192 elements of a tile.";
    masked = 0.2, "A block that the causal mask cuts.";
    ragged = 0.1, "A block that is not full.";
    lengths = 0.2, "Reading a sequence's length.";
    overlap = 0.2, "How much of the lesser of latency and throughput shows where both are as long.";
    tail_equal = 2.0, "How far CTAs of equal length leave a last round unfilled: x / (1 + x) of it.";
    tail_masked = 1.0, "The same for CTAs of many lengths.";
    contention = 0.1, "By how much everything takes longer where all multiprocessors have as many CTAs as the one that has most.";
    uneven = 0.3, "The same where sequences have lengths, for the CTAs that a multiprocessor has at once.";
    drain = 0.05, "How much of a CTA the device waits for the last of several rounds.";
    empty = 0.3, "What a split without keys costs, as a share of one that has some.";
    longest = 0.1, "How much of the longest CTA's lead over the average shows.";
    miss_start = 0.2, "By how much a start takes longer where L2 misses.";
    miss_block = 0.05, "By how much a block does, alone.";
    l2_free = 0.72, "Share of L2 up to which tensors stay in it between launches.";
    l2_span = 0.17, "Share from there on which none do.";
    l2_near = 0.25, "Share of them that misses where that is reached.";
    l2_partial = 0.3, "How much partial results take of L2, compared with tensors.";
    crowd = 0.02, "Loss of memory bandwidth for a CTA a multiprocessor more.";
    pair = 0.01, "Loss of memory bandwidth where a multiprocessor has a second CTA.";
    share = 0.03, "Loss of memory bandwidth where some multiprocessors have a CTA more than others, for as many CTAs more as there are.";
    interleave = 0.01, "Loss of memory bandwidth where heads alternate in memory.";
    memory_overlap = 0.2, "How much of the lesser of memory and computation shows where both are as long.";
    copy = 0.15, "A MB from L2 to shared memory, all multiprocessors at it.";
    fused = 1.0, "Merging in the same launch.";
    fused_round = 0.5, "A group of rows that the last CTA merges.";
    fused_width = 0.02, "The same, for 256 elements of partial results.";
    fused_turns = 1.0, "How much of the merging of all tiles adds to that of one.";
    fused_cta = 0.1, "What a round of CTAs takes longer that say when they are done.";
    memory = 0.22, "A MB from memory.";
    merge_launch = 2.0, "The kernel that merges.";
    merge_bytes = 0.4, "A MB of partial results, written and read.";
    merge_cta = 1.6, "One of its CTAs.";
    merge_wave = 1.0, "How much of a wave of CTAs adds to one.";
    merge_width = 0.03, "The same, for 256 elements of partial results.";
}

/// The larger of two times, and of the lesser a share that grows with its square.
fn larger(a: f64, b: f64, share: f64) -> f64 {
    let (more, less) = (greater(a, b), lesser(a, b));
    more + lesser(share, 1.0) * less * less / (more + 1e-9)
}

fn saturated(x: f64) -> f64 {
    x / (1.0 + x)
}

impl Coefficients {
    /// Those of a kernel whose blocks are so many times as large.
    pub(super) fn of_blocks(self, times: f64) -> Self {
        Self {
            block: self.block * times,
            block_busy: self.block_busy * times,
            early: self.early * times,
            early_busy: self.early_busy * times,
            miss_block: self.miss_block * times,
            ..self
        }
    }

    /// The time of a plan, in microseconds.
    pub fn time_us(&self, work: &Work) -> f64 {
        self.kernel_us(work) + self.merge_us(work)
    }

    /// The time of the kernel that computes attention.
    pub fn kernel_us(&self, work: &Work) -> f64 {
        self.filled_us(work, &work.filled)
    }

    /// The same where sequences are as full as this.
    pub(super) fn filled_us(&self, work: &Work, filled: &Filled) -> f64 {
        // A split that has no keys is over at once.
        let ctas = filled.active + lesser(self.empty, 1.0) * (work.ctas - filled.active);
        let most = filled.blocks_max;
        let mean = filled.blocks * work.ctas / ctas;
        let per_sm = ctas / work.sms;
        let per_sm_most = ceil(per_sm);
        let miss = self.misses(filled.l2_share + self.l2_partial * work.l2_partial);
        let both = self.masked * work.masked + self.ragged * work.ragged + self.rows * work.tile_rows;
        let early = |blocks: f64| within((blocks - 1.0) * 0.5, 0.0, 1.0);
        let alone = self.start
            + self.block * most
            + self.early * early(most)
            + both
            + self.lengths * work.lengths
            + miss * (self.miss_start + self.miss_block * most);
        let busy = self.start_busy + self.block_busy * mean + self.early_busy * early(mean) + both;
        let contention = 1.0 + self.contention * per_sm / per_sm_most;
        // Between one and all that it holds, some multiprocessors have a CTA more than others.
        let more = if per_sm > 1.0 && per_sm < work.resident { per_sm_most / per_sm - 1.0 } else { 0.0 };
        let at_once = lesser(per_sm, work.resident);
        let crowd = 1.0
            + self.crowd * within(at_once - 1.3, 0.0, 1.2)
            + self.pair * within(4.0 * (at_once - 1.0), 0.0, 1.0)
            + self.share * more;
        let missed = (filled.kv_mb + work.qo_mb) * miss * self.memory * crowd;
        let read = missed * (1.0 + self.interleave * work.interleaved);
        let memory = (read + (filled.copied_mb + work.qo_mb) * self.copy) / contention;
        // 0 where all CTAs are as long, 1 from half as long again on.
        let variety = within(2.0 * (most / mean - 1.0), 0.0, 1.0);
        let tail = saturated(self.tail_masked) * variety + saturated(self.tail_equal) * (1.0 - variety);
        let worked = greater(per_sm + tail * (per_sm_most - per_sm), 1.0);
        let mut us = self.drain * alone * within(4.0 * (per_sm / work.resident - 1.0), 0.0, 1.0);
        if variety < 1.0 {
            // Memory bounds each round for itself: the CTAs of a last one that is not full have it to themselves, and take their time alone.
            let round = |worked: f64, read: f64| {
                let compute = larger(alone * lesser(worked, 1.0), busy * worked, self.overlap);
                larger(compute, memory * read / per_sm, self.memory_overlap)
            };
            let rounds = floor(per_sm / work.resident);
            let (last, read) = (worked - rounds * work.resident, per_sm - rounds * work.resident);
            let whole = if rounds > 0.0 { rounds * round(work.resident, work.resident) } else { 0.0 };
            us += (whole + if last > 1e-9 { round(last, read) } else { 0.0 }) * (1.0 - variety);
        }
        if variety > 0.0 {
            let at_once = lesser(worked, work.resident);
            let steady = greater(busy, larger(alone * mean / most, at_once * busy, self.overlap) / at_once);
            let lead = lesser(self.longest, 1.5) * self.block
                + self.uneven * work.lengths * at_once.sqrt() * self.block_busy;
            let varied = larger(alone, worked * steady, self.overlap) + lead * (most - mean);
            us += larger(varied, memory, self.memory_overlap) * variety;
        }
        self.launch + us * contention
    }

    /// What [`Coefficients::filled_us`] is never less than, in a third of its instructions, for a launch whose keys are to be split like this:
    /// CTAs leave no multiprocessor idle, do not slow each other down, and find all bandwidth and all of L2.
    pub(super) fn least_us(&self, whole: &Work, filled: &Filled, splitting: Splitting) -> f64 {
        /// Up to this share the larger of two sums, each of several rounds, is never more than the sum of each round's.
        const SHARE: f64 = 1.0 / 3.0;
        let (splits, longest) = (f64::from(splitting.splits), filled.longest(splitting));
        let miss = self.misses(filled.l2_share);
        let both = self.masked * whole.masked + self.ragged * whole.ragged + self.rows * whole.tile_rows;
        let alone = self.start
            + self.block * longest
            + both
            + self.lengths * whole.lengths
            + miss * (self.miss_start + self.miss_block * longest);
        let empty = lesser(self.empty, 1.0);
        let ctas = empty * splits + (1.0 - empty) * filled.blocks / longest;
        let tile = self.block_busy * filled.blocks + (self.start_busy + both) * ctas;
        let compute = larger(alone, tile * whole.tiles / whole.sms, lesser(self.overlap, SHARE));
        let memory = (filled.kv_mb + whole.qo_mb) * miss * self.memory;
        let copying = (filled.copied_mb + whole.qo_mb) * self.copy;
        self.launch + larger(compute, memory + copying, lesser(self.memory_overlap, SHARE))
    }

    /// The share of K, V, Q and O that misses in L2, of which they are such a share: hardly any up to `l2_free`, then soon all.
    fn misses(&self, share: f64) -> f64 {
        let near = lesser(self.l2_near, 0.9);
        let beyond = within((share - self.l2_free) / self.l2_span, 0.0, 1.0);
        near * lesser(share / self.l2_free, 1.0) + (1.0 - near) * beyond
    }

    /// The time that merging the splits adds.
    pub fn merge_us(&self, work: &Work) -> f64 {
        self.merged_us(work, work.merge)
    }

    /// The same, if they are merged in this way.
    pub(super) fn merged_us(&self, work: &Work, merge: Merge) -> f64 {
        let bytes = self.merge_bytes * work.partial_mb;
        let slots = work.sms * work.resident;
        match merge {
            Merge::Nothing => 0.0,
            Merge::Fused => {
                // Tiles that are done earlier are merged while others are computed.
                let turns = 1.0 + self.fused_turns * work.tiles / slots;
                self.fused
                    + bytes
                    + self.fused_cta * work.ctas / slots
                    + work.merge_rounds * (self.fused_round + self.fused_width * work.merge_width) * turns
            }
            Merge::Kernel => {
                let waves = 1.0 + self.merge_wave * work.merge_waves;
                self.merge_launch + bytes + (self.merge_cta + self.merge_width * work.merge_width) * waves
            }
        }
    }
}
