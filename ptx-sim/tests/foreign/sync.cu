// Kernels of one shape, right ones and wrong ones: `tests/suite.rs` runs them all. A kernel `ok_…` must run under every seed
// and leave no trap; a kernel `bad_…` must end with the finding that a comment `// BUG kind` names, at that line.
// nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 sync.cu
// `in` holds 4096 numbers, in[i] = i * 7 % 1000; `out` 4096 that nobody wrote; `flag` 64 zeros.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
__device__ int val(int i) { return i * 7 % 1000; }

// grid 4 block 128
K ok_copy ARGS { int i = blockIdx.x * 128 + threadIdx.x; out[i] = in[i] + 1; CHECK(out[i] == val(i) + 1); }
K ok_reverse ARGS { __shared__ int s[128]; int t = threadIdx.x; s[t] = in[t]; __syncthreads(); out[blockIdx.x * 128 + t] = s[127 - t]; CHECK(s[127 - t] == val(127 - t)); }
K bad_reverse ARGS {
  __shared__ int s[128]; int t = threadIdx.x; s[t] = in[t];
  out[blockIdx.x * 128 + t] = s[127 - t]; // BUG shared-race
}
K ok_tree ARGS {
  __shared__ int s[128]; int t = threadIdx.x; s[t] = in[t]; __syncthreads();
  for (int d = 64; d > 0; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
  if (t == 0) { int w = 0; for (int i = 0; i < 128; i++) w += val(i); out[blockIdx.x] = s[0]; CHECK(s[0] == w); }
}
K bad_tree ARGS {
  __shared__ int s[128]; int t = threadIdx.x; s[t] = in[t]; __syncthreads();
  for (int d = 64; d > 0; d >>= 1) {
    if (t < d) s[t] += s[t + d]; // BUG shared-race
  }
  if (t == 0) out[blockIdx.x] = s[0];
}
K ok_warp_tree ARGS {
  __shared__ int s[128]; int t = threadIdx.x, b = t & ~31, l = t & 31; s[t] = in[t]; __syncwarp();
  for (int d = 16; d > 0; d >>= 1) { int v = l < d ? s[b + l + d] : 0; __syncwarp(); if (l < d) s[t] += v; __syncwarp(); }
  if (l == 0) { int w = 0; for (int i = 0; i < 32; i++) w += val(b + i); CHECK(s[b] == w); }
}
K bad_warp_tree ARGS {
  __shared__ int s[128]; int t = threadIdx.x, b = t & ~31, l = t & 31; s[t] = in[t]; __syncwarp();
  for (int d = 16; d > 0; d >>= 1) {
    if (l < d) s[t] += s[b + l + d]; // BUG shared-race
  }
  if (l == 0) out[t] = s[b];
}
K ok_shuffle ARGS { int v = in[threadIdx.x]; for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(~0u, v, d); int b = threadIdx.x & ~31, w = 0; for (int i = 0; i < 32; i++) w += val(b + i); CHECK(v == w); }
K bad_shuffle ARGS {
  int v = in[threadIdx.x];
  if (threadIdx.x % 32 < 16)
    v = __shfl_down_sync(~0u, v, 16); // BUG diverged-warp shuffle-inactive
  out[blockIdx.x * 128 + threadIdx.x] = v;
}
K ok_half_masks ARGS {
  unsigned m = threadIdx.x & 16 ? 0xffff0000u : 0xffffu; int v = in[threadIdx.x];
  for (int d = 8; d > 0; d >>= 1) v += __shfl_xor_sync(m, v, d);
  int b = threadIdx.x & ~15, w = 0; for (int i = 0; i < 16; i++) w += val(b + i);
  CHECK(v == w); CHECK(__popc(__ballot_sync(m, 1)) == 16); CHECK(__reduce_add_sync(m, 1) == 16);
}
K ok_quarters_apart ARGS {
  int q = threadIdx.x / 8 % 4, v = in[threadIdx.x]; unsigned m = 0xffu << 8 * q;
  if (q & 1) { v += __shfl_xor_sync(m, v, 4); v += __shfl_xor_sync(m, v, 2); } else { v += __shfl_xor_sync(m, v, 4); v += __shfl_xor_sync(m, v, 2); v += 0; }
  int i = threadIdx.x; CHECK(v == val(i) + val(i ^ 4) + val(i ^ 2) + val(i ^ 6));
}
K ok_syncwarp_both ARGS {
  __shared__ int s[128]; int t = threadIdx.x;
  if (t & 16) { s[t] = t; __syncwarp(); out[blockIdx.x * 128 + t] = s[t ^ 31]; CHECK(s[t ^ 31] == (t ^ 31) + 1); }
  else { s[t] = t + 1; __syncwarp(); out[blockIdx.x * 128 + t] = s[t ^ 31]; CHECK(s[t ^ 31] == (t ^ 31)); }
}
K bad_syncwarp_one ARGS {
  __shared__ int s[128]; int t = threadIdx.x;
  s[t] = t;
  if (t & 16) __syncwarp(0xffff0000u);
  out[blockIdx.x * 128 + t] = s[t ^ 31]; // BUG shared-race
}
K ok_match ARGS { unsigned m = __match_any_sync(~0u, threadIdx.x % 4); CHECK(__popc(m) == 8); int p; __match_all_sync(~0u, threadIdx.x / 32, &p); CHECK(p); }
K ok_early_exit ARGS { if (threadIdx.x >= 100) return; __syncthreads(); int v = in[threadIdx.x]; out[blockIdx.x * 128 + threadIdx.x] = v; }
K bad_barrier ARGS {
  if (threadIdx.x % 32 < 20)
    __syncthreads(); // BUG barrier-divergence
  out[blockIdx.x * 128 + threadIdx.x] = 1;
}
K bad_bounds ARGS {
  int i = blockIdx.x * 128 + threadIdx.x;
  out[i] = in[i + 3585]; // BUG out-of-bounds
}
K bad_bounds_store ARGS {
  int i = blockIdx.x * 128 + threadIdx.x;
  out[i * 9] = in[i]; // BUG out-of-bounds
}
K bad_bounds_shared ARGS {
  __shared__ int s[128]; int t = threadIdx.x; s[t] = t; __syncthreads();
  out[blockIdx.x * 128 + t] = s[t + 1]; // BUG out-of-bounds uninitialized
}
K bad_misaligned ARGS {
  const char *p = (const char *)in;
  out[blockIdx.x * 128 + threadIdx.x] = *(const int *)(p + threadIdx.x * 4 + 2); // BUG misaligned
}
K bad_uninit_shared ARGS {
  __shared__ int s[128]; int t = threadIdx.x; if (t < 64) s[t] = t; __syncthreads();
  int v = s[t]; // BUG uninitialized
  out[blockIdx.x * 128 + t] = v * 2;
}
K ok_uninit_copied ARGS {
  struct P { int a; char b; }; __shared__ P s[128], r[128]; int t = threadIdx.x;
  s[t].a = t; s[t].b = 1; __syncthreads(); r[t] = s[127 - t]; __syncthreads(); CHECK(r[t].a == 127 - t && r[t].b == 1);
}
K bad_uninit_global ARGS {
  int i = blockIdx.x * 128 + threadIdx.x;
  int v = out[i + 1024]; // BUG uninitialized
  out[i] = v > 3 ? 1 : 2;
}
K bad_race_global ARGS {
  int i = threadIdx.x;
  out[i] = in[i] + blockIdx.x; // BUG global-race
}
K bad_race_global_cta ARGS {
  int t = threadIdx.x, b = blockIdx.x * 128;
  out[b + t] = in[t];
  out[b + 1024 + t] = out[b + (t ^ 127)]; // BUG global-race
}
K ok_global_cta ARGS {
  int t = threadIdx.x, b = blockIdx.x * 128;
  out[b + t] = in[t]; __syncthreads(); out[b + 1024 + t] = out[b + (t ^ 127)]; CHECK(out[b + (t ^ 127)] == val(t ^ 127));
}
K ok_same_value ARGS { flag[3] = 1; if (threadIdx.x == 0) out[blockIdx.x] = 1; }
K ok_histogram ARGS {
  __shared__ int h[16]; if (threadIdx.x < 16) h[threadIdx.x] = 0; __syncthreads(); atomicAdd(&h[in[threadIdx.x] & 15], 1); __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&flag[threadIdx.x], h[threadIdx.x]);
}
K bad_histogram ARGS {
  __shared__ int h[16]; if (threadIdx.x < 16) h[threadIdx.x] = 0;
  atomicAdd(&h[in[threadIdx.x] & 15], 1); // BUG shared-race
  __syncthreads(); if (threadIdx.x < 16) atomicAdd(&flag[threadIdx.x], h[threadIdx.x]);
}
K bad_atomic_scope ARGS {
  atomicAdd_block(&flag[0], 1); // BUG global-race
}
K bad_plain_sum ARGS {
  int old = flag[threadIdx.x & 1];
  flag[threadIdx.x & 1] = old + 1; // BUG global-race
}
K ok_last_block ARGS {
  __shared__ bool last; int t = threadIdx.x; if (t == 0) { out[blockIdx.x] = blockIdx.x + 5; __threadfence(); last = atomicAdd(&flag[0], 1) == gridDim.x - 1; }
  __syncthreads();
  if (last) { __threadfence(); int s = 0; for (int i = 0; i < 4; i++) s += out[i]; CHECK(s == 26); }
}
K ok_last_block_all ARGS {
  __shared__ bool last; int t = threadIdx.x; out[blockIdx.x * 128 + t] = t; __threadfence(); __syncthreads();
  if (t == 0) last = atomicAdd(&flag[0], 1) == gridDim.x - 1; __syncthreads();
  if (last) { __threadfence(); for (int i = 0; i < 4; i++) CHECK(out[i * 128 + (t ^ 5)] == (t ^ 5)); }
}
K bad_last_block ARGS {
  __shared__ bool last; int t = threadIdx.x; if (t == 0) { out[blockIdx.x] = blockIdx.x + 5; last = atomicAdd(&flag[0], 1) == gridDim.x - 1; }
  __syncthreads();
  if (last && t == 0) {
    __threadfence();
    int s = 0; for (int i = 0; i < 4; i++) s += out[i]; // BUG global-race
    out[100] = s; }
}
K ok_lookback ARGS {
  int b = blockIdx.x, t = threadIdx.x; volatile int *f = flag;
  if (t == 0) {
    int before = 0;
    if (b > 0) { while (f[b - 1] == 0) {} __threadfence(); before = out[b - 1]; }
    out[b] = before + b; __threadfence(); f[b] = 1; CHECK(out[b] == b * (b + 1) / 2);
  }
}
K bad_lookback_release ARGS {
  int b = blockIdx.x, t = threadIdx.x; volatile int *f = flag;
  if (t == 0) {
    int before = 0;
    if (b > 0) {
      while (f[b - 1] == 0) {} __threadfence();
      before = out[b - 1]; // BUG global-race
    }
    out[b] = before + b; f[b] = 1;
  }
}
K bad_lookback_acquire ARGS {
  int b = blockIdx.x, t = threadIdx.x; volatile int *f = flag;
  if (t == 0) {
    int before = 0;
    if (b > 0) {
      while (f[b - 1] == 0) {}
      before = out[b - 1]; // BUG global-race
    }
    out[b] = before + b; __threadfence(); f[b] = 1;
  }
}
K bad_lookback_block_fence ARGS {
  int b = blockIdx.x, t = threadIdx.x; volatile int *f = flag;
  if (t == 0) {
    int before = 0;
    if (b > 0) {
      while (f[b - 1] == 0) {} __threadfence();
      before = out[b - 1]; // BUG global-race
    }
    out[b] = before + b; __threadfence_block(); f[b] = 1;
  }
}
K ok_release_acquire ARGS {
  int b = blockIdx.x, t = threadIdx.x; int v;
  if (t == 0) {
    if (b > 0) { do { asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(v) : "l"(flag + b - 1) : "memory"); } while (!v); CHECK(out[b - 1] == b - 1); }
    out[b] = b; asm volatile("st.release.gpu.b32 [%0], %1;" :: "l"(flag + b), "r"(1) : "memory");
  }
}
K bad_relaxed ARGS {
  int b = blockIdx.x, t = threadIdx.x; int v;
  if (t == 0) {
    if (b > 0) {
      do { asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(v) : "l"(flag + b - 1) : "memory"); } while (!v);
      out[b + 64] = out[b - 1]; // BUG global-race
    }
    out[b] = b; asm volatile("st.relaxed.gpu.b32 [%0], %1;" :: "l"(flag + b), "r"(1) : "memory");
  }
}
K bad_cta_scope ARGS {
  int b = blockIdx.x, t = threadIdx.x; int v;
  if (t == 0) {
    if (b > 0) {
      do { asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(v) : "l"(flag + b - 1) : "memory"); } while (!v); // BUG global-race
      out[b + 64] = out[b - 1];
    }
    out[b] = b; asm volatile("st.release.cta.b32 [%0], %1;" :: "l"(flag + b), "r"(1) : "memory");
  }
}
K ok_spin_lock ARGS {
  for (bool done = false; !done;) if (atomicCAS(flag, 0, 1) == 0) { __threadfence(); flag[1] = flag[1] + 1; __threadfence(); atomicExch(flag, 0); done = true; }
}
K ok_spin_lock_warp ARGS {
  if (threadIdx.x % 32 < 3) { while (atomicCAS(flag, 0, 1) != 0) {} __threadfence(); flag[1] = flag[1] + 1; __threadfence(); atomicExch(flag, 0); }
}
K bad_spin_lock ARGS {
  if (threadIdx.x == 0) {
    while (atomicCAS(flag, 0, 1) != 0) {}
    flag[1] = flag[1] + 1; // BUG global-race
    atomicExch(flag, 0);
  }
}
K bad_spin_forever ARGS {
  volatile int *f = flag;
  if (threadIdx.x == 0)
    while (f[7] == 0) {} // BUG deadlock
  __syncthreads(); out[blockIdx.x * 128 + threadIdx.x] = 1;
}
K bad_spin_order ARGS {
  volatile int *f = flag; int b = blockIdx.x;
  if (threadIdx.x == 0) {
    while (f[(b + 1) % 4] == 0) {} // BUG deadlock
    f[b] = 1;
  }
}
K ok_shared_flag ARGS {
  __shared__ volatile int f; __shared__ int d; if (threadIdx.x == 0) f = 0; __syncthreads();
  if (threadIdx.x == 96) { d = in[6]; __threadfence_block(); f = 1; }
  if (threadIdx.x == 0) { while (!f) {} __threadfence_block(); CHECK(d == 42); }
}
K bad_shared_flag ARGS {
  __shared__ volatile int f; __shared__ int d; if (threadIdx.x == 0) f = 0; __syncthreads();
  if (threadIdx.x == 96) { d = in[6]; f = 1; }
  if (threadIdx.x == 0) {
    while (!f) {} __threadfence_block();
    out[blockIdx.x] = d; // BUG shared-race
  }
}
K ok_lanes_flag ARGS {
  __shared__ int f, d; if (threadIdx.x == 0) f = 0; __syncthreads();
  if (threadIdx.x == 5) { d = 7; __threadfence_block(); atomicExch(&f, 1); }
  else if (threadIdx.x == 9) { while (atomicAdd(&f, 0) == 0) {} __threadfence_block(); CHECK(d == 7); }
}
K ok_grid_sync ARGS {
  auto g = cg::this_grid(); int i = g.thread_rank(); out[i] = i; g.sync(); CHECK(out[511 - i] == 511 - i); g.sync(); out[i] = 1;
}
K bad_grid_sync ARGS {
  auto g = cg::this_grid(); int i = g.thread_rank(); out[i] = i; g.sync();
  int v = out[511 - i];
  out[i] = v; // BUG global-race
}
K ok_tiles ARGS {
  auto t = cg::tiled_partition<8>(cg::this_thread_block()); int v = in[threadIdx.x]; for (int d = 4; d > 0; d >>= 1) v += t.shfl_down(v, d);
  if (t.thread_rank() == 0) { int w = 0; for (int i = 0; i < 8; i++) w += val(threadIdx.x + i); CHECK(v == w); }
}
K ok_coalesced ARGS { if (threadIdx.x % 3 == 1) { auto c = cg::coalesced_threads(); int s = c.size(); CHECK(c.shfl(s, 0) == s && s >= 10); } }
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int plus(int x) { return __shfl_sync(__activemask(), x, threadIdx.x & 31) + 1; }
K ok_functions ARGS { int (*f)(int) = in[threadIdx.x] & 1 ? twice : plus; int v = f(threadIdx.x); CHECK(v == (val(threadIdx.x) & 1 ? 2 * threadIdx.x : threadIdx.x + 1)); }
K bad_assert ARGS {
  if (in[threadIdx.x] > 880)
    __trap(); // BUG trap
}
K bad_free ARGS {
  if (threadIdx.x == 0) {
    int *p = (int *)malloc(16); p[0] = 1; free(p);
    out[blockIdx.x] = p[0]; // BUG use-after-free
  }
}
K bad_heap_bounds ARGS {
  if (threadIdx.x == 0) {
    int *p = (int *)malloc(16);
    p[in[1] - 3] = 1; // BUG out-of-bounds
    out[blockIdx.x] = p[in[1] - 3]; free(p);
  }
}
K ok_heap ARGS { int *p = (int *)malloc(8); p[1] = threadIdx.x; CHECK(p[1] == threadIdx.x); free(p); }
K ok_local ARGS { int a[16]; for (int i = 0; i < 16; i++) a[i] = i + threadIdx.x; int s = 0; for (int i = 0; i < 16; i++) s += a[in[i] & 15]; out[blockIdx.x * 128 + threadIdx.x] = s; }
K bad_local_bounds ARGS {
  int a[16]; for (int i = 0; i < 16; i++) a[i] = in[i];
  int s = a[in[threadIdx.x & 7]]; // BUG out-of-bounds
  out[blockIdx.x * 128 + threadIdx.x] = s + a[in[3] & 15];
}
