//! Instructions that are more than one function of a lane's operands: memory, control flow, warp- and CTA-wide operations,
//! and conversions. Each row is a family; what its pattern's choices mean is in the decoder that the row names.

/// A decoder and executor of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Load,
    LoadUniform,
    Store,
    Atomic,
    Reduce,
    Nothing,
    CopyAsync,
    CommitGroup,
    WaitGroup,
    WaitAll,
    LoadMatrix,
    StoreMatrix,
    MoveMatrix,
    StoreBulk,
    CreatePolicy,
    Alloca,
    PendingCount,
    StackSave,
    StackRestore,
    BulkPeer,
    BulkReduce,
    PeerReduce,
    ReduceAsync,
    TensorReduce,
    StoreAsync,
    TensorMapReplace,
    TensorMapCopy,
    ProxyTensorMap,
    ClusterArrive,
    ClusterWait,
    MapRank,
    RankOf,
    Set,
    SetPair,
    LopPred,
    Mma,
    MmaVolta,
    WmmaLoad,
    WmmaStore,
    WmmaMma,
    Shuffle,
    Vote,
    Ballot,
    Match,
    Redux,
    ActiveMask,
    Elect,
    Barrier,
    BarrierReduce,
    WarpBarrier,
    Fence,
    Branch,
    BranchTable,
    Call,
    Return,
    Exit,
    Trap,
    Cvt,
    CvtPack,
    Video,
    VideoMad,
    SetpBool,
    Carry,
    MovVector,
    MovVectors,
    MbarrierInit,
    MbarrierInvalidate,
    MbarrierArrive,
    MbarrierArriveExpect,
    MbarrierExpect,
    MbarrierComplete,
    TryCancel,
    IsCanceled,
    FirstCta,
    MbarrierWait,
    MbarrierFence,
    ProxyFence,
    BulkLoad,
    BulkStore,
    TensorLoad,
    TensorStore,
    CommitBulk,
    WaitBulk,
    CopyArrive,
    SetRegisters,
    Wgmma,
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait,
}

/// A row of the table.
pub(crate) struct FamilyRow {
    pub(crate) family: Family,
    pub(crate) pattern: &'static str,
    pub(crate) section: &'static str,
    pub(crate) meaning: &'static str,
    /// The least `.target`; one that ends in `a` is needed as it stands. Empty for any.
    pub(crate) needs: &'static str,
}

/// Every family row, in the order of the tables.
pub(crate) fn rows() -> impl Iterator<Item = &'static FamilyRow> {
    ROWS.iter().chain(super::hopper::ROWS).chain(super::video::ROWS)
}

pub(super) const fn row(
    family: Family,
    pattern: &'static str,
    section: &'static str,
    meaning: &'static str,
) -> FamilyRow {
    FamilyRow { family, pattern, section, meaning, needs: "" }
}

