//! Streams, events and graphs. All work is done when its call returns; only a capturing stream keeps it, and one whose flag was not set in time.

use crate::context::{count_living, current_context, needs_context};
use crate::launch::Launch;
use crate::memory::Copy;
use crate::peers::Flag;
use crate::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_NOT_READY,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CuResult, call, complain, faults,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a stream is waited for: a device would wait for ever.
const SYNCHRONIZING: Duration = Duration::from_secs(20);

/// A stream; the null stream is no such thing.
pub(crate) struct Stream {
    /// The context that was current when it was made.
    context: u64,
    /// What its work is captured into, while a capture is under way that began here, or that an event drew it into.
    captured: Mutex<Option<Capture>>,
    held: Arc<Held>,
}

/// Work behind a flag that was not set in time, which goes on whenever somebody asks about it.
#[derive(Default)]
struct Held {
    queue: Mutex<VecDeque<Work>>,
    added: AtomicU64,
    done: AtomicU64,
}

/// A place in a stream's held work, behind the first `count` pieces that were ever held.
#[derive(Clone)]
pub(crate) struct Behind {
    held: Arc<Held>,
    count: u64,
}

/// What is done on a stream.
#[derive(Clone)]
pub(crate) enum Work {
    Launch(Launch),
    Copy(Copy),
    Flag(Flag),
    After(Behind),
}

type Graph = Vec<Work>;

/// A capture under way; none any more once it has ended.
type Capture = Arc<Mutex<Option<Graph>>>;

/// A point in time, once recorded, and the capture that it was recorded in.
#[derive(Default)]
struct Event {
    time: Mutex<Option<Instant>>,
    capture: Mutex<Option<Capture>>,
    behind: Mutex<Option<Behind>>,
}

