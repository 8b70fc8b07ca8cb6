// Like sync.cu: CuTe and CUTLASS 4.2: products by ldmatrix and mma.sync and by wgmma, their pipelines and barriers.
// Lines of right kernels are left out of the PTX, which would be twice as long. nvcc -ptx -arch=sm_90a -O3 -lineinfo -std=c++17 --expt-relaxed-constexpr cutlass.cu
#include <cute/tensor.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/pipeline/pipeline.hpp>
#include <cutlass/numeric_conversion.h>
using G = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_SS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>; using GM = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_SS<cute::SM90::GMMA::Major::MN, cute::SM90::GMMA::Major::MN>;
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cstdio>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, b = blockIdx.x, w = t / 32, l = t % 32; (void)t; (void)b; (void)w; (void)l
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }
__device__ int sum_to(int n) { int s = 0; for (int i = 0; i <= n; i++) s += val(i); return s; }
using namespace cute; namespace GMMA = SM90::GMMA;
__device__ float av(int i) { return (i * 7 % 13) - 6; } __device__ float bv(int i) { return (i * 5 % 11) - 5; }
// sm80: 64 x 64 x 64 of f16 by ldmatrix and mma.sync, A and B through cp.async into swizzled tiles
K ok_cute_sm80 ARGS {
  T; __shared__ alignas(128) half_t sa[64 * 64], sb[64 * 64]; __shared__ alignas(16) half_t g[64 * 64 * 2];
  auto swz = composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}); auto lay = tile_to_shape(swz, Shape<_64, _64>{});
  Tensor A = make_tensor(make_smem_ptr(sa), lay); Tensor B = make_tensor(make_smem_ptr(sb), lay);
  for (int i = t; i < 4096; i += 128) { A(i / 64, i % 64) = half_t(av(i)); B(i / 64, i % 64) = half_t(bv(i)); } SYNC; (void)g;
  auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2>>{}, Tile<_32, _32, _16>{}); auto th = mma.get_slice(t);
  auto ca = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma); auto cb = make_tiled_copy_B(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
  Tensor rA = th.partition_fragment_A(A); Tensor rB = th.partition_fragment_B(B); Tensor acc = partition_fragment_C(mma, Shape<_64, _64>{}); clear(acc);
  auto ta = ca.get_slice(t); auto tb = cb.get_slice(t);
  for (int k = 0; k < size<2>(rA); k++) { copy(ca, ta.partition_S(A)(_, _, k), ta.retile_D(rA)(_, _, k)); copy(cb, tb.partition_S(B)(_, _, k), tb.retile_D(rB)(_, _, k)); gemm(mma, rA(_, _, k), rB(_, _, k), acc); }
  Tensor id = th.partition_C(make_identity_tensor(Shape<_64, _64>{}));
  for (int i = 0; i < size(acc); i++) { int m = get<0>(id(i)), n = get<1>(id(i)); if (i % 7 == 0) { float e = 0; for (int k = 0; k < 64; k++) e += av(m * 64 + k) * bv(n * 64 + k); CHECK(acc(i) == e); } }
}
K ok_cute_cp_async ARGS { T;
  __shared__ alignas(128) int s[2][512]; auto c = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, int>{}, Layout<Shape<_128>>{}, Layout<Shape<_4>>{}); auto th = c.get_slice(t);
  Tensor G = make_tensor(make_gmem_ptr(in), Shape<_512, _4>{}, Stride<_1, _512>{}); Tensor S = make_tensor(make_smem_ptr(&s[0][0]), Shape<_512, _2>{}, Stride<_1, _512>{});
  copy(c, th.partition_S(G(_, 0)), th.partition_D(S(_, 0))); cp_async_fence();
  for (int i = 0; i < 4; i++) { if (i < 3) { copy(c, th.partition_S(G(_, i + 1)), th.partition_D(S(_, (i + 1) & 1))); } cp_async_fence(); cp_async_wait<1>(); SYNC; CHECK(S(511 - t, i & 1) == val(i * 512 + 511 - t)); SYNC; } }
