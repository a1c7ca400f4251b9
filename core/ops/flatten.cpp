// flatten: (N, H, W, C) -> (N, C * H * W) in torch's order, channel by channel. Each image is
// transposed as a matrix (H * W, C). With one pixel or one channel, the order of elements does not
// change, so a reshape is enough.
#include "core/image_ops.h"
#include "core/ops.h"

namespace tessera::ops {

Tensor flatten(const Tensor& x) {
  TESSERA_CHECK(x.rank() == 4, "flatten: x has shape {}, expected (N, H, W, C)", x.shape());
  const int64_t images = x.size(0);
  const int64_t pixels = x.size(1) * x.size(2);
  const int64_t channels = x.size(3);
  const Shape flat{images, channels * pixels};
  if (pixels == 1 || channels == 1) return reshape(x, flat);
  return reshape(transpose(reshape(x, {images, pixels, channels})), flat);
}

}  // namespace tessera::ops
