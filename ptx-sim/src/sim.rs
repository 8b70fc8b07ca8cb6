//! A simulator for tests: typed buffers, arguments by value, several launches on one memory.
//!
//! ```
//! use ptx_sim::{Sim, args};
//!
//! let mut sim = Sim::new(
//!     ".version 7.0
//!      .target sm_80
//!      .address_size 64
//!      .visible .entry scale(.param .u64 data, .param .u32 factor) {
//!          .reg .b32 %r<4>;
//!          .reg .b64 %d<3>;
//!          ld.param.u64 %d0, [data];
//!          ld.param.u32 %r0, [factor];
//!          mov.u32 %r1, %tid.x;
//!          mul.wide.u32 %d1, %r1, 4;
//!          add.s64 %d2, %d0, %d1;
//!          ld.global.u32 %r2, [%d2];
//!          mul.lo.u32 %r3, %r2, %r0;
//!          st.global.u32 [%d2], %r3;
//!          ret;
//!      }",
//! )?;
//! let data = sim.buffer(&[1u32, 2, 3, 4]);
//! sim.launch("scale", 1, 4, args!(&data, 3u32))?;
//! assert_eq!(sim.read(&data)?, [3, 6, 9, 12]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::marker::PhantomData;

use crate::config::{LaunchConfig, Output};
use crate::error::{LoadError, MemoryError, SimError};
use crate::launch::launch;
use crate::memory::Memory;
use crate::module::Module;
use crate::report::Report;
use crate::tensor_map::TensorMap;

/// A plain number that buffers and arguments are made of.
pub trait Element: Copy + Default {
    /// Bytes of one.
    const BYTES: usize;
    /// Its bytes, lowest first.
    fn put(self, out: &mut Vec<u8>);
    /// From its bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($ty:ty)*) => {$(
        impl Element for $ty {
            const BYTES: usize = size_of::<$ty>();
            fn put(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$ty>()];
                own.copy_from_slice(&bytes[..size_of::<$ty>()]);
                <$ty>::from_le_bytes(own)
            }
        }
    )*};
}

elements!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// A buffer in the simulated device's memory.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<T> {
    address: u64,
    length: usize,
    element: PhantomData<T>,
}

impl<T> Buffer<T> {
    /// Its address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// What a kernel can be given as a parameter.
pub trait Argument {
    /// The parameter's bytes.
    fn bytes(&self) -> Vec<u8>;
}

impl<T: Element> Argument for T {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }
}

impl<T> Argument for &Buffer<T> {
    fn bytes(&self) -> Vec<u8> {
        self.address.to_le_bytes().to_vec()
    }
}

impl<T> Argument for &mut Buffer<T> {
    fn bytes(&self) -> Vec<u8> {
        self.address.to_le_bytes().to_vec()
    }
}

impl Argument for &TensorMap {
    fn bytes(&self) -> Vec<u8> {
        self.to_bytes().to_vec()
    }
}

/// A struct that is passed by value, as its bytes.
impl Argument for &[u8] {
    fn bytes(&self) -> Vec<u8> {
        self.to_vec()
    }
}

/// The arguments of a launch: numbers, buffers, tensor maps, bytes of structs.
#[macro_export]
macro_rules! args {
    ($($argument:expr),* $(,)?) => {
        &[$($crate::Argument::bytes(&$argument)),*]
    };
}

/// Threads or CTAs in x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim(pub [u32; 3]);

impl From<u32> for Dim {
    fn from(x: u32) -> Self {
        Dim([x, 1, 1])
    }
}

impl From<[u32; 2]> for Dim {
    fn from([x, y]: [u32; 2]) -> Self {
        Dim([x, y, 1])
    }
}

impl From<[u32; 3]> for Dim {
    fn from(all: [u32; 3]) -> Self {
        Dim(all)
    }
}

/// A module and the memory that its kernels work on. Limits are those of the module's `.target`.
#[derive(Debug)]
pub struct Sim {
    module: Module,
    /// The device's memory.
    pub memory: Memory,
    /// What every launch has but its sizes: checks, schedule, dynamic shared memory, cluster.
    pub config: LaunchConfig,
    output: Output,
}

impl Sim {
    /// Loads PTX text. An entry that cannot be simulated is refused when it is launched.
    ///
    /// # Errors
    /// [`LoadError`] for text that is no PTX.
    pub fn new(ptx: &str) -> Result<Sim, LoadError> {
        let module = Module::parse_lazily(ptx)?;
        let output = Output::new();
        let config = LaunchConfig {
            limits: module.limits(),
            output: Some(output.clone()),
            ..LaunchConfig::new([1; 3], [1; 3])
        };
        Ok(Sim { module, memory: Memory::new(), config, output })
    }

