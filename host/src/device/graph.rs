//! CUDA graphs of launches, replayed between timing events: device time without the host's part.

use super::cuda::CudaDevice;
use super::driver::{check, cust_error};
use super::{Buffer, Device, StreamHandle};
use crate::error::Error;
use cust::event::{Event, EventFlags};
use cust::stream::{Stream, StreamFlags};
use cust::sys::{self, CUstreamCaptureMode};
use std::sync::Arc;

/// A stream of its own on which launches are captured, replayed and timed.
pub struct Timeline {
    // Before the device, so that it is destroyed first.
    stream: Stream,
    device: Arc<CudaDevice>,
}

/// Captured launches, in order, that one call starts.
pub struct Graph {
    exec: sys::CUgraphExec,
    device: Arc<CudaDevice>,
}

/// A point in a timeline.
pub struct Mark(Event);

impl Timeline {
    /// A new stream.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn new(device: &Arc<CudaDevice>) -> Result<Timeline, Error> {
        let _current = device.make_current()?;
        let stream = Stream::new(StreamFlags::DEFAULT, None).map_err(cust_error("cuStreamCreate"))?;
        Ok(Timeline { stream, device: device.clone() })
    }

    /// The stream, to launch on.
    pub fn stream(&self) -> StreamHandle {
        StreamHandle::from_raw(self.stream.as_inner().cast())
    }

    /// Captures what `launches` launches on this stream, without running it.
    ///
    /// # Errors
    /// Those of `launches`, [`Error::Cuda`].
    pub fn capture(&self, launches: impl FnOnce(StreamHandle) -> Result<(), Error>) -> Result<Graph, Error> {
        let _current = self.device.make_current()?;
        let stream = self.stream.as_inner();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as self and no capture is under way on it: every capture ends below.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })?;
        let launched = launches(self.stream());
        let mut graph = std::ptr::null_mut();
        // SAFETY: ends the capture begun above, whether or not the launches succeeded.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream, &mut graph) });
        if let Err(error) = ended {
            // A launch that failed is why.
            return Err(launched.err().unwrap_or(error));
        }
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was captured above; it is destroyed once, and its executable form does not need it.
        let instantiated = unsafe {
            let instantiated = launched.and_then(|()| {
                check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0))
            });
            let _ = sys::cuGraphDestroy(graph);
            instantiated
        };
        instantiated?;
        Ok(Graph { exec, device: self.device.clone() })
    }

    /// Starts a graph's launches.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// What every captured launch reads and writes is still allocated, until the replay ends.
    pub unsafe fn replay(&self, graph: &Graph) -> Result<(), Error> {
        let _current = self.device.make_current()?;
        // SAFETY: graph and stream live; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.exec, self.stream.as_inner()) })
    }

    /// Copies all of a buffer to the start of another.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where that one is shorter, [`Error::Cuda`].
    pub fn copy(&self, from: &Buffer<CudaDevice>, to: &Buffer<CudaDevice>) -> Result<(), Error> {
        if to.bytes() < from.bytes() {
            let [expected, got] = [from.bytes(), to.bytes()].map(|bytes| bytes as usize);
            return Err(Error::WrongLength { tensor: "a device buffer", expected, got });
        }
        let _current = self.device.make_current()?;
        // SAFETY: both hold as many bytes. A buffer that is dropped before the copy ends is freed after it: freeing waits.
        let result = unsafe {
            let stream = self.stream.as_inner();
            sys::cuMemcpyDtoDAsync_v2(to.address(), from.address(), from.bytes() as usize, stream)
        };
        check("cuMemcpyDtoDAsync", result)
    }

    /// A mark that is nowhere yet.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn mark(&self) -> Result<Mark, Error> {
        let _current = self.device.make_current()?;
        Ok(Mark(Event::new(EventFlags::DEFAULT).map_err(cust_error("cuEventCreate"))?))
    }

    /// Puts a mark here.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn set(&self, mark: &Mark) -> Result<(), Error> {
        let _current = self.device.make_current()?;
        mark.0.record(&self.stream).map_err(cust_error("cuEventRecord"))
    }

    /// Waits for all work of the stream.
    ///
    /// # Errors
    /// [`Error::Cuda`], also of earlier launches.
    pub fn finish(&self) -> Result<(), Error> {
        // SAFETY: the stream lives as long as self.
        unsafe { self.device.synchronize(self.stream()) }
    }
}

impl Mark {
    /// Microseconds from an earlier mark to this one, both reached.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn since_us(&self, earlier: &Mark) -> Result<f64, Error> {
        let milliseconds = self.0.elapsed_time_f32(&earlier.0).map_err(cust_error("cuEventElapsedTime"))?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(_current) = self.device.make_current() else { return };
        // SAFETY: instantiated once, destroyed once; the driver keeps what a running replay needs.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}
