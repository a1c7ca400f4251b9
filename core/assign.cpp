#include "core/assign.h"

#include <algorithm>

#include "core/context.h"
#include "core/ops/convert.h"

namespace tessera {

void assign(const Tensor& tensor, const ValueSource& source) {
  TESSERA_CHECK(is_float(tensor.dtype()), "assign: the tensor is {}, expected f32, bf16 or f16",
                dtype_name(tensor.dtype()));
  const int64_t elements = tensor.elements();
  if (elements == 0) return;
  const bool on_host = tensor.device().is_cpu();
  if (tensor.dtype() == DType::f32 && on_host) return source(0, tensor.values<float>());
  // Works piece by piece, so that host memory never contains all f32 values or a whole copy of a
  // CUDA tensor.
  constexpr int64_t most = assign_workspace_bytes / dtype_size(DType::f32);
  const Context context = current_context(on_host ? tensor.device() : Device{});
  const Tensor scratch = context.workspace({most});
  const Tensor rounded = on_host ? Tensor() : context.workspace({most}, tensor.dtype());
  const Tensor flat = tensor.flat(0, elements);
  for (int64_t begin = 0; begin < elements; begin += most) {
    const int64_t end = std::min(begin + most, elements);
    const Tensor values = scratch.flat(0, end - begin);
    source(begin, values.values<float>());
    const Tensor piece = flat.flat(begin, end);
    const Tensor here = on_host ? piece : rounded.flat(0, end - begin);
    kernels::convert(context, here, values);
    piece.copy_from(here);
  }
}

}  // namespace tessera
