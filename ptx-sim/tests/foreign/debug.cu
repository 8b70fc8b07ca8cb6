// Like sync.cu, for builds without optimisation: values on the stack, parameters by address, every helper a function of its own, and
// headers inlined without a word about where. nvcc -ptx -arch=sm_90 -G debug.cu, and by clang 19 in clang/debug_O0.ptx and clang/debug_O2.ptx:
// clang++-19 -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 --cuda-path=… -gline-tables-only -O0 (-O2) -S debug.cu
#define K extern "C" __global__ void
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x_) do { if (!(x_)) __trap(); } while (0)
#define T int t = threadIdx.x, b = blockIdx.x, i = b * 128 + t; (void)b; (void)i; (void)t
#define SYNC __syncthreads()
struct Triple { int x, y, z; };
__device__ int pick(Triple v, int k) { return (&v.x)[k]; }
__device__ Triple rotated(Triple v, int by) { Triple r; for (int k = 0; k < 3; k++) (&r.x)[k] = pick(v, (k + by) % 3); return r; }
__device__ float add(float *p, float x) { int old = *(int *)p, seen; do { seen = old; old = atomicCAS((int *)p, seen, __float_as_int(x + __int_as_float(seen))); } while (seen != old); return __int_as_float(old); }
__device__ void lock(int *m) { while (atomicCAS(m, 0, 1) != 0) {} __threadfence(); }
__device__ void unlock(int *m) { __threadfence(); atomicExch(m, 0); }
K ok_parameters ARGS { T; Triple v = {t, i, 7}; for (int by = 0; by < 3; by++) { Triple r = rotated(v, by); CHECK(r.x == (&v.x)[by] && pick(r, (3 - by) % 3) == t); } }
K ok_compare_and_swap ARGS { T; __shared__ float s; if (!t) s = 0; SYNC; add(&s, 1.f); add((float *)flag + 4, 2.f); SYNC; CHECK(s == 128.f); }
K ok_lock_in_functions ARGS { T; if (t % 32 < 2) { lock(flag); flag[1] = flag[1] + 1; unlock(flag); } }
K bad_lock_kept ARGS { T;
  if (!t) { while (atomicCAS(flag, 0, 1) != 0) {} // BUG deadlock
  flag[1] = flag[1] + 1; __threadfence(); } }
K bad_undefined_on_stack ARGS { T; int v[4]; for (int k = 0; k < 4; k++)
    v[k] = out[(i + k) & 511]; // BUG uninitialized
  int s = 0; for (int k = 0; k < 4; k++) s += v[k] * k;
  out[1024 + i] = s; }
K bad_plain_before_swap ARGS { T; __shared__ int s[2]; if (t < 2) s[t] = 0; SYNC;
  int old = s[0] + s[1]; // BUG shared-race
  atomicCAS(&s[1], 0, i + 1); out[i] = old; }
K bad_scope ARGS { T;
  out[i] = atomicAdd_block(&flag[t & 3], 1); // BUG global-race
}
K bad_index ARGS { T; __shared__ int s[128]; s[t] = in[i]; SYNC;
  out[i] = s[t + (t & 1) * 64]; // BUG out-of-bounds
}
K bad_read_early ARGS { T; __shared__ int s[128];
  s[t] = in[i]; // BUG shared-race
  out[i] = s[127 - t]; }
