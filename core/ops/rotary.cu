// rotary on CUDA: computes a table of the cosines and sines of angles, and rotates pairs of
// elements by these angles. rotary.cpp has the formulas. x (B, T, H, D) has B sequences of T
// tokens, and H attention heads of size D.
#include "core/cuda/kernel.cuh"
#include "core/ops/rotary.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

/// Each thread computes the cosine and the sine of one angle.
__global__ void __launch_bounds__(threads)
    rotary_table_kernel(float* table, const int32_t* positions, int64_t rows, int64_t pairs,
                        double base, int64_t offset) {
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (element >= rows * pairs) return;
  const int64_t row = element / pairs;
  const int64_t i = element % pairs;
  const int64_t at = (positions == nullptr ? row : positions[row]) + offset;
  const double angle =
      static_cast<double>(at) * pow(base, -static_cast<double>(i) / static_cast<double>(pairs));
  table[2 * row * pairs + i] = static_cast<float>(cos(angle));
  table[(2 * row + 1) * pairs + i] = static_cast<float>(sin(angle));
}

template <class T>
struct PairRows {
  T* y;
  const T* x;
  const float* table;
  int64_t rows;   // B T H: a row for each head of each token
  int64_t pairs;  // pairs per row: D / 2
  int64_t heads;
  int64_t positions;  // rows of the table
  Rotation rotation;
};

/// Each thread rotates one pair.
template <class T>
__global__ void __launch_bounds__(threads) rotate_pairs_kernel(PairRows<T> args) {
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t row = element / args.pairs;
  if (row >= args.rows) return;
  const int64_t i = element % args.pairs;
  const float* cosines = args.table + row / args.heads % args.positions * 2 * args.pairs;
  const float cosine = cosines[i];
  const float sine = args.rotation.inverse ? -cosines[args.pairs + i] : cosines[args.pairs + i];
  const bool interleaved = args.rotation.interleaved;
  const int64_t first = row * 2 * args.pairs + (interleaved ? 2 * i : i);
  const int64_t second = first + (interleaved ? 1 : args.pairs);
  const auto a = float(args.x[first]);
  const auto b = float(args.x[second]);
  args.y[first] = rounded<T>(a * cosine - b * sine);
  args.y[second] = rounded<T>(a * sine + b * cosine);
}

}  // namespace

/// Needs no workspace.
void rotary_table(const Context& context, const Tensor& table, const Tensor& positions, float base,
                  int64_t offset) {
  const int64_t rows = table.size(0);
  const int64_t pairs = table.size(2);
  if (rows * pairs == 0) return;
  launch(context, "rotary_table", {blocks_for(rows * pairs, threads), threads},
         rotary_table_kernel, table.data<float>(),
         positions.defined() ? positions.data<int32_t>() : nullptr, rows, pairs, base, offset);
}

/// Needs no workspace.
void rotate_pairs(const Context& context, const Tensor& y, const Tensor& x, const Tensor& table,
                  Rotation rotation) {
  if (x.elements() == 0) return;
  visit_float(x.dtype(), "rotary", [&]<class T>() {
    const PairRows<T> args{.y = y.data<T>(),
                           .x = x.data<T>(),
                           .table = table.data<float>(),
                           .rows = x.elements() / x.size(3),
                           .pairs = x.size(3) / 2,
                           .heads = x.size(2),
                           .positions = table.size(0),
                           .rotation = rotation};
    launch(context, "rotary", {blocks_for(x.elements() / 2, threads), threads},
           rotate_pairs_kernel<T>, args);
  });
}

}  // namespace tessera::cuda
