// Like sync.cu: copies that land later, mbarriers, clusters, products of every format, CUB and libcu++. A grid of four CTAs, in
// clusters of two where the kernel says so. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 async.cu
#include <cooperative_groups.h>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
#define COPY16(to, from) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(smem(to)), "l"(from) : "memory")
#define COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#define ALL_ONES(regs) for (auto &r : regs) r =
__device__ int val(int i) { return i * 7 % 1000; }
__device__ int sum_to(int n) { int s = 0; for (int i = 0; i <= n; i++) s += val(i); return s; }
__device__ unsigned smem(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
#define bar_init(m, n) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(smem(m)), "r"(n) : "memory")
#define bar_arrive(m) asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" :: "r"(smem(m)) : "memory")
#define bar_wait(m, parity) asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra again; }" :: "r"(smem(m)), "r"(parity) : "memory")

// Pipelines of cp.async.
K ok_pipeline_two ARGS { T; __shared__ alignas(16) int s[2][512]; COPY16(s[0] + 4 * t, in + 4 * t); COMMIT; for (int k = 0; k < 4; k++) { if (k < 3) COPY16(s[(k + 1) & 1] + 4 * t, in + 512 * (k + 1) + 4 * t); COMMIT; WAIT(1); SYNC; CHECK(s[k & 1][511 - t] == val(512 * k + 511 - t)); SYNC; } }
K ok_pipeline_three ARGS { T; __shared__ alignas(16) int s[3][512]; for (int k = 0; k < 2; k++) { COPY16(s[k] + 4 * t, in + 512 * k + 4 * t); COMMIT; } for (int k = 0; k < 6; k++) { WAIT(1); SYNC; if (k + 2 < 6) COPY16(s[(k + 2) % 3] + 4 * t, in + 512 * (k + 2) + 4 * t); COMMIT; CHECK(s[k % 3][511 - t] == val(512 * k + 511 - t)); } }
K bad_pipeline_early ARGS {
  T; __shared__ alignas(16) int s[2][512]; COPY16(s[0] + 4 * t, in + 4 * t); COMMIT;
  for (int k = 0; k < 4; k++) { if (k < 3) COPY16(s[(k + 1) & 1] + 4 * t, in + 512 * (k + 1) + 4 * t); COMMIT; WAIT(2); SYNC;
    CHECK(s[k & 1][511 - t] != -1); // BUG async-pending
    SYNC; }
}
K bad_pipeline_refill ARGS {
  T; __shared__ alignas(16) int s[2][512]; COPY16(s[0] + 4 * t, in + 4 * t); COMMIT;
  for (int k = 0; k < 4; k++) { WAIT(0); SYNC; CHECK(s[0][511 - t] != -1);
    COPY16(s[0] + 4 * t, in + 512 * ((k + 1) & 3) + 4 * t); // BUG shared-race
    COMMIT; }
  WAIT(0);
}
K bad_pipeline_source ARGS {
  T; __shared__ alignas(16) int s[512]; int4 z = make_int4(1, 2, 3, 4); ((int4 *)out)[i] = z;
  COPY16(s + 4 * t, out + 4 * i); // BUG async-pending
  COMMIT; out[4 * i] = 9; // BUG async-pending
  WAIT(0); CHECK(s[4 * t + 1] == 2);
}
K ok_zero_fill ARGS { T; __shared__ alignas(16) int s[512]; asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(smem(s + 4 * t)), "l"(in + 4 * t), "r"(t & 1 ? 16 : 4) : "memory"); asm volatile("cp.async.wait_all;" ::: "memory"); CHECK(s[4 * t] == val(4 * t) && s[4 * t + 3] == (t & 1 ? val(4 * t + 3) : 0)); }
K ok_pipeline_intrinsics ARGS { T; __shared__ alignas(16) int s[128]; __pipeline_memcpy_async(s + t, in + t, 4); __pipeline_commit(); __pipeline_wait_prior(0); SYNC; CHECK(s[127 - t] == val(127 - t)); }
K ok_copy_arrive ARGS { T; __shared__ alignas(16) int s[512]; __shared__ unsigned long long m; if (!t) bar_init(&m, 128); SYNC; COPY16(s + 4 * t, in + 4 * t); asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(smem(&m)) : "memory"); bar_wait(&m, 0); CHECK(s[511 - t] == val(511 - t)); }
K ok_memcpy_async ARGS { T; __shared__ alignas(16) int s[128]; auto block = cg::this_thread_block(); cuda::barrier<cuda::thread_scope_block> *m; __shared__ alignas(8) char room[sizeof(*m)]; m = (decltype(m))room; if (!t) init(m, 128); SYNC; cuda::memcpy_async(s + t, in + t, 4, *m); m->arrive_and_wait(); CHECK(s[127 - t] == val(127 - t)); }

