//! Gradients: for each sequence and KV head, one query row after the other, so that every sum has one order.

use crate::call::{Bias, Call, Dtype, Sizes, Tensor};
use crate::dropout::factor;
use crate::error::Error;
use crate::read::{number, write_number};
use crate::real::{Real, add_scaled, dot};
use crate::rows::{changed, row_of};
use crate::sequence::{Sequence, sequences};
use crate::threads::for_each;
use std::sync::Mutex;

/// The gradients of a [`Call`]: P = exp(S − LSE), dV = Pᵀ·dO, dS = P∘(dO·Vᵀ − δ) with δ = rowsum(dO∘O) − dLSE, dQ = scale · dS·K and
/// dK = scale · dSᵀ·Q, of softcap times its derivative. With dropout dV and dP = dO·Vᵀ have its factors. The gradient of a bias is dS,
/// summed over the sequences, heads and queries that share its elements.
///
/// Rows that belong to no sequence are not written. A key that no query sees has gradient 0, and so has a
/// query that sees no key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backward {
    /// The forward pass: O and LSE are inputs here, and LSE must be there.
    pub call: Call,
    /// The gradient of O.
    pub d_o: Tensor,
    /// Address of the gradient of LSE, as LSE lies, where it is not 0.
    pub d_lse: Option<u64>,
    /// The gradient of Q.
    pub d_q: Tensor,
    /// The gradient of K.
    pub d_k: Tensor,
    /// The gradient of V.
    pub d_v: Tensor,
    /// Address of the gradient of the sinks, float32 `[heads_q]`, where it is wanted.
    pub d_sinks: Option<u64>,
    /// Address of the gradient of the bias, which lies as that does, where it is wanted.
    pub d_bias: Option<u64>,
    /// Bytes of dS that kernels may keep in their workspace, but for the usual limit; the CPU keeps none.
    pub ds_bytes_max: Option<u64>,
}

