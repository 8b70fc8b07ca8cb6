//! Counts what a CTA does. All counts are exact and do not depend on the schedule, but for the branches that diverge and the
//! turns of loops that wait for an mbarrier.

use crate::coverage;
use crate::launch::Launch;
use crate::op::{NO_PREDICATE, Pc, Space};
use crate::regs::{LANES, Slot};
use crate::window;

/// Accesses of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalTraffic {
    /// Warp instructions.
    pub requests: u64,
    /// Distinct 32-byte sectors, summed over the requests.
    pub sectors: u64,
    /// Distinct 128-byte lines, summed over the requests.
    pub lines: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
}

/// Accesses to shared memory of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTraffic {
    /// Warp instructions.
    pub requests: u64,
    /// Passes over the 32 banks that they take.
    pub wavefronts: u64,
    /// Passes beyond those that the access size needs without conflicts.
    pub conflicts: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
}

/// Everything that one CTA counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Warp and thread instructions at every program counter of every function.
    pub(crate) counts: Vec<Vec<[u64; 2]>>,
    /// What came of the conditions there, as [`crate::coverage`] has it, if the launch asks for it.
    pub(crate) outcomes: Vec<Vec<u8>>,
    pub(crate) wgmma: u64,
    pub(crate) wgmma_operand_bytes: u64,
    pub(crate) tensor_flops: u64,
    pub(crate) barriers: u64,
    pub(crate) mbarrier_waits: u64,
    pub(crate) divergent_branches: u64,
    pub(crate) atomics: u64,
    pub(crate) global_load: GlobalTraffic,
    pub(crate) global_store: GlobalTraffic,
    pub(crate) async_global: GlobalTraffic,
    pub(crate) async_shared: SharedTraffic,
    pub(crate) shared_load: SharedTraffic,
    pub(crate) shared_store: SharedTraffic,
    pub(crate) bulk_copies: u64,
    pub(crate) bulk_load_bytes: u64,
    pub(crate) bulk_store_bytes: u64,
    pub(crate) local_bytes: u64,
    /// Most committed `cp.async` groups in flight at a wait.
    pub(crate) async_groups: u32,
}

impl Counters {
    pub(crate) fn new(launch: &Launch<'_>) -> Self {
        let insts =
            |program| if launch.is_reachable(program) { launch.program(program).insts.len() } else { 0 };
        let all = 0..launch.programs();
        Counters {
            counts: all.clone().map(|program| vec![[0; 2]; insts(program)]).collect(),
            outcomes: if launch.config.coverage {
                all.map(|program| vec![0; insts(program)]).collect()
            } else {
                Vec::new()
            },
            ..Counters::default()
        }
    }

    /// An instruction with a guard came by in the lanes of `mask`, of which those that are `active` execute it.
    #[inline]
    pub(crate) fn guarded(&mut self, (program, pc): (usize, Pc), mask: u32, active: u32) {
        self.outcomes[program][pc as usize] |= coverage::outcomes(active, mask);
    }

    /// Of two integers the first was the less, and the larger, in these lanes.
    #[inline]
    pub(crate) fn chosen(&mut self, (program, pc): (usize, Pc), less: u32, larger: u32) {
        self.outcomes[program][pc as usize] |= coverage::outcomes(less, less | larger) << coverage::BITS;
    }

    /// An instruction has written predicates in these lanes.
    #[inline]
    pub(crate) fn decided(
        &mut self,
        (program, pc): (usize, Pc),
        slots: [Slot; 2],
        predicates: &[u32],
        active: u32,
    ) {
        for (number, slot) in slots.into_iter().enumerate().filter(|(_, slot)| *slot != NO_PREDICATE) {
            let found = coverage::outcomes(predicates[slot as usize] & active, active);
            self.outcomes[program][pc as usize] |= found << (coverage::BITS * (1 + number));
        }
    }

    #[inline]
    pub(crate) fn count(&mut self, program: usize, pc: Pc, active: u32) {
        let count = &mut self.counts[program][pc as usize];
        count[0] += 1;
        count[1] += u64::from(active.count_ones());
    }

    /// A load or store of `bytes` a lane.
    pub(crate) fn request(
        &mut self,
        space: Space,
        list: &[u64; LANES],
        active: u32,
        bytes: u32,
        write: bool,
    ) {
        let space = match space {
            Space::Generic => match list[active.trailing_zeros() as usize % LANES] {
                a if window::holds(window::SHARED_WINDOW, a) => Space::Shared,
                a if window::holds(window::LOCAL_WINDOW, a) => Space::Local,
                _ => Space::Global,
            },
            space => space,
        };
        match space {
            Space::Global => {
                let traffic = if write { &mut self.global_store } else { &mut self.global_load };
                traffic.add(list, &[bytes; LANES], active);
            }
            Space::Shared => {
                let traffic = if write { &mut self.shared_store } else { &mut self.shared_load };
                traffic.add(list, active, bytes);
            }
            Space::Local => self.local_bytes += u64::from(active.count_ones() * bytes),
            _ => {}
        }
    }

