//! The order of the CTAs of [`super::row::Pass::DqDkv`]: which of them compute dK, dV and dS of a block of keys, and which dQ of a block of
//! queries.
//!
//! A CTA's number is a ticket that it draws when it starts. Heads are taken in chunks: dS of a chunk is written by CTAs of keys, and read by CTAs
//! of queries a few chunks later, when it is likely to be complete. In between both kinds are mixed evenly, so that while some SMs are limited
//! by their tensor cores, others read memory. dS has room for a few chunks, which the chunks take in turns. A CTA waits only for CTAs
//! with smaller tickets: those of queries for the CTAs of keys of their chunk, those of keys for the CTAs of queries that have read what
//! they overwrite. Whoever holds a ticket has started, so that the one with the smallest ticket of all that are not done never waits.

use crate::divisor::Divisor;

/// How the CTAs of a launch follow each other. In a pass of other kernels all chunks are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Order {
    /// CTAs of keys of a chunk.
    pub keys: Divisor,
    /// CTAs of queries of a chunk.
    pub queries: Divisor,
    /// Chunks.
    pub chunks: u32,
    /// The CTAs of queries of chunk i are mixed with the CTAs of keys of chunk i + `lag`: 1 to `chunks`.
    pub lag: u32,
    /// Chunks that dS has room for: all, or more than `lag`.
    pub slots: u32,
}

/// What a CTA computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tile {
    /// dK, dV and dS of this block of keys of all heads.
    Keys(u32),
    /// dQ of this block of queries of all heads.
    Queries(u32),
}

impl Order {
    /// CTAs of a launch.
    pub const fn ctas(&self) -> u64 {
        self.chunks as u64 * (self.keys.value as u64 + self.queries.value as u64)
    }

    /// The tile of the CTA with a ticket.
    #[inline(always)]
    pub fn tile(&self, ticket: u32) -> Tile {
        let (keys, queries) = (self.keys.value, self.queries.value);
        // The compiler does not know that neither is 0.
        let (both, before) = ((keys + queries).max(1), self.lag * keys);
        if ticket < before {
            return Tile::Keys(ticket);
        }
        let (stage, at) = ((ticket - before) / both, (ticket - before) % both);
        if stage >= self.chunks - self.lag {
            return Tile::Queries(ticket - self.chunks * keys);
        }
        // Of the first `n` CTAs of a stage, as many are of queries as of all of them, rounded down.
        let of_queries = |n: u32| (u64::from(n) * u64::from(queries) / u64::from(both)) as u32;
        let first = of_queries(at);
        if of_queries(at + 1) > first {
            Tile::Queries(stage * queries + first)
        } else {
            Tile::Keys(before + stage * keys + at - first)
        }
    }

    /// Counters of a launch: the ticket, and for each chunk the CTAs of keys and those of queries that are done with dS.
    pub const fn counters(&self) -> u32 {
        1 + 2 * self.chunks
    }

    /// The counter of a tile's CTA when it is done.
    #[inline(always)]
    pub fn counts_in(&self, tile: Tile) -> u32 {
        match tile {
            Tile::Keys(index) => 1 + self.keys.quotient(index),
            Tile::Queries(index) => 1 + self.chunks + self.queries.quotient(index),
        }
    }

    /// The counter that a tile's CTA waits for, and how many CTAs it must have counted: those of keys that write what it reads, or those of queries
    /// that read what it overwrites; 0 where it overwrites nothing. CTAs of queries that have none are done without waiting, so that the
    /// two kinds are counted apart. Who writes after readers writes after those that wrote before, too: readers wait for all of these.
    #[inline(always)]
    pub fn waits_for(&self, tile: Tile) -> (u32, u32) {
        match tile {
            Tile::Queries(index) => (1 + self.queries.quotient(index), self.keys.value),
            Tile::Keys(index) => {
                let chunk = self.keys.quotient(index);
                let is_first = chunk < self.slots;
                (
                    1 + self.chunks + if is_first { chunk } else { chunk - self.slots },
                    if is_first { 0 } else { self.queries.value },
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn orders() -> impl Iterator<Item = Order> {
        let sizes = [(1, 1), (3, 2), (2, 5), (32, 16), (4, 64)];
        let chunks = [(1, 1, 1), (2, 1, 2), (5, 1, 2), (5, 2, 3), (5, 3, 5), (7, 7, 7), (9, 4, 6)];
        sizes.into_iter().flat_map(move |(keys, queries)| {
            chunks.map(|(chunks, lag, slots)| Order {
                keys: Divisor::new(keys),
                queries: Divisor::new(queries),
                chunks,
                lag,
                slots,
            })
        })
    }

    #[test]
    fn every_tile_has_one_ticket_and_waits_only_for_smaller_ones() {
        for order in orders() {
            let ctas = order.ctas() as u32;
            let counters: BTreeSet<u32> =
                (0..ctas).map(|ticket| order.counts_in(order.tile(ticket))).collect();
            assert!(counters.into_iter().eq(1..order.counters()), "{order:?}");
            let tickets: BTreeMap<Tile, u32> = (0..ctas).map(|ticket| (order.tile(ticket), ticket)).collect();
            assert_eq!(tickets.len() as u32, ctas, "{order:?}");
            for chunk in 0..order.chunks {
                let last = |of: fn(u32) -> Tile, each: u32| tickets[&of((chunk + 1) * each - 1)];
                let (keys, queries) = (order.keys.value, order.queries.value);
                let written = last(Tile::Keys, keys);
                let read = last(Tile::Queries, queries);
                for i in 0..queries {
                    let tile = Tile::Queries(chunk * queries + i);
                    assert_eq!(order.waits_for(tile), (order.counts_in(Tile::Keys(chunk * keys)), keys));
                    assert!(tickets[&tile] > written, "{order:?} {tile:?}");
                }
                for i in 0..keys {
                    let tile = Tile::Keys((chunk + order.slots) * keys + i);
                    if let Some(&ticket) = tickets.get(&tile) {
                        let counter = order.counts_in(Tile::Queries(chunk * queries));
                        assert_eq!(order.waits_for(tile), (counter, queries));
                        assert!(ticket > read, "{order:?} {tile:?}");
                    }
                    assert_eq!(order.waits_for(Tile::Keys(i)).1, 0);
                }
            }
        }
    }

    #[test]
    fn both_kinds_are_mixed_evenly_where_chunks_of_both_are_left() {
        for order in orders() {
            let (keys, queries) = (order.keys.value, order.queries.value);
            let both = keys + queries;
            let mixed = order.lag * keys..order.lag * keys + (order.chunks - order.lag) * both;
            for first in mixed.clone().filter(|first| first + both <= mixed.end) {
                let of =
                    (first..first + both).filter(|&ticket| matches!(order.tile(ticket), Tile::Queries(_)));
                assert!((of.count() as u32).abs_diff(queries) <= 1, "{order:?} from {first}");
            }
        }
    }
}