    /// The same, whose reports say what of the code a launch has not tested ([`Report::untested`]), which takes a twelfth more time.
    pub fn with_coverage(mut self) -> Sim {
        self.config.coverage = true;
        self
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// What kernels have printed so far.
    pub fn printed(&self) -> String {
        self.output.text()
    }

    /// A buffer that holds these elements.
    pub fn buffer<T: Element>(&mut self, elements: &[T]) -> Buffer<T> {
        let buffer = self.unwritten(elements.len());
        let mut bytes = Vec::with_capacity(T::BYTES * elements.len());
        elements.iter().for_each(|e| e.put(&mut bytes));
        // The allocation was made above with this very size.
        let written = self.memory.write(buffer.address, &bytes);
        assert!(written.is_ok());
        buffer
    }

    /// A buffer of zeros.
    pub fn zeros<T: Element>(&mut self, length: usize) -> Buffer<T> {
        self.buffer(&vec![T::default(); length])
    }

    /// A buffer that nobody has written: a kernel that depends on what it holds is at fault.
    pub fn unwritten<T: Element>(&mut self, length: usize) -> Buffer<T> {
        Buffer { address: self.memory.alloc(T::BYTES * length), length, element: PhantomData }
    }

    /// The elements of a buffer.
    ///
    /// # Errors
    /// [`MemoryError`] if the buffer is not of this simulator.
    pub fn read<T: Element>(&self, buffer: &Buffer<T>) -> Result<Vec<T>, MemoryError> {
        let mut bytes = vec![0; T::BYTES * buffer.length];
        self.memory.read(buffer.address, &mut bytes)?;
        Ok(bytes.chunks_exact(T::BYTES).map(T::get).collect())
    }

    /// Writes a buffer anew.
    ///
    /// # Errors
    /// [`MemoryError`] if there are more elements than the buffer has.
    pub fn write<T: Element>(&mut self, buffer: &Buffer<T>, elements: &[T]) -> Result<(), MemoryError> {
        let mut bytes = Vec::with_capacity(T::BYTES * elements.len());
        elements.iter().for_each(|e| e.put(&mut bytes));
        self.memory.write(buffer.address, &bytes)
    }

    /// Runs a kernel; [`args!`](crate::args) makes the arguments.
    ///
    /// # Errors
    /// [`SimError::Finding`] if the kernel breaks a rule; another [`SimError`] if the launch itself is wrong.
    pub fn launch(
        &mut self,
        entry: &str,
        grid: impl Into<Dim>,
        block: impl Into<Dim>,
        arguments: &[Vec<u8>],
    ) -> Result<Report, SimError> {
        let found =
            self.module.entry(entry).ok_or_else(|| SimError::UnknownEntry { name: entry.to_owned() })?;
        let mut params = vec![0; found.param_bytes()];
        let wrong = |got| SimError::ParamSize { entry: entry.to_owned(), expected: found.param_bytes(), got };
        if arguments.len() != found.params().len() {
            return Err(wrong(arguments.iter().map(Vec::len).sum()));
        }
        for (param, argument) in found.params().iter().zip(arguments) {
            if argument.len() != param.bytes as usize {
                return Err(wrong(arguments.iter().map(Vec::len).sum()));
            }
            params[param.offset as usize..][..argument.len()].copy_from_slice(argument);
        }
        let config = LaunchConfig { grid: grid.into().0, block: block.into().0, ..self.config.clone() };
        launch(&self.module, entry, &params, &mut self.memory, &config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_their_bytes_and_must_fit() {
        let ptx = ".version 7.0\n.target sm_80\n.address_size 64\n.entry k(.param .u32 a, .param .u64 b) { ret; }\n\
                   .entry bad() { tcgen05.fence; ret; }";
        let mut sim = Sim::new(ptx).unwrap();
        let buffer = sim.zeros::<f32>(3);
        assert!(sim.launch("k", 1, 32, args!(1u32, &buffer)).is_ok());
        assert!(matches!(sim.launch("k", 1, 32, args!(1u64, &buffer)), Err(SimError::ParamSize { .. })));
        assert!(matches!(sim.launch("k", 1, 32, args!(1u32)), Err(SimError::ParamSize { .. })));
        // What cannot be simulated is refused only where it is wanted.
        assert!(matches!(sim.launch("bad", 1, 32, args!()), Err(SimError::Load(_))));
        assert_eq!(sim.read(&buffer).unwrap(), [0.0; 3]);
    }
}
