//! Streams, events and graphs. All work is done when its call returns; only a capturing stream keeps it.

use crate::context::{count_living, current_context, needs_context};
use crate::launch::Launch;
use crate::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CuResult, call};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A stream; the null stream is no such thing.
pub(crate) struct Stream {
    /// The context that was current when it was made.
    context: u64,
    /// The launches captured so far, while a capture is under way.
    captured: Mutex<Option<Vec<Launch>>>,
}

type Graph = Vec<Launch>;

/// A point in time, once recorded.
struct Event(Mutex<Option<Instant>>);

/// A new object as its raw handle.
fn make<T>(object: T) -> *mut T {
    count_living(1);
    Box::into_raw(Box::new(object))
}

/// # Safety
/// The handle came from [`make`] and is destroyed once.
unsafe fn destroy<T>(handle: *mut T) -> CuResult {
    count_living(-1);
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(handle) });
    0
}

/// Runs a launch, or keeps it where its stream captures.
///
/// # Safety
/// The stream lives, or is null; the rest as for [`Launch::run`].
pub(crate) unsafe fn submit(launch: Launch, stream: *const Stream) -> Result<(), CuResult> {
    // SAFETY: the caller's.
    unsafe {
        if let Some(stream) = stream.as_ref() {
            let mut captured = stream.captured.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(captured) = captured.as_mut() {
                captured.push(launch);
                return Ok(());
            }
        }
        launch.run()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut *mut Stream, _: u32, _: i32) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, `stream` is valid for a write.
        unsafe { stream.write(make(Stream { context: current_context(), captured: Mutex::new(None) })) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut Stream) -> CuResult {
    // SAFETY: the call's contract.
    unsafe { destroy(stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCtx(stream: *const Stream, context: *mut u64) -> CuResult {
    call(|| {
        // SAFETY: by the call's contract, the stream lives and `context` is valid for a write.
        unsafe { context.write(stream.as_ref().map_or_else(current_context, |stream| stream.context)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: *const Stream, status: *mut i32) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the stream lives and `status` is valid for a write.
        unsafe {
            let is_capturing =
                |stream: &Stream| stream.captured.lock().unwrap_or_else(PoisonError::into_inner).is_some();
            status.write(stream.as_ref().is_some_and(is_capturing).into());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(_: *const Stream) -> CuResult {
    call(needs_context)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2(stream: *const Stream, _: i32) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the stream lives.
        let stream = unsafe { stream.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut captured = stream.captured.lock().unwrap_or_else(PoisonError::into_inner);
        match captured.replace(Vec::new()) {
            None => Ok(()),
            Some(_) => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: *const Stream, graph: *mut *mut Graph) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the stream lives.
        let stream = unsafe { stream.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let captured = stream.captured.lock().unwrap_or_else(PoisonError::into_inner).take();
        let launches = captured.ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
        // SAFETY: by the call's contract, `graph` is valid for a write.
        unsafe { graph.write(make(launches)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut *mut Graph,
    graph: *const Graph,
    _: u64,
) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the graph lives and `exec` is valid for a write.
        unsafe { exec.write(make((*graph).clone())) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(graph: *mut Graph) -> CuResult {
    // SAFETY: the call's contract.
    unsafe { destroy(graph) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(exec: *mut Graph) -> CuResult {
    // SAFETY: the call's contract.
    unsafe { destroy(exec) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphLaunch(exec: *const Graph, _: *const Stream) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the graph lives, and so does what its launches use.
        unsafe { (*exec).iter().try_for_each(|launch| launch.run()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut Event, _: u32) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, `event` is valid for a write.
        unsafe { event.write(make(Event(Mutex::new(None)))) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: *mut Event) -> CuResult {
    // SAFETY: the call's contract.
    unsafe { destroy(event) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: *const Event, _: *const Stream) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the event lives.
        let mut time = unsafe { (*event).0.lock().unwrap_or_else(PoisonError::into_inner) };
        *time = Some(Instant::now());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: *const Event,
    end: *const Event,
) -> CuResult {
    call(|| {
        let time = |event: *const Event| {
            // SAFETY: by the call's contract, the event lives.
            let time = unsafe { (*event).0.lock().unwrap_or_else(PoisonError::into_inner) };
            time.ok_or(CUDA_ERROR_INVALID_VALUE)
        };
        let elapsed = time(end)?.saturating_duration_since(time(start)?);
        // SAFETY: by the call's contract, `milliseconds` is valid for a write.
        unsafe { milliseconds.write(elapsed.as_secs_f32() * 1e3) };
        Ok(())
    })
}
