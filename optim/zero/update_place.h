// Where a rank's update runs: with its master weights and state, on the device of the values or,
// with offload, on the host.
//
// The host needs gradient sums to come down and rounded weights to go up. From a GPU, copies of two
// buckets are under way on the device's copy stream while the CPU updates a third one between them:
//
//   copy stream   sums 5 | sums 4    | values 5, sums 3 | values 4, sums 2 | ...
//   CPU                    update 5  | update 4         | update 3         | ...
//
// From the other device in host memory (core/device.h) each copy is done when its call returns.
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

  /// On which the rule runs, and where master weights and state are.
  virtual Device device() const = 0;
  /// Whether the parameters' values lie there too, so that f32 values need no master weights.
  virtual bool has_values() const = 0;
  /// Zeroed f32 memory for master weights or state.
  virtual Tensor zeros(int64_t elements) const = 0;

  /// Whether a bucket's sums may be started before those of the bucket before it are used.
  virtual bool ahead() const = 0;
  /// Begins to bring a bucket's sums, as the calling thread's stream has them, to device(). Buckets
  /// come from the last to the first.
  virtual void start(int bucket, const Tensor& sums) = 0;
  /// The sums of a bucket that was started, when they are there.
  virtual Tensor take(int bucket) = 0;
  /// Rounds the updated master weights of the bucket that was taken last into `values`.
  virtual void round(int bucket, const Tensor& weights, const Tensor& values) = 0;
};

/// Where the ranks compute: everything is there.
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
  Tensor sums_;  // between start and take
};

/// Offload: on the host, while the ranks compute on another device.
class UpdateOnHost : public UpdatePlace {
 public:
  struct Crossing {
    int buckets = 0;
    int64_t largest = 0;  // elements of a bucket that cross
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
    Tensor brought_sums;  // of the bucket that has the slot
    std::optional<cuda::Event> brought;  // on a GPU: behind the last copy of each kind
    std::optional<cuda::Event> sent;
  };
  Slot& slot(int bucket);
  /// Zeroed memory of the host, pinned where the other device is a GPU.
  Tensor host_zeros(int64_t elements, DType dtype, Category category) const;
  std::optional<cuda::Event> copy(const Tensor& to, const Tensor& from) const;

  Device other_;
  std::vector<Slot> slots_;
};

}  // namespace tessera::optim
