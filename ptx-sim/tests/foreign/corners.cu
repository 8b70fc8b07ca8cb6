// Like sync.cu: what an audit of other programs found: look-back whose last tile is short, two-word compare-and-swaps that begin
// with plain reads, cuda::memcpy_async in bulk, locks that wait by the clock.
// Lines of right kernels are left out of the PTX. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 corners.cu, of nvcc 13.5
#include <cub/cub.cuh>
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/semaphore>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }

// The sum of a short last tile adds registers that nobody set, and goes with its status to the next tile, which there is not.
__device__ char temp[4096]; __device__ int keys[4096], sums[4096], runs[1];
struct Hundreds { __device__ bool operator()(int a, int b) const { return a / 100 == b / 100; } };
K ok_reduce_by_key_short ARGS { constexpr int N = 1900; using P = cub::detail::agent_reduce_by_key_policy<128, 4, cub::BLOCK_LOAD_DIRECT, cub::LOAD_DEFAULT, cub::BLOCK_SCAN_WARP_SCANS>; using S = cub::ReduceByKeyScanTileState<int, int>; using A = cub::detail::reduce_by_key::AgentReduceByKey<P, const int *, int *, const int *, int *, int *, Hundreds, cuda::std::plus<>, int, int, cub::NullType>;
  __shared__ typename A::TempStorage m; S s; s.Init(4, temp, sizeof temp); s.InitializeStatus(4); cg::this_grid().sync(); A(m, in, keys, in, sums, runs, Hundreds{}, cuda::std::plus<>{}, cub::NullType{}).ConsumeRange(N, s, 0); cg::this_grid().sync();
  if (blockIdx.x + threadIdx.x == 0) { int k = 0, sum = 0; for (int i = 0; i < N; i++) { sum += val(i); if (i == N - 1 || val(i) / 100 != val(i + 1) / 100) { CHECK(keys[k] / 100 == val(i) / 100 && sums[k] == sum); k++; sum = 0; } } CHECK(runs[0] == k); } }
