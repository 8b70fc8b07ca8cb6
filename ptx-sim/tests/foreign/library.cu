// Like sync.cu: CUB's blocks and warps, cooperative groups, libcu++'s pipelines, barriers and semaphores, queues, persistent kernels.
// Lines of right kernels are left out of the PTX. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 --extended-lambda library.cu
#include <cub/cub.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/semaphore>
#include <cuda/latch>
#include <cuda/atomic>
#include <cuda/ptx>
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

K ok_cub_discontinuity ARGS { T; using D = cub::BlockDiscontinuity<int, 128>; __shared__ typename D::TempStorage s; int v[2] = {in[2*t] / 100, in[2*t+1] / 100}; int f[2]; D(s).FlagHeads(f, v, [] __device__ (int x, int y) { return x != y; }); CHECK(f[1] == (v[1] != v[0])); CHECK(f[0] == (t == 0 || val(2*t-1) / 100 != v[0])); }
K ok_cub_adjacent ARGS { T; using D = cub::BlockAdjacentDifference<int, 128>; __shared__ typename D::TempStorage s; int v[2] = {in[2*t], in[2*t+1]}, r[2]; D(s).SubtractLeft(v, r, [] __device__ (int x, int y) { return x - y; }); CHECK(r[1] == v[1] - v[0]); if (t) CHECK(r[0] == v[0] - val(2*t-1)); }
K ok_cub_exchange ARGS { T; using E = cub::BlockExchange<int, 128, 4>; __shared__ typename E::TempStorage s; int v[4]; for (int i = 0; i < 4; i++) v[i] = in[i * 128 + t]; E(s).StripedToBlocked(v, v); for (int i = 0; i < 4; i++) CHECK(v[i] == val(4 * t + i)); SYNC; E(s).BlockedToStriped(v, v); for (int i = 0; i < 4; i++) CHECK(v[i] == val(i * 128 + t)); SYNC; E(s).WarpStripedToBlocked(v, v); }
K ok_cub_histogram ARGS { T; using H = cub::BlockHistogram<unsigned char, 128, 4, 256, cub::BLOCK_HISTO_SORT>; __shared__ typename H::TempStorage s; __shared__ unsigned h[256]; unsigned char v[4]; for (int i = 0; i < 4; i++) v[i] = in[4*t+i] & 255; H(s).Histogram(v, h); SYNC; for (int k = t; k < 256; k += 128) { unsigned n = 0; for (int i = 0; i < 512; i++) n += (val(i) & 255) == k; CHECK(h[k] == n); } }
K ok_cub_histogram_atomic ARGS { T; using H = cub::BlockHistogram<unsigned char, 128, 4, 256, cub::BLOCK_HISTO_ATOMIC>; __shared__ typename H::TempStorage s; __shared__ unsigned h[256]; unsigned char v[4]; for (int i = 0; i < 4; i++) v[i] = in[4*t+i] & 255; H(s).Histogram(v, h); SYNC; for (int k = t; k < 256; k += 128) { unsigned n = 0; for (int i = 0; i < 512; i++) n += (val(i) & 255) == k; CHECK(h[k] == n); } }
K ok_cub_load ARGS { T; using L = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>; using S = cub::BlockStore<int, 128, 4, cub::BLOCK_STORE_WARP_TRANSPOSE>; __shared__ union { typename L::TempStorage a; typename S::TempStorage b; } s; int v[4]; L(s.a).Load(in + 512 * b, v, 500, -1); for (int i = 0; i < 4; i++) CHECK(v[i] == (4*t+i < 500 ? val(512 * b + 4 * t + i) : -1)); SYNC; S(s.b).Store(out + 512 * b, v, 500); SYNC; if (t < 100) CHECK(out[512 * b + t] == val(512 * b + t)); }
K ok_cub_load_vector ARGS { T; using L = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_VECTORIZE>; __shared__ typename L::TempStorage s; int v[4]; L(s).Load((int*)in + 512 * b, v); for (int i = 0; i < 4; i++) CHECK(v[i] == val(512 * b + 4 * t + i)); }
K ok_cub_merge_sort ARGS { T; using M = cub::BlockMergeSort<int, 128, 4>; __shared__ typename M::TempStorage s; __shared__ int r[512]; int v[4]; for (int i = 0; i < 4; i++) v[i] = in[4*t+i] * 61 % 509; M(s).Sort(v, [] __device__ (int x, int y) { return x < y; }); for (int i = 0; i < 4; i++) r[4*t+i] = v[i]; SYNC; for (int i = t; i < 511; i += 128) CHECK(r[i] <= r[i+1]); }
K ok_cub_radix_pairs ARGS { T; using R = cub::BlockRadixSort<float, 128, 4, int>; __shared__ typename R::TempStorage s; __shared__ float r[512]; float k[4]; int v[4]; for (int i = 0; i < 4; i++) { v[i] = 4*t+i; k[i] = in[4*t+i] - 500.f; } R(s).SortDescendingBlockedToStriped(k, v); for (int i = 0; i < 4; i++) { CHECK(val(v[i]) - 500.f == k[i]); r[i * 128 + t] = k[i]; } SYNC; for (int i = t; i < 511; i += 128) CHECK(r[i] >= r[i+1]); }
K ok_cub_radix_rank ARGS { T; using R = cub::BlockRadixRankMatch<128, 4, false>; __shared__ typename R::TempStorage s; unsigned k[2] = {(unsigned)in[2*t] & 15, (unsigned)in[2*t+1] & 15}; int r[2]; __shared__ int seen[256]; seen[t] = seen[t+128] = 0; SYNC; R(s).RankKeys(k, r, cub::BFEDigitExtractor<unsigned>(0, 4)); for (int i = 0; i < 2; i++) atomicAdd(&seen[r[i]], 1); SYNC; CHECK(seen[t] == 1 && seen[t+128] == 1); }
K ok_cub_run_length ARGS { T; using R = cub::BlockRunLengthDecode<int, 128, 1, 2>; __shared__ typename R::TempStorage s; int v[1] = {in[t]}, n[1] = {1 + (t & 1)}; int total; R d(s, v, n, total); int o[2]; d.RunLengthDecode(o, 0); CHECK(total == 192); if (t == 0) { CHECK(o[0] == val(0)); CHECK(o[1] == val(1)); } }
K ok_cub_shuffle ARGS { T; using S = cub::BlockShuffle<int, 128>; __shared__ typename S::TempStorage s; int v = in[t], r = -1; S(s).Offset(v, r, 3); if (t < 125) CHECK(r == val(t + 3)); SYNC; S(s).Rotate(v, r, 5); CHECK(r == val((t + 5) % 128)); }
K ok_cub_warp_sort ARGS { T; using M = cub::WarpMergeSort<int, 2, 32>; __shared__ typename M::TempStorage s[4]; int v[2] = {in[2*t] * 61 % 509, in[2*t+1] * 61 % 509}; M(s[w]).Sort(v, [] __device__ (int x, int y) { return x < y; }); CHECK(v[0] <= v[1]); int p = __shfl_up_sync(~0u, v[1], 1); if (l) CHECK(p <= v[0]); }
K ok_cub_warp_exchange ARGS { T; using E = cub::WarpExchange<int, 4, 16>; __shared__ typename E::TempStorage s[8]; int q = t / 16, h = t % 16, v[4]; for (int i = 0; i < 4; i++) v[i] = in[q * 64 + h * 4 + i]; E(s[q]).BlockedToStriped(v, v); for (int i = 0; i < 4; i++) CHECK(v[i] == val(q * 64 + i * 16 + h)); }
K ok_cub_warp_segmented ARGS { T; using R = cub::WarpReduce<int, 16>; __shared__ typename R::TempStorage s[8]; int v = R(s[t / 16]).HeadSegmentedSum(in[t], (t & 3) == 0); if ((t & 3) == 0) CHECK(v == val(t) + val(t+1) + val(t+2) + val(t+3)); }
K ok_cub_warp_load ARGS { T; using L = cub::WarpLoad<int, 4, cub::WARP_LOAD_TRANSPOSE>; __shared__ typename L::TempStorage s[4]; int v[4]; L(s[w]).Load(in + 128 * w, v); for (int i = 0; i < 4; i++) CHECK(v[i] == val(128 * w + 4 * l + i)); }
K ok_cub_scan_raking ARGS { T; using S = cub::BlockScan<int, 128, cub::BLOCK_SCAN_RAKING_MEMOIZE>; __shared__ typename S::TempStorage s; int v[2] = {in[2*t], in[2*t+1]}, a; S(s).ExclusiveScan(v, v, 0, cuda::maximum<int>{}, a); int m = 0; for (int i = 0; i < 2 * t; i++) m = max(m, val(i)); CHECK(v[0] == m); }
struct Prefix { int total; __device__ int operator()(int n) { int o = total; total += n; return o; } };
K ok_cub_scan_callback ARGS { T; using S = cub::BlockScan<int, 128, cub::BLOCK_SCAN_WARP_SCANS>; __shared__ typename S::TempStorage s; Prefix p{0}; for (int i = 0; i < 3; i++) { int v = in[i * 128 + t]; S(s).InclusiveSum(v, v, p); SYNC; CHECK(v == sum_to(i * 128 + t)); } }
K ok_cub_reduce_raking ARGS { T; using R = cub::BlockReduce<double, 128, cub::BLOCK_REDUCE_RAKING>; __shared__ typename R::TempStorage s; double v = R(s).Reduce(in[t] * .5, cuda::maximum<double>{}, 100); if (!t) { double m = 0; for (int i = 0; i < 100; i++) m = max(m, val(i) * .5); CHECK(v == m); } }
K ok_cub_reduce_key ARGS { T; using P = cub::KeyValuePair<int, int>; using R = cub::BlockReduce<P, 128, cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY>; __shared__ typename R::TempStorage s; P p(t, in[t]); p = R(s).Reduce(p, cub::ArgMax()); if (!t) CHECK(val(p.key) == p.value); }
K bad_cub_reduce_reuse ARGS {
  T; using R = cub::BlockReduce<int, 128>; __shared__ typename R::TempStorage s; int v = R(s).Sum(in[t]);
  v += R(s).Sum(in[t + 1]); // BUG shared-race
  if (!t) out[b] = v;
}

