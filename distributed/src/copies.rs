//! One rank by itself, on one GPU: what it would receive is copied within the device, the same bytes to the same places on a stream of their
//! own, by the library's kernel: the driver's copies within a device are kernels, too, and slower. For measuring what a schedule costs before any wire.

use crate::Error;
use crate::context::RankTensors;
use crate::transport::{Message, Piece, Step, Tensor, Ticket, Transport};
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::side::SideStream;
use ferroflash::{Attention, CopyRun, StreamHandle};
use std::num::NonZeroU32;
use std::sync::Arc;

/// CTAs of a copy beside kernels: about the speed of a link of NVLink (docs/notes/several-gpus.md).
const CTAS_BESIDE: NonZeroU32 = NonZeroU32::new(8).expect("not 0");

/// A rank whose peers are tensors on its own device. What other ranks compute, heads of O, is not there: its place is copied, so that
/// [`crate::Method::Ulysses`] has the right times and a wrong O.
pub struct Copies {
    attention: Arc<Attention>,
    rank: u32,
    sources: Vec<RankTensors>,
    side: SideStream,
    kernels: SideStream,
}

impl Copies {
    /// This rank of as many as there are `sources`: the tensors of every rank, all on this device.
    ///
    /// # Errors
    /// What the driver reports.
    ///
    /// # Safety
    /// The tensors are as long as [`crate::ContextParallel::bytes`] says on each rank, and live until all exchanges are over; the attention is of this
    /// device.
    pub unsafe fn new(
        (attention, device): (Arc<Attention>, &Arc<CudaDevice>),
        rank: u32,
        sources: Vec<RankTensors>,
    ) -> Result<Copies, Error> {
        attention.preload_copy()?;
        Ok(Copies {
            attention,
            rank,
            sources,
            side: SideStream::new(device)?,
            kernels: SideStream::for_kernels(device)?,
        })
    }

    /// Where a piece lies, where it is on this device.
    fn address(&self, piece: &Piece) -> Option<u64> {
        let tensors = self.sources.get(piece.owner as usize)?;
        let start = match piece.tensor {
            Tensor::Q => tensors.q,
            Tensor::K => tensors.k,
            Tensor::V => tensors.v,
            Tensor::O => tensors.o,
            Tensor::Lse => tensors.lse?,
            Tensor::State => return None,
        };
        Some(start + piece.offset)
    }
}

impl Transport for Copies {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.sources.len() as u32
    }

    unsafe fn exchange(
        &mut self,
        step: Step,
        messages: &[Message],
        compute: StreamHandle,
    ) -> Result<Ticket, Error> {
        let receive = |message: &Message| match *message {
            Message::Receive { address: to, bytes, of, .. } => {
                Some(CopyRun { from: self.address(&of)?, to, bytes })
            }
            Message::Send { .. } => None,
        };
        let received: Vec<CopyRun> = messages.iter().filter_map(receive).collect();
        // The first is waited for; the others travel beside kernels, which would find no multiprocessor free while they do.
        let ctas = if step.index == 0 { None } else { Some(CTAS_BESIDE) };
        // SAFETY: the caller's promise, and that of Copies::new.
        unsafe {
            self.side.after(compute)?;
            self.attention.copy(&received, ctas, self.side.stream())?;
        }
        Ok(Ticket(self.side.mark()?))
    }

    unsafe fn all_gather(
        &mut self,
        _: Step,
        (all, bytes): (u64, u64),
        compute: StreamHandle,
    ) -> Result<Ticket, Error> {
        // SAFETY: the caller's promise; the others' bytes are this rank's again.
        unsafe {
            self.side.after(compute)?;
            let place = |rank: u32| all + u64::from(rank) * bytes;
            let of_rank = |rank| CopyRun { from: place(self.rank), to: place(rank), bytes };
            let others = (0..self.world()).filter(|&rank| rank != self.rank);
            self.attention.copy(&others.map(of_rank).collect::<Vec<_>>(), None, self.side.stream())?;
        }
        Ok(Ticket(self.side.mark()?))
    }

    unsafe fn join(&mut self, ticket: Ticket, compute: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.side.join(ticket.0, compute)? };
        Ok(())
    }

    fn beside(&self) -> Option<StreamHandle> {
        Some(self.kernels.stream())
    }

    unsafe fn order_beside(&mut self, compute: StreamHandle, back: bool) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.kernels.order(compute, back)? };
        Ok(())
    }

    unsafe fn wait(&mut self, compute: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.side.after(compute)? };
        Ok(self.side.finish()?)
    }

    fn abort(&mut self, _: &Error) {}
}
