//! PTX that other compilers made: of ordinary CUDA kernels (`foreign/*.cu`) by nvcc 13.5 and by clang 22.1, of a fused
//! attention by Triton. clang needs no CUDA toolkit; `foreign/clang/` stands in for its headers:
//! `clang++ -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 --cuda-feature=+ptx80 -nocudainc -nocudalib -fms-extensions
//! -std=c++17 -O3 -Iclang -S kernels.cu -o clang/kernels.ptx`.

use ptx_sim::{FindingKind, LaunchConfig, Memory, Module, Report, launch};

/// A module's text, memory and parameters of one launch.
struct Run {
    module: Module,
    memory: Memory,
    params: Vec<u8>,
}

impl Run {
    fn new(text: &str) -> Run {
        let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}"));
        Run { module, memory: Memory::new(), params: Vec::new() }
    }

    fn align(&mut self, bytes: usize) {
        self.params.resize(self.params.len().next_multiple_of(bytes), 0);
    }

    /// A buffer parameter with these bytes.
    fn buffer(&mut self, bytes: &[u8]) -> u64 {
        let address = self.memory.alloc(bytes.len());
        self.memory.write(address, bytes).unwrap();
        self.align(8);
        self.params.extend(address.to_le_bytes());
        address
    }

    /// A buffer parameter that the kernel must fill.
    fn output(&mut self, bytes: usize) -> u64 {
        let address = self.memory.alloc(bytes);
        self.align(8);
        self.params.extend(address.to_le_bytes());
        address
    }

    fn int(&mut self, value: i32) {
        self.align(4);
        self.params.extend(value.to_le_bytes());
    }

    fn launch(&mut self, entry: &str, grid: [u32; 3], block: [u32; 3], smem: u32) -> Report {
        let mut config = LaunchConfig::new(grid, block);
        config.dynamic_smem_bytes = smem;
        launch(&self.module, entry, &self.params, &mut self.memory, &config).unwrap_or_else(|e| panic!("{e}"))
    }

    fn read<const N: usize, T>(&self, address: u64, count: usize, from: fn([u8; N]) -> T) -> Vec<T> {
        let mut bytes = vec![0; count * N];
        self.memory.read(address, &mut bytes).unwrap();
        bytes.chunks_exact(N).map(|c| from(c.try_into().unwrap())).collect()
    }
}

const KERNELS: &str = include_str!("foreign/kernels.ptx");
/// What nvcc and clang made of the same kernels.
const COMPILERS: [&str; 2] = [KERNELS, include_str!("foreign/clang/kernels.ptx")];

fn floats(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The f16 bytes of values that are exact in f16.
fn halves(values: &[f32]) -> Vec<u8> {
    let half = |x: &f32| {
        let bits = x.to_bits();
        let exponent = (bits >> 23 & 0xff) as i32 - 112;
        let magnitude = if exponent <= 0 { 0 } else { (exponent as u32) << 10 | bits >> 13 & 0x3ff };
        ((bits >> 16 & 0x8000 | magnitude) as u16).to_le_bytes()
    };
    values.iter().flat_map(half).collect()
}

fn assert_close(got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() <= bound, "element {i}: {g} instead of {w}");
    }
}

#[test]
fn reduction() {
    for text in COMPILERS {
        let mut run = Run::new(text);
        let input = floats(3000, 1);
        run.buffer(&bytes(&input));
        let out = run.buffer(&[0; 4]);
        run.int(3000);
        let report = run.launch("reduce_sum", [3, 1, 1], [256, 1, 1], 0);
        let want: f64 = input.iter().map(|x| f64::from(*x)).sum();
        assert_close(&run.read(out, 1, f32::from_le_bytes), &[want], 1e-3);
        assert_eq!(report.atomics, 3);
    }
}

#[test]
fn transpose() {
    for text in COMPILERS {
        let (rows, columns) = (70, 45);
        let mut run = Run::new(text);
        let input = floats(rows * columns, 2);
        run.buffer(&bytes(&input));
        let out = run.output(4 * rows * columns);
        run.int(rows as i32);
        run.int(columns as i32);
        let report = run.launch("transpose", [2, 3, 1], [32, 8, 1], 0);
        let got = run.read(out, rows * columns, f32::from_le_bytes);
        for r in 0..rows {
            for c in 0..columns {
                assert_eq!(got[c * rows + r], input[r * columns + c], "({r}, {c})");
            }
        }
        assert_eq!((report.shared_load.conflicts, report.shared_store.conflicts), (0, 0));
    }
}

#[test]
fn softmax() {
    for text in COMPILERS {
        let (rows, columns) = (5, 300);
        let mut run = Run::new(text);
        let input: Vec<f32> = floats(rows * columns, 3).iter().map(|x| x * 8.0).collect();
        run.buffer(&bytes(&input));
        let out = run.output(4 * rows * columns);
        run.int(columns as i32);
        run.launch("softmax", [rows as u32, 1, 1], [128, 1, 1], 4 * columns as u32);
        let mut want = Vec::new();
        for row in input.chunks(columns) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let terms: Vec<f64> = row.iter().map(|x| f64::from(x - most).exp()).collect();
            let sum: f64 = terms.iter().sum();
            want.extend(terms.iter().map(|t| t / sum));
        }
        assert_close(&run.read(out, rows * columns, f32::from_le_bytes), &want, 1e-5);
    }
}

