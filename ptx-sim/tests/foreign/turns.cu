// Like sync.cu: locks that sleep, grid and cluster barriers, calls through tables, recursion, printf, stacks with dynamic indices, wide accesses,
// packed atomics, constant memory. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 turns.cu
#include <cooperative_groups.h>
#include <cuda/atomic>
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

// Locks.
struct Lock {
  int *state;
  __device__ void take() { for (unsigned wait = 8; atomicCAS(state, 0, 1) != 0; wait = wait < 256 ? wait * 2 : wait) __nanosleep(wait); __threadfence(); }
  __device__ void give() { __threadfence(); atomicExch(state, 0); }
};
K ok_lock_sleeps ARGS { T; Lock lock{flag}; if (!(t & 15)) { lock.take(); int n = flag[1]; flag[1] = n + 1; out[n] = i; lock.give(); } }
K bad_lock_given_early ARGS {
  T; Lock lock{flag};
  if (!(t & 15)) {
    lock.take(); int n = flag[1]; lock.give();
    flag[1] = n + 1; // BUG global-race
  }
}
K bad_lock_not_given ARGS {
  T; Lock lock{flag};
  if (!(t & 15)) {
    while (atomicCAS(flag, 0, 1) != 0) __nanosleep(40); // BUG deadlock
    __threadfence(); int n = flag[1]; flag[1] = n + 1; if (n != 5) lock.give();
  }
}
K ok_ticket_lock ARGS { T; if (!l) { int mine = atomicAdd(flag, 1); cuda::atomic_ref<int, cuda::thread_scope_device> now(flag[1]); while (now.load(cuda::memory_order_acquire) != mine) __nanosleep(20); out[0] = mine ? out[0] + b : b; now.store(mine + 1, cuda::memory_order_release); } }
K bad_ticket_relaxed ARGS {
  T; if (!l) {
    int mine = atomicAdd(flag, 1); cuda::atomic_ref<int, cuda::thread_scope_device> now(flag[1]);
    while (now.load(cuda::memory_order_relaxed) != mine) __nanosleep(20);
    out[0] = mine ? out[0] + b : b; // BUG global-race
    now.store(mine + 1, cuda::memory_order_relaxed);
  }
}
K ok_readers_writer ARGS { T; if (!l) { cuda::atomic_ref<int, cuda::thread_scope_device> s(*flag); if (w == 0) { int free = 0; while (!s.compare_exchange_weak(free, -1, cuda::memory_order_acquire, cuda::memory_order_relaxed)) free = 0; flag[1] += 1; s.store(0, cuda::memory_order_release); } else { int n; do { n = s.load(cuda::memory_order_relaxed); } while (n < 0 || !s.compare_exchange_weak(n, n + 1, cuda::memory_order_acquire, cuda::memory_order_relaxed)); CHECK(flag[1] >= 0 && flag[1] <= 4); s.fetch_sub(1, cuda::memory_order_release); } } }
K ok_hand_over ARGS { T; __shared__ int turn, sum; if (!t) turn = sum = 0; SYNC; if (!l) { while (*(volatile int *)&turn != w) __nanosleep(10); __threadfence_block(); sum = sum * 10 + w; __threadfence_block(); *(volatile int *)&turn = w + 1; } SYNC; CHECK(sum == 123); }
K bad_hand_over_plain ARGS {
  T; __shared__ int turn, sum; if (!t) turn = sum = 0; SYNC;
  if (!l) {
    while (*(volatile int *)&turn != w) __nanosleep(10);
    sum = sum * 10 + w; // BUG shared-race
    *(volatile int *)&turn = w + 1;
  }
  SYNC; out[i] = sum;
}

