// Like sync.cu: what CUDA programs are made of. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 classic.cu
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cassert>
#include <cstdio>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define S(n) __shared__ int s[n]
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }
__device__ int sum_to(int n) { int s = 0; for (int i = 0; i <= n; i++) s += val(i); return s; }

// Reductions.
K ok_block_reduce ARGS { T; S(4); int v = in[t]; for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d); if (!l) s[w] = v; SYNC; if (w == 0) { v = l < 4 ? s[l] : 0; v += __shfl_xor_sync(~0u, v, 2); v += __shfl_xor_sync(~0u, v, 1); if (!l) { out[b] = v; CHECK(v == sum_to(127)); } } }
K bad_block_reduce ARGS {
  T; S(4); int v = in[t]; for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d); if (!l) s[w] = v;
  if (w == 0 && l < 4) out[b * 4 + l] = s[l]; // BUG shared-race uninitialized
}
K ok_reduce_max ARGS { T; S(4); int v = __reduce_max_sync(~0u, in[t]); if (!l) s[w] = v; SYNC; if (!t) { int m = max(max(s[0], s[1]), max(s[2], s[3])); out[b] = m; int c = 0; for (int k = 0; k < 128; k++) c = max(c, val(k)); CHECK(m == c); } }
K ok_reduce_grid_stride ARGS { T; S(128); int v = 0; for (int k = i; k < 4096; k += 512) v += in[k]; s[t] = v; SYNC; for (int d = 64; d; d >>= 1) { if (t < d) s[t] += s[t + d]; SYNC; } if (!t) atomicAdd(flag, s[0]); }
K ok_reduce_volatile_tail ARGS { T; __shared__ volatile int s[128]; s[t] = in[t]; SYNC; if (t < 64) s[t] = s[t] + s[t + 64]; SYNC; if (t < 32) { for (int d = 32; d; d >>= 1) { int v = s[t] + s[t + d]; __syncwarp(); s[t] = v; __syncwarp(); } if (!t) CHECK(s[0] == sum_to(127)); } }
K bad_reduce_no_first_barrier ARGS {
  T; S(128); s[t] = in[t];
  for (int d = 64; d; d >>= 1) {
    if (t < d) s[t] += s[t + d]; // BUG shared-race uninitialized
    SYNC;
  }
  if (!t) out[b] = s[0];
}
K ok_cg_block_reduce ARGS { T; auto warp = cg::tiled_partition<32>(cg::this_thread_block()); int v = cg::reduce(warp, in[t], cg::plus<int>()); S(4); if (warp.thread_rank() == 0) s[w] = v; SYNC; if (!t) CHECK(s[0] + s[1] + s[2] + s[3] == sum_to(127)); }
K ok_cg_tile8 ARGS { T; auto tile = cg::tiled_partition<8>(cg::this_thread_block()); int v = in[t]; for (int d = 4; d; d >>= 1) v += tile.shfl_down(v, d); if (tile.thread_rank() == 0) { int c = 0; for (int k = 0; k < 8; k++) c += val(t + k); CHECK(v == c); } }
K ok_cg_coalesced ARGS { T; if (in[t] % 3 == 0) { auto g = cg::coalesced_threads(); int n = g.size(); g.sync(); CHECK(n == __popc(__activemask())); CHECK(g.shfl(n, 0) == n); } }
K ok_cg_labeled ARGS { T; auto warp = cg::tiled_partition<32>(cg::this_thread_block()); auto g = cg::labeled_partition(warp, t % 4); CHECK(g.size() == 8); CHECK(cg::reduce(g, 1, cg::plus<int>()) == 8); }
K ok_cg_scan ARGS { T; auto warp = cg::tiled_partition<32>(cg::this_thread_block()); int v = cg::inclusive_scan(warp, in[l]); CHECK(v == sum_to(l)); }
K ok_float_reduce ARGS { T; float v = (float)in[t]; for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d); float c = 0; for (int k = 0; k < 32; k++) c += (float)val(t / 32 * 32 + k); CHECK(v == c); }
K ok_double_reduce ARGS { T; __shared__ double s[128]; s[t] = in[t] * 0.5; SYNC; for (int d = 64; d; d >>= 1) { if (t < d) s[t] += s[t + d]; SYNC; } if (!t) CHECK(s[0] == sum_to(127) * 0.5); }
K ok_argmax ARGS { T; unsigned long long v = (unsigned long long)in[t] << 32 | (unsigned)(127 - t); for (int d = 16; d; d >>= 1) { unsigned long long o = __shfl_xor_sync(~0u, v, d); v = v > o ? v : o; } CHECK((int)(v >> 32) == val(127 - (int)(v & 0xffffffff))); }
K ok_warp_vote ARGS { T; CHECK(__all_sync(~0u, in[t] >= 0)); CHECK(__any_sync(~0u, l == 3)); CHECK(__ballot_sync(~0u, l < 5) == 31); CHECK(!__all_sync(~0u, l)); }
K ok_syncthreads_count ARGS { T; CHECK(__syncthreads_count(t < 77) == 77); CHECK(__syncthreads_or(t == 9)); CHECK(__syncthreads_and(t < 128)); }
K ok_atomic_reduce ARGS { T; S(1); if (!t) s[0] = 0; SYNC; atomicAdd(s, in[t]); SYNC; CHECK(s[0] == sum_to(127)); }
K bad_atomic_reduce ARGS {
  T; S(1); if (!t) s[0] = 0; SYNC; atomicAdd(s, in[t]);
  out[i] = s[0]; // BUG shared-race
}
K bad_atomic_unset ARGS {
  T; S(2);
  atomicAdd(s, in[t]); // BUG uninitialized
  SYNC; out[i] = s[0];
}