#[test]
fn histogram() {
    for text in COMPILERS {
        let input: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut run = Run::new(text);
        run.buffer(&input);
        let bins = run.buffer(&[0; 1024]);
        run.int(5000);
        run.launch("histogram", [4, 1, 1], [128, 1, 1], 0);
        let mut want = vec![0u32; 256];
        input.iter().for_each(|b| want[usize::from(*b)] += 1);
        assert_eq!(run.read(bins, 256, u32::from_le_bytes), want);
    }
}

fn product(a: &[f32], b: &[f32], n: usize) -> Vec<f64> {
    let at = |i: usize| (0..n).map(|k| f64::from(a[i / n * n + k]) * f64::from(b[k * n + i % n])).sum();
    (0..n * n).map(at).collect()
}

#[test]
fn tiled_matrix_product() {
    for text in COMPILERS {
        let n = 48;
        let (a, b) = (floats(n * n, 4), floats(n * n, 5));
        let mut run = Run::new(text);
        run.buffer(&bytes(&a));
        run.buffer(&bytes(&b));
        let c = run.output(4 * n * n);
        run.int(n as i32);
        run.launch("matmul_tiled", [3, 3, 1], [16, 16, 1], 0);
        assert_close(&run.read(c, n * n, f32::from_le_bytes), &product(&a, &b, n), 1e-4);
    }
}

#[test]
fn matrix_product_on_tensor_cores_through_wmma() {
    let n = 80;
    // Multiples of 1/64 below 1 are exact in f16.
    let exact = |seed| floats(n * n, seed).iter().map(|x| (x * 64.0).round() / 64.0).collect::<Vec<f32>>();
    let (a, b) = (exact(6), exact(7));
    for text in [include_str!("foreign/wmma.ptx"), include_str!("foreign/clang/wmma.ptx")] {
        let mut run = Run::new(text);
        run.buffer(&halves(&a));
        run.buffer(&halves(&b));
        let c = run.output(4 * n * n);
        run.int(n as i32);
        let report = run.launch("matmul_wmma", [5, 5, 1], [32, 1, 1], 0);
        assert_close(&run.read(c, n * n, f32::from_le_bytes), &product(&a, &b, n), 1e-5);
        assert_eq!(report.tensor_flops, 2 * 80 * 80 * 80);
    }
}

#[test]
fn loops_that_lanes_leave_one_by_one_and_an_early_return() {
    for text in COMPILERS {
        let mut run = Run::new(text);
        let out = run.output(4 * 50);
        run.int(50);
        let report = run.launch("collatz_steps", [1, 1, 1], [64, 1, 1], 0);
        let steps = |mut x: u64| {
            let mut count = 0;
            while x != 1 {
                x = if x % 2 == 1 { 3 * x + 1 } else { x / 2 };
                count += 1;
            }
            count
        };
        let want: Vec<i32> = (1..=50).map(steps).collect();
        assert_eq!(run.read(out, 50, i32::from_le_bytes), want);
        assert!(report.divergent_branches > 20);
    }
}

#[test]
fn recursion_with_another_depth_in_every_lane() {
    for text in COMPILERS {
        let mut run = Run::new(text);
        let out = run.output(4 * 64);
        run.launch("fibonacci", [1, 1, 1], [64, 1, 1], 0);
        let want: Vec<i32> = (0..64).map(|i| [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89][i % 12]).collect();
        assert_eq!(run.read(out, 64, i32::from_le_bytes), want);
    }
}

