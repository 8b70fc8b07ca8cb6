//! A device in the host's memory, whose every kernel is the float64 reference, with errors planted on demand.
//!
//! Plan, parameters, strides, memory and guard bands are the same code as for a GPU.

use crate::support;
use check::random_input::{self, InputKind};
use check::reference::{reference, row_coordinates, row_start};
use check::tolerance::Verdict;
use check::verification::{Grid, KernelRun, Observer, Oracle, RowReport, RunKernel, verify_rows};
use ferroflash::device::{self, Device, DeviceInfo, LoadedKernel};
use ferroflash::module::{Image, Library};
use ferroflash::rounding::narrow;
use ferroflash::{
    Attention, DeviceModel, Dtype, ElementStrides, Error, HostTensors, Layout, Output, PlanOptions, Problem,
    Sizes, StreamHandle, TensorRole,
};
use kernels_gpu::params::{ForwardParams, Strides, TensorMap};
use kernels_gpu::row::Accumulation;
use kernels_gpu::table::VARIANTS;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::{Arc, Mutex};

support::trials!(
    a_tensor_goes_to_the_device_and_back_in_both_layouts,
    the_grid_passes_on_right_kernels,
    a_write_outside_the_output_is_reported,
    a_read_past_the_keys_shows,
    a_row_that_is_not_written_shows,
    swapped_layouts_show,
);

#[derive(Clone, Copy, PartialEq)]
enum Planted {
    Nothing,
    WritesPastO,
    WritesBeforeLse,
    ReadsPastK,
    SkipsLastRow,
    SwapsRowAndHeadStrides,
}

struct HostDevice {
    info: DeviceInfo,
    planted: Planted,
    /// Entries, by handle.
    loaded: Mutex<Vec<String>>,
    /// Allocations by address; they lie far apart.
    memory: Mutex<BTreeMap<u64, Vec<u8>>>,
}

const SPACING: u64 = 1 << 32;

impl HostDevice {
    fn bytes<R>(&self, address: u64, length: usize, access: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut memory = self.memory.lock().expect("unpoisoned");
        let block = memory.get_mut(&(address / SPACING * SPACING)).expect("allocated");
        let at = (address % SPACING) as usize;
        access(&mut block[at..at + length])
    }

    fn words(&self, address: u64, elements: usize) -> Vec<u16> {
        self.bytes(address, elements * 2, |bytes| {
            bytes.as_chunks().0.iter().map(|&word| u16::from_ne_bytes(word)).collect()
        })
    }
}

impl Device for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory_free(&self) -> Result<u64, Error> {
        Ok(self.info.memory_bytes)
    }

    fn alloc(&self, bytes: u64) -> Result<u64, Error> {
        let mut memory = self.memory.lock().expect("unpoisoned");
        let address = memory.last_key_value().map_or(SPACING, |(address, _)| address + SPACING);
        memory.insert(address, vec![0x5a; bytes as usize]);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        self.memory.lock().expect("unpoisoned").remove(&address).expect("allocated");
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.bytes(address, bytes.len(), |memory| memory.copy_from_slice(bytes));
        Ok(())
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.bytes(address, bytes.len(), |memory| bytes.copy_from_slice(memory));
        Ok(())
    }

    unsafe fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), Error> {
        self.bytes(address, bytes as usize, |memory| memory.fill(value));
        Ok(())
    }

    fn load(&self, image: &Image) -> Result<LoadedKernel, Error> {
        let mut loaded = self.loaded.lock().expect("unpoisoned");
        loaded.push(image.entry.clone());
        let handle = loaded.len() as u64 - 1;
        Ok(LoadedKernel::new(handle, image))
    }

    fn tensor_map(&self, _: &device::TensorBox) -> Result<TensorMap, Error> {
        Ok(TensorMap::default())
    }

    unsafe fn check_stream(&self, _: StreamHandle) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn is_capturing(&self, _: StreamHandle) -> Result<bool, Error> {
        Ok(false)
    }

    unsafe fn launch(
        &self,
        kernel: &LoadedKernel,
        launch: &device::Launch<'_>,
        _: StreamHandle,
    ) -> Result<(), Error> {
        let entry = self.loaded.lock().expect("unpoisoned")[kernel.handle as usize].clone();
        let launch = Launch::new(&entry, launch.params, self.planted);
        let problem = &launch.problem;
        let [q, k, v, o, lse] = launch.addresses;
        let inputs = [(q, problem.q_len()), (k, problem.k_len()), (v, problem.v_len())]
            .map(|(address, elements)| self.words(address, elements));
        let computed = reference(problem, &inputs[0], &inputs[1], &inputs[2], &|_, _| ());
        let rows = problem.lse_len() - usize::from(self.planted == Planted::SkipsLastRow);
        let head_dim = problem.sizes().head_dim as usize;
        for row in 0..rows {
            let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
            let bits = computed.o[start..start + head_dim].iter().map(|&o| narrow(problem.dtype(), o));
            let bytes: Vec<u8> = bits.flat_map(u16::to_ne_bytes).collect();
            self.bytes(o + 2 * start as u64, bytes.len(), |memory| memory.copy_from_slice(&bytes));
        }
        for (row, &value) in computed.lse.iter().enumerate().filter(|_| lse != 0) {
            let bytes = (value as f32).to_ne_bytes();
            self.bytes(lse + 4 * row as u64, 4, |memory| memory.copy_from_slice(&bytes));
        }
        match self.planted {
            Planted::WritesPastO => {
                self.bytes(o + 2 * problem.o_len() as u64 + 10, 2, |memory| memory.fill(0))
            }
            Planted::WritesBeforeLse => self.bytes(lse - 8, 4, |memory| memory.fill(0)),
            _ => {}
        }
        Ok(())
    }

    unsafe fn synchronize(&self, _: StreamHandle) -> Result<(), Error> {
        Ok(())
    }
}