K ok_cg_tile_shapes ARGS { T; auto k = cg::this_thread_block(); auto t4 = cg::tiled_partition<4>(k); auto t16 = cg::tiled_partition<16>(k); int v = in[t]; CHECK(cg::reduce(t4, v, cg::plus<int>()) == val(t & ~3) + val((t & ~3) + 1) + val((t & ~3) + 2) + val((t & ~3) + 3)); int m = cg::reduce(t16, v, cg::greater<int>()); int e = 0; for (int i = 0; i < 16; i++) e = max(e, val((t & ~15) + i)); CHECK(m == e); CHECK(t4.shfl(v, 2) == val((t & ~3) + 2)); CHECK(t16.any(t16.thread_rank() == 3)); CHECK(t4.ballot(1) == 15); auto p = cg::tiled_partition<2>(t4); CHECK(p.shfl_xor(v, 1) == val(t ^ 1)); }
K ok_cg_dynamic_tiles ARGS { T; auto k = cg::this_thread_block(); auto g = cg::tiled_partition(k, 8); CHECK(g.size() == 8); g.sync(); CHECK(g.size() == 8 && g.thread_rank() == (t & 7)); }
K ok_cg_binary ARGS { T; auto tile = cg::tiled_partition<32>(cg::this_thread_block()); auto g = cg::binary_partition(tile, (in[t] & 1) != 0); int n = 0; for (int i = 0; i < 32; i++) n += (val((t & ~31) + i) & 1) == (val(t) & 1); CHECK((int)g.size() == n); int s = cg::reduce(g, 1, cg::plus<int>()); CHECK(s == n); }
K ok_cg_labeled_reduce ARGS { T; auto a = cg::coalesced_threads(); auto g = cg::labeled_partition(a, in[t] % 5); int s = cg::reduce(g, in[t], cg::plus<int>()); int e = 0; for (int i = 0; i < 32; i++) if (val((t & ~31) + i) % 5 == val(t) % 5) e += val((t & ~31) + i); CHECK(s == e); }
K ok_cg_coalesced_append ARGS { T; if (in[t] % 3 == 0) { auto g = cg::coalesced_threads(); int base; if (g.thread_rank() == 0) base = atomicAdd(flag, (int)g.size()); int at = g.shfl(base, 0) + g.thread_rank(); out[at] = in[t]; g.sync(); } SYNC; }
K ok_cg_coalesced_scan ARGS { T; if (l % 4 != 1) { auto g = cg::coalesced_threads(); int x = cg::exclusive_scan(g, 1); CHECK(x == (int)g.thread_rank()); int y = cg::inclusive_scan(g, in[t], cg::plus<int>()); (void)y; CHECK(g.size() == 24); } }
K ok_cg_memcpy ARGS { __shared__ int s[512]; auto g = cg::this_thread_block(); cg::memcpy_async(g, s, in, sizeof(int) * 512); cg::wait(g); T; for (int i = t; i < 512; i += 128) CHECK(s[511 - i] == val(511 - i)); }
K ok_cg_memcpy_stages ARGS { T; __shared__ int s[2][128]; auto g = cg::this_thread_block(); cg::memcpy_async(g, s[0], in, 512); for (int i = 0; i < 6; i++) { if (i < 5) { cg::memcpy_async(g, s[(i + 1) & 1], in + 128 * (i + 1), 512); cg::wait_prior<1>(g); } else cg::wait(g); CHECK(s[i & 1][127 - t] == val(i * 128 + 127 - t)); g.sync(); } }
K bad_cg_memcpy_reuse ARGS {
  T; __shared__ int s[2][128]; auto g = cg::this_thread_block(); cg::memcpy_async(g, s[0], in, 512); int v = 0;
  for (int i = 0; i < 6; i++) {
    if (i < 5) { cg::memcpy_async(g, s[(i + 1) & 1], in + 128 * (i + 1), 512); cg::wait_prior<1>(g); } else cg::wait(g);
    v += s[i & 1][127 - t]; // BUG shared-race async-pending
  }
  out[b * 128 + t] = v;
}
K bad_cg_memcpy_wait ARGS {
  T; __shared__ int s[128]; auto g = cg::this_thread_block(); cg::memcpy_async(g, s, in, 512);
  out[b * 128 + t] = s[t ^ 1]; // BUG async-pending shared-race uninitialized
}
K ok_cg_grid ARGS { T; auto g = cg::this_grid(); out[g.thread_rank()] = in[g.thread_rank()]; g.sync(); int o = (g.thread_rank() + 200) % 512; CHECK(out[o] == val(o)); }
CK ok_cg_cluster_queries ARGS { auto c = cg::this_cluster(); T; CHECK(c.num_blocks() == 2); CHECK(c.num_threads() == 256); CHECK(c.block_rank() == blockIdx.x % 2); CHECK(c.thread_rank() == c.block_rank() * 128 + t); __shared__ int s; if (!t) s = b; c.sync(); int *p = c.map_shared_rank(&s, 0); CHECK(c.query_shared_rank(p) == 0); CHECK(*p == (b & ~1)); auto token = c.barrier_arrive(); c.barrier_wait(std::move(token)); }
K ok_cuda_pipeline_block ARGS { T; __shared__ int s[3][128]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> st; auto g = cg::this_thread_block(); auto p = cuda::make_pipeline(g, &st); int f = 0; for (int i = 0; i < 8; i++) { for (; f < 8 && f < i + 3; f++) { p.producer_acquire(); cuda::memcpy_async(g, s[f % 3], in + f * 128, sizeof(int) * 128, p); p.producer_commit(); } p.consumer_wait(); CHECK(s[i % 3][127 - t] == val(i * 128 + 127 - t)); p.consumer_release(); } }
K ok_cuda_pipeline_partitioned ARGS { T; __shared__ int s[2][64]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> st; auto g = cg::this_thread_block(); auto role = t < 64 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer; auto p = cuda::make_pipeline(g, &st, role); if (t < 64) { for (int i = 0; i < 6; i++) { p.producer_acquire(); cuda::memcpy_async(&s[i & 1][t], in + i * 64 + t, sizeof(int), p); p.producer_commit(); } } else { for (int i = 0; i < 6; i++) { p.consumer_wait(); int u = 127 - t; CHECK(s[i & 1][u] == val(i * 64 + u)); p.consumer_release(); } } p.quit(); }
K ok_cuda_pipeline_thread ARGS { T; __shared__ int s[2][128]; auto p = cuda::make_pipeline(); for (int i = 0; i < 4; i++) { p.producer_acquire(); cuda::memcpy_async(&s[i & 1][t], in + i * 128 + t, 4, p); p.producer_commit(); cuda::pipeline_consumer_wait_prior<0>(p); CHECK(s[i & 1][t] == val(i * 128 + t)); p.consumer_release(); } }
K ok_cuda_barrier_tx ARGS { T; __shared__ alignas(16) int s[128]; __shared__ cuda::barrier<cuda::thread_scope_block> bar; if (!t) { init(&bar, 128); cuda::ptx::fence_proxy_async(cuda::ptx::space_shared); } SYNC; cuda::barrier<cuda::thread_scope_block>::arrival_token tok; if (!t) { cuda::device::memcpy_async_tx(s, in, cuda::aligned_size_t<16>(512), bar); tok = cuda::device::barrier_arrive_tx(bar, 1, 512); } else tok = bar.arrive(); bar.wait(std::move(tok)); CHECK(s[127 - t] == val(127 - t)); }
K ok_cuda_latch ARGS { T; using L = cuda::latch<cuda::thread_scope_block>; __shared__ alignas(L) char m[sizeof(L)]; L *p = (L*)m; __shared__ int s[128]; if (!t) new (p) L(128); SYNC; s[t] = in[t]; p->arrive_and_wait(); CHECK(s[127 - t] == val(127 - t)); }
K ok_cuda_semaphore ARGS { T; using S = cuda::counting_semaphore<cuda::thread_scope_block, 1>; __shared__ alignas(S) char m[sizeof(S)]; S *p = (S*)m; __shared__ int n; if (!t) { new (p) S(1); n = 0; } SYNC; if (l == 0) { p->acquire(); n = n + 1; p->release(); } SYNC; CHECK(n == 4); }
K ok_cuda_atomic_wait ARGS { T; cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[1]); if (b == 0) { out[t] = in[t]; SYNC; if (!t) { f.store(1); f.notify_all(); } } else { if (!t) f.wait(0); SYNC; CHECK(out[t] == val(t)); } }
K ok_cuda_fence ARGS { T; cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[2]); if (b == 0) { if (!t) { out[0] = 42; cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_device); f.store(1, cuda::memory_order_relaxed); } } else if (b == 1) { if (!t) { while (!f.load(cuda::memory_order_relaxed)) {} cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device); CHECK(out[0] == 42); } } }
K bad_cuda_fence ARGS {
  T; cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[2]);
  if (b == 0) { if (!t) { out[0] = 42; f.store(1, cuda::memory_order_relaxed); } }
  else if (b == 1) { if (!t) { while (!f.load(cuda::memory_order_relaxed)) {} cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device);
    CHECK(out[0] == 42); } } // BUG global-race uninitialized
}
K bad_barrier_expected ARGS {
  T; __shared__ cuda::barrier<cuda::thread_scope_block> bar; if (!t) init(&bar, 129); SYNC;
  bar.arrive_and_wait(); // BUG deadlock
}
K bad_semaphore_order ARGS {
  T; __shared__ int n; if (!t) n = 0; SYNC;
  if (l == 0) n = n + in[0]; // BUG shared-race
  SYNC; if (!t) out[b] = n;
}
K ok_spsc_queue ARGS { T; // a ring between two warps of a CTA, acquire and release at CTA scope
  __shared__ int ring[8]; __shared__ int head, tail; if (!t) head = tail = 0; SYNC;
  cuda::atomic_ref<int, cuda::thread_scope_block> h(head), q(tail);
  if (t == 0) { for (int i = 0; i < 40; i++) { while (i - h.load(cuda::memory_order_acquire) == 8) {} ring[i & 7] = in[i]; q.store(i + 1, cuda::memory_order_release); } }
  else if (t == 32) { for (int i = 0; i < 40; i++) { while (q.load(cuda::memory_order_acquire) == i) {} CHECK(ring[i & 7] == val(i)); h.store(i + 1, cuda::memory_order_release); } } }