// sm90: wgmma from shared memory, both operands K-major and B MN-major
template <class LA, class LB, class Atom> __device__ void gmma(int t, LA la, LB lb, Atom, half_t *sa, half_t *sb, bool b_is_k) {
  Tensor A = make_tensor(make_smem_ptr(sa), la); Tensor B = make_tensor(make_smem_ptr(sb), lb);
  for (int i = t; i < 4096; i += 128) { A(i / 64, i % 64) = half_t(av(i)); B(i / 64, i % 64) = half_t(bv(i)); }
  cutlass::arch::fence_view_async_shared(); SYNC;
  auto mma = make_tiled_mma(Atom{}); auto th = mma.get_slice(t); Tensor tA = th.make_fragment_A(th.partition_A(A)); Tensor tB = th.make_fragment_B(th.partition_B(B)); Tensor acc = partition_fragment_C(mma, Shape<_64, _64>{});
  mma.accumulate_ = GMMA::ScaleOut::Zero; warpgroup_fence_operand(acc); warpgroup_arrive();
  for (int k = 0; k < size<2>(tA); k++) { gemm(mma, tA(_, _, k), tB(_, _, k), acc); mma.accumulate_ = GMMA::ScaleOut::One; }
  warpgroup_commit_batch(); warpgroup_wait<0>(); warpgroup_fence_operand(acc);
  Tensor id = th.partition_C(make_identity_tensor(Shape<_64, _64>{}));
  for (int i = 0; i < size(acc); i += 5) { int m = get<0>(id(i)), n = get<1>(id(i)); float e = 0; for (int k = 0; k < 64; k++) e += av(m * 64 + k) * bv(n * 64 + k); CHECK(acc(i) == e); } }
K ok_cute_gmma_k ARGS { T; __shared__ alignas(1024) half_t a[4096], c[4096]; auto lk = tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_64, _64>{}); gmma(t, lk, lk, G{}, a, c, true); }
K ok_cute_gmma_sw64 ARGS { T; __shared__ alignas(1024) half_t a[4096], c[4096]; auto lk = tile_to_shape(GMMA::Layout_K_SW64_Atom<half_t>{}, Shape<_64, _64>{}); gmma(t, lk, lk, G{}, a, c, true); }
K ok_cute_gmma_mn ARGS { T; __shared__ alignas(1024) half_t a[4096], c[4096]; auto la = tile_to_shape(GMMA::Layout_MN_SW128_Atom<half_t>{}, Shape<_64, _64>{}); auto lb = tile_to_shape(GMMA::Layout_MN_SW32_Atom<half_t>{}, Shape<_64, _64>{}); gmma(t, la, lb, GM{}, a, c, false); }
K ok_cute_gmma_inter ARGS { T; __shared__ alignas(1024) half_t a[4096], c[4096]; auto lk = tile_to_shape(GMMA::Layout_K_INTER_Atom<half_t>{}, Shape<_64, _64>{}); gmma(t, lk, lk, G{}, a, c, true); }
K bad_cute_gmma_fence ARGS {
  T; __shared__ alignas(1024) half_t sa[4096], sb[4096]; auto la = tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_64, _64>{});
  Tensor A = make_tensor(make_smem_ptr(sa), la); Tensor B = make_tensor(make_smem_ptr(sb), la);
  for (int i = t; i < 4096; i += 128) { A(i / 64, i % 64) = half_t(av(i)); B(i / 64, i % 64) = half_t(bv(i)); }
  SYNC;
  auto mma = make_tiled_mma(G{}); auto th = mma.get_slice(t); Tensor tA = th.make_fragment_A(th.partition_A(A)); Tensor tB = th.make_fragment_B(th.partition_B(B)); Tensor acc = partition_fragment_C(mma, Shape<_64, _64>{});
  mma.accumulate_ = GMMA::ScaleOut::Zero; warpgroup_arrive();
  gemm(mma, tA(_, _, 0), tB(_, _, 0), acc); // BUG proxy-fence
  warpgroup_commit_batch(); warpgroup_wait<0>(); out[b * 128 + t] = acc(0);
}
K bad_cute_gmma_wait ARGS {
  T; __shared__ alignas(1024) half_t sa[4096], sb[4096]; auto la = tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_64, _64>{});
  Tensor A = make_tensor(make_smem_ptr(sa), la); Tensor B = make_tensor(make_smem_ptr(sb), la);
  for (int i = t; i < 4096; i += 128) { A(i / 64, i % 64) = half_t(av(i)); B(i / 64, i % 64) = half_t(bv(i)); }
  cutlass::arch::fence_view_async_shared(); SYNC;
  auto mma = make_tiled_mma(G{}); auto th = mma.get_slice(t); Tensor tA = th.make_fragment_A(th.partition_A(A)); Tensor tB = th.make_fragment_B(th.partition_B(B)); Tensor acc = partition_fragment_C(mma, Shape<_64, _64>{});
  mma.accumulate_ = GMMA::ScaleOut::Zero; warpgroup_arrive(); gemm(mma, tA(_, _, 0), tB(_, _, 0), acc); warpgroup_commit_batch();
  out[b * 128 + t] = acc(0); // BUG wgmma-pending
}
// CUTLASS's pipelines: a producer warp, consumers of a warpgroup
K ok_cutlass_pipeline_async ARGS { T;
  using P = cutlass::PipelineAsync<3>; __shared__ alignas(16) char st_[sizeof(typename P::SharedStorage)]; auto &st = *reinterpret_cast<typename P::SharedStorage*>(st_); __shared__ int s[3][32];
  typename P::Params p; p.role = w == 0 ? P::ThreadCategory::Producer : P::ThreadCategory::Consumer; p.producer_arv_count = 32; p.consumer_arv_count = 96; P pipe(st, p, cute::true_type{}); SYNC;
  if (w == 0) { cutlass::PipelineState<3> q = cutlass::make_producer_start_state<P>(); for (int i = 0; i < 10; i++) { pipe.producer_acquire(q); s[q.index()][l] = in[i * 32 + l]; pipe.producer_commit(q); ++q; } pipe.producer_tail(q); }
  else { cutlass::PipelineState<3> q; for (int i = 0; i < 10; i++) { pipe.consumer_wait(q); CHECK(s[q.index()][31 - l] == val(i * 32 + 31 - l)); pipe.consumer_release(q); ++q; } } }
