// The way of a step's buckets between the device that computes and the host that updates: gradient
// sums go down, rounded weights come up.
//
// From a GPU, copies of two buckets are under way on the device's copy stream while the CPU updates
// a third one between them:
//
//   copy stream   sums 5 | sums 4    | values 5, sums 3 | values 4, sums 2 | ...
//   CPU                    update 5  | update 4         | update 3         | ...
//
// From the other device in host memory (core/device.h) each copy is done when its call returns.
#pragma once

#include <optional>
#include <vector>

#include "core/cuda.h"
#include "core/tensor.h"

namespace tessera::optim {

/// Zeroed memory of the host, [elements], pinned where `other` is a GPU.
Tensor host_zeros(int64_t elements, DType dtype, Category category, Device other);

class HostCrossing {
 public:
  /// Between the host and `device`, for buckets of which at most `largest` elements cross.
  HostCrossing(Device device, int buckets, int64_t largest, DType sums, DType values);

  /// Whether a bucket's sums may be brought before the sums of the bucket before it are used.
  bool ahead() const { return !device_.is_cpu(); }

  /// Starts the copy of a bucket's sums, as the calling thread's stream has them, to the host.
  void bring(int bucket, const Tensor& sums);
  /// These sums on the host, when they are there; valid until the bucket after the next is brought.
  Tensor sums(int bucket, int64_t elements);

  /// Room on the host for a bucket's values, when an earlier bucket's have left it.
  Tensor room(int bucket, int64_t elements);
  /// Starts the copy of what was written there to `values`. What the calling thread's stream is
  /// given from now on comes after it.
  void send(int bucket, const Tensor& values);

 private:
  struct Slot {
    Tensor sums;
    Tensor values;
    std::optional<cuda::Event> brought;  // on a GPU: behind the last copy of each kind
    std::optional<cuda::Event> sent;
  };
  Slot& slot(int bucket);
  std::optional<cuda::Event> copy(const Tensor& to, const Tensor& from) const;

  Device device_;
  std::vector<Slot> slots_;
};

}  // namespace tessera::optim