impl Backward {
    /// Refuses what cannot be computed, addresses and what lies there aside.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check(&self) -> Result<(), Error> {
        self.call.check()?;
        let addresses = [
            ("LSE", self.call.lse.unwrap_or(0)),
            ("dO", self.d_o.address),
            ("dQ", self.d_q.address),
            ("dK", self.d_k.address),
            ("dV", self.d_v.address),
        ];
        if let Some((tensor, _)) = addresses.into_iter().find(|(_, address)| *address == 0) {
            return Err(Error::Null { tensor });
        }
        // Nobody would write these.
        if self.d_sinks.is_some() && self.call.sinks.is_none() {
            return Err(Error::Null { tensor: "sinks whose gradient is wanted" });
        }
        if self.d_bias.is_some() && self.call.bias.is_none() {
            return Err(Error::Null { tensor: "the bias whose gradient is wanted" });
        }
        self.call.check_gradients()?;
        let (width, width_v) = (self.call.sizes.head_dim, self.call.head_dim_v);
        self.d_q.check_apart("dQ", self.call.extent_q(), width)?;
        self.d_k.check_apart("dK", self.call.extent_k(), width)?;
        self.d_v.check_apart("dV", self.call.extent_k(), width_v)
    }

    /// Computes the gradients, on all processors. Every address is one of host memory.
    ///
    /// # Errors
    /// [`Error`]; nothing is written then.
    ///
    /// # Safety
    /// As [`Call::forward`]; O and LSE are read, and the gradients of Q, K, V, the sinks and the bias may be written and overlap nothing.
    pub unsafe fn run(&self) -> Result<(), Error> {
        self.check()?;
        match self.call.dtype {
            // SAFETY: the caller's promise.
            Dtype::F64 => unsafe { self.run_in::<f64>() },
            // SAFETY: the caller's promise.
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => unsafe { self.run_in::<f32>() },
        }
    }

    /// # Safety
    /// As [`Backward::run`].
    unsafe fn run_in<R: Real + Send>(&self) -> Result<(), Error> {
        let call = &self.call;
        // SAFETY: the caller's promise.
        let sequences = unsafe { sequences(call)? };
        if let (Some(address), Some(bias)) = (self.d_bias, call.bias) {
            // SAFETY: the caller's promise.
            unsafe { self.gradient_of_bias::<R>(&sequences, &bias, address) };
        }
        let mut work = Vec::new();
        for sequence in sequences {
            work.extend((0..call.sizes.heads_kv).map(|head| (sequence, head)));
        }
        let products = call.sizes.seqlen_k * call.sizes.head_dim * call.group() * call.sizes.seqlen_q * 3;
        let of_sinks = Mutex::new(Vec::new());
        for_each(&work, products, |&(sequence, head)| {
            // SAFETY: the caller's promise; no two pieces of work write the same rows.
            let found: Vec<R> = unsafe { self.piece(&sequence, head) };
            let mut of_sinks = of_sinks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            of_sinks.push((sequence.batch, head, found));
        });
        let Some(address) = self.d_sinks else { return Ok(()) };
        let mut of_sinks = of_sinks.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        // In one order, whoever was first.
        of_sinks.sort_by_key(|&(batch, head, _)| (batch, head));
        let mut sums = vec![R::ZERO; call.sizes.heads_q];
        for (_, head, found) in of_sinks {
            add_scaled(&mut sums[head * call.group()..][..call.group()], R::ONE, &found);
        }
        for (head, &sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { write_number(Dtype::F32, address, head as i64, sum) };
        }
        Ok(())
    }

    /// All query rows of the heads that share a KV head, whose gradients of sinks are returned.
    ///
    /// # Safety
    /// As [`Backward::run`]; the sequence was checked.
    unsafe fn piece<R: Real>(&self, sequence: &Sequence, head_kv: usize) -> Vec<R> {
        let call = &self.call;
        let (width, width_v, keys) = (call.sizes.head_dim, call.head_dim_v, 0..sequence.held_k);
        // SAFETY: the caller's promise.
        let (k, v) = unsafe {
            let wide = |tensor, width| sequence.wide::<R>(call, (tensor, width), head_kv, keys.clone());
            (wide(&call.k, width), wide(&call.v, width_v))
        };
        let mut sums = KeySums { d_k: vec![R::ZERO; k.len()], d_v: vec![R::ZERO; v.len()] };
        let heads = head_kv * call.group()..(head_kv + 1) * call.group();
        // SAFETY: the caller's promise.
        let of_sinks = heads.map(|head| unsafe { self.head(sequence, head, (&k, &v), &mut sums) }).collect();
        for key in keys {
            // SAFETY: the caller's promise.
            unsafe {
                let row = |tensor| sequence.key_row(call, tensor, head_kv, key);
                R::write_row(call.dtype, row(&self.d_k), row_of(&sums.d_k, key, width));
                R::write_row(call.dtype, row(&self.d_v), row_of(&sums.d_v, key, width_v));
            }
        }
        of_sinks
    }

    /// The query rows of a head; the gradient of its sink.
    ///
    /// # Safety
    /// As [`Backward::piece`].
    unsafe fn head<R: Real>(
        &self,
        sequence: &Sequence,
        head: usize,
        (k, v): (&[R], &[R]),
        sums: &mut KeySums<R>,
    ) -> R {
        let call = &self.call;
        let (width, width_v, scale) = (call.sizes.head_dim, call.head_dim_v, R::of(call.scale()));
        // SAFETY: the caller's promise.
        let mut at = unsafe { QueryRow::<R>::of_head(call, sequence, head) };
        let (mut d_q, sink) = (vec![R::ZERO; width], at.sink);
        let mut of_sink = R::ZERO;
        for row in 0..sequence.seqlen_q {
            d_q.fill(R::ZERO);
            // SAFETY: the caller's promise.
            unsafe {
                at.read(self, sequence, row);
                if let (Some(sink), true) = (sink, at.lse != R::NEG_INFINITY) {
                    of_sink += -((sink - at.lse).exp() * at.delta);
                }
                at.pairs(call, sequence, (k, v), |key, Pair { p, d_s, derivative }| {
                    let d_s = d_s * derivative * scale;
                    add_scaled(&mut d_q, d_s, row_of(k, key, width));
                    add_scaled(&mut sums.d_k[key * width..][..width], d_s, &at.query);
                    add_scaled(&mut sums.d_v[key * width_v..][..width_v], p, &at.d_o);
                });
                R::write_row(call.dtype, sequence.query_row(call, &self.d_q, head, row), &d_q);
            }
        }
        of_sink
    }

    /// The gradient of the bias: each head of it that is another is a sum of its own, in one order.
    ///
    /// # Safety
    /// As [`Backward::piece`].
    unsafe fn gradient_of_bias<R: Real>(&self, sequences: &[Sequence], bias: &Bias, address: u64) {
        let call = &self.call;
        let Sizes { heads_q, seqlen_q, seqlen_k, head_dim, .. } = call.sizes;
        let [own_batch, own_head, own_row] = bias.own;
        let all = |own: bool, count: usize| 0..if own { count } else { 1 };
        let heads = |batch| all(own_head, heads_q).map(move |head| (batch, head));
        let blocks: Vec<(usize, usize)> = all(own_batch, call.sizes.batch).flat_map(heads).collect();
        let keys_of = |tensor, width, sequence: &Sequence, head: usize| {
            // SAFETY: the caller's promise.
            unsafe { sequence.wide::<R>(call, (tensor, width), head / call.group(), 0..sequence.held_k) }
        };
        for_each(&blocks, seqlen_q * seqlen_k * head_dim * 2, |&(batch, of_head)| {
            let mut sums = vec![R::ZERO; all(own_row, seqlen_q).len() * seqlen_k];
            for sequence in sequences.iter().filter(|sequence| !own_batch || sequence.batch == batch) {
                for head in if own_head { of_head..of_head + 1 } else { 0..heads_q } {
                    let k = keys_of(&call.k, head_dim, sequence, head);
                    let v = keys_of(&call.v, call.head_dim_v, sequence, head);
                    // SAFETY: the caller's promise.
                    let mut at = unsafe { QueryRow::<R>::of_head(call, sequence, head) };
                    for row in 0..sequence.seqlen_q {
                        let into = &mut sums[if own_row { row * seqlen_k } else { 0 }..][..seqlen_k];
                        // SAFETY: the caller's promise.
                        unsafe {
                            at.read(self, sequence, row);
                            at.pairs(call, sequence, (&k, &v), |key, pair| into[key] += pair.d_s);
                        }
                    }
                }
            }
            let [by_batch, by_head, _] = bias.strides(&call.sizes);
            let first = by_batch * batch as i64 + by_head * of_head as i64;
            for (element, &sum) in (first..).zip(&sums) {
                // SAFETY: the caller's promise; no two pieces of work write the same elements.
                unsafe { write_number(call.dtype, address, element, sum) };
            }
        });
    }
}

