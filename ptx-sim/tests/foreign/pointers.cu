// Like sync.cu: pointers to shared and to local memory that go by other ways than they came, and deep recursion.
// Lines of right kernels are left out of the PTX. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 pointers.cu
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x_) do { if (!(x_)) __trap(); } while (0)
#define T int t = threadIdx.x, l = t & 31, w = t >> 5, b = blockIdx.x, i = b * 128 + t; (void)l; (void)w; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }
__device__ __noinline__ int sum_of(const int *p, int n) { int s = 0; for (int k = 0; k < n; k++) s += p[k]; return s; }
__device__ __noinline__ int nested(int n, int *p) { int a[16]; for (int k = 0; k < 16; k++) a[k] = p[k & 3] + n; return n == 0 ? a[5] : nested(n - 1, a) + a[n & 15]; }
struct View { const int *p; int n; };

K ok_own_pointers ARGS { T; __shared__ int s[128]; __shared__ View v[128]; int mine[8]; for (int k = 0; k < 8; k++) mine[k] = in[i] + k; s[t] = in[t]; v[t] = t & 1 ? View{mine, 8} : View{s, 128}; SYNC;
  View mixed = v[t]; int r = sum_of(mixed.p, mixed.n); int e = 0; for (int k = 0; k < 128; k++) e += val(k); CHECK(r == (t & 1 ? 8 * val(i) + 28 : e)); SYNC; }
K ok_shared_pointers_among_warps ARGS { T; __shared__ int s[4][32]; __shared__ int *next[4]; s[w][l] = in[t]; if (!l) next[w] = s[(w + 1) & 3]; SYNC; CHECK(next[w][l] == val(((w + 1) & 3) * 32 + l)); SYNC; atomicAdd(&next[w][l], 1); SYNC; CHECK(s[w][l] == val(t) + 1); }
CK ok_shared_pointers_of_a_cluster ARGS { T; __shared__ int s[128]; __shared__ int *theirs; auto c = cg::this_cluster(); s[t] = in[i]; c.sync(); if (!t) *c.map_shared_rank(&theirs, c.block_rank() ^ 1) = c.map_shared_rank(s, c.block_rank()); c.sync(); CHECK(theirs[t] == val((b ^ 1) * 128 + t)); CHECK(c.query_shared_rank(theirs) == (c.block_rank() ^ 1)); c.sync(); }
K ok_deep_recursion ARGS { T; int a[4] = {1, 2, 3, in[i]}; int r = nested(600, a); CHECK(r != 0 || t); out[i] = r; }
K bad_pointer_to_anothers_stack ARGS { T; int mine = in[i]; __shared__ int *p[128]; p[t] = &mine; SYNC;
  int v = *p[t ^ 1]; // BUG out-of-bounds
  out[i] = v + mine; SYNC; }
K bad_table_on_one_stack ARGS { T; __shared__ const int *table; int mine[8]; for (int k = 0; k < 8; k++) mine[(k * 3 + t) & 7] = in[i] + k; if (!t) table = mine; SYNC;
  out[i] = table[t & 7]; // BUG out-of-bounds
  SYNC; CHECK(mine[3] != -1); }
K bad_shuffled_stack_pointer ARGS { T; int mine[2] = {in[i], t}; int *p = mine + (in[t] & 1); p = (int *)__shfl_sync(~0u, (unsigned long long)p, 0);
  atomicAdd(p, 1); // BUG out-of-bounds
  out[i] = mine[0] + mine[1]; }
K bad_shared_pointer_to_another_block ARGS { T; __shared__ int s[128]; s[t] = in[i]; int **g = (int **)(flag + 4); SYNC; if (b == 0 && !t) { *g = s; __threadfence(); atomicExch(flag, 1); }
  if (b == 1) { if (!t) while (atomicAdd(flag, 0) == 0) {} SYNC; __threadfence(); int *q = *(int *volatile *)g;
    out[i] = q[t]; // BUG out-of-bounds
  } }
CK bad_shared_pointer_out_of_the_cluster ARGS { T; __shared__ int s[128]; s[t] = in[i]; int **g = (int **)(flag + 4); auto c = cg::this_cluster(); c.sync(); if (b == 0 && !t) { *g = c.map_shared_rank(s, 1); __threadfence(); atomicExch(flag, 1); }
  if (b == 2) { if (!t) while (atomicAdd(flag, 0) == 0) {} SYNC; __threadfence(); int *q = *(int *volatile *)g;
    q[t] = 1; // BUG out-of-bounds
  } c.sync(); }