// Barriers of the grid, of clusters.
__device__ void grid_barrier(int *count, int phase) { __syncthreads(); if (!threadIdx.x) { __threadfence(); atomicAdd(count, 1); while (*(volatile int *)count < (phase + 1) * (int)gridDim.x) { } __threadfence(); } __syncthreads(); }
K ok_grid_steps ARGS { T; out[i] = val(i); for (int k = 0; k < 4; k++) { grid_barrier(flag, 2 * k); int v = out[(i + 128) % 512]; grid_barrier(flag, 2 * k + 1); out[i] = v; } CHECK(out[i] == val(i)); }
K bad_grid_steps ARGS {
  T; out[i] = val(i); 
  for (int k = 0; k < 4; k++) {
    grid_barrier(flag, k); int v = out[(i + 128) % 512];
    out[i] = v; // BUG global-race
  }
}
K bad_grid_leaves ARGS {
  T; if (in[b] == 14) return;
  out[i] = 1; SYNC; if (!t) { __threadfence(); atomicAdd(flag, 1); }
  if (!t) while (*(volatile int *)flag < 4) { } // BUG deadlock
  __threadfence(); SYNC;
  out[i] += out[(i + 128) % 512];
}
CK ok_cluster_ring ARGS { T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = val(i); c.sync(); for (int k = 0; k < 3; k++) { int v = c.map_shared_rank(s, (c.block_rank() + 1) % 4)[t]; c.sync(); s[t] = v; c.sync(); } CHECK(s[t] == val(((b + 3) % 4) * 128 + t)); }
CK bad_cluster_ring ARGS {
  T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = val(i); c.sync();
  for (int k = 0; k < 3; k++) {
    int v = c.map_shared_rank(s, (c.block_rank() + 1) % 4)[t]; c.sync();
    s[t] = v; // BUG shared-race
  }
  out[i] = s[t]; c.sync();
}
CK bad_cluster_leaves ARGS {
  T; __shared__ int s[128]; auto c = cg::this_cluster(); s[t] = val(i); c.sync();
  out[i] = c.map_shared_rank(s, (c.block_rank() + 1) % 4)[t]; // BUG use-after-free out-of-bounds
}
CK ok_cluster_histogram ARGS { T; __shared__ int bins[16]; auto c = cg::this_cluster(); if (t < 16) bins[t] = 0; c.sync(); for (int k = 0; k < 4; k++) { int bin = val(i * 4 + k) & 63; atomicAdd(c.map_shared_rank(bins, bin >> 4) + (bin & 15), 1); } c.sync(); if (t < 16) { int e = 0; for (int k = 0; k < 2048; k++) e += (val(k) & 63) == (int)c.block_rank() * 16 + t; CHECK(bins[t] == e); } }
CK ok_cluster_pointers ARGS { T; __shared__ double s[128]; __shared__ double *next; auto c = cg::this_cluster(); if (!t) next = c.map_shared_rank(s, c.block_rank() ^ 3); s[t] = i * 0.5; c.sync(); CHECK(next[t] == ((b ^ 3) * 128 + t) * 0.5 && c.query_shared_rank(next) == (c.block_rank() ^ 3) && c.dim_blocks().x == 4); c.sync(); }

