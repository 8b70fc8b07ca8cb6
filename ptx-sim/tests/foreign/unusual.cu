// Like sync.cu: kinds of programs that came late to the suite: parts of warps, split barriers, bytes and bit fields, copies that
// reduce, 16-byte atomics, sparse products, libcu++'s standard library. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 --expt-relaxed-constexpr unusual.cu
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/annotated_ptr>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/complex>
#include <cuda/std/mdspan>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/variant>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <thrust/binary_search.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>
#include <thrust/reduce.h>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }
__device__ unsigned smem(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
#define bar_init(m, n) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(smem(m)), "r"(n) : "memory")
#define bar_expect(m, n) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(smem(m)), "r"(n) : "memory")
#define bar_wait(m, parity) asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra again; }" :: "r"(smem(m)), "r"(parity) : "memory")

// Parts of warps.
K ok_redux_branches ARGS { T; unsigned s; if (l < 8) s = __reduce_add_sync(0xffu, l); else if (l < 24) s = __reduce_max_sync(0xffff00u, l * 3u); else s = __reduce_xor_sync(0xff000000u, 1u << (l - 24)); CHECK(s == (l < 8 ? 28u : l < 24 ? 69u : 255u)); }
K ok_redux_odd ARGS { T; unsigned m = l & 1 ? 0xaaaaaaaau : 0x55555555u; int s = l & 1 ? __reduce_min_sync(m, -l) : __reduce_min_sync(m, l - 40); CHECK(s == (l & 1 ? -31 : -40)); }
K ok_match_partial ARGS { T; if (l < 20) { unsigned m = __match_any_sync(0xfffffu, l % 5); CHECK(m == (0x8421u << (l % 5))); int p; unsigned a = __match_all_sync(0xfffffu, 7, &p); CHECK(p && a == 0xfffffu); a = __match_all_sync(0xfffffu, l == 3, &p); CHECK(!p && !a); } }
K ok_vote_partial ARGS { T; if (l >= 12 && l < 29) { unsigned m = 0x1ffff000u; CHECK(__ballot_sync(m, l & 1) == (0xaaaaaaaau & m)); CHECK(__any_sync(m, l == 12) && !__all_sync(m, l == 12) && __all_sync(m, l > 11)); } }
K ok_shuffle_segments ARGS { T; int v = val(i); for (int d = 1; d < 8; d <<= 1) { int o = __shfl_up_sync(~0u, v, d, 8); if ((l & 7) >= d) v += o; } int s = 0; for (int k = i & ~7; k <= i; k++) s += val(k); CHECK(v == s); CHECK(__shfl_xor_sync(~0u, l, 4, 8) == (l ^ 4)); CHECK(__shfl_sync(~0u, l, 11, 16) == (l & 16) + 11); CHECK(__shfl_down_sync(~0u, l, 3, 4) == ((l & 3) ? l : l + 3)); double d = __shfl_sync(~0u, l * 1.5, 5); CHECK(d == 7.5); }
K bad_redux_mask ARGS {
  T; if (l < 16)
    out[i] = __reduce_add_sync(0xffffffffu, l); // BUG diverged-warp
  SYNC; out[i + 1024] = 1;
}
K bad_redux_wrong_half ARGS {
  T; if (l >= 16)
    out[i] = __reduce_add_sync(0xffffu, l); // BUG shuffle-inactive
}
K bad_match_branch ARGS {
  T; unsigned m = 0;
  if (l > 20) m = __match_any_sync(~0u, l & 3); // BUG diverged-warp
  __syncwarp(); out[i] = m;
}
K ok_active_groups ARGS { T; if (val(i) & 1) { auto g = cg::coalesced_threads(); int n = g.size(), s = cg::reduce(g, 1, cg::plus<int>()); CHECK(n == s && g.shfl(l, 0) == __ffs(__activemask()) - 1); } }

// Barriers in two halves.
K ok_block_split ARGS { T; __shared__ int s[128]; auto block = cg::this_thread_block(); s[t] = in[i]; auto token = block.barrier_arrive(); out[i] = t; block.barrier_wait(std::move(token)); CHECK(s[127 - t] == val(b * 128 + 127 - t)); }
K bad_block_split ARGS {
  T; __shared__ int s[128]; auto block = cg::this_thread_block(); s[t] = in[i]; auto token = block.barrier_arrive();
  out[i] = s[127 - t]; // BUG shared-race
  block.barrier_wait(std::move(token));
}
CK ok_cluster_split ARGS { T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = in[i]; auto token = c.barrier_arrive(); out[i] = 1; c.barrier_wait(std::move(token)); CHECK(c.map_shared_rank(s, c.block_rank() ^ 1)[t] == val((b ^ 1) * 128 + t)); c.sync(); }
CK bad_cluster_split ARGS {
  T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = in[i]; auto token = c.barrier_arrive();
  out[i] = c.map_shared_rank(s, c.block_rank() ^ 1)[t]; // BUG shared-race
  c.barrier_wait(std::move(token)); c.sync();
}
CK bad_dsmem_rank ARGS {
  T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = t; c.sync(); unsigned a = smem(s + t), r, v; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(2 + in[0] + (int)c.block_rank()));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(r)); // BUG out-of-bounds
  out[i] = v; c.sync();
}
K ok_barrier_phases ARGS { T; __shared__ cuda::barrier<cuda::thread_scope_block> m; __shared__ int s[128]; if (!t) init(&m, 128); SYNC; for (int k = 0; k < 5; k++) { s[t] = k + t; auto token = m.arrive(); m.wait(std::move(token)); CHECK(s[(t + 50) & 127] == k + ((t + 50) & 127)); m.arrive_and_wait(); } }
K bad_barrier_drop ARGS {
  T; __shared__ cuda::barrier<cuda::thread_scope_block> m; __shared__ int s[128]; if (!t) init(&m, 128); SYNC;
  if (t >= 64) return;
  s[t] = t; m.arrive_and_wait(); // BUG deadlock
  out[i] = s[63 - t];
}
K ok_barrier_drop ARGS { T; __shared__ cuda::barrier<cuda::thread_scope_block> m; __shared__ int s[128]; if (!t) init(&m, 128); SYNC; if (t >= 64) { m.arrive_and_drop(); return; } for (int k = 0; k < 3; k++) { s[t] = t + k; m.arrive_and_wait(); CHECK(s[63 - t] == 63 - t + k); m.arrive_and_wait(); } }
K bad_barrier_trips ARGS {
  T; __shared__ int s[128]; int n = w + 1; s[t] = 0;
  for (int k = 0; k < n; k++) { s[t] += s[(t + 32 * k + 32) & 127]; SYNC; } // BUG shared-race
  out[i] = s[t];
}

