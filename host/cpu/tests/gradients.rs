//! Gradients of random calls against finite differences of the forward pass in float64, and of the other types against those in float64.

use ferroflash_cpu::{Alibi, Backward, Call, Dropout, Dtype, Error, Lengths, Pages, Sizes, Tensor, Tree};
use half::{bf16, f16};

/// Numbers that repeat.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Eighths, which every type has.
    fn real(&mut self) -> f64 {
        self.below(33) as f64 / 8.0 - 2.0
    }

    fn reals(&mut self, length: usize) -> Vec<f64> {
        (0..length).map(|_| self.real()).collect()
    }
}

/// Numbers of one type in memory.
struct Elements {
    dtype: Dtype,
    bytes: Vec<u64>,
}

impl Elements {
    fn new(dtype: Dtype, values: &[f64]) -> Elements {
        let raw: Vec<u8> = match dtype {
            Dtype::F16 => values.iter().flat_map(|&v| f16::from_f64(v).to_ne_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|&v| bf16::from_f64(v).to_ne_bytes()).collect(),
            Dtype::F32 => values.iter().flat_map(|&v| (v as f32).to_ne_bytes()).collect(),
            Dtype::F64 => values.iter().flat_map(|&v| v.to_ne_bytes()).collect(),
        };
        let words = raw.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        Elements { dtype, bytes: words.collect() }
    }

    fn unwritten(dtype: Dtype, length: usize) -> Elements {
        Elements::new(dtype, &vec![f64::NAN; length])
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    fn values(&self) -> Vec<f64> {
        let raw = self.bytes.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let two = |b: &[u8]| [b[0], b[1]];
        let chunks = raw.chunks_exact(self.dtype.bytes());
        match self.dtype {
            Dtype::F16 => chunks.map(|b| f16::from_ne_bytes(two(b)).to_f64()).collect(),
            Dtype::Bf16 => chunks.map(|b| bf16::from_ne_bytes(two(b)).to_f64()).collect(),
            Dtype::F32 => chunks.map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into()).collect(),
            Dtype::F64 => self.bytes.iter().map(|&word| f64::from_bits(word)).collect(),
        }
    }
}

/// A call without addresses of Q, K, V and O, and everything else that it points to.
struct Case {
    call: Call,
    inputs: [Vec<f64>; 3],
    /// Of O and LSE.
    gradients: [Vec<f64>; 2],
    has_d_lse: bool,
    sinks: Vec<f32>,
    _kept: (Vec<f32>, [Vec<i32>; 4], Vec<u32>),
}

const DIMS: [usize; 4] = [1, 3, 8, 16];

