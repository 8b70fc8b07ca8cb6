// Like sync.cu: programs of other fields (dynamic programming, factorisations, coding, graphs, signals, layers of networks), with the bugs that they are prone to.
// Lines of right kernels are left out of the PTX. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 fields.cu, and -arch=sm_120a -DNARROW for the last.
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_pipeline.h>
#include <cuda/barrier>
#include <cuda/atomic>
#include <cuda/ptx>
namespace cg = cooperative_groups;
namespace px = cuda::ptx;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x_) do { if (!(x_)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__host__ __device__ constexpr int val(int i) { return i * 7 % 1000; }
#ifdef NARROW
K ok_fp4_roundtrip ARGS { T; float x = ((t & 15) - 8) * .5f; __nv_fp4_e2m1 q(x); float y = (float)q; CHECK(fabsf(x - y) <= .25f || fabsf(x) > 2.f && fabsf(x - y) <= .5f); __nv_fp6_e3m2 s(x); CHECK(fabsf((float)s - x) <= .125f || fabsf(x) >= 2.f); __nv_fp6_e2m3 u(x); CHECK((float)u == x); __nv_fp8_e8m0 e(fabsf(x) + 1.f); CHECK((float)e >= fabsf(x) + 1.f); out[i] = q.__x; }
#else
// Dynamic programming along anti-diagonals.
template <bool Sync> __device__ int edit(const int *in, int t, int b) { __shared__ int d[3][65]; __shared__ int x[64], y[64]; if (t < 64) { x[t] = in[b * 64 + t] % 4; y[t] = in[b * 64 + t + 7] % 4; } for (int k = 0; k < 3; k++) if (t < 65) d[k][t] = t; SYNC;
  for (int s = 0; s < 127; s++) { int *now = d[(s + 2) % 3], *one = d[(s + 1) % 3], *two = d[s % 3];
    if (t < 64 && s - t >= 0 && s - t < 64) { int r = s - t; int left = r ? one[t + 1] : t + 1, up = t ? one[t] : r + 1, diag = !r ? t : !t ? r : two[t]; now[t + 1] = min(min(left, up) + 1, diag + (x[t] != y[r])); }
    if (Sync) SYNC; }
  SYNC; return d[(126 + 2) % 3][64]; }
K ok_edit_distance ARGS { T; int r = edit<true>(in, t, b); CHECK(r >= 0 && r <= 64); if (!t) out[b] = r; }
K bad_edit_distance ARGS { T; __shared__ int d[3][130]; for (int k = 0; k < 3; k++) d[k][t] = t; if (t < 2) d[0][128 + t] = d[1][128 + t] = d[2][128 + t] = 0; SYNC;
  for (int s = 0; s < 40; s++) {
    d[(s + 2) % 3][t + 1] = min(d[(s + 1) % 3][t], d[(s + 1) % 3][t + 1]) + d[s % 3][t]; // BUG shared-race
  } out[i] = d[2][t]; }
K ok_lcs ARGS { T; __shared__ int a[128], r[2][129]; a[t] = in[t] % 3; r[0][t] = 0; r[1][t] = 0; if (!t) r[0][128] = r[1][128] = 0; SYNC; for (int k = 0; k < 32; k++) { int c = in[k + 9] % 3; int *p = r[k & 1], *q = r[~k & 1]; int best = p[t + 1]; for (int j = 0; j <= t; j++) if (a[j] == c) best = max(best, p[j] + 1); q[t + 1] = best; SYNC; } CHECK(r[0][128] >= 1 && r[0][128] <= 32); out[i] = r[0][t + 1]; }
// Factorisations in shared memory.
template <int Drop> __device__ float lu(const int *in, int t) { __shared__ float m[16][17]; int r = t >> 4, c = t & 15; for (int k = r; k < 16; k += 8) m[k][c] = (k == c ? 2000.f : 0.f) + in[k * 16 + c]; SYNC;
  for (int p = 0; p < 15; p++) { if (t > p && t < 16) m[t][p] /= m[p][p]; if (Drop != 1) SYNC; for (int k = r; k < 16; k += 8) if (k > p && c > p) m[k][c] -= m[k][p] * m[p][c]; if (Drop != 2) SYNC; }
  SYNC; float s = 0; for (int j = 0; j < 16; j++) s += m[j][t & 15]; return s; }
K ok_lu ARGS { T; float s = lu<0>(in, t); CHECK(s > 1.f); out[i] = s; }
K bad_lu ARGS { T; __shared__ float m[16][17]; int r = t >> 4, c = t & 15; for (int k = r; k < 16; k += 8) m[k][c] = (k == c ? 2000.f : 0.f) + in[k * 16 + c]; SYNC; for (int p = 0; p < 15; p++) { if (t > p && t < 16) m[t][p] /= m[p][p];
   for (int k = r; k < 16; k += 8) if (k > p && c > p) m[k][c] -= m[k][p] * m[p][c]; // BUG shared-race
   SYNC; } out[i] = m[c][r]; }
K ok_gauss_jordan ARGS { T; __shared__ double m[8][17]; if (t < 128) { int r = t >> 4, c = t & 15; m[r][c] = c < 8 ? (r == c ? 9. : 1.) : (c - 8 == r); } SYNC; for (int p = 0; p < 8; p++) { int r = t >> 4, c = t & 15; double piv = m[p][p], f = m[r][p], mine = m[r][c], top = m[p][c]; SYNC; m[r][c] = r == p ? top / piv : mine - f * (top / piv); SYNC; } double s = 0; for (int k = 0; k < 8; k++) s += m[t & 7][8 + k]; CHECK(fabs(s - 1. / 16) < 1e-9); out[i] = 1; }
K ok_cyclic_reduction ARGS { T; __shared__ float a[128], d[128]; a[t] = t ? .25f : 0; d[t] = 1; SYNC; for (int s = 1; s < 128; s *= 2) { float x = t >= s ? a[t] : 0, pd = t >= s ? d[t - s] : 0, pa = t >= s ? a[t - s] : 0; SYNC; d[t] = d[t] - x * pd; a[t] = -x * pa; SYNC; } out[i] = (int)(d[t] * 1000); CHECK(d[t] > .5f); }
K bad_cyclic_reduction ARGS { T; __shared__ float d[128]; d[t] = in[t]; SYNC; for (int s = 1; s < 128; s *= 2) { float pd = t >= s ? d[t - s] : 0; // BUG shared-race
   d[t] = d[t] + pd * .5f; SYNC; } out[i] = d[t]; }
K ok_red_black ARGS { T; __shared__ float u[130]; u[t + 1] = t; if (!t) { u[0] = 0; u[129] = 128; } SYNC; for (int s = 0; s < 8; s++) { if ((t & 1) == (s & 1)) u[t + 1] = .5f * (u[t] + u[t + 2]); SYNC; } out[i] = u[t + 1]; }
K bad_red_black ARGS { T; __shared__ float u[130]; u[t + 1] = t; if (!t) { u[0] = 0; u[129] = 128; } SYNC; for (int s = 0; s < 8; s++) {
   if ((t & 3) != 3) u[t + 1] = .5f * (u[t] + u[t + 2]); // BUG shared-race
   SYNC; } out[i] = u[t + 1]; }
// Signals.
template <int Drop> __device__ void fft(float2 *x, int t) { for (int s = 1, k = 0; s < 128; s *= 2, k++) { float2 lo, hi; int j = t & (s - 1), at = (t >> k) * 2 * s + j; float sn, cs; sincospif(-(float)j / s, &sn, &cs); if (t < 64) { lo = x[at]; hi = x[at + s]; float2 h = {hi.x * cs - hi.y * sn, hi.x * sn + hi.y * cs}; if (!Drop) __syncwarp(); x[at] = {lo.x + h.x, lo.y + h.y}; x[at + s] = {lo.x - h.x, lo.y - h.y}; } if (Drop != 1 || s != 32) SYNC; } }
K ok_fft ARGS { T; __shared__ float2 x[128]; x[t] = {t == 0 ? 1.f : 0.f, 0.f}; SYNC; fft<0>(x, t); CHECK(fabsf(x[t].x - 1.f) < 1e-4f && fabsf(x[t].y) < 1e-4f); out[i] = 1; }
K ok_convolution ARGS { T; __shared__ int s[128 + 8]; __shared__ int k[9]; int g = b * 128 + t; s[t + 4] = in[g]; if (t < 4) s[t] = g >= 4 ? in[g - 4] : 0; if (t >= 124) s[t + 8] = g + 4 < 512 ? in[g + 4] : 0; if (t < 9) k[t] = t - 4; SYNC; int sum = 0; for (int j = 0; j < 9; j++) sum += s[t + j] * k[j]; out[g] = sum; }
K bad_convolution ARGS { T; __shared__ int s[128 + 8]; int g = b * 128 + t; s[t + 4] = in[g]; if (t < 4) s[t] = g >= 4 ? in[g - 4] : 0; if (t >= 125) s[t + 8] = g + 4 < 512 ? in[g + 4] : 0; SYNC; int sum = 0; for (int j = 0; j < 9; j++) sum += s[t + j]; // BUG uninitialized
   out[g] = sum; }
K ok_goertzel ARGS { T; float c = 2 * cospif(2.f * t / 128), a = 0, q = 0; for (int j = 0; j < 64; j++) { float n = in[j] * .001f + c * a - q; q = a; a = n; } out[i] = a * a + q * q - c * a * q; }
// Coding.
K ok_crc_tables ARGS { T; __shared__ unsigned tab[256]; for (int j = t; j < 256; j += 128) { unsigned c = j; for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1; tab[j] = c; } SYNC; unsigned c = ~0u; for (const char *p = "123456789"; *p; p++) c = tab[(c ^ *p) & 255] ^ c >> 8; CHECK(~c == 0xcbf43926u); out[i] = ~c; }
K bad_crc_tables ARGS { T; __shared__ unsigned tab[256]; for (int j = t; j < 255; j += 128) { unsigned c = j; for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1; tab[j] = c; } SYNC; unsigned c = ~0u;
   for (int k = 0; k < 9; k++) c = tab[(c ^ k) & 255] ^ c >> 8; // BUG uninitialized
   out[i] = ~c; }
K ok_sha_round ARGS { T; unsigned h[8], wv[16]; for (int j = 0; j < 8; j++) h[j] = 0x6a09e667u * (j + 1); for (int j = 0; j < 16; j++) wv[j] = in[(i + j) & 511]; for (int r = 0; r < 64; r++) { unsigned x = wv[r & 15]; unsigned s1 = __funnelshift_r(h[4], h[4], 6) ^ __funnelshift_r(h[4], h[4], 11) ^ __funnelshift_r(h[4], h[4], 25), ch = (h[4] & h[5]) ^ (~h[4] & h[6]), t1 = h[7] + s1 + ch + x, s0 = __funnelshift_r(h[0], h[0], 2) ^ __funnelshift_r(h[0], h[0], 13) ^ __funnelshift_r(h[0], h[0], 22), mj = (h[0] & h[1]) ^ (h[0] & h[2]) ^ (h[1] & h[2]); for (int j = 7; j > 0; j--) h[j] = h[j - 1]; h[4] += t1; h[0] = t1 + s0 + mj; wv[r & 15] += (wv[(r + 1) & 15] >> 3) + wv[(r + 9) & 15]; } out[i] = h[0]; }
K ok_bitpack ARGS { T; __shared__ unsigned bits[44]; if (t < 44) bits[t] = 0; SYNC; unsigned v = val(i) & 0x3ff; int at = t * 10; atomicOr(&bits[at >> 5], v << (at & 31)); if ((at & 31) > 22) atomicOr(&bits[(at >> 5) + 1], v >> (32 - (at & 31))); SYNC; unsigned long long two = bits[at >> 5] | (unsigned long long)bits[(at >> 5) + 1] << 32; CHECK(((two >> (at & 31)) & 0x3ff) == v); out[i] = v; }
K bad_bitpack ARGS { T; __shared__ unsigned bits[44]; if (t < 44) bits[t] = 0; SYNC; unsigned v = val(i) & 0x3ff; int at = t * 10;
   bits[at >> 5] |= v << (at & 31); // BUG shared-race
   SYNC; out[i] = bits[t >> 2]; }
K ok_run_length ARGS { T; int v = in[i] / 100, before = __shfl_up_sync(~0u, v, 1); unsigned heads = __ballot_sync(~0u, l == 0 || v != before); int run = __popc(heads & (2u << l) - 1) - 1; int len = (run + 1 < __popc(heads) ? __fns(heads, 0, run + 2) : 32) - __fns(heads, 0, run + 1); CHECK(len >= 1 && len <= 32); out[i] = len; }
K ok_huffman_lengths ARGS { T; __shared__ int f[32], n; if (w == 0) { f[l] = in[l] + 1; if (!l) n = 32; __syncwarp(); while (n > 1) { int m = l < n ? f[l] : 0x7fffffff, at = l; for (int o = 16; o; o /= 2) { int om = __shfl_xor_sync(~0u, m, o), oa = __shfl_xor_sync(~0u, at, o); if (om < m || (om == m && oa < at)) m = om, at = oa; } int last = f[n - 1]; __syncwarp(); if (!l) { if (at != n - 1) f[at] = last; n = n - 1; f[0] = f[0] + m; } __syncwarp(); } } SYNC; out[i] = f[0]; }
// Graphs and tables.
K ok_floyd ARGS { T; __shared__ int d[11][11]; if (t < 121) d[t / 11][t % 11] = t / 11 == t % 11 ? 0 : in[t] + 1; SYNC; for (int k = 0; k < 11; k++) { int a = 0; if (t < 121) a = min(d[t / 11][t % 11], d[t / 11][k] + d[k][t % 11]); SYNC; if (t < 121) d[t / 11][t % 11] = a; SYNC; } if (t < 121) out[i] = d[t / 11][t % 11]; }
K bad_floyd ARGS { T; __shared__ int d[11][11]; if (t < 121) d[t / 11][t % 11] = t / 11 == t % 11 ? 0 : in[t] + 1; SYNC; for (int k = 0; k < 11; k++) {
   if (t < 121) d[t / 11][t % 11] = min(d[t / 11][t % 11], d[t / 11][k] + d[k][t % 11] + 1); // BUG shared-race
   SYNC; } out[i] = t; }
K ok_bloom ARGS { T; unsigned h = val(i) * 2654435761u; atomicOr(flag + (h >> 27), 1 << (h >> 22 & 31)); SYNC; CHECK(*(volatile int *)(flag + (h >> 27)) >> (h >> 22 & 31) & 1); }
K bad_bloom ARGS { T; unsigned h = val(i) * 2654435761u;
   flag[h >> 27] |= 1 << (h >> 22 & 31); // BUG global-race
}
K ok_label_propagation ARGS { T; __shared__ int lab[128], more; lab[t] = t; for (;;) { if (!t) more = 0; SYNC; int mine = lab[t], other = lab[(t * 5 + 1) & 127]; SYNC; if (other < mine) { atomicMin(&lab[t], other); atomicExch(&more, 1); } else if (mine < other) { atomicMin(&lab[(t * 5 + 1) & 127], mine); atomicExch(&more, 1); } SYNC; int go = more; SYNC; if (!go) break; } CHECK(lab[t] == 0); out[i] = lab[t]; }
K ok_frontier ARGS { T; __shared__ int q[2][128], n[2], seen[128]; seen[t] = t == 0; if (t < 2) n[t] = t == 0; if (!t) q[0][0] = 0; SYNC; for (int lev = 0;; lev++) { int c = lev & 1, cnt = n[c]; SYNC; if (!cnt) break; if (!t) n[c ^ 1] = 0; SYNC; for (int j = t; j < cnt; j += 128) for (int e = 1; e <= 2; e++) { int v = (q[c][j] * 2 + e) & 127; if (!atomicExch(&seen[v], 1)) q[c ^ 1][atomicAdd(&n[c ^ 1], 1)] = v; } SYNC; } CHECK(seen[t]); out[i] = 1; }
K ok_frontier_short ARGS { T; __shared__ int q[2][128], n[2], seen[128]; seen[t] = t == 0; if (t < 2) n[t] = t == 0; if (!t) q[0][0] = 0; SYNC; for (int lev = 0; lev < 7; lev++) { int c = lev & 1, cnt = n[c];
   if (!t) n[c ^ 1] = 0;
   SYNC; for (int j = t; j < cnt; j += 128) for (int e = 1; e <= 2; e++) { int v = (q[c][j] * 2 + e) & 127; if (!atomicExch(&seen[v], 1)) q[c ^ 1][atomicAdd(&n[c ^ 1], 1)] = v; } SYNC; } out[i] = seen[t]; }
K ok_cuckoo ARGS { T; __shared__ int tab[512]; for (int j = t; j < 512; j += 128) tab[j] = -1; SYNC; int k = t; for (int tries = 0; k >= 0 && tries < 64; tries++) { int h = tries & 1 ? (k * 37 + 11) & 255 : 256 + ((k * 91) & 255); k = atomicExch(&tab[h], k); } SYNC; CHECK(k >= 0 || tab[(t * 37 + 11) & 255] == t || tab[256 + ((t * 91) & 255)] == t || k == -1); out[i] = k; }
K ok_spmv_vector ARGS { T; int row = b * 4 + w, from = row * 20, to = from + 11 + row % 9; float s = 0; for (int j = from + l; j < to; j += 32) s += in[j] * .5f; for (int o = 16; o; o >>= 1) s += __shfl_down_sync(~0u, s, o); if (!l) out[row] = (int)s; }
K bad_spmv_vector ARGS { T; int row = b * 4 + w, from = row * 20; float s = 0; if (l < 20) { s = in[from + l] * .5f;
   for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xfffffu, s, o); // BUG shuffle-inactive
 } if (!l) out[row] = (int)s; }
K ok_topk ARGS { T; __shared__ int best[4][4]; int v = in[i]; for (int k = 0; k < 4; k++) { int m = __reduce_max_sync(~0u, v); if (!l) best[w][k] = m; unsigned who = __ballot_sync(~0u, v == m); if (l == __ffs(who) - 1) v = -1; } SYNC; if (!t) { int p[4] = {}; for (int k = 0; k < 4; k++) { int m = -1, a = 0; for (int x = 0; x < 4; x++) if (p[x] < 4 && best[x][p[x]] > m) m = best[x][p[x]], a = x; p[a]++; out[b * 4 + k] = m; } } }
K ok_merge_path ARGS { T; __shared__ int a[128], c[128]; a[t] = t * 3; c[t] = t * 2 + 1; SYNC; for (int h = 0; h < 2; h++) { int diag = t * 2 + h, lo = max(0, diag - 128), hi = min(diag, 128); while (lo < hi) { int m = (lo + hi) / 2; if (a[m] <= c[diag - 1 - m]) lo = m + 1; else hi = m; } int x = lo, y = diag - lo; out[b * 256 + diag] = x < 128 && (y >= 128 || a[x] <= c[y]) ? a[x] : c[y]; } }
K bad_merge_path ARGS { T; __shared__ int a[128], c[128]; a[t] = t * 3; c[t] = t * 2 + 1; SYNC; for (int h = 0; h < 2; h++) { int diag = t * 2 + h, lo = max(0, diag - 128), hi = min(diag, 128); while (lo < hi) { int m = (lo + hi) / 2; if (a[m] <= c[diag - 1 - m]) lo = m + 1; else hi = m; } int x = lo, y = diag - lo;
   out[b * 256 + diag] = (&c[0])[y + (y >= 127) * 4096]; // BUG out-of-bounds
   if (x > 200) out[0] = 1; } }
// Layers.
K ok_rms_norm ARGS { T; __shared__ float part[4]; float v = in[i] * .01f, s = v * v; for (int o = 16; o; o /= 2) s += __shfl_xor_sync(~0u, s, o); if (!l) part[w] = s; SYNC; float all = part[0] + part[1] + part[2] + part[3]; out[i] = (int)(v * rsqrtf(all / 128 + 1e-5f) * 1000); }
K bad_rms_norm ARGS { T; __shared__ float part[4]; for (int r = 0; r < 2; r++) { float v = in[(i + r) & 511] * .01f, s = v * v; for (int o = 16; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
   if (!l) part[w] = s; // BUG shared-race
   SYNC; float all = part[0] + part[1] + part[2] + part[3]; out[i + r * 512] = (int)(v * rsqrtf(all / 128 + 1e-5f) * 1000); } }
K ok_rope ARGS { T; float2 v = {in[2 * (i & 255)] * .01f, in[2 * (i & 255) + 1] * .01f}; float sn, cs; sincosf(b * powf(10000.f, -(t & 31) / 32.f), &sn, &cs); float2 r = {v.x * cs - v.y * sn, v.x * sn + v.y * cs}; CHECK(fabsf(r.x * r.x + r.y * r.y - v.x * v.x - v.y * v.y) < 1e-2f); out[i] = (int)(r.x * 100); }
K ok_gelu_half ARGS { T; __half2 x = __floats2half2_rn(in[i] * .001f, -in[i] * .001f); float2 f = __half22float2(x); f.x *= .5f * (1 + erff(f.x * .70710678f)); f.y *= .5f * (1 + erff(f.y * .70710678f)); __half2 y = __float22half2_rn(f); out[i] = *(int *)&y; }
K ok_int4_dequant ARGS { T; unsigned q = (unsigned)in[i] * 2654435761u; int sum = 0; for (int k = 0; k < 8; k++) { int n = (int)(q << (28 - 4 * k)) >> 28; CHECK(n >= -8 && n <= 7); sum += n * (k + 1); } out[i] = sum; }
K ok_attention_tiny ARGS { T; __shared__ float k[32][9], v[32][9]; for (int j = t; j < 256; j += 128) { k[j >> 3][j & 7] = in[j] * .001f; v[j >> 3][j & 7] = in[j + 256] * .001f; } SYNC; float q[8], o[8] = {}, m = -1e30f, s = 0; for (int d = 0; d < 8; d++) q[d] = in[(i + d * 3) & 511] * .001f; for (int j = 0; j < 32; j++) { float x = 0; for (int d = 0; d < 8; d++) x += q[d] * k[j][d]; float n = fmaxf(m, x), f = __expf(m - n), p = __expf(x - n); s = s * f + p; for (int d = 0; d < 8; d++) o[d] = o[d] * f + p * v[j][d]; m = n; } for (int d = 0; d < 8; d++) out[i * 8 + d & 4095] = (int)(o[d] / s * 1000); }
K bad_attention_tiny ARGS { T; __shared__ float k[32][9]; float s = 0; for (int r = 0; r < 2; r++) { for (int j = t; j < 256; j += 128) k[j >> 3][j & 7] = in[j + 256 * r] * .001f; // BUG shared-race
   SYNC; for (int j = 0; j < 32; j++) for (int d = 0; d < 8; d++) s += k[j][d] * in[(i + d) & 511]; } out[i] = (int)s; }
K ok_embedding_vector ARGS { T; int4 v = ((const int4 *)in)[val(i) & 1023]; int4 *o = (int4 *)out; o[i] = v; CHECK(v.x == val((val(i) & 1023) * 4)); }
K bad_embedding_vector ARGS { T;
   int4 v = *(const int4 *)(in + (val(i) & 1023)); // BUG misaligned
   out[i] = v.x + v.w; }
// Asynchronous copies and barriers.
K ok_async_stencil ARGS { T; __shared__ int s[2][160]; int acc = 0; auto load = [&](int r) { __pipeline_memcpy_async(&s[r & 1][t], in + r * 128 + t, 4); if (t < 32) __pipeline_memcpy_async(&s[r & 1][128 + t], in + r * 128 + 128 + t, 4); __pipeline_commit(); }; load(0); for (int r = 0; r < 4; r++) { if (r < 3) load(r + 1); __pipeline_wait_prior(r < 3); SYNC; acc += s[r & 1][t] + s[r & 1][t + 32]; SYNC; } out[i] = acc; }
K bad_async_stencil ARGS { T; __shared__ int s[2][160]; int acc = 0; auto load = [&](int r) { __pipeline_memcpy_async(&s[r & 1][t], in + r * 128 + t, 4); if (t < 32) __pipeline_memcpy_async(&s[r & 1][128 + t], in + r * 128 + 128 + t, 4); __pipeline_commit(); }; load(0); for (int r = 0; r < 4; r++) { if (r < 3) load(r + 1); __pipeline_wait_prior(1); SYNC;
   acc += s[r & 1][t] + s[r & 1][t + 32]; // BUG async-pending
   SYNC; } out[i] = acc; }
K ok_barrier_rounds ARGS { T; __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ int x[128]; if (!t) init(&bar, 128); SYNC; for (int r = 0; r < 5; r++) { x[t] = i + r; bar.arrive_and_wait(); int y = x[t ^ 33]; bar.arrive_and_wait(); CHECK(y == (i ^ 33) + r); } }
K bad_double_arrive ARGS { T; __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ int x[128]; if (!t) init(&bar, 128); SYNC; x[t] = i; if (t == 5) (void)bar.arrive();
   bar.arrive_and_wait(); out[i] = x[t ^ 33]; // BUG shared-race mbarrier
}
K ok_mbarrier_ring ARGS { T; __shared__ uint64_t full[2], empty[2]; __shared__ int data[2][32]; if (!t) { for (int k = 0; k < 2; k++) { px::mbarrier_init(&full[k], 32); px::mbarrier_init(&empty[k], 96); } } SYNC; for (int r = 0; r < 6; r++) { int k = r & 1, ph = r >> 1 & 1; if (w == 0) { while (!px::mbarrier_try_wait_parity(&empty[k], ph ^ 1)) {} data[k][l] = r * 32 + l; px::mbarrier_arrive(&full[k]); } else { while (!px::mbarrier_try_wait_parity(&full[k], ph)) {} CHECK(data[k][31 - l] == r * 32 + 31 - l); px::mbarrier_arrive(&empty[k]); } } }
K bad_mbarrier_ring ARGS { T; __shared__ uint64_t full[2], empty[2]; __shared__ int data[2][32]; if (!t) { for (int k = 0; k < 2; k++) { px::mbarrier_init(&full[k], 32); px::mbarrier_init(&empty[k], 96); } } SYNC; int s = 0; for (int r = 0; r < 6; r++) { int k = r & 1, ph = r >> 1 & 1; if (w == 0) { while (!px::mbarrier_try_wait_parity(&empty[k], ph)) {} // BUG deadlock
   data[k][l] = r * 32 + l; px::mbarrier_arrive(&full[k]); } else { while (!px::mbarrier_try_wait_parity(&full[k], ph)) {} s += data[k][31 - l]; px::mbarrier_arrive(&empty[k]); } } out[i] = s; }
CK ok_cluster_transpose ARGS { T; __shared__ int tile[128]; auto c = cg::this_cluster(); tile[t] = i; c.sync(); int *o = c.map_shared_rank(tile, c.block_rank() ^ 1); CHECK(o[t] == ((b ^ 1) * 128 + t)); c.sync(); }
CK bad_cluster_leaves ARGS { T; __shared__ int tile[128]; auto c = cg::this_cluster(); tile[t] = i; c.sync(); int *o = c.map_shared_rank(tile, c.block_rank() ^ 1);
   out[i] = o[t]; // BUG use-after-free out-of-bounds cluster shared-race
}
K ok_last_block_scan ARGS { T; __shared__ int last; int s = __reduce_add_sync(~0u, in[i]); if (!l) atomicAdd(flag + 16 + b, s); __threadfence(); SYNC; if (!t) last = atomicAdd(flag, 1) == 3; SYNC; if (last) { __threadfence(); if (!t) { int run = 0; for (int k = 0; k < 4; k++) { run += ((volatile int *)flag)[16 + k]; flag[k + 8] = run; } } } }
K ok_welford ARGS { T; float n = 1, m = in[i], q = 0; for (int o = 1; o < 32; o *= 2) { float on = __shfl_xor_sync(~0u, n, o), om = __shfl_xor_sync(~0u, m, o), oq = __shfl_xor_sync(~0u, q, o), d = om - m, s = n + on; m += d * on / s; q += oq + d * d * n * on / s; n = s; } CHECK(n == 32 && q >= 0); out[i] = (int)(q / n); }
K ok_sort_network_regs ARGS { T; int r[8]; for (int k = 0; k < 8; k++) r[k] = in[(i + k * 17) & 511]; for (int p = 0; p < 8; p++) for (int k = p & 1; k < 7; k += 2) if (r[k] > r[k + 1]) { int x = r[k]; r[k] = r[k + 1]; r[k + 1] = x; } for (int k = 0; k < 7; k++) CHECK(r[k] <= r[k + 1]); out[i] = r[3]; }
K bad_warp_stage ARGS { T; __shared__ int s[4][32]; s[w][l] = in[i]; int v = s[w][31 - l]; // BUG shared-race
   out[i] = v; }
K bad_negative_shift ARGS { T; __shared__ int s[128]; s[t] = t; SYNC; int d = in[i] % 3;
   out[i] = s[t - d]; // BUG out-of-bounds
}
K bad_partial_mask ARGS { T; int v = in[i]; unsigned m = __ballot_sync(~0u, v > 500); if (v > 500) v = __shfl_sync(m, v, 0) + // BUG shuffle-inactive
   1; out[i] = v; }
K ok_partial_leader ARGS { T; int v = in[i]; unsigned m = __ballot_sync(~0u, v > 500); if (v > 500) v = __shfl_sync(m, v, __ffs(m) - 1); out[i] = v; }
// All threads wait together, which is what Triton makes of every loop around an atomic operation.
__device__ bool together(int *f, int want) { __shared__ int got; SYNC; if (!threadIdx.x) got = atomicAdd(f, 0); SYNC; return got >= want; }
K ok_poll_together ARGS { T; if (b) while (!together(flag + b - 1, 1)) {} out[i] = b; SYNC; if (!t) { __threadfence(); atomicExch(flag + b, 1); } }
K ok_count_together ARGS { T; __shared__ int go; int n = 0; if (!t) go = 1; SYNC; for (;;) { SYNC; if (!go) break; SYNC; n++; if (t == 64 && n == 3000) go = 0; } CHECK(n == 3000); }
K bad_poll_together ARGS { T; __shared__ int got;
  for (;;) { SYNC; if (!t) got = atomicAdd(flag + b + 1, 0); SYNC; if (got) break; } // BUG deadlock
  if (!t) atomicExch(flag + b, 1); }
#endif
