// Values that the host writes and reads, and that ranks gather: a step's losses, flags and norms.
// Where a communicator works in host memory they lie there once; else they have a copy on the GPU.
//
//   HostBuffer losses(ranks * count, DType::f32, communicator);
//   losses.data<float>()[rank * count + i] = loss;
//   losses.all_gather(communicator, Traffic::losses).wait();
//   losses.fetch();                                          // all ranks' values are on the host
#pragma once

#include "dist/communicator.h"

namespace tessera::dist {

class HostBuffer {
 public:
  HostBuffer() = default;
  /// [elements], uninitialised, of Category::communication.
  HostBuffer(int64_t elements, DType dtype, Communicator& communicator)
      : sent_(Tensor::unallocated({elements}, dtype)) {
    sent_.attach(communicator.allocate(sent_.bytes(), Category::communication), 0);
    values_ = communicator.device().is_cpu()
                  ? sent_
                  : Tensor::empty({elements}, dtype, Device{}, Category::communication);
  }

  /// On the host.
  const Tensor& values() const { return values_; }
  template <class T>
  T* data() const {
    return values_.data<T>();
  }

  /// Every rank's piece, as Communicator::all_gather; starts from what the host has written.
  Work all_gather(Communicator& communicator, Traffic purpose) const {
    sent_.copy_from(values_);
    return communicator.all_gather(sent_, {purpose, -1});
  }
  /// Brings what was gathered to the host. Call it after the Work was waited for.
  void fetch() const { values_.copy_from(sent_); }

 private:
  Tensor values_;
  Tensor sent_;
};

}  // namespace tessera::dist
