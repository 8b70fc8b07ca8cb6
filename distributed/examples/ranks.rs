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
    // Q and K are 0, so that every key counts as much; V is 1, and so is O.
    q.fill(0)?;
    k.fill(0)?;
    v.write(0, &vec![0x3f80u16; context.bytes(TensorRole::V) as usize / 2])?;
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
    let mut row = [0u16; 4];
    o.read(0, &mut row)?;
    let traffic = context.traffic();
    println!("rank {rank}: O starts with {row:x?}, {:.1} MB received", traffic.received as f64 / 1e6);
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
