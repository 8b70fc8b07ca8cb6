// Like sync.cu: chains of flags from one warp to another of its CTA through other CTAs, locks as objects, wmma of every type, pipelines.
// Lines of right kernels are left out of the PTX. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 chains.cu
#include <cub/block/block_load.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_reduce.cuh>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
namespace cg = cooperative_groups;
namespace wm = nvcuda::wmma;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x_) do { if (!(x_)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }

// What one warp wrote comes to another of its CTA through a third.
K ok_through_another ARGS { T; volatile int *f = flag; if (b == 0 && t == 0) { out[5] = 7; __threadfence(); f[0] = 1; } if (b == 1 && t == 0) { while (!f[0]) {} __threadfence(); f[1] = 1; } if (b == 0 && t == 32) { while (!f[1]) {} __threadfence(); CHECK(out[5] == 7); } }
K ok_through_another_ref ARGS { T; cuda::atomic_ref<int, cuda::thread_scope_device> f(flag[0]), g(flag[1]); if (b == 0 && t == 0) { out[5] = 7; f.store(1, cuda::memory_order_release); } if (b == 1 && t == 0) { while (!f.load(cuda::memory_order_acquire)) {} g.store(1, cuda::memory_order_release); } if (b == 0 && t == 32) { while (!g.load(cuda::memory_order_acquire)) {} CHECK(out[5] == 7); } }
K bad_through_another ARGS { T; volatile int *f = flag; if (b == 0 && t == 0) { out[5] = 7; __threadfence(); f[0] = 1; } if (b == 1 && t == 0) { while (!f[0]) {} f[1] = 1; } if (b == 0 && t == 32) { while (!f[1]) {} __threadfence();
  out[6] = out[5]; // BUG global-race
} }
K ok_two_way ARGS { T; volatile int *f = flag; if (b < 2) for (int r = 1; r < 5; r++) { if (w == b * 2 + (r & 1)) { if (l == 0) { if (b == 0) { out[r] = r; if (r > 1) { while (f[1] < r - 1) {} __threadfence(); CHECK(out[16 + r - 1] == r - 1 && out[r - 1] == r - 1); } __threadfence(); f[0] = r; } else { while (f[0] < r) {} __threadfence(); CHECK(out[r] == r); out[16 + r] = r; __threadfence(); f[1] = r; } } } } }
K ok_token_plain ARGS { T; int n = gridDim.x; for (int r = 0; r < 6; r++) { if (!t) { int want = b == 0 ? r : r + 1; while (((volatile int *)flag)[b] < want) __nanosleep(10); __threadfence(); } SYNC; if (t == r * 20) out[t] = 100 * r + b; SYNC; if (t == 127 - r) { CHECK(out[r * 20] == 100 * r + b); } SYNC; if (!t) { __threadfence(); ((volatile int *)flag)[(b + 1) % n] = r + 1; } } }
struct Bar { cuda::atomic<int, cuda::thread_scope_device> count, phase; __device__ void wait(int n) { int p = phase.load(cuda::memory_order_relaxed); if (count.fetch_add(1, cuda::memory_order_acq_rel) == n - 1) { count.store(0, cuda::memory_order_relaxed); phase.fetch_add(1, cuda::memory_order_release); } else while (phase.load(cuda::memory_order_acquire) == p) __nanosleep(8); } };
K ok_sense_atomic ARGS { T; Bar *q = (Bar *)flag; for (int r = 0; r < 4; r++) { out[i] = r * 1000 + i; SYNC; if (!t) q->wait(4); SYNC; CHECK(out[(i + 128) & 511] == r * 1000 + ((i + 128) & 511)); SYNC; if (!t) q->wait(4); SYNC; } }
K ok_sense_wait_notify ARGS { T; cuda::atomic_ref<int, cuda::thread_scope_device> a(flag[0]); if (b == 0) { out[t] = t; SYNC; if (!t) { a.store(1, cuda::memory_order_release); a.notify_all(); } } else { if (!t) a.wait(0, cuda::memory_order_acquire); SYNC; CHECK(out[t] == t); } }
// Locks as objects. The holder reads its own place plainly before it writes the next.
struct Ticket { unsigned next, serving; __device__ void lock() { unsigned my = atomicAdd(&next, 1); unsigned ns = 8; while (*(volatile unsigned *)&serving != my) { __nanosleep(ns); if (ns < 256) ns *= 2; } __threadfence(); } __device__ void unlock() { __threadfence(); *(volatile unsigned *)&serving = serving + 1; } };
K ok_ticket_object ARGS { T; Ticket *k = (Ticket *)flag; if (l == 0) { k->lock(); flag[4] += 1; k->unlock(); } cg::this_grid().sync(); CHECK(flag[4] == 16); }
K ok_ticket_object_shared ARGS { T; __shared__ Ticket k; __shared__ int n; if (!t) { k.next = k.serving = 0; n = 0; } SYNC; if (l == 0) { k.lock(); n += 1; k.unlock(); } SYNC; CHECK(n == 4); }
K bad_ticket_object ARGS { T; Ticket *k = (Ticket *)flag; if (l == 0) { if (b < 3) k->lock(); flag[4] += 1; // BUG global-race
  k->unlock();
} }
K bad_serving_plain ARGS { T; Ticket *k = (Ticket *)flag; if (l == 0) { unsigned my = atomicAdd(&k->next, 1); while (*(volatile unsigned *)&k->serving != my) {} __threadfence(); flag[4] += 1; __threadfence();
  k->serving = k->serving + 1; // BUG global-race
} }
struct Lock { int *m; __device__ void lock() { while (atomicCAS(m, 0, 1) != 0) ; __threadfence(); } __device__ void unlock() { __threadfence(); *(volatile int *)m = 0; } };
K ok_lock_class ARGS { T; Lock k{flag}; for (int j = 0; j < 32; j++) if (l == j) { k.lock(); flag[1] = flag[1] + 1; k.unlock(); } cg::this_grid().sync(); CHECK(flag[1] == 512); }
K bad_lock_class ARGS { T; Lock k{flag}; if (l == 0) { k.lock(); k.unlock();
   flag[1] = flag[1] + 1; // BUG global-race
 } }
struct Cell { unsigned seq; int data; };
K ok_vyukov ARGS { T; __shared__ Cell c[8]; __shared__ unsigned enq, deq; __shared__ int total; if (t < 8) c[t].seq = t; if (!t) enq = deq = total = 0; SYNC; if (l == 0) { if (w < 2) { for (int k = 0; k < 10; k++) { unsigned pos = *(volatile unsigned *)&enq; for (;;) { Cell *x = &c[pos & 7]; unsigned s = *(volatile unsigned *)&x->seq; __threadfence_block(); int d = (int)s - (int)pos; if (d == 0) { if (atomicCAS(&enq, pos, pos + 1) == pos) { x->data = k + 1; __threadfence_block(); *(volatile unsigned *)&x->seq = pos + 1; break; } pos = *(volatile unsigned *)&enq; } else pos = *(volatile unsigned *)&enq; } } } else { for (int k = 0; k < 10; k++) { unsigned pos = *(volatile unsigned *)&deq; for (;;) { Cell *x = &c[pos & 7]; unsigned s = *(volatile unsigned *)&x->seq; __threadfence_block(); int d = (int)s - (int)(pos + 1); if (d == 0) { if (atomicCAS(&deq, pos, pos + 1) == pos) { int v = x->data; __threadfence_block(); *(volatile unsigned *)&x->seq = pos + 8; atomicAdd(&total, v); break; } pos = *(volatile unsigned *)&deq; } else pos = *(volatile unsigned *)&deq; } } } } SYNC; CHECK(total == 110); }
K bad_vyukov ARGS { T; __shared__ Cell c[8]; __shared__ unsigned enq, deq; __shared__ int total; if (t < 8) c[t].seq = t; if (!t) enq = deq = total = 0; SYNC; if (l == 0) { if (w < 2) { for (int k = 0; k < 10; k++) { unsigned pos = *(volatile unsigned *)&enq; for (;;) { Cell *x = &c[pos & 7]; unsigned s = *(volatile unsigned *)&x->seq; __threadfence_block(); int d = (int)s - (int)pos; if (d == 0) { if (atomicCAS(&enq, pos, pos + 1) == pos) { *(volatile unsigned *)&x->seq = pos + 1;
   x->data = k + 1; // BUG shared-race uninitialized
   break; } pos = *(volatile unsigned *)&enq; } else pos = *(volatile unsigned *)&enq; } } } else { for (int k = 0; k < 10; k++) { unsigned pos = *(volatile unsigned *)&deq; for (;;) { Cell *x = &c[pos & 7]; unsigned s = *(volatile unsigned *)&x->seq; __threadfence_block(); int d = (int)s - (int)(pos + 1); if (d == 0) { if (atomicCAS(&deq, pos, pos + 1) == pos) { int v = x->data; __threadfence_block(); *(volatile unsigned *)&x->seq = pos + 8; atomicAdd(&total, v); break; } pos = *(volatile unsigned *)&deq; } else pos = *(volatile unsigned *)&deq; } } } } SYNC; out[i] = total; }
// wmma.
template <class A, class Acc, int M, int N, int KK> __device__ void wmma_ints(int t) {
  __shared__ alignas(32) A a[M * KK], bm[KK * N]; __shared__ alignas(32) Acc c[M * N];
  for (int k = t; k < M * KK; k += 32) a[k] = (A)(k * 5 % 11 - (A(-1) < A(0) ? 5 : 0)); for (int k = t; k < KK * N; k += 32) bm[k] = (A)(k * 3 % 7);
  __syncwarp();
  wm::fragment<wm::matrix_a, M, N, KK, A, wm::row_major> fa; wm::fragment<wm::matrix_b, M, N, KK, A, wm::col_major> fb; wm::fragment<wm::accumulator, M, N, KK, Acc> fc;
  wm::load_matrix_sync(fa, a, KK); wm::load_matrix_sync(fb, bm, KK); wm::fill_fragment(fc, Acc(1)); wm::mma_sync(fc, fa, fb, fc); for (int k = 0; k < fc.num_elements; k++) fc.x[k] *= Acc(2);
  wm::store_matrix_sync(c, fc, N, wm::mem_row_major); __syncwarp();
  for (int k = t; k < M * N; k += 32) { Acc e = 1; for (int j = 0; j < KK; j++) e += Acc(a[k / N * KK + j]) * Acc(bm[k % N * KK + j]); CHECK(c[k] == e * Acc(2)); }
}
K ok_wmma_s8 ARGS { T; if (w == 0) wmma_ints<signed char, int, 16, 16, 16>(l); }
K ok_wmma_u8_wide ARGS { T; if (w == 1) wmma_ints<unsigned char, int, 32, 8, 16>(l); }
K ok_wmma_u8_tall ARGS { T; if (w == 1) wmma_ints<unsigned char, int, 8, 32, 16>(l); }
K ok_wmma_f64 ARGS { T; if (w == 2) wmma_ints<double, double, 8, 8, 4>(l); }
K ok_wmma_bf16 ARGS { T; if (w == 3) { __shared__ alignas(32) __nv_bfloat16 a[256], bb[256]; __shared__ alignas(32) float c[256]; for (int k = l; k < 256; k += 32) a[k] = __float2bfloat16(k % 9), bb[k] = __float2bfloat16(k % 5); __syncwarp();
  wm::fragment<wm::matrix_a, 16, 16, 16, __nv_bfloat16, wm::col_major> fa; wm::fragment<wm::matrix_b, 16, 16, 16, __nv_bfloat16, wm::row_major> fb; wm::fragment<wm::accumulator, 16, 16, 16, float> fc; wm::fill_fragment(fc, 0.f); wm::load_matrix_sync(fa, a, 16); wm::load_matrix_sync(fb, bb, 16); wm::mma_sync(fc, fa, fb, fc); wm::store_matrix_sync(c, fc, 16, wm::mem_col_major); __syncwarp();
  for (int k = l; k < 256; k += 32) { float e = 0; for (int j = 0; j < 16; j++) e += (float)((j * 16 + k / 16) % 9) * ((j * 16 + k % 16) % 5); CHECK(c[k % 16 * 16 + k / 16] == e); } } }
K ok_wmma_tf32 ARGS { T; if (w == 0) { __shared__ alignas(32) float a[128], bb[128], c[256]; for (int k = l; k < 128; k += 32) a[k] = k % 9, bb[k] = k % 5 + 0.5f; __syncwarp();
  wm::fragment<wm::matrix_a, 16, 16, 8, wm::precision::tf32, wm::row_major> fa; wm::fragment<wm::matrix_b, 16, 16, 8, wm::precision::tf32, wm::row_major> fb; wm::fragment<wm::accumulator, 16, 16, 8, float> fc; wm::fill_fragment(fc, 0.f); wm::load_matrix_sync(fa, a, 8); wm::load_matrix_sync(fb, bb, 16);
  for (int k = 0; k < fa.num_elements; k++) fa.x[k] = wm::__float_to_tf32(fa.x[k]); for (int k = 0; k < fb.num_elements; k++) fb.x[k] = wm::__float_to_tf32(fb.x[k]);
  wm::mma_sync(fc, fa, fb, fc); wm::store_matrix_sync(c, fc, 16, wm::mem_row_major); __syncwarp();
  for (int k = l; k < 256; k += 32) { float e = 0; for (int j = 0; j < 8; j++) e += (float)((k / 16 * 8 + j) % 9) * ((j * 16 + k % 16) % 5 + 0.5f); CHECK(c[k] == e); } } }
K ok_wmma_s4 ARGS { T; if (w == 0) { namespace ex = wm::experimental; __shared__ alignas(32) int a[32], bb[32], c[64]; a[l] = 0x12345670 + l; bb[l] = 0x71625340 ^ (l * 0x11111111); __syncwarp();
  wm::fragment<wm::matrix_a, 8, 8, 32, ex::precision::s4, wm::row_major> fa; wm::fragment<wm::matrix_b, 8, 8, 32, ex::precision::s4, wm::col_major> fb; wm::fragment<wm::accumulator, 8, 8, 32, int> fc; wm::fill_fragment(fc, 0); wm::load_matrix_sync(fa, a, 32); wm::load_matrix_sync(fb, bb, 32); wm::mma_sync(fc, fa, fb, fc); wm::store_matrix_sync(c, fc, 8, wm::mem_row_major); __syncwarp();
  for (int k = l; k < 64; k += 32) { int e = 0; for (int j = 0; j < 32; j++) { int x = (a[k / 8 * 4 + j / 8] << (28 - j % 8 * 4)) >> 28, y = (bb[k % 8 * 4 + j / 8] << (28 - j % 8 * 4)) >> 28; e += x * y; } CHECK(c[k] == e); } } }
K ok_wmma_b1 ARGS { T; if (w == 0) { namespace ex = wm::experimental; __shared__ alignas(32) unsigned a[32], bb[32]; __shared__ alignas(32) int c[64]; a[l] = 0x12345670 * (l + 3); bb[l] = 0x71625340 ^ (l * 0x11111111); __syncwarp();
  wm::fragment<wm::matrix_a, 8, 8, 128, ex::precision::b1, wm::row_major> fa; wm::fragment<wm::matrix_b, 8, 8, 128, ex::precision::b1, wm::col_major> fb; wm::fragment<wm::accumulator, 8, 8, 128, int> fc; wm::fill_fragment(fc, 0); wm::load_matrix_sync(fa, a, 128); wm::load_matrix_sync(fb, bb, 128); wm::bmma_sync(fc, fa, fb, fc, ex::bmmaBitOpAND); wm::store_matrix_sync(c, fc, 8, wm::mem_row_major); __syncwarp();
  for (int k = l; k < 64; k += 32) { int e = 0; for (int j = 0; j < 4; j++) e += __popc(a[k / 8 * 4 + j] & bb[k % 8 * 4 + j]); CHECK(c[k] == e); } } }
K ok_wmma_half_acc ARGS { T; __shared__ alignas(32) half a[256], bb[256], c[4][256]; for (int k = t; k < 256; k += 128) a[k] = __float2half(k % 7), bb[k] = __float2half(k % 3); SYNC;
  wm::fragment<wm::matrix_a, 16, 16, 16, half, wm::row_major> fa; wm::fragment<wm::matrix_b, 16, 16, 16, half, wm::row_major> fb; wm::fragment<wm::accumulator, 16, 16, 16, half> fc; wm::fill_fragment(fc, __float2half(0)); wm::load_matrix_sync(fa, a, 16); wm::load_matrix_sync(fb, bb, 16); wm::mma_sync(fc, fa, fb, fc); wm::store_matrix_sync(c[w], fc, 16, wm::mem_row_major); SYNC;
  for (int k = l; k < 256; k += 32) { float e = 0; for (int j = 0; j < 16; j++) e += (float)((k / 16 * 16 + j) % 7) * ((j * 16 + k % 16) % 3); CHECK(__half2float(c[(w + 1) & 3][k]) == e); } }
K bad_wmma_uninit ARGS { T; __shared__ alignas(32) half a[256]; __shared__ alignas(32) float c[256]; if (t < 64) a[t] = __float2half(t % 7); SYNC; if (w) return;
  wm::fragment<wm::matrix_a, 16, 16, 16, half, wm::row_major> fa; wm::fragment<wm::matrix_b, 16, 16, 16, half, wm::row_major> fb; wm::fragment<wm::accumulator, 16, 16, 16, float> fc; wm::fill_fragment(fc, 0.f);
  wm::load_matrix_sync(fb, a, 16); wm::load_matrix_sync(fa, a, 16); // BUG uninitialized
  wm::mma_sync(fc, fa, fb, fc);
  wm::store_matrix_sync(c, fc, 16, wm::mem_row_major); __syncwarp(); out[t] = c[t]; }
K bad_wmma_nosync ARGS { T; __shared__ alignas(32) half a[256]; __shared__ alignas(32) float c[256]; for (int k = t; k < 256; k += 128) a[k] = __float2half(k % 7); SYNC;
  wm::fragment<wm::matrix_a, 16, 16, 16, half, wm::row_major> fa; wm::fragment<wm::matrix_b, 16, 16, 16, half, wm::row_major> fb; wm::fragment<wm::accumulator, 16, 16, 16, float> fc; wm::fill_fragment(fc, 0.f);
  wm::load_matrix_sync(fa, a, 16); wm::load_matrix_sync(fb, a, 16); wm::mma_sync(fc, fa, fb, fc);
  if (w == 0) wm::store_matrix_sync(c, fc, 16, wm::mem_row_major);
  out[i] = c[t]; // BUG shared-race
}
K bad_wmma_late_load ARGS { T; __shared__ alignas(32) half a[256]; __shared__ alignas(32) float c[4][256]; for (int k = t; k < 256; k += 128) a[k] = __float2half(k % 7);
  wm::fragment<wm::matrix_a, 16, 16, 16, half, wm::row_major> fa; wm::fragment<wm::matrix_b, 16, 16, 16, half, wm::row_major> fb; wm::fragment<wm::accumulator, 16, 16, 16, float> fc; wm::fill_fragment(fc, 0.f);
  wm::load_matrix_sync(fa, a, 16); // BUG shared-race
  SYNC; wm::load_matrix_sync(fb, a, 16); wm::mma_sync(fc, fa, fb, fc);
  wm::store_matrix_sync(c[w], fc, 16, wm::mem_row_major); SYNC; out[i] = c[0][t]; }
// Pipelines, a barrier of a device, sorting, one storage for two collectives.
K bad_pipe_norelease ARGS { T; constexpr int S = 2; __shared__ int buf[S][128]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, S> st; auto g = cg::this_thread_block(); auto p = cuda::make_pipeline(g, &st); int f = 0, sum = 0;
  for (int k = 0; k < 8; k++) { for (; f < 8 && f < k + S; f++) { p.producer_acquire(); // BUG deadlock
     cuda::memcpy_async(g, buf[f % S], in + f * 128, cuda::aligned_size_t<16>(512), p); p.producer_commit(); } p.consumer_wait(); sum += buf[k % S][127 - t]; }
  out[i] = sum; }
K bad_pipe_nowait ARGS { T; constexpr int S = 2; __shared__ int buf[S][128]; __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, S> st; auto g = cg::this_thread_block(); auto p = cuda::make_pipeline(g, &st);
  p.producer_acquire(); cuda::memcpy_async(g, buf[0], in, cuda::aligned_size_t<16>(512), p); p.producer_commit();
  out[i] = buf[0][127 - t]; // BUG async-pending shared-race
  p.consumer_wait(); p.consumer_release(); }
K ok_barrier_device ARGS { T; auto *bar = (cuda::barrier<cuda::thread_scope_device> *)(flag + 16); if (i == 0) { new (bar) cuda::barrier<cuda::thread_scope_device>(4); __threadfence(); atomicExch(flag, 1); } if (!t) { while (!atomicAdd(flag, 0)) __nanosleep(20); __threadfence(); out[b] = b + 7; bar->arrive_and_wait(); CHECK(out[(b + 1) & 3] == ((b + 1) & 3) + 7); } }
K bad_memcpy_barrier_unwaited ARGS { T; __shared__ alignas(16) int s[128]; __shared__ cuda::barrier<cuda::thread_scope_block> bar; if (!t) init(&bar, 128); SYNC; cuda::memcpy_async(s + t, in + i, sizeof(int), bar); auto tok = bar.arrive();
  out[i] = s[t ^ 64]; // BUG async-pending shared-race
  bar.wait(std::move(tok)); }
K ok_stencil_db ARGS { T; __shared__ int s[2][130]; auto load = [&](int k) { const int *p = in + k * 128; __pipeline_memcpy_async(&s[k & 1][t + 1], p + t, 4); if (t == 0) { if (k) __pipeline_memcpy_async(&s[k & 1][0], p - 1, 4); else s[0][0] = 0; } if (t == 127) __pipeline_memcpy_async(&s[k & 1][129], p + 128, 4); __pipeline_commit(); }; load(0); for (int k = 0; k < 6; k++) { if (k < 5) load(k + 1); else __pipeline_commit(); __pipeline_wait_prior(1); SYNC; int v = s[k & 1][t] + s[k & 1][t + 1] + s[k & 1][t + 2]; int g = k * 128 + t; CHECK(v == (g ? val(g - 1) : 0) + val(g) + val(g + 1)); SYNC; } }
K ok_gemm_reg ARGS { T; __shared__ alignas(16) float A[8][64], B[8][64]; float acc[8][4] = {}; int tx = t % 16, ty = t / 16; for (int k0 = 0; k0 < 16; k0 += 8) { { int r = t / 16, c = t % 16 * 4; float4 v = make_float4(in[(k0 + r) * 64 + c], in[(k0 + r) * 64 + c + 1], in[(k0 + r) * 64 + c + 2], in[(k0 + r) * 64 + c + 3]); *(float4 *)&A[r][c] = v; *(float4 *)&B[r][c] = v; } SYNC; for (int k = 0; k < 8; k++) { float a[8], bb[4]; *(float4 *)a = *(float4 *)&A[k][ty * 8]; *(float4 *)(a + 4) = *(float4 *)&A[k][ty * 8 + 4]; *(float4 *)bb = *(float4 *)&B[k][tx * 4]; for (int x = 0; x < 8; x++) for (int y = 0; y < 4; y++) acc[x][y] += a[x] * bb[y]; } SYNC; } float e = 0; for (int k = 0; k < 16; k++) e += (float)val(k * 64 + ty * 8 + 3) * val(k * 64 + tx * 4 + 2); CHECK(acc[3][2] == e); }
K bad_gemm_reg ARGS { T; __shared__ alignas(16) float A[8][64]; float acc = 0; int tx = t % 16, ty = t / 16; for (int k0 = 0; k0 < 32; k0 += 8) { { int r = t / 16, c = t % 16 * 4; float4 v = make_float4(in[(k0 + r) * 64 + c], in[c], in[r], in[k0]);
  *(float4 *)&A[r][c] = v; // BUG shared-race
  } SYNC; for (int k = 0; k < 8; k++) { float4 a = *(float4 *)&A[k][ty * 8]; acc += a.x * A[k][tx]; } } out[i] = acc; }
K ok_packed_scan ARGS { T; __shared__ int sh[4], pre; volatile unsigned long long *st = (volatile unsigned long long *)flag + 4; __shared__ int tile; if (!t) tile = atomicAdd(flag, 1); SYNC; int at = tile, x = in[at * 128 + t], y = x; for (int d = 1; d < 32; d *= 2) { int z = __shfl_up_sync(~0u, y, d); if (l >= d) y += z; } if (l == 31) sh[w] = y; SYNC; for (int k = 0; k < w; k++) y += sh[k]; if (t == 127) { st[at] = ((unsigned long long)(at ? 1 : 2) << 32) | (unsigned)y; } if (t == 0) { int acc = 0; for (int p = at - 1; p >= 0; ) { unsigned long long v = st[p]; unsigned f = v >> 32; if (!f) continue; acc += (int)v; if (f == 2) break; p--; } pre = acc; } SYNC; if (t == 127 && at) st[at] = (2ull << 32) | (unsigned)(y + pre); int e = 0; for (int k = 0; k <= at * 128 + t; k++) e += val(k); CHECK(y + pre == e); }
K bad_grid_phases ARGS { T; auto g = cg::this_grid(); out[i] = in[i]; for (int d = 1; d < 512; d *= 2) { g.sync(); int v = out[i] + (i >= d ? out[i - d] : 0);
  out[i] = v; // BUG global-race
 } }
K ok_split_sort ARGS { T; __shared__ unsigned k[128]; __shared__ int ws[4]; k[t] = in[i]; SYNC; for (int bit = 0; bit < 10; bit++) { unsigned x = k[t]; bool one = x >> bit & 1; unsigned m = __ballot_sync(~0u, !one); int before = __popc(m & ((1u << l) - 1)); if (l == 0) ws[w] = __popc(m); SYNC; int tot = ws[0] + ws[1] + ws[2] + ws[3]; int off = 0; for (int q = 0; q < w; q++) off += ws[q]; int z = before + off; k[one ? tot + t - z : z] = x; SYNC; } if (t) CHECK(k[t - 1] <= k[t]); }
K ok_named_prodcons ARGS { T; __shared__ int s[2][64]; if (w < 2) { for (int k = 0; k < 6; k++) { if (k >= 2) asm volatile("bar.sync %0, 128;" :: "r"(3 + (k & 1)) : "memory"); s[k & 1][t] = k * 64 + t; asm volatile("bar.arrive %0, 128;" :: "r"(1 + (k & 1)) : "memory"); } } else { for (int k = 0; k < 6; k++) { asm volatile("bar.sync %0, 128;" :: "r"(1 + (k & 1)) : "memory"); CHECK(s[k & 1][127 - t] == k * 64 + 127 - t); if (k < 4) asm volatile("bar.arrive %0, 128;" :: "r"(3 + (k & 1)) : "memory"); } } }
K bad_named_prodcons ARGS { T; __shared__ int s[2][64]; int a = 0; if (w < 2) { for (int k = 0; k < 6; k++) {
  s[k & 1][t] = k * 64 + t; // BUG shared-race
  asm volatile("bar.arrive %0, 128;" :: "r"(1 + (k & 1)) : "memory"); } } else { for (int k = 0; k < 6; k++) { asm volatile("bar.sync %0, 128;" :: "r"(1 + (k & 1)) : "memory"); a += s[k & 1][127 - t]; } } out[i] = a; }
K bad_exit_then_read ARGS { T; __shared__ int s[128]; if (t >= 96) { s[t] = t; return; } s[t] = t; SYNC;
  out[i] = s[t + 16]; // BUG shared-race
}
__device__ double atomicAddD(double *a, double v) { unsigned long long *p = (unsigned long long *)a, old = *p, as; do { as = old; old = atomicCAS(p, as, __double_as_longlong(v + __longlong_as_double(as))); } while (as != old); return __longlong_as_double(old); }
K ok_add_double_shared ARGS { T; __shared__ double d; if (!t) d = 0; SYNC; atomicAddD(&d, t); SYNC; CHECK(d == 8128); }
K bad_cub_union ARGS { T; using Load = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>; using Scan = cub::BlockScan<int, 128, cub::BLOCK_SCAN_RAKING>; __shared__ union { typename Load::TempStorage l; typename Scan::TempStorage c; } tmp; int k[4]; Load(tmp.l).Load(in + 512 * b, k);
  Scan(tmp.c).ExclusiveSum(k, k); // BUG shared-race
  for (int j = 0; j < 4; j++) out[512 * b + 4 * t + j] = k[j]; }
K bad_cub_twice ARGS { T; using Reduce = cub::BlockReduce<int, 128>; __shared__ typename Reduce::TempStorage tmp; int s = Reduce(tmp).Sum(in[i]);
  int m = Reduce(tmp).Reduce(in[i] + s, cuda::maximum<>{}); // BUG shared-race
  if (!t) out[b] = s + m; }
// A counter that is used before the barrier after its first value: whoever wrote it has counted too, which hides nothing.
K bad_init_hidden ARGS { T; __shared__ int n; if (!t) n = 0; // BUG shared-race
  atomicAdd(&n, 1); SYNC; out[i] = n; }
K ok_init_then_count ARGS { T; __shared__ int n; if (!t) n = 0; SYNC; atomicAdd(&n, 1); SYNC; CHECK(n == 128); SYNC; if (!t) n = 5; SYNC; atomicAdd(&n, 1); SYNC; CHECK(n == 133); }
CK bad_cluster_init ARGS { T; auto c = cg::this_cluster(); __shared__ int n; if (!t) n = 0; SYNC; atomicAdd(c.map_shared_rank(&n, 0), 1); c.sync(); if (!t) out[b] = n; } // BUG shared-race uninitialized
CK ok_cluster_init ARGS { T; auto c = cg::this_cluster(); __shared__ int n; if (!t) n = 0; c.sync(); atomicAdd(c.map_shared_rank(&n, 0), 1); c.sync(); if (!t && c.block_rank() == 0) CHECK(n == 256); }
// The last of all lanes resets the counter, also where others of its own warp have counted with it.
K ok_flag_shared_reset ARGS { T; __shared__ int f, d; if (!t) { f = 0; } SYNC; for (int r = 1; r < 5; r++) { if (t == 0) { d = r; __threadfence_block(); atomicExch(&f, r); } if (t == 64) { while (atomicAdd(&f, 0) != r) {} __threadfence_block(); CHECK(d == r); } SYNC; } if (t == 3) f = 9; SYNC; CHECK(atomicAdd(&f, 0) == 9); }
K ok_leader_resets ARGS { T; __shared__ int c; __shared__ bool last; if (!t) c = 0; SYNC; for (int r = 0; r < 3; r++) { __threadfence_block(); int o = atomicAdd(&c, 1); if (o == 127) { c = 0; __threadfence_block(); } SYNC; } CHECK(c == 0); }