    /// A `cp.async`.
    pub(crate) fn copy(
        &mut self,
        to: &[u64; LANES],
        from: &[u64; LANES],
        source_bytes: &[u32; LANES],
        active: u32,
        bytes: u32,
    ) {
        self.async_global.add(from, source_bytes, active);
        self.async_shared.add(to, active, bytes);
    }

    /// An `ldmatrix` or `stmatrix`: each matrix is eight rows of 16 bytes.
    pub(crate) fn matrix(&mut self, list: &[u64; LANES], matrices: usize, write: bool) {
        let traffic = if write { &mut self.shared_store } else { &mut self.shared_load };
        traffic.requests += 1;
        for m in 0..matrices {
            let wavefronts = wavefronts(&list[8 * m..8 * m + 8], 16);
            traffic.wavefronts += wavefronts;
            traffic.conflicts += wavefronts - 1;
            traffic.bytes += 128;
        }
    }

    /// The groups in flight at a wait: of lane 0, those with open copies below the open group.
    pub(crate) fn groups(&mut self, open: &[u32], current: u32) {
        let oldest = open.iter().copied().filter(|g| *g < current).min();
        self.async_groups = self.async_groups.max(oldest.map_or(0, |g| current - g));
    }

    /// Adds another CTA's counts.
    pub(crate) fn add(mut self, other: Counters) -> Counters {
        if self.counts.is_empty() {
            return other;
        }
        for (to, from) in self.counts.iter_mut().zip(&other.counts) {
            for (to, from) in to.iter_mut().zip(from) {
                to[0] += from[0];
                to[1] += from[1];
            }
        }
        for (to, from) in self.outcomes.iter_mut().flatten().zip(other.outcomes.iter().flatten()) {
            *to |= from;
        }
        self.wgmma += other.wgmma;
        self.wgmma_operand_bytes += other.wgmma_operand_bytes;
        self.tensor_flops += other.tensor_flops;
        self.barriers += other.barriers;
        self.mbarrier_waits += other.mbarrier_waits;
        self.divergent_branches += other.divergent_branches;
        self.atomics += other.atomics;
        self.bulk_copies += other.bulk_copies;
        self.bulk_load_bytes += other.bulk_load_bytes;
        self.bulk_store_bytes += other.bulk_store_bytes;
        self.local_bytes += other.local_bytes;
        self.async_groups = self.async_groups.max(other.async_groups);
        self.global_load.merge(&other.global_load);
        self.global_store.merge(&other.global_store);
        self.async_global.merge(&other.async_global);
        self.async_shared.merge(&other.async_shared);
        self.shared_load.merge(&other.shared_load);
        self.shared_store.merge(&other.shared_store);
        self
    }
}

impl GlobalTraffic {
    fn add(&mut self, list: &[u64; LANES], bytes: &[u32; LANES], active: u32) {
        let mut sectors = [0u64; 2 * LANES];
        let mut count = 0;
        for lane in (0..LANES).filter(|&lane| active >> lane & 1 == 1 && bytes[lane] > 0) {
            let (first, last) = (list[lane] >> 5, list[lane].wrapping_add(u64::from(bytes[lane]) - 1) >> 5);
            for sector in [first, last] {
                // Neighbouring lanes mostly share a sector: the last one noted is looked at first.
                if count == 0 || sectors[count - 1] != sector {
                    sectors[count] = sector;
                    count += 1;
                }
            }
            self.bytes += u64::from(bytes[lane]);
        }
        let sectors = &mut sectors[..count];
        if !sectors.is_sorted() {
            sectors.sort_unstable();
        }
        let (mut last_sector, mut last_line) = (u64::MAX, u64::MAX);
        for &sector in sectors.iter() {
            self.sectors += u64::from(sector != last_sector);
            self.lines += u64::from(sector >> 2 != last_line);
            (last_sector, last_line) = (sector, sector >> 2);
        }
        self.requests += 1;
    }

    fn merge(&mut self, other: &GlobalTraffic) {
        self.requests += other.requests;
        self.sectors += other.sectors;
        self.lines += other.lines;
        self.bytes += other.bytes;
    }
}

impl SharedTraffic {
    fn add(&mut self, list: &[u64; LANES], active: u32, bytes: u32) {
        self.add_known(shared_wavefronts(list, active, bytes), active, bytes);
    }