impl Held {
    fn hold(&self, work: Work) {
        lock(&self.queue).push_back(work);
        self.added.fetch_add(1, Ordering::Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.advance();
        self.done.load(Ordering::Relaxed) == self.added.load(Ordering::Relaxed)
    }

    fn advance(&self) {
        let mut queue = match self.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is being advanced, and has come to work that waits for this.
            Err(TryLockError::WouldBlock) => return,
        };
        while let Some(work) = queue.front() {
            // SAFETY: as when it was submitted.
            match unsafe { work.run(Duration::ZERO) } {
                Ok(()) => {}
                Err(CUDA_ERROR_NOT_READY) => break,
                Err(error) => complain(&format!("held work failed with error {error}")),
            }
            queue.pop_front();
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Behind {
    fn is_over(&self) -> bool {
        self.held.advance();
        self.held.done.load(Ordering::Relaxed) >= self.count
    }
}

impl Work {
    /// # Safety
    /// Nobody else uses its memory.
    unsafe fn run(&self, patience: Duration) -> Result<(), CuResult> {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Work::After(behind) if behind.is_over() => Ok(()),
                Work::After(_) => Err(CUDA_ERROR_NOT_READY),
                Work::Launch(launch) => launch.run(),
                Work::Copy(copy) => copy.run(),
                Work::Flag(flag) => flag.run(patience),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    /// The capture that this stream is part of.
    fn capture(&self) -> Option<Capture> {
        let mut captured = lock(&self.captured);
        if captured.as_ref().is_some_and(|capture| lock(capture).is_none()) {
            *captured = None;
        }
        captured.clone()
    }

    /// What is held on it now, if anything is.
    fn behind(&self) -> Option<Behind> {
        let count = self.held.added.load(Ordering::Relaxed);
        (!self.held.is_empty()).then(|| Behind { held: self.held.clone(), count })
    }
}

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

/// Does work, or keeps it where its stream captures, or waits for a flag.
///
/// # Safety
/// The stream lives, or is null; the rest as for [`Work::run`].
pub(crate) unsafe fn submit(work: Work, stream: *const Stream) -> Result<(), CuResult> {
    // SAFETY: the caller's.
    unsafe {
        if let Some(capture) = stream.as_ref().and_then(Stream::capture)
            && let Some(graph) = lock(&capture).as_mut()
        {
            graph.push(work);
            return Ok(());
        }
        let Some(stream) = stream.as_ref() else {
            return work.run(faults::patience()).map_err(|error| match error {
                CUDA_ERROR_NOT_READY => CUDA_ERROR_LAUNCH_TIMEOUT,
                error => error,
            });
        };
        let is_first = stream.held.is_empty();
        match if is_first { work.run(faults::patience()) } else { Err(CUDA_ERROR_NOT_READY) } {
            Err(CUDA_ERROR_NOT_READY) => {
                stream.held.hold(work);
                Ok(())
            }
            done => done,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut *mut Stream, _: u32, _: i32) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, `stream` is valid for a write.
        unsafe {
            stream.write(make(Stream {
                context: current_context(),
                captured: Mutex::new(None),
                held: Arc::default(),
            }))
        };
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
            status.write(stream.as_ref().is_some_and(|stream| stream.capture().is_some()).into());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(stream: *const Stream) -> CuResult {
    call(|| {
        needs_context()?;
        let until = Instant::now() + SYNCHRONIZING;
        // SAFETY: by the call's contract, the stream lives, or is null.
        while unsafe { stream.as_ref() }.is_some_and(|stream| !stream.held.is_empty()) {
            if Instant::now() >= until {
                complain("a stream waits for a flag that nobody sets");
                return Err(CUDA_ERROR_LAUNCH_TIMEOUT);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2(stream: *const Stream, _: i32) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the stream lives.
        let stream = unsafe { stream.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if stream.capture().is_some() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        *lock(&stream.captured) = Some(Arc::new(Mutex::new(Some(Vec::new()))));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: *const Stream, graph: *mut *mut Graph) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the stream lives.
        let stream = unsafe { stream.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let capture = stream.capture().ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
        let launches = lock(&capture).take().ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
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
unsafe extern "C" fn cuGraphLaunch(exec: *const Graph, stream: *const Stream) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the graph lives, and so does what its launches use.
        unsafe { (*exec).iter().try_for_each(|work| submit(work.clone(), stream)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut Event, _: u32) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, `event` is valid for a write.
        unsafe { event.write(make(Event::default())) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: *mut Event) -> CuResult {
    // SAFETY: the call's contract.
    unsafe { destroy(event) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: *const Event, stream: *const Stream) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the event lives, and so does the stream, or is null.
        let (event, stream) = unsafe { (&*event, stream.as_ref()) };
        *lock(&event.capture) = stream.and_then(Stream::capture);
        *lock(&event.behind) = stream.and_then(Stream::behind);
        *lock(&event.time) = Some(Instant::now());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(stream: *const Stream, event: *const Event, flags: u32) -> CuResult {
    call(|| {
        needs_context()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the call's contract, the event lives.
        let event = unsafe { &*event };
        let capture = lock(&event.capture).clone().filter(|capture| lock(capture).is_some());
        let behind = lock(&event.behind).clone().filter(|behind| !behind.is_over());
        // SAFETY: by the call's contract, the stream lives, or is null.
        match (capture, unsafe { stream.as_ref() }) {
            (None, _) => match behind {
                // SAFETY: as above.
                Some(behind) => unsafe { submit(Work::After(behind), stream) },
                None => Ok(()),
            },
            (Some(capture), Some(stream)) => {
                let own = stream.capture();
                if own.is_some_and(|own| !Arc::ptr_eq(&own, &capture)) {
                    return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
                }
                *lock(&stream.captured) = Some(capture);
                Ok(())
            }
            (Some(_), None) => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: *const Event) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the event lives.
        let behind = lock(unsafe { &(*event).behind }).clone();
        if behind.is_none_or(|behind| behind.is_over()) { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
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
            let time = unsafe { lock(&(*event).time) };
            time.ok_or(CUDA_ERROR_INVALID_VALUE)
        };
        let elapsed = time(end)?.saturating_duration_since(time(start)?);
        // SAFETY: by the call's contract, `milliseconds` is valid for a write.
        unsafe { milliseconds.write(elapsed.as_secs_f32() * 1e3) };
        Ok(())
    })
}
