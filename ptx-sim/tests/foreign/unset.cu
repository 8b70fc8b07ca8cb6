// Like sync.cu, for builds without optimisation: variables that nothing was assigned to. An optimising compiler leaves no trace of most.
// Lines of right kernels are left out of the PTX. nvcc -ptx -arch=sm_90 -G unset.cu, and
// by clang 19 in clang/unset_O0.ptx: clang++-19 -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 --cuda-path=… -gline-tables-only -O0 -S unset.cu
#define K extern "C" __global__ void
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x_) do { if (!(x_)) __trap(); } while (0)
#define T int t = threadIdx.x, b = blockIdx.x, i = b * 128 + t; (void)b; (void)i; (void)t
struct Empty {}; struct Pair { int a, b; };
__device__ int pick(Empty, int x) { return x + 1; }
__device__ int first(Pair p) { return p.a; }
K ok_set_before_use ARGS { T; int x, y, z; if (in[i] > 500) x = in[i]; else y = in[i] + 1; z = in[i] > 500 ? x : y; CHECK(z == in[i] + (in[i] <= 500)); out[i] = z; }
K ok_set_in_first_round ARGS { T; int sum; for (int k = 0; k < 4; k++) { if (k == 0) sum = 0; sum += in[i + k]; } CHECK(sum == in[i] + in[i + 1] + in[i + 2] + in[i + 3]); out[i] = sum; }
K ok_half_a_pair ARGS { T; Pair p; p.a = in[i]; Pair q = p; CHECK(first(q) == in[i]); CHECK(pick(Empty{}, t) == t + 1); out[i] = q.a; }
K ok_new_and_delete ARGS { T; int *p = new int[2]; p[0] = t; Pair *q = new Pair; q->a = p[0]; CHECK(q->a == t); delete[] p; delete q; }
K ok_unset_unused ARGS { T; int x; int y = x; if (t > 1000) out[i] = y; out[i] = t; }
K bad_unset_sum ARGS { T; int sum;
  for (int k = 0; k < 4; k++)
    sum += in[i + k]; // BUG uninitialized
  out[i] = sum; }
K bad_unset_on_one_path ARGS { T; int x; if (in[i] > 500) x = in[i] * 2;
  out[i] = x + 1; // BUG uninitialized
}
K bad_unset_best ARGS { T; float best; int arg = 0; for (int k = 0; k < 8; k++) { float v = in[i + k];
    if (v > best) { best = v; arg = k; } // BUG uninitialized
  } out[i] = arg; }
K bad_unset_end ARGS { T; bool done; int n = 0;
  while (!done) { n++; if (n > in[i]) done = true; } // BUG uninitialized
  out[i] = n; }
K bad_unset_member ARGS { T; Pair p; p.a = in[i];
  out[i] = p.a + p.b; // BUG uninitialized
}
K bad_unset_argument ARGS { T; int x;
  if (pick(Empty{}, x) > 3) // BUG uninitialized
    out[i] = 1; }
