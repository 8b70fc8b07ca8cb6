// Ordinary CUDA kernels, as nvcc users write them.
#include <cuda_fp16.h>

extern "C" __global__ void reduce_sum(const float* in, float* out, int n) {
    __shared__ float partial[32];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

extern "C" __global__ void transpose(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < columns && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * columns + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < rows && y + j < columns) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void softmax(const float* in, float* out, int columns) {
    extern __shared__ float row[];
    __shared__ float shared_max, shared_sum;
    const float* source = in + blockIdx.x * columns;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        row[i] = source[i];
        most = fmaxf(most, row[i]);
    }
    for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    if (threadIdx.x == 0) shared_max = -INFINITY;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        // Maximum of floats through integers: positive and negative values order differently.
        if (most >= 0) atomicMax((int*)&shared_max, __float_as_int(most));
        else atomicMin((unsigned*)&shared_max, __float_as_uint(most));
    }
    if (threadIdx.x == 0) shared_sum = 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        row[i] = __expf(row[i] - shared_max);
        sum += row[i];
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(&shared_sum, sum);
    __syncthreads();
    for (int i = threadIdx.x; i < columns; i += blockDim.x) out[blockIdx.x * columns + i] = row[i] / shared_sum;
}

extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[in[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i]) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[16][16], tile_b[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < n; k += 16) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

__device__ __noinline__ int collatz(unsigned long long x) {
    int steps = 0;
    while (x != 1) { x = x % 2 ? 3 * x + 1 : x / 2; steps++; }
    return steps;
}

extern "C" __global__ void collatz_steps(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = collatz(i + 1);
}

__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
extern "C" __global__ void fibonacci(int* out) { out[threadIdx.x] = fib(threadIdx.x % 12); }

#ifndef __clang__  // Functions of CUDA's device library.
__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
extern "C" __global__ void mixed(const double* in, double* out, half2* h, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        double x = in[i];
        float f = sinf((float)x) * weights[i % 8] + cosf((float)x) + logf((float)x + 2.0f) + tanhf((float)x) + powf(2.0f, (float)x);
        out[i] = sqrt(x) + exp(-x) + f + (double)((long long)(x * 1000) % 7) + fmod(x, 3.0);
        half2 v = h[i];
        h[i] = __hfma2(v, v, __float2half2_rn(0.5f));
    }
}
#endif
