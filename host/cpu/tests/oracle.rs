//! Random calls against float64 attention by definition: a predicate for each pair of query and key, no ranges.

use ferroflash_cpu::{Alibi, Call, Dropout, Dtype, Error, Lengths, Pages, Sizes};
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

    fn real(&mut self) -> f32 {
        self.below(2001) as f32 / 500.0 - 2.0
    }
}

/// Elements of one type, by value and in memory.
struct Elements {
    dtype: Dtype,
    bytes: Vec<u32>,
}

impl Elements {
    fn random(dtype: Dtype, length: usize, draw: &mut Draw) -> Elements {
        let mut elements = Elements { dtype, bytes: vec![0; (length * dtype.bytes()).div_ceil(4)] };
        (0..length).for_each(|index| elements.set(index, draw.real()));
        elements
    }

    fn set(&mut self, index: usize, value: f32) {
        let half = match self.dtype {
            Dtype::F16 => f16::from_f32(value).to_bits(),
            Dtype::Bf16 => bf16::from_f32(value).to_bits(),
            Dtype::F32 => return self.bytes[index] = value.to_bits(),
            Dtype::F64 => unreachable!("see gradients.rs"),
        };
        let shift = index % 2 * 16;
        self.bytes[index / 2] = self.bytes[index / 2] & !(0xffff << shift) | u32::from(half) << shift;
    }