// mbarriers.
K ok_full_empty ARGS { T; __shared__ int s[2][64]; __shared__ unsigned long long full[2], empty[2]; if (!t) for (int k = 0; k < 2; k++) { bar_init(full + k, 64); bar_init(empty + k, 64); } SYNC; for (int k = 0; k < 6; k++) { int p = k >> 1 & 1; if (t < 64) { bar_wait(empty + (k & 1), p ^ 1); s[k & 1][t] = in[t + k]; bar_arrive(full + (k & 1)); } else { bar_wait(full + (k & 1), p); CHECK(s[k & 1][127 - t] == val(127 - t + k)); bar_arrive(empty + (k & 1)); } } }
K bad_full_reused ARGS {
  T; __shared__ int s[64]; __shared__ unsigned long long full; if (!t) bar_init(&full, 64); SYNC;
  if (t < 64) { s[t] = in[t]; bar_arrive(&full);
    s[t] = 0; // BUG shared-race
  } else { bar_wait(&full, 0); CHECK(s[127 - t] != -1); }
}
K bad_full_count ARGS {
  T; __shared__ int s[64]; __shared__ unsigned long long full; if (!t) bar_init(&full, 65); SYNC;
  if (t < 64) { s[t] = in[t]; bar_arrive(&full); } else
    bar_wait(&full, 0); // BUG deadlock
}
K bad_mbarrier_unset ARGS {
  T; __shared__ unsigned long long m[2]; if (!t) bar_init(m, 128); SYNC;
  bar_arrive(m + 1); // BUG mbarrier
}
K bad_mbarrier_init_race ARGS {
  T; __shared__ unsigned long long m; if (!t) bar_init(&m, 128);
  bar_arrive(&m); // BUG mbarrier shared-race
}
K ok_cuda_barrier ARGS { T; __shared__ int s[128]; using B = cuda::barrier<cuda::thread_scope_block>; __shared__ alignas(8) char room[sizeof(B)]; B *m = (B *)room; if (!t) init(m, 128); SYNC; for (int k = 0; k < 3; k++) { s[t] = in[t + k]; m->arrive_and_wait(); CHECK(s[127 - t] == val(127 - t + k)); m->arrive_and_wait(); } }
K ok_bulk_copy ARGS { T; __shared__ alignas(128) int s[512]; __shared__ unsigned long long m; if (!t) { bar_init(&m, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); } SYNC; if (!t) { asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], 2048; }" :: "r"(smem(&m)) : "memory"); asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" :: "r"(smem(s)), "l"(in), "r"(smem(&m)) : "memory"); } bar_wait(&m, 0); CHECK(s[t] == val(t) && s[511 - t] == val(511 - t)); }
K bad_bulk_wait ARGS {
  T; __shared__ alignas(128) int s[512]; __shared__ unsigned long long m; if (!t) { bar_init(&m, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); } SYNC;
  if (!t) { asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], 2048; }" :: "r"(smem(&m)) : "memory"); asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" :: "r"(smem(s)), "l"(in), "r"(smem(&m)) : "memory"); }
  SYNC; CHECK(s[t] != -1); // BUG async-pending uninitialized
}
K ok_bulk_store ARGS { T; __shared__ alignas(128) int s[128]; s[t] = in[t]; asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); SYNC; if (!t) { asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" :: "l"(out + b * 128), "r"(smem(s)) : "memory"); asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory"); CHECK(out[b * 128 + 5] == val(5)); } }
K bad_bulk_store_fence ARGS {
  T; __shared__ alignas(128) int s[128]; s[t] = in[t]; SYNC;
  if (!t) { asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" :: "l"(out + b * 128), "r"(smem(s)) : "memory"); // BUG proxy-fence
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory"); }
}

// Clusters.
CK ok_dsmem_reduce ARGS { T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = in[t] + (int)c.block_rank(); c.sync(); int *o = c.map_shared_rank(s, c.block_rank() ^ 1); CHECK(o[t] == val(t) + (int)(c.block_rank() ^ 1)); c.sync(); }
CK ok_dsmem_histogram ARGS { T; __shared__ int h[16]; auto c = cg::this_cluster(); if (t < 16) h[t] = 0; c.sync(); int d = in[t] & 31; atomicAdd(c.map_shared_rank(h, d >> 4) + (d & 15), 1); c.sync(); if (t < 16) { int n = 0; for (int k = 0; k < 128; k++) n += (val(k) & 31) == (int)c.block_rank() * 16 + t; CHECK(h[t] == 2 * n); } }
CK bad_dsmem_read ARGS {
  T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = in[t]; SYNC; int *o = c.map_shared_rank(s, c.block_rank() ^ 1);
  out[i] = o[t]; // BUG shared-race uninitialized
  c.sync();
}
CK ok_cluster_split ARGS { T; __shared__ int s[128]; s[t] = in[t]; asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); int v = in[t + 1]; asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); auto c = cg::this_cluster(); CHECK(c.map_shared_rank(s, 1)[t] + 0 * v == val(t)); c.sync(); }

