//! Tensor files through the library: what is written is what is read.

use crate::support::{self, folder, names, problem, safetensors};
use check::random_input::{self, InputKind};
use check::reference::reference_of;
use check::verification::RaggedCase;
use ferroflash::output_file::OutputFile;
use ferroflash::problem::{BlockTable, Extent, KeySequences, Pages, QuerySequences, Score};
use ferroflash::rounding::widen;
use ferroflash::tensor_file::{self, Options, Source};
use ferroflash::{Dtype, Error, HostOperand, Layout, Mask, Operand, Problem, TensorRole};
use kernels_gpu::row::ScoreKind;
use std::fs;
use std::path::Path;

support::trials!(
    both_dtypes_survive_a_round_trip,
    float32_is_rounded_to_nearest,
    options_go_before_metadata,
    a_dropped_output_leaves_nothing,
    an_output_that_appears_meanwhile_is_kept,
    stored_results_of_another_shape_are_refused,
    a_link_stays_one_and_what_it_leads_to_is_written,
    a_device_is_refused_and_a_pipe_is_read,
    a_ragged_batch_is_what_its_file_says,
    a_ragged_file_that_cannot_be_is_refused,
);

fn bytes(bits: &[u16]) -> Vec<u8> {
    bits.iter().flat_map(|bits| bits.to_le_bytes()).collect()
}

fn write_o(path: &Path, problem: &Problem, o: &[u16], lse: Option<&[f32]>) {
    let file = OutputFile::create(path, false).expect("created");
    tensor_file::write(file, problem, Layout::Bhsd, o, lse).expect("written");
}

fn both_dtypes_survive_a_round_trip() {
    let folder = folder();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let problem = problem(dtype, [2, 2, 2, 3, 3, 32]);
        let [q, ..] = random_input::qkv(&problem, InputKind::Outliers, 1);
        let lse: Vec<f32> = (0..problem.lse_len()).map(|row| row as f32 / 3.0).collect();
        let path = folder.path().join(dtype.name()).with_extension("safetensors");
        write_o(&path, &problem, &q, Some(&lse));
        // O as Q, K and V of another file, beside itself.
        let shape: &[usize] = &[2, 2, 3, 32];
        let name = dtype.name().to_uppercase();
        let tensors = ["q", "k", "v", "o"].map(|tensor| (tensor, name.as_str(), shape, bytes(&q)));
        let back = folder.path().join("back.safetensors");
        fs::write(&back, safetensors(&tensors, &[])).expect("written");
        let inputs = tensor_file::read(&Source::Safetensors(back), &Options::default()).expect("readable");
        assert_eq!(inputs.problem, problem);
        assert_eq!([&inputs.q, &inputs.k, &inputs.v], [&q; 3]);
        let stored: Vec<f64> = q.iter().map(|&bits| widen(dtype, bits)).collect();
        assert_eq!(inputs.stored_o, Some(stored));
        let file = fs::read(&path).expect("written");
        let lse_bytes: Vec<u8> = lse.iter().flat_map(|lse| lse.to_le_bytes()).collect();
        assert!(file.ends_with(&[lse_bytes, bytes(&q)].concat()));
    }
}

fn float32_is_rounded_to_nearest() {
    let folder = folder();
    // Half-way between two float16 numbers, ties to even; and a subnormal.
    let values = [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 3e-8_f32, -2.5];
    let data: Vec<u8> = values.iter().cycle().take(32).flat_map(|value| value.to_le_bytes()).collect();
    let shape: &[usize] = &[1, 1, 1, 32];
    let path = folder.path().join("qkv.safetensors");
    fs::write(&path, safetensors(&["q", "k", "v"].map(|name| (name, "F32", shape, data.clone())), &[]))
        .expect("written");
    let inputs = tensor_file::read(&Source::Safetensors(path), &Options::default()).expect("readable");
    assert_eq!(inputs.problem.dtype(), Dtype::F16);
    assert_eq!(inputs.q[..4], [0x3c00, 0x3c02, 0x0001, 0xc100]);
}

fn options_go_before_metadata() {
    let folder = folder();
    let shape: &[usize] = &[1, 4, 2, 32];
    let metadata = [("layout", "bshd"), ("mask", "causal"), ("scale", "0.25")];
    let path = folder.path().join("qkv.safetensors");
    let tensors = ["q", "k", "v"].map(|name| (name, "BF16", shape, vec![0; 2 * 8 * 32]));
    fs::write(&path, safetensors(&tensors, &metadata)).expect("written");
    let source = Source::Safetensors(path);
    let inputs = tensor_file::read(&source, &Options::default()).expect("readable");
    assert_eq!((inputs.problem.sizes().heads_q, inputs.problem.sizes().seqlen_q), (2, 4));
    assert_eq!((inputs.problem.causal(), inputs.problem.scale()), (true, 0.25));
    let mut options = Options::default();
    (options.layout, options.dtype) = (Some(Layout::Bhsd), Some(Dtype::F16));
    (options.scale, options.causal) = (Some(0.5), Some(false));
    let inputs = tensor_file::read(&source, &options).expect("readable");
    assert_eq!((inputs.problem.sizes().heads_q, inputs.problem.sizes().seqlen_q), (4, 2));
    assert_eq!((inputs.problem.causal(), inputs.problem.scale()), (false, 0.5));
    assert_eq!(inputs.problem.dtype(), Dtype::F16);
}

