//! `cargo bench --bench host`: what the host does around a kernel, anywhere.

use benches::kernels::Kernels;
use benches::null_device::NullDevice;
use benches::problems::{self, DECODE, Shape};
use check::random_input::{self, InputKind};
use check::reference::reference;
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use ferroflash::output_file::OutputFile;
use ferroflash::plan::Addresses;
use ferroflash::tensor_file::{self, Options, Source};
use ferroflash::{
    Attention, Combine, DeviceTensors, Dtype, Layout, Plan, PlanOptions, Problem, Sizes, Splits, StreamHandle,
};
use safetensors::tensor::TensorView;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

const SHORT: Shape = [2, 8, 8, 512, 512, 64];
const TENSORS: DeviceTensors = DeviceTensors::new(256, 512, 768, 1024);

fn main() {
    let what = if kernels().are_generated() { "generated, as none are compiled" } else { "compiled" };
    println!("kernels: {what}");
    divan::main();
}

fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(|| Kernels::find().expect("a folder of kernels"))
}

fn attention() -> &'static Attention {
    static ATTENTION: OnceLock<Attention> = OnceLock::new();
    ATTENTION.get_or_init(|| {
        let library = kernels().open().expect("valid kernels");
        Attention::new(Arc::new(NullDevice::default()), library).expect("a new enough device")
    })
}

fn problem(shape: Shape) -> Problem {
    problems::problem(shape, Dtype::F16).expect("a valid problem")
}

/// From a problem to a launch that a device takes, which here does nothing.
mod launch {
    use super::*;

    #[divan::bench]
    fn validate() -> Problem {
        let sizes = Sizes { batch: 2, heads_q: 8, heads_kv: 8, seqlen_q: 512, seqlen_k: 512, head_dim: 64 };
        Problem::new(black_box(sizes), Dtype::F16).expect("valid").with_causal(true)
    }

    /// The last shape has one tile, so that as many splits as there may be are weighed.
    #[divan::bench(args = [SHORT, DECODE, [1, 8, 1, 1, 65536, 128]])]
    fn plan(bencher: Bencher<'_, '_>, shape: Shape) {
        let problem = problem(shape);
        bencher.bench(|| attention().planner().plan(black_box(&problem), &PlanOptions::new()));
    }

    #[divan::bench]
    fn kept_plan(bencher: Bencher<'_, '_>) {
        let problem = problem(DECODE);
        bencher.bench(|| attention().plan(black_box(&problem)));
    }

    #[divan::bench]
    fn parameter_block(bencher: Bencher<'_, '_>) {
        let plan = attention().plan(&problem(SHORT)).expect("a plan");
        let addresses = Addresses { q: 256, k: 512, v: 768, o: 1024, ..Addresses::default() };
        bencher.bench(|| plan.params(black_box(&addresses)).to_bytes());
    }

    /// The second shape splits its keys, in a workspace, and merges them in the same launch.
    #[divan::bench(args = [SHORT, DECODE])]
    fn planned(bencher: Bencher<'_, '_>, shape: Shape) {
        let plan = reserved(shape, if shape == DECODE { Combine::Fused } else { Combine::Auto });
        assert_eq!((plan.is_fused(), plan.combine().is_some()), (shape == DECODE, false));
        bencher.bench(|| {
            // SAFETY: the device reads and writes nothing.
            unsafe { attention().launch(black_box(&plan), &TENSORS, StreamHandle::DEFAULT) }
        });
    }

    /// The same with the merge in a launch of its own.
    #[divan::bench]
    fn planned_two_launches(bencher: Bencher<'_, '_>) {
        let plan = reserved(DECODE, Combine::Kernel);
        assert!(plan.combine().is_some());
        bencher.bench(|| {
            // SAFETY: the device reads and writes nothing.
            unsafe { attention().launch(black_box(&plan), &TENSORS, StreamHandle::DEFAULT) }
        });
    }

    #[divan::bench(args = [SHORT, DECODE])]
    fn unplanned(bencher: Bencher<'_, '_>, shape: Shape) {
        let problem = problem(shape);
        reserved(shape, Combine::Auto);
        bencher.bench(|| {
            // SAFETY: the device reads and writes nothing.
            unsafe { attention().forward_device(black_box(&problem), &TENSORS, StreamHandle::DEFAULT) }
        });
    }

    /// A plan whose kernels are loaded and whose workspace is there: reading and cutting the PTX is no part of a further launch.
    fn reserved(shape: Shape, combine: Combine) -> Plan {
        let splits = if shape == DECODE { Splits::Count(4) } else { Splits::Auto };
        let options = PlanOptions { combine, splits, ..PlanOptions::new() };
        let plan = attention().planner().plan(&problem(shape), &options).expect("a plan");
        // SAFETY: the default stream lives always, and the device works on nothing.
        unsafe { attention().reserve(&plan, StreamHandle::DEFAULT) }.expect("reserved");
        plan
    }
}

/// Opening the folder of kernels and cutting one out of it.
mod module {
    use super::*;

