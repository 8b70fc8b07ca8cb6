// Like sync.cu: what threads do together: aggregated atomics, tiles and coalesced groups, scans, pipelines, barriers, queues, clusters, indirect
// calls, buffers on the stack. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 tasks.cu
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cub/cub.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdio>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(4)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }

// Warps that count for their lanes.
__device__ int aggregated(int *counter) { auto g = cg::coalesced_threads(); int first = 0; if (!g.thread_rank()) first = atomicAdd(counter, g.size()); return g.shfl(first, 0) + g.thread_rank(); }
K ok_filter_aggregated ARGS { T; if (in[i] % 3 == 1) { int at = aggregated(flag); out[at] = in[i]; } }
K ok_aggregated_by_key ARGS { T; int key = in[i] % 5; unsigned peers = __match_any_sync(~0u, key); int leader = __ffs(peers) - 1, rank = __popc(peers & ((1u << l) - 1)), first = 0; if (l == leader) first = atomicAdd(flag + key, __popc(peers)); first = __shfl_sync(peers, first, leader); out[800 * key + first + rank] = i; }
K bad_aggregated_full_mask ARGS {
  T; if (in[i] % 3 == 1) {
    unsigned active = __activemask(); int leader = __ffs(active) - 1, first = 0;
    if (l == leader) first = atomicAdd(flag, __popc(active));
    first = __shfl_sync(~0u, first, leader); // BUG diverged-warp shuffle-inactive
    out[first + __popc(active & ((1u << l) - 1))] = in[i];
  }
  __syncwarp(); out[i + 2048] = 1;
}
K bad_aggregated_plain ARGS {
  T; if (in[i] % 3 == 1) {
    auto g = cg::coalesced_threads(); int first = 0;
    if (!g.thread_rank()) { first = *flag; *flag = first + g.size(); } // BUG global-race
    out[g.shfl(first, 0) + g.thread_rank()] = in[i];
  }
}
K ok_compact_ballot ARGS { T; __shared__ int counts[4]; bool keep = in[i] & 1; unsigned m = __ballot_sync(~0u, keep); if (!l) counts[w] = __popc(m); SYNC; int first = 0; for (int k = 0; k < w; k++) first += counts[k]; if (keep) out[b * 128 + first + __popc(m & ((1u << l) - 1))] = in[i]; }
K bad_compact_no_barrier ARGS {
  T; __shared__ int counts[4]; bool keep = in[i] & 1; unsigned m = __ballot_sync(~0u, keep); if (!l) counts[w] = __popc(m);
  int first = 0; for (int k = 0; k < w; k++) first += counts[k]; // BUG shared-race
  if (keep) out[b * 128 + first + __popc(m & ((1u << l) - 1))] = in[i];
}