// Bytes, halves, bit fields.
K ok_bytes ARGS { T; __shared__ unsigned char s[128]; __shared__ unsigned short h[128]; s[t] = t; h[127 - t] = t * 3; SYNC; CHECK(s[(t * 5) & 127] == ((t * 5) & 127) && h[t] == (127 - t) * 3); unsigned v = ((unsigned *)s)[t & 31]; CHECK((v & 255) == 4 * (t & 31)); }
K bad_bitfield ARGS {
  struct Bits { unsigned low : 16, high : 16; }; T; __shared__ Bits s[64]; if (t < 64) ((unsigned *)s)[t] = 0; SYNC;
  if (t & 1) s[t >> 1].low = t; else s[t >> 1].high = t; // BUG shared-race
  SYNC; out[i] = s[t >> 1].low + s[t >> 1].high;
}
K bad_byte_overlap ARGS {
  T; __shared__ unsigned char s[132];
  s[t] = t; s[t + 1] = t; // BUG shared-race
  SYNC; out[i] = s[t];
}
K bad_mixed_counter ARGS {
  T; if (w) atomicAdd(flag, 1);
  else out[i] = flag[0]; // BUG global-race
}
K bad_bits_global ARGS {
  T; unsigned *words = (unsigned *)flag;
  words[t >> 5] |= 1u << l; // BUG global-race
}
K ok_bits_global ARGS { T; atomicOr((unsigned *)flag + 4 * b + w, 1u << l); SYNC; CHECK(((volatile unsigned *)flag)[4 * b + (w ^ 1)] == ~0u); }

