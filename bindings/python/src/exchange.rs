//! PyTorch's tensors through DLPack's C exchange API: shape, strides, address and stream without a call of Python.
//!
//! The structs are DLPack 1.3's (dlpack.h, `DLPackExchangeAPI`). Nothing is linked: the type `torch.Tensor` has the table of functions.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{c_int, c_void};

/// The one version of the structs that is known here.
const MAJOR: u32 = 1;
const KIND_CUDA: i32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

/// A tensor as DLPack describes it.
#[repr(C)]
pub(crate) struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLPackExchangeAPI`; functions that are not called here are addresses.
#[repr(C)]
struct Table {
    version: Version,
    previous: *const c_void,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

/// The functions of one type of tensors.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    tensor_from_object: unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int,
    current_stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

impl Exchange {
    /// The functions in the capsule `__dlpack_c_exchange_api__` of a type; `None` where they are of another version.
    pub(crate) fn new(capsule: &Bound<'_, PyCapsule>) -> PyResult<Option<Exchange>> {
        let pointer = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?;
        // SAFETY: a capsule of this name holds the table, which lasts as long as the type's module. The header is the same in all versions.
        let table = unsafe { &*pointer.as_ptr().cast::<Table>() };
        if table.version.major != MAJOR {
            return Ok(None);
        }
        let functions = table.tensor_from_object.zip(table.current_stream);
        Ok(functions
            .map(|(tensor_from_object, current_stream)| Exchange { tensor_from_object, current_stream }))
    }

    /// Describes a tensor, which must be of the functions' type.
    ///
    /// # Safety
    /// The object is of that type. What the result points to is read while the object lives and nothing of Python runs.
    pub(crate) unsafe fn describe(&self, tensor: &Bound<'_, PyAny>) -> PyResult<DlTensor> {
        let mut described = DlTensor {
            data: std::ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            dimensions: 0,
            code: 0,
            bits: 0,
            lanes: 0,
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        // SAFETY: the caller's promise; the function fills the struct.
        match unsafe { (self.tensor_from_object)(tensor.as_ptr().cast(), &mut described) } {
            0 => Ok(described),
            _ => Err(raised(tensor.py())),
        }
    }

    /// The stream that the framework works on now; 0 on the CPU.
    pub(crate) fn stream(&self, py: Python<'_>, tensor: &DlTensor) -> PyResult<u64> {
        if tensor.device_type != KIND_CUDA {
            return Ok(0);
        }
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one stream where it is told to.
        match unsafe { (self.current_stream)(tensor.device_type, tensor.device_id, &mut stream) } {
            0 => Ok(stream as u64),
            _ => Err(raised(py)),
        }
    }
}

impl DlTensor {
    /// Address of the first element.
    pub(crate) fn address(&self) -> u64 {
        self.data as u64 + self.byte_offset
    }

    /// Sizes of its dimensions.
    pub(crate) fn shape(&self) -> &[i64] {
        // SAFETY: as `DlTensor::list` asks.
        unsafe { self.list(self.shape) }
    }

    fn strides(&self) -> &[i64] {
        // SAFETY: as `DlTensor::list` asks.
        unsafe { self.list(self.strides) }
    }

    /// # Safety
    /// It is the tensor's shape or its strides: DLPack has as many numbers of each as there are dimensions, and the tensor lives
    /// ([`Exchange::describe`]).
    unsafe fn list(&self, numbers: *const i64) -> &[i64] {
        let dimensions = usize::try_from(self.dimensions).unwrap_or(0);
        if numbers.is_null() || dimensions == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(numbers, dimensions) }
    }

    /// Bits of an element.
    pub(crate) fn element_bits(&self) -> u8 {
        self.bits
    }

    /// Whether it lies without gaps, its last dimension innermost; strides of dimensions of size 1 tell nothing.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape().iter().zip(self.strides()).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
    }

    /// All but the address, as numbers; the first says how many there are. With `swapped`, as if the second dimension were the third. `false` where they
    /// do not fit.
    pub(crate) fn write_kind(&self, into: &mut Numbers, swapped: bool) -> bool {
        let (shape, strides) = (self.shape(), self.strides());
        if self.dimensions < 0 || shape.len() > 8 || strides.len() != shape.len() {
            return false;
        }
        let element = i64::from(self.code) << 32 | i64::from(self.bits) << 16 | i64::from(self.lanes);
        into.push(element << 8 | i64::from(self.dimensions))
            && into.push(i64::from(self.device_type) << 32 | i64::from(self.device_id))
            && [shape, strides].into_iter().all(|numbers| match *numbers {
                [first, second, third, fourth] if swapped => {
                    [first, third, second, fourth].into_iter().all(|number| into.push(number))
                }
                _ => !swapped && numbers.iter().all(|&number| into.push(number)),
            })
    }
}

fn raised(py: Python<'_>) -> PyErr {
    PyErr::take(py).unwrap_or_else(|| PyValueError::new_err("the tensor cannot be described"))
}

/// A few numbers without an allocation.
pub(crate) struct Numbers {
    numbers: [i64; Numbers::MAX],
    length: usize,
}

impl Numbers {
    const MAX: usize = 160;

    pub(crate) fn new() -> Numbers {
        Numbers { numbers: [0; Numbers::MAX], length: 0 }
    }

    /// Adds one; `false` where there is no room.
    pub(crate) fn push(&mut self, number: i64) -> bool {
        let Some(place) = self.numbers.get_mut(self.length) else { return false };
        *place = number;
        self.length += 1;
        true
    }

    pub(crate) fn as_slice(&self) -> &[i64] {
        &self.numbers[..self.length]
    }
}