// Tiles.
K ok_tile_sizes ARGS { T; auto block = cg::this_thread_block(); auto t4 = cg::tiled_partition<4>(block); auto t16 = cg::tiled_partition<16>(block); auto t1 = cg::tiled_partition<1>(block); CHECK(cg::reduce(t4, t, cg::plus<int>()) == 4 * (t & ~3) + 6); CHECK(cg::reduce(t16, t, cg::greater<int>()) == (t | 15)); CHECK(cg::reduce(t1, t, cg::plus<int>()) == t); CHECK(t4.meta_group_rank() == t / 4u && t4.meta_group_size() == 32); }
K ok_tile_of_tile ARGS { T; auto t32 = cg::tiled_partition<32>(cg::this_thread_block()); auto t8 = cg::tiled_partition<8>(t32); if (t8.meta_group_rank() & 1) { int s = cg::reduce(t8, l, cg::bit_xor<int>()); int e = 0; for (int k = 0; k < 8; k++) e ^= (l & ~7) + k; CHECK(s == e); } CHECK(t8.shfl_xor(l, 5) == (l ^ 5) && t8.shfl_down(l, 2) == ((l & 7) < 6 ? l + 2 : l)); }
K ok_tile_scan ARGS { T; auto tile = cg::tiled_partition<32>(cg::this_thread_block()); int inc = cg::inclusive_scan(tile, val(i)), exc = cg::exclusive_scan(tile, val(i)), mx = cg::inclusive_scan(tile, val(i), cg::greater<int>()), s = 0, m = 0; for (int k = i - l; k <= i; k++) { s += val(k); m = max(m, val(k)); } CHECK(inc == s && exc == s - val(i) && mx == m); }
K ok_scan_of_some ARGS { T; if (val(i) % 3) { auto g = cg::coalesced_threads(); int at = cg::exclusive_scan(g, 1, cg::plus<int>()); CHECK(at == (int)g.thread_rank()); int s = cg::inclusive_scan(g, val(i)), e = 0; for (int k = i - l; k <= i; k++) e += val(k) % 3 ? val(k) : 0; CHECK(s == e); } }
K ok_labeled ARGS { T; auto tile = cg::tiled_partition<32>(cg::this_thread_block()); auto g = cg::labeled_partition(tile, val(i) % 4); int s = cg::reduce(g, 1, cg::plus<int>()), e = 0; for (int k = i - l; k < i - l + 32; k++) e += val(k) % 4 == val(i) % 4; CHECK(s == e && (int)g.size() == e); }
K ok_binary_partition ARGS { T; auto tile = cg::tiled_partition<16>(cg::this_thread_block()); auto g = cg::binary_partition(tile, val(i) > 500); int s = cg::reduce(g, val(i), cg::less<int>()), e = 10000; for (int k = i & ~15; k < (i & ~15) + 16; k++) if ((val(k) > 500) == (val(i) > 500)) e = min(e, val(k)); CHECK(s == e); }
K ok_tile_of_two_warps ARGS { T; __shared__ cg::block_tile_memory<128> memory; auto block = cg::this_thread_block(memory); auto tile = cg::tiled_partition<64>(block); int s = cg::reduce(tile, val(i), cg::plus<int>()), e = 0; for (int k = i & ~63; k < (i & ~63) + 64; k++) e += val(k); CHECK(s == e); int x = cg::exclusive_scan(tile, val(i)), f = 0; for (int k = i & ~63; k < i; k++) f += val(k); CHECK(x == f); }
K ok_reduce_update ARGS { T; auto tile = cg::tiled_partition<32>(cg::this_thread_block()); cuda::atomic_ref<int, cuda::thread_scope_device> a(*flag); cg::reduce_update_async(tile, a, 2, cg::plus<int>()); __shared__ int s; (void)s; cg::this_thread_block().sync(); if (!t) CHECK(a.load() >= 256 && a.load() <= 1024); }
K bad_tile_half ARGS {
  T; auto tile = cg::tiled_partition<32>(cg::this_thread_block()); int s = 0;
  if (l < 20) s = cg::reduce(tile, l, cg::plus<int>()); // BUG diverged-warp
  out[i] = s; tile.sync(); out[i + 512] = 1;
}
K bad_tile_shared ARGS {
  T; __shared__ int s[128]; auto tile = cg::tiled_partition<16>(cg::this_thread_block()); s[t] = in[i];
  for (int d = 8; d; d >>= 1) {
    if ((int)tile.thread_rank() < d) s[t] += s[t + d]; // BUG shared-race
  }
  out[i] = s[t & ~15];
}
K ok_tile_shared ARGS { T; __shared__ int s[128]; auto tile = cg::tiled_partition<16>(cg::this_thread_block()); s[t] = in[i]; tile.sync(); for (int d = 8; d; d >>= 1) { int v = (int)tile.thread_rank() < d ? s[t] + s[t + d] : 0; tile.sync(); if ((int)tile.thread_rank() < d) s[t] = v; tile.sync(); } int e = 0; for (int k = i & ~15; k < (i & ~15) + 16; k++) e += val(k); CHECK(s[t & ~15] == e); }

