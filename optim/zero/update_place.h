// Where a rank updates its parameters, and where it keeps the master weights and the state of the
// rule: on the ranks' device or, with offload, on the host.
//
// With offload, the device sends gradient sums to the host. The host sends back the new values of
// the parameters, which are the rounded master weights. With a GPU, these copies overlap with
// updates. While the CPU updates a bucket, the copy stream copies the values of the previous bucket
// to the device, and the sums of the next bucket to the host. Here the buckets are 5, 4, 3, ...:
//
//   copy stream   sums 5 | sums 4    | values 5, sums 3 | values 4, sums 2 | ...
//   CPU                    update 5  | update 4         | update 3         | ...
//
// If the ranks compute on the second CPU device (core/device.h), copies do not overlap with
// updates: each copy is done when its call returns.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/tensor.h"

namespace tessera::optim {

class UpdatePlace {
 public:
  virtual ~UpdatePlace() = default;

  /// The device that runs the rule and holds master weights and state.
  virtual Device device() const = 0;
  /// True if the parameters' values are on device() too, so that f32 values need no master weights.
  virtual bool has_values() const = 0;
  /// Returns zeroed f32 memory for master weights or state.
  virtual Tensor zeros(int64_t elements) const = 0;

  /// True if the copy of a bucket's sums may start while the previous bucket is being updated.
  virtual bool ahead() const = 0;
  /// Starts to copy a bucket's sums to device(), after earlier work of the calling thread's stream.
  /// Callers start all buckets in ascending or in descending order, and take them in the same
  /// order. If UpdateOnHost has two slots (host buffers), one is for even and one for odd buckets,
  /// so this order uses the slots in turn.
  virtual void start(int bucket, const Tensor& sums) = 0;
  /// Waits for the copy that start(bucket) has begun, and returns the sums on device().
  virtual Tensor take(int bucket) = 0;
  /// Rounds updated master weights into `values`. `bucket` is the bucket that was taken last.
  virtual void round(int bucket, const Tensor& weights, const Tensor& values) = 0;
};

/// Updates on the device of the ranks, where sums and values already are.
class UpdateOnDevice : public UpdatePlace {
 public:
  explicit UpdateOnDevice(Device device) : device_(device) {}
  Device device() const override { return device_; }
  bool has_values() const override { return true; }
  Tensor zeros(int64_t elements) const override;
  bool ahead() const override { return false; }
  void start(int, const Tensor& sums) override { sums_ = sums; }
  Tensor take(int) override { return std::exchange(sums_, {}); }
  void round(int bucket, const Tensor& weights, const Tensor& values) override;

 private:
  Device device_;
  Tensor sums_;  // the sums that start() was given, until take() returns them
};

/// Offload: updates on the host, while the ranks compute on another device.
class UpdateOnHost : public UpdatePlace {
 public:
  /// The number, sizes and dtypes of the copies between the host and the device of the ranks.
  struct Crossing {
    int buckets = 0;
    int64_t largest = 0;  // the most elements that are copied for one bucket
    DType sums = DType::f32;
    DType values = DType::f32;
  };
  /// `other`: the device where the ranks compute.
  UpdateOnHost(Device other, const Crossing& crossing);
  Device device() const override { return Device{}; }
  bool has_values() const override { return false; }
  Tensor zeros(int64_t elements) const override;
  bool ahead() const override { return !other_.is_cpu(); }
  void start(int bucket, const Tensor& sums) override;
  Tensor take(int bucket) override;
  void round(int bucket, const Tensor& weights, const Tensor& values) override;

 private:
  struct Slot {
    Tensor sums;
    Tensor values;
    Tensor copied_sums;  // the part of `sums` that the slot's bucket uses
    // On a GPU: the ends of the slot's last copy of sums and of its last copy of values.
    std::optional<cuda::Event> sums_copied;
    std::optional<cuda::Event> values_copied;
  };
  Slot& slot(int bucket);
  /// Returns zeroed host memory, pinned if the ranks compute on a GPU.
  Tensor host_zeros(int64_t elements, DType dtype, Category category) const;
  std::optional<cuda::Event> copy(const Tensor& to, const Tensor& from) const;

  Device other_;
  std::vector<Slot> slots_;
};

}  // namespace tessera::optim
