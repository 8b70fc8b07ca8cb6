//! What the schedule of a rank works with: its attention and its transport, counted.

use crate::Error;
use crate::transport::{Message, Step, Ticket, Traffic, Transport};
use ferroflash::{Attention, CopyRun, StreamHandle};
use std::sync::Arc;

/// What a rank computes and exchanges with.
pub(crate) struct Lane {
    pub(crate) attention: Arc<Attention>,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) traffic: Traffic,
}

impl Lane {
    pub(crate) fn new(attention: Arc<Attention>, transport: Box<dyn Transport>) -> Lane {
        Lane { attention, transport, traffic: Traffic::default() }
    }

    /// As [`Transport::exchange`], counted.
    ///
    /// # Safety
    /// As [`Transport::exchange`].
    pub(crate) unsafe fn exchange(
        &mut self,
        step: Step,
        messages: &[Message],
        stream: StreamHandle,
    ) -> Result<Ticket, Error> {
        self.traffic.count(messages);
        // SAFETY: the caller's promise.
        unsafe { self.transport.exchange(step, messages, stream) }
    }

    /// As [`Transport::all_gather`], counted.
    ///
    /// # Safety
    /// As [`Transport::all_gather`].
    pub(crate) unsafe fn all_gather(
        &mut self,
        step: Step,
        (all, bytes): (u64, u64),
        stream: StreamHandle,
    ) -> Result<Ticket, Error> {
        let others = u64::from(self.transport.world() - 1) * bytes;
        self.traffic.sent += others;
        self.traffic.received += others;
        // SAFETY: the caller's promise.
        unsafe { self.transport.all_gather(step, (all, bytes), stream) }
    }

    /// Copies within the rank on `stream`, counted.
    ///
    /// # Safety
    /// As [`Attention::copy`].
    pub(crate) unsafe fn copy(&mut self, runs: &[CopyRun], stream: StreamHandle) -> Result<(), Error> {
        self.traffic.copied += runs.iter().map(|run| run.bytes).sum::<u64>();
        // SAFETY: the caller's promise.
        unsafe { self.attention.copy(runs, None, stream)? };
        Ok(())
    }

    /// The transport's stream for kernels, behind what is on `stream` now; `stream` itself where it has none.
    ///
    /// # Safety
    /// As [`Transport::order_beside`].
    pub(crate) unsafe fn fork(&mut self, stream: StreamHandle) -> Result<StreamHandle, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.transport.order_beside(stream, false)? };
        Ok(self.transport.beside().unwrap_or(stream))
    }

    /// Lets what follows on `stream` wait for the transport's stream for kernels.
    ///
    /// # Safety
    /// As [`Transport::order_beside`].
    pub(crate) unsafe fn rejoin(&mut self, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.transport.order_beside(stream, true) }
    }

    /// As [`Transport::write`].
    ///
    /// # Safety
    /// As [`Transport::write`].
    pub(crate) unsafe fn write(
        &mut self,
        word: (u64, u32),
        after: Option<StreamHandle>,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.transport.write(word, after) }
    }

    /// As [`Transport::join`].
    ///
    /// # Safety
    /// As [`Transport::join`].
    pub(crate) unsafe fn join(&mut self, ticket: Ticket, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.transport.join(ticket, stream) }
    }
}
