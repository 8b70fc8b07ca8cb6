//! The one error type of the library: each variant carries what it found and says what to do.

mod nearest;
mod steps;

pub use steps::StepError;

use std::path::PathBuf;

/// What went wrong, with the values that show it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor's shape does not fit the others.
    #[error("{tensor} has shape {got:?}, expected {expected}: give Q, K and V of one problem")]
    ShapeMismatch {
        /// The tensor's name.
        tensor: &'static str,
        /// The shape that would fit, in words.
        expected: String,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A dimension is zero.
    #[error("{tensor} has a zero-sized dimension {dimension}: every dimension must be at least 1")]
    ZeroSized {
        /// The tensor's name.
        tensor: &'static str,
        /// The dimension's name.
        dimension: &'static str,
    },
    /// A size or a product of sizes is more than can be addressed.
    #[error("{what} is too large: {value} (limit {limit})")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its value, in words, as it may not fit any integer.
        value: String,
        /// The largest value allowed.
        limit: u64,
    },
    /// The number of query heads is no multiple of the number of KV heads.
    #[error("heads_q {heads_q} is not a multiple of heads_kv {heads_kv}")]
    HeadsNotDivisible {
        /// Query heads.
        heads_q: u32,
        /// KV heads.
        heads_kv: u32,
    },
    /// No kernel has this head dimension.
    #[error("head_dim {head_dim} has no kernel: {have} have")]
    UnsupportedHeadDim {
        /// The head dimension asked for.
        head_dim: u32,
        /// Those that have kernels.
        have: &'static str,
    },
    /// Dropout that no kernel computes.
    #[error("dropout with p {p} cannot be: {reason}")]
    Dropout {
        /// The probability.
        p: f32,
        /// Why not.
        reason: &'static str,
    },
    /// A mask that no kernel computes.
    #[error("the mask cannot be: {reason}")]
    Mask {
        /// What excludes what.
        reason: &'static str,
    },
    /// A problem whose gradients no kernel computes.
    #[error("no kernel computes its gradients: {reason}")]
    Backward {
        /// What of it, and what to do.
        reason: &'static str,
    },
    /// The pages of a sequence do not hold its keys.
    #[error("{entries} pages of {page} keys do not hold {seqlen_k} keys")]
    Pages {
        /// Keys of a page.
        page: u32,
        /// Entries of the block table of a sequence.
        entries: u32,
        /// The most keys of a sequence.
        seqlen_k: u32,
    },
    /// A user's score that cannot be.
    #[error("the score {score}: {reason}")]
    UserScore {
        /// Its name.
        score: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// An operand is missing, or not one of the problem's.
    #[error("{operand}: {reason}")]
    Operand {
        /// Its name.
        operand: &'static str,
        /// What is wrong and what to do.
        reason: &'static str,
    },
    /// An element of an operand cannot be.
    #[error("{operand}[{index}] is {value}: {reason}")]
    OperandValue {
        /// The operand's name.
        operand: &'static str,
        /// The element's place.
        index: usize,
        /// Its value.
        value: i64,
        /// What it must be.
        reason: &'static str,
    },
    /// A step beside attention that cannot be.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The scale cannot be used.
    #[error("scale {scale} cannot be used: it must be positive and finite")]
    InvalidScale {
        /// The scale asked for.
        scale: f32,
    },
    /// The softcap cannot be used.
    #[error(
        "softcap {cap} cannot be used: it must be positive and finite, and scale / softcap a normal number"
    )]
    InvalidSoftcap {
        /// The softcap asked for.
        cap: f32,
    },
    /// An address or a stride is not aligned.
    #[error("{tensor} is misaligned: {what} {value} is not a multiple of {required} bytes")]
    Misaligned {
        /// The tensor's name.
        tensor: &'static str,
        /// What is misaligned: "address" or "stride of dimension rows".
        what: &'static str,
        /// Its value in bytes.
        value: i128,
        /// The multiple it must be of, in bytes.
        required: u64,
    },
    /// The last dimension is not contiguous.
    #[error("{tensor} is not contiguous in head_dim: stride {stride} elements, must be 1")]
    NotContiguous {
        /// The tensor's name.
        tensor: &'static str,
        /// Its stride in elements.
        stride: i64,
    },
    /// A stride cannot be used.
    #[error("{tensor}: {what} {stride} cannot be used: {reason}")]
    InvalidStride {
        /// The tensor's name.
        tensor: &'static str,
        /// Which stride: "stride of dimension rows".
        what: &'static str,
        /// Its value in elements.
        stride: i64,
        /// Why it cannot be used.
        reason: &'static str,
    },
    /// A slice is shorter or longer than its shape says.
    #[error("{tensor} holds {got} elements, its shape needs {expected}")]
    WrongLength {
        /// The tensor's name.
        tensor: &'static str,
        /// Elements the shape needs.
        expected: usize,
        /// Elements found.
        got: usize,
    },
    /// No CUDA driver could be opened, or there is no device behind it.
    #[error("no CUDA driver: {reason} (searched {searched}); see `ferroflash doctor`")]
    NoDriver {
        /// Where the driver was looked for.
        searched: String,
        /// Why it could not be used.
        reason: String,
    },
    /// The device is older than any kernel.
    #[error("device {name} is sm_{sm}: the kernels need sm_80 (Ampere) or newer")]
    UnsupportedDevice {
        /// The device's name.
        name: String,
        /// Its compute capability, 75 for 7.5.
        sm: u32,
    },
    /// The driver is too old for the PTX.
    #[error(
        "the driver supports CUDA {driver}, the PTX of {entry} needs a newer one: update the driver, or build cubins with `cargo xtask build-ptx --cubin`"
    )]
    DriverTooOld {
        /// The CUDA version the driver supports.
        driver: String,
        /// The kernel.
        entry: String,
    },
    /// The driver's compiler refused a kernel.
    #[error("the driver refused the PTX of {entry}: {log}")]
    PtxRejected {
        /// The kernel.
        entry: String,
        /// The driver's log, in one line.
        log: String,
    },
    /// Device memory ran out.
    #[error("out of device memory: {requested} bytes requested, {free} free")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free at that moment.
        free: u64,
    },
    /// A stream belongs to another device, or to another context of this one.
    #[error(
        "the stream belongs to another context: {device} (device {ordinal}) is used through its primary context; make the stream there"
    )]
    ForeignStream {
        /// The device's name.
        device: String,
        /// Its number.
        ordinal: u32,
    },
    /// The device or its driver keeps nothing in L2 on request.
    #[error(
        "{name} has no L2 cache that can be set aside, or its driver no cuLaunchKernelEx: use the default L2 policy"
    )]
    NoL2ToSetAside {
        /// The device's name.
        name: String,
    },
    /// Bulk copies cannot be told of a tensor.
    #[error(
        "bulk copies do not take {tensor}: its {what} of dimension {dimension} is {value}, allowed are {allowed}; take a kernel without wgmma"
    )]
    NoTensorMap {
        /// The tensor's name.
        tensor: &'static str,
        /// What they do not take: "stride", in bytes, "size" or "block", in elements.
        what: &'static str,
        /// Along which dimension.
        dimension: &'static str,
        /// Its value.
        value: i128,
        /// The values that they take.
        allowed: &'static str,
    },
    /// The device or its driver makes no tensor maps.
    #[error(
        "{name} has no tensor maps for bulk copies: they need compute capability 9.0 and a driver for CUDA 12.0 (525) or newer; update the driver, or take a kernel without wgmma"
    )]
    NoTensorMaps {
        /// The device's name.
        name: String,
    },
    /// More splits of the keys than the kernels merge.
    #[error("{splits} splits of the keys: at most {limit}, and at least 1{advice}")]
    Splits {
        /// Splits asked for, or that a fixed size makes.
        splits: u32,
        /// The most there may be.
        limit: u32,
        /// What else to do; empty or begins with a separator.
        advice: String,
    },
    /// Lengths on the device, or none, against what the problem says.
    #[error("{reason}")]
    Lengths {
        /// What is wrong and what to do.
        reason: &'static str,
    },
    /// A sequence is longer than its K and V.
    #[error("sequence {batch} has {length} keys, its K and V hold {seqlen_k}")]
    LengthTooLong {
        /// The batch entry.
        batch: usize,
        /// Its length.
        length: u32,
        /// Keys of K and V.
        seqlen_k: u32,
    },
    /// A workspace does not hold what a plan keeps there.
    #[error("the workspace has {got} bytes, the plan needs {needed}: see Plan::workspace_bytes")]
    WorkspaceTooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        got: u64,
    },
    /// A workspace is used on another stream than its own.
    #[error(
        "the workspace belongs to stream {bound:#x}, the launch is on {got:#x}: calls on two streams would write to it at a time; make one for each stream"
    )]
    WorkspaceStream {
        /// The stream it was made for.
        bound: u64,
        /// The stream of the launch.
        got: u64,
    },
    /// Memory would have to be allocated while a stream is captured.
    #[error(
        "the stream is being captured and has no workspace of {needed} bytes yet: call Attention::reserve with the plan before the capture"
    )]
    AllocationInCapture {
        /// Bytes needed.
        needed: u64,
    },
    /// Any other call to the driver that failed.
    #[error("CUDA: {call} failed: {reason}")]
    Cuda {
        /// The driver call.
        call: &'static str,
        /// The driver's name for the error.
        reason: String,
    },
    /// A kernel wrote outside its output.
    #[error("{entry} wrote outside {tensor}, {distance} bytes {side} it")]
    GuardBand {
        /// The kernel.
        entry: String,
        /// The output.
        tensor: &'static str,
        /// How far outside, in bytes.
        distance: u64,
        /// "before" or "after".
        side: &'static str,
    },
    /// A kernel left a counter of its workspace in another state than it found it.
    #[error("{entry} left its work counter at another value than 0")]
    CounterNotZero {
        /// The kernel.
        entry: String,
    },
    /// The simulator stopped a kernel, because it broke a rule or cannot be simulated.
    #[error("the simulator stopped {entry}: {reason}")]
    Simulation {
        /// The kernel.
        entry: String,
        /// The finding, with its place.
        reason: String,
    },
    /// No compiled kernels were found.
    #[error(
        "no compiled kernels: {searched} has no manifest.json; run `cargo xtask build-ptx`, or name their folder in FERROFLASH_PTX"
    )]
    NoKernels {
        /// Folders searched.
        searched: String,
    },
    /// The folder of compiled kernels cannot be used.
    #[error("{path}: {reason}; run `cargo xtask build-ptx` again")]
    BadKernels {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No kernel has the name asked for.
    #[error("no kernel {wanted}: of {count} the nearest names are {}", nearest.join(", "))]
    UnknownKernel {
        /// The name.
        wanted: String,
        /// The names that begin most like it.
        nearest: Vec<String>,
        /// Kernels that there are.
        count: usize,
    },
    /// No kernel fits the problem.
    #[error("no kernel {wanted}: {available}")]
    NoSuchKernel {
        /// What was asked for.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A line of a file of measurements is none.
    #[error("{path}: line {line} is no measurement: {reason}")]
    BadRecord {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why not.
        reason: String,
    },
    /// A device profile cannot be used.
    #[error("{path}: not a device profile to plan with: {reason}; `ferroflash tune` writes one")]
    Profile {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The output exists and may not be overwritten.
    #[error("{path} exists: give --force to replace it")]
    OutputExists {
        /// The file.
        path: PathBuf,
    },
    /// A tensor file is damaged or of another kind.
    #[error("{path}: not a readable {format} file: {reason}")]
    BadTensorFile {
        /// The file.
        path: PathBuf,
        /// The format it was read as.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is missing from its file.
    #[error("{path}: no tensor {tensor:?}, found {found:?}")]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor looked for.
        tensor: String,
        /// The tensors in the file.
        found: Vec<String>,
    },
    /// A tensor has an element type that cannot be used.
    #[error("{path}: tensor {tensor} has dtype {got}, supported are {supported}")]
    UnsupportedDtype {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its element type.
        got: String,
        /// The types that can be used.
        supported: &'static str,
    },
    /// A tensor has another element type than the others.
    #[error("{path}: tensor {tensor} has dtype {got}, the others {expected}: give --dtype to convert all")]
    DtypeMismatch {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its element type.
        got: &'static str,
        /// The element type of the others.
        expected: &'static str,
    },
    /// An element is too large for the type it is to be rounded to.
    #[error("{path}: tensor {tensor} holds {value}, which {dtype} cannot: give --dtype bf16, or scale it")]
    DtypeOverflow {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The element.
        value: f64,
        /// The type it does not fit.
        dtype: &'static str,
    },
    /// An output cannot be written under this name.
    #[error("{path} cannot be written: {reason}")]
    OutputFormat {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// A tensor has the wrong number of dimensions.
    #[error("{path}: tensor {tensor} has shape {shape:?}, expected 4 dimensions {layout}")]
    WrongRank {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The dimensions by name.
        layout: &'static str,
    },
}
