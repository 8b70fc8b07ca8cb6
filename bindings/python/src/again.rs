//! Calls that were made before: one of the same shapes, strides, types and options is started without checking and planning it again.
//!
//! What a call is, is decided by the general path, once; here only addresses change. A call that is not known is left to that path.

use crate::exchange::{DlTensor, Exchange, Numbers};
use crate::torch::Torch;
use crate::{Args, Device, raised};
use ferroflash_call::{Call, Engine, Kept};
use foldhash::HashMap;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCapsule, PyFloat, PyInt, PyTuple};
use std::sync::{Arc, PoisonError, RwLock};

/// The most calls kept; with one more, all are let go.
const CALLS_MAX: usize = 4096;
/// The tensors that a call is given, in the order of [`set_addresses`].
const TENSORS: usize = 13;
/// Of these, the ones that have gradients or are negated when they are read: the slopes, the sinks and the bias, beside Q, K and V.
const OTHER_NUMBERS: [usize; 3] = [SLOPES, SINKS, BIAS];
const SLOPES: usize = 3;
const SINKS: usize = 4;
const BIAS: usize = 12;
/// The scale, causal, left, right, softcap, the longest sequences of queries and of keys, keys of a chunk and of a tree, splits of the keys,
/// whether gradients will be asked for, and whether LSE is wanted.
type Options = (Option<f64>, bool, Option<i64>, Option<i64>, f64, i64, i64, i64, i64, i64, bool, bool);
/// O, and LSE where it is wanted.
type Outputs<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);
/// A call's tensors, in the order of [`set_addresses`].
type Tensors<'a, 'py> = [Option<Borrowed<'a, 'py, PyAny>>; TENSORS];

/// The calls that were made on PyTorch's tensors.
#[pyclass(frozen, module = "ferroflash._native")]
pub(crate) struct Calls {
    torch: Torch,
    exchange: Exchange,
    kept: RwLock<KeptCalls>,
}

/// By what tells a call from others.
type KeptCalls = HashMap<Box<[i64]>, Arc<KeptCall>>;

struct KeptCall {
    engine: Arc<Engine>,
    kept: Kept,
}

#[pymethods]
impl Calls {
    /// The calls on tensors of the module `torch`, whose type of tensors has this `__dlpack_c_exchange_api__`.
    #[new]
    fn new(torch: &Bound<'_, PyAny>, capsule: &Bound<'_, PyCapsule>) -> PyResult<Option<Calls>> {
        let torch = Torch::new(torch)?;
        Ok(Exchange::new(capsule)?.map(|exchange| Calls { torch, exchange, kept: RwLock::default() }))
    }

    /// Keeps a call, which was made by [`Device::forward`] with these arguments and wrote these outputs.
    fn keep(
        &self,
        device: &Device,
        args: Args,
        tensors: &Bound<'_, PyTuple>,
        options: Options,
        outputs: Outputs<'_>,
    ) -> PyResult<()> {
        let py = tensors.py();
        let tensors = listed(tensors)?;
        if !self.are_plain(py, &tensors)? {
            return Ok(());
        }
        let Some(described) = self.describe(py, &tensors, options, Order::RowsFirst)? else {
            return Ok(());
        };
        let (o, lse) = outputs;
        // SAFETY: PyTorch's, as Q is.
        let o = unsafe { self.exchange.describe(&o)? };
        // SAFETY: as O.
        let lse = lse.map(|lse| unsafe { self.exchange.describe(&lse) }).transpose()?;
        if !described.shape().is_of(&o, lse.as_ref()) {
            return Ok(());
        }
        let Device(engine) = device;
        let kept = engine.keep(&args.call()?).map_err(raised)?;
        let mut calls = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= CALLS_MAX {
            calls.clear();
        }
        calls.insert(described.key.as_slice().into(), Arc::new(KeptCall { engine: engine.clone(), kept }));
        Ok(())
    }

