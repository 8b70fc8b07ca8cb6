//! One rank of a prompt that is split among several GPUs, over NCCL: a process a GPU, started with the same folder for all.
//!
//! ```text
//! RANK=0 WORLD_SIZE=2 cargo run --release -p ferroflash-distributed --example ranks -- shared-folder &
//! RANK=1 WORLD_SIZE=2 cargo run --release -p ferroflash-distributed --example ranks -- shared-folder
//! ```
//!
//! `torchrun`, Slurm and MPI set such variables under names of their own; the id of the communicator may travel by any of them.

use ferroflash::device::Buffer;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::module::Library;
use ferroflash::problem::TensorRole;
use ferroflash::{Attention, Dtype, L2Policy, Problem, Sizes, StreamHandle};
use ferroflash_distributed::nccl::{Nccl, NcclOptions, UniqueId};
use ferroflash_distributed::{ContextOptions, ContextParallel, RankTensors};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (rank, world) = (number("RANK").unwrap_or(0), number("WORLD_SIZE").unwrap_or(1));
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let id = shared_id(Path::new(&folder), rank)?;

    let device = Arc::new(CudaDevice::open(number("LOCAL_RANK").unwrap_or(rank), L2Policy::Default)?);
    let attention = Arc::new(Attention::new(device.clone(), Arc::new(Library::find(None)?))?);
    let limit = Duration::from_secs(number("LIMIT_S").unwrap_or(30).into());
    let nccl = Nccl::from_id(&device, &id, (rank, world), &NcclOptions { limit, ..NcclOptions::default() })?;

    // The whole prompt; this rank holds two chunks of it, one behind the other.
    let tokens = number("TOKENS").unwrap_or(16384);
    let sizes =
        Sizes { batch: 1, heads_q: 32, heads_kv: 8, seqlen_q: tokens, seqlen_k: tokens, head_dim: 128 };
    let problem = Problem::new(sizes, Dtype::Bf16)?.with_causal(true);
    let mut context = ContextParallel::new(attention, Box::new(nccl), &problem, &ContextOptions::default())?;
    let [first, second] = context.sharding(TensorRole::Q).rows_of(rank);
    println!("rank {rank} of {world} holds tokens {first:?} and {second:?}");

    let memory = |role| Buffer::new(&device, context.bytes(role));
    let (q, k, v, o) =
        (memory(TensorRole::Q)?, memory(TensorRole::K)?, memory(TensorRole::V)?, memory(TensorRole::O)?);
    // Q and K are 0, so that every key counts as much; V is 1, 2, 4 and so on from rank to rank.
    q.fill(0)?;
    k.fill(0)?;
    let value = |of: u32| 0x3f80 + 0x80 * of as u16;
    v.write(0, &vec![value(rank); context.bytes(TensorRole::V) as usize / 2])?;
    let tensors = RankTensors { q: q.address(), k: k.address(), v: v.address(), o: o.address(), lse: None };
    // SAFETY: the tensors are as long as the context says, and live until the wait is over.
    unsafe {
        context.reserve(StreamHandle::DEFAULT)?;
        // A model calls this once a layer; a rank that is gone by then ends the others with an error.
        for _ in 0..number("CALLS").unwrap_or(1) {
            context.forward(&tensors, StreamHandle::DEFAULT)?;
            context.wait(StreamHandle::DEFAULT)?;
        }
    }
    // The last row of the second chunk is the mean of all values before.
    let float = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
    let sharding = context.sharding(TensorRole::K);
    let seen = |of: u32| {
        let chunks = sharding.rows_of(of);
        chunks.iter().map(|rows| rows.end.min(second.end).saturating_sub(rows.start)).sum::<u32>()
    };
    let sum: f64 = (0..world).map(|of| float(value(of)) * f64::from(seen(of))).sum();
    let mean = sum / f64::from(second.end);
    let mut row = [0u16; 1];
    o.read((first.len() + second.len() - 1) * sizes.head_dim as usize, &mut row)?;
    let traffic = context.traffic();
    let received = traffic.received as f64 / 1e6;
    println!("rank {rank}: O ends with {}, expected {mean:.4}; {received:.1} MB received", float(row[0]));
    if (float(row[0]) / mean - 1.0).abs() > 0.01 {
        return Err("O is wrong".into());
    }
    Ok(())
}

/// Rank 0 makes the id and writes it; the others wait for the file.
fn shared_id(folder: &Path, rank: u32) -> Result<UniqueId, Box<dyn Error>> {
    let (path, unfinished) = (folder.join("nccl-id"), folder.join("nccl-id.unfinished"));
    if rank == 0 {
        let id = UniqueId::new()?;
        std::fs::write(&unfinished, id.to_bytes())?;
        std::fs::rename(&unfinished, &path)?;
        return Ok(id);
    }
    for _ in 0..600 {
        if let Ok(bytes) = std::fs::read(&path) {
            return Ok(UniqueId::from_bytes(bytes.as_slice().try_into()?));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(format!("{} was not written for a minute: is rank 0 running?", path.display()).into())
}