    #[divan::bench]
    fn open_manifest() -> usize {
        kernels().open().expect("valid kernels").kernels().len()
    }

    #[divan::bench]
    fn read_and_hash_ptx(bencher: Bencher<'_, '_>) {
        let (family, bytes) = first_family();
        bencher
            .counter(BytesCount::new(bytes))
            .with_inputs(|| kernels().open().expect("valid kernels"))
            .bench_refs(|library| library.family_ptx(&family).expect("the hash agrees").len());
    }

    #[divan::bench]
    fn cut_entry(bencher: Bencher<'_, '_>) {
        let (family, bytes) = first_family();
        let read = || {
            let library = kernels().open().expect("valid kernels");
            library.family_ptx(&family).expect("the hash agrees");
            library
        };
        bencher.counter(BytesCount::new(bytes)).with_inputs(read).bench_refs(|library| {
            let last = library.kernels().iter().rfind(|kernel| kernel.family == family).expect("a kernel");
            library.kernel_ptx(last).expect("there").len()
        });
    }

    fn first_family() -> (String, usize) {
        let library = kernels().open().expect("valid kernels");
        let family = library.families().first().expect("a family").arch.clone();
        let bytes = library.family_ptx(&family).expect("the hash agrees").len();
        (family, bytes)
    }
}

/// The float64 oracle, on all cores; items are query rows.
#[divan::bench(
    sample_count = 5,
    args = [[1, 1, 1, 128, 128, 64], [1, 2, 2, 512, 512, 64], [1, 8, 8, 1024, 1024, 64], [1, 2, 2, 512, 512, 256]]
)]
fn reference_f64(bencher: Bencher<'_, '_>, shape: Shape) {
    let problem = problem(shape);
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 1);
    bencher
        .counter(ItemsCount::new(problem.lse_len()))
        .bench(|| reference(black_box(&problem), &q, &k, &v, &|_, _| {}));
}

/// Tensor files of [`SHORT`], in and out of a temporary folder: what the page cache gives, not a disk.
mod tensor_files {
    use super::*;

    #[divan::bench]
    fn read_safetensors(bencher: Bencher<'_, '_>) {
        read(bencher, &Source::Safetensors(Files::get().path("qkv.safetensors")));
    }

    #[divan::bench]
    fn read_npy(bencher: Bencher<'_, '_>) {
        let [q, k, v] = ["q.npy", "k.npy", "v.npy"].map(|name| Files::get().path(name));
        read(bencher, &Source::Npy { q, k, v });
    }

    #[divan::bench]
    fn write_safetensors(bencher: Bencher<'_, '_>) {
        write(bencher, "o.safetensors");
    }

    #[divan::bench]
    fn write_npy(bencher: Bencher<'_, '_>) {
        write(bencher, "o.npy");
    }

    fn read(bencher: Bencher<'_, '_>, source: &Source) {
        let problem = problem(SHORT);
        let bytes = 2 * (problem.q_len() + problem.k_len() + problem.v_len());
        bencher
            .counter(BytesCount::new(bytes))
            .bench(|| tensor_file::read(black_box(source), &Options::default()).expect("a valid file"));
    }

    fn write(bencher: Bencher<'_, '_>, name: &str) {
        let (problem, path) = (problem(SHORT), Files::get().path(name));
        let [o, _, _] = random_input::qkv(&problem, InputKind::Random, 1);
        bencher.counter(BytesCount::new(2 * o.len())).bench(|| write_tensor(&problem, &path, &o));
    }

    fn write_tensor(problem: &Problem, path: &Path, o: &[u16]) {
        let file = OutputFile::create(path, true).expect("a writable folder");
        tensor_file::write(file, problem, Layout::Bhsd, o, None).expect("written");
    }

    /// Q, K and V in both formats.
    struct Files(TempDir);

    impl Files {
        fn write() -> std::io::Result<Files> {
            let files = Files(tempfile::tempdir()?);
            let problem = problem(SHORT);
            // Q, K and V have one shape here, that of O.
            let tensors = random_input::qkv(&problem, InputKind::Random, 1);
            for (name, tensor) in ["q.npy", "k.npy", "v.npy"].into_iter().zip(&tensors) {
                write_tensor(&problem, &files.path(name), tensor);
            }
            let bytes =
                tensors.map(|tensor| tensor.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>());
            let [batch, heads, _, seqlen, _, head_dim] = SHORT.map(|size| size as usize);
            let view = |bytes| {
                TensorView::new(safetensors::Dtype::F16, vec![batch, heads, seqlen, head_dim], bytes)
                    .expect("as many bytes as the shape says")
            };
            let views = ["q", "k", "v"].into_iter().zip(bytes.iter().map(|bytes| view(bytes)));
            let file = safetensors::serialize(views, None).expect("valid tensors");
            std::fs::write(files.path("qkv.safetensors"), file)?;
            Ok(files)
        }

        fn get() -> &'static Files {
            static FILES: OnceLock<Files> = OnceLock::new();
            FILES.get_or_init(|| Files::write().expect("a temporary folder"))
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }
    }
}
