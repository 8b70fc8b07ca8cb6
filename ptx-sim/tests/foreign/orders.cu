// Like sync.cu: who tells whom: locks, tickets, semaphores, rings, scans that look back, turns, barriers of some warps, and clusters.
// nvcc -ptx -arch=sm_90a -O3 -lineinfo -std=c++17 --expt-relaxed-constexpr orders.cu, CUTLASS 4.2 and CUB
#include <cooperative_groups.h>
#include <cub/agent/single_pass_scan_operators.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cutlass/arch/barrier.h>
#include <cutlass/barrier.h>
#include <cutlass/semaphore.h>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }
__device__ int sum_to(int n) { int s = 0; for (int i = 0; i <= n; i++) s += val(i); return s; }
using Ref = cuda::atomic_ref<int, cuda::thread_scope_device>; using BlockRef = cuda::atomic_ref<int, cuda::thread_scope_block>;

// Locks that one thread takes for its CTA
K ok_cta_lock ARGS { T; if (t == 0) { while (atomicCAS(flag, 0, 1) != 0) __nanosleep(20); __threadfence(); } SYNC; if (t < 32) flag[8 + t] += 1; SYNC; if (t == 0) { __threadfence(); atomicExch(flag, 0); } }
K ok_cta_lock_fences_after ARGS { T; if (t == 0) while (atomicCAS(flag, 0, 1) != 0) {} SYNC; __threadfence(); if (t < 32) flag[8 + t] += 1; __threadfence(); SYNC; if (t == 0) atomicExch(flag, 0); }
K ok_cta_lock_volatile_free ARGS { T; if (t == 0) { while (atomicCAS(flag, 0, 1) != 0) {} __threadfence(); } SYNC; if (t < 32) flag[8 + t] += b; SYNC; if (t == 0) { __threadfence(); *(volatile int *)flag = 0; } }
K bad_cta_lock_no_barrier ARGS {
  T; if (t == 0) { while (atomicCAS(flag, 0, 1) != 0) {} __threadfence(); } SYNC;
  if (t < 96) flag[8 + t / 2] = flag[8 + t / 2 + 1]; // BUG global-race
  if (t == 0) { __threadfence(); atomicExch(flag, 0); }
}
K bad_cta_lock_free_early ARGS {
  T; if (t == 0) { while (atomicCAS(flag, 0, 1) != 0) {} __threadfence(); } SYNC;
  if (w == 3) flag[8 + l] += 1; // BUG global-race
  if (t == 0) { __threadfence(); atomicExch(flag, 0); }
}
K bad_cta_lock_no_release ARGS {
  T; if (t == 0) { while (atomicCAS(flag, 0, 1) != 0) {} __threadfence(); } SYNC;
  if (w == 3) flag[8 + l] += 1; // BUG global-race
  SYNC; if (t == 0) *(volatile int *)flag = 0;
}
K ok_lock_ref ARGS { T; Ref lock(flag[0]); if (l == 0) { int no = 0; while (!lock.compare_exchange_weak(no, 1, cuda::memory_order_acquire)) no = 0; flag[1] += 1; lock.store(0, cuda::memory_order_release); } }
K bad_lock_ref_relaxed ARGS {
  T; Ref lock(flag[0]);
  if (l == 0) {
    int no = 0; while (!lock.compare_exchange_weak(no, 1, cuda::memory_order_relaxed)) no = 0;
    flag[1] += 1; // BUG global-race
    lock.store(0, cuda::memory_order_release);
  }
}
K ok_lock_ref_exchange ARGS { T; Ref lock(flag[0]); if (l == 0) { while (lock.exchange(1, cuda::memory_order_acq_rel)) {} flag[1] += 1; lock.exchange(0, cuda::memory_order_acq_rel); } }
K ok_ticket ARGS { T; if (t == 0) { int my = atomicAdd(&flag[0], 1); while (*(volatile int *)&flag[1] != my) {} __threadfence(); } SYNC; if (t < 32) flag[8 + t] += t; SYNC; __threadfence(); if (t == 0) atomicAdd(&flag[1], 1); }
K bad_ticket ARGS {
  T; if (t == 0) { int my = atomicAdd(&flag[0], 1); while (*(volatile int *)&flag[1] != my) {} }
  SYNC;
  if (t < 32) flag[8 + t] += t; // BUG global-race
  SYNC; __threadfence(); if (t == 0) atomicAdd(&flag[1], 1);
}
K ok_ticket_warps ARGS { T; __shared__ int next, now, sum; if (t == 0) next = now = sum = 0; SYNC; if (l == 0) { int my = atomicAdd(&next, 1); while (atomicAdd(&now, 0) != my) {} __threadfence_block(); sum += w; __threadfence_block(); atomicAdd(&now, 1); } SYNC; CHECK(sum == 6); }
K ok_shared_lock_ref ARGS { T; __shared__ int lock, sum; if (t == 0) lock = sum = 0; SYNC; BlockRef r(lock); if (l == 0) { while (r.exchange(1, cuda::memory_order_acquire)) {} sum += 1; r.store(0, cuda::memory_order_release); } SYNC; CHECK(sum == 4); }
K ok_try_lock ARGS { T; if (t == 0 && atomicCAS(flag, 0, b + 1) == 0) { __threadfence(); flag[1] += 5; __threadfence(); atomicExch(flag, 0); } }
K ok_mcs_lock ARGS {
  T; Ref tail(flag[0]);
  if (t == 0) {
    Ref wait(flag[8 + b]), next(flag[16 + b]); wait.store(1, cuda::memory_order_relaxed); next.store(0, cuda::memory_order_relaxed);
    int before = tail.exchange(b + 1, cuda::memory_order_acq_rel);
    if (before) { Ref(flag[16 + before - 1]).store(b + 1, cuda::memory_order_release); while (wait.load(cuda::memory_order_acquire)) {} }
    flag[1] += 1;
    int mine = b + 1;
    if (!next.load(cuda::memory_order_acquire)) { if (tail.compare_exchange_strong(mine, 0, cuda::memory_order_acq_rel)) return; while (!next.load(cuda::memory_order_acquire)) {} }
    Ref(flag[8 + next.load(cuda::memory_order_relaxed) - 1]).store(0, cuda::memory_order_release);
  }
}
K ok_peterson ARGS {
  T; if (b < 2 && t == 0) { cuda::atomic_ref<int> me(flag[b]), other(flag[1 - b]), turn(flag[2]); me.store(1); turn.store(1 - b); while (other.load() && turn.load() == 1 - b) {} flag[3] += 1; me.store(0); }
}
// A release by one CTA, another's addition, and a read by a warp of that one: the release goes on through the addition
K ok_chain_within ARGS {
  T; __shared__ int d; if (t == 0) d = 0; SYNC;
  if (b == 0 && t == 0) { out[5] = 6; Ref(flag[0]).store(1, cuda::memory_order_release); }
  if (b == 1) {
    if (t == 0) { d = 3; __threadfence_block(); int one = 1; while (!Ref(flag[0]).compare_exchange_weak(one, 2, cuda::memory_order_relaxed)) one = 1; }
    if (t == 64) { while (Ref(flag[0]).load(cuda::memory_order_acquire) != 2) {} CHECK(out[5] == 6); CHECK(d == 3); }
  }
}
K ok_chain_of_adds ARGS { T; if (t == 0) { out[b] = b; Ref(flag[0]).fetch_add(1, cuda::memory_order_release); if (b == 3) { while (Ref(flag[0]).load(cuda::memory_order_relaxed) != 4) {} cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device); CHECK(out[0] + out[1] + out[2] + out[3] == 6); } } }
K ok_chain_transitive ARGS { T; if (t == 0) { if (b) { while (Ref(flag[b - 1]).load(cuda::memory_order_acquire) == 0) {} } else out[9] = 77; CHECK(out[9] == 77); Ref(flag[b]).store(1, cuda::memory_order_release); } }
K ok_chain_through_shared ARGS {
  T; __shared__ int go; if (t == 0) go = 0; SYNC;
  if (b == 0 && t == 40) { out[7] = 9; __threadfence(); atomicExch(flag, 1); }
  if (b == 1 && t == 0) { while (atomicAdd(flag, 0) == 0) {} __threadfence(); atomicExch(&go, 1); }
  if (b == 1 && t == 96) { while (atomicAdd(&go, 0) == 0) {} __threadfence(); CHECK(out[7] == 9); }
}
K bad_failed_cas_publishes ARGS {
  T; if (b == 0 && t == 0) { atomicExch(&flag[0], 1); out[3] = 8; Ref f(flag[0]); int no = 0; f.compare_exchange_strong(no, 5, cuda::memory_order_acq_rel); }
  if (b == 1 && t == 0) {
    while (Ref(flag[0]).load(cuda::memory_order_acquire) == 0) {}
    out[64] = out[3]; // BUG global-race uninitialized
  }
}
// Stream-K and split-K
K ok_cutlass_semaphore ARGS { T; cutlass::Semaphore s(flag, t); s.fetch(); s.wait(b); if (b) out[t] += in[i]; else out[t] = in[i]; s.release(b == 3 ? 0 : b + 1); }
K bad_cutlass_semaphore ARGS {
  T; cutlass::Semaphore s(flag, t);
  s.fetch();
  if (b) out[t] += in[i]; else out[t] = in[i]; // BUG global-race uninitialized
  s.wait(b);
  s.release(b + 1);
}
K ok_cutlass_barrier ARGS { T; using B = cutlass::Barrier; if (b < 3) { out[i] = val(i); B::arrive_inc(flag, t, 0); } else { B::wait_eq(flag, t, 0, 3); for (int p = 0; p < 3; p++) CHECK(out[p * 128 + (t ^ 3)] == val(p * 128 + (t ^ 3))); } }
K ok_cutlass_barrier_turns ARGS { T; using B = cutlass::Barrier; B::wait_eq(flag, t, 1, b); if (b) out[t] += in[i]; else out[t] = in[i]; B::arrive_inc(flag, t, 1); }
K ok_split_k_wrap ARGS { T; __shared__ bool last; for (int r = 0; r < 3; r++) { out[1024 * (r % 2) + i] = in[i] + r; __threadfence(); SYNC; if (t == 0) last = atomicInc(( unsigned *)flag + r, 3) == 3; SYNC; if (last) { __threadfence(); int s = 0; for (int p = 0; p < 4; p++) s += out[1024 * (r % 2) + p * 128 + t]; out[2048 + r * 128 + t] = s; if (t == 0) CHECK(flag[r] == 0); } auto g = cg::this_grid(); if (r == 1) g.sync(); } }
K bad_split_k_sync ARGS {
  T; __shared__ bool last; out[i] = in[i]; __threadfence();
  if (t == 0) last = atomicAdd(flag, 1) == 3;
  SYNC;
  if (last) {
    __threadfence(); int s = 0;
    for (int p = 0; p < 4; p++) s += out[p * 128 + (t ^ 64)]; // BUG global-race uninitialized
    out[1024 + t] = s;
  }
}
K ok_split_k_red ARGS { T; __shared__ bool last; out[i] = in[i]; SYNC; if (t == 0) last = Ref(flag[0]).fetch_add(1, cuda::memory_order_acq_rel) == 3; SYNC; if (last) { int s = 0; for (int p = 0; p < 4; p++) s += out[p * 128 + t]; CHECK(s == val(t) + val(t + 128) + val(t + 256) + val(t + 384)); } }
// Scans that look back
K ok_lookback_packed ARGS {
  T; volatile unsigned long long *s = (volatile unsigned long long *)flag; __shared__ int before; int sum = 0; for (int k = 0; k < 128; k++) sum += in[b * 128 + k];
  if (t == 0) { s[b] = 1ull << 32 | (unsigned)sum; int at = b - 1, total = 0; while (at >= 0) { unsigned long long v = s[at]; if (v >> 32 == 0) continue; total += (int)v; if (v >> 32 == 2) break; at--; } s[b] = 2ull << 32 | (unsigned)(total + sum); before = total; }
  SYNC; CHECK(before == (b ? sum_to(b * 128 - 1) : 0));
}
K ok_lookback_warp ARGS {
  T; __shared__ int before; int sum = 0; for (int k = 0; k < 128; k++) sum += in[b * 128 + k];
  if (t == 0) { out[b] = sum; Ref(flag[b]).store(1, cuda::memory_order_release); }
  if (w == 0) {
    int at = b - 1 - l, v = 0; if (at >= 0) { while (Ref(flag[at]).load(cuda::memory_order_acquire) == 0) {} v = out[at]; } __syncwarp();
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d); if (l == 0) before = v;
  }
  SYNC; CHECK(before == (b ? sum_to(b * 128 - 1) : 0));
}
K ok_cub_lookback ARGS {
  T; using State = cub::ScanTileState<int>; using Prefix = cub::TilePrefixCallbackOp<int, cuda::std::plus<>, State>; using Scan = cub::BlockScan<int, 128>;
  __shared__ typename Prefix::TempStorage p; __shared__ typename Scan::TempStorage s; State state; size_t bytes = 512; state.Init(4, out + 2048, bytes); if (b == 0) state.InitializeStatus(4); cg::this_grid().sync();
  int v = in[i], sum; if (b == 0) { Scan(s).InclusiveSum(v, v, sum); if (t == 0) state.SetInclusive(0, sum); } else { Prefix op(state, p, cuda::std::plus<>{}, b); Scan(s).InclusiveScan(v, v, cuda::std::plus<>{}, op); }
  CHECK(v == sum_to(i));
}
K bad_lookback_warp ARGS {
  T; int sum = 0; for (int k = 0; k < 128; k++) sum += in[b * 128 + k];
  if (t == 0) { out[b] = sum; Ref(flag[b]).store(1, cuda::memory_order_release); }
  if (w == 0) {
    int at = b - 1 - l, v = 0;
    if (at >= 0) {
      while (Ref(flag[at]).load(cuda::memory_order_relaxed) == 0) {}
      v = out[at]; // BUG global-race
    }
    out[1024 + i] = v;
  }
}
// Rings: one writes, another reads, in shared memory and between CTAs
K ok_ring_shared ARGS {
  T; __shared__ int slot[4]; __shared__ volatile int head, tail; if (t == 0) head = tail = 0; SYNC;
  if (t == 0) for (int n = 0; n < 20; n++) { while (n - tail >= 4) {} __threadfence_block(); slot[n % 4] = in[n]; __threadfence_block(); head = n + 1; }
  if (t == 64) for (int n = 0; n < 20; n++) { while (head <= n) {} __threadfence_block(); CHECK(slot[n % 4] == val(n)); __threadfence_block(); tail = n + 1; }
}
K bad_ring_shared_overrun ARGS {
  T; __shared__ int slot[4]; __shared__ volatile int head, tail; if (t == 0) head = tail = 0; SYNC;
  if (t == 0) for (int n = 0; n < 20; n++) {
    while (n - tail > 4) {} __threadfence_block();
    slot[n % 4] = in[n]; // BUG shared-race
    __threadfence_block(); head = n + 1; }
  if (t == 64) for (int n = 0; n < 20; n++) { while (head <= n) {} __threadfence_block(); out[b * 32 + n] = slot[n % 4]; __threadfence_block(); tail = n + 1; }
}
K bad_ring_shared_unbounded ARGS {
  T; __shared__ int slot[4]; __shared__ volatile int head; if (t == 0) head = 0; SYNC;
  if (t == 0) for (int n = 0; n < 20; n++) {
    slot[n % 4] = in[n]; // BUG shared-race
    __threadfence_block(); head = n + 1; }
  if (t == 64) for (int n = 0; n < 20; n++) { while (head <= n) {} __threadfence_block(); out[b * 32 + n] = slot[n % 4]; }
}
K ok_ring_global ARGS {
  T; Ref head(flag[0]), tail(flag[1]);
  if (b == 0 && t == 0) for (int n = 0; n < 20; n++) { while (n - tail.load(cuda::memory_order_acquire) >= 4) {} out[n % 4] = in[n]; head.store(n + 1, cuda::memory_order_release); }
  if (b == 1 && t == 0) for (int n = 0; n < 20; n++) { while (head.load(cuda::memory_order_acquire) <= n) {} CHECK(out[n % 4] == val(n)); tail.store(n + 1, cuda::memory_order_release); }
}
K bad_ring_global_overrun ARGS {
  T; Ref head(flag[0]), tail(flag[1]);
  if (b == 0 && t == 0) for (int n = 0; n < 20; n++) {
    while (n - tail.load(cuda::memory_order_acquire) > 4) {}
    out[n % 4] = in[n]; // BUG global-race
    head.store(n + 1, cuda::memory_order_release); }
  if (b == 1 && t == 0) for (int n = 0; n < 20; n++) { while (head.load(cuda::memory_order_acquire) <= n) {} out[32 + n] = out[n % 4]; tail.store(n + 1, cuda::memory_order_release); }
}
K bad_ring_global_unbounded ARGS {
  T; Ref head(flag[0]);
  if (b == 0 && t == 0) for (int n = 0; n < 20; n++) {
    out[n % 4] = in[n]; // BUG global-race
    head.store(n + 1, cuda::memory_order_release); }
  if (b == 1 && t == 0) for (int n = 0; n < 20; n++) { while (head.load(cuda::memory_order_acquire) <= n) {} out[32 + n] = out[n % 4]; }
}
K ok_ring_warps ARGS {
  T; using Bar = cuda::barrier<cuda::thread_scope_block>; __shared__ Bar full[3], empty[3]; __shared__ int s[3][96]; if (t < 3) { init(&full[t], 128); init(&empty[t], 128); } SYNC;
  if (w == 3) { for (int n = 0; n < 9; n++) { empty[n % 3].arrive_and_wait(); for (int k = l; k < 96; k += 32) s[n % 3][k] = n * 100 + k; (void)full[n % 3].arrive(); } }
  else { for (int k = 0; k < 3; k++) (void)empty[k].arrive(); for (int n = 0; n < 9; n++) { full[n % 3].arrive_and_wait(); CHECK(s[n % 3][95 - t] == n * 100 + 95 - t); if (n < 6) (void)empty[n % 3].arrive(); } }
}
// Barriers of some warps, in turns
K ok_ping_pong ARGS { T; __shared__ int s[64]; for (int n = 0; n < 6; n++) { int g = w / 2; if (g == (n & 1)) { if (n) cutlass::arch::NamedBarrier::sync(128, 1 + g); int at = t % 64; if (n) s[at ^ 63] += 1; else s[at ^ 63] = 1; cutlass::arch::NamedBarrier::arrive(128, 1 + (1 - g)); } } int g = w / 2; if (g == 0) cutlass::arch::NamedBarrier::sync(128, 1); SYNC; CHECK(s[t % 64] == 6); }
K bad_ping_pong ARGS {
  T; __shared__ int s[64]; int g = w / 2;
  if (g == 0) {
    s[t] = t;
    asm volatile("bar.arrive 1, 128;" ::: "memory"); s[t] = t + 1; // BUG shared-race
  } else { asm volatile("bar.sync 1, 128;" ::: "memory"); out[i] = s[t - 64]; }
}
K ok_partial_barriers ARGS { T; __shared__ int s[128]; s[t] = t; if (w < 3) asm volatile("bar.sync 2, 96;" ::: "memory"); else asm volatile("bar.sync 3, 32;" ::: "memory"); if (w < 3) { CHECK(s[95 - t] == 95 - t); asm volatile("bar.sync 2, 96;" ::: "memory"); s[t] = 0; } }
K ok_barrier_red ARGS { T; int any; asm volatile("{ .reg .pred p, q; setp.eq.s32 p, %1, 77; bar.red.or.pred q, 4, 128, p; selp.s32 %0, 1, 0, q; }" : "=r"(any) : "r"(t) : "memory"); CHECK(any == 1); }
// Clusters
CK ok_cluster_ring ARGS {
  T; auto c = cg::this_cluster(); __shared__ int s[2][128]; int r = c.block_rank(); int *other = c.map_shared_rank(&s[0][0], 1 - r); c.sync();
  for (int n = 0; n < 4; n++) { other[(n & 1) * 128 + t] = n * 10 + r; c.sync(); CHECK(s[n & 1][127 - t] == n * 10 + 1 - r); } c.sync();
}
CK bad_cluster_ring ARGS {
  T; auto c = cg::this_cluster(); __shared__ int s[128]; int r = c.block_rank(); int *other = c.map_shared_rank(&s[0], 1 - r); c.sync();
  for (int n = 0; n < 4; n++) {
    other[t] = n * 10 + r; // BUG shared-race
    c.sync(); out[i] = s[127 - t]; } c.sync();
}
CK ok_cluster_flag ARGS {
  T; auto c = cg::this_cluster(); __shared__ int d, f; if (t == 0) d = f = 0; c.sync();
  if (c.block_rank() == 0 && t == 0) { *c.map_shared_rank(&d, 1) = 42; cuda::atomic_ref<int, cuda::thread_scope_device>(*c.map_shared_rank(&f, 1)).store(1, cuda::memory_order_release); }
  if (c.block_rank() == 1 && t == 64) { while (cuda::atomic_ref<int, cuda::thread_scope_device>(f).load(cuda::memory_order_acquire) == 0) {} CHECK(d == 42); } c.sync();
}
CK bad_cluster_flag ARGS {
  T; auto c = cg::this_cluster(); __shared__ int d, f; if (t == 0) d = f = 0; c.sync();
  if (c.block_rank() == 0 && t == 0) { *c.map_shared_rank(&d, 1) = 42; cuda::atomic_ref<int, cuda::thread_scope_block>(*c.map_shared_rank(&f, 1)).store(1, cuda::memory_order_release); }
  if (c.block_rank() == 1 && t == 64) {
    while (cuda::atomic_ref<int, cuda::thread_scope_device>(f).load(cuda::memory_order_acquire) == 0) {} // BUG shared-race
    out[b] = d; } c.sync();
}
CK ok_cluster_global ARGS { T; auto c = cg::this_cluster(); out[i] = t; c.sync(); CHECK(out[(b ^ 1) * 128 + 127 - t] == 127 - t); }
CK bad_cluster_global ARGS {
  T; out[i] = t; SYNC;
  out[2048 + i] = out[(b ^ 1) * 128 + 127 - t]; // BUG global-race uninitialized
}
// The grid
K ok_sense_barrier ARGS {
  T; for (int n = 0; n < 3; n++) { out[(n & 1) * 1024 + i] = n * 1000 + i; SYNC; if (t == 0) { __threadfence(); int sense = n + 1; if (atomicAdd(&flag[0], 1) == 3) { atomicExch(&flag[0], 0); __threadfence(); atomicExch(&flag[1], sense); } else while (atomicAdd(&flag[1], 0) < sense) {} __threadfence(); } SYNC; CHECK(out[(n & 1) * 1024 + 511 - i] == n * 1000 + 511 - i); }
}
K bad_sense_barrier ARGS {
  T; for (int n = 0; n < 3; n++) {
    out[i] = n * 1000 + i; // BUG global-race
    SYNC; if (t == 0) { __threadfence(); int sense = n + 1; if (atomicAdd(&flag[0], 1) == 3) { atomicExch(&flag[0], 0); __threadfence(); atomicExch(&flag[1], sense); } else while (*(volatile int *)&flag[1] < sense) {} __threadfence(); } SYNC; CHECK(out[511 - i] >= 0); }
}
K ok_grid_reduce_rounds ARGS { T; auto g = cg::this_grid(); for (int d = 256; d; d /= 2) { if (d == 256) out[i] = in[i]; g.sync(); if (i < d) out[i] += out[i + d]; } g.sync(); if (i == 0) CHECK(out[0] == sum_to(511)); }
K ok_bfs_levels ARGS { T; if (i < 64 && i) flag[i] = 1 << 20; cg::this_grid().sync(); for (int n = 0; n < 6; n++) { if (i < 64 && Ref(flag[i]).load(cuda::memory_order_relaxed) == n) { atomicMin(&flag[(2 * i + 1) % 64], n + 1); atomicMin(&flag[(2 * i + 2) % 64], n + 1); } cg::this_grid().sync(); } if (i < 63) CHECK(flag[i] <= 6); }
K ok_done_flag ARGS { T; volatile int *f = flag; for (int n = 0; n < 8 && !*f; n++) if (in[(i + n * 512) % 4096] == 693) atomicExch(flag, 1); }
K ok_union_find ARGS { T; if (i < 64) flag[i] = i; cg::this_grid().sync(); if (i < 63) { int x = i, y = i + 1; while (true) { while (int p = Ref(flag[x]).load(cuda::memory_order_relaxed)) { if (p == x) break; x = p; } while (int p = Ref(flag[y]).load(cuda::memory_order_relaxed)) { if (p == y) break; y = p; } if (x == y) break; int hi = max(x, y), lo = min(x, y); if (atomicCAS(&flag[hi], hi, lo) == hi) break; } } cg::this_grid().sync(); if (i < 64) { int x = i; while (flag[x] != x) x = flag[x]; CHECK(x == 0); } }
K ok_stack_free_list ARGS { T; Ref top(flag[0]); if (l == 0) { int n = 1 + b * 4 + w, old = top.load(cuda::memory_order_relaxed); do flag[n] = old; while (!top.compare_exchange_weak(old, n, cuda::memory_order_release, cuda::memory_order_relaxed)); } cg::this_grid().sync(); if (i == 0) { int c = 0; for (int x = flag[0]; x; x = flag[x]) c++; CHECK(c == 16); } }
K ok_last_block_resets ARGS { T; __shared__ bool last; if (t == 0) { out[b] = b; __threadfence(); last = atomicAdd(&flag[0], 1) == 3; } SYNC; if (last && t == 0) { __threadfence(); CHECK(out[0] + out[1] + out[2] + out[3] == 6); flag[0] = 0; } }
K ok_counter_resets ARGS { T; if (t == 0 && atomicAdd(&flag[0], 1) == 3) { CHECK(flag[0] == 4); flag[0] = 0; } }
K ok_shared_counter_resets ARGS { T; __shared__ int c; if (t == 0) c = 0; SYNC; if (l == 0 && atomicAdd(&c, 1) == 3) { CHECK(c == 4); c = 0; } SYNC; CHECK(c == 0); }
K bad_counter_read_early ARGS {
  T; if (t == 0) atomicAdd(&flag[0], 1);
  if (t == 0) out[b] = flag[0]; // BUG global-race
}
