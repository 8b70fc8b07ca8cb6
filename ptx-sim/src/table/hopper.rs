//! Forms of sm_90, sm_90a and newer targets: mbarriers, proxy fences, bulk copies, warpgroup matrix products. Each row says the least target
//! (PTX ISA, "Target ISA Notes" of its section).

use super::family::{Family, FamilyRow};

const fn row(
    needs: &'static str,
    family: Family,
    pattern: &'static str,
    section: &'static str,
    meaning: &'static str,
) -> FamilyRow {
    FamilyRow { family, pattern, section, meaning, needs }
}

/// The families.
pub(super) const ROWS: &[FamilyRow] = &[
    row(
        "sm_90",
        Family::ClusterArrive,
        "barrier cluster arrive [release relaxed] [aligned]",
        "9.7.13.3",
        "arrives at the cluster's barrier; releases what the threads did before, unless relaxed",
    ),
    row(
        "sm_90",
        Family::ClusterWait,
        "barrier cluster wait [acquire] [aligned]",
        "9.7.13.3",
        "waits until every thread of the cluster has arrived",
    ),
    row(
        "sm_90",
        Family::MapRank,
        "mapa [shared::cluster] {u32 u64}",
        "9.7.9.23",
        "d = the address in the CTA of rank b of what lies at a in this one",
    ),
    row(
        "sm_90",
        Family::RankOf,
        "getctarank [shared::cluster] {u32 u64}",
        "9.7.9.24",
        "d = the rank of the CTA that a names",
    ),
    row(
        "sm_80",
        Family::MbarrierInit,
        "mbarrier init [shared shared::cta] b64",
        "9.7.13.15.9",
        "makes an mbarrier at [a] whose phases take b arrivals each",
    ),
    row(
        "sm_80",
        Family::MbarrierInvalidate,
        "mbarrier inval [shared shared::cta] b64",
        "9.7.13.15.10",
        "ends the mbarrier at [a]",
    ),
    row(
        "sm_80",
        Family::MbarrierArrive,
        "mbarrier {arrive arrive_drop} [release relaxed] [cta cluster] [shared shared::cta shared::cluster] b64",
        "9.7.13.15.13",
        "b (or one) of the arrivals of the phase; releases what the thread did before; d = the phase",
    ),
    row(
        "sm_80",
        Family::MbarrierArrive,
        "mbarrier {arrive arrive_drop} noComplete [release] [cta] [shared shared::cta] b64",
        "9.7.13.15.13",
        "b of the arrivals of the phase, which does not end by them; d = the phase",
    ),
    row(
        "sm_90",
        Family::MbarrierArriveExpect,
        "mbarrier {arrive arrive_drop} expect_tx [release relaxed] [cta cluster] [shared shared::cta shared::cluster] b64",
        "9.7.13.15.13",
        "the phase takes b more bytes, then an arrival",
    ),
    row(
        "sm_90",
        Family::MbarrierExpect,
        "mbarrier expect_tx [relaxed] [cta cluster] [shared shared::cta shared::cluster] b64",
        "9.7.13.15.11",
        "the phase takes b more bytes",
    ),
    row(
        "sm_90",
        Family::MbarrierComplete,
        "mbarrier complete_tx [relaxed] [cta cluster] [shared shared::cta shared::cluster] b64",
        "9.7.13.15.12",
        "b bytes of the phase have come",
    ),
    row(
        "sm_80",
        Family::MbarrierWait,
        "mbarrier test_wait [parity] [acquire relaxed] [cta cluster] [shared shared::cta] b64",
        "9.7.13.15.16",
        "p = the phase is complete, and what was released into it is seen",
    ),
    row(
        "sm_90",
        Family::MbarrierWait,
        "mbarrier try_wait [parity] [acquire relaxed] [cta cluster] [shared shared::cta] b64",
        "9.7.13.15.16",
        "waits some time, then p = the phase is complete, and what was released into it is seen; it fails once where it would wait",
    ),
    row(
        "sm_80",
        Family::PendingCount,
        "mbarrier pending_count b64",
        "9.7.13.15.17",
        "d = the arrivals that the phase lacked before the one that gave the state a",
    ),
    row(
        "sm_90",
        Family::MbarrierFence,
        "fence mbarrier_init release cluster",
        "9.7.13.4",
        "makes the thread's initialised mbarriers known to the async proxy",
    ),
    row(
        "sm_90",
        Family::ProxyFence,
        "fence proxy async [global shared::cta shared::cluster]",
        "9.7.13.4",
        "orders what the thread knows of the generic proxy before the async proxy",
    ),
    row(
        "sm_90",
        Family::BulkLoad,
        "cp async bulk {shared::cluster shared::cta} global mbarrier::complete_tx::bytes [multicast::cluster] [L2::cache_hint]",
        "9.7.9.25.4.1",
        "starts a copy to shared memory, whose bytes are then counted at the mbarrier",
    ),
    row(
        "sm_90",
        Family::BulkStore,
        "cp async bulk global shared::cta bulk_group [L2::cache_hint]",
        "9.7.9.25.4.1",
        "starts a copy to global memory in the thread's open bulk group",
    ),
    row(
        "sm_100",
        Family::BulkStore,
        "cp async bulk global shared::cta bulk_group [L2::cache_hint] {cp_mask}",
        "9.7.9.25.4.1",
        "the same of those bytes of every 16 that the mask names",
    ),
    row(
        "sm_90",
        Family::TensorLoad,
        "cp async bulk tensor {1d 2d 3d 4d 5d} {shared::cluster shared::cta} global [tile im2col] mbarrier::complete_tx::bytes [multicast::cluster] [cta_group::1] [L2::cache_hint]",
        "9.7.9.27.1.2",
        "starts a copy of a tensor's box to shared memory, swizzled; zeros outside the tensor, which count as bytes too",
    ),
    row(
        "sm_90",
        Family::TensorStore,
        "cp async bulk tensor {1d 2d 3d 4d 5d} global shared::cta [tile im2col_no_offs] bulk_group [L2::cache_hint]",
        "9.7.9.27.1.2",
        "starts a copy of a box to a tensor in the thread's open bulk group; nothing is written outside the tensor",
    ),
    row(
        "sm_90",
        Family::BulkPeer,
        "cp async bulk {shared::cluster} shared::cta mbarrier::complete_tx::bytes",
        "9.7.9.25.4.1",
        "starts a copy to the shared memory of a CTA of the cluster, whose bytes are then counted at its mbarrier",
    ),
    row(
        "sm_90",
        Family::PeerReduce,
        "cp reduce async bulk {shared::cluster} shared::cta mbarrier::complete_tx::bytes {add min max and or xor inc dec} {u32 s32 u64 b32 b64}",
        "9.7.9.25.4.2",
        "starts an operation on every element of the shared memory of a CTA of the cluster, whose bytes are then counted at its mbarrier",
    ),
    row(
        "sm_90",
        Family::BulkReduce,
        "cp reduce async bulk global shared::cta bulk_group [L2::cache_hint] {add min max and or xor inc dec} [noftz] \
         {u32 s32 u64 s64 f16 bf16 f32 f64 b32 b64}",
        "9.7.9.25.4.2",
        "starts an operation on every element of global memory in the thread's open bulk group",
    ),
    row(
        "sm_90",
        Family::TensorReduce,
        "cp reduce async bulk tensor {1d 2d 3d 4d 5d} global shared::cta {add min max and or xor inc dec} [tile im2col_no_offs] bulk_group \
         [L2::cache_hint]",
        "9.7.9.27.1.3",
        "starts an operation on every element of a box of a tensor in the thread's open bulk group",
    ),
    row(
        "sm_90",
        Family::Nothing,
        "cp async bulk prefetch L2 global [L2::cache_hint]",
        "9.7.9.25.4.3",
        "a hint, without effect here",
    ),
    row(
        "sm_90",
        Family::Nothing,
        "cp async bulk prefetch tensor {1d 2d 3d 4d 5d} L2 global [tile im2col] [L2::cache_hint]",
        "9.7.9.27.1.4",
        "a hint, without effect here",
    ),
    row(
        "sm_90",
        Family::StoreAsync,
        "st async [weak] [shared::cluster] mbarrier::complete_tx::bytes [v2 v4] {b32 b64 u32 u64 s32 s64 f32 f64}",
        "9.7.9.12",
        "stores to the shared memory of a CTA of the cluster, whose bytes are then counted at its mbarrier",
    ),
    row(
        "sm_90",
        Family::ReduceAsync,
        "red async [relaxed] [cluster] [shared::cluster] mbarrier::complete_tx::bytes {add min max and or xor inc dec} {u32 s32 u64 s64 b32 b64}",
        "9.7.13.7",
        "an operation on the shared memory of a CTA of the cluster, whose bytes are then counted at its mbarrier",
    ),
    row(
        "sm_90a+",
        Family::TensorMapReplace,
        "tensormap replace tile {global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout \
         swizzle_mode swizzle_atomicity fill_mode} [global shared::cta] b1024 {b32 b64}",
        "9.7.9.28",
        "a field of the tensor map at [a] = b",
    ),
    row(
        "sm_90",
        Family::TensorMapCopy,
        "tensormap cp_fenceproxy global shared::cta tensormap::generic release {cta cluster gpu sys} sync aligned",
        "9.7.13.4.3",
        "copies a tensor map to global memory and releases it",
    ),
    row(
        "sm_90",
        Family::ProxyTensorMap,
        "fence proxy tensormap::generic {acquire release} {cta cluster gpu sys}",
        "9.7.13.4",
        "orders changes of tensor maps and their uses",
    ),
    row("sm_70", Family::Nothing, "fence proxy {alias}", "9.7.13.4", "one proxy here: without effect"),
    row(
        "sm_90",
        Family::Nothing,
        "fence proxy async::generic {acquire release} {sync_restrict::shared::cta::cluster sync_restrict::shared::cta sync_restrict::shared::cluster} cluster",
        "9.7.13.4",
        "without effect here",
    ),
    row(
        "sm_90",
        Family::CommitBulk,
        "cp async bulk commit_group",
        "9.7.9.27.2.1",
        "the thread's open copies become its newest bulk group",
    ),
    row(
        "sm_90",
        Family::WaitBulk,
        "cp async bulk wait_group [read]",
        "9.7.9.27.2.2",
        "waits until at most n of the thread's newest bulk groups are open; with read, until their sources are free",
    ),
    row(
        "sm_80",
        Family::CopyArrive,
        "cp async mbarrier arrive [noinc] [shared shared::cta] b64",
        "9.7.13.15.15",
        "arrives once the thread's cp.async so far have landed; the phase takes an arrival more, unless noinc",
    ),
    row(
        "sm_90",
        Family::Nothing,
        "prefetch [const param] tensormap",
        "9.7.9.15",
        "a hint, without effect here",
    ),
    row(
        "sm_90a+",
        Family::SetRegisters,
        "setmaxnreg {inc dec} sync aligned u32",
        "9.7.19.5",
        "takes registers of the CTA's pool, waiting for them, or gives them back",
    ),
    row(
        "sm_90a",
        Family::Wgmma,
        "wgmma mma_async sync aligned {m64n8k16 m64n16k16 m64n24k16 m64n32k16 m64n40k16 m64n48k16 m64n56k16 m64n64k16 \
         m64n72k16 m64n80k16 m64n88k16 m64n96k16 m64n104k16 m64n112k16 m64n120k16 m64n128k16 \
         m64n136k16 m64n144k16 m64n152k16 m64n160k16 m64n168k16 m64n176k16 m64n184k16 m64n192k16 \
         m64n200k16 m64n208k16 m64n216k16 m64n224k16 m64n232k16 m64n240k16 m64n248k16 m64n256k16} {f32 f16} {f16 bf16} {f16 bf16}",
        "9.7.15.5.2",
        "starts D = A·B (+ D) over a warpgroup; A from shared memory or registers, B from shared memory",
    ),
    row(
        "sm_90a",
        Family::Wgmma,
        "wgmma mma_async sync aligned {m64n8k8 m64n16k8 m64n24k8 m64n32k8 m64n40k8 m64n48k8 m64n56k8 m64n64k8 \
         m64n72k8 m64n80k8 m64n88k8 m64n96k8 m64n104k8 m64n112k8 m64n120k8 m64n128k8 \
         m64n136k8 m64n144k8 m64n152k8 m64n160k8 m64n168k8 m64n176k8 m64n184k8 m64n192k8 \
         m64n200k8 m64n208k8 m64n216k8 m64n224k8 m64n232k8 m64n240k8 m64n248k8 m64n256k8} {f32} {tf32} {tf32}",
        "9.7.15.5.2",
        "the same for tf32",
    ),
    row(
        "sm_90a",
        Family::Wgmma,
        "wgmma mma_async sync aligned {m64n8k32 m64n16k32 m64n24k32 m64n32k32 m64n40k32 m64n48k32 m64n56k32 m64n64k32 \
         m64n72k32 m64n80k32 m64n88k32 m64n96k32 m64n104k32 m64n112k32 m64n120k32 m64n128k32 \
         m64n136k32 m64n144k32 m64n152k32 m64n160k32 m64n168k32 m64n176k32 m64n184k32 m64n192k32 \
         m64n200k32 m64n208k32 m64n216k32 m64n224k32 m64n232k32 m64n240k32 m64n248k32 m64n256k32} {f32 f16} {e4m3 e5m2} {e4m3 e5m2}",
        "9.7.15.5.2",
        "the same for 8-bit floating point",
    ),
    row(
        "sm_90a",
        Family::Wgmma,
        "wgmma mma_async sync aligned {m64n8k32 m64n16k32 m64n24k32 m64n32k32 m64n40k32 m64n48k32 m64n56k32 m64n64k32 \
         m64n72k32 m64n80k32 m64n88k32 m64n96k32 m64n104k32 m64n112k32 m64n120k32 m64n128k32 \
         m64n136k32 m64n144k32 m64n152k32 m64n160k32 m64n168k32 m64n176k32 m64n184k32 m64n192k32 \
         m64n200k32 m64n208k32 m64n216k32 m64n224k32 m64n232k32 m64n240k32 m64n248k32 m64n256k32} {s32} {s8 u8} {s8 u8} [satfinite]",
        "9.7.15.5.2",
        "the same for integers",
    ),
    row(
        "sm_90a",
        Family::Wgmma,
        "wgmma mma_async sync aligned {m64n8k256 m64n16k256 m64n24k256 m64n32k256 m64n40k256 m64n48k256 m64n56k256 m64n64k256 \
         m64n72k256 m64n80k256 m64n88k256 m64n96k256 m64n104k256 m64n112k256 m64n120k256 m64n128k256 \
         m64n136k256 m64n144k256 m64n152k256 m64n160k256 m64n168k256 m64n176k256 m64n184k256 m64n192k256 \
         m64n200k256 m64n208k256 m64n216k256 m64n224k256 m64n232k256 m64n240k256 m64n248k256 m64n256k256} {s32} {b1} {b1} [and] [popc]",
        "9.7.15.5.2",
        "the same for bits",
    ),
    row(
        "sm_90a",
        Family::WgmmaFence,
        "wgmma fence sync aligned",
        "9.7.15.7.1",
        "orders register accesses before the wgmma that follow",
    ),
    row(
        "sm_90a",
        Family::WgmmaCommit,
        "wgmma commit_group sync aligned",
        "9.7.15.7.2",
        "the warpgroup's open wgmma become its newest group",
    ),
    row(
        "sm_90a",
        Family::WgmmaWait,
        "wgmma wait_group sync aligned",
        "9.7.15.7.3",
        "waits until at most n of the newest groups are open; registers and tiles of the others are free",
    ),
    row(
        "sm_90",
        Family::Nothing,
        "griddepcontrol {launch_dependents wait}",
        "9.7.13.13",
        "one grid at a time: without effect",
    ),
    row(
        "sm_100a+",
        Family::LoadMatrix,
        "ldmatrix sync aligned m16n16 {x1 x2} {trans} [shared shared::cta] b8",
        "9.7.14.5.15",
        "loads 16×16 matrices of bytes, transposed; lane 16m + r addresses row r of matrix m",
    ),
    row(
        "sm_100a+",
        Family::LoadMatrix,
        "ldmatrix sync aligned m16n16 {x1 x2} {trans} [shared shared::cta] b8x16 {b6x16_p32 b4x16_p64}",
        "9.7.14.5.15",
        "the same of elements of 6 or 4 bits, packed at the start of each row of 16 bytes, which become bytes",
    ),
    row(
        "sm_100a+",
        Family::LoadMatrix,
        "ldmatrix sync aligned m8n16 {x1 x2 x4} [shared shared::cta] b8x16 {b6x16_p32 b4x16_p64}",
        "9.7.14.5.15",
        "loads 8×16 matrices of such elements as bytes; lane 8m + r addresses row r of matrix m",
    ),
    row(
        "sm_100a+",
        Family::StoreMatrix,
        "stmatrix sync aligned m16n8 {x1 x2 x4} {trans} [shared shared::cta] b8",
        "9.7.14.5.16",
        "stores 16×8 matrices of bytes, transposed; lane 8m + r addresses column r of matrix m",
    ),
    row(
        "sm_100",
        Family::StoreBulk,
        "st bulk [weak] [shared::cta]",
        "9.7.9.13",
        "zeroes b bytes of shared memory at [a], a multiple of 8",
    ),
    row(
        "sm_90",
        Family::StoreMatrix,
        "stmatrix sync aligned m8n8 {x1 x2 x4} [trans] [shared shared::cta] b16",
        "9.7.14.5.16",
        "stores 8×8 matrices of 16-bit elements; lane 8m + r addresses row r of matrix m",
    ),
    row(
        "sm_100",
        Family::TryCancel,
        "clusterlaunchcontrol try_cancel async [shared::cta] {mbarrier::complete_tx::bytes} [multicast::cluster::all] b128",
        "9.7.13.17",
        "asks for the work of a cluster that has not started; all of them have started here, so that the answer, 16 bytes that count at the mbarrier, is no",
    ),
    row(
        "sm_100",
        Family::IsCanceled,
        "clusterlaunchcontrol query_cancel is_canceled pred b128",
        "9.7.13.18",
        "p = whether the answer is yes",
    ),
    row(
        "sm_100",
        Family::FirstCta,
        "clusterlaunchcontrol query_cancel {get_first_ctaid get_first_ctaid::x get_first_ctaid::y get_first_ctaid::z} [v4] b32 b128",
        "9.7.13.18",
        "d = where that cluster's first CTA is in the grid",
    ),
    row(
        "sm_90",
        Family::Elect,
        "elect sync",
        "9.7.13.14",
        "p in one lane of the mask, the lowest; d = that lane",
    ),
];
