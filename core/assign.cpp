#include "core/assign.h"

#include <algorithm>

#include "core/context.h"
#include "core/kernels.h"

namespace tessera {

void assign(const Tensor& tensor, const ValueSource& source) {
  TESSERA_CHECK(is_float(tensor.dtype()), "assign: the tensor is {}, expected f32, bf16 or f16",
                dtype_name(tensor.dtype()));
  const int64_t elements = tensor.elements();
  if (elements == 0) return;
  if (tensor.dtype() == DType::f32) return source(0, tensor.values<float>());
  // A piece at a time, so that f32 values of all of it never exist.
  constexpr int64_t most = assign_workspace_bytes / dtype_size(DType::f32);
  const Context context = current_context(tensor.device());
  const Tensor scratch = context.workspace({most});
  const Tensor flat = tensor.flat(0, elements);
  for (int64_t begin = 0; begin < elements; begin += most) {
    const int64_t end = std::min(begin + most, elements);
    const Tensor values = scratch.flat(0, end - begin);
    source(begin, values.values<float>());
    kernels::convert(context, flat.flat(begin, end), values);
  }
}

}  // namespace tessera