// Copies that reduce, that go to another CTA, that prefetch.
K ok_bulk_reduce ARGS { T; __shared__ alignas(16) unsigned s[128]; s[t] = 1 + t; if (!b) out[t] = 0; asm volatile("fence.proxy.async;" ::: "memory"); cg::this_grid().sync(); if (!t) { asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" :: "l"(out), "r"(smem(s)) : "memory"); } cg::this_grid().sync(); CHECK(((volatile int *)out)[t] == 4 * (t + 1)); }
K bad_bulk_reduce_source ARGS {
  T; __shared__ alignas(16) unsigned s[128]; s[t] = 1; if (t < 64) out[64 * b + t] = 0; asm volatile("fence.proxy.async;" ::: "memory"); SYNC;
  if (!t) { asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 256; cp.async.bulk.commit_group;" :: "l"(out + 64 * b), "r"(smem(s)) : "memory");
    s[5] = 9; // BUG async-pending
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
}
K bad_bulk_size ARGS {
  T; __shared__ alignas(16) int s[128]; __shared__ unsigned long long m; if (!t) { bar_init(&m, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); } SYNC;
  if (!t) { bar_expect(&m, 24); asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(smem(s)), "l"(in), "r"(24), "r"(smem(&m)) : "memory"); } // BUG bad-operand
  bar_wait(&m, 0);
}
K bad_expect_short ARGS {
  T; __shared__ alignas(16) int s[128]; __shared__ unsigned long long m; if (!t) { bar_init(&m, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); } SYNC;
  if (!t) { bar_expect(&m, 256); for (int k = 0; k < 2; k++) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(smem(s + 64 * k)), "l"(in + 64 * k), "r"(256), "r"(smem(&m)) : "memory"); } // BUG mbarrier
  bar_wait(&m, 0);
  out[i] = s[t];
}
K ok_bulk_prefetch ARGS { T; if (!t) asm volatile("cp.async.bulk.prefetch.L2.global [%0], 1024;" :: "l"(in) : "memory"); CHECK(in[t] == val(t)); }
CK ok_store_async ARGS { T; __shared__ int s[128]; __shared__ unsigned long long m; auto c = cg::this_cluster(); if (!t) { bar_init(&m, 1); bar_expect(&m, 512); } c.sync(); unsigned to, at; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(smem(s + t)), "r"(c.block_rank() ^ 1)); asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(smem(&m)), "r"(c.block_rank() ^ 1)); asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(to), "r"(i), "r"(at) : "memory"); bar_wait(&m, 0); CHECK(s[t] == (b ^ 1) * 128 + t); c.sync(); }
CK bad_store_async ARGS {
  T; __shared__ int s[128]; __shared__ unsigned long long m; auto c = cg::this_cluster(); s[t] = 0; if (!t) { bar_init(&m, 1); bar_expect(&m, 512); } c.sync(); unsigned to, at; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(smem(s + t)), "r"(c.block_rank() ^ 1)); asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(smem(&m)), "r"(c.block_rank() ^ 1));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(to), "r"(i), "r"(at) : "memory"); c.sync();
  out[i] = s[t]; // BUG async-pending shared-race
  bar_wait(&m, 0);
}