// The same message where somebody does read it.
__device__ void send(unsigned long long *to, int sum, int status) { asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" :: "l"(to), "r"(sum), "r"(status) : "memory"); }
#define RECEIVE(v, from) do asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory"); while (!v.y)
K bad_message_unset ARGS { T; int v[2]; if (b) v[0] = in[i]; v[1] = in[i + 1];
  if (!t) { if (b < 3) send((unsigned long long *)flag + b, v[0] + v[1], 1); if (b) {
    int2 v; RECEIVE(v, (unsigned long long *)flag + b - 1); // BUG uninitialized
    out[b] = v.x; } } }
K ok_message_set ARGS { T; if (!t) { if (b < 3) send((unsigned long long *)flag + b, in[i] + in[i + 1], 1); if (b) { int2 v; RECEIVE(v, (unsigned long long *)flag + b - 1); CHECK(v.x == val(i - 128) + val(i - 127)); } } }

// Whatever the plain reads give, the comparison tells: of 16 bytes in two halves, of 8 bytes in two ints (which are read again as one).
struct alignas(16) Two { unsigned long long a, b; }; __device__ Two two[8]; __device__ int2 pairs[2];
__device__ bool swap(Two *p, Two &e, Two d) { Two r = atomicCAS(p, e, d); bool same = r.a == e.a && r.b == e.b; e = r; return same; }
K ok_swap_two ARGS { Two e; e.a = two[0].a; e.b = two[0].b; while (!swap(&two[0], e, Two{e.a + 1, e.b + 2})); }
K ok_swap_two_volatile ARGS { volatile Two *p = &two[1]; Two e; e.a = p->a; e.b = p->b; while (!swap(&two[1], e, Two{e.a + 1, e.b + 2})); }
K ok_swap_two_shared ARGS { T; __shared__ Two s; if (!t) s = Two{0, 0}; SYNC; Two e = s; while (!swap(&s, e, Two{e.a + 1, e.b + 3})); SYNC; CHECK(s.a == 128 && s.b == 384); }
K ok_swap_pair ARGS { int2 e = pairs[0]; while (true) { unsigned long long was = (unsigned long long)(unsigned)e.y << 32 | (unsigned)e.x, next = (unsigned long long)(unsigned)(e.y + 2) << 32 | (unsigned)(e.x + 1), o = atomicCAS((unsigned long long *)&pairs[0], was, next); if (o == was) break; e = make_int2((int)o, (int)(o >> 32)); } }
K ok_swap_pair_packed ARGS { int2 e = pairs[1]; while (true) { unsigned long long was, next; asm("mov.b64 %0, {%1, %2};" : "=l"(was) : "r"(e.x), "r"(e.y)); asm("mov.b64 %0, {%1, %2};" : "=l"(next) : "r"(e.x + 1), "r"(e.y + 2)); unsigned long long o = atomicCAS((unsigned long long *)&pairs[1], was, next); if (o == was) break; e = make_int2((int)o, (int)(o >> 32)); } }
K bad_swap_two_read ARGS { T; Two e{0, 0}; while (!swap(&two[2], e, Two{e.a + 1, e.b + 2}));
  out[i] = (int)two[2].a; // BUG global-race
}
K bad_swap_two_write ARGS { T; Two e{0, 0};
  if (i == 5) two[3].b = 9; // BUG global-race
  while (!swap(&two[3], e, Two{e.a + 1, e.b})); }

// The library copies in bulk where sizes are known to be multiples of 16; the programming guide has no fence around it.
using Barrier = cuda::barrier<cuda::thread_scope_block>;
K ok_memcpy_async_bulk ARGS { T; __shared__ alignas(16) int s[512]; __shared__ Barrier bar; for (int j = t; j < 512; j += 128) s[j] = -1; if (!t) init(&bar, 128); SYNC; auto g = cg::this_thread_block(); for (int k = 0; k < 3; k++) { cuda::memcpy_async(g, s, in + 512 * k, cuda::aligned_size_t<16>(2048), bar); bar.arrive_and_wait(); CHECK(s[511 - t] == val(512 * k + 511 - t)); SYNC; s[t] = 0; SYNC; } }
K bad_memcpy_async_bulk ARGS { T; __shared__ alignas(16) int s[512]; __shared__ Barrier bar; if (!t) init(&bar, 128); SYNC; auto g = cg::this_thread_block(); int x = 0; for (int k = 0; k < 3; k++) {
  cuda::memcpy_async(g, s, in + 512 * k, cuda::aligned_size_t<16>(2048), bar); // BUG shared-race async-pending
  bar.arrive_and_wait(); x += s[511 - t]; } out[i] = x; }
// Each of 32 threads waits by the clock.
K ok_semaphore_of_all ARGS { T; __shared__ cuda::binary_semaphore<cuda::thread_scope_block> m; __shared__ int c; if (!t) { new (&m) cuda::binary_semaphore<cuda::thread_scope_block>(1); c = 0; } SYNC; if (!b && l < 8) { m.acquire(); c = c + 1; m.release(); } SYNC; CHECK(b || c == 32); }
// All warps, and all blocks, give a place the same value by one instruction.
K ok_all_say_so ARGS { T; __shared__ int found; if (!t) found = 0; SYNC; if (in[i] > 500) found = 1; SYNC; CHECK(found == 1); }
K ok_all_blocks_say_so ARGS { T; if (in[i] > 500) flag[2] = 1; cg::this_grid().sync(); CHECK(flag[2] == 1); }
K bad_all_blocks_say ARGS { T;
  if (in[i] > 500) flag[2] = b; // BUG global-race
}
// A fault in a function: the line there, and those of the calls, inlined or not.
__device__ int neighbour(const int *s, int t) {
  return s[t ^ 1]; // INLINED
}
__device__ __noinline__ int far_neighbour(const int *s, int t) {
  return s[t ^ 1]; // CALLED
}
template <bool Far> __device__ int both(const int *s, int t) {
  return (Far ? far_neighbour(s, t) : neighbour(s, t)) + 1; // CALLS
}
K calls_inlined ARGS { T; __shared__ int s[128]; s[t] = in[i];
  out[i] = both<false>(s, t); // FROM INLINED
}
K calls_out_of_line ARGS { T; __shared__ int s[128]; s[t] = in[i];
  out[i] = both<true>(s, t); // FROM CALLED
}