// Calls.
typedef int (*Step)(int, int);
__device__ __noinline__ int add(int x, int y) { return x + y; }
__device__ __noinline__ int sub(int x, int y) { return x - y; }
__device__ __noinline__ int mul(int x, int y) { return x * y; }
__device__ __noinline__ int mod(int x, int y) { return y ? x % y : -1; }
__device__ Step steps[4] = {add, sub, mul, mod};
__constant__ Step chosen[2] = {mul, sub};
K ok_call_table ARGS { T; int r = steps[t & 3](val(i), l), e = (t & 3) == 0 ? val(i) + l : (t & 3) == 1 ? val(i) - l : (t & 3) == 2 ? val(i) * l : l ? val(i) % l : -1; CHECK(r == e); CHECK(chosen[w & 1](7, 5) == (w & 1 ? 2 : 35)); }
K bad_call_nowhere ARGS {
  T; Step table[3] = {add, mul, nullptr};
  Step step = table[in[i] % 3];
  out[i] = step(t, 2); // BUG bad-target
}
__device__ __noinline__ int ackermann(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }
__device__ int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }
__device__ __noinline__ bool is_even(unsigned n);
__device__ __noinline__ bool is_odd(unsigned n) { return n == 0 ? false : is_even(n - 1); }
__device__ __noinline__ bool is_even(unsigned n) { return n == 0 ? true : is_odd(n - 1); }
K ok_recursion ARGS { T; CHECK(ackermann(2, l & 3) == 2 * (l & 3) + 3); CHECK(gcd(12 * (t + 1), 18 * (t + 1)) == 6 * (t + 1)); CHECK(is_even(l) == !(l & 1)); }
__device__ __noinline__ int search(const int *sorted, int from, int to, int key) { if (from >= to) return from; int mid = (from + to) / 2; return sorted[mid] < key ? search(sorted, mid + 1, to, key) : search(sorted, from, mid, key); }
K ok_binary_search ARGS { T; __shared__ int s[128]; s[t] = 3 * t + 1; SYNC; CHECK(search(s, 0, 128, 3 * t) == t && search(s, 0, 128, 3 * t + 2) == t + 1); }
K bad_search_past ARGS {
  T; __shared__ int s[128]; s[t] = 3 * t + 1; SYNC; int at = search(s, 0, 128, in[i]);
  out[i] = s[at] + (at == 128); // BUG out-of-bounds uninitialized
}
K ok_prints ARGS { T; if (!t && !b) printf("%s %d %5.2f %c %lld %x%%\n", "row", in[3], 2.5, 'c', 1234567890123ll, 255u); }
K ok_stack_permuted ARGS { T; int a[16]; for (int k = 0; k < 16; k++) a[(k * 5 + t) & 15] = k + t; int s = 0; for (int k = 0; k < 16; k++) s = s * 3 + a[k ^ (t & 15)]; int e = 0; for (int k = 0; k < 16; k++) { int at = k ^ (t & 15), j = 0; while (((j * 5 + t) & 15) != at) j++; e = e * 3 + j + t; } CHECK(s == e); }
K bad_stack_short ARGS {
  T; int a[16]; int n = in[i] & 15;
  for (int k = 0; k < n; k++) a[k] = k + t;
  int s = 0; for (int k = 0; k < 16; k++) s += a[(k + l) & 15]; // BUG uninitialized
  out[i] = s;
}
K bad_stack_past ARGS {
  T; int a[8]; for (int k = 0; k < 8; k++) a[k] = in[i + k];
  a[in[i] % 9 + (t == 100) * 4096] = 1; // BUG out-of-bounds
  out[i] = a[in[i] % 8];
}
struct Matrix { float m[4][4]; __device__ Matrix operator*(const Matrix &o) const { Matrix r; for (int x = 0; x < 4; x++) for (int y = 0; y < 4; y++) { r.m[x][y] = 0; for (int k = 0; k < 4; k++) r.m[x][y] += m[x][k] * o.m[k][y]; } return r; } };
__device__ __noinline__ Matrix power(Matrix a, int n) { if (n == 1) return a; Matrix h = power(a, n / 2); h = h * h; return n & 1 ? h * a : h; }
K ok_struct_by_value ARGS { T; Matrix a = {{{1, 1, 0, 0}, {1, 0, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 1}}}; int n = 1 + (l % 12); Matrix p = power(a, n); int x = 1, y = 0; for (int k = 0; k < n; k++) { int z = x + y; y = x; x = z; } CHECK(p.m[0][0] == x && p.m[0][1] == y && p.m[2][2] == (float)(1 << n)); }