// Products.
K ok_ldmatrix_forms ARGS { T; __shared__ alignas(16) __half s[4][64]; for (int k = t; k < 256; k += 128) s[k / 64][k % 64] = __int2half_rn(k); SYNC; unsigned r[4], x, y[2]; unsigned a = smem(&s[l / 8][8 * (l % 8)]); asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a)); asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(x) : "r"(a)); asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(a)); CHECK(__half2float(((__half *)r)[6]) == 192 + 2 * l && y[1] == r[1]); CHECK(__half2float(((__half *)&x)[0]) == l / 4 + 16 * (l % 4)); }
K ok_stmatrix ARGS { T; __shared__ alignas(16) __half s[4][64]; unsigned v = 0x3c003c00 + l; asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(smem(&s[w][8 * (l % 8)])), "r"(v) : "memory"); __syncwarp(); CHECK(((unsigned *)s[w])[l] == v); }
K ok_movmatrix ARGS { T; unsigned v = l * 2 | (l * 2 + 1) << 16, r; asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v)); CHECK((r & 0xffff) == 16u * (l % 4) + l / 4); }
K ok_mma_f16 ARGS { unsigned a[4], c[2], d[2]; ALL_ONES(a) 0x3c003c00; ALL_ONES(c) 0x3c003c00; asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};" : "=r"(d[0]), "=r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(c[0]), "r"(c[1]), "r"(0), "r"(0)); CHECK(d[0] == 0x4c004c00 && d[1] == d[0]); }
#define MMA_F32(name, shape, types, one, count) K name ARGS { unsigned a[4], c[2]; float d[4]; ALL_ONES(a) one; ALL_ONES(c) one; asm volatile("mma.sync.aligned." shape ".row.col.f32." types ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};" : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(c[0]), "r"(c[1]), "f"(1.f)); CHECK(d[0] == count + 1 && d[3] == count + 1); }
MMA_F32(ok_mma_f16_f32, "m16n8k16", "f16.f16", 0x3c003c00, 16)
MMA_F32(ok_mma_bf16, "m16n8k16", "bf16.bf16", 0x3f803f80, 16)
MMA_F32(ok_mma_tf32, "m16n8k8", "tf32.tf32", 0x3f800000, 8)
MMA_F32(ok_mma_e4m3, "m16n8k32", "e4m3.e4m3", 0x38383838, 32)
MMA_F32(ok_mma_e5m2, "m16n8k32", "e5m2.e5m2", 0x3c3c3c3c, 32)
#define MMA_S32(name, shape, types, one, count) K name ARGS { unsigned a[4], c[2]; int d[4]; ALL_ONES(a) one; ALL_ONES(c) one; asm volatile("mma.sync.aligned." shape ".row.col.s32." types ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};" : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(c[0]), "r"(c[1]), "r"(5)); CHECK(d[0] == count + 5 && d[3] == count + 5); }
MMA_S32(ok_mma_s8, "m16n8k32", "s8.s8", 0x01010101, 32)
MMA_S32(ok_mma_u8_s8, "m16n8k32", "u8.s8", 0xffffffffu, -255 * 32)
MMA_S32(ok_mma_s4, "m16n8k64", "s4.s4", 0x11111111, 64)
K ok_mma_f64 ARGS { double a = 2, c = 3, d[2]; asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%4,%4};" : "=d"(d[0]), "=d"(d[1]) : "d"(a), "d"(c), "d"(1.0)); CHECK(d[0] == 25 && d[1] == 25); }
K bad_mma_diverged ARGS {
  T; unsigned a = 0x3c003c00, d0 = 0, d1 = 0; if (l < 16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%2,%2,%2}, {%2,%2}, {%3,%3};" : "=r"(d0), "=r"(d1) : "r"(a), "r"(0)); // BUG diverged-warp
  out[i] = d0 + d1;
}

