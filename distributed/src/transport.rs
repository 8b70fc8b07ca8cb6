//! What moves bytes between ranks.

use crate::Error;
use ferroflash::StreamHandle;

/// What an exchange is for, in messages: "keys and values, step 2".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// What is exchanged.
    pub what: &'static str,
    /// Which of several exchanges of it, from 0.
    pub index: u32,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, step {}", self.what, self.index)
    }
}

/// A rank's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output.
    O,
    /// Log-sum-exp.
    Lse,
    /// Partial O and LSE, or what ranks agree upon.
    State,
}

/// What arrives: bytes of a tensor of the rank that holds it, which need not be the rank that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The rank whose tensor it is.
    pub owner: u32,
    /// The tensor.
    pub tensor: Tensor,
    /// Bytes from the start of the owner's tensor.
    pub offset: u64,
}

/// A range of addresses that goes somewhere. The messages of a pair of ranks match in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To another rank.
    Send {
        /// The rank.
        to: u32,
        /// The first address.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// As the receiver's.
        place: Option<u64>,
    },
    /// From another rank.
    Receive {
        /// The rank.
        from: u32,
        /// The first address.
        address: u64,
        /// Bytes.
        bytes: u64,
        /// What it is.
        of: Piece,
        /// Bytes from the start of the memory that [`Transport::prepare`] shares among ranks to the address, where that is there: a transport
        /// that has such memory lets the sender write to it.
        place: Option<u64>,
    },
}

/// The number of an exchange, to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Bytes that a rank moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To other ranks.
    pub sent: u64,
    /// From other ranks.
    pub received: u64,
    /// Within the rank.
    pub copied: u64,
}

impl Traffic {
    /// Adds an exchange.
    pub fn count(&mut self, messages: &[Message]) {
        for message in messages {
            match *message {
                Message::Send { bytes, .. } => self.sent += bytes,
                Message::Receive { bytes, .. } => self.received += bytes,
            }
        }
    }
}

/// A rank's connection to the others. All ranks make the same exchanges in the same order. There is no barrier: a rank waits for what it
/// receives, and for nothing else.
///
/// Exchanges run on a stream of the transport's own, so that they can run under computation; [`Transport::exchange`] and
/// [`Transport::join`] order the two. A transport without streams has done all when its call returns.
pub trait Transport: Send {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// Ranks.
    fn world(&self) -> u32;

    /// Prepares for exchanges like these, whatever their addresses: gets the memory that they take of the transport itself, and `shared` bytes
    /// that other ranks write to. All ranks call this with as many, before the first exchange. Returns the address of the shared bytes;
    /// `None` where there are none, and places mean nothing.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`] and of [`Transport::wait`].
    fn prepare(&mut self, _exchanges: &[Vec<Message>], _shared: u64) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// Bytes of device memory that the transport itself has.
    fn staging_bytes(&self) -> u64 {
        0
    }

    /// Starts the messages of a step as one group, after all work that is on `compute` now.
    ///
    /// # Errors
    /// What became of other ranks, where it is known by then; what the driver reports.
    ///
    /// # Safety
    /// Every address is allocated on this rank's device for the bytes of its message until the exchange is over, nothing else writes what
    /// is read or touches what is written meanwhile, and `compute` lives.
    unsafe fn exchange(
        &mut self,
        step: Step,
        messages: &[Message],
        compute: StreamHandle,
    ) -> Result<Ticket, Error>;

    /// Starts gathering `bytes` bytes of every rank at `all`, in the order of ranks; this rank's are in their place there.
    ///
    /// # Errors
    /// Those of [`Transport::exchange`].
    ///
    /// # Safety
    /// As [`Transport::exchange`], for `bytes` bytes of each rank.
    unsafe fn all_gather(
        &mut self,
        step: Step,
        (all, bytes): (u64, u64),
        compute: StreamHandle,
    ) -> Result<Ticket, Error> {
        let (rank, world) = (self.rank(), self.world());
        let place = |other: u32| all + u64::from(other) * bytes;
        let mut messages = Vec::new();
        for other in (0..world).filter(|&other| other != rank) {
            let of = Piece { owner: other, tensor: Tensor::State, offset: 0 };
            messages.push(Message::Send { to: other, address: place(rank), bytes, place: None });
            messages.push(Message::Receive { from: other, address: place(other), bytes, of, place: None });
        }
        // SAFETY: the caller's promise.
        unsafe { self.exchange(step, &messages, compute) }
    }

    /// Lets what follows on `compute` wait until an exchange is over; the host does not wait.
    ///
    /// # Errors
    /// What the driver reports.
    ///
    /// # Safety
    /// `compute` lives.
    unsafe fn join(&mut self, ticket: Ticket, compute: StreamHandle) -> Result<(), Error>;

    /// Whether exchanges end whatever kernels run on the ranks' devices, so that a kernel may wait for a number that [`Transport::write`] writes.
    fn announces(&self) -> bool {
        false
    }

    /// Writes a number of 4 bytes to this rank's device, where a kernel that runs sees it: once what is on `after` now is over, or where that is
    /// `None`, the exchange that was started last. Only where [`Transport::announces`].
    ///
    /// # Errors
    /// What the driver reports.
    ///
    /// # Safety
    /// The address, a multiple of 4, is allocated on this rank's device until the exchange is over, and `after` lives.
    unsafe fn write(&mut self, _: (u64, u32), _after: Option<StreamHandle>) -> Result<(), Error> {
        Ok(())
    }

    /// A second stream for kernels, where there is one: what runs there fills multiprocessors that kernels on the first leave free.
    fn beside(&self) -> Option<StreamHandle> {
        None
    }

    /// Lets what follows on [`Transport::beside`] wait for what is on `compute` now, or with `back` the other way round.
    ///
    /// # Errors
    /// What the driver reports.
    ///
    /// # Safety
    /// `compute` lives.
    unsafe fn order_beside(&mut self, _compute: StreamHandle, _back: bool) -> Result<(), Error> {
        Ok(())
    }

    /// Waits on the host until all exchanges and all work that is on `compute` now are over, no longer than the transport's limit for
    /// what other ranks do.
    ///
    /// # Errors
    /// [`Error::Unfinished`] with ranks and step, and what the driver reports. The transport is of no further use then.
    ///
    /// # Safety
    /// `compute` lives, and is not captured.
    unsafe fn wait(&mut self, compute: StreamHandle) -> Result<(), Error>;

    /// Tells the other ranks, as far as they can be told, that this one has failed.
    fn abort(&mut self, reason: &Error);
}
