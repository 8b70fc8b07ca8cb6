//! A stream beside the caller's: work on it runs under computation, and events order the two.

use super::cuda::CudaDevice;
use super::driver::{check, cust_error};
use super::{Device, StreamHandle};
use crate::copy::{Block, CopyRun};
use crate::error::Error;
use cust::stream::{Stream, StreamFlags};
use cust::sys::{self, CUDA_MEMCPY2D, CUevent, CUevent_flags, CUmemorytype, CUresult, CUstream};
use std::sync::Arc;

/// Marks that are told apart at a time.
const MARKS: usize = 64;

/// The most bytes between rows of one copy that every device takes.
pub(crate) const PITCH_MOST: u64 = i32::MAX as u64;

/// A stream of its own on a device. It allocates nothing once it is made, and can be drawn into a capture of the caller's stream.
pub struct SideStream {
    stream: Stream,
    /// Of marks by number, the later in place of the earlier.
    marks: Vec<Event>,
    /// What the caller's stream had come to.
    before: Event,
    last: u64,
    device: Arc<CudaDevice>,
}

/// An event without a time.
struct Event {
    /// A raw `CUevent`, which any thread may use.
    handle: usize,
    device: Arc<CudaDevice>,
}

impl Event {
    fn new(device: &Arc<CudaDevice>) -> Result<Event, Error> {
        let _current = device.make_current()?;
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes one event where it is told to.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Event { handle: event as usize, device: device.clone() })
    }

    fn raw(&self) -> CUevent {
        self.handle as CUevent
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.device.make_current() else { return };
        // SAFETY: made once, destroyed once; the driver keeps what is still waited for.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw()) };
    }
}