// Pipelines and barriers.
template <int STAGES> __device__ void staged(const int *in, int *out, int b, int t) {
  __shared__ alignas(16) int s[STAGES][128]; auto pipe = cuda::make_pipeline(); int acc = 0;
  for (int k = 0; k < STAGES; k++) { pipe.producer_acquire(); cuda::memcpy_async(&s[k][t], in + b * 1024 + k * 128 + t, sizeof(int), pipe); pipe.producer_commit(); }
  for (int k = 0; k < 8; k++) { pipe.consumer_wait(); acc += s[k % STAGES][t]; pipe.consumer_release(); pipe.producer_acquire(); if (k + STAGES < 8) cuda::memcpy_async(&s[k % STAGES][t], in + b * 1024 + (k + STAGES) * 128 + t, sizeof(int), pipe); pipe.producer_commit(); }
  int e = 0; for (int k = 0; k < 8; k++) e += val(b * 1024 + k * 128 + t); CHECK(acc == e); out[b * 128 + t] = acc;
}
K ok_thread_pipeline_2 ARGS { T; staged<2>(in, out, b, t); }
K ok_thread_pipeline_5 ARGS { T; staged<5>(in, out, b, t); }
K bad_pipeline_no_wait ARGS {
  T; __shared__ alignas(16) int s[2][128]; auto pipe = cuda::make_pipeline(); int acc = 0;
  for (int k = 0; k < 4; k++) {
    pipe.producer_acquire(); cuda::memcpy_async(&s[k & 1][t], in + k * 128 + t, sizeof(int), pipe); pipe.producer_commit();
    acc += s[k & 1][t]; // BUG async-pending uninitialized
    pipe.consumer_release();
  }
  pipe.consumer_wait(); out[i] = acc;
}
K ok_block_pipeline ARGS { T; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state; __shared__ alignas(16) int s[2][128]; auto block = cg::this_thread_block(); auto pipe = cuda::make_pipeline(block, &state); int acc = 0; for (int k = 0; k < 2; k++) { pipe.producer_acquire(); cuda::memcpy_async(block, s[k], in + b * 512 + k * 128, sizeof s[k], pipe); pipe.producer_commit(); } for (int k = 0; k < 4; k++) { pipe.consumer_wait(); acc += s[k & 1][127 - t]; pipe.consumer_release(); if (k < 2) { pipe.producer_acquire(); cuda::memcpy_async(block, s[k & 1], in + b * 512 + (k + 2) * 128, sizeof s[0], pipe); pipe.producer_commit(); } } int e = 0; for (int k = 0; k < 4; k++) e += val(b * 512 + k * 128 + 127 - t); CHECK(acc == e); }
K ok_pipeline_roles ARGS { T; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state; __shared__ int s[2][64]; auto block = cg::this_thread_block(); auto role = t < 64 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer; auto pipe = cuda::make_pipeline(block, &state, role); int acc = 0; for (int k = 0; k < 6; k++) { if (t < 64) { pipe.producer_acquire(); cuda::memcpy_async(&s[k & 1][t], in + b * 384 + k * 64 + t, sizeof(int), pipe); pipe.producer_commit(); } else { pipe.consumer_wait(); acc += s[k & 1][127 - t]; pipe.consumer_release(); } } if (t >= 64) { int e = 0; for (int k = 0; k < 6; k++) e += val(b * 384 + k * 64 + 127 - t); CHECK(acc == e); } }
K bad_pipeline_roles_release ARGS {
  T; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state; __shared__ int s[2][64]; auto block = cg::this_thread_block(); auto pipe = cuda::make_pipeline(block, &state, t < 64 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer); int acc = 0;
  for (int k = 0; k < 6; k++) {
    if (t < 64) {
      pipe.producer_acquire(); cuda::memcpy_async(&s[k & 1][t], in + k * 64 + t, sizeof(int), pipe); pipe.producer_commit();
    } else {
      pipe.consumer_wait(); acc += s[k & 1][127 - t]; // BUG shared-race async-pending uninitialized
      if (k & 1) pipe.consumer_release();
    }
  }
  out[i] = acc;
}
K ok_group_copy ARGS { T; __shared__ alignas(16) int s[300]; auto block = cg::this_thread_block(); cg::memcpy_async(block, s, in + b * 300, sizeof(int) * 300); cg::wait(block); for (int k = t; k < 300; k += 128) CHECK(s[k] == val(b * 300 + k)); }
K bad_group_copy ARGS {
  T; __shared__ alignas(16) int s[300]; auto block = cg::this_thread_block(); cg::memcpy_async(block, s, in + b * 300, sizeof(int) * 300);
  SYNC;
  out[i] = s[299 - t]; // BUG async-pending uninitialized shared-race
  cg::wait(block);
}
K ok_completion ARGS { T; __shared__ int phases, sum; auto done = [p = &phases] { *p += 1; }; typedef cuda::barrier<cuda::thread_scope_block, decltype(done)> Bar; __shared__ alignas(Bar) char room[sizeof(Bar)]; Bar &bar = *(Bar *)room; if (!t) { phases = sum = 0; new (&bar) Bar(128, done); } SYNC; for (int k = 0; k < 3; k++) { atomicAdd(&sum, 1); bar.arrive_and_wait(); CHECK(phases == 2 * k + 1 && sum == 128 * (k + 1)); bar.arrive_and_wait(); } }
K ok_barrier_expect_tx ARGS { T; __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ alignas(16) int s[512]; if (!t) { init(&bar, 128); asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); } SYNC; cuda::barrier<cuda::thread_scope_block>::arrival_token token; if (!t) { cuda::device::experimental::cp_async_bulk_global_to_shared(s, in + b * 512, sizeof s, bar); token = cuda::device::barrier_arrive_tx(bar, 1, sizeof s); } else token = bar.arrive(); bar.wait(std::move(token)); for (int k = t; k < 512; k += 128) CHECK(s[k] == val(b * 512 + k)); }
K bad_barrier_expect_short ARGS {
  T; __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ alignas(16) int s[512]; if (!t) { init(&bar, 128); asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); } SYNC;
  cuda::barrier<cuda::thread_scope_block>::arrival_token token;
  if (!t) {
    cuda::device::experimental::cp_async_bulk_global_to_shared(s, in + b * 512, sizeof s, bar);
    token = cuda::device::barrier_arrive_tx(bar, 1, sizeof s / 2);
  } else token = bar.arrive();
  bar.wait(std::move(token)); // BUG deadlock
  out[i] = s[511 - t];
}