// Scans.
K ok_hillis_steele ARGS { T; __shared__ int s[2][128]; int p = 0; s[0][t] = in[t]; SYNC; for (int d = 1; d < 128; d <<= 1) { s[1 - p][t] = s[p][t] + (t >= d ? s[p][t - d] : 0); p = 1 - p; SYNC; } out[i] = s[p][t]; CHECK(s[p][t] == sum_to(t)); }
K bad_hillis_steele ARGS {
  T; S(128); s[t] = in[t]; SYNC;
  for (int d = 1; d < 128; d <<= 1) {
    int v = t >= d ? s[t - d] : 0;
    s[t] += v; // BUG shared-race
    SYNC;
  }
  out[i] = s[t];
}
K ok_blelloch ARGS { T; S(128); s[t] = in[t]; for (int d = 1; d < 128; d <<= 1) { SYNC; int k = (t + 1) * 2 * d - 1; if (k < 128) s[k] += s[k - d]; } SYNC; if (!t) s[127] = 0; for (int d = 64; d; d >>= 1) { SYNC; int k = (t + 1) * 2 * d - 1; if (k < 128) { int v = s[k - d]; s[k - d] = s[k]; s[k] += v; } } SYNC; CHECK(s[t] == sum_to(t) - val(t)); out[i] = s[t]; }
K bad_blelloch ARGS {
  T; S(128); s[t] = in[t];
  for (int d = 1; d < 128; d <<= 1) { SYNC; int k = (t + 1) * 2 * d - 1; if (k < 128) s[k] += s[k - d]; }
  if (t == 64) s[127] = 0; // BUG shared-race
  SYNC; out[i] = s[t];
}
K ok_warp_scan ARGS { T; int v = in[l]; for (int d = 1; d < 32; d <<= 1) { int o = __shfl_up_sync(~0u, v, d); if (l >= d) v += o; } CHECK(v == sum_to(l)); }
K ok_block_scan ARGS { T; S(4); int v = in[t]; for (int d = 1; d < 32; d <<= 1) { int o = __shfl_up_sync(~0u, v, d); if (l >= d) v += o; } if (l == 31) s[w] = v; SYNC; for (int k = 0; k < w; k++) v += s[k]; out[i] = v; CHECK(v == sum_to(t)); }
K ok_segmented_scan ARGS { T; int v = in[l], head = l & ~7; for (int d = 1; d < 8; d <<= 1) { int o = __shfl_up_sync(~0u, v, d, 8); if (l - d >= head) v += o; } int c = 0; for (int k = head; k <= l; k++) c += val(k); CHECK(v == c); }
K ok_compact ARGS { T; __shared__ int n; S(128); if (!t) n = 0; SYNC; bool keep = in[t] & 1; unsigned m = __ballot_sync(~0u, keep); int base = 0; if (!l) base = atomicAdd(&n, __popc(m)); base = __shfl_sync(~0u, base, 0); if (keep) s[base + __popc(m & ((1u << l) - 1))] = in[t]; SYNC; if (t < n) CHECK(s[t] & 1); }
K bad_compact ARGS {
  T; __shared__ int n; S(128); if (!t) n = 0; SYNC;
  bool keep = in[t] & 1; if (keep) s[atomicAdd(&n, 1)] = in[t];
  SYNC; out[i] = s[t]; // BUG uninitialized
}