impl SideStream {
    /// A new stream for copies and communication, of a higher priority than the default where the device has several: what others wait
    /// for comes first.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn new(device: &Arc<CudaDevice>) -> Result<SideStream, Error> {
        // Priorities outside of what the device has are taken as its nearest.
        SideStream::with_priority(device, -5)
    }

    /// A new stream for setting flags that others wait for, of a priority that no other one has.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn for_flags(device: &Arc<CudaDevice>) -> Result<SideStream, Error> {
        SideStream::with_priority(device, -2)
    }

    /// A new stream for computing beside another, of the default priority: kernels that come later fill what earlier ones leave free.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn for_kernels(device: &Arc<CudaDevice>) -> Result<SideStream, Error> {
        SideStream::with_priority(device, 0)
    }

    fn with_priority(device: &Arc<CudaDevice>, priority: i32) -> Result<SideStream, Error> {
        let _current = device.make_current()?;
        let failed = cust_error("cuStreamCreateWithPriority");
        let stream = Stream::new(StreamFlags::NON_BLOCKING, Some(priority)).map_err(failed)?;
        let event = || Event::new(device);
        let marks = (0..MARKS).map(|_| event()).collect::<Result<_, _>>()?;
        Ok(SideStream { stream, marks, before: event()?, last: 0, device: device.clone() })
    }

    /// The stream.
    pub fn stream(&self) -> StreamHandle {
        StreamHandle::from_raw(self.stream.as_inner().cast())
    }

    /// The device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Lets what follows here wait for what is on another stream now.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// `other` lives on this device.
    pub unsafe fn after(&self, other: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            self.record(&self.before, other)?;
            self.wait_on(self.stream(), &self.before)
        }
    }

    /// Lets what follows here wait for what is on another stream now, or with `back` the other way round.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// `other` lives on this device.
    pub unsafe fn order(&mut self, other: StreamHandle, back: bool) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match back {
                false => self.after(other),
                true => {
                    let mark = self.mark()?;
                    self.join(mark, other)
                }
            }
        }
    }

    /// Marks what is here by now, and returns the mark's number.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn mark(&mut self) -> Result<u64, Error> {
        self.last += 1;
        // SAFETY: the stream is this one's own.
        unsafe { self.record(self.event(self.last), self.stream())? };
        Ok(self.last)
    }

    /// Lets what follows on another stream wait for a mark, one of the last 64.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// `other` lives on this device.
    pub unsafe fn join(&self, mark: u64, other: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.wait_on(other, self.event(mark)) }
    }

    /// Whether the device has come to a mark, one of the last 64 and in no capture.
    ///
    /// # Errors
    /// [`Error::Cuda`], also of earlier work.
    pub fn is_over(&self, mark: u64) -> Result<bool, Error> {
        let _current = self.device.make_current()?;
        // SAFETY: the event lives as long as self.
        match unsafe { sys::cuEventQuery(self.event(mark).raw()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    /// The number of the last mark; 0 before the first.
    pub fn last_mark(&self) -> u64 {
        self.last
    }

    /// The number of the first mark that is still told apart from those after it.
    pub fn first_mark(&self) -> u64 {
        self.last.saturating_sub(MARKS as u64 - 1).max(1)
    }

    /// Copies runs of bytes within the device, in this order, on this stream. Neighbours of one length that are equally far apart are one
    /// call of the driver: a tensor's heads or chunks, which by themselves would cost the host and the device some microseconds each.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// All ranges are allocated on this device until the copies are over, and nothing else writes what is read or touches what is written
    /// meanwhile.
    pub unsafe fn copy(&self, runs: &[CopyRun]) -> Result<(), Error> {
        let _current = self.device.make_current()?;
        for block in Block::of(runs.iter().copied(), PITCH_MOST) {
            // SAFETY: the caller's promise, as the block is some of the runs.
            unsafe { copy_block(&block, self.stream().as_raw().cast())? };
        }
        Ok(())
    }

    /// Waits for all work here.
    ///
    /// # Errors
    /// [`Error::Cuda`], also of earlier work.
    pub fn finish(&self) -> Result<(), Error> {
        // SAFETY: the stream lives as long as self.
        unsafe { self.device.synchronize(self.stream()) }
    }

    fn event(&self, mark: u64) -> &Event {
        &self.marks[mark as usize % MARKS]
    }

    /// # Safety
    /// The stream lives on this device.
    unsafe fn record(&self, event: &Event, stream: StreamHandle) -> Result<(), Error> {
        let _current = self.device.make_current()?;
        // SAFETY: the event lives as long as self; the stream is the caller's promise.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw(), stream.as_raw().cast()) })
    }

    /// # Safety
    /// The stream lives on this device.
    unsafe fn wait_on(&self, stream: StreamHandle, event: &Event) -> Result<(), Error> {
        let _current = self.device.make_current()?;
        // SAFETY: the event lives as long as self; the stream is the caller's promise.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.as_raw().cast(), event.raw(), 0) })
    }
}

/// # Safety
/// As [`SideStream::copy`], with the device's context current.
unsafe fn copy_block(block: &Block, stream: CUstream) -> Result<(), Error> {
    if block.rows > 1 {
        let copy = memcpy_2d(block);
        // SAFETY: the caller's promise.
        match unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream) } {
            // A driver may refuse a pitch that it did not choose: row by row then.
            CUresult::CUDA_ERROR_INVALID_VALUE => {}
            result => return check("cuMemcpy2DAsync", result),
        }
    }
    for CopyRun { from, to, bytes } in block.runs() {
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream) };
        check("cuMemcpyDtoDAsync", result)?;
    }
    Ok(())
}

fn memcpy_2d(block: &Block) -> CUDA_MEMCPY2D {
    let (CopyRun { from, to, bytes }, [of_from, of_to]) = (block.first, block.pitch);
    CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: std::ptr::null_mut(),
        srcPitch: of_from as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: to,
        dstArray: std::ptr::null_mut(),
        dstPitch: of_to as usize,
        WidthInBytes: bytes as usize,
        Height: block.rows as usize,
    }
}
