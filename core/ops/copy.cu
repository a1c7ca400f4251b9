// copy on CUDA: y = x, where x and y may each be on the host or on a device.
#include "core/cuda/kernel.cuh"
#include "core/ops/copy.h"

namespace tessera::cuda {

void copy(const Context& context, const Tensor& y, const Tensor& x) {
  TESSERA_CHECK(y.elements() == x.elements() && y.dtype() == x.dtype(),
                "copy: the source is {} {}, expected {} {}", dtype_name(x.dtype()), x.shape(),
                dtype_name(y.dtype()), y.shape());
  if (x.bytes() == 0 || y.raw() == x.raw()) return;
  // If the source is in pageable host memory, the call returns after the source has been read. If
  // the destination is in pageable host memory, the call returns after the destination has been
  // written.
  TESSERA_CUDA(cudaMemcpyAsync(y.raw(), x.raw(), static_cast<size_t>(x.bytes()), cudaMemcpyDefault,
                               stream_of(context)));
  finish_call(context, "copy");
}

}  // namespace tessera::cuda