// Wide and vector atomics.
K ok_cas128 ARGS { T; unsigned __int128 *p = (unsigned __int128 *)flag; { unsigned __int128 old = 0, got; while ((got = atomicCAS(p, old, old + (((unsigned __int128)1 << 96) | 1))) != old) old = got; } cg::this_grid().sync(); unsigned __int128 all = atomicExch(p + 1 + b, (unsigned __int128)5); (void)all; unsigned __int128 now = atomicCAS(p, (unsigned __int128)0, (unsigned __int128)0); CHECK((unsigned)now == 512 && (unsigned)(now >> 96) == 512); }
K ok_vector_atomics ARGS { T; float4 *p = (float4 *)(out + 128 * b); if (t < 32) p[t] = make_float4(0, 0, 0, 0); SYNC; atomicAdd(p + l, make_float4(1, 2, 3, 4)); SYNC; if (t < 32) { volatile float *q = (float *)(p + t); CHECK(q[0] == 4 && q[3] == 16); } }
K ok_atomic_min_max ARGS { T; __shared__ long long lo; __shared__ unsigned long long hi; if (!t) { lo = 1 << 30; hi = 0; } SYNC; atomicMin(&lo, (long long)-t); atomicMax(&hi, (unsigned long long)t << 33); SYNC; CHECK(lo == -127 && hi == 127ull << 33); }
K ok_cas16 ARGS { T; unsigned short *p = (unsigned short *)flag + (l & 1) + 2 * b; unsigned short old = *(volatile unsigned short *)p, got; while ((got = atomicCAS(p, old, (unsigned short)(old + 1))) != old) old = got; SYNC; CHECK(*(volatile unsigned short *)p == 64); }

// Sparse product: A keeps two of four.
K ok_mma_sparse ARGS { T; half2 one = __float2half2_rn(1.f); unsigned a = *(unsigned *)&one, e = 0x44444444; float d0 = 0, d1 = 0, d2 = 0, d3 = 0; unsigned bb[4]; for (int k = 0; k < 4; k++) { half2 v = __floats2half2_rn(k * 8 + (l & 3) * 2, k * 8 + (l & 3) * 2 + 1); bb[k] = *(unsigned *)&v; } asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%6,%7,%8}, {%0,%1,%2,%3}, %9, 0x0;" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a), "r"(bb[0]), "r"(bb[1]), "r"(bb[2]), "r"(bb[3]), "r"(e)); float s = 0; for (int k = 0; k < 32; k += 4) s += 2 * k + 1; CHECK(d0 == s && d3 == s); }