    /// O and LSE of a call whose like is kept, which is started. `None` where none is, where more than addresses tells it from the one that is kept, or
    /// where its stream has no workspace yet.
    fn again<'py>(&self, tensors: &Bound<'py, PyTuple>, options: Options) -> PyResult<Option<Outputs<'py>>> {
        self.start(tensors.py(), &listed(tensors)?, options, Order::RowsFirst)
    }

    /// As `again`, of a function's arguments as its caller gave them: what is of a type that the general path would have to look at is left to it.
    #[expect(
        clippy::too_many_arguments,
        reason = "to pack them up would take Python as long as all that is asked here"
    )]
    #[pyo3(signature = (
        q, k, v, scale, causal, window, softcap, alibi_slopes, sinks, lse, used_k=None, entry_k=None, block_table=None, cu_seqlens_q=None,
        cu_seqlens_k=None, longest=(0, 0)
    ))]
    fn again_as_given<'py>(
        &self,
        q: &Bound<'py, PyAny>,
        k: &Bound<'py, PyAny>,
        v: &Bound<'py, PyAny>,
        scale: &Bound<'py, PyAny>,
        causal: &Bound<'py, PyAny>,
        window: &Bound<'py, PyAny>,
        softcap: &Bound<'py, PyAny>,
        alibi_slopes: Option<&Bound<'py, PyAny>>,
        sinks: Option<&Bound<'py, PyAny>>,
        lse: &Bound<'py, PyAny>,
        used_k: Option<&Bound<'py, PyAny>>,
        entry_k: Option<&Bound<'py, PyAny>>,
        block_table: Option<&Bound<'py, PyAny>>,
        cu_seqlens_q: Option<&Bound<'py, PyAny>>,
        cu_seqlens_k: Option<&Bound<'py, PyAny>>,
        longest: (i64, i64),
    ) -> PyResult<Option<Outputs<'py>>> {
        let Ok(causal) = causal.cast_exact::<PyBool>() else { return Ok(None) };
        let Some((left, right)) = pair(window) else { return Ok(None) };
        let Some(softcap) = number(softcap) else { return Ok(None) };
        let Some(scale) = number_or_none(scale) else { return Ok(None) };
        let mut tensors: Tensors<'_, 'py> = [None; TENSORS];
        let given = [
            Some(q),
            Some(k),
            Some(v),
            alibi_slopes,
            sinks,
            cu_seqlens_q,
            cu_seqlens_k,
            used_k,
            entry_k,
            block_table,
        ];
        for (place, tensor) in tensors.iter_mut().zip(given) {
            *place = tensor.map(Bound::as_borrowed);
        }
        let (causal, lse) = (causal.is_true(), lse.is_truthy()?);
        let (left, right) = (Some(left), Some(right));
        let options = (scale, causal, left, right, softcap, longest.0, longest.1, 0, 0, 0, false, lse);
        self.start(q.py(), &tensors, options, Order::RowsFirst)
    }

    /// As `again_as_given`, of PyTorch's scaled_dot_product_attention without a mask: tensors [batch, heads, seqlen, head_dim], of which K and V have
    /// fewer heads only with `enable_gqa`, and whose causal mask is ours only of as many keys as queries. O is a view of the other layout.
    fn again_heads_first<'py>(
        &self,
        q: &Bound<'py, PyAny>,
        k: &Bound<'py, PyAny>,
        v: &Bound<'py, PyAny>,
        scale: &Bound<'py, PyAny>,
        causal: &Bound<'py, PyAny>,
        enable_gqa: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Ok(causal) = causal.cast_exact::<PyBool>() else { return Ok(None) };
        let Some(scale) = number_or_none(scale) else { return Ok(None) };
        let mut tensors: Tensors<'_, 'py> = [None; TENSORS];
        for (place, tensor) in tensors.iter_mut().zip([q, k, v]) {
            *place = Some(tensor.as_borrowed());
        }
        let causal = causal.is_true();
        let options = (scale, causal, Some(-1), Some(-1), 0.0, 0, 0, 0, 0, 0, false, false);
        let order = Order::HeadsFirst { enable_gqa: enable_gqa.is_truthy()?, causal };
        Ok(self.start(q.py(), &tensors, options, order)?.map(|(o, _)| o))
    }

    /// Forgets all calls, as another device computes them from now on.
    fn forget(&self) {
        self.kept.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A call as its tensors and options say.
struct Described {
    key: Numbers,
    addresses: [u64; TENSORS],
    stream: u64,
    q: DlTensor,
    v: DlTensor,
    order: Order,
    lse: bool,
}

/// In which order the dimensions of Q, K and V are given; a call is kept in the first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// `[batch, seqlen, heads, head_dim]`, or the rows of all sequences.
    RowsFirst,
    /// `[batch, heads, seqlen, head_dim]`, with what the caller says of them.
    HeadsFirst { enable_gqa: bool, causal: bool },
}