fn a_dropped_output_leaves_nothing() {
    let folder = folder();
    let path = folder.path().join("o.npy");
    let mut file = OutputFile::create(&path, false).expect("created");
    file.write(b"half of it").expect("written");
    assert_eq!(names(folder.path()).len(), 1, "the temporary file lies beside its place");
    drop(file);
    assert!(names(folder.path()).is_empty());
}

fn an_output_that_appears_meanwhile_is_kept() {
    let folder = folder();
    let path = folder.path().join("o.npy");
    let mut file = OutputFile::create(&path, false).expect("created");
    file.write(b"new").expect("written");
    fs::write(&path, "precious").expect("written");
    assert!(matches!(file.commit(), Err(Error::OutputExists { .. })));
    assert_eq!(fs::read(&path).expect("still there"), b"precious");
    assert_eq!(names(folder.path()), ["o.npy"]);
}

fn a_link_stays_one_and_what_it_leads_to_is_written() {
    let folder = folder();
    let [link, real] = ["link.npy", "real.npy"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("real.npy", &link).expect("a link");
    // First where nothing is yet, then over what is there.
    for text in ["one", "two"] {
        let mut file = OutputFile::create(&link, true).expect("created");
        file.write(text.as_bytes()).expect("written");
        file.commit().expect("in place");
        assert_eq!(fs::read_to_string(&real).expect("there"), text);
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    }
    assert!(matches!(OutputFile::create(&link, false), Err(Error::OutputExists { .. })));
}

fn a_device_is_refused_and_a_pipe_is_read() {
    let read = |path: &Path| tensor_file::read(&Source::Safetensors(path.to_owned()), &Options::default());
    let error = read(Path::new("/dev/zero")).expect_err("it has no end").to_string();
    assert!(error.contains("/dev/zero") && error.contains("a device holds no tensors"), "{error}");
    let folder = folder();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo starts");
    assert!(made.success());
    let shape: &[usize] = &[1, 1, 2, 32];
    let bytes = safetensors(&["q", "k", "v"].map(|name| (name, "F16", shape, vec![0; 128])), &[]);
    let feeding = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::write(pipe, bytes))
    };
    assert_eq!(read(&pipe).expect("three tensors").q.len(), 64);
    feeding.join().expect("a thread").expect("written");
}

fn stored_results_of_another_shape_are_refused() {
    let folder = folder();
    let shape: &[usize] = &[1, 1, 2, 32];
    let other: &[usize] = &[1, 2, 1, 32];
    let path = folder.path().join("qkv.safetensors");
    let [q, k, v] = ["q", "k", "v"].map(|name| (name, "F16", shape, vec![0; 128]));
    fs::write(&path, safetensors(&[q, k, v, ("o", "F32", other, vec![0; 256])], &[])).expect("written");
    let error = tensor_file::read(&Source::Safetensors(path), &Options::default()).expect_err("refused");
    assert!(matches!(error, Error::ShapeMismatch { tensor: "o", .. }), "{error}");
}

/// A drawn batch as a file.
fn ragged_file(case: &RaggedCase) -> Vec<u8> {
    let (problem, tensors) = (&case.problem, case.tensors());
    let layout = problem.layout().expect("contiguous");
    let shape = |role: TensorRole| {
        let Extent { batch, heads, rows, width } = problem.extent(role);
        let is_packed = match role {
            TensorRole::Q | TensorRole::O => matches!(problem.queries(), QuerySequences::Packed { .. }),
            TensorRole::K | TensorRole::V => matches!(problem.keys(), KeySequences::Packed { .. }),
        };
        let sizes = match layout {
            Layout::Bhsd => [batch, heads, rows, width],
            _ => [batch, rows, heads, width],
        };
        sizes[usize::from(is_packed)..].iter().map(|&n| n as usize).collect::<Vec<_>>()
    };
    let dtype = problem.dtype().name().to_uppercase();
    let mut file: Vec<(&str, &str, Vec<usize>, Vec<u8>)> = vec![
        ("q", &dtype, shape(TensorRole::Q), bytes(tensors.q)),
        ("k", &dtype, shape(TensorRole::K), bytes(tensors.k)),
        ("v", &dtype, shape(TensorRole::V), bytes(tensors.v)),
    ];
    if let Some(lengths) = tensors.seqlens_k {
        // As PyTorch has integers by default.
        let wide = lengths.iter().flat_map(|&length| i64::from(length).to_le_bytes()).collect();
        file.push(("seqlens_k", "I64", vec![lengths.len()], wide));
    }
    for operand in Operand::ALL {
        let Some(values) = tensors.operand(operand) else { continue };
        let sizes = problem.sizes();
        let shape = match (operand, problem.keys(), problem.score()) {
            (
                Operand::BlockTable,
                KeySequences::Paged(Pages { table: BlockTable::Rows { entries }, .. }),
                _,
            ) => {
                vec![sizes.batch as usize, entries as usize]
            }
            (Operand::Slopes, _, Score::Alibi { per_batch: true }) => {
                vec![sizes.batch as usize, sizes.heads_q as usize]
            }
            (Operand::Bias, _, Score::Bias(shape)) => {
                let of = |has: bool, size: u32| if has { size as usize } else { 1 };
                vec![
                    of(shape.batch, sizes.batch),
                    of(shape.heads, sizes.heads_q),
                    of(shape.queries, sizes.seqlen_q),
                    sizes.seqlen_k as usize,
                ]
            }
            _ => vec![values.len()],
        };
        let dtype = match values {
            HostOperand::U32(_) => "U32",
            HostOperand::I32(_) => "I32",
            HostOperand::F32(_) => "F32",
            _ => &dtype,
        };
        file.push((operand.name(), dtype, shape, values.bytes().to_vec()));
    }
    let tensors: Vec<_> =
        file.iter().map(|(name, dtype, shape, data)| (*name, *dtype, &shape[..], data.clone())).collect();
    safetensors(&tensors, &[])
}

