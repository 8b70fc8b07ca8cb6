// Like sync.cu: virtual and indirect calls, every kind of memory, mathematical functions, packed and narrow types, video instructions.
// Lines of right kernels are left out of the PTX. nvcc -ptx -arch=sm_90 -O3 -lineinfo -std=c++17 --extended-lambda language.cu
#include <cuda_fp8.h>
#include <cuda_fp6.h>
#include <cuda_fp4.h>
#include <cassert>
#include <cuComplex.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cstdio>
namespace cg = cooperative_groups;
#define K extern "C" __global__ void
#define CK extern "C" __global__ void __cluster_dims__(2)
#define ARGS (const int *in, int *out, int *flag)
#define CHECK(x) do { if (!(x)) __trap(); } while (0)
#define T int t = threadIdx.x, b = blockIdx.x, w = t / 32, l = t % 32; (void)t; (void)b; (void)w; (void)l
#define SYNC __syncthreads()
__device__ int val(int i) { return i * 7 % 1000; }
__device__ int sum_to(int n) { int s = 0; for (int i = 0; i <= n; i++) s += val(i); return s; }
__constant__ int table_[64] = {3, 1, 4, 1, 5, 9, 2, 6}; __device__ int counter; __device__ int grid_[32] = {7}; __managed__ int managed_ = 5;
struct Shape { __device__ virtual int area() const { return 0; } __device__ virtual ~Shape() {} };
struct Square : Shape { int s; __device__ Square(int s) : s(s) {} __device__ int area() const override { return s * s; } };
struct Rect : Shape { int x, y; __device__ Rect(int x, int y) : x(x), y(y) {} __device__ int area() const override { return x * y; } };
K ok_virtual ARGS { T; Square q(t); Rect r(t, 3); Shape *p = in[t] & 1 ? (Shape*)&q : (Shape*)&r; CHECK(p->area() == (val(t) & 1 ? t * t : 3 * t)); }
K ok_new_delete ARGS { T; if (t < 8) { Shape *p = t & 1 ? (Shape*)new Square(t) : (Shape*)new Rect(t, 2); CHECK(p->area() == (t & 1 ? t * t : 2 * t)); delete p; } }
K ok_lambda ARGS { T; int k = in[t]; auto f = [=] __device__ (int x) { return x * k; }; CHECK(f(3) == 3 * val(t)); }
typedef int (*Fn)(int); __device__ int f0(int x) { return x + 1; } __device__ int f1(int x) { return x * 2; } __device__ int f2(int x) { return x - 7; } __device__ Fn fns[3] = {f0, f1, f2};
K ok_indirect ARGS { T; int r = fns[t % 3](in[t]); int v = val(t); CHECK(r == (t % 3 == 0 ? v + 1 : t % 3 == 1 ? v * 2 : v - 7)); }
K ok_constant_table ARGS { T; CHECK(table_[t & 7] == "\3\1\4\1\5\11\2\6"[t & 7]); CHECK(table_[t & 7] == (&table_[0])[t & 7]); }
K ok_device_counter ARGS { atomicAdd(&counter, 1); CHECK(managed_ == 5); CHECK(grid_[0] == 7 && grid_[1] == 0); }
K ok_double ARGS { T; double x = in[t] + 1; CHECK(fabs(exp(log(x)) - x) < 1e-9 * x); CHECK(fabs(sin(x) * sin(x) + cos(x) * cos(x) - 1) < 1e-12); CHECK(sqrt(x * x) == x); CHECK(fabs(cbrt(x * x * x) - x) < 1e-9 * x); CHECK(pow(x, 2.) > x * x * (1 - 1e-12)); CHECK(fma(x, x, -x * x) < 1e-6); CHECK(rint(2.5) == 2); CHECK(fmod(x, 3.) == (double)((val(t) + 1) % 3)); CHECK(fabs(tgamma(5.) - 24) < 1e-9); CHECK(fabs(erf(0.5) - 0.5204998778130465) < 1e-12); CHECK(__double2int_rn(2.5) == 2); CHECK(fabs(atan2(1., 1.) - .7853981633974483) < 1e-15); CHECK(ldexp(1., 10) == 1024); CHECK(hypot(3., 4.) == 5); }
K ok_float_math ARGS { T; float x = in[t] + 1; CHECK(fabsf(__expf(__logf(x)) - x) < 1e-3f * x); CHECK(fabsf(sinf(x) * sinf(x) + cosf(x) * cosf(x) - 1) < 1e-5f); CHECK(fabsf(tanhf(.5f) - .46211716f) < 1e-6f); CHECK(fabsf(erff(.5f) - .5204999f) < 1e-6f); CHECK(fabsf(powf(x, .5f) - sqrtf(x)) < 1e-4f * x); CHECK(__fdividef(x, x) == 1); CHECK(rsqrtf(4.f) == .5f); CHECK(fabsf(normcdff(0.f) - .5f) < 1e-6f); CHECK(fabsf(sinpif(.5f) - 1) < 1e-6f); CHECK(fmaf(2, 3, 4) == 10); CHECK(roundf(2.5f) == 3); CHECK(fabsf(lgammaf(5.f) - logf(24.f)) < 1e-5f); CHECK(__saturatef(2.f) == 1); CHECK(__float2int_rz(-1.5f) == -1); CHECK(fabsf(j0f(1.f) - .76519769f) < 1e-5f); int e; CHECK(frexpf(8.f, &e) == .5f && e == 4); CHECK(remainderf(5.f, 3.f) == -1); CHECK(nextafterf(1.f, 2.f) > 1); CHECK(scalbnf(1.f, 3) == 8); CHECK(logbf(8.f) == 3); CHECK(fabsf(__sinf(0.f)) < 1e-6f); CHECK(fabsf(__tanf(.1f) - .1003347f) < 1e-5f); CHECK(fdimf(3, 1) == 2); }
K ok_half2_math ARGS { T; __half2 a = __floats2half2_rn(1.5f, -2.f), c = __floats2half2_rn(2.f, 3.f); float2 r = __half22float2(__hfma2(a, c, c)); CHECK(r.x == 5 && r.y == -3); CHECK(__hgt(__low2half(a), __high2half(a))); CHECK(__hbgt2(c, a)); r = __half22float2(h2exp2(c)); CHECK(r.x == 4 && r.y == 8); r = __half22float2(h2sqrt(__floats2half2_rn(4.f, 9.f))); CHECK(r.x == 2 && r.y == 3); r = __half22float2(__hmax2(a, c)); CHECK(r.x == 2 && r.y == 3); r = __half22float2(h2rint(__floats2half2_rn(2.5f, 3.5f))); CHECK(r.x == 2 && r.y == 4); CHECK(__half2float(hlog2(__float2half(8.f))) == 3); CHECK(fabsf(__half2float(htanh(__float2half(.5f))) - .462f) < 1e-3f); CHECK(fabsf(__half2float(hsin(__float2half(1.f))) - .8415f) < 1e-3f); CHECK(__half2short_rn(__float2half(3.6f)) == 4); CHECK(__hisnan(__float2half(nanf("")))); r = __half22float2(__h2div(c, c)); CHECK(r.x == 1); CHECK(__half2float(__hmul_sat(__float2half(3), __float2half(2))) == 1); CHECK(__half2float(hrcp(__float2half(4))) == .25f); r = __half22float2(__hcmadd(c, c, a)); CHECK(r.x == 1.5f + 4 - 9); }
K ok_bf16_math ARGS { T; __nv_bfloat162 a = __floats2bfloat162_rn(1.5f, -2.f), c = __floats2bfloat162_rn(2.f, 3.f); float2 r = __bfloat1622float2(__hfma2(a, c, c)); CHECK(r.x == 5 && r.y == -3); r = __bfloat1622float2(__hmin2(a, c)); CHECK(r.x == 1.5f && r.y == -2); CHECK(__bfloat162float(hexp2(__float2bfloat16(3.f))) == 8); r = __bfloat1622float2(__hmax2_nan(a, c)); CHECK(r.y == 3); CHECK(__bfloat162int_rn(__float2bfloat16(4.f)) == 4); r = __bfloat1622float2(__hfma2_relu(a, c, a)); CHECK(r.y == 0); r = __bfloat1622float2(__habs2(a)); CHECK(r.y == 2); CHECK(fabsf(__bfloat162float(htanh(__float2bfloat16(.5f))) - .462f) < 1e-2f); r = __bfloat1622float2(h2floor(a)); CHECK(r.x == 1); CHECK(__hequ(a.x, a.x)); }
K ok_fp8_forms ARGS { T; __nv_fp8_e4m3 a(1.5f); CHECK(float(a) == 1.5f); __nv_fp8x4_e4m3 v(make_float4(1, 2, 3, 4)); float4 f = float4(v); CHECK(f.x == 1 && f.w == 4); __nv_fp8_e5m2 e(3.f); CHECK(float(e) == 3); __nv_fp8x2_e5m2 p(make_float2(-1, 8)); float2 q = float2(p); CHECK(q.x == -1 && q.y == 8); __nv_fp8_e8m0 s(8.f); CHECK(float(s) == 8); __nv_fp4_e2m1 n(1.5f); CHECK(float(n) == 1.5f); __nv_fp6_e3m2 m(2.f); CHECK(float(m) == 2); }
K ok_video ARGS { T; unsigned a = 0x01020304u * (t + 1), c = 0x04030201u; CHECK(__vadd4(a, c) == ((a + c) & 0 | __vadd4(c, a))); unsigned e = 0; for (int i = 0; i < 4; i++) { int x = a >> 8 * i & 255, y = c >> 8 * i & 255; e += abs(x - y); } CHECK(__vsadu4(a, c) == e); unsigned m = 0; for (int i = 0; i < 4; i++) { int x = a >> 8 * i & 255, y = c >> 8 * i & 255; m |= max(x, y) << 8 * i; } CHECK(__vmaxu4(a, c) == m); CHECK(__vcmpeq4(a, a) == ~0u); CHECK(__vabsdiffu4(a, a) == 0); CHECK(__vaddus2(0xffff0001u, 0x00020003u) == 0xffff0004u); CHECK(__vavgu4(0x02040608u, 0x04060809u) == 0x03050709u); CHECK(__vneg2(0x00010002u) == 0xfffffffeu); CHECK(__vsubss4(0x80000000u, 0x01000000u) == 0x80000000u); CHECK(__vsetgtu2(0x00050001u, 0x00030001u) == 0x00010000u); CHECK(__vimax3_s32(1, 5, 3) == 5); CHECK(__viaddmax_s32(1, 2, 9) == 9); CHECK(__vimin_s32_relu(-4, 3) == 0); CHECK(__vibmax_s16x2(0x00010005u, 0x00020003u, (bool*)&m, (bool*)&e) == 0x00020005u); }
K ok_video_asm ARGS { T; int r; asm("vadd.s32.s32.s32.sat %0, %1, %2;" : "=r"(r) : "r"(0x7fffffff), "r"(1)); CHECK(r == 0x7fffffff); asm("vadd.u32.u32.u32 %0, %1.b1, %2.h0;" : "=r"(r) : "r"(0x1234), "r"(5)); CHECK(r == 0x12 + 5); asm("vabsdiff4.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(r) : "r"(0x01020304), "r"(0x04030201), "r"(10)); CHECK(r == 18); asm("vset.s32.s32.lt %0, %1, %2;" : "=r"(r) : "r"(-1), "r"(1)); CHECK(r == 1); asm("vshl.u32.u32.u32.wrap %0, %1, %2;" : "=r"(r) : "r"(1), "r"(33)); CHECK(r == 2); asm("vmad.s32.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(3), "r"(4), "r"(5)); CHECK(r == 17); asm("vmin2.s32.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(0x00010005), "r"(0x00020003), "r"(0)); CHECK(r == 0x00010003); }
K ok_local_array ARGS { T; int a[32]; for (int i = 0; i < 32; i++) a[(i * 5 + in[t]) & 31] = i; int s = 0; for (int i = 0; i < 32; i++) s += a[i]; CHECK(s == 496); }
K ok_vla ARGS { T; int n = 1 + (in[t] & 3); int *p = (int*)alloca(n * 4); for (int i = 0; i < n; i++) p[i] = i; int s = 0; for (int i = 0; i < n; i++) s += p[i]; CHECK(s == n * (n - 1) / 2); }
K ok_clock ARGS { T; long long c = clock64(); unsigned ns; asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(ns)); __nanosleep(20); CHECK(clock64() >= c); }
K ok_prof ARGS { __prof_trigger(1); T; unsigned s; asm volatile("mov.u32 %0, %%smid;" : "=r"(s)); unsigned n; asm volatile("mov.u32 %0, %%nsmid;" : "=r"(n)); CHECK(s < n); asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(s)); CHECK(s == 0); asm volatile("mov.u32 %0, %%total_smem_size;" : "=r"(s)); }
K ok_int128 ARGS { T; __int128 a = (__int128)in[t] << 70; CHECK((int)(a >> 70) == val(t)); unsigned __int128 m = (unsigned __int128)0xffffffffffffffffull * 0xffffffffffffffffull; CHECK((unsigned long long)(m >> 64) == 0xfffffffffffffffeull); CHECK((int)((__int128)1000000007 * 998244353 % 97) == (int)(1000000007ll * 998244353ll % 97)); }
K ok_complex ARGS { T; cuFloatComplex a = make_cuFloatComplex(in[t], 1), c = cuCmulf(a, cuConjf(a)); CHECK(cuCrealf(c) == (float)val(t) * val(t) + 1); cuDoubleComplex d = cuCdiv(make_cuDoubleComplex(1, 1), make_cuDoubleComplex(1, 1)); CHECK(d.x == 1); }
K ok_bit_tricks ARGS { T; unsigned v = in[t] * 2654435761u; CHECK(__brev(__brev(v)) == v); CHECK(__clz(v | 1) + (32 - __clz(v | 1)) == 32); CHECK(__ffs(v | 0x100) <= 9); CHECK(__byte_perm(v, 0, 0x0123) == __byte_perm(v, 0, 0x0123)); CHECK(__funnelshift_l(v, v, 5) == (v << 5 | v >> 27)); CHECK(__umulhi(v, v) == (unsigned)((unsigned long long)v * v >> 32)); CHECK(__sad(3, 7, 1) == 5); CHECK(__hadd(3, 6) == 4); CHECK(__rhadd(3, 6) == 5); CHECK(__popcll(~0ull) == 64); CHECK(__fns(0b10110, 0, 2) == 2); CHECK(__dp2a_lo(0x00020003, 0x0405, 1) == 1 + 3 * 5 + 2 * 4); CHECK(__mul24(5, 7) == 35); }
K ok_ld_hints ARGS { T; CHECK(__ldg(in + t) == val(t)); CHECK(__ldcs(in + t) == val(t)); CHECK(__ldcg(in + t) == val(t)); CHECK(__ldlu(in + t) == val(t)); __stwt(out + b * 128 + t, 1); __stcg(out + b * 128 + t, 2); int4 q = __ldg((const int4*)in + t); CHECK(q.w == val(4 * t + 3)); asm volatile("prefetch.global.L2 [%0];" :: "l"(in)); asm volatile("discard.global.L2 [%0], 128;" :: "l"(out + 2048)); }
K ok_union_bytes ARGS { T; union { float f; unsigned char c[4]; } u; u.f = in[t]; unsigned r = 0; for (int i = 0; i < 4; i++) r |= (unsigned)u.c[i] << 8 * i; CHECK(__uint_as_float(r) == (float)val(t)); }
K ok_bitfields ARGS { T; struct { unsigned a : 5, c : 11, d : 16; } s; s.a = in[t]; s.c = in[t] >> 2; s.d = in[t] * 3; CHECK(s.a == (val(t) & 31u)); CHECK(s.d == (val(t) * 3u & 0xffff)); }
K bad_local_uninit_reduce ARGS {
  T; int a[8]; for (int i = 0; i < 7; i++) a[(i + in[t]) & 7] = i; int s = 0;
  for (int i = 0; i < 8; i++) s += a[i]; // BUG uninitialized
  out[b * 128 + t] = s;
}
K bad_double_free ARGS {
  T; if (t == 0) { int *p = (int*)malloc(64); p[0] = in[0]; out[b] = p[0]; free(p);
    free(p); // BUG use-after-free bad-operand out-of-bounds
  }
}
K bad_shared_dynamic ARGS {
  extern __shared__ int s[]; T;
  s[t] = in[t]; // BUG out-of-bounds
  SYNC; out[b * 128 + t] = s[127 - t];
}
K bad_nan_branch ARGS {
  T; __shared__ float s[64]; if (t < 63) s[t] = in[t]; SYNC;
  if (t < 64 && s[t] > 5.f) // BUG uninitialized
    out[b * 128 + t] = 1;
}
K bad_ldg_written ARGS {
  T; if (b == 0) out[t] = in[t]; __threadfence(); if (t == 0) atomicAdd(flag, 1);
  if (b == 1) out[128 + t] = out[t]; // BUG global-race uninitialized
}
K bad_vector_align ARGS { T;
  int4 q = *(const int4*)(in + 1 + t); // BUG misaligned
  out[b * 128 + t] = q.x + q.w; }
K bad_cas_weak ARGS { T;
  if (l == 0) { while (atomicCAS(flag, 0, 1)) {} int v = flag[1];
    flag[1] = v + 1; // BUG global-race
    atomicExch(flag, 0); }
}
K bad_barrier_count ARGS { T;
  if (w < 3) asm volatile("bar.sync 1, 128;"); // BUG deadlock barrier-divergence
  out[b * 128 + t] = in[t]; }
K bad_syncwarp_mask ARGS { T; __shared__ int s[128]; s[t] = in[t];
  if (l < 16) __syncwarp(0xffff); else __syncwarp(0xffff0000);
  out[b * 128 + t] = s[t ^ 16]; // BUG shared-race
}
K bad_infinite ARGS { T; volatile int *f = flag; if (t == 0) while (f[3] == 0) {} // BUG deadlock
}