/// The families.
const ROWS: &[FamilyRow] = &[
    row(
        Family::Load,
        "ld [weak volatile relaxed acquire mmio] [cta cluster gpu sys] \
         [const global local param param::entry param::func shared shared::cta shared::cluster] \
         [ca cg cs lu cv] [nc] [unified] [L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate] \
         [L2::evict_normal L2::evict_first L2::evict_last] [L2::64B L2::128B L2::256B] [L2::cache_hint] [v2 v4 v8] \
         {b8 u8 s8 b16 u16 s16 f16 bf16 f16x2 bf16x2 b32 u32 s32 f32 b64 u64 s64 f64 b128}",
        "9.7.9.8",
        "d = the memory at [a]; a vector is aligned to its whole size",
    ),
    row(
        Family::Store,
        "st [weak volatile relaxed release mmio] [cta cluster gpu sys] \
         [global local param param::func shared shared::cta shared::cluster] \
         [wb cg cs wt] [L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate] \
         [L2::evict_normal L2::evict_first L2::evict_last] [L2::cache_hint] [v2 v4 v8] \
         {b8 u8 s8 b16 u16 s16 f16 bf16 f16x2 bf16x2 b32 u32 s32 f32 b64 u64 s64 f64 b128}",
        "9.7.9.11",
        "the memory at [a] = b; a vector is aligned to its whole size",
    ),
    row(
        Family::Load,
        "ld mmio {relaxed} {sys} [global] [ca] [nc] [unified] [L1::evict_normal] [L2::evict_normal] [L2::64B] [L2::cache_hint] [v2] \
         {b8 u8 s8 b16 u16 s16 f16 bf16 f16x2 bf16x2 b32 u32 s32 f32 b64 u64 s64 f64 b128}",
        "9.7.9.8",
        "d = the memory at [a], of a device that acts when it is read",
    ),
    row(
        Family::LoadUniform,
        "ldu [weak] [sys] [global] [ca] [nc] [unified] [L1::evict_normal] [L2::evict_normal] [L2::64B] [L2::cache_hint] [v2 v4] \
         {b8 u8 s8 b16 u16 s16 b32 u32 s32 f32 b64 u64 s64 f64 b128}",
        "9.7.9.11",
        "d = the memory at [a], which nobody writes meanwhile and all lanes read alike",
    ),
    row(
        Family::Store,
        "st mmio {relaxed} {sys} [global] [wb] [L1::evict_normal] [L2::evict_normal] [L2::cache_hint] [v2] \
         {b8 u8 s8 b16 u16 s16 f16 bf16 f16x2 bf16x2 b32 u32 s32 f32 b64 u64 s64 f64 b128}",
        "9.7.9.11",
        "the memory at [a] = b, of a device that acts when it is written",
    ),
    row(
        Family::Atomic,
        "atom [relaxed acquire release acq_rel] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {add min max} [noftz] [L2::cache_hint] [v2 v4 v8] {f32 f64 f16 f16x2 bf16 bf16x2}",
        "9.7.13.5",
        "d = the memory at [a], which becomes the sum of it and b, in one step",
    ),
    row(
        Family::Atomic,
        "atom [relaxed acquire release acq_rel] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {add min max} [L2::cache_hint] [v1] {u32 s32 u64 s64}",
        "9.7.13.5",
        "d = the memory at [a], which becomes the lesser or greater of it and b, in one step",
    ),
    row(
        Family::Atomic,
        "atom [relaxed acquire release acq_rel] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {and or xor} [L2::cache_hint] [v1] {b32 b64}",
        "9.7.13.5",
        "d = the memory at [a], which becomes the logical operation of it and b, in one step",
    ),
    row(
        Family::Atomic,
        "atom [relaxed acquire release acq_rel] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {exch} [L2::cache_hint] [v1] {b32 b64 b128}",
        "9.7.13.5",
        "d = the memory at [a], which becomes b, in one step",
    ),
    row(
        Family::Atomic,
        "atom [relaxed acquire release acq_rel] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {cas} [L2::cache_hint] [v1] {b16 b32 b64 b128}",
        "9.7.13.5",
        "d = the memory at [a], which becomes c if it equals b, in one step",
    ),
    row(
        Family::Atomic,
        "atom [relaxed acquire release acq_rel] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {inc dec} [L2::cache_hint] [v1] {u32}",
        "9.7.13.5",
        "d = the memory at [a], which becomes one more or one less, in a ring up to b, in one step",
    ),
    row(
        Family::Reduce,
        "red [relaxed release] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {add min max} [noftz] [L2::cache_hint] [v2 v4 v8] {f32 f64 f16 f16x2 bf16 bf16x2}",
        "9.7.13.6",
        "the memory at [a] becomes the sum of it and b, in one step",
    ),
    row(
        Family::Reduce,
        "red [relaxed release] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {add min max} [L2::cache_hint] [v1] {u32 s32 u64 s64}",
        "9.7.13.6",
        "the memory at [a] becomes the lesser or greater of it and b, in one step",
    ),
    row(
        Family::Reduce,
        "red [relaxed release] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {and or xor} [L2::cache_hint] [v1] {b32 b64}",
        "9.7.13.6",
        "the memory at [a] becomes the logical operation of it and b, in one step",
    ),
    row(
        Family::Reduce,
        "red [relaxed release] [cta cluster gpu sys] [global shared shared::cta shared::cluster] {inc dec} [L2::cache_hint] [v1] {u32}",
        "9.7.13.6",
        "the memory at [a] becomes one more or one less, in a ring up to b, in one step",
    ),
    row(
        Family::Nothing,
        "prefetch [global local const param] {L2::evict_last L2::evict_normal}",
        "9.7.9.15",
        "a hint, without effect here",
    ),
    row(
        Family::Nothing,
        "applypriority [global] {L2::evict_normal}",
        "9.7.9.13",
        "a hint, without effect here",
    ),
    row(Family::Nothing, "discard [global] {L2}", "9.7.9.17", "a hint, without effect here"),
    row(Family::Nothing, "pmevent [mask]", "9.7.19.2", "without effect here"),
    row(Family::Nothing, "brkpt", "9.7.19.1", "without effect here"),
    row(
        Family::CreatePolicy,
        "createpolicy {fractional range cvt} [global] [L2] [L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged] \
         [L2::evict_unchanged L2::evict_first] {b64}",
        "9.7.9.18",
        "d = a cache policy, which has no effect here",
    ),
    row(
        Family::Alloca,
        "alloca {u32 u64}",
        "9.7.20.3",
        "d = local memory of that many bytes, until the function returns",
    ),
    row(Family::StackSave, "stacksave {u32 u64}", "9.7.20.1", "d = the stack as it is"),
    row(Family::StackRestore, "stackrestore {u32 u64}", "9.7.20.2", "frees what was allocated since"),
    row(Family::Nothing, "prefetch [global local] {L1 L2}", "9.7.9.15", "a hint, without effect here"),
    row(Family::Nothing, "prefetchu {L1}", "9.7.9.15", "a hint, without effect here"),
    row(Family::Nothing, "nanosleep {u32}", "9.7.13.9", "a hint, without effect here"),
    row(
        Family::CopyAsync,
        "cp async {ca cg} {shared shared::cta} global [L2::cache_hint] [L2::64B L2::128B L2::256B]",
        "9.7.9.25.3.1",
        "starts a copy of 4, 8 or 16 bytes (cg: 16) to shared memory; bytes beyond the source size are zero",
    ),
    row(
        Family::CommitGroup,
        "cp async commit_group",
        "9.7.9.25.3.2",
        "the thread's open copies become its newest group",
    ),
    row(
        Family::WaitGroup,
        "cp async wait_group",
        "9.7.9.25.3.3",
        "waits until at most n of the thread's newest groups are open",
    ),
    row(Family::WaitAll, "cp async wait_all", "9.7.9.25.3.3", "waits for all of the thread's copies"),
    row(
        Family::LoadMatrix,
        "ldmatrix sync aligned m8n8 {x1 x2 x4} [trans] [shared shared::cta] b16",
        "9.7.14.5.15",
        "loads 8×8 matrices of 16-bit elements; lane 8m + r addresses row r of matrix m",
    ),
    row(
        Family::MoveMatrix,
        "movmatrix sync aligned m8n8 trans b16",
        "9.7.14.5.17",
        "transposes an 8×8 matrix held by the warp",
    ),
    row(
        Family::MmaVolta,
        "mma sync aligned m8n8k4 {row col} {row col} {f16 f32} {f16} {f16} {f16 f32}",
        "9.7.14.5.1",
        "D = A·B + C of each of the warp's four groups of eight lanes; products exact, sums in f32",
    ),
    row(
        Family::Mma,
        "mma [sp sp::ordered_metadata] sync aligned \
         {m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m16n8k128 m16n8k256 m8n8k4 m8n8k16 m8n8k32 m8n8k128} row col [satfinite] \
         {f32 f16 f64 s32} {f16 bf16 tf32 f64 e4m3 e5m2 s8 u8 s4 u4 b1} {f16 bf16 tf32 f64 e4m3 e5m2 s8 u8 s4 u4 b1} \
         {f32 f16 f64 s32} [rn rz rm rp xor and] [popc]",
        "9.7.14.5.14",
        "D = A·B + C over the warp's fragments; products exact, sums in f32",
    ),
    row(
        Family::WmmaLoad,
        "wmma load {a b c} sync aligned {row col} {m16n16k16 m32n8k16 m8n32k16 m16n16k8 m8n8k4 m8n8k32 m8n8k128} \
         [global shared shared::cta] {f16 bf16 f32 tf32 f64 s8 u8 s4 u4 b1 s32}",
        "9.7.14.4.3",
        "loads a matrix into the warp's fragment; which lane holds what is left open",
    ),
    row(
        Family::WmmaStore,
        "wmma store d sync aligned {row col} {m16n16k16 m32n8k16 m8n32k16 m16n16k8 m8n8k4 m8n8k32 m8n8k128} \
         [global shared shared::cta] {f16 f32 f64 s32}",
        "9.7.14.4.4",
        "stores the warp's fragment as a matrix",
    ),
    row(
        Family::WmmaMma,
        "wmma mma [xor and] [popc] sync aligned {row col} {row col} {m16n16k16 m32n8k16 m8n32k16 m16n16k8 m8n8k4 m8n8k32 m8n8k128} \
         {f16 f32 f64 s32} [bf16 tf32 f64 s8 u8 s4 u4 b1] [bf16 tf32 f64 s8 u8 s4 u4 b1] {f16 f32 f64 s32} [satfinite rn rz rm rp]",
        "9.7.14.4.5",
        "D = A·B + C over the warp's fragments; products exact, sums in f32",
    ),
    row(
        Family::Shuffle,
        "shfl sync {up down bfly idx} b32",
        "9.7.9.6",
        "d = a of another lane of the segment; p = it is in range",
    ),
    row(
        Family::Vote,
        "vote sync {all any uni} pred",
        "9.7.13.10",
        "p = the predicate holds for all, any or an equal value in the lanes",
    ),
    row(Family::Ballot, "vote sync ballot b32", "9.7.13.10", "d = the predicate of every lane, a bit each"),
    row(
        Family::Match,
        "match {any all} sync {b32 b64}",
        "9.7.13.11",
        "d = the lanes that hold the same value",
    ),
    row(
        Family::Redux,
        "redux sync {add min max and or xor} {u32 s32 b32}",
        "9.7.13.12",
        "d = the operation over the lanes' values",
    ),
    row(
        Family::Redux,
        "redux sync {min max} [abs] [NaN] f32",
        "9.7.13.12",
        "d = the operation over the lanes' values",
    ),
    row(Family::ActiveMask, "activemask b32", "9.7.13.10", "d = the lanes that execute this instruction"),
    row(
        Family::Barrier,
        "{bar barrier} [cta] {sync arrive} [aligned]",
        "9.7.13.1",
        "waits until (arrive: tells that) the barrier's threads have come; orders memory among them",
    ),
    row(
        Family::BarrierReduce,
        "{bar barrier} [cta] red {popc and or} [aligned] {u32 pred}",
        "9.7.13.1",
        "waits like sync, then d = the reduction of the threads' predicates",
    ),
    row(
        Family::WarpBarrier,
        "bar warp sync",
        "9.7.13.2",
        "waits for the lanes of the mask; orders memory among them",
    ),
    row(Family::Fence, "membar [proxy] {cta gl sys}", "9.7.13.4", "orders the thread's memory accesses"),
    row(Family::Nothing, "membar proxy {alias}", "9.7.13.4", "one proxy here: without effect"),
    row(
        Family::Fence,
        "fence [sc acq_rel acquire release] {cta cluster gpu sys}",
        "9.7.13.4",
        "orders the thread's memory accesses",
    ),
    row(
        Family::Fence,
        "fence {acquire release} {sync_restrict::shared::cta sync_restrict::shared::cluster} {cluster}",
        "9.7.13.4",
        "orders the thread's accesses to shared memory of the cluster",
    ),
    row(
        Family::Branch,
        "bra [uni]",
        "9.7.12.3",
        "goes to the label; lanes that go elsewhere meet again at the post-dominator",
    ),
    row(Family::BranchTable, "brx idx [uni]", "9.7.12.4", "goes to the label of that index"),
    row(Family::Call, "call [uni]", "9.7.12.5", "calls a function with parameters"),
    row(Family::Return, "ret [uni]", "9.7.12.6", "returns to the caller; in an entry, ends the thread"),
    row(Family::Exit, "exit", "9.7.12.7", "ends the thread"),
    row(Family::Trap, "trap", "9.7.19.3", "aborts the kernel"),
    row(
        Family::Cvt,
        "cvt [rn rz rm rp rna rni rzi rmi rpi] [ftz] [sat] \
         {u8 s8 u16 s16 u32 s32 u64 s64 f16 bf16 f32 f64 b8 b16 b32 b64} \
         {u8 s8 u16 s16 u32 s32 u64 s64 f16 bf16 f32 f64 b8 b16 b32 b64}",
        "9.7.9.21",
        "d = a in another type; integers wrap, or clamp if from floating point or with sat",
    ),
    row(
        Family::CvtPack,
        "cvt pack sat {u8 s8 u4 s4 u2 s2} s32 b32",
        "9.7.9.22",
        "d = c moved up, with a and b, clamped, below it",
    ),
    row(
        Family::SetPair,
        "setp {eq ne lt le gt ge equ neu ltu leu gtu geu num nan} [and or xor] [ftz] {f16x2 bf16x2}",
        "9.7.7.2",
        "p, q = the low and the high halves compared, combined with c",
    ),
    row(
        Family::Set,
        "set {eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan} [and or xor] [ftz] \
         {u32 s32 f32 u16 s16 f16 bf16 f16x2 bf16x2} {b16 u16 s16 b32 u32 s32 b64 u64 s64 f32 f64 f16 bf16 f16x2 bf16x2}",
        "9.7.6.1",
        "d = all ones, or the number one, where a compares with b so (combined with c), else zero",
    ),
    row(
        Family::LopPred,
        "lop3 {or and} b32",
        "9.7.8.6",
        "d = the bitwise function of a, b, c; p = (d ≠ 0) combined with q",
    ),
    row(
        Family::CvtPack,
        "cvt pack sat {u16 s16} s32",
        "9.7.9.22",
        "d = a in the high half and b in the low half, clamped",
    ),
    row(
        Family::SetpBool,
        "setp {eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan} {and or xor} [ftz] \
         {b16 u16 s16 b32 u32 s32 b64 u64 s64 f32 f64 f16 bf16}",
        "9.7.6.2",
        "p = (a compared with b) combined with c; q = (not that) combined with c",
    ),
    row(
        Family::Carry,
        "{add addc sub subc} [cc] {u32 s32 u64 s64}",
        "9.7.2",
        "extended-precision addition and subtraction through the carry flag",
    ),
    row(
        Family::MovVector,
        "mov {b16 b32 b64 b128 u32 s32 f32 u64 s64 f64}",
        "9.7.9.4",
        "packs a vector of registers into one, or unpacks one, lowest element first",
    ),
    row(
        Family::MovVectors,
        "mov {v2 v4} {b8 u8 s8 b16 u16 s16 f16 b32 u32 s32 f32 b64 u64 s64 f64}",
        "9.7.9.3",
        "every element of d = that of a, which may be a special register",
    ),
    row(
        Family::Carry,
        "{mad madc} {lo hi} [cc] {u32 s32 u64 s64}",
        "9.7.2",
        "extended-precision multiply-add through the carry flag",
    ),
];