fn a_ragged_batch_is_what_its_file_says() {
    let folder = folder();
    let path = folder.path().join("batch.safetensors");
    for seed in 0..60 {
        let kind =
            [ScoreKind::Plain, ScoreKind::Softcap, ScoreKind::Alibi, ScoreKind::Bias][seed as usize % 4];
        let case = RaggedCase::draw(Dtype::Bf16, 64, kind, seed).expect("a case");
        fs::write(&path, ragged_file(&case)).expect("written");
        let mut options = Options::default();
        (options.layout, options.scale) = (case.problem.layout(), Some(case.problem.scale()));
        let inputs = tensor_file::read(&Source::Safetensors(path.clone()), &options)
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        // The mask, and a score without a tensor, are not in a file.
        let mut problem = inputs.problem.with_mask(case.problem.mask()).expect("a mask");
        if let score @ Score::Softcap(_) = case.problem.score() {
            problem = problem.with_score(score).expect("a score");
        }
        assert_eq!(inputs.problem.mask().intervals, case.problem.mask().intervals, "{case}");
        for role in TensorRole::ALL {
            assert_eq!(problem.extent(role), case.problem.extent(role), "{case}");
        }
        let [expected, got] = [(&case.problem, case.tensors()), (&problem, inputs.tensors())]
            .map(|(problem, tensors)| reference_of(problem, &tensors, &|_, _| ()));
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got.o), bits(&expected.o), "{case}");
        assert_eq!(bits(&got.lse), bits(&expected.lse), "{case}");
    }
}

fn a_ragged_file_that_cannot_be_is_refused() {
    let folder = folder();
    let path = folder.path().join("batch.safetensors");
    let ints = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let q: &[usize] = &[5, 2, 32];
    let read = |more: &[support::FileTensor<'_>]| {
        let mut tensors = vec![
            ("q", "F16", q, support::halves(q)),
            ("k", "F16", q, support::halves(q)),
            ("v", "F16", q, support::halves(q)),
        ];
        tensors.extend_from_slice(more);
        fs::write(&path, safetensors(&tensors, &[])).expect("written");
        tensor_file::read(&Source::Safetensors(path.clone()), &Options::default())
            .map_err(|error| error.to_string())
    };
    let cu = |name, values: &[i32]| (name, "I32", [values.len()], ints(values));
    let starts = |q: &[i32], k: &[i32]| {
        let [q, k] = [cu("cu_seqlens_q", q), cu("cu_seqlens_k", k)];
        read(&[(q.0, q.1, &q.2, q.3), (k.0, k.1, &k.2, k.3)])
    };
    let right = starts(&[0, 3, 5], &[0, 0, 5]).expect("two sequences");
    assert_eq!((right.problem.sizes().batch, right.problem.mask()), (2, Mask::FULL));
    for (found, needle) in [
        (starts(&[0, 4, 3], &[0, 0, 5]), "ascend"),
        (starts(&[0, 3, 6], &[0, 0, 5]), "at most the rows"),
        (starts(&[0, -3, 5], &[0, 0, 5]), "negative"),
        (starts(&[0, 3, 5], &[0, 5]), "cu_seqlens_k"),
        (starts(&[], &[0, 5]), "batch"),
        (read(&[("cu_seqlens_q", "I32", &[3], ints(&[0, 3, 5]))]), "k"),
        (read(&[("cu_seqlens_q", "F32", &[3], ints(&[0, 3, 5]))]), "dtype"),
    ] {
        let error = found.map(|inputs| inputs.problem).expect_err(needle);
        assert!(error.contains(needle), "{needle}: {error}");
    }
}
