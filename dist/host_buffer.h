// Values that the host writes and reads, and that ranks gather from each other.
//
//   HostBuffer flags(ranks * count, DType::u8, communicator);
//   flags.data<uint8_t>()[rank * count + i] = 1;
//   flags.all_gather(communicator, Traffic::flags).wait();   // `flags` has all ranks' values
#pragma once

#include "dist/communicator.h"

namespace tessera::dist {

class HostBuffer {
 public:
  HostBuffer() = default;
  /// Allocates host memory for `elements` values, uninitialised, in Category::communication.
  HostBuffer(int64_t elements, DType dtype, Communicator& communicator)
      : values_(Tensor::unallocated({elements}, dtype)) {
    constexpr Category category = Category::communication;
    values_.attach(communicator.device().is_cpu() ? communicator.allocate(values_.bytes(), category)
                                                  : allocate(values_.bytes(), category),
                   0);
  }

  const Tensor& values() const { return values_; }
  template <class T>
  T* data() const {
    return values_.data<T>();
  }

  /// Gathers every rank's piece of the buffer with Communicator::all_gather_host.
  Work all_gather(Communicator& communicator, Traffic purpose) const {
    return communicator.all_gather_host(values_, {purpose, -1});
  }

 private:
  Tensor values_;
};

}  // namespace tessera::dist
