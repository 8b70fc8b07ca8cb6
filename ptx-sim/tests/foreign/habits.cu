// Like sync.cu: what people take for granted: compare-and-swap loops that begin with a plain read, groups of several warps that
// meet again and again, look-back by CUB's parts, stream-K. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 habits.cu
#include <cub/cub.cuh>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }

// The programming guide's loop, of a double in global memory, of a float, of 16 bits in shared memory.
K ok_cas_guide ARGS { T; auto *p = (unsigned long long *)(flag + 8); unsigned long long old = *p, assumed; do { assumed = old; old = atomicCAS(p, assumed, __double_as_longlong(0.5 + __longlong_as_double(assumed))); } while (assumed != old); }
K ok_cas_max ARGS { T; float *p = (float *)flag, x = in[i]; float old = *p; while (old < x) { int was = atomicCAS(flag, __float_as_int(old), __float_as_int(x)); if (was == __float_as_int(old)) break; old = __int_as_float(was); } cg::this_grid().sync(); CHECK(((volatile float *)flag)[0] >= x); }
K ok_cas_short ARGS { T; __shared__ unsigned short s[2]; if (t < 2) s[t] = 0; SYNC; unsigned short old = s[t & 1], want; do { want = old; old = atomicCAS(&s[t & 1], want, (unsigned short)(want + 1)); } while (old != want); SYNC; CHECK(s[0] == 64 && s[1] == 64); }
K bad_cas_other_read ARGS { T; __shared__ int s; if (t == 0) s = 0; SYNC; int old = s, want; do { want = old; old = atomicCAS(&s, want, want + 1); } while (old != want);
  out[i] = s; // BUG shared-race
}
K bad_cas_block_scope ARGS { T; int old = flag[3], want; do { want = old;
  old = atomicCAS_block(flag + 3, want, want + 1); // BUG global-race
} while (old != want); }
// Groups of two warps use one place in turn: what reads is over when its lanes meet in a shuffle or a vote.
K ok_two_warps ARGS { __shared__ cg::block_tile_memory<128> mem; auto block = cg::this_thread_block(mem); auto tile = cg::tiled_partition<64>(block); int t = threadIdx.x; int s = cg::reduce(tile, in[t], cg::plus<int>()), e = 0; for (int j = 0; j < 64; j++) e += val(t / 64 * 64 + j); CHECK(s == e); CHECK(cg::inclusive_scan(tile, 1) == t % 64 + 1); CHECK(tile.shfl(t, 5) == t / 64 * 64 + 5); CHECK(tile.any(t == 70) == (t >= 64)); CHECK(!tile.all(t == 70)); }
K ok_read_shuffle_write ARGS { T; __shared__ int s[128]; s[t] = in[i]; SYNC; int x = s[t ^ 1]; x = __shfl_xor_sync(~0u, x, 2); s[t] = x; int h = l < 16 ? 0xffff : 0xffff0000; SYNC; x = s[t ^ 3]; x += __any_sync(h, x > 5); s[t] = x; }
K bad_read_write ARGS { T; __shared__ int s[128]; s[t] = in[i]; SYNC; int x = s[t ^ 1]; for (int k = 0; k < x % 3; k++) x ^= in[k];
  s[t] = x; // BUG shared-race
}
K bad_write_shuffle_read ARGS { T; __shared__ int s[128]; s[t] = in[i]; int x = __shfl_xor_sync(~0u, t, 2);
  out[i] = s[t ^ 1] + x; // BUG shared-race
}
K bad_shuffle_of_others ARGS { T; __shared__ int s[128]; s[t] = in[i]; SYNC; int x = s[t ^ 16]; if (l < 16) x = __shfl_xor_sync(0xffff, x, 2);
  s[t] = x; // BUG shared-race
}
// The loop's read is moved out of it, to a place of no line.
K bad_hoisted ARGS { T; if (b == 0 && t == 0) { __nanosleep(5); flag[0] = 1; }
  if (b == 1 && t == 0) { int n = 0; while (flag[0] == 0) n++; out[0] = n; } // BUG global-race deadlock
}
K ok_look_back ARGS {
  T; using State = cub::ScanTileState<int>; using Prefix = cub::TilePrefixCallbackOp<int, cuda::std::plus<>, State>; using Scan = cub::BlockScan<int, 128, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ union { typename Scan::TempStorage scan; typename Prefix::TempStorage prefix; } temp[2]; __shared__ int tile; State state; state.Init(4, out + 2048, 1024);
  if (b == 0) { state.InitializeStatus(4); __threadfence(); SYNC; if (t == 0) atomicExch(flag + 1, 1); }
  if (t == 0) { while (atomicAdd(flag + 1, 0) == 0) __nanosleep(50); __threadfence(); tile = atomicAdd(flag, 1); } SYNC; int at = tile, x = in[at * 128 + t];
  if (at == 0) { int sum; Scan(temp[0].scan).InclusiveSum(x, x, sum); if (t == 0) state.SetInclusive(0, sum); }
  else { Prefix prefix(state, temp[1].prefix, cuda::std::plus<>{}, at); Scan(temp[0].scan).InclusiveScan(x, x, cuda::std::plus<>{}, prefix); }
  int e = 0; for (int k = 0; k <= at * 128 + t; k++) e += val(k); CHECK(x == e);
}
K ok_stream_k ARGS {
  T; const int per = 8, share = 6; int it = b * share, end = it + share;
  while (it < end) { int tile = it / per, first = it % per, last = min(per, first + end - it), s = 0; for (int k = first; k < last; k++) s += in[(tile * per + k) * 128 + t];
    cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[tile]);
    if (first) { out[1024 + tile * 128 + t] = s; __threadfence(); SYNC; if (t == 0) f.store(1, cuda::memory_order_release); }
    else { if (last < per) { if (t == 0) while (f.load(cuda::memory_order_acquire) != 1) __nanosleep(10); SYNC; s += out[1024 + tile * 128 + t]; } int e = 0; for (int k = 0; k < per; k++) e += val((tile * per + k) * 128 + t); CHECK(s == e); }
    it += last - first; }
}
