// gather, index_select and scatter_add on CUDA.
#include "core/ops/gather.h"

#include "core/cuda/fault.cuh"
#include "core/cuda/kernel.cuh"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

FaultKind fault_of(Picking picking) {
  switch (picking) {
    case Picking::index_select: return FaultKind::index_select_index;
    case Picking::gather: return FaultKind::gather_index;
    case Picking::scatter_add: return FaultKind::scatter_add_index;
  }
  return FaultKind::gather_index;
}

/// The lines and the index, for both kernels. An index out of range is reported to `fault`.
struct IndexedLines {
  Lines lines;
  const int32_t* index;
  FaultKind kind;
  Fault* fault;

  /// Returns the index that belongs to `element` of a tensor (outer, count, inner). If the index is
  /// out of range, reports a fault and returns -1.
  __device__ int64_t picked(int64_t element) const {
    const int64_t at = lines.shared ? element / lines.inner % lines.count : element;
    const int32_t found = index[at];
    if (found >= 0 && found < lines.size) return found;
    report_fault(fault, kind, at, found, lines.size);
    return -1;
  }
};

IndexedLines indexed(const Context& context, const Lines& lines, const Tensor& index) {
  return {lines, index.data<int32_t>(), fault_of(lines.picking), device_fault(context)};
}

/// A thread writes one element of y, which is 0 if the index is out of range.
template <class T>
__global__ void __launch_bounds__(threads) gather_kernel(T* y, const T* x, IndexedLines args) {
  const auto& lines = args.lines;
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (element >= lines.outer * lines.count * lines.inner) return;
  const int64_t outer = element / (lines.count * lines.inner);
  const int64_t picked = args.picked(element);
  const int64_t from = (outer * lines.size + picked) * lines.inner + element % lines.inner;
  y[element] = picked < 0 ? T(0.0f) : x[from];
}

/// A thread adds the elements of one line (o, :, i) in ascending order.
template <class T>
__global__ void __launch_bounds__(threads)
    scatter_kernel(float* sum, const T* source, IndexedLines args) {
  const auto& lines = args.lines;
  const int64_t line = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (line >= lines.outer * lines.inner) return;
  const int64_t outer = line / lines.inner;
  const int64_t inner = line % lines.inner;
  const int64_t first = outer * lines.count * lines.inner + inner;
  float* to = sum + outer * lines.size * lines.inner + inner;
  for (int64_t j = 0; j < lines.count; ++j) {
    const int64_t element = first + j * lines.inner;
    const int64_t picked = args.picked(element);
    if (picked >= 0) to[picked * lines.inner] += float(source[element]);
  }
}

}  // namespace

/// Needs no workspace. If an index is wrong, the host throws at its next synchronisation with the
/// device.
void gather_lines(const Context& context, const Tensor& y, const Tensor& x, const Tensor& index,
                  const Lines& lines) {
  if (y.elements() == 0) return;
  visit_float(x.dtype(), name_of(lines.picking), [&]<class T>() {
    launch(context, "gather", {blocks_for(y.elements(), threads), threads}, gather_kernel<T>,
           y.data<T>(), x.data<T>(), indexed(context, lines, index));
  });
}

/// Needs no workspace. If an index is wrong, the host throws at its next synchronisation with the
/// device.
void scatter_lines(const Context& context, const Tensor& sum, const Tensor& source,
                   const Tensor& index, const Lines& lines) {
  if (source.elements() == 0) return;
  visit_float(source.dtype(), "scatter_add", [&]<class T>() {
    launch(context, "scatter_add", {blocks_for(lines.outer * lines.inner, threads), threads},
           scatter_kernel<T>, sum.data<float>(), source.data<T>(),
           indexed(context, lines, index));
  });
}

}  // namespace tessera::cuda