/// A launch, read back from its parameters.
struct Launch {
    problem: Problem,
    addresses: [u64; 5],
}

impl Launch {
    fn new(entry: &str, params: &[u8], planted: Planted) -> Launch {
        let u32_at = |at: usize| u32::from_ne_bytes(params[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_ne_bytes(params[at..at + 8].try_into().expect("8 bytes"));
        let row = VARIANTS.iter().find(|variant| variant.entry == entry).expect("in the table").row;
        let heads_q = u32_at(offset_of!(ForwardParams, heads_q));
        let extra_keys = u32::from(planted == Planted::ReadsPastK);
        let sizes = Sizes {
            batch: u32_at(offset_of!(ForwardParams, batch)),
            heads_q,
            heads_kv: heads_q / u32_at(offset_of!(ForwardParams, group)),
            seqlen_q: u32_at(offset_of!(ForwardParams, seqlen_q)),
            seqlen_k: u32_at(offset_of!(ForwardParams, seqlen_k)) + extra_keys,
            head_dim: row.head_dim,
        };
        let scale = f32::from_bits(u32_at(offset_of!(ForwardParams, scale_log2))) / std::f32::consts::LOG2_E;
        let mut problem = Problem::new(sizes, row.dtype)
            .and_then(|problem| problem.with_scale(scale))
            .expect("valid")
            .with_causal(u32_at(offset_of!(ForwardParams, causal)) == 1);
        for (role, at) in [
            (TensorRole::Q, offset_of!(ForwardParams, q_strides)),
            (TensorRole::K, offset_of!(ForwardParams, k_strides)),
            (TensorRole::V, offset_of!(ForwardParams, v_strides)),
            (TensorRole::O, offset_of!(ForwardParams, o_strides)),
        ] {
            let elements = |field: usize| u64_at(at + field) as i64 / i64::from(row.dtype.bytes());
            let [batch, mut head, mut row] =
                [offset_of!(Strides, batch), offset_of!(Strides, head), offset_of!(Strides, row)]
                    .map(elements);
            if planted == Planted::SwapsRowAndHeadStrides && role == TensorRole::K {
                std::mem::swap(&mut head, &mut row);
            }
            let strides = ElementStrides { batch, head, row, dim: 1 };
            problem = problem.with_strides(role, strides).expect("valid");
        }
        let at = [
            offset_of!(ForwardParams, q),
            offset_of!(ForwardParams, k),
            offset_of!(ForwardParams, v),
            offset_of!(ForwardParams, o),
            offset_of!(ForwardParams, lse),
        ];
        Launch { problem, addresses: at.map(u64_at) }
    }
}

/// The device with a library of the table's kernels, whose PTX is empty.
fn attention(planted: Planted) -> Attention {
    let folder = support::folder();
    support::write_kernels(folder.path(), |_| ());
    let library = Library::open(folder.path()).expect("valid");
    for family in library.families() {
        library.family_ptx(&family.arch).expect("read while the folder is there");
    }
    let mut info = DeviceModel::L4.with_sm_count(4).info();
    (info.name, info.sm, info.memory_bytes) = ("host memory".to_owned(), 80, 1 << 30);
    let device = HostDevice { info, planted, loaded: Mutex::default(), memory: Mutex::default() };
    Attention::new(Arc::new(device), Arc::new(library)).expect("new enough")
}

fn a_tensor_goes_to_the_device_and_back_in_both_layouts() {
    let attention = attention(Planted::Nothing);
    for layout in [Layout::Bhsd, Layout::Bshd] {
        let problem =
            support::problem(Dtype::Bf16, [2, 4, 2, 33, 65, 64]).with_layout(layout).with_causal(true);
        let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 1);
        let expected = reference(&problem, &q, &k, &v, &|_, _| ());
        let bits = expected.rounded(Dtype::Bf16).o;
        let output = attention.forward(&problem, &q, &k, &v, true).expect("computed");
        let different = output.o.iter().zip(&bits).filter(|(a, b)| a != b).count();
        // The scale is rounded once on its way through log2(e).
        assert!(different <= output.o.len() / 1000, "{different} of {}", output.o.len());
        assert_eq!(output.lse.expect("asked for").len(), problem.lse_len());
        assert_eq!(attention.forward(&problem, &q, &k, &v, false).expect("computed").lse, None);
        let short = attention.forward(&problem, &q[1..], &k, &v, false);
        assert!(matches!(short, Err(Error::WrongLength { tensor: "Q", .. })));
    }
}

struct Quiet;

impl Observer for Quiet {
    fn advanced(&mut self, _: usize, _: usize) {}
    fn finished(&mut self, _: &RowReport) {}
}

fn the_grid_passes_on_right_kernels() {
    let attention = attention(Planted::Nothing);
    let kernels = &attention.library().kernels()[..2];
    for report in verify_rows(kernels, Grid::Quick, 2, 3, &attention, &mut Quiet).expect("posed") {
        assert_eq!(report.failed, 0, "{report:?}");
    }
}

/// One guarded run of a kernel with a planted error, judged.
fn judged(planted: Planted, layout: Layout) -> Result<Verdict, Error> {
    let attention = attention(planted);
    let problem = support::problem(Dtype::F16, [1, 2, 2, 33, 65, 64]).with_layout(layout);
    let qkv = random_input::qkv(&problem, InputKind::Random, 3);
    let plan = attention.plan(&problem).expect("planned");
    let (kernel, options) = (&Arc::new(plan.kernel().clone()), &PlanOptions::new());
    let tensors = HostTensors::from(&qkv);
    let output: Output = attention.run(&KernelRun { kernel, problem: &problem, options, tensors })?;
    Oracle::new(&problem, qkv, None, &[Accumulation::F32], &|_, _| ()).judge(Accumulation::F32, &output)
}

fn a_write_outside_the_output_is_reported() {
    let after = judged(Planted::WritesPastO, Layout::Bhsd);
    assert!(
        matches!(after, Err(Error::GuardBand { tensor: "O", distance: 10, side: "after", .. })),
        "{after:?}"
    );
    let before = judged(Planted::WritesBeforeLse, Layout::Bhsd);
    assert!(matches!(before, Err(Error::GuardBand { tensor: "LSE", side: "before", .. })), "{before:?}");
}

fn a_read_past_the_keys_shows() {
    let verdict = judged(Planted::ReadsPastK, Layout::Bhsd).expect("ran");
    assert!(!verdict.passed && verdict.not_finite_mismatches > 0, "{verdict}");
}

fn a_row_that_is_not_written_shows() {
    let verdict = judged(Planted::SkipsLastRow, Layout::Bhsd).expect("ran");
    assert!(!verdict.passed && verdict.worst == [0, 1, 32, 0], "{verdict}");
    assert_eq!(verdict.not_finite_mismatches, 64);
}

fn swapped_layouts_show() {
    let verdict = judged(Planted::SwapsRowAndHeadStrides, Layout::Bshd).expect("ran");
    assert!(!verdict.passed, "{verdict}");
}
