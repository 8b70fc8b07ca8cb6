//! A fake CUDA driver: the calls that the host makes, on the CPU, so that the whole path to a device and back runs without a GPU.
//!
//! Named in `FERROFLASH_LIBCUDA` it takes libcuda's place. A launch computes attention from the parameter block in float64, by
//! code of its own. It runs no PTX: what it shows is that the host is right, never that a kernel is. Its device says so
//! in its name, so that no result can pass for a GPU's.
//!
//! It is stricter than a driver: a call without a current context, a launch with other threads or shared memory than the
//! row's, a divisor that does not divide, an address outside an allocation are errors, and what a program leaves behind is
//! reported on stderr when its context goes. The module `faults` lists the faults that it has on demand.
#![allow(non_snake_case)]

mod attention;
mod context;
mod copy;
mod faults;
mod launch;
mod memory;
mod merge;
mod module;
mod peers;
mod stream;
mod tensor_map;

/// A call's result as the driver's functions return it.
type CuResult = i32;

const CUDA_SUCCESS: CuResult = 0;
const CUDA_ERROR_INVALID_VALUE: CuResult = 1;
const CUDA_ERROR_OUT_OF_MEMORY: CuResult = 2;
const CUDA_ERROR_NOT_INITIALIZED: CuResult = 3;
const CUDA_ERROR_NO_DEVICE: CuResult = 100;
const CUDA_ERROR_INVALID_DEVICE: CuResult = 101;
const CUDA_ERROR_NOT_SUPPORTED: CuResult = 801;
const CUDA_ERROR_LAUNCH_TIMEOUT: CuResult = 702;
const CUDA_ERROR_INVALID_CONTEXT: CuResult = 201;
const CUDA_ERROR_NO_BINARY_FOR_GPU: CuResult = 209;
const CUDA_ERROR_INVALID_PTX: CuResult = 218;
const CUDA_ERROR_UNSUPPORTED_PTX_VERSION: CuResult = 222;
const CUDA_ERROR_NOT_FOUND: CuResult = 500;
const CUDA_ERROR_NOT_READY: CuResult = 600;
const CUDA_ERROR_ILLEGAL_ADDRESS: CuResult = 700;
const CUDA_ERROR_MISALIGNED_ADDRESS: CuResult = 716;
const CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: CuResult = 901;

/// Turns a call's body into the number that it returns.
fn call(body: impl FnOnce() -> Result<(), CuResult>) -> CuResult {
    match body() {
        Ok(()) => CUDA_SUCCESS,
        Err(error) => error,
    }
}

/// Says why something was refused, for whoever reads the test's output.
fn complain(reason: &str) {
    eprintln!("fake driver: {reason}");
}