K bad_cutlass_pipeline_release ARGS {
  T; using P = cutlass::PipelineAsync<3>; __shared__ alignas(16) char st_[sizeof(typename P::SharedStorage)]; auto &st = *reinterpret_cast<typename P::SharedStorage*>(st_); __shared__ int s[3][32];
  typename P::Params p; p.role = w == 0 ? P::ThreadCategory::Producer : P::ThreadCategory::Consumer; p.producer_arv_count = 32; p.consumer_arv_count = 96; P pipe(st, p, cute::true_type{}); SYNC;
  if (w == 0) { cutlass::PipelineState<3> q = cutlass::make_producer_start_state<P>(); for (int i = 0; i < 10; i++) { pipe.producer_acquire(q); s[q.index()][l] = in[i * 32 + l]; pipe.producer_commit(q); ++q; } }
  else { cutlass::PipelineState<3> q; int sum = 0; for (int i = 0; i < 10; i++) { pipe.consumer_wait(q); pipe.consumer_release(q);
      sum += s[q.index()][31 - l]; // BUG shared-race
      ++q; } out[b * 128 + t] = sum; }
}
K ok_cutlass_ordered ARGS { T; using O = cutlass::OrderedSequenceBarrier<1, 2>; __shared__ alignas(16) char st_[sizeof(typename O::SharedStorage)]; auto &st = *reinterpret_cast<typename O::SharedStorage*>(st_); __shared__ int s; if (!t) s = 0; typename O::Params p; p.group_id = t / 64; p.group_size = 64; O o(st, p); SYNC;
  for (int i = 0; i < 3; i++) { o.wait(); if (t % 64 == 0) { CHECK(s == 2 * i + t / 64); s++; } o.arrive(); } }