#[test]
fn doubles_library_functions_constants_and_halves() {
    let n = 100;
    let input: Vec<f64> = (0..n).map(|i| f64::from(i) * 0.07).collect();
    let mut run = Run::new(KERNELS);
    run.buffer(&input.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let out = run.output(8 * n as usize);
    // 1.5 in both halves: 1.5·1.5 + 0.5 = 2.75.
    let halves = run.buffer(&0x3e00_3e00u32.to_le_bytes().repeat(n as usize));
    run.int(n);
    run.launch("mixed", [2, 1, 1], [64, 1, 1], 0);
    let got = run.read(out, n as usize, f64::from_le_bytes);
    for (i, (got, x)) in got.iter().zip(&input).enumerate() {
        let f = x.sin() * (i % 8 + 1) as f64 + x.cos() + (x + 2.0).ln() + x.tanh() + x.exp2();
        let want = x.sqrt() + (-x).exp() + f + ((x * 1000.0) as i64 % 7) as f64 + x % 3.0;
        assert!((got - want).abs() < 1e-4, "{i}: {got} instead of {want}");
    }
    assert!(run.read(halves, n as usize, u32::from_le_bytes).iter().all(|h| *h == 0x4180_4180));
}

/// Triton 3.9 made `foreign/attention_triton.ptx` of `foreign/attention_triton.py` for sm_80: 64 × 64 tiles, causal.
#[test]
fn fused_attention_by_triton() {
    let (heads, seqlen, head_dim) = (2, 150, 64);
    let count = heads * seqlen * head_dim;
    // Multiples of 1/64 are exact in f16.
    let exact = |seed| floats(count, seed).iter().map(|x| (x * 128.0).round() / 64.0).collect::<Vec<f32>>();
    let [q, k, v] = [8, 9, 10].map(exact);
    let mut run = Run::new(include_str!("foreign/attention_triton.ptx"));
    for tensor in [&q, &k, &v] {
        run.buffer(&halves(tensor));
    }
    let o = run.output(2 * count);
    let lse = run.output(4 * heads * seqlen);
    run.int(seqlen as i32);
    let scale_log2 = std::f32::consts::LOG2_E / 8.0;
    run.int(scale_log2.to_bits() as i32);
    // Scratch buffers that this kernel does not use.
    run.align(8);
    run.params.extend([0; 16]);
    let report = run.launch("attention", [3, 2, 1], [128, 1, 1], 40960);
    // The PTX has `.loc`: every instruction falls to a line of the Python file or of Triton's library.
    let by_source: u64 = report.sources.iter().map(|s| s.warp_instructions).sum();
    assert_eq!(by_source, report.warp_instructions);
    assert!(report.sources.iter().any(|s| s.source.file == "attention_triton.py" && s.source.line == 29));
    assert!(report.to_json().contains("\"file\":\"attention_triton.py\",\"line\":29,"));
    assert!(report.to_string().contains("tensor_flops"));
    let got = run.read(o, count, u16::from_le_bytes);
    let got_lse = run.read(lse, heads * seqlen, f32::from_le_bytes);
    for row in 0..heads * seqlen {
        let (head, i) = (row / seqlen, row % seqlen);
        let at = |t: &[f32], j: usize, d: usize| f64::from(t[(head * seqlen + j) * head_dim + d]);
        let score = |j: usize| {
            (0..head_dim).map(|d| at(&q, i, d) * at(&k, j, d)).sum::<f64>() * f64::from(scale_log2)
        };
        let scores: Vec<f64> = (0..=i).map(score).collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp2()).collect();
        let sum: f64 = weights.iter().sum();
        assert!((f64::from(got_lse[row]) - (most + sum.log2())).abs() < 1e-4, "row {row}");
        for d in 0..head_dim {
            let want: f64 = weights.iter().enumerate().map(|(j, w)| w * at(&v, j, d)).sum::<f64>() / sum;
            let half = got[row * head_dim + d];
            let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * 2f32.powi(112);
            let value = if half & 0x8000 != 0 { -magnitude } else { magnitude };
            assert!(
                (f64::from(value) - want).abs() < 2e-3,
                "row {row} column {d}: {value} instead of {want}"
            );
        }
    }
}

/// Triton 3.6 made `foreign/product_triton.ptx` of `foreign/product_triton.py` for sm_90: `wgmma` reads what `cp.async` has
/// brought without `fence.proxy.async` between. The ISA asks for one, CUTLASS leaves it out as well: a warning, not an error.
#[test]
fn a_product_by_triton_is_right_and_its_missing_fence_a_warning() {
    let (rows, columns, depth) = (70, 64, 96);
    // Small whole numbers are exact in tf32.
    let numbers =
        |count: usize, by: usize| (0..count).map(|i| (i * by % 13) as f32 - 6.0).collect::<Vec<_>>();
    let (a, b) = (numbers(rows * depth, 7), numbers(depth * columns, 5));
    let bytes = |list: &[f32]| list.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let mut run = Run::new(include_str!("foreign/product_triton.ptx"));
    run.buffer(&bytes(&a));
    run.buffer(&bytes(&b));
    let c = run.output(4 * rows * columns);
    [rows, columns, depth].into_iter().for_each(|n| run.int(n as i32));
    run.align(8);
    run.params.extend([0; 16]);
    let config = LaunchConfig {
        dynamic_smem_bytes: 24576,
        limits: run.module.limits(),
        ..LaunchConfig::new([2, 2, 1], [128, 1, 1])
    };
    let report = launch(&run.module, "product", &run.params, &mut run.memory, &config).unwrap();
    assert!(!report.warnings.is_empty());
    assert!(report.warnings.iter().all(|w| w.kind == FindingKind::ProxyFence), "{}", report.warnings[0]);
    let got = run.read(c, rows * columns, f32::from_le_bytes);
    for (at, value) in got.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let want: f32 = (0..depth).map(|k| a[row * depth + k] * b[k * columns + column]).sum();
        assert_eq!(*value, want, "row {row} column {column}");
    }
}
