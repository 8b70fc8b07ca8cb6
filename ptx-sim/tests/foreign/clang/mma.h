// The part of CUDA's wmma interface that the kernel here uses, in terms of clang's builtins.
#pragma once
#include <cuda_fp16.h>

namespace nvcuda::wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major;
enum layout_t { mem_row_major };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment { int x[8]; };

template <class F> __device__ void fill_fragment(F& f, float value) {
    for (int i = 0; i < 8; i++) f.x[i] = __builtin_bit_cast(int, value);
}
template <int M, int N, int K> __device__ void load_matrix_sync(fragment<matrix_a, M, N, K, half, row_major>& f, const half* p, unsigned stride) {
    __hmma_m16n16k16_ld_a(f.x, (const int*)p, stride, 0);
}
template <int M, int N, int K> __device__ void load_matrix_sync(fragment<matrix_b, M, N, K, half, row_major>& f, const half* p, unsigned stride) {
    __hmma_m16n16k16_ld_b(f.x, (const int*)p, stride, 0);
}
template <class D, class A, class B> __device__ void mma_sync(D& d, const A& a, const B& b, const D& c) {
    __hmma_m16n16k16_mma_f32f32((float*)d.x, a.x, b.x, (const float*)c.x, 0, 0);
}
template <class D> __device__ void store_matrix_sync(float* p, const D& d, unsigned stride, layout_t) {
    __hmma_m16n16k16_st_c_f32(p, (const float*)d.x, stride, 0);
}
}
