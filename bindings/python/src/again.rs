//! Calls that were made before: one of the same shapes, strides, types and options is started without checking and planning it again.
//!
//! What a call is, is decided by the general path, once; here only addresses change. A call that is not known is left to that path.

use crate::exchange::{Exchange, Numbers};
use crate::{Args, Device, raised};
use ferroflash_call::{Call, Engine, Kept};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

/// The most calls kept; with one more, all are let go.
const CALLS_MAX: usize = 4096;
/// The tensors of a call, in the order of [`set_addresses`].
const TENSORS: usize = 15;
/// The scale, causal, left, right, softcap, the longest sequences of queries and of keys, keys of a chunk and of a tree, and whether
/// gradients will be asked for.
type Options = (Option<f64>, bool, Option<i64>, Option<i64>, f64, i64, i64, i64, i64, bool);

/// The calls that were made on tensors of one type.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Calls {
    exchange: Exchange,
    kept: RwLock<KeptCalls>,
}

/// By what tells a call from others.
type KeptCalls = HashMap<Box<[i64]>, Arc<KeptCall>, BuildHasherDefault<Mix>>;

struct KeptCall {
    engine: Arc<Engine>,
    kept: Kept,
}

#[pymethods]
impl Calls {
    /// The calls on tensors of the type that has this `__dlpack_c_exchange_api__`.
    #[new]
    fn new(capsule: &Bound<'_, PyCapsule>) -> PyResult<Option<Calls>> {
        Ok(Exchange::new(capsule)?.map(|exchange| Calls { exchange, kept: RwLock::default() }))
    }

    /// Keeps a call, which was made by [`Device::forward`] with these arguments.
    fn keep(
        &self,
        device: &Device,
        args: Args,
        tensors: &Bound<'_, PyTuple>,
        options: Options,
    ) -> PyResult<()> {
        let Some(described) = self.describe(tensors, options)? else { return Ok(()) };
        let Device(engine) = device;
        let kept = engine.keep(&args.call()?).map_err(raised)?;
        let mut calls = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= CALLS_MAX {
            calls.clear();
        }
        calls.insert(described.key.as_slice().into(), Arc::new(KeptCall { engine: engine.clone(), kept }));
        Ok(())
    }

    /// Starts a call whose like is kept. `false` where none is, or where its stream has no workspace yet.
    fn start(&self, py: Python<'_>, tensors: &Bound<'_, PyTuple>, options: Options) -> PyResult<bool> {
        let Some(described) = self.describe(tensors, options)? else { return Ok(false) };
        let calls = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let Some(call) = calls.get(described.key.as_slice()).cloned() else { return Ok(false) };
        drop(calls);
        let KeptCall { engine, kept } = call.as_ref();
        let stream = described.stream;
        // SAFETY: as for `Device::forward`: Python's tuple holds the tensors. They are as large as those of the call that was kept.
        let start =
            || unsafe { engine.repeat(kept, |call| set_addresses(call, &described.addresses), stream) };
        // A launch waits for nothing; loops on the CPU let other threads run.
        let started = if engine.is_gpu() { start() } else { py.detach(start) };
        started.map_err(raised)
    }

    /// Forgets all calls, as another device computes them from now on.
    fn forget(&self) {
        self.kept.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

struct Described {
    key: Numbers,
    addresses: [u64; TENSORS],
    stream: u64,
}

impl Calls {
    /// What tells a call from others, and the addresses of its tensors; `None` where a tensor is of another type than Q.
    fn describe(&self, tensors: &Bound<'_, PyTuple>, options: Options) -> PyResult<Option<Described>> {
        let mut described = Described { key: Numbers::new(), addresses: [0; TENSORS], stream: 0 };
        let mut fits = true;
        let mut given = 0;
        for (index, address) in described.addresses.iter_mut().enumerate() {
            let tensor = tensors.get_borrowed_item(index)?;
            if tensor.is_none() {
                continue;
            }
            given |= 1 << index;
            // SAFETY: two objects of the tuple, which holds them.
            let same = unsafe {
                let q = pyo3::ffi::PyTuple_GetItem(tensors.as_ptr(), 0);
                pyo3::ffi::Py_TYPE(q) == pyo3::ffi::Py_TYPE(tensor.as_ptr())
            };
            if !same {
                return Ok(None);
            }
            // SAFETY: Q is of the type (`_again.py`), so this is; it is read at once.
            let Ok(found) = (unsafe { self.exchange.describe(&tensor) }) else {
                // The general path says what is wrong with it.
                return Ok(None);
            };
            *address = found.address();
            // Of memory that was freed; the general path says so.
            fits &= *address != 0;
            fits &= found.write_kind(&mut described.key);
            if index == 0 {
                described.stream = self.exchange.stream(tensors.py(), &found)?;
            }
        }
        let (scale, causal, left, right, softcap, longest_q, longest_k, chunk, tree, gradients) = options;
        let scale = scale.map_or(i64::MIN, |scale| scale.to_bits() as i64);
        let (left, right) = (left.unwrap_or(-1), right.unwrap_or(-1));
        let softcap = softcap.to_bits() as i64;
        let numbers = [
            given,
            scale,
            i64::from(causal),
            left,
            right,
            softcap,
            longest_q,
            longest_k,
            chunk,
            tree,
            i64::from(gradients),
        ];
        fits &= numbers.into_iter().all(|number| described.key.push(number));
        Ok(fits.then_some(described))
    }
}

/// Puts addresses in the places of those of the call that was kept: q, k, v, o, lse, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k,
/// used_k, entry_k, block_table, tree, intervals, bias.
fn set_addresses(call: &mut Call, addresses: &[u64; TENSORS]) {
    let [
        q,
        k,
        v,
        o,
        lse,
        slopes,
        sinks,
        cumulative_q,
        cumulative_k,
        used_k,
        entry_k,
        table,
        tree,
        intervals,
        bias,
    ] = *addresses;
    (call.q.address, call.k.address, call.v.address, call.o.address) = (q, k, v, o);
    let optional = [
        (&mut call.lse, lse),
        (&mut call.sinks, sinks),
        (&mut call.lengths.cumulative_q, cumulative_q),
        (&mut call.lengths.cumulative_k, cumulative_k),
        (&mut call.lengths.used_k, used_k),
        (&mut call.lengths.entry_k, entry_k),
        (&mut call.intervals, intervals),
    ];
    for (place, address) in optional {
        *place = place.map(|_| address);
    }
    if let Some(alibi) = &mut call.alibi {
        alibi.slopes = slopes;
    }
    if let Some(pages) = &mut call.pages {
        pages.table = table;
    }
    if let Some(given) = &mut call.bias {
        given.values = bias;
    }
    if let Some(mask) = &mut call.tree {
        mask.bits = tree;
    }
}

/// A hash of 64-bit numbers: each is multiplied into the state. Keys are the process's own, so that nobody can choose ones that collide.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        // A map takes the high bits and the low ones.
        self.0 ^ self.0 >> 32
    }
}
