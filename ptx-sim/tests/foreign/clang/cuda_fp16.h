// What the kernels here use of CUDA's headers, in terms of clang's builtins: clang compiles them without a CUDA toolkit.
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __noinline__ __attribute__((noinline))
#define INFINITY __builtin_inff()

#define INDEX(name, builtin)                                                                  \
    struct name##_t {                                                                         \
        __declspec(property(get = get_x)) unsigned x;                                         \
        __declspec(property(get = get_y)) unsigned y;                                         \
        __device__ static unsigned get_x() { return __nvvm_read_ptx_sreg_##builtin##_x(); }   \
        __device__ static unsigned get_y() { return __nvvm_read_ptx_sreg_##builtin##_y(); }   \
    };                                                                                        \
    extern const __device__ __attribute__((weak)) name##_t name;
INDEX(threadIdx, tid)
INDEX(blockIdx, ctaid)
INDEX(blockDim, ntid)
INDEX(gridDim, nctaid)

typedef _Float16 half;

inline __device__ float __shfl_down_sync(unsigned lanes, float x, unsigned offset) { return __nvvm_shfl_sync_down_f32(lanes, x, offset, 31); }
inline __device__ float __shfl_xor_sync(unsigned lanes, float x, unsigned offset) { return __nvvm_shfl_sync_bfly_f32(lanes, x, offset, 31); }
inline __device__ float atomicAdd(float* p, float x) { return __nvvm_atom_add_gen_f(p, x); }
inline __device__ unsigned atomicAdd(unsigned* p, unsigned x) { return __nvvm_atom_add_gen_i((int*)p, x); }
inline __device__ int atomicMax(int* p, int x) { return __nvvm_atom_max_gen_i(p, x); }
inline __device__ unsigned atomicMin(unsigned* p, unsigned x) { return __nvvm_atom_min_gen_ui(p, x); }
inline __device__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline __device__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline __device__ float __expf(float x) { return __nvvm_ex2_approx_ftz_f(x * 1.4426950408889634f); }
inline __device__ float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