// Wide and packed accesses.
K ok_wide_copies ARGS { T; const int4 *from = (const int4 *)in; int4 v = from[i]; CHECK(v.x == val(4 * i) && v.w == val(4 * i + 3)); ((int4 *)out)[i] = make_int4(v.w, v.z, v.y, v.x); longlong2 q = ((longlong2 *)out)[i]; CHECK((int)q.x == v.w && (int)(q.y >> 32) == v.x); double2 d = *(const double2 *)(in + 4 * i); CHECK(__double2loint(d.y) == v.z); }
K bad_wide_offset ARGS {
  T; int2 v = *(const int2 *)(in + 2 * i + (in[i] & 1)); // BUG misaligned
  out[i] = v.x + v.y;
}
K bad_wide_past ARGS {
  T; int4 v = ((const int4 *)in)[i + 513]; // BUG out-of-bounds
  out[i] = v.x;
}
K ok_packed_atomics ARGS { T; __half2 *h = (__half2 *)flag; __nv_bfloat162 *q = (__nv_bfloat162 *)(flag + 1); atomicAdd(h, __floats2half2_rn(1, 2)); atomicAdd(q, __floats2bfloat162_rn(0.5f, 0.25f)); atomicAdd((__half *)(flag + 2) + 1, __float2half(1)); grid_barrier(flag + 8, 0); CHECK(__low2float(*h) == 512 && __high2float(*h) == 1024); CHECK(__low2float(*q) == 128 && __high2float(*q) == 64); CHECK(__half2float(((__half *)(flag + 2))[1]) == 512); }
K ok_double_atomics ARGS { T; double *d = (double *)flag; atomicAdd(d, 0.25); atomicMax((long long *)flag + 1, (long long)i << 33); atomicMin((unsigned long long *)flag + 2, ~0ull); atomicOr((unsigned long long *)flag + 3, 1ull << (i & 63)); unsigned long long old = atomicExch((unsigned long long *)flag + 5, (unsigned long long)i); CHECK(old < 512); grid_barrier(flag + 16, 0); CHECK(*d == 128 && *((long long *)flag + 1) == 511ll << 33 && *((unsigned long long *)flag + 3) == ~0ull); }
K ok_float_max_bits ARGS { T; float f = (val(i) - 500) * 0.5f; if (f >= 0) atomicMax(flag, __float_as_int(f)); else atomicMin((unsigned *)flag + 1, __float_as_uint(f)); atomicMax((int *)flag + 2, val(i)); atomicInc((unsigned *)flag + 3, 99); atomicDec((unsigned *)flag + 4, 9); grid_barrier(flag + 16, 0); int most = 0, least = 999; for (int k = 0; k < 512; k++) { most = max(most, val(k)); least = min(least, val(k)); } CHECK(__int_as_float(*flag) == (most - 500) * 0.5f && flag[1] == 0 && flag[2] == most && flag[3] == 512 % 100 && flag[4] == 8); }
__constant__ int weights[8] = {1, -2, 3, -4, 5, -6, 7, -8};
__constant__ struct { short a; char text[6]; double d[2]; } mixed = {-3, "abcde", {0.5, -1e300}};
K ok_constants ARGS { T; int s = 0; for (int k = 0; k < 8; k++) s += weights[(k + t) & 7] * (k == 3); CHECK(s == weights[(t + 3) & 7] && weights[t & 7] == ((t & 1) ? -(t & 7) - 1 : (t & 7) + 1)); CHECK(mixed.a == -3 && mixed.text[t % 5] == 'a' + t % 5 && mixed.d[t & 1] == (t & 1 ? -1e300 : 0.5)); }
K bad_constant_past ARGS {
  T; out[i] = weights[in[i] % 9 + 4000]; // BUG out-of-bounds
}
__device__ int table[64]; __device__ int ready;
K ok_globals ARGS { T; if (!b && t < 64) { table[t] = t * t; __threadfence(); atomicAdd(&ready, 1); } if (!t) { while (atomicAdd(&ready, 0) < 64) { } __threadfence(); } SYNC; CHECK(table[t & 63] == (t & 63) * (t & 63)); }
K bad_globals_unpublished ARGS {
  T; if (!b && t < 64) {
    table[t] = t * t; // BUG global-race
    atomicAdd(&ready, 1);
  }
  if (!t) { while (atomicAdd(&ready, 0) < 64) { } } SYNC; out[i] = table[t & 63];
}
K ok_asm_special ARGS { T; unsigned lane, warp, less, nc; asm volatile("mov.u32 %0, %%laneid; mov.u32 %2, %%lanemask_lt; mov.u32 %1, %%warpid; mov.u32 %3, %%nctaid.x;" : "=r"(lane), "=r"(warp), "=r"(less), "=r"(nc)); CHECK((int)lane == l && less == (1u << l) - 1 && nc == 4); unsigned long long g; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(g)); CHECK(g > 0); }
