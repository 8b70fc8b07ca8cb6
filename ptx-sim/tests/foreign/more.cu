// Like sync.cu: asynchronous copies, mbarriers, clusters, matrix products. A grid of four CTAs, in clusters of two where the
// kernel says so. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 more.cu
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
__device__ int val(int i) { return i * 7 % 1000; }
__device__ unsigned smem(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

K ok_cp_async ARGS {
  __shared__ alignas(16) int s[512]; int t = threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(smem(s + 4 * t)), "l"(in + 4 * t) : "memory");
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory"); __syncthreads();
  out[blockIdx.x * 128 + t] = s[511 - t]; CHECK(s[511 - t] == val(511 - t));
}
K bad_cp_async_wait ARGS {
  __shared__ alignas(16) int s[512]; int t = threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(smem(s + 4 * t)), "l"(in + 4 * t) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory"); __syncthreads();
  out[blockIdx.x * 128 + t] = s[511 - t]; // BUG async-pending
}
K bad_cp_async_barrier ARGS {
  __shared__ alignas(16) int s[512]; int t = threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(smem(s + 4 * t)), "l"(in + 4 * t) : "memory"); // BUG shared-race async-pending
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
  out[blockIdx.x * 128 + t] = s[511 - t];
}
K ok_mbarrier ARGS {
  __shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ int s[128]; int t = threadIdx.x;
  if (t == 0) init(&b, 128); __syncthreads(); s[t] = t; b.arrive_and_wait(); CHECK(s[127 - t] == 127 - t); b.arrive_and_wait(); s[t] = 2 * t; b.arrive_and_wait(); CHECK(s[t ^ 1] == 2 * (t ^ 1));
}
K ok_mbarrier_one_warp ARGS {
  __shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ int s[32]; int t = threadIdx.x;
  if (t == 0) init(&b, 32); __syncthreads(); if (t < 32) { s[t] = t; b.arrive_and_wait(); CHECK(s[31 - t] == 31 - t); }
}
K ok_specialised ARGS {
  __shared__ cuda::barrier<cuda::thread_scope_block> full[2], empty[2]; __shared__ int s[2][32]; int t = threadIdx.x;
  if (t == 0) for (int i = 0; i < 2; i++) { init(&full[i], 64); init(&empty[i], 64); } __syncthreads();
  if (t < 32) for (int i = 0; i < 8; i++) { if (i >= 2) empty[i & 1].arrive_and_wait(); s[i & 1][t] = in[i * 32 + t]; (void)full[i & 1].arrive(); }
  else if (t < 64) for (int i = 0; i < 8; i++) { full[i & 1].arrive_and_wait(); CHECK(s[i & 1][63 - t] == val(i * 32 + 63 - t)); if (i < 6) (void)empty[i & 1].arrive(); }
}
K ok_bulk ARGS {
  __shared__ alignas(128) int s[128]; __shared__ alignas(8) unsigned long long b; int t = threadIdx.x; unsigned p = 0;
  if (t == 0) { asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(smem(&b)) : "memory"); }
  __syncthreads();
  if (t == 0) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" :: "r"(smem(&b)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" :: "r"(smem(s)), "l"(in), "r"(smem(&b)) : "memory"); }
  while (!p) asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], 0; selp.u32 %0, 1, 0, q; }" : "=r"(p) : "r"(smem(&b)) : "memory");
  CHECK(s[127 - t] == val(127 - t));
}
CK ok_cluster_sync ARGS {
  __shared__ int s[128]; auto c = cg::this_cluster(); int t = threadIdx.x; s[t] = t + 1000 * c.block_rank(); c.sync();
  int *o = c.map_shared_rank(s, c.block_rank() ^ 1); CHECK(o[127 - t] == 127 - t + 1000 * (int)(c.block_rank() ^ 1)); c.sync();
}
CK bad_cluster_sync ARGS {
  __shared__ int s[128]; auto c = cg::this_cluster(); int t = threadIdx.x; s[t] = t; __syncthreads();
  int *o = c.map_shared_rank(s, c.block_rank() ^ 1);
  out[blockIdx.x * 128 + t] = o[127 - t]; // BUG shared-race uninitialized
  c.sync();
}
CK bad_cluster_exit ARGS {
  __shared__ int s[128]; auto c = cg::this_cluster(); int t = threadIdx.x; s[t] = t; c.sync();
  if (c.block_rank() == 1) { for (int i = 0; i < 200; i++) __nanosleep(20);
    int *o = c.map_shared_rank(s, 0);
    out[blockIdx.x * 128 + t] = o[127 - t]; // BUG use-after-free
  }
}
CK ok_cluster_atomics ARGS {
  __shared__ int h[4]; auto c = cg::this_cluster(); int t = threadIdx.x; if (t < 4) h[t] = 0; c.sync();
  atomicAdd(c.map_shared_rank(h, 0) + (t & 3), 1); c.sync(); if (c.block_rank() == 0) CHECK(h[t & 3] == 64);
}
CK ok_multicast ARGS {
  __shared__ alignas(128) int s[128]; __shared__ alignas(8) unsigned long long b; int t = threadIdx.x; unsigned p = 0; auto c = cg::this_cluster();
  if (t == 0) { asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(smem(&b)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" :: "r"(smem(&b)) : "memory"); }
  c.sync();
  if (t == 0 && c.block_rank() == 1) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 512, [%2], %3;" :: "r"(smem(s)), "l"(in), "r"(smem(&b)), "h"((short)3) : "memory");
  while (!p) asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.shared.b64 q, [%1], 0; selp.u32 %0, 1, 0, q; }" : "=r"(p) : "r"(smem(&b)) : "memory");
  CHECK(s[127 - t] == val(127 - t)); c.sync();
}
CK ok_remote_arrive ARGS {
  __shared__ alignas(8) unsigned long long b; __shared__ int s; int t = threadIdx.x; unsigned p = 0; auto c = cg::this_cluster();
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(smem(&b)) : "memory");
  c.sync();
  if (t == 0) { unsigned r; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(smem(&b)), "r"(c.block_rank() ^ 1));
    *c.map_shared_rank(&s, c.block_rank() ^ 1) = 5; asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(r) : "memory"); }
  while (!p) asm volatile("{ .reg .pred q; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%1], 0; selp.u32 %0, 1, 0, q; }" : "=r"(p) : "r"(smem(&b)) : "memory");
  CHECK(s == 5); c.sync();
}
K ok_tensor_s8 ARGS {
  using namespace nvcuda::wmma; __shared__ signed char a[256], b[256]; __shared__ int d[256]; int t = threadIdx.x;
  for (int i = t; i < 256; i += 128) { a[i] = i % 13 - 6; b[i] = i % 7 - 3; } __syncthreads();
  if (t < 32) { fragment<matrix_a, 16, 16, 16, signed char, row_major> x; fragment<matrix_b, 16, 16, 16, signed char, col_major> y; fragment<accumulator, 16, 16, 16, int> z;
    fill_fragment(z, 0); load_matrix_sync(x, a, 16); load_matrix_sync(y, b, 16); mma_sync(z, x, y, z); store_matrix_sync(d, z, 16, mem_row_major); }
  __syncthreads(); for (int i = t; i < 256; i += 128) { int w = 0; for (int k = 0; k < 16; k++) w += a[i / 16 * 16 + k] * b[i % 16 * 16 + k]; CHECK(d[i] == w); }
}
K ok_mma_forms ARGS {
  int t = threadIdx.x & 31, g = t / 4, q = t % 4; float f[4] = {0, 0, 0, 0}; double e0 = 0, e1 = 0; int z[4] = {0, 0, 0, 0};
  // A is the identity in its first columns, so D is the first rows of B.
  unsigned one = __float_as_uint(1.f), a[4] = {g == q ? one : 0, 0, g == q + 4 ? one : 0, 0}, b[2] = {__float_as_uint(float(q * 8 + g)), __float_as_uint(float((q + 4) * 8 + g))};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  CHECK(f[0] == g * 8 + 2 * q && f[1] == g * 8 + 2 * q + 1 && f[2] == 0);
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};" : "+d"(e0), "+d"(e1) : "d"(g == q ? 1. : 0.), "d"(double(q * 8 + g)));
  CHECK(e0 == (g < 4 ? g * 8 + 2 * q : 0) && e1 == (g < 4 ? g * 8 + 2 * q + 1 : 0));
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%4,%4,%4},{%5,%5},{%0,%1,%2,%3};" : "+r"(z[0]), "+r"(z[1]), "+r"(z[2]), "+r"(z[3]) : "r"(0x01010101), "r"(0xff02ff02));
  CHECK(z[0] == 16 && z[3] == 16);


}
