// CUTLASS 4.2's CollectiveBuilder for sm_90a: a producer warpgroup of TMA and consumers of wgmma, cooperative and in ping-pong.
// nvcc -ptx -arch=sm_90a -O3 -std=c++17 --expt-relaxed-constexpr collective.cu. collective.txt holds the parameters that
// GemmUniversal::to_underlying_arguments makes on the host for 1.5 A B + 0.5 C, with holes where maps and pointers go.
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/device_kernel.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
using namespace cute;
template <class Schedule, class EpilogueSchedule, class Tile, class Cluster> struct Gemm {
  using Sm90 = cutlass::arch::Sm90; using Tensor = cutlass::arch::OpClassTensorOp; using Half = cutlass::half_t;
  using Row = cutlass::layout::RowMajor; using Column = cutlass::layout::ColumnMajor;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<Sm90, Tensor, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, float, Row, 4, float, Row, 4, EpilogueSchedule>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<Sm90, Tensor, Half, Row, 8, Half, Column, 8, float, Tile, Cluster,
    cutlass::gemm::collective::StageCount<3>, Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Main, Epilogue>;
};
using One = Shape<_1, _1, _1>;
using Plain = Gemm<cutlass::gemm::KernelTmaWarpSpecialized, cutlass::epilogue::NoSmemWarpSpecialized, Shape<_64, _64, _64>, One>::Kernel;
using Pingpong = Gemm<cutlass::gemm::KernelTmaWarpSpecializedPingpong, cutlass::epilogue::TmaWarpSpecialized, Shape<_64, _64, _64>, One>::Kernel;
using Cooperative = Gemm<cutlass::gemm::KernelTmaWarpSpecializedCooperative, cutlass::epilogue::TmaWarpSpecializedCooperative, Shape<_128, _64, _64>, Shape<_2, _1, _1>>::Kernel;
template __global__ void cutlass::device_kernel<Plain>(CUTLASS_GRID_CONSTANT Plain::Params const);
template __global__ void cutlass::device_kernel<Pingpong>(CUTLASS_GRID_CONSTANT Pingpong::Params const);
template __global__ void cutlass::device_kernel<Cooperative>(CUTLASS_GRID_CONSTANT Cooperative::Params const);