impl Case {
    fn random(seed: u64) -> Case {
        let mut draw = Draw(seed);
        let (batch, heads_kv, group) = (1 + draw.below(3), 1 + draw.below(2), 1 + draw.below(3));
        let (seqlen_q, seqlen_k) = (1 + draw.below(9), 1 + draw.below(9));
        let (head_dim, head_dim_v) = (DIMS[draw.below(4)], DIMS[draw.below(4)]);
        let heads_q = heads_kv * group;
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        let row = |heads: usize, width: usize, seqlen: usize| Tensor {
            address: 0,
            strides: [(heads * width * seqlen) as i64, width as i64, (heads * width) as i64],
        };
        let mut call = Call { head_dim_v, ..Call::bshd(Dtype::F64, sizes) };
        call.v = row(heads_kv, head_dim_v, seqlen_k);
        call.o = row(heads_q, head_dim_v, seqlen_q);
        let window = |draw: &mut Draw| draw.chance().then(|| draw.below(5));
        (call.window_left, call.window_right) = (window(&mut draw), window(&mut draw));
        call.scale = draw.chance().then_some(0.25);
        call.softcap = if draw.chance() { 1.5 } else { 0.0 };
        call.chunk = (draw.below(4) == 0).then(|| 1 + draw.below(5));
        let slopes: Vec<f32> = (0..batch * heads_q).map(|_| draw.real().abs() as f32 / 8.0).collect();
        let sinks: Vec<f32> = (0..heads_q).map(|_| draw.real() as f32).collect();
        call.alibi =
            draw.chance().then_some(Alibi { slopes: slopes.as_ptr() as u64, stride: heads_q as i64 });
        call.sinks = draw.chance().then_some(sinks.as_ptr() as u64);
        let mut ends = |total: usize| {
            let mut ends: Vec<i32> = (1..batch).map(|_| draw.below(total + 1) as i32).collect();
            ends.extend([0, total as i32]);
            ends.sort();
            ends
        };
        call.dropout = seed.is_multiple_of(3).then_some(Dropout { p: 0.375, seed, offset: seed << 40 });
        let integers = [ends(seqlen_q), ends(seqlen_k), ends(seqlen_k), ends(seqlen_k)];
        let bits: Vec<u32> = (0..batch * seqlen_q).map(|_| draw.below(256) as u32).collect();
        let at = |values: &Vec<i32>| Some(values.as_ptr() as u64);
        match draw.below(3) {
            0 => {
                call.lengths =
                    Lengths { cumulative_q: at(&integers[0]), cumulative_k: at(&integers[1]), ..call.lengths }
            }
            1 => {
                call.lengths = Lengths { used_k: at(&integers[2]), first_k: at(&integers[3]), ..call.lengths }
            }
            _ => {
                call.tree =
                    draw.chance().then_some(Tree { bits: bits.as_ptr() as u64, keys: 1 + draw.below(8) })
            }
        }
        let mut reals = |rows: usize, width: usize| draw.reals(batch * rows * width);
        let inputs = [
            reals(seqlen_q * heads_q, head_dim),
            reals(seqlen_k * heads_kv, head_dim),
            reals(seqlen_k * heads_kv, head_dim_v),
        ];
        let gradients = [reals(seqlen_q * heads_q, head_dim_v), reals(seqlen_q * heads_q, 1)];
        let has_d_lse = draw.chance();
        Case { call, inputs, gradients, has_d_lse, sinks, _kept: (slopes, integers, bits) }
    }

    /// O and LSE in a type, of these inputs.
    fn forward(&self, dtype: Dtype, inputs: &[Vec<f64>; 3]) -> [Elements; 2] {
        let held = inputs.each_ref().map(|values| Elements::new(dtype, values));
        let [o, lse] = self.gradients.each_ref().map(Vec::len);
        let out = [Elements::unwritten(dtype, o), Elements::unwritten(dtype.of_sums(), lse)];
        let mut call = Call { dtype, lse: Some(out[1].address()), ..self.call };
        (call.q.address, call.k.address) = (held[0].address(), held[1].address());
        (call.v.address, call.o.address) = (held[2].address(), out[0].address());
        // SAFETY: every address is of a vector as long as the sizes say.
        unsafe { call.forward() }.expect("computed");
        out
    }

    /// Gradients of Q, K, V and the sinks in a type; NaN where nothing is written.
    fn backward(&self, dtype: Dtype) -> [Vec<f64>; 4] {
        let [o, lse] = self.forward(dtype, &self.inputs);
        let held = self.inputs.each_ref().map(|values| Elements::new(dtype, values));
        let d_o = Elements::new(dtype, &self.gradients[0]);
        let d_lse = Elements::new(dtype.of_sums(), &self.gradients[1]);
        let out = self.inputs.each_ref().map(|values| Elements::unwritten(dtype, values.len()));
        let of_sinks = Elements::unwritten(Dtype::F32, self.sinks.len());
        let at = |tensor: Tensor, elements: &Elements| Tensor { address: elements.address(), ..tensor };
        let call = self.call;
        let call = Call {
            dtype,
            lse: Some(lse.address()),
            q: at(call.q, &held[0]),
            k: at(call.k, &held[1]),
            v: at(call.v, &held[2]),
            o: at(call.o, &o),
            ..call
        };
        let backward = Backward {
            call,
            d_o: at(call.o, &d_o),
            d_lse: self.has_d_lse.then(|| d_lse.address()),
            d_q: at(call.q, &out[0]),
            d_k: at(call.k, &out[1]),
            d_v: at(call.v, &out[2]),
            d_sinks: call.sinks.map(|_| of_sinks.address()),
            d_bias: None,
            ds_bytes_max: None,
        };
        // SAFETY: as above.
        unsafe { backward.run() }.expect("computed");
        let [q, k, v] = out.map(|elements| elements.values());
        [q, k, v, of_sinks.values()]
    }

