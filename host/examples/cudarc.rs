//! Attention on cudarc's slices, on GPU 0: `cargo run --example cudarc --features cudarc-0-19`.

use cudarc::driver::CudaContext;
use ferroflash::cudarc::OnStream;
use ferroflash::{Attention, CudaOptions, Dtype, Problem, Sizes};
use half::bf16;
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let attention = Arc::new(Attention::cuda(&CudaOptions::default())?);
    let stream = CudaContext::new(0)?.new_stream()?;
    let on_stream = OnStream::new(attention.clone(), stream.clone())?;
    // Many queries, and few, whose keys are split and whose workspace is cudarc's.
    for (seqlen_q, seqlen_k) in [(300, 500), (1, 20_000)] {
        let sizes = Sizes { batch: 1, heads_q: 8, heads_kv: 2, seqlen_q, seqlen_k, head_dim: 128 };
        let problem = Problem::new(sizes, Dtype::Bf16)?.with_causal(true);
        let numbers = |seed: usize, length: usize| -> Vec<bf16> {
            (0..length)
                .map(|i| bf16::from_f32(((i * 2_654_435_761 + seed) % 1000) as f32 / 500.0 - 1.0))
                .collect()
        };
        let (q, k, v) =
            (numbers(1, problem.q_len()), numbers(2, problem.k_len()), numbers(3, problem.v_len()));
        let on_device = |numbers: &[bf16]| stream.clone_htod(numbers);
        let (device_q, device_k, device_v) = (on_device(&q)?, on_device(&k)?, on_device(&v)?);
        let mut o = stream.alloc_zeros::<bf16>(problem.o_len())?;
        let mut lse = stream.alloc_zeros::<f32>(problem.lse_len())?;
        for _ in 0..3 {
            on_stream.forward(&problem, [&device_q, &device_k, &device_v], &mut o, Some(&mut lse))?;
        }
        let (o, lse) = (stream.clone_dtoh(&o)?, stream.clone_dtoh(&lse)?);
        let bits = |numbers: &[bf16]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<u16>>();
        let expected = attention.forward(&problem, &bits(&q), &bits(&k), &bits(&v), true)?;
        let same = bits(&o) == expected.o && Some(lse) == expected.lse;
        println!("{seqlen_q} queries, {seqlen_k} keys: the same bits as from host tensors: {same}");
        if !same {
            return Err("the results differ".into());
        }
        // A slice that is too short is refused, not read past its end.
        let short = stream.alloc_zeros::<bf16>(problem.k_len() - 1)?;
        let mut o = stream.alloc_zeros::<bf16>(problem.o_len())?;
        match on_stream.forward(&problem, [&device_q, &short, &device_v], &mut o, None) {
            Err(error) => println!("refused: {error}"),
            Ok(()) => return Err("a short slice was taken".into()),
        }
    }
    Ok(())
}