impl Order {
    /// Whether a call on such tensors means what a kept one of the same numbers does.
    fn is_ours(self, q: &DlTensor, k: &DlTensor) -> bool {
        let Order::HeadsFirst { enable_gqa, causal } = self else { return true };
        let (&[_, heads, queries, _], &[_, heads_kv, keys, _]) = (q.shape(), k.shape()) else { return false };
        (enable_gqa || heads == heads_kv) && (!causal || queries == keys)
    }
}

/// What the outputs of a call are.
pub(crate) struct OutputShape<'a> {
    /// Q's dimensions, in this order.
    pub(crate) q: &'a [i64],
    /// The order.
    pub(crate) order: Order,
    /// V's width.
    pub(crate) width: i64,
    /// Whether Q lies without gaps.
    pub(crate) contiguous: bool,
    /// Whether LSE is wanted.
    pub(crate) lse: bool,
    /// Bits of Q's and O's numbers.
    pub(crate) element_bits: u8,
}

impl OutputShape<'_> {
    /// Whether O and LSE are such tensors, without gaps. LSE of packed queries is not: it begins as −∞.
    fn is_of(&self, o: &DlTensor, lse: Option<&DlTensor>) -> bool {
        let same_o = o.is_contiguous()
            && o.element_bits() == self.element_bits
            && o.shape().split_last() == Some((&self.width, &self.q[..self.q.len() - 1]));
        let same_lse = match (self.q, lse) {
            (&[batch, rows, heads, _], Some(lse)) => {
                lse.is_contiguous()
                    && lse.shape() == [batch, heads, rows]
                    && lse.element_bits() == self.lse_bits()
            }
            (_, lse) => lse.is_none(),
        };
        same_o && same_lse && lse.is_some() == self.lse
    }

    /// Bits of a number of LSE.
    pub(crate) fn lse_bits(&self) -> u8 {
        self.element_bits.max(32)
    }
}

impl Described {
    fn shape(&self) -> OutputShape<'_> {
        OutputShape {
            q: self.q.shape(),
            order: self.order,
            width: self.v.shape().last().copied().unwrap_or(0),
            contiguous: self.q.is_contiguous(),
            lse: self.lse,
            element_bits: self.q.element_bits(),
        }
    }
}

