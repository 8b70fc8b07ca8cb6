// A matrix product on tensor cores through the wmma interface.
#include <mma.h>

extern "C" __global__ void matmul_wmma(const half* a, const half* b, float* c, int n) {
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> frag_a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> frag_b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(frag_a, a + row * n + k, n);
        wmma::load_matrix_sync(frag_b, b + k * n + column, n);
        wmma::mma_sync(sum, frag_a, frag_b, sum);
    }
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}