    fn get(&self, index: i64) -> f64 {
        let index = index as usize;
        let half =
            (self.bytes[if self.dtype == Dtype::F32 { index } else { index / 2 }] >> (index % 2 * 16)) as u16;
        match self.dtype {
            Dtype::F16 => f16::from_bits(half).to_f64(),
            Dtype::Bf16 => bf16::from_bits(half).to_f64(),
            Dtype::F32 | Dtype::F64 => f32::from_bits(self.bytes[index]).into(),
        }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

fn address<T>(values: &[T]) -> u64 {
    values.as_ptr() as u64
}

/// A call with everything it points to.
struct Case {
    call: Call,
    q: Elements,
    k: Elements,
    v: Elements,
    o: Elements,
    lse: Vec<f32>,
    integers: [Vec<i32>; 6],
    slopes: Vec<f32>,
    sinks: Vec<f32>,
}

impl Case {
    fn random(seed: u64) -> Case {
        let mut draw = Draw(seed);
        let dtype = [Dtype::F16, Dtype::Bf16, Dtype::F32][draw.below(3)];
        let (batch, heads_kv, group) = (1 + draw.below(3), 1 + draw.below(2), 1 + draw.below(3));
        let (seqlen_q, seqlen_k) = (1 + draw.below(90), 1 + draw.below(90));
        let head_dim = [1, 8, 20, 64][draw.below(4)];
        let sizes = Sizes { batch, heads_q: heads_kv * group, heads_kv, seqlen_q, seqlen_k, head_dim };
        let mut call = Call::bshd(dtype, sizes);
        let window = |draw: &mut Draw| draw.chance().then(|| draw.below(40));
        (call.window_left, call.window_right) = (window(&mut draw), window(&mut draw));
        call.scale = draw.chance().then_some(0.3);
        call.softcap = if draw.chance() { 1.5 } else { 0.0 };
        let heads = sizes.heads_q;
        let slopes: Vec<f32> = (0..batch * heads).map(|_| draw.real().abs() / 8.0).collect();
        let sinks: Vec<f32> = (0..heads).map(|_| draw.real()).collect();
        call.alibi = draw.chance().then_some(Alibi { slopes: address(&slopes), stride: heads as i64 });
        call.sinks = draw.chance().then_some(address(&sinks));
        let mut ends = |total: usize| {
            let mut ends: Vec<i32> = (1..batch).map(|_| draw.below(total + 1) as i32).collect();
            ends.extend([0, total as i32]);
            ends.sort();
            ends
        };
        let cumulative = [ends(seqlen_q), ends(seqlen_k)];
        let used: Vec<i32> = (0..batch).map(|_| draw.below(seqlen_k + 1) as i32).collect();
        let first: Vec<i32> = (0..batch).map(|_| draw.below(seqlen_k + 1) as i32).collect();
        let entry: Vec<i32> = (0..batch).map(|_| draw.below(batch) as i32).collect();
        let page_size = 1 + draw.below(9);
        let pages = seqlen_k.div_ceil(page_size);
        let table: Vec<i32> = (0..batch * pages).map(|_| draw.below(2 * pages) as i32).collect();
        call.dropout = seed.is_multiple_of(3).then_some(Dropout { p: 0.25, seed: seed << 31, offset: seed });
        let mut rows_k = batch * seqlen_k;
        match draw.below(3) {
            0 => {
                call.lengths.cumulative_q = Some(address(&cumulative[0]));
                call.lengths.cumulative_k = Some(address(&cumulative[1]));
            }
            1 => {
                call.lengths.used_k = Some(address(&used));
                call.lengths.first_k = draw.chance().then_some(address(&first));
                if draw.chance() {
                    let stride = pages as i64;
                    call.pages = Some(Pages { table: address(&table), stride, page_size, count: 2 * pages });
                    rows_k = 2 * pages * page_size;
                    let strides = call.k.strides;
                    call.k.strides[0] = strides[2] * page_size as i64;
                    call.v.strides = call.k.strides;
                } else {
                    call.lengths.entry_k = draw.chance().then_some(address(&entry));
                    call.lengths.entries_k = entry.len();
                }
            }
            _ => {}
        }
        let row = heads_kv * head_dim;
        let mut elements = |length| Elements::random(dtype, length, &mut draw);
        let (q, o) =
            (elements(batch * seqlen_q * heads * head_dim), elements(batch * seqlen_q * heads * head_dim));
        let (k, v) = (elements(rows_k * row), elements(rows_k * row));
        let lse = vec![f32::NAN; batch * heads * seqlen_q];
        for (tensor, elements) in [(&mut call.q, &q), (&mut call.k, &k), (&mut call.v, &v), (&mut call.o, &o)]
        {
            tensor.address = elements.address();
        }
        call.lse = Some(address(&lse));
        let [cumulative_q, cumulative_k] = cumulative;
        Case {
            call,
            q,
            k,
            v,
            o,
            lse,
            integers: [cumulative_q, cumulative_k, used, first, entry, table],
            slopes,
            sinks,
        }
    }

    /// Compares every row with its definition; returns how many there are.
    fn check(&self, seed: u64) -> usize {
        let Sizes { batch, heads_q, seqlen_q, seqlen_k, .. } = self.call.sizes;
        let [cumulative_q, cumulative_k, ..] = &self.integers;
        let mut checked = 0;
        for b in 0..batch {
            let ragged = self.call.lengths.cumulative_q.is_some();
            let range = |ends: &[i32], all| {
                if ragged { (ends[b] as usize, (ends[b + 1] - ends[b]) as usize) } else { (0, all) }
            };
            let ((q_start, queries), (k_start, keys)) =
                (range(cumulative_q, seqlen_q), range(cumulative_k, seqlen_k));
            for h in 0..heads_q {
                for i in 0..queries {
                    let (o, lse) = self.definition([b, h, i], (q_start, queries), (k_start, keys));
                    let entry = if ragged { 0 } else { b as i64 };
                    let row = (q_start + i) as i64;
                    let lse_at = (entry * heads_q as i64 + h as i64) * seqlen_q as i64 + row;
                    let got = f64::from(self.lse[lse_at as usize]);
                    assert!(got == lse || (got - lse).abs() < 1e-4, "seed {seed}: LSE {got}, not {lse}");
                    let [by_batch, by_head, by_row] = self.call.o.strides;
                    let at = entry * by_batch + h as i64 * by_head + row * by_row;
                    let step = match self.call.dtype {
                        Dtype::F16 => 2e-3,
                        Dtype::Bf16 => 1.6e-2,
                        Dtype::F32 | Dtype::F64 => 2e-5,
                    };
                    for (d, &o) in o.iter().enumerate() {
                        let got = self.o.get(at + d as i64);
                        assert!((got - o).abs() < step, "seed {seed}, {:?}: O {got}, not {o}", [b, h, i, d]);
                    }
                    checked += 1;
                }
            }
        }
        checked
    }

    /// One row of O and its LSE, from the words of the documentation.
    fn definition(&self, [b, h, i]: [usize; 3], q: (usize, usize), k: (usize, usize)) -> (Vec<f64>, f64) {
        let call = &self.call;
        let [.., used, first, entry, table] = &self.integers;
        let Lengths { used_k, first_k, entry_k, cumulative_q, .. } = call.lengths;
        let dim = call.sizes.head_dim;
        let keys = if used_k.is_some() { used[b] as usize } else { k.1 };
        let own = i as i64 + keys as i64 - q.1 as i64;
        let sees = |j: usize| {
            let distance = j as i64 - own;
            (first_k.is_none() || j as i64 >= first[b].into())
                && call.window_left.is_none_or(|left| -distance <= left as i64)
                && call.window_right.is_none_or(|right| distance <= right as i64)
        };
        let kv_at = |j: usize| {
            let [by_batch, by_head, by_row] = call.k.strides;
            let head = (h / call.group()) as i64 * by_head;
            match call.pages {
                Some(pages) => {
                    let page = table[b * pages.stride as usize + j / pages.page_size];
                    i64::from(page) * by_batch + head + (j % pages.page_size) as i64 * by_row
                }
                None if cumulative_q.is_some() => head + (k.0 + j) as i64 * by_row,
                None if entry_k.is_some() => i64::from(entry[b]) * by_batch + head + j as i64 * by_row,
                None => b as i64 * by_batch + head + j as i64 * by_row,
            }
        };
        let batch = if cumulative_q.is_some() { 0 } else { b as i64 };
        let [by_batch, by_head, by_row] = call.q.strides;
        let q_at = batch * by_batch + h as i64 * by_head + (q.0 + i) as i64 * by_row;
        let mut exponents = Vec::new();
        for j in (0..keys).filter(|&j| sees(j)) {
            let at = kv_at(j);
            let dot: f64 = (0..dim as i64).map(|d| self.q.get(q_at + d) * self.k.get(at + d)).sum();
            let mut score = dot * call.scale();
            if call.softcap > 0.0 {
                score = f64::from(call.softcap) * (score / f64::from(call.softcap)).tanh();
            }
            if call.alibi.is_some() {
                let slope = f64::from(self.slopes[b * call.sizes.heads_q + h]);
                score -= slope * (own - j as i64).abs() as f64;
            }
            let head = b * call.sizes.heads_q + h;
            let kept = call.dropout.map_or(1.0, |dropout| {
                if dropout.keeps(head, i, j) { 1.0 / (1.0 - f64::from(dropout.p)) } else { 0.0 }
            });
            exponents.push((at, score, kept));
        }
        let sink = call.sinks.map_or(0.0, |_| f64::from(self.sinks[h]).exp());
        let sum: f64 = exponents.iter().map(|(_, score, _)| score.exp()).sum::<f64>() + sink;
        let mut o = vec![0.0; dim];
        for (at, score, kept) in exponents {
            for (d, o) in o.iter_mut().enumerate() {
                *o += score.exp() / sum * kept * self.v.get(at + d as i64);
            }
        }
        (o, sum.ln())
    }
}

#[test]
fn random_calls_are_what_their_definition_says() {
    let mut rows = 0;
    for seed in 0..400 {
        let case = Case::random(seed);
        // SAFETY: every address is of a vector of the case, as long as the sizes say.
        unsafe { case.call.forward() }.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        rows += case.check(seed);
    }
    assert!(rows > 30_000, "{rows} rows");
}

#[test]
fn what_points_outside_is_refused_before_anything_is_written() {
    let sizes = Sizes { batch: 2, heads_q: 2, heads_kv: 1, seqlen_q: 3, seqlen_k: 4, head_dim: 8 };
    let elements = Elements::random(Dtype::F16, 2 * 4 * 2 * 8, &mut Draw(1));
    let o = Elements::random(Dtype::F16, 2 * 3 * 2 * 8, &mut Draw(2));
    let before = o.bytes.clone();
    let mut call = Call::bshd(Dtype::F16, sizes);
    for tensor in [&mut call.q, &mut call.k, &mut call.v] {
        tensor.address = elements.address();
    }
    call.o.address = o.address();
    let refused = |change: &dyn Fn(&mut Call)| {
        let mut call = call;
        change(&mut call);
        // SAFETY: as above; what is wrong is refused.
        unsafe { call.forward() }.expect_err("refused").to_string()
    };
    let (long, down, page) = ([4, 5], [0, 3, 2], [0, 7]);
    assert!(refused(&|call| call.lengths.used_k = Some(address(&long))).contains("sequence 1 is 5"));
    assert!(refused(&|call| call.lengths.cumulative_q = Some(address(&down))).contains("cu_seqlens_q"));
    let pages = Pages { table: address(&page), stride: 1, page_size: 4, count: 2 };
    assert!(refused(&|call| call.pages = Some(pages)).contains("page of sequence 1 is 7"));
    assert!(refused(&|call| call.sizes.heads_kv = 3).contains("not a multiple"));
    assert!(refused(&|call| call.sizes.seqlen_k = 0).contains("seqlen_k is 0"));
    assert!(refused(&|call| call.scale = Some(-1.0)).contains("scale -1"));
    assert!(refused(&|call| call.softcap = f32::NAN).contains("softcap"));
    let dropout = Dropout { p: 1.0, seed: 0, offset: 0 };
    assert!(refused(&|call| call.dropout = Some(dropout)).contains("dropout_p 1"));
    // float32 has neither.
    assert!(refused(&|call| call.scale = Some(1e300)).contains("scale 1e300"));
    assert!(refused(&|call| call.scale = Some(1e-300)).contains("scale 1e-300"));
    assert_eq!(refused(&|call| call.v.address = 0), Error::Null { tensor: "V" }.to_string());
    assert_eq!(refused(&|call| call.sinks = Some(0)), Error::Null { tensor: "the sinks" }.to_string());
    assert!(
        refused(&|call| call.alibi = Some(Alibi { slopes: 0, stride: 0 })).contains("the slopes is null")
    );
    assert!(refused(&|call| call.lengths.used_k = Some(0)).contains("the lengths of keys is null"));
    assert!(refused(&|call| call.o.strides[0] = 0).contains("O: stride 0 of batch"));
    assert!(refused(&|call| call.o.strides[1] = 1).contains("O: stride 1 of heads"));
    assert!(refused(&|call| call.o.strides[2] = -1).contains("O: stride -1 of rows"));
    assert_eq!(o.bytes, before);
}

#[test]
fn a_nan_reaches_the_rows_that_see_it_and_no_other() {
    let sizes = Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: 4, seqlen_k: 4, head_dim: 8 };
    let [q, mut k, v, o] =
        std::array::from_fn(|seed| Elements::random(Dtype::F32, 32, &mut Draw(seed as u64)));
    k.set(2 * 8, f32::NAN);
    let mut call = Call { window_right: Some(0), ..Call::bshd(Dtype::F32, sizes) };
    for (tensor, elements) in [(&mut call.q, &q), (&mut call.k, &k), (&mut call.v, &v), (&mut call.o, &o)] {
        tensor.address = elements.address();
    }
    // SAFETY: every address is of 32 elements.
    unsafe { call.forward() }.expect("computed");
    let is_nan: Vec<bool> = (0..4).map(|row| o.get(row * 8).is_nan()).collect();
    assert_eq!(is_nan, [false, false, true, true]);
}