// The standard library.
K ok_std_mdspan ARGS { T; __shared__ int s[128]; cuda::std::mdspan<int, cuda::std::extents<int, 8, 16>> m(s); m(t >> 4, t & 15) = t; SYNC; CHECK(m(t & 7, t >> 3) == (t & 7) * 16 + (t >> 3)); cuda::std::mdspan<int, cuda::std::dextents<int, 2>, cuda::std::layout_left> c(s, 8, 16); CHECK(c(t & 7, t >> 3) == t); }
K ok_std_complex ARGS { T; cuda::std::complex<float> z(t * 0.01f, 1.f), u = z * z / z; CHECK(fabsf(u.real() - z.real()) < 1e-4f && fabsf(cuda::std::abs(z) - hypotf(t * 0.01f, 1.f)) < 1e-4f); cuda::std::complex<float> e = cuda::std::exp(cuda::std::complex<float>(0.f, 1.f)); CHECK(fabsf(e.real() - 0.5403023f) < 1e-5f); }
K ok_std_types ARGS { T; cuda::std::array<int, 8> a; for (int k = 0; k < 8; k++) a[k] = val(i + k * k); cuda::std::optional<int> o; if (t & 1) o = t; CHECK(o.value_or(-1) == (t & 1 ? t : -1)); cuda::std::variant<int, float> v; if (t % 3) v = 2.5f; else v = 7; CHECK(v.index() == (t % 3 ? 1 : 0)); auto u = cuda::std::make_tuple(a[0], 2.0, 'c'); CHECK(cuda::std::get<0>(u) == val(i)); CHECK(cuda::std::popcount((unsigned)t) == __popc(t) && cuda::std::countl_zero((unsigned)t) == __clz(t)); cuda::std::span<int> sp(a); int s = 0; for (int x : sp) s += x; int r = 0; for (int k = 0; k < 8; k++) r += val(i + k * k); CHECK(s == r); }
K ok_thrust_seq ARGS { T; int a[16]; for (int k = 0; k < 16; k++) a[k] = val(i * 16 % 97 + k * 31); int s = thrust::reduce(thrust::seq, a, a + 16); thrust::sort(thrust::seq, a, a + 16); for (int k = 1; k < 16; k++) CHECK(a[k - 1] <= a[k]); CHECK(thrust::binary_search(thrust::seq, a, a + 16, a[5])); int r = 0; for (int k = 0; k < 16; k++) r += a[k]; CHECK(r == s); }
K ok_annotated ARGS { T; cuda::annotated_ptr<const int, cuda::access_property::persisting> p(in); cuda::annotated_ptr<const int, cuda::access_property::streaming> q(in); cuda::access_property h(cuda::access_property::persisting{}, 0.5f); cuda::annotated_ptr<const int, cuda::access_property> r(in, h); CHECK(p[i] == val(i) && q[i] == val(i) && r[i] == val(i)); __shared__ int s[128]; cuda::annotated_ptr<int, cuda::access_property::shared> u(s); u[t] = t; SYNC; CHECK(u[127 - t] == 127 - t); }
K ok_cg_invoke_one ARGS { T; __shared__ int n; if (!t) n = 0; auto block = cg::this_thread_block(); block.sync(); auto tile = cg::tiled_partition<16>(block); cg::invoke_one(tile, [&] { atomicAdd(&n, 1); }); int v = cg::invoke_one_broadcast(tile, [&] { return 41; }); block.sync(); CHECK(n == 8 && v == 41); }

// Wrong places, orders and sizes.
K bad_null ARGS {
  T; const int *p = (const int *)(long long)in[0];
  out[i] = p[t]; // BUG out-of-bounds
}
K bad_lock_order ARGS {
  T; if (t || b > 1) return; int first = b & 1, other = first ^ 1;
  while (atomicCAS(flag + first, 0, 1)) {}
  atomicAdd(flag + 2, 1); while (atomicAdd(flag + 2, 0) < 2) {}
  while (atomicCAS(flag + other, 0, 1)) {} // BUG deadlock
  out[0] = b; __threadfence(); atomicExch(flag + other, 0); atomicExch(flag + first, 0);
}
K bad_phases_union ARGS {
  T; __shared__ union { float f[128]; int n[128]; } s; s.f[t] = t; SYNC; float v = s.f[127 - t];
  s.n[t] = (int)v; // BUG shared-race
  SYNC; out[i] = s.n[t ^ 64];
}
K bad_shared_stride ARGS {
  T; __shared__ int s[32][33]; for (int k = w; k < 32; k += 4) s[k][l] = k;
  SYNC; int v = 0; for (int k = w; k < 32; k += 4) v += s[l][k + 1]; // BUG uninitialized
  out[i] = v;
}

