//! The messages of a pair of ranks as one: NCCL takes some ten microseconds for each, and a tensor's chunk is a run of bytes a head.

use crate::transport::Message;
use ferroflash::CopyRun;

/// The most messages of a pair of ranks that travel one by one. More are packed into one: each costs NCCL some ten microseconds.
const APART_MOST: usize = 4;
/// Where parcels start in the staging memory.
const ALIGNMENT: u64 = 256;

/// What goes to one rank, or comes from it, in an exchange.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) peer: u32,
    pub(super) direction: Direction,
    /// Addresses and bytes.
    runs: Vec<(u64, u64)>,
    /// Where each run belongs in the receiver's shared memory; as many as there are runs, or none is used.
    places: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Receive,
}

impl Parcel {
    /// The messages of an exchange by pair of ranks, in their order.
    pub(super) fn of(messages: &[Message]) -> Vec<Parcel> {
        let mut parcels: Vec<Parcel> = Vec::new();
        for message in messages {
            let (peer, direction, run, place) = match *message {
                Message::Send { to, address, bytes, place } => (to, Direction::Send, (address, bytes), place),
                Message::Receive { from, address, bytes, place, .. } => {
                    (from, Direction::Receive, (address, bytes), place)
                }
            };
            let same = |parcel: &Parcel| (parcel.peer, parcel.direction) == (peer, direction);
            let at = parcels.iter().position(same).unwrap_or_else(|| {
                parcels.push(Parcel { peer, direction, runs: Vec::new(), places: Vec::new() });
                parcels.len() - 1
            });
            parcels[at].runs.push(run);
            parcels[at].places.extend(place);
        }
        parcels
    }

    /// Whether its runs travel as one message. Both ranks of a pair have the same runs, and so the same answer.
    fn is_packed(&self) -> bool {
        self.runs.len() > APART_MOST
    }

    /// Whether every run has a place in the receiver's shared memory. Both ranks of a pair have the same answer.
    pub(super) fn is_placed(&self) -> bool {
        self.places.len() == self.runs.len()
    }

    /// Copies of what is sent to its places in the shared memory that starts there.
    pub(super) fn copies_to_places(&self, shared: u64) -> Vec<CopyRun> {
        let runs = self.runs.iter().zip(&self.places);
        runs.map(|(&(from, bytes), place)| CopyRun { from, to: shared + place, bytes }).collect()
    }

    /// Bytes of all its runs.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Where packed ones start in the staging memory, and how long that must be.
    pub(super) fn staged(parcels: &[Parcel]) -> (Vec<u64>, u64) {
        let mut end = 0;
        let place = |parcel: &Parcel| {
            let start = end;
            if parcel.is_packed() {
                end = (end + parcel.bytes()).next_multiple_of(ALIGNMENT);
            }
            start
        };
        (parcels.iter().map(place).collect(), end)
    }

    /// Copies between its runs and one place, in its direction.
    pub(super) fn copies(&self, mut place: u64) -> Vec<CopyRun> {
        let copy = |&(address, bytes): &(u64, u64)| {
            let at = place;
            place += bytes;
            match self.direction {
                Direction::Send => CopyRun { from: address, to: at, bytes },
                Direction::Receive => CopyRun { from: at, to: address, bytes },
            }
        };
        self.runs.iter().map(copy).collect()
    }

    /// Copies between the staging memory and the runs of packed ones.
    pub(super) fn copies_of_packed(parcels: &[Parcel], staging: u64, direction: Direction) -> Vec<CopyRun> {
        let (places, _) = Parcel::staged(parcels);
        let packed = parcels.iter().zip(places);
        let packed = packed.filter(|(parcel, _)| parcel.is_packed() && parcel.direction == direction);
        packed.flat_map(|(parcel, place)| parcel.copies(staging + place)).collect()
    }

    /// What NCCL is given: addresses and bytes.
    pub(super) fn travelling(parcels: &[Parcel], staging: u64) -> impl Iterator<Item = (&Parcel, u64, u64)> {
        let (places, _) = Parcel::staged(parcels);
        parcels.iter().zip(places).flat_map(move |(parcel, place)| {
            let whole = parcel.is_packed().then(|| (staging + place, parcel.bytes()));
            let apart = parcel.runs.iter().copied().filter(move |_| whole.is_none());
            whole.into_iter().chain(apart).map(move |(address, bytes)| (parcel, address, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Piece, Tensor};

    /// What a rank sends is what the other receives, and every byte is packed and unpacked once, whatever the runs are.
    #[test]
    fn both_ranks_pack_the_same_runs_and_none_is_lost() {
        for count in [1, APART_MOST, APART_MOST + 1, 40] {
            let bytes = |run: u64| 16 * (1 + run % 3);
            let of = Piece { owner: 0, tensor: Tensor::K, offset: 0 };
            let sent = (0..count as u64).map(|run| Message::Send {
                to: 1,
                address: 4096 * run,
                bytes: bytes(run),
                place: None,
            });
            let received = (0..count as u64).map(|run| Message::Receive {
                from: 0,
                address: 512 * run,
                bytes: bytes(run),
                of,
                place: None,
            });
            let [sent, received] =
                [Parcel::of(&sent.collect::<Vec<_>>()), Parcel::of(&received.collect::<Vec<_>>())];
            let lengths =
                |parcels| Parcel::travelling(parcels, 0).map(|(_, _, bytes)| bytes).collect::<Vec<u64>>();
            assert_eq!(lengths(&sent), lengths(&received));
            assert_eq!(lengths(&sent).len(), if count > APART_MOST { 1 } else { count });
            let staging = 1 << 20;
            let (_, most) = Parcel::staged(&sent);
            let packed = Parcel::copies_of_packed(&sent, staging, Direction::Send);
            let unpacked = Parcel::copies_of_packed(&received, staging, Direction::Receive);
            assert_eq!(packed.len(), if count > APART_MOST { count } else { 0 });
            for (run, (one, other)) in packed.iter().zip(&unpacked).enumerate() {
                assert_eq!((one.from, other.to), (4096 * run as u64, 512 * run as u64));
                assert_eq!((one.to, one.bytes), (other.from, other.bytes));
                assert!(one.to >= staging && one.to + one.bytes <= staging + most);
            }
            let mut places: Vec<_> = packed.iter().map(|run| (run.to, run.to + run.bytes)).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{places:?}");
        }
    }
}