// CUB and libcu++.
K ok_cub_reduce ARGS { T; using R = cub::BlockReduce<int, 128>; __shared__ typename R::TempStorage s; int v = R(s).Sum(in[t]); if (!t) CHECK(v == sum_to(127)); }
K ok_cub_scan ARGS { T; using R = cub::BlockScan<int, 128>; __shared__ typename R::TempStorage s; int v; R(s).InclusiveSum(in[t], v); CHECK(v == sum_to(t)); }
K ok_cub_sort ARGS { T; using R = cub::BlockRadixSort<int, 128, 1>; __shared__ typename R::TempStorage s; __shared__ int r[128]; int v[1] = {in[t] * 37 % 251}; R(s).Sort(v, 0, 8); r[t] = v[0]; SYNC; if (t) CHECK(r[t - 1] <= r[t]); }
K ok_cub_warp ARGS { T; using R = cub::WarpReduce<int>; using P = cub::WarpScan<int>; __shared__ typename R::TempStorage s[4]; __shared__ typename P::TempStorage p[4]; int v = R(s[w]).Sum(in[l]), x; P(p[w]).ExclusiveSum(in[l], x); if (!l) CHECK(v == sum_to(31)); CHECK(x == sum_to(l) - val(l)); }
K ok_atomic_ref ARGS { T; cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[0]); if (b == 0) { out[t] = in[t]; SYNC; if (!t) f.store(1, cuda::memory_order_release); } else if (b == 1) { if (!t) while (!f.load(cuda::memory_order_acquire)) {} SYNC; CHECK(out[t] == val(t)); } }
K bad_atomic_ref_relaxed ARGS {
  T; cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[0]);
  if (b == 0) { out[t] = in[t]; SYNC; if (!t) f.store(1, cuda::memory_order_relaxed); }
  else if (b == 1) { if (!t) while (!f.load(cuda::memory_order_relaxed)) {} SYNC;
    CHECK(out[t] != -1); } // BUG global-race
}
K bad_atomic_ref_block_scope ARGS {
  T; cuda::atomic_ref<int, cuda::thread_scope_block> f(flag[0]);
  if (!t) f.fetch_add(1); // BUG global-race
}
K ok_atomic_fetch ARGS { T; __shared__ int s; if (!t) s = 0; SYNC; cuda::atomic_ref<int, cuda::thread_scope_block> f(s); f.fetch_add(1, cuda::memory_order_relaxed); f.fetch_max(3, cuda::memory_order_relaxed); SYNC; CHECK(s >= 3 && s <= 131); }
K ok_seqlock ARGS { T; cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[0]), g(flag[1]); if (!t) { if (b == 0) { g.store(5, cuda::memory_order_relaxed); f.store(2, cuda::memory_order_release); } else { int v = f.load(cuda::memory_order_acquire); if (v == 2) CHECK(g.load(cuda::memory_order_relaxed) == 5); } } }
K ok_warp_specialised ARGS { T; __shared__ alignas(16) int s[4][128]; __shared__ unsigned long long full[4], empty[4]; if (!t) for (int k = 0; k < 4; k++) { bar_init(full + k, 32); bar_init(empty + k, 96); } SYNC; if (w == 0) { for (int k = 0; k < 8; k++) { bar_wait(empty + (k & 3), (k >> 2 & 1) ^ 1); for (int j = l; j < 128; j += 32) s[k & 3][j] = in[j + k]; bar_arrive(full + (k & 3)); } } else { for (int k = 0; k < 8; k++) { bar_wait(full + (k & 3), k >> 2 & 1); CHECK(s[k & 3][127 - t] == val(127 - t + k)); bar_arrive(empty + (k & 3)); } } }