    /// The number whose gradients they are: what was not written counts for nothing.
    fn loss(&self, inputs: &[Vec<f64>; 3]) -> f64 {
        let sum = |out: &Elements, weights: &[f64]| -> f64 {
            let written = |&(value, _): &(f64, &f64)| value.is_finite();
            out.values().into_iter().zip(weights).filter(written).map(|(value, weight)| value * weight).sum()
        };
        let [o, lse] = self.forward(Dtype::F64, inputs);
        sum(&o, &self.gradients[0]) + if self.has_d_lse { sum(&lse, &self.gradients[1]) } else { 0.0 }
    }
}

#[test]
fn gradients_are_the_finite_differences_of_random_calls() {
    let (step, mut compared, mut not_zero) = (1e-5, 0, 0);
    for seed in 0..300 {
        let mut case = Case::random(seed);
        let found = case.backward(Dtype::F64);
        let mut draw = Draw(seed);
        let mut compare = |what: &str, found: f64, [up, down]: [f64; 2]| {
            let expected = (up - down) / (2.0 * step);
            if found.is_nan() {
                // A row of no sequence.
                assert_eq!(expected, 0.0, "seed {seed}, {what}");
                return;
            }
            assert!(
                (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                "seed {seed}, {what}: {found}, not {expected}"
            );
            compared += 1;
            not_zero += usize::from(found != 0.0);
        };
        for tensor in 0..3 {
            for _ in 0..6 {
                let place = draw.below(case.inputs[tensor].len());
                let losses = [step, -step].map(|step| {
                    let mut inputs = case.inputs.clone();
                    inputs[tensor][place] += step;
                    case.loss(&inputs)
                });
                compare(&format!("tensor {tensor}, element {place}"), found[tensor][place], losses);
            }
        }
        if case.call.sinks.is_some() {
            let head = draw.below(case.sinks.len());
            let sink = case.sinks[head];
            // Sinks are float32: a step that they have, scaled to the one above.
            let wide = 2f32.powi(-10);
            let losses = [wide, -wide].map(|wide| {
                case.sinks[head] = sink + wide;
                case.loss(&case.inputs)
            });
            let ratio = step / f64::from(wide);
            let [up, down] = losses.map(|loss| loss * ratio);
            let expected = (up - down) / (2.0 * step);
            assert!(
                (found[3][head] - expected).abs() < 2e-5 * (1.0 + expected.abs()),
                "seed {seed}: {} {expected}",
                found[3][head]
            );
        }
    }
    assert!(compared > 4000 && not_zero > compared / 2, "{compared} compared, {not_zero} are not 0");
}

#[test]
fn narrow_types_have_the_gradients_of_float64() {
    for seed in 0..200 {
        let case = Case::random(seed);
        let expected = case.backward(Dtype::F64);
        for (dtype, step) in [(Dtype::F32, 2e-5), (Dtype::F16, 1e-2), (Dtype::Bf16, 8e-2)] {
            for (found, expected) in case.backward(dtype).iter().zip(&expected) {
                let most = expected
                    .iter()
                    .filter(|value| !value.is_nan())
                    .fold(1.0, |most: f64, value| most.max(value.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    let close = (found - expected).abs() < step * most || found.is_nan() && expected.is_nan();
                    assert!(close, "seed {seed}, {dtype:?}: {found}, not {expected}");
                }
            }
        }
    }
}

/// One head of four rows, eight elements each, causal.
fn small() -> Case {
    let mut draw = Draw(5);
    let sizes = Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: 4, seqlen_k: 4, head_dim: 8 };
    let call = Call { window_right: Some(0), ..Call::bshd(Dtype::F64, sizes) };
    let inputs = std::array::from_fn(|_| draw.reals(32));
    let gradients = [draw.reals(32), draw.reals(4)];
    Case { call, inputs, gradients, has_d_lse: false, sinks: vec![], _kept: Default::default() }
}

#[test]
fn a_nan_reaches_the_gradients_that_it_concerns_and_no_other() {
    let rows_with_nan = |case: &Case| {
        let found = case.backward(Dtype::F64);
        [0, 1, 2].map(|tensor| {
            (0..4)
                .filter(|row| found[tensor][row * 8..][..8].iter().any(|value| value.is_nan()))
                .collect::<Vec<_>>()
        })
    };
    // Key 2 is seen by queries 2 and 3, whose rows of dS are NaN throughout: so are dK and dV of what they see.
    let mut case = small();
    case.inputs[1][16] = f64::NAN;
    assert_eq!(rows_with_nan(&case), [vec![2, 3], vec![0, 1, 2, 3], vec![0, 1, 2, 3]]);
    // Query 1 sees keys 0 and 1.
    let mut case = small();
    case.inputs[0][8] = f64::NAN;
    assert_eq!(rows_with_nan(&case), [vec![1], vec![0, 1], vec![0, 1]]);
    let mut case = small();
    case.gradients[0][8] = f64::NAN;
    assert_eq!(rows_with_nan(&case), [vec![1], vec![0, 1], vec![0, 1]]);
    assert_eq!(rows_with_nan(&small()), [const { vec![] }; 3]);
    // The first query's only score is −∞: it has no probabilities, and no gradient.
    let mut case = small();
    case.inputs[0][..8].fill(1.0);
    case.inputs[1][..8].fill(f64::NEG_INFINITY);
    assert_eq!(case.backward(Dtype::F64)[0][..8], [0.0; 8]);
}

#[test]
fn what_has_no_gradient_is_refused() {
    let mut call = small().call;
    for tensor in [&mut call.q, &mut call.k, &mut call.v, &mut call.o] {
        tensor.address = 8;
    }
    let backward = Backward {
        call,
        d_o: call.o,
        d_lse: None,
        d_q: call.q,
        d_k: call.k,
        d_v: call.v,
        d_sinks: None,
        d_bias: None,
        ds_bytes_max: None,
    };
    assert_eq!(backward.check(), Err(Error::Null { tensor: "LSE" }));
    let call = Call { lse: Some(8), ..call };
    assert_eq!(Backward { call, ..backward }.check(), Ok(()));
    for name in ["dQ", "dK", "dV"] {
        let mut refused = Backward { call, ..backward };
        let gradient = match name {
            "dQ" => &mut refused.d_q,
            "dK" => &mut refused.d_k,
            _ => &mut refused.d_v,
        };
        gradient.strides[2] = 0;
        let refused = refused.check().expect_err("its rows coincide");
        assert!(matches!(refused, Error::Coincide { tensor, .. } if tensor == name), "{refused}");
    }
    // The gradient of O is read alone.
    let mut alike = Backward { call, ..backward };
    alike.d_o.strides = [0; 3];
    assert_eq!(alike.check(), Ok(()));
    let pages = Some(Pages { table: 8, stride: 1, page_size: 4, count: 1 });
    let refused = Backward { call: Call { pages, ..call }, ..backward }.check().expect_err("refused");
    assert!(matches!(refused, Error::NoGradient { .. }), "{refused}");
}