K ok_mpmc_stack ARGS { T; // a Treiber stack: nodes of every thread are pushed, then popped; version in the high half
  struct Node { int next, value; }; Node *nodes = (Node*)out; unsigned long long *top = (unsigned long long*)(flag + 4);
  nodes[1 + b * 128 + t].value = in[t];
  int me = 1 + b * 128 + t; unsigned long long old = atomicAdd(top, 0ull), want;
  do { want = old; nodes[me].next = (int)want; __threadfence(); old = atomicCAS(top, want, ((want >> 32) + 1) << 32 | me); } while (old != want);
}
K ok_stream_compact ARGS { T; int v = in[b * 128 + t]; bool p = v % 3 == 0; unsigned m = __ballot_sync(~0u, p); int base = 0; if (l == 0 && m) base = atomicAdd(flag + 3, __popc(m)); base = __shfl_sync(~0u, base, 0); if (p) out[base + __popc(m & ((1u << l) - 1))] = v; }
K ok_persistent ARGS { T; __shared__ int tile; for (;;) { if (!t) tile = atomicAdd(flag + 5, 1); SYNC; int i = tile; SYNC; if (i >= 16) break; out[i * 128 + t] = in[i * 128 + t] * 2; } }
K bad_persistent ARGS {
  T; __shared__ int tile;
  for (;;) { if (!t) tile = atomicAdd(flag + 5, 1); SYNC;
    int i = tile; // BUG shared-race
    if (i >= 16) break; out[i * 128 + t] = in[i * 128 + t] * 2; }
}
K ok_rwlock ARGS { T; if (l == 0) { int *lock = flag + 8; if (w == 0) { while (atomicCAS(lock, 0, -1) != 0) {} __threadfence(); int v = ((volatile int*)flag)[9]; ((volatile int*)flag)[9] = v + 1; __threadfence(); atomicExch(lock, 0); } else { for (;;) { int o = atomicAdd(lock, 0); if (o >= 0 && atomicCAS(lock, o, o + 1) == o) break; } __threadfence(); int v = ((volatile int*)flag)[9]; CHECK(v >= 0 && v <= 4); __threadfence(); atomicSub(lock, 1); } } }
K ok_hash_insert ARGS { T; int key = 1 + in[b * 128 + t]; int h = key * 37 & 63; if (b == 0 && t < 24) { for (;;) { int old = atomicCAS(flag + h, 0, key); if (old == 0 || old == key) break; h = (h + 1) & 63; } } }
K ok_griddep ARGS { T; cudaGridDependencySynchronize(); out[b * 128 + t] = in[t]; cudaTriggerProgrammaticLaunchCompletion(); }
K ok_elect ARGS { T; unsigned p; asm volatile("{ .reg .pred q; .reg .b32 r; elect.sync r|q, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(p)); unsigned m = __ballot_sync(~0u, p); CHECK(__popc(m) == 1); }
K ok_printf ARGS { T; if (t < 2) printf("cta %d thread %d half %.2f %s %c %5d %llx\n", b, t, in[t] * .5, "text", 'c', -3, 0x123456789abcull); }
K ok_match_groups ARGS { T; int k = in[t] % 4; unsigned m = __match_any_sync(~0u, k); int leader = __ffs(m) - 1; int s = 0; for (unsigned r = m; r; r &= r - 1) { s += __shfl_sync(m, in[t], __ffs(r) - 1); } int e = 0; for (int i = 0; i < 32; i++) if (val((t & ~31) + i) % 4 == val(t) % 4) e += val((t & ~31) + i); CHECK(s == e); int p; __match_all_sync(~0u, 5, &p); CHECK(p); (void)leader; }
K ok_redux_all ARGS { T; unsigned v = in[t]; unsigned a = ~0u, o = 0, x = 0, mx = 0, mn = ~0u; for (int i = 0; i < 32; i++) { unsigned y = val((t & ~31) + i); a &= y; o |= y; x ^= y; mx = max(mx, y); mn = min(mn, y); } CHECK(__reduce_and_sync(~0u, v) == a); CHECK(__reduce_or_sync(~0u, v) == o); CHECK(__reduce_xor_sync(~0u, v) == x); CHECK(__reduce_max_sync(~0u, v) == mx); CHECK(__reduce_min_sync(~0u, v) == mn); }