// Sorts and histograms.
K ok_bitonic ARGS { T; S(128); s[t] = in[t] * 37 % 1009; for (int k = 2; k <= 128; k <<= 1) for (int j = k >> 1; j; j >>= 1) { SYNC; int o = t ^ j; if (o > t && (s[t] > s[o]) == !(t & k)) { int v = s[t]; s[t] = s[o]; s[o] = v; } } SYNC; if (t) CHECK(s[t - 1] <= s[t]); out[i] = s[t]; }
K bad_bitonic ARGS {
  T; S(128); s[t] = in[t] * 37 % 1009; SYNC;
  for (int k = 2; k <= 128; k <<= 1) {
    for (int j = k >> 1; j; j >>= 1) { int o = t ^ j; if (o > t && (s[t] > s[o]) == !(t & k)) { // BUG shared-race
      int v = s[t]; s[t] = s[o]; s[o] = v; } }
    SYNC;
  }
  out[i] = s[t];
}
K ok_odd_even ARGS { T; S(128); s[t] = in[t]; for (int k = 0; k < 128; k++) { SYNC; int o = 2 * t + (k & 1); if (o + 1 < 128 && s[o] > s[o + 1]) { int v = s[o]; s[o] = s[o + 1]; s[o + 1] = v; } } SYNC; if (t) CHECK(s[t - 1] <= s[t]); }
K ok_warp_bitonic ARGS { T; int v = in[t]; for (int k = 2; k <= 32; k <<= 1) for (int j = k >> 1; j; j >>= 1) { int o = __shfl_xor_sync(~0u, v, j); bool up = !(l & k), low = !(l & j); v = (up == low) ? min(v, o) : max(v, o); } int p = __shfl_up_sync(~0u, v, 1); if (l) CHECK(p <= v); }
K ok_radix_pass ARGS { T; __shared__ int s[128], count[16], base[16]; if (t < 16) count[t] = 0; SYNC; int d = in[t] & 15; atomicAdd(&count[d], 1); SYNC; if (!t) { int c = 0; for (int k = 0; k < 16; k++) { base[k] = c; c += count[k]; } } SYNC; int r = 0; for (int k = 0; k < t; k++) r += (in[k] & 15) == d; s[base[d] + r] = in[t]; SYNC; if (t) CHECK((s[t - 1] & 15) <= (s[t] & 15)); }
K ok_radix_match ARGS { T; unsigned d = in[t] & 7, m = __match_any_sync(~0u, d); int rank = __popc(m & ((1u << l) - 1)), c = 0; for (int k = t & ~31; k < t; k++) c += (in[k] & 7) == d; CHECK(rank == c); }
K ok_histogram ARGS { T; __shared__ int h[32]; if (t < 32) h[t] = 0; SYNC; for (int k = t; k < 512; k += 128) atomicAdd(&h[in[k] & 31], 1); SYNC; if (t < 32) { int c = 0; for (int k = 0; k < 512; k++) c += (val(k) & 31) == t; CHECK(h[t] == c); atomicAdd(&flag[t], h[t]); } }
K bad_histogram ARGS {
  T; __shared__ int h[32]; if (t < 32) h[t] = 0; SYNC;
  h[in[t] & 31]++; // BUG shared-race
  SYNC; if (t < 32) out[b * 32 + t] = h[t];
}
K bad_histogram_global ARGS {
  T;
  flag[in[t] & 31]++; // BUG global-race
}
K bad_histogram_unzeroed ARGS {
  T; __shared__ int h[32];
  atomicAdd(&h[in[t] & 31], 1); // BUG uninitialized
  SYNC; if (t < 32) out[b * 32 + t] = h[t];
}
K ok_warp_histograms ARGS { T; __shared__ int h[4][16]; if (t < 64) h[t / 16][t % 16] = 0; SYNC; atomicAdd(&h[w][in[t] & 15], 1); SYNC; if (t < 16) { int v = h[0][t] + h[1][t] + h[2][t] + h[3][t], c = 0; for (int k = 0; k < 128; k++) c += (val(k) & 15) == t; CHECK(v == c); } }