K ok_cutlass_named ARGS { T; __shared__ int s[128]; if (t < 64) { s[t] = in[t]; cutlass::arch::NamedBarrier::arrive(128, 2); } else { cutlass::arch::NamedBarrier::sync(128, 2); CHECK(s[t - 64] == val(t - 64)); } }
K ok_cutlass_convert ARGS { T; cutlass::NumericArrayConverter<cutlass::half_t, float, 8> c; cutlass::Array<float, 8> f; for (int i = 0; i < 8; i++) f[i] = in[t + i]; auto h = c(f); for (int i = 0; i < 8; i++) CHECK(float(h[i]) == float(val(t + i))); cutlass::NumericArrayConverter<cutlass::float_e4m3_t, float, 4> e; cutlass::Array<float, 4> g; g.fill(1.5f); CHECK(float(e(g)[3]) == 1.5f); cutlass::NumericArrayConverter<float, int8_t, 4> u; cutlass::Array<int8_t, 4> z; z.fill(-3); CHECK(u(z)[2] == -3.f); }
K ok_stmatrix_cute ARGS { T; __shared__ alignas(16) half_t s[4][16 * 16]; auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}); (void)mma; uint32_t r[4]; for (int i = 0; i < 4; i++) r[i] = (l * 4 + i) * 0x10001; half_t *p = s[w] + (l % 16) * 16 + l / 16 * 8; asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" :: "r"((unsigned)__cvta_generic_to_shared(p)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory"); __syncwarp(); uint32_t q[4]; asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(q[0]), "=r"(q[1]), "=r"(q[2]), "=r"(q[3]) : "r"((unsigned)__cvta_generic_to_shared(p))); for (int i = 0; i < 4; i++) CHECK(q[i] == r[i]); }
K ok_setmaxnreg ARGS { T; if (b < 4) { cutlass::arch::warpgroup_reg_alloc<64>(); out[b * 128 + t] = in[t]; cutlass::arch::warpgroup_reg_dealloc<40>(); } }
K ok_gmma_f8 ARGS { T; __shared__ alignas(1024) cutlass::float_e4m3_t sa[64 * 64], sb[64 * 64]; auto la = tile_to_shape(GMMA::Layout_K_SW64_Atom<cutlass::float_e4m3_t>{}, Shape<_64, _64>{}); Tensor A = make_tensor(make_smem_ptr(sa), la); Tensor B = make_tensor(make_smem_ptr(sb), la);
  for (int i = t; i < 4096; i += 128) { A(i / 64, i % 64) = cutlass::float_e4m3_t(av(i)); B(i / 64, i % 64) = cutlass::float_e4m3_t(bv(i)); } cutlass::arch::fence_view_async_shared(); SYNC;
  auto mma = make_tiled_mma(SM90::GMMA::MMA_64x64x32_F32E4M3E4M3_SS_TN<>{}); auto th = mma.get_slice(t); Tensor tA = th.make_fragment_A(th.partition_A(A)); Tensor tB = th.make_fragment_B(th.partition_B(B)); Tensor acc = partition_fragment_C(mma, Shape<_64, _64>{}); mma.accumulate_ = GMMA::ScaleOut::Zero; warpgroup_arrive(); for (int k = 0; k < 2; k++) { gemm(mma, tA(_, _, k), tB(_, _, k), acc); mma.accumulate_ = GMMA::ScaleOut::One; } warpgroup_commit_batch(); warpgroup_wait<0>();
  Tensor id = th.partition_C(make_identity_tensor(Shape<_64, _64>{})); for (int i = 0; i < size(acc); i += 5) { int m = get<0>(id(i)), n = get<1>(id(i)); float e = 0; for (int k = 0; k < 64; k++) e += av(m * 64 + k) * bv(n * 64 + k); CHECK(acc(i) == e); } }
CK ok_cluster_barrier_cutlass ARGS { T; using B = cutlass::arch::ClusterBarrier; __shared__ alignas(8) char bar_[8]; B &bar = *reinterpret_cast<B*>(bar_); __shared__ int s[128]; if (!t) { bar.init(2); cutlass::arch::fence_barrier_init(); } cluster_arrive_relaxed(); cluster_wait(); s[t] = in[t] + b; SYNC; if (t < 2) bar.arrive(t, 1u); bar.wait(0); auto c = cg::this_cluster(); int *o = c.map_shared_rank(s, c.block_rank() ^ 1); int v; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(set_block_rank((unsigned)__cvta_generic_to_shared(&s[t]), c.block_rank() ^ 1)) : "memory"); CHECK(v == val(t) + (b ^ 1)); (void)o; cluster_sync(); }
