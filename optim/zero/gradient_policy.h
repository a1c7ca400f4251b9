// Where a bucket's gradient of one micro-batch is born, in the dtype of its parameters.
//
// The optimizer opens a bucket when its first contribution arrives, and hands over the collective
// that sends it when it is complete. From then until that collective is done the memory belongs to
// the communication.
#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

class GradientPolicy {
 public:
  virtual ~GradientPolicy() = default;

  /// Memory for the bucket's gradient, [bucket elements]; waits until it is free.
  virtual Tensor open(int bucket) = 0;
  /// The bucket is on its way: its memory is free when `work` is done.
  virtual void sent(int bucket, const dist::Work& work) = 0;
  /// Waits until all memory is free.
  virtual void settle() = 0;
};

/// Stages 0 and 1: a buffer as large as the model, a place for every bucket.
class FullGradients : public GradientPolicy {
 public:
  FullGradients(const Partition& partition, dist::Communicator& communicator);
  Tensor open(int bucket) override;
  void sent(int bucket, const dist::Work& work) override;
  void settle() override;
  const Tensor& flat() const { return flat_; }

 private:
  const Partition& partition_;
  Tensor flat_;
  std::vector<dist::Work> works_;
};

/// Stages 2 and 3: a ring of slots, each as large as the largest bucket, which buckets pass
/// through. A tied parameter's bucket, which opens first and closes last, has a slot of its own.
/// Where a model completes its buckets in another order than that of its registration, the ring
/// grows by the slots that this takes.
class RingGradients : public GradientPolicy {
 public:
  RingGradients(const Partition& partition, dist::Communicator& communicator);
  Tensor open(int bucket) override;
  void sent(int bucket, const dist::Work& work) override;
  void settle() override;

  /// Slots that a ring starts with: one fills while the other is on its way, or, where an
  /// operation's weight and bias lie in two buckets, fills with it.
  static constexpr int first_slots = 2;

 private:
  struct Slot {
    Tensor memory;
    dist::Work work;
    int bucket = -1;  // that fills it, or -1
  };
  Slot& free_slot();
  Tensor claim(Slot& slot, int bucket);
  Slot new_slot(int64_t elements);

  const Partition& partition_;
  dist::Communicator& communicator_;
  std::vector<Slot> ring_;
  size_t next_ = 0;
  std::vector<Slot> own_;      // of the buckets of tied parameters
  std::vector<int> own_slot_;  // bucket -> index in own_, or -1
};

}  // namespace tessera::optim