// Transposes, stencils, filters, products.
K ok_transpose ARGS { T; __shared__ int s[32][33]; for (int r = w; r < 32; r += 4) s[r][l] = in[r * 32 + l]; SYNC; for (int r = w; r < 32; r += 4) { if (!b) out[r * 32 + l] = s[l][r]; CHECK(s[l][r] == val(l * 32 + r)); } }
K bad_transpose ARGS {
  T; __shared__ int s[32][33]; for (int r = w; r < 32; r += 4) s[r][l] = in[r * 32 + l];
  for (int r = w; r < 32; r += 4) CHECK(s[l][r] != -1); // BUG shared-race uninitialized
}
K bad_transpose_overlap ARGS {
  T; __shared__ int s[32][32]; for (int r = w; r < 32; r += 4) s[r][l] = in[r * 32 + l]; SYNC;
  for (int r = w; r < 32; r += 4) out[r * 32 + l] = s[l][r] + b; // BUG global-race
}
K ok_stencil ARGS { T; S(130); s[t + 1] = in[i]; if (!t) { s[0] = i ? in[i - 1] : 0; s[129] = in[i + 128]; } SYNC; int v = s[t] + s[t + 1] + s[t + 2]; out[i] = v; CHECK(v == (i ? val(i - 1) : 0) + val(i) + val(i + 1)); }
K bad_stencil_halo ARGS {
  T; S(130); s[t + 1] = in[i]; if (!t) s[0] = i ? in[i - 1] : 0; SYNC;
  out[i] = s[t] + s[t + 1] + s[t + 2]; // BUG uninitialized
}
K bad_stencil_bounds ARGS {
  T;
  out[i] = in[i + 4000]; // BUG out-of-bounds
}
K ok_stencil_iterated ARGS { T; __shared__ int s[2][128]; s[0][t] = in[t]; SYNC; int p = 0; for (int k = 0; k < 4; k++) { s[1 - p][t] = s[p][t] + s[p][(t + 1) & 127]; SYNC; p = 1 - p; } int c = val(t) + 4 * val((t + 1) & 127) + 6 * val((t + 2) & 127) + 4 * val((t + 3) & 127) + val((t + 4) & 127); CHECK(s[p][t] == c); }
K ok_box_filter ARGS { T; __shared__ int s[10][34]; for (int k = t; k < 340; k += 128) { int y = k / 34, x = k % 34; s[y][x] = in[y * 34 + x]; } SYNC; for (int y = w; y < 8; y += 4) { int v = 0, c = 0; for (int dy = 0; dy < 3; dy++) for (int dx = 0; dx < 3; dx++) { v += s[y + dy][l + dx]; c += val((y + dy) * 34 + l + dx); } CHECK(v == c); } }
K ok_median3 ARGS { T; int a = in[i], c = in[i + 1], d = in[i + 2]; int m = max(min(a, c), min(max(a, c), d)); out[i] = m; CHECK((m == a) + (m == c) + (m == d) >= 1); }
K ok_matmul ARGS { T; __shared__ float x[16][16], y[16][17]; for (int k = t; k < 256; k += 128) { x[k / 16][k % 16] = (float)(in[k] % 8); y[k / 16][k % 16] = (float)(in[k + 256] % 8); } SYNC; for (int k = t; k < 256; k += 128) { float v = 0, c = 0; for (int j = 0; j < 16; j++) { v += x[k / 16][j] * y[j][k % 16]; c += (float)(val(k / 16 * 16 + j) % 8 * (val(256 + j * 16 + k % 16) % 8)); } CHECK(v == c); } }
K ok_matmul_vectorised ARGS { T; __shared__ float4 x[64]; if (t < 64) { int4 v = ((const int4 *)in)[t]; x[t] = make_float4(v.x, v.y, v.z, v.w); } SYNC; float4 v = x[t & 63]; CHECK(v.x + v.w == (float)(val(4 * (t & 63)) + val(4 * (t & 63) + 3))); }
K bad_misaligned ARGS {
  T; int4 v = *(const int4 *)(in + 4 * t + 1); // BUG misaligned
  out[i] = v.x + v.y + v.z + v.w;
}
K ok_split_k ARGS { T; int v = 0; for (int k = b; k < 64; k += 4) v += in[k] * (t % 4); if (t < 4) atomicAdd(&flag[t], v); }
K bad_split_k ARGS {
  T; int v = 0; for (int k = b; k < 64; k += 4) v += in[k];
  if (t == 0) flag[0] += v; // BUG global-race
}
K ok_softmax ARGS { T; float x = in[t] * 0.01f, m = x; for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d)); float e = __expf(x - m), z = e; for (int d = 16; d; d >>= 1) z += __shfl_xor_sync(~0u, z, d); float p = e / z, q = p; for (int d = 16; d; d >>= 1) q += __shfl_xor_sync(~0u, q, d); CHECK(fabsf(q - 1) < 1e-5f); }
K ok_online_softmax ARGS { T; float m = -INFINITY, z = 0; for (int k = 0; k < 16; k++) { float x = in[k] * 0.01f, n = fmaxf(m, x); z = z * __expf(m - n) + __expf(x - n); m = n; } float c = 0; for (int k = 0; k < 16; k++) c += __expf(val(k) * 0.01f - m); CHECK(fabsf(z - c) < 1e-3f * c); }
K ok_layernorm ARGS { T; __shared__ float s[8]; float x = in[t] * 0.01f, a = x, q = x * x; for (int d = 16; d; d >>= 1) { a += __shfl_xor_sync(~0u, a, d); q += __shfl_xor_sync(~0u, q, d); } if (!l) { s[w] = a; s[w + 4] = q; } SYNC; a = (s[0] + s[1] + s[2] + s[3]) / 128; q = (s[4] + s[5] + s[6] + s[7]) / 128 - a * a; float y = (x - a) * rsqrtf(q + 1e-5f); CHECK(fabsf(y) < 4); }
K bad_layernorm ARGS {
  T; __shared__ float s[4]; float x = in[t], a = x; for (int d = 16; d; d >>= 1) a += __shfl_xor_sync(~0u, a, d); if (!l) s[w] = a;
  a = (s[0] + s[1] + s[2] + s[3]) / 128; // BUG shared-race uninitialized
  out[i] = (int)a;
}
K ok_csr ARGS { T; int start = t * (t + 1) / 2, v = 0; for (int k = start; k < start + t % 8; k++) v += in[k % 4096] * 2; out[i] = v; int c = 0; for (int k = start; k < start + t % 8; k++) c += 2 * val(k % 4096); CHECK(v == c); }
K ok_nbody ARGS { T; __shared__ float4 s[128]; float x = in[t], y = in[t + 128]; s[t] = make_float4(x, y, 1, 0); SYNC; float fx = 0; for (int k = 0; k < 128; k++) { float dx = s[k].x - x, dy = s[k].y - y, r = rsqrtf(dx * dx + dy * dy + 1); fx += dx * r * r * r; } CHECK(fabsf(fx) < 128); }
K bad_nbody ARGS {
  T; __shared__ float4 s[128]; s[t] = make_float4(in[t], in[t + 128], 1, 0);
  float f = 0; for (int k = 0; k < 128; k++) f += s[k].x; // BUG shared-race uninitialized
  out[i] = (int)f;
}

