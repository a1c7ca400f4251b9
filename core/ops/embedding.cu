// embedding on CUDA: y[r] = table[tokens[r]] + positions[r mod T], and its two gradients. The
// kernels for the gradient of the table are in embedding.cuh, because other operations share them.
#include "core/ops/embedding.h"

#include <string_view>

#include "core/ops/embedding.cuh"

namespace tessera::cuda {

namespace {

using embedding::sort_by_token;
using embedding::sum_by_token;
using embedding::sum_rows;
using embedding::threads;
using embedding::WarpOfGrid;
using embedding::warps;

template <class T>
struct Lookup {
  T* y;
  const int32_t* tokens;
  const T* table;
  const T* positions;  // or null
  int64_t rows;
  int64_t channels;
  int64_t vocabulary;
  int64_t positions_per_row;
};

/// A warp computes a row of y.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads) embedding_kernel(Lookup<T> args, Fault* fault) {
  const WarpOfGrid at;
  if (at.index >= args.rows) return;
  int32_t token = args.tokens[at.index];
  if (token < 0 || token >= args.vocabulary) {
    if (at.lane == 0) {
      report_fault(fault, FaultKind::embedding_token, at.index, token, args.vocabulary);
    }
    token = 0;
  }
  const T* word = args.table + token * args.channels;
  const T* place = args.positions == nullptr
                       ? nullptr
                       : args.positions + at.index % args.positions_per_row * args.channels;
  T* y = args.y + at.index * args.channels;
  for (int64_t c = int64_t{at.lane} * n; c < args.channels; c += warp_size * n) {
    Floats<n> values = widened(load_elements<aligned, n>(word + c));
    if (place != nullptr) {
      const Floats<n> more = widened(load_elements<aligned, n>(place + c));
      unrolled<n>([&](int i) { values.value[i] += more.value[i]; });
    }
    store_elements<aligned>(y + c, values);
  }
}

/// A warp computes 32 * n columns of one row of dpositions. In the grid, blockIdx.x selects
/// positions and blockIdx.y selects columns.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    position_backward_kernel(T* dpositions, const T* dy, int64_t positions, int64_t channels,
                             int64_t batch, int64_t tokens_per_row) {
  const WarpOfGrid at;
  const int64_t column = (int64_t{blockIdx.y} * warp_size + at.lane) * n;
  if (at.index >= positions || column >= channels) return;
  Floats<n> sum = {};
  if (at.index < tokens_per_row) {
    sum_rows<aligned>(sum, dy, channels, column, batch,
                      [&](int64_t b) { return b * tokens_per_row + at.index; },
                      [](int64_t) { return 1.0f; });
  }
  store_elements<aligned>(dpositions + at.index * channels + column, sum);
}

FaultKind fault_of_tokens(std::string_view operation) {
  if (operation == "embedding") return FaultKind::embedding_token;
  if (operation == "index_select") return FaultKind::index_select_index;
  if (operation == "gather") return FaultKind::gather_index;
  fail("embedding_backward: operation {} has no kind of fault", operation);
}

}  // namespace

/// Needs no workspace. If a token is outside the vocabulary, the host throws at its next
/// synchronisation with the device.
void embedding_forward(const Context& context, const Tensor& y, const Tensor& tokens,
                       const Tensor& table, const Tensor& positions, int64_t positions_per_row) {
  if (y.elements() == 0) return;
  TESSERA_CHECK(table.size(0) > 0, "embedding: the table has shape {}, expected at least one row",
                table.shape());
  visit_float(y.dtype(), "embedding", [&]<class T>() {
    const Lookup<T> args{.y = y.data<T>(),
                         .tokens = tokens.data<int32_t>(),
                         .table = table.data<T>(),
                         .positions = positions.defined() ? positions.data<T>() : nullptr,
                         .rows = tokens.elements(),
                         .channels = table.size(1),
                         .vocabulary = table.size(0),
                         .positions_per_row = positions_per_row};
    visit_access<neighbours<T>>(
        args.channels,
        [&]<int n, bool aligned>() {
          launch(context, "embedding", {blocks_for(args.rows, warps), threads},
                 embedding_kernel<T, n, aligned>, args, device_fault(context));
        },
        args.y, args.table, args.positions);
  });
}

/// Workspace: 4 bytes * (V + 1 + R) for R tokens and a vocabulary of V, as on the CPU.
void embedding_backward(const Context& context, const char* operation, const Tensor& dtable,
                        const Tensor& dy, const Tensor& tokens, bool accumulate) {
  const int64_t vocabulary = dtable.size(0);
  const int64_t work = tokens.elements() + vocabulary;
  TESSERA_CHECK(work < INT32_MAX,
                "{}: {} positions and rows of the table together, expected less than {}", operation,
                work, INT32_MAX);
  if (dtable.elements() == 0) return;
  const Tensor ends = context.workspace({vocabulary + 1}, DType::i32);
  const Tensor order = context.workspace({tokens.elements()}, DType::i32);
  sort_by_token(context, order, ends,
                {.tokens = tokens.data<int32_t>(),
                 .count = tokens.elements(),
                 .vocabulary = vocabulary,
                 .fault = fault_of_tokens(operation)});
  sum_by_token<false>(context, operation, dtable, dy, {order, ends, {}}, accumulate);
}

/// Needs no workspace.
void position_backward(const Context& context, const Tensor& dpositions, const Tensor& dy,
                       int64_t tokens_per_row) {
  if (dpositions.elements() == 0) return;
  const int64_t positions = dpositions.size(0);
  const int64_t channels = dpositions.size(1);
  visit_float(dy.dtype(), "embedding", [&]<class T>() {
    T* const to = dpositions.data<T>();
    const T* const from = dy.data<T>();
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const dim3 grid(blocks_for(positions, warps), blocks_for(channels, warp_size * n));
          launch(context, "position_backward", {grid, threads},
                 position_backward_kernel<T, n, aligned>, to, from, positions, channels, dy.size(0),
                 tokens_per_row);
        },
        to, from);
  });
}

}  // namespace tessera::cuda
