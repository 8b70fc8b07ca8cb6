//! What the tests share: the command as a process, files to feed it, problems.

use check::kernel_folder;
use ferroflash::device::sim::SimDevice;
use ferroflash::module::Library;
use ferroflash::{Attention, DeviceModel, Dtype, Problem, SimOptions, Sizes};
use kernels_gpu::manifest::Kernel;
use ptx_sim::Schedule;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

/// Makes `trials()` of a module's test functions.
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        /// The tests of this module.
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            vec![$({
                let name = concat!(module_path!(), "::", stringify!($name));
                let name = name.split_once("::").map_or(name, |(_, name)| name);
                libtest_mimic::Trial::test(name, || {
                    $name();
                    Ok(())
                })
            }),*]
        }
    };
}
pub(crate) use trials;

/// The command: that of FERROFLASH_BIN, for machines without cargo, or built now from this workspace.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| given("FERROFLASH_BIN").unwrap_or_else(|| built("ferroflash", "executable")))
}

/// The lab: that of FERROFLASH_LAB, or built now from this workspace.
pub(crate) fn lab_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| given("FERROFLASH_LAB").unwrap_or_else(|| built("lab", "executable")))
}

/// The library that takes a CUDA driver's place: that of FERROFLASH_FAKE_DRIVER, or built now.
pub(crate) fn fake_driver() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY
        .get_or_init(|| given("FERROFLASH_FAKE_DRIVER").unwrap_or_else(|| built("fake_driver", "filenames")))
}

/// The library that takes NCCL's place: that of FERROFLASH_FAKE_NCCL, or built now.
pub(crate) fn fake_nccl() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| given("FERROFLASH_FAKE_NCCL").unwrap_or_else(|| built("fake_nccl", "filenames")))
}

fn given(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// The file of a target that cargo names under a key. All that the tests run is built at once: cargo would compile what two of them share
/// once for each, as it has other features there.
fn built(target: &str, key: &str) -> PathBuf {
    static MESSAGES: OnceLock<Vec<serde_json::Value>> = OnceLock::new();
    let messages = MESSAGES.get_or_init(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--message-format", "json"]);
        let packages = ["ferroflash-cli", "lab", "fake_driver", "fake_nccl"];
        cargo.args(packages.iter().flat_map(|package| ["--package", package]));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let output = cargo.output().expect("cargo runs");
        assert!(output.status.success(), "what the tests run builds");
        let messages = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
        messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    });
    let file = |message: &serde_json::Value| {
        let file = [&message[key], &message[key][0]].into_iter().find_map(serde_json::Value::as_str);
        file.filter(|_| message["target"]["name"] == target).map(PathBuf::from)
    };
    messages.iter().find_map(file).expect("cargo names the file")
}

/// What a kernel has to have for a fault to be planted, and to start under the one before it; no program.
const BODY: &str = "\t// sm_90: griddepcontrol.wait;\n$L:\n\tmma.sync;\n\tselp.f32 a, b, 0fFF800000, p;\n\tex2.approx.f32 a, b;\n\tbra $L;\n\
                    \tst.global.v4.b32 [a], {a, a, a, a};\n\tret;";

/// Writes a folder of kernels with the table's entries, whose PTX is no program: for devices that run none.
pub(crate) fn write_kernels(folder: &Path, change: impl Fn(&mut Kernel)) {
    kernel_folder::write_table(folder, BODY, change).expect("written");
}

/// How a run of the command ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the command in a folder.
pub(crate) fn ferroflash(folder: &Path, args: &[&str]) -> Ended {
    ferroflash_with(folder, args, &[])
}

/// Runs the command in a folder with environment variables.
pub(crate) fn ferroflash_with(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let output = Command::new(binary())
        .args(args)
        .current_dir(folder)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the command starts");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

impl Ended {
    /// Asserts that the run was refused in one line that holds every needle, and printed no result.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, needles: &[&str]) {
        self.refused_after_output(code, needles);
        assert_eq!(self.stdout, "");
    }

    /// As [`Ended::refused`], where other results came before.
    #[track_caller]
    pub(crate) fn refused_after_output(&self, code: i32, needles: &[&str]) {
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.contains("error:")).collect();
        assert_eq!(errors.len(), 1, "one line of error in: {}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        for needle in needles {
            assert!(errors[0].contains(needle), "{needle:?} is in: {}", errors[0]);
        }
        assert_eq!(self.code, Some(code), "exit code of: {}", self.stderr);
    }

    /// Asserts that the run succeeded.
    #[track_caller]
    pub(crate) fn succeeded(&self) -> &Ended {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Stdout as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).expect("one JSON value on stdout")
    }
}

/// A fresh folder, gone with its owner.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// The names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// A tensor for a file: name, safetensors dtype, shape, bytes.
pub(crate) type FileTensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// A safetensors file, made by hand so that it can also be wrong.
pub(crate) fn safetensors(tensors: &[FileTensor<'_>], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        let metadata: serde_json::Map<_, _> =
            metadata.iter().map(|&(key, value)| (key.to_owned(), value.into())).collect();
        header.insert("__metadata__".to_owned(), metadata.into());
    }
    let mut data = Vec::<u8>::new();
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend(bytes);
        let entry =
            serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    file
}

/// The bytes of one tensor in a safetensors file, and its header entry.
pub(crate) fn tensor(path: &Path, name: &str) -> (Vec<u8>, serde_json::Value) {
    let file = fs::read(path).expect("readable");
    let length = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).expect("a JSON header");
    let offset = |at: usize| header[name]["data_offsets"][at].as_u64().expect("an offset") as usize;
    (file[8 + length + offset(0)..8 + length + offset(1)].to_vec(), header[name].clone())
}

/// `count` float16 elements, each 0.5.
pub(crate) fn halves(shape: &[usize]) -> Vec<u8> {
    half::f16::from_f32(0.5).to_bits().to_le_bytes().repeat(shape.iter().product())
}

/// Writes `qkv.safetensors` with float16 tensors of these shapes.
pub(crate) fn write_qkv(folder: &Path, q: &[usize], k: &[usize], v: &[usize]) {
    let tensors = [("q", "F16", q, halves(q)), ("k", "F16", k, halves(k)), ("v", "F16", v, halves(v))];
    fs::write(folder.join("qkv.safetensors"), safetensors(&tensors, &[])).expect("written");
}

/// An npy file of version 1.
pub(crate) fn npy(descr: &str, fortran_order: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran_order { "True" } else { "False" };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.into_bytes());
    file.extend(data);
    file
}

/// The compiled kernels, read and hashed once for all tests: most of them open a device of their own, and some many.
pub(crate) fn library() -> Arc<Library> {
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| Arc::new(Library::find(None).expect("compiled kernels"))).clone()
}

/// A fresh simulator with the compiled kernels.
pub(crate) fn on_simulator(options: SimOptions) -> Attention {
    Attention::new(Arc::new(SimDevice::new(options)), library()).expect("a device that is supported")
}

/// A simulator that stands for a device, with the compiled kernels.
pub(crate) fn simulator(model: &'static DeviceModel) -> Attention {
    on_simulator(SimOptions::default().with_model(model))
}

/// An H200 whose CTAs and warps run in such an order.
pub(crate) fn scheduled(schedule: Schedule) -> Attention {
    let options = SimOptions::default().with_model(DeviceModel::H200).with_schedule(schedule);
    on_simulator(options)
}

/// A problem, by the numbers of `--shape`.
pub(crate) fn problem(
    dtype: Dtype,
    [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim]: [u32; 6],
) -> Problem {
    Problem::new(Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim }, dtype).expect("valid")
}