// Locks, flags, last blocks, look-back.
K ok_spin_lock ARGS { T; if (!t) { while (atomicCAS(flag, 0, 1)) {} __threadfence(); flag[1] = flag[1] + 1; __threadfence(); atomicExch(flag, 0); } }
K bad_spin_lock ARGS {
  T; if (!t) {
    flag[1] = flag[1] + 1; // BUG global-race
    while (atomicCAS(flag, 0, 1)) {} __threadfence(); __threadfence(); atomicExch(flag, 0);
  }
}
K ok_ticket_lock ARGS { T; if (!t) { int n = atomicAdd(flag, 1); while (atomicAdd(flag + 1, 0) != n) {} __threadfence(); flag[2] += 1; __threadfence(); atomicAdd(flag + 1, 1); } }
K bad_lock_never_freed ARGS {
  T; if (!t) {
    while (atomicCAS(flag, 0, 1)) {} // BUG deadlock
    __threadfence(); flag[1] = flag[1] + 1;
  }
}
K ok_last_block ARGS { T; S(1); out[i] = in[i]; __threadfence(); SYNC; if (!t) s[0] = atomicAdd(flag, 1) == 3; SYNC; if (s[0]) { __threadfence(); int v = 0; for (int k = t; k < 512; k += 128) v += out[k]; CHECK(v == val(t) + val(t + 128) + val(t + 256) + val(t + 384)); } }
K bad_last_block ARGS {
  T; S(1); out[i] = in[i]; if (!t) s[0] = atomicAdd(flag, 1) == 3; SYNC;
  if (s[0]) { __threadfence(); int v = 0; for (int k = t; k < 512; k += 128) v += out[k]; // BUG global-race
    CHECK(v >= 0); }
}
K ok_lookback ARGS { T; S(1); if (!t) { int p = 0; if (b) { int f; do f = atomicAdd(&flag[b - 1], 0); while (!f); p = f - 1; } atomicExch(&flag[b], p + 1 + b + 1); s[0] = p; } SYNC; CHECK(s[0] == b * (b + 1) / 2 + 0); out[i] = s[0]; }
K bad_lookback_order ARGS {
  T; if (!t) { if (b < 3) { while (!atomicAdd(&flag[b], 0)) {} } // BUG deadlock
    if (b) atomicExch(&flag[b], 1); out[b] = 1; }
}
K ok_grid_barrier ARGS { T; out[i] = in[i]; SYNC; if (!t) { __threadfence(); atomicAdd(flag, 1); while (atomicAdd(flag, 0) < 4) {} __threadfence(); } SYNC; CHECK(out[(i + 128) % 512] == val((i + 128) % 512)); }
K bad_grid_barrier ARGS {
  T; out[i] = in[i]; SYNC; if (!t) atomicAdd(flag, 1); SYNC;
  CHECK(out[(i + 128) % 512] >= 0); // BUG global-race uninitialized
}
K bad_grid_barrier_count ARGS {
  T; if (!t) { atomicAdd(flag, 1); while (atomicAdd(flag, 0) < 5) {} } // BUG deadlock
  SYNC; out[i] = 1;
}
K ok_work_queue ARGS { T; S(1); for (;;) { if (!t) s[0] = atomicAdd(flag, 1); SYNC; int k = s[0]; SYNC; if (k >= 16) break; out[k * 128 + t] = in[k * 128 + t]; } }
K bad_work_queue ARGS {
  T; S(1);
  for (int n = 0; n < 8; n++) { if (!t) s[0] = atomicAdd(flag, 1); // BUG shared-race
    SYNC; int k = s[0]; if (k < 16) out[k * 128 + t] = 1; }
}
K bad_queue_overrun ARGS {
  T; S(1); if (!t) s[0] = atomicAdd(flag, 1) * 1024; SYNC;
  for (int k = 0; k < 9; k++) out[s[0] + k * 128 + t] = 1; // BUG out-of-bounds global-race
}
K ok_flag_release ARGS { T; if (b == 0) { out[t] = in[t]; __threadfence(); SYNC; if (!t) atomicExch(flag, 1); } else if (b == 1) { if (!t) while (!atomicAdd(flag, 0)) {} SYNC; __threadfence(); CHECK(out[t] == val(t)); } }
K bad_flag_release ARGS {
  T; if (b == 0) { out[t] = in[t]; if (!t) atomicExch(flag, 1); }
  else if (b == 1) { if (!t) while (!atomicAdd(flag, 0)) {} SYNC; __threadfence(); CHECK(out[t] != -1); } // BUG global-race
}
K ok_cas_max ARGS { T; float v = in[t]; int *p = flag, old = *(volatile int *)p; while (__int_as_float(old) < v) { int was = atomicCAS(p, old, __float_as_int(v)); if (was == old) break; old = was; } }
K ok_atomics ARGS { T; S(8); if (t < 8) s[t] = t == 3 ? ~0 : 0; SYNC; atomicMax(&s[0], in[t]); atomicOr(&s[1], 1 << l); atomicXor(&s[2], 1); atomicAnd(&s[3], ~(1 << l)); atomicInc((unsigned *)&s[4], 9); atomicMin(&s[5], -t); atomicExch(&s[6], t); atomicSub(&s[7], 1); SYNC; CHECK(s[1] == ~0 && s[2] == 0 && s[3] == 0 && s[5] == -127 && s[7] == -128 && s[4] == 8); }
K ok_atomic_float ARGS { T; __shared__ float f; __shared__ double d; if (!t) f = 0, d = 0; SYNC; atomicAdd(&f, 1.f); atomicAdd(&d, 0.5); SYNC; CHECK(f == 128 && d == 64); }
K ok_atomic_u64 ARGS { T; __shared__ unsigned long long u; if (!t) u = 0; SYNC; atomicAdd(&u, 1ull << 33); SYNC; CHECK(u == 128ull << 33); }
K ok_atomic_half ARGS { T; __shared__ __half2 h; if (!t) h = __float2half2_rn(0); SYNC; atomicAdd(&h, __float2half2_rn(1)); SYNC; CHECK(__low2float(h) == 128); }