struct Less { __device__ bool operator()(int x, int y) const { return x < y; } };
// Blocks by CUB, of sizes that are no multiples of anything.
K ok_cub_scan_memoize ARGS { T; typedef cub::BlockScan<int, 128, cub::BLOCK_SCAN_RAKING_MEMOIZE> Scan; __shared__ Scan::TempStorage temp; int v[3], s[3], total; for (int k = 0; k < 3; k++) v[k] = val(b * 384 + 3 * t + k); Scan(temp).ExclusiveSum(v, s, total); int e = 0; for (int k = 0; k < 384; k++) { for (int j = 0; j < 3; j++) if (k == 3 * t + j) CHECK(s[j] == e); e += val(b * 384 + k); } CHECK(total == e); }
K ok_cub_reduce_if ARGS { T; typedef cub::BlockReduce<int, 128, cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY> Reduce; __shared__ Reduce::TempStorage temp; int s = Reduce(temp).Sum(val(i), 77), e = 0; for (int k = 0; k < 77; k++) e += val(b * 128 + k); if (!t) CHECK(s == e); SYNC; int m = Reduce(temp).Reduce(val(i), cuda::maximum<int>(), 101), x = 0; for (int k = 0; k < 101; k++) x = max(x, val(b * 128 + k)); if (!t) CHECK(m == x); }
K ok_cub_exchange ARGS { T; typedef cub::BlockExchange<int, 128, 3> Exchange; __shared__ Exchange::TempStorage temp; int v[3]; for (int k = 0; k < 3; k++) v[k] = k * 128 + t; Exchange(temp).StripedToBlocked(v, v); for (int k = 0; k < 3; k++) CHECK(v[k] == 3 * t + k); SYNC; int ranks[3]; for (int k = 0; k < 3; k++) ranks[k] = 383 - v[k]; Exchange(temp).ScatterToStriped(v, ranks); for (int k = 0; k < 3; k++) CHECK(v[k] == 383 - (k * 128 + t)); }
K ok_cub_merge_sort ARGS { T; typedef cub::BlockMergeSort<int, 128, 3, int> Sort; __shared__ Sort::TempStorage temp; int k[3], v[3]; for (int j = 0; j < 3; j++) { v[j] = 3 * t + j; k[j] = val(b * 384 + v[j]); } Sort(temp).Sort(k, v, Less(), 301, 1 << 30); __shared__ int last[128]; last[t] = k[2]; for (int j = 0; j < 3; j++) if (3 * t + j < 301) { CHECK(k[j] == val(b * 384 + v[j])); if (j) CHECK(k[j] >= k[j - 1]); } SYNC; if (t && 3 * t < 301) CHECK(k[0] >= last[t - 1]); }
K ok_cub_discontinuity ARGS { T; typedef cub::BlockDiscontinuity<int, 128> Heads; __shared__ Heads::TempStorage temp; int v[2] = {val(b * 256 + 2 * t) / 100, val(b * 256 + 2 * t + 1) / 100}, f[2]; Heads(temp).FlagHeads(f, v, cuda::std::not_equal_to<int>()); for (int k = 0; k < 2; k++) { int at = b * 256 + 2 * t + k; CHECK(f[k] == (2 * t + k == 0 || val(at) / 100 != val(at - 1) / 100)); } }
K ok_cub_histogram ARGS { T; typedef cub::BlockHistogram<unsigned char, 128, 4, 16, cub::BLOCK_HISTO_SORT> Histogram; __shared__ Histogram::TempStorage temp; __shared__ int h[16]; unsigned char v[4]; for (int k = 0; k < 4; k++) v[k] = val(b * 512 + 4 * t + k) % 16; Histogram(temp).Histogram(v, h); SYNC; if (t < 16) { int e = 0; for (int k = 0; k < 512; k++) e += val(b * 512 + k) % 16 == t; CHECK(h[t] == e); } }
K ok_cub_warp ARGS { T; typedef cub::WarpScan<int, 8> Scan; typedef cub::WarpReduce<int, 16> Reduce; __shared__ Scan::TempStorage a[16]; __shared__ Reduce::TempStorage r[8]; int s, total; Scan(a[t / 8]).InclusiveSum(val(i), s, total); int e = 0, f = 0; for (int k = i & ~7; k < (i & ~7) + 8; k++) { f += val(k); if (k <= i) e += val(k); } CHECK(s == e && total == f); int h = Reduce(r[t / 16]).HeadSegmentedSum(val(i), l % 16 == 0 || l % 16 == 5), g = 0; for (int k = i; k < (i & ~15) + ((i & 15) < 5 ? 5 : 16); k++) g += val(k); if (l % 16 == 0 || l % 16 == 5) CHECK(h == g); }
K bad_cub_reused ARGS {
  T; typedef cub::BlockScan<int, 128, cub::BLOCK_SCAN_WARP_SCANS> Scan; __shared__ Scan::TempStorage temp; int s, r; Scan(temp).InclusiveSum(in[i], s);
  Scan(temp).InclusiveSum(s, r); // BUG shared-race
  out[i] = r;
}
K bad_cub_partial ARGS {
  T; typedef cub::BlockReduce<int, 128> Reduce; __shared__ Reduce::TempStorage temp;
  if (t < 100) { int s = Reduce(temp).Sum(in[i]); if (!t) out[b] = s; } // BUG barrier-divergence diverged-warp shuffle-inactive
  __syncwarp(); out[i + 2048] = 1;
}