// Clocks, flags by red and ld, barriers and mbarriers in PTX.
K ok_clock_wait ARGS { T; long long t0 = clock64(); while (clock64() - t0 < 2000) {} unsigned a; asm volatile("mov.u32 %0, %%clock;" : "=r"(a)); CHECK(clock64() > t0); }
K ok_timer_wait ARGS { T; unsigned long long a, c; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(a)); do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(c)); while (c - a < 3000); }
K ok_clock_backoff ARGS { T; if (!t && b) { while (atomicCAS(flag, 0, 1)) { long long s = clock64(); while (clock64() - s < 100) {} } __threadfence(); flag[1]++; __threadfence(); atomicExch(flag, 0); } }
K ok_stream_k ARGS { T; __shared__ int s[128]; if (b) { out[i] = val(i); __syncthreads(); if (!t) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(flag) : "memory"); } else { if (!t) { int n; do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(flag) : "memory"); while (n < 3); } SYNC; int v = val(i); for (int k = 1; k < 4; k++) v += out[128 * k + t]; s[t] = v; out[t] = v; } }
K ok_aggregated ARGS { T; __shared__ int n; if (!t) n = 0; SYNC; if (val(i) % 3) { unsigned m = __activemask(); int leader = __ffs(m) - 1, base = 0; if (l == leader) base = atomicAdd(&n, __popc(m)); base = __shfl_sync(m, base, leader); out[512 * b + base + __popc(m & ((1u << l) - 1))] = i; } SYNC; CHECK(n <= 128); }
K ok_bar_red ARGS { T; int n, p; asm volatile("{ .reg .pred q, r; setp.lt.s32 q, %2, 50; bar.red.popc.u32 %0, 0, q; bar.red.or.pred r, 0, q; selp.s32 %1, 1, 0, r; }" : "=r"(n), "=r"(p) : "r"(t)); CHECK(n == 50 && p); }
K ok_unaligned_barrier ARGS { T; __shared__ int s[128]; s[t] = t; if (l & 1) asm volatile("barrier.sync 0;" ::: "memory"); else asm volatile("barrier.sync 0;" ::: "memory"); CHECK(s[127 - t] == 127 - t); }
K ok_test_wait ARGS { T; __shared__ unsigned long long m; __shared__ int s[128]; if (!t) bar_init(&m, 128); SYNC; s[t] = t; unsigned long long st; asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];" : "=l"(st) : "r"(smem(&m)) : "memory"); unsigned n; asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(st)); CHECK(n >= 1 && n <= 128); int done; do { asm volatile("{ .reg .pred p; mbarrier.test_wait.acquire.cta.shared::cta.b64 p, [%1], %2; selp.s32 %0, 1, 0, p; }" : "=r"(done) : "r"(smem(&m)), "l"(st) : "memory"); if (!done) __nanosleep(20); } while (!done); CHECK(s[127 - t] == 127 - t); }
K ok_try_wait_hint ARGS { T; __shared__ unsigned long long m; __shared__ int s[128]; if (!t) bar_init(&m, 64); SYNC; if (t < 64) { s[t] = t; asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(smem(&m)) : "memory"); } else { asm volatile("{ .reg .pred p; a: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], 0, 1000000; @p bra b; bra a; b: }" :: "r"(smem(&m)) : "memory"); CHECK(s[t - 64] == t - 64); } }
K ok_bf16_atomics ARGS { T; __nv_bfloat162 *p = (__nv_bfloat162 *)flag; atomicAdd(p + w, __floats2bfloat162_rn(1.f, 2.f)); half2 *q = (half2 *)(flag + 8); atomicAdd(q + w, __floats2half2_rn(1.f, .5f)); cg::this_grid().sync(); unsigned v = *(volatile unsigned *)(flag + w); CHECK(v != 0); }
K ok_struct_shuffle ARGS { T; struct S { double d; int n; } s{t * 2.0, t}; int *p = (int *)&s; for (int k = 0; k < 3; k++) p[k] = __shfl_xor_sync(~0u, p[k], 1); CHECK(s.d == (t ^ 1) * 2.0 && s.n == (t ^ 1)); }
CK ok_remote_copy ARGS { T; __shared__ alignas(16) int s[128], r[128]; __shared__ unsigned long long m; auto c = cg::this_cluster(); s[t] = i; if (!t) { bar_init(&m, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); bar_expect(&m, 512); } asm volatile("fence.proxy.async;" ::: "memory"); c.sync(); if (!t) { unsigned to, at; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(smem(r)), "r"(c.block_rank() ^ 1)); asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(smem(&m)), "r"(c.block_rank() ^ 1)); asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" :: "r"(to), "r"(smem(s)), "r"(at) : "memory"); } bar_wait(&m, 0); CHECK(r[t] == (b ^ 1) * 128 + t); c.sync(); }
K ok_elect_lane ARGS { T; __shared__ int n; if (!t) n = 0; SYNC; if (l >= 5) { unsigned p; asm volatile("{ .reg .pred q; elect.sync _|q, 0xffffffe0; selp.u32 %0, 1, 0, q; }" : "=r"(p)); if (p) { CHECK(l == 5); atomicAdd(&n, 1); } } SYNC; CHECK(n == 4); }
K ok_predicate_pair ARGS { T; unsigned r, c, x; asm("{ .reg .pred p, q; setp.lt.and.s32 p|q, %3, 5, 1; @p mov.u32 %0, 1; @!p mov.u32 %0, 2; prmt.b32.b4e %1, %3, %3, 1; lop3.b32 %2, %3, 7, 1, 0x6a; }" : "=r"(r), "=r"(c), "=r"(x) : "r"(t)); CHECK(r == (t < 5 ? 1 : 2)); }
K ok_same_value_mbarrier ARGS { T; __shared__ unsigned long long m; bar_init(&m, 128); SYNC; asm volatile("{ .reg .b64 st; mbarrier.arrive.shared.b64 st, [%0]; }" :: "r"(smem(&m)) : "memory"); bar_wait(&m, 0); }
K bad_stream_k_relaxed ARGS { T; if (b) { out[i] = val(i); SYNC; if (!t) asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" :: "l"(flag) : "memory"); } else { if (!t) { int n; do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(flag) : "memory"); while (n < 3); } SYNC; int v = 0; for (int k = 1; k < 4; k++) v += out[128 * k + t]; out[t] = v; } } // BUG global-race
K bad_stream_k_sync ARGS { T; if (b) { out[i] = val(i); if (!t) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(flag) : "memory"); } else { if (!t) { int n; do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(flag) : "memory"); while (n < 3); } SYNC; int v = 0; for (int k = 1; k < 4; k++) v += out[128 * k + t]; out[t] = v; } } // BUG global-race
K bad_named_missing ARGS { T; if (w < 2) asm volatile("bar.sync 2, 96;" ::: "memory"); else if (w == 2) out[i] = 1; } // BUG deadlock
K bad_dynamic_small ARGS { T; extern __shared__ int d[]; d[t + 16384] = t; SYNC; out[i] = d[t]; } // BUG out-of-bounds
K bad_divergent_shuffle ARGS { T; int v = t; if (l < 16) v = __shfl_down_sync(~0u, v, 16); else v = __shfl_up_sync(~0u, v, 16); out[i] = v; } // BUG diverged-warp
K bad_reduce_tail ARGS { T; int v = in[i]; if (i < 500) { for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d); if (!l) out[i] = v; } SYNC; } // BUG diverged-warp
K bad_scan_inplace ARGS { T; __shared__ int s[128]; s[t] = in[i]; SYNC; for (int d = 1; d < 128; d *= 2) { if (t >= d) s[t] += s[t - d]; SYNC; } out[i] = s[t]; } // BUG shared-race
K bad_count_too_high ARGS { T; if (!t) { atomicAdd(flag, 1); while (atomicAdd(flag, 0) < 5) {} } SYNC; out[i] = 1; } // BUG deadlock
K bad_shifted_copy ARGS { T; out[i + 1] = in[i]; SYNC; out[i] = out[i + 1] + 1; } // BUG global-race
K bad_local_overrun ARGS { T; int a[4]; a[t & 3] = t; int k = in[t] & 7; out[i] = a[k]; } // BUG out-of-bounds
K bad_atomic_misaligned ARGS { T; atomicAdd((unsigned long long *)(flag + 1), 1ull); } // BUG misaligned
K bad_store_over_mbarrier ARGS { T; __shared__ alignas(8) int s[2]; if (!t) bar_init((unsigned long long *)s, 128); SYNC; s[t & 1] = 5; } // BUG mbarrier