// Arithmetic.
K ok_half2 ARGS { T; __half2 a = __floats2half2_rn(t, 2), c = __hfma2(a, __float2half2_rn(2), a); CHECK(__low2float(c) == 3 * t && __high2float(c) == 6); CHECK(__hgt(__high2half(a), __float2half(1))); CHECK(__half2float(hsqrt(__float2half(4))) == 2); }
K ok_bf16x2 ARGS { T; __nv_bfloat162 a = __floats2bfloat162_rn(t & 15, 2), c = __hmul2(a, a); CHECK(__low2float(c) == (t & 15) * (t & 15) && __high2float(c) == 4); CHECK(__bfloat162float(__hmax(__low2bfloat16(a), __high2bfloat16(a))) == max(t & 15, 2)); }
K ok_fp8 ARGS { T; __nv_fp8_e4m3 a(1.5f * (t & 7)); CHECK((float)a == 1.5f * (t & 7) || (t & 7) == 7); __nv_fp8_e5m2 c(0.5f); CHECK((float)c == 0.5f); __nv_fp8x2_e4m3 p(make_float2(1, 2)); float2 f = (float2)p; CHECK(f.x == 1 && f.y == 2); }
K ok_dp4a ARGS { T; int v = __dp4a(0x01020304, 0x01010101, t); CHECK(v == 10 + t); CHECK(__dp2a_lo(0x00030002, 0x0101, 0) == 5); CHECK(__vabsdiffu4(0x05050505, 0x03040607) == 0x02010102); }
K ok_funnel ARGS { T; unsigned lo = 0x89abcdef, hi = 0x01234567; CHECK(__funnelshift_l(lo, hi, 8) == 0x23456789); CHECK(__funnelshift_r(lo, hi, 8) == 0x6789abcd); CHECK(__funnelshift_rc(lo, hi, 40) == hi); CHECK(__byte_perm(lo, hi, 0x7531) == 0x014589cd); }
K ok_bits ARGS { T; unsigned v = in[t]; CHECK(__brev(__brev(v)) == v); CHECK(__popc(v) + __popc(~v) == 32); CHECK(__clz(1u << l) == 31 - l); CHECK(__ffs(1 << l) == l + 1); CHECK(__clzll(1ull << 40) == 23 && __popcll(~0ull) == 64); }
K ok_wide ARGS { T; unsigned long long a = 0x123456789abcdefull + t, h = __umul64hi(a, a); unsigned __int128 p = (unsigned __int128)a * a; CHECK((unsigned long long)(p >> 64) == h); CHECK(__mul24(t, 3) == 3 * t && __umulhi(~0u, 2) == 1); CHECK((unsigned long long)(p / a) == a); }
K ok_division ARGS { T; int a = in[t] + 1, c = t + 1; CHECK(a / c * c + a % c == a); long long d = -((long long)a << 33); CHECK(d / c * c + d % c == d); unsigned u = ~0u - t; CHECK(u / 7 * 7 + u % 7 == u); }
K ok_rng ARGS { T; unsigned long long x = 88172645463325252ull + t; unsigned o = 0; for (int k = 0; k < 32; k++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; o |= (unsigned)(x & 1) << k; } unsigned a = 12345 + t, c = 0; for (int k = 0; k < 8; k++) { a = a * 1664525u + 1013904223u; c ^= a >> 8; } CHECK(o | c | 1); out[i] = o ^ c; }
K ok_philox ARGS { T; unsigned c0 = t, c1 = 0, k = 0x9e3779b9; for (int r = 0; r < 10; r++) { unsigned h = __umulhi(0xd256d193u, c0), lo = 0xd256d193u * c0; c0 = h ^ k ^ c1; c1 = lo; k += 0x9e3779b9; } out[i] = c0 ^ c1; }
K ok_math ARGS { T; float x = 0.1f + t * 0.01f; CHECK(fabsf(sinf(x) * sinf(x) + cosf(x) * cosf(x) - 1) < 1e-5f); CHECK(fabsf(expf(logf(x)) - x) < 1e-5f); CHECK(fabsf(tanhf(x)) < 1); CHECK(fabsf(powf(x, 2) - x * x) < 1e-5f); CHECK(sqrtf(x * x) - x < 1e-6f && cbrtf(27) == 3); }
K ok_double_math ARGS { T; double x = 1 + t * 0.25; CHECK(fabs(exp(log(x)) - x) < 1e-12); CHECK(fma(x, x, -x * x) < 1e-10); CHECK(rint(2.5) == 2 && floor(-0.5) == -1); }
K ok_saturate ARGS { T; CHECK(__saturatef(2.f) == 1 && __saturatef(-1.f) == 0); CHECK(__sad(3, 10, 1u) == 8); CHECK(min(max(t, 5), 9) >= 5); CHECK(__hadd(7, 8) == 7 && __rhadd(7, 8) == 8); }
K ok_conversions ARGS { T; CHECK(__float2int_rz(-2.7f) == -2 && __float2int_rn(2.5f) == 2 && __float2int_ru(2.1f) == 3); CHECK((unsigned char)(int)300.f == 44 || true); CHECK(__double2float_rn(0.1) == 0.1f); CHECK((float)(1ll << 40) == 1099511627776.f); CHECK((short)(char)in[t] >= -128); }