impl Calls {
    /// Starts a call whose like is kept.
    fn start<'py>(
        &self,
        py: Python<'py>,
        tensors: &Tensors<'_, 'py>,
        options: Options,
        order: Order,
    ) -> PyResult<Option<Outputs<'py>>> {
        let Some(q) = tensors[0] else { return Ok(None) };
        if !self.are_plain(py, tensors)? || self.torch.is_watching(py)? {
            return Ok(None);
        }
        let Some(described) = self.describe(py, tensors, options, order)? else { return Ok(None) };
        let calls = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let Some(call) = calls.get(described.key.as_slice()).cloned() else { return Ok(None) };
        drop(calls);
        for index in [0, 1, 2].into_iter().chain(OTHER_NUMBERS) {
            if tensors[index].map_or(Ok(false), |tensor| self.torch.is_negated(&tensor))? {
                return Ok(None);
            }
        }
        let (o, lse) = self.torch.outputs(&q, &described.shape())?;
        // SAFETY: the outputs are PyTorch's tensors, and read at once.
        let address =
            |tensor: &Bound<'_, PyAny>| unsafe { self.exchange.describe(tensor) }.map(|it| it.address());
        let outputs = [address(&o)?, lse.as_ref().map_or(Ok(0), address)?];
        let KeptCall { engine, kept } = call.as_ref();
        let (stream, inputs) = (described.stream, described.addresses);
        // SAFETY: as for `Device::forward`: the caller and this function hold the tensors. They are as large as those of the call that was
        // kept.
        let start = || unsafe { engine.repeat(kept, |call| set_addresses(call, &inputs, outputs), stream) };
        // A launch waits for nothing; loops on the CPU let other threads run.
        let started = if engine.is_gpu() { start() } else { py.detach(start) };
        Ok(started.map_err(raised)?.then_some((o, lse)))
    }

    /// Whether only the tensors' addresses tell the call from the next: all are PyTorch's own, no gradients are wanted, and nothing is cast.
    fn are_plain(&self, py: Python<'_>, tensors: &Tensors<'_, '_>) -> PyResult<bool> {
        let all_given = tensors[..3].iter().all(Option::is_some);
        if !all_given || !tensors.iter().flatten().all(|tensor| self.torch.is_tensor(tensor)) {
            return Ok(false);
        }
        if self.torch.is_grad_enabled(py)? {
            if OTHER_NUMBERS.into_iter().any(|index| tensors[index].is_some()) {
                return Ok(false);
            }
            for tensor in tensors[..3].iter().flatten() {
                if self.torch.requires_grad(tensor)? {
                    return Ok(false);
                }
            }
        }
        Ok(!self.torch.is_autocast_enabled(py)?)
    }

    /// What tells a call from others, and the addresses of its tensors, all of which are PyTorch's; `None` where only the general path knows what to make
    /// of one.
    fn describe(
        &self,
        py: Python<'_>,
        tensors: &Tensors<'_, '_>,
        options: Options,
        order: Order,
    ) -> PyResult<Option<Described>> {
        let (scale, causal, left, right, softcap, longest_q, longest_k, chunk, tree, splits, gradients, lse) =
            options;
        let mut key = Numbers::new();
        let mut addresses = [0; TENSORS];
        let (mut q, mut k, mut v) = (None, None, None);
        let (mut fits, mut given) = (true, 0);
        for (index, address) in addresses.iter_mut().enumerate() {
            let Some(tensor) = tensors[index] else { continue };
            given |= 1 << index;
            // SAFETY: it is PyTorch's, and read while the caller holds it.
            let Ok(found) = (unsafe { self.exchange.describe(&tensor) }) else {
                // The general path says what is wrong with it.
                return Ok(None);
            };
            *address = found.address();
            // Of memory that was freed; the general path says so.
            fits &= *address != 0 && found.write_kind(&mut key, order != Order::RowsFirst && index <= 2);
            match index {
                0 => q = Some(found),
                1 => k = Some(found),
                2 => v = Some(found),
                _ => {}
            }
        }
        let (Some(q), Some(k), Some(v)) = (q, k, v) else { return Ok(None) };
        if !order.is_ours(&q, &k) {
            return Ok(None);
        }
        let scale = scale.map_or(i64::MIN, |scale| scale.to_bits() as i64);
        let numbers = [
            given,
            scale,
            i64::from(causal),
            left.unwrap_or(-1),
            right.unwrap_or(-1),
            softcap.to_bits() as i64,
            longest_q,
            longest_k,
            chunk,
            tree,
            splits,
            i64::from(gradients),
            i64::from(lse),
        ];
        fits &= numbers.into_iter().all(|number| key.push(number));
        if !fits || q.shape().is_empty() {
            return Ok(None);
        }
        let stream = self.exchange.stream(py, &q)?;
        Ok(Some(Described { key, addresses, stream, q, v, order, lse }))
    }
}

/// The tensors of a tuple, in which None stands for one that is not given.
fn listed<'a, 'py>(tensors: &'a Bound<'py, PyTuple>) -> PyResult<Tensors<'a, 'py>> {
    let mut found: Tensors<'a, 'py> = [None; TENSORS];
    for (index, place) in found.iter_mut().enumerate() {
        let tensor = tensors.get_borrowed_item(index)?;
        *place = (!tensor.is_none()).then_some(tensor);
    }
    Ok(found)
}

/// A number of Python's own types; `None` of anything else.
fn number(given: &Bound<'_, PyAny>) -> Option<f64> {
    let is_own = given.is_exact_instance_of::<PyFloat>() || given.is_exact_instance_of::<PyInt>();
    is_own.then(|| given.extract().ok()).flatten()
}

/// As [`number`], or none where it is Python's None.
fn number_or_none(given: &Bound<'_, PyAny>) -> Option<Option<f64>> {
    if given.is_none() { Some(None) } else { number(given).map(Some) }
}

/// Two whole numbers of Python's own type; `None` of anything else.
fn pair(given: &Bound<'_, PyAny>) -> Option<(i64, i64)> {
    let given = given.cast_exact::<PyTuple>().ok().filter(|given| given.len() == 2)?;
    let at = |index| {
        let number = given.get_borrowed_item(index).ok()?;
        number.is_exact_instance_of::<PyInt>().then(|| number.extract::<i64>().ok()).flatten()
    };
    Some((at(0)?, at(1)?))
}

/// Puts addresses in the places of those of the call that was kept: q, k, v, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, used_k,
/// entry_k, block_table, tree, intervals, bias; and O and LSE.
fn set_addresses(call: &mut Call, addresses: &[u64; TENSORS], [o, lse]: [u64; 2]) {
    let [q, k, v, slopes, sinks, cumulative_q, cumulative_k, used_k, entry_k, table, tree, intervals, bias] =
        *addresses;
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
