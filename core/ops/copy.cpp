// copy: y = x, where x and y have the same dtype and equally many elements. There is no operation
// ops::copy; operations such as reshape call this launcher.
#include <cstring>

#include "core/ops/blocks.h"
#include "core/ops/copy.h"

namespace tessera::cpu {

void copy(const Context&, const Tensor& y, const Tensor& x) {
  TESSERA_CHECK(y.elements() == x.elements() && y.dtype() == x.dtype(),
                "copy: the source is {} {}, expected {} {}", dtype_name(x.dtype()), x.shape(),
                dtype_name(y.dtype()), y.shape());
  const int64_t size = dtype_size(x.dtype());
  auto* out = static_cast<std::byte*>(y.raw());
  const auto* in = static_cast<const std::byte*>(x.raw());
  if (out == in) return;
  parallel_blocks(x.elements(), 1, [=](int64_t begin, int64_t end) {
    std::memcpy(out + begin * size, in + begin * size, static_cast<size_t>((end - begin) * size));
  });
}

}  // namespace tessera::cpu