// Memory of other kinds.
__constant__ int table[4] = {2, 3, 5, 7};
__device__ int counter = 5; __device__ int slots[512];
K ok_constant ARGS { T; CHECK(table[t & 3] * 2 >= 4); out[i] = table[t & 3]; }
K ok_device_variable ARGS { T; slots[i] = t; CHECK(slots[i] == t); if (!i) CHECK(counter == 5); }
K ok_dynamic_shared ARGS { T; S(128); char *p = (char *)s; p[t] = (char)t; SYNC; CHECK(p[127 - t] == (char)(127 - t)); }
K bad_static_overrun ARGS {
  T; S(128);
  s[t + 1] = in[t]; // BUG out-of-bounds
  SYNC; out[i] = s[t];
}
K ok_local_array ARGS { T; int a[16]; for (int k = 0; k < 16; k++) a[k] = in[(t + k) & 127]; int m = in[t] & 15; for (int k = 0; k < 8; k++) a[(m + k) & 15] += k; int v = 0; for (int k = 0; k < 16; k++) v += a[k]; out[i] = v; }
K bad_local_unset ARGS {
  T; int a[64]; a[in[t] & 31] = 1;
  if (a[in[t + 1] & 63] == 3) // BUG uninitialized
    out[i] = 1;
}
K bad_global_unset ARGS {
  T;
  if (out[i + 512] > 0) // BUG uninitialized
    out[i] = 1;
}
K bad_unset_result ARGS {
  T;
  out[i] = out[i + 512] + 1; // BUG uninitialized
}
K bad_unset_index ARGS {
  T; S(128); if (t < 64) s[t] = t; SYNC;
  out[i] = in[s[t]]; // BUG uninitialized
}
K ok_struct_padding ARGS { struct P { char c; int v; }; T; __shared__ P p[128]; p[t].c = 1; p[t].v = t; SYNC; P q = p[127 - t]; CHECK(q.v == 127 - t && q.c == 1); }
K ok_malloc ARGS { T; if (t < 4) { int *p = (int *)malloc(16); CHECK(p); p[0] = t; p[3] = 7; CHECK(p[0] + p[3] == t + 7); free(p); } }
K bad_use_after_free ARGS {
  T; if (!t) { volatile int *p = (int *)malloc(16); p[0] = 1; free((void *)p);
    out[b] = p[0]; // BUG use-after-free
  }
}
K bad_heap_overrun ARGS {
  T; if (!t) { volatile int *p = (int *)malloc(16);
    p[4] = 1; // BUG out-of-bounds
  }
}
K ok_assert ARGS { T; assert(t < 128); if (!i) printf("%d %s %.2f\n", 7, "ok", 1.5); }
K bad_trap ARGS {
  T; if (in[t] == 7)
    __trap(); // BUG trap
  out[i] = 1;
}
K bad_far_pointer ARGS {
  T; int *p = out + (in[t] ? 0 : 1 << 20);
  p[i] = 1; // BUG out-of-bounds
}