    /// An access whose wavefronts and conflicts are known.
    #[inline]
    pub(crate) fn add_known(&mut self, (wavefronts, conflicts): (u64, u64), active: u32, bytes: u32) {
        self.requests += 1;
        self.bytes += u64::from(active.count_ones() * bytes);
        self.wavefronts += wavefronts;
        self.conflicts += conflicts;
    }

    fn merge(&mut self, other: &SharedTraffic) {
        self.requests += other.requests;
        self.wavefronts += other.wavefronts;
        self.conflicts += other.conflicts;
        self.bytes += other.bytes;
    }
}

/// Passes over the banks that an access takes, and those beyond what its size needs: it is served a quarter warp at a time for 16
/// bytes a lane, a half warp for 8, whole otherwise.
pub(crate) fn shared_wavefronts(list: &[u64; LANES], active: u32, bytes: u32) -> (u64, u64) {
    let group = match bytes {
        16 => 8,
        8 => 16,
        _ => 32,
    };
    let mut total = (0, 0);
    for first in (0..LANES).step_by(group) {
        let mut chosen = [0u64; LANES];
        let mut count = 0;
        for lane in (first..first + group).filter(|lane| active >> lane & 1 == 1) {
            chosen[count] = list[lane];
            count += 1;
        }
        if count > 0 {
            let wavefronts = wavefronts(&chosen[..count], bytes);
            total.0 += wavefronts;
            total.1 += wavefronts - 1;
        }
    }
    total
}

/// Whether aligned accesses share no bank.
#[inline]
fn are_apart(list: &[u64], bytes: u32) -> bool {
    let (shift, places) = match bytes {
        16 => (4, 7),
        8 => (3, 15),
        4 => (2, 31),
        _ => return false,
    };
    let (mut seen, mut apart) = (0u32, true);
    for address in list {
        let bit = 1 << (address >> shift & places);
        apart &= seen & bit == 0 && address & (u64::from(bytes) - 1) == 0;
        seen |= bit;
    }
    apart
}

/// Passes that a group of accesses takes: the most distinct words in one of the 32 banks.
fn wavefronts(list: &[u64], bytes: u32) -> u64 {
    if are_apart(list, bytes) || list.iter().all(|address| *address == list[0]) {
        return 1;
    }
    // In most groups every bank is asked for one word at most, which one pass over the words shows.
    let mut word_of = [u64::MAX; 32];
    let words = |address: u64| (address >> 2)..=(address.wrapping_add(u64::from(bytes) - 1) >> 2);
    let mut conflict = false;
    for word in list.iter().flat_map(|&a| words(a)) {
        let seen = &mut word_of[word as usize % 32];
        conflict |= *seen != u64::MAX && *seen != word;
        *seen = word;
    }
    if !conflict {
        return 1;
    }
    let mut all: Vec<u64> = list.iter().flat_map(|&a| words(a)).collect();
    all.sort_unstable();
    all.dedup();
    let mut load = [0u64; 32];
    for word in all {
        load[word as usize % 32] += 1;
    }
    load.into_iter().max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banks_conflict_by_distinct_words() {
        let stride = |bytes: u64| -> Vec<u64> { (0..32).map(|lane| lane * bytes).collect() };
        assert_eq!(wavefronts(&stride(4), 4), 1);
        assert_eq!(wavefronts(&stride(8), 4), 2);
        assert_eq!(wavefronts(&stride(128), 4), 32);
        assert_eq!(wavefronts(&[64; 32], 4), 1);
        assert_eq!(wavefronts(&stride(2), 2), 1);
        assert_eq!(wavefronts(&(0..8).map(|r| r * 128).collect::<Vec<_>>(), 16), 8);
        assert_eq!(wavefronts(&(0..8).map(|r| r * 144).collect::<Vec<_>>(), 16), 1);
    }

    #[test]
    fn sectors_and_lines_are_distinct_ones() {
        let add = |list: [u64; LANES], bytes: u32| {
            let mut traffic = GlobalTraffic::default();
            traffic.add(&list, &[bytes; LANES], u32::MAX);
            (traffic.sectors, traffic.lines)
        };
        assert_eq!(add(std::array::from_fn(|lane| 4 * lane as u64), 4), (4, 1));
        assert_eq!(add(std::array::from_fn(|lane| 128 * lane as u64), 4), (32, 32));
        assert_eq!(add(std::array::from_fn(|lane| 128 * (lane as u64 % 2)), 4), (2, 2));
        assert_eq!(add(std::array::from_fn(|lane| 16 * lane as u64), 16), (16, 4));
    }
}
