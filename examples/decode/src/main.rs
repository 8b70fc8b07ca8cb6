//! Decoding with a KV cache in pages, a token of two sequences at a time: on GPU 0, or where there is none on the simulator.

use ferroflash::attention::HostOperand;
use ferroflash::problem::{BlockTable, Operand, Pages};
use ferroflash::{Attention, CudaOptions, Dtype, Error, HostTensors, Problem, SimOptions, Sizes};
use half::f16;

const HEADS: usize = 4;
const HEAD_DIM: usize = 64;
const PAGE: usize = 16;
const PAGES: usize = 6;

fn main() -> Result<(), Error> {
    let attention = match Attention::cuda(&CudaOptions::default()) {
        Err(Error::NoDriver { .. }) => Attention::simulator(None, SimOptions::default())?,
        opened => opened?,
    };
    println!("on {}, kernels from {}", attention.device_name(), attention.library().folder().display());

    // Sequence 0 has the pages 4 and 1, sequence 1 has 2 and 5. Tensors are [pages, page, heads, head_dim].
    let table = [4, 1, 2, 5];
    let entries = table.len() as u32 / 2;
    let sizes = Sizes {
        batch: 2,
        heads_q: HEADS as u32,
        heads_kv: HEADS as u32,
        seqlen_q: 1,
        seqlen_k: entries * PAGE as u32,
        head_dim: HEAD_DIM as u32,
    };
    let pages = Pages { page: PAGE as u32, pages: PAGES as u32, table: BlockTable::Rows { entries } };
    let problem = Problem::new(sizes, Dtype::F16)?.with_lengths(true).with_pages(pages)?;
    let plan = attention.plan(&problem)?;
    let (mut k, mut v) = (vec![0u16; problem.k_len()], vec![0u16; problem.v_len()]);

    // Every key is 0, so all weigh the same, and O is the mean of the values.
    let q = vec![f16::ONE.to_bits(); problem.q_len()];
    let mut lengths = [3u32, 15];
    for step in 0..3 {
        for (sequence, length) in lengths.iter_mut().enumerate() {
            let page = table[sequence * entries as usize + *length as usize / PAGE] as usize;
            let row = (page * PAGE + *length as usize % PAGE) * HEADS * HEAD_DIM;
            k[row..row + HEADS * HEAD_DIM].fill(f16::ZERO.to_bits());
            v[row..row + HEADS * HEAD_DIM].fill(f16::ONE.to_bits());
            *length += 1;
        }
        let tensors = HostTensors::new(&q, &k, &v)
            .with_seqlens_k(Some(&lengths))
            .with_operand(Operand::BlockTable, HostOperand::I32(&table));
        let output = attention.forward_with(&plan, &tensors, false)?;
        for (sequence, length) in lengths.into_iter().enumerate() {
            let mean = f16::from_bits(output.o[sequence * HEADS * HEAD_DIM]).to_f32();
            let expected = (step + 1) as f32 / length as f32;
            println!("step {step}, sequence {sequence}: {length} keys, mean of V {mean:.4}");
            assert!((mean - expected).abs() < 1e-3, "{expected} expected");
        }
    }
    Ok(())
}