// Barriers and divergence.
K ok_named_barriers ARGS { T; S(128); if (t < 64) { s[t] = in[t]; asm volatile("bar.arrive 1, 128;" ::: "memory"); } else { asm volatile("bar.sync 1, 128;" ::: "memory"); CHECK(s[t - 64] == val(t - 64)); } }
K bad_named_barrier ARGS {
  T; S(128); if (t < 64) { s[t] = in[t]; asm volatile("bar.arrive 1, 128;" ::: "memory"); }
  else { asm volatile("bar.sync 2, 128;" ::: "memory"); // BUG deadlock
    CHECK(s[t - 64] != -1); }
}
K bad_barrier_in_branch ARGS {
  T; if (t < 64) { out[i] = 1; asm volatile("bar.sync 0, 128;" ::: "memory"); } // BUG deadlock
  else asm volatile("bar.sync 1, 128;" ::: "memory"); // BUG deadlock
}
K ok_loop_divergence ARGS { T; int n = 0; for (int k = in[t] & 15; k; k--) n += k & 1 ? 2 : 1; CHECK(n >= 0); unsigned m = __ballot_sync(~0u, n > 5); CHECK(__popc(m) <= 32); }
K ok_switch ARGS { T; int v; switch (in[t] % 6) { case 0: v = 1; break; case 1: v = in[t] * 3; break; case 2: v = -t; break; case 3: v = t * t; break; case 4: v = 9; break; default: v = 11; } out[i] = v; }
K ok_goto ARGS { T; int n = t & 7;
again: if (n > 0) { n--; goto again; }
  CHECK(n == 0); }
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
K ok_recursion ARGS { T; CHECK(fib(t & 7) <= 13); }
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int thrice(int x) { return 3 * x; }
K ok_function_pointer ARGS { T; int (*f[2])(int) = {twice, thrice}; int v = f[in[t] & 1](t); CHECK(v == t * (2 + (in[t] & 1))); }
K bad_shuffle_from_exited ARGS {
  T; int v = in[t]; if (l > 20) return;
  v = __shfl_sync(0x1fffff, v, 25); // BUG shuffle-inactive
  out[i] = v;
}
K bad_shuffle_mask ARGS {
  T; int v = in[t];
  if (l < 16) v = __shfl_xor_sync(0xff, v, 1); // BUG shuffle-inactive
  out[i] = v;
}
K bad_vote_mask ARGS {
  T; unsigned m = 0;
  if (l < 8) m = __ballot_sync(0xffff, 1); // BUG diverged-warp shuffle-inactive
  out[i] = m;
}
K bad_warp_sync_missing ARGS {
  T; S(128); s[t] = in[t];
  out[i] = s[t ^ 1]; // BUG shared-race
}
K bad_write_write ARGS {
  T; S(4);
  s[w & 1] = t; // BUG shared-race
  SYNC; out[i] = s[0];
}
K bad_read_then_write ARGS {
  T; S(128); s[t] = in[t]; SYNC; int v = s[(t + 32) & 127];
  s[t] = v; // BUG shared-race
  SYNC; out[i] = s[t];
}
K bad_double_buffer ARGS {
  T; __shared__ int s[2][128];
  for (int k = 0; k < 4; k++) { s[0][t] = in[t + k]; // BUG shared-race
    SYNC; out[i] = s[0][127 - t]; }
}
K ok_double_buffer ARGS { T; __shared__ int s[2][128]; for (int k = 0; k < 4; k++) { s[k & 1][t] = in[t + k]; SYNC; CHECK(s[k & 1][127 - t] == val(127 - t + k)); } }
K bad_const_write ARGS {
  T;
  asm volatile("st.global.u32 [%0], 1;" :: "l"(table + (t & 3)) : "memory"); // BUG out-of-bounds
}
K bad_negative_index ARGS {
  T;
  out[i - 200] = 1; // BUG out-of-bounds
}
K bad_two_blocks_one_cell ARGS {
  T; if (!t)
    out[5] = b; // BUG global-race
}
K bad_block_sum ARGS {
  T; out[i] = in[i]; if (!t) { int v = 0; for (int k = 0; k < 128; k++) v += out[b * 128 + k]; // BUG global-race uninitialized
    flag[b] = v; }
}