/// A query row of a head, and what its gradients are made of.
struct QueryRow<R> {
    head: usize,
    /// The head's slope of ALiBi and its sink.
    slope: Option<R>,
    sink: Option<R>,
    row: usize,
    query: Vec<R>,
    o: Vec<R>,
    d_o: Vec<R>,
    lse: R,
    /// dO · O less the gradient of LSE.
    delta: R,
}

/// A query and a key that it sees.
struct Pair<R> {
    /// Its probability, with the factor of dropout.
    p: R,
    /// The gradient of what the softmax is of.
    d_s: R,
    /// That of the score's function, which comes before a bias.
    derivative: R,
}

impl<R: Real> QueryRow<R> {
    /// No row yet of a head.
    ///
    /// # Safety
    /// As [`Backward::piece`].
    unsafe fn of_head(call: &Call, sequence: &Sequence, head: usize) -> QueryRow<R> {
        let zeros = |width| vec![R::ZERO; width];
        let [query, o, d_o] = [call.sizes.head_dim, call.head_dim_v, call.head_dim_v].map(zeros);
        // SAFETY: the caller's promise.
        let (slope, sink) = unsafe { sequence.of_head::<R>(call, head) };
        QueryRow { head, slope, sink, row: 0, query, o, d_o, lse: R::ZERO, delta: R::ZERO }
    }

    /// # Safety
    /// As [`Backward::piece`].
    unsafe fn read(&mut self, backward: &Backward, sequence: &Sequence, row: usize) {
        let (call, head) = (&backward.call, self.head);
        self.row = row;
        // SAFETY: the caller's promise.
        unsafe {
            let at = |tensor| sequence.query_row(call, tensor, head, row);
            R::read_row(call.dtype, at(&call.q), &mut self.query);
            R::read_row(call.dtype, at(&call.o), &mut self.o);
            R::read_row(call.dtype, at(&backward.d_o), &mut self.d_o);
            let of_row = sequence.lse_row(call, head, row);
            let given = |address: u64| number::<R>(call.dtype.of_sums(), address, of_row);
            self.lse = call.lse.map_or(R::ZERO, given);
            self.delta = dot(&self.d_o, &self.o) - backward.d_lse.map_or(R::ZERO, given);
        }
    }

    /// Each key that the row sees: none where it has no probabilities.
    ///
    /// # Safety
    /// As [`Backward::piece`]; the row was read.
    unsafe fn pairs(
        &self,
        call: &Call,
        sequence: &Sequence,
        (k, v): (&[R], &[R]),
        mut pair: impl FnMut(usize, Pair<R>),
    ) {
        if self.lse == R::NEG_INFINITY {
            return;
        }
        let (head, row) = (self.head, self.row);
        // SAFETY: the caller's promise.
        let visible = unsafe { sequence.visible(call, row) };
        // SAFETY: the caller's promise.
        for key in visible.keys.clone().filter(|&key| unsafe { !visible.hides(key) }) {
            let (key_row, value_row) = (row_of(k, key, call.sizes.head_dim), row_of(v, key, call.head_dim_v));
            let distance = sequence.own(row).abs_diff(key as i64);
            let product = dot(&self.query, key_row) * R::of(call.scale());
            let (score, derivative) = changed(product, call.softcap, self.slope, distance);
            // SAFETY: the caller's promise.
            let p = (score + unsafe { sequence.bias(call, head, row, key) } - self.lse).exp();
            let kept = factor(call, sequence, head, (row, key));
            let d_s = p * (dot(&self.d_o, value_row) * kept - self.delta);
            pair(key, Pair { p: p * kept, d_s, derivative });
        }
    }
}

/// Sums over the query rows, `[keys, width]`.
struct KeySums<R> {
    d_k: Vec<R>,
    d_v: Vec<R>,
}
