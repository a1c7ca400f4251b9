// Where a bucket's gradient of one micro-batch is born, in the dtype of its parameters, and how it
// reaches its owner.
//
// The reducer (optim/zero/reducer.h) opens a bucket when its first contribution arrives, sends it
// when it is complete, and hands over the collective that does so. From then until that collective
// is done the memory belongs to the communication.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "optim/zero/partition.h"
#include "optim/zero/step_state.h"

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
  /// From now on buckets are completed in this order. Called between micro-steps.
  virtual void follow(const std::vector<int>&) {}
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

/// Stages 2 and 3: memory that buckets pass through, from its two ends in turn. It is as large as
/// two neighbours in the order of the layout take: while one is on its way the next one fills, and
/// where an operation's weight and bias lie in two buckets, both fill. So it is never larger than
/// the model, also where one parameter is larger than all others.
///
///   | bucket 4 -->         |    <-- bucket 5 |
///   | bucket 6 -->   |                          when bucket 4 has left, and so on
///
/// A tied parameter's bucket, which opens first and closes last, has a slot of its own. Buckets
/// that find no room take slots of their own size beside the ring. They do so in the first
/// micro-step where a model completes its buckets in another order than that of its registration;
/// after it the ring follows that order.
class RingGradients : public GradientPolicy {
 public:
  RingGradients(const Partition& partition, dist::Communicator& communicator);
  Tensor open(int bucket) override;
  void sent(int bucket, const dist::Work& work) override;
  void settle() override;
  void follow(const std::vector<int>& order) override;

 private:
  struct Slot {
    Tensor memory;
    dist::Work work;
    int bucket = -1;  // that fills it, or -1
  };
  /// The bucket that came last to an end of the ring.
  struct End {
    dist::Range range;
    dist::Work work;
    int bucket = -1;  // while it fills, or -1
  };
  Slot new_slot(int64_t elements);
  /// Gives buckets that come in this order the two ends in turn; returns the elements of the two
  /// neighbours that have most.
  int64_t take_turns(const std::vector<int>& order);
  static Tensor claim(Slot& slot, int bucket, int64_t elements);
  /// A bucket's place at an end, where no bucket that fills is in its way.
  std::optional<Tensor> place(size_t end, int bucket);
  Slot& free_slot(int64_t elements);

  const Partition& partition_;
  dist::Communicator& communicator_;
  Tensor ring_;
  std::array<End, 2> ends_;
  std::vector<size_t> end_of_;  // bucket -> the end that it goes to
  std::vector<Slot> beside_;    // of buckets that found no room
  std::vector<Slot> own_;       // of the buckets of tied parameters
  std::vector<int> own_slot_;   // bucket -> index in own_, or -1
};

/// How a complete bucket comes to the gradient sums of its owners.
class ReductionPolicy {
 public:
  struct Sent {
    dist::Work left;     // the gradient's memory is free
    dist::Work arrived;  // the own shard's sum has what was sent
  };
  virtual ~ReductionPolicy() = default;

  virtual void begin(const MicroStep&) {}
  virtual Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) = 0;
};

/// Contributions are added in order of micro-batch: the same bits for any number of ranks.
class OrderedReduction : public ReductionPolicy {
 public:
  OrderedReduction(const Partition& partition, dist::Communicator& communicator)
      : partition_(partition), communicator_(communicator) {}
  Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) override;

 private:
  const Partition& partition_;
  dist::Communicator& communicator_;
};

/// The transport's reduce-scatter.
class FastReduction : public ReductionPolicy {
 public:
  FastReduction(const Partition& partition, dist::Communicator& communicator);
  Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) override;

 private:
  dist::Work reduce_scatter(int bucket, const Tensor& gradient, const MicroStep& micro_step);

  const Partition& partition_;
  dist::Communicator& communicator_;
  Tensor scattered_;  // what a reduce-scatter gives, one shard
};

/// no_sync: this rank's micro-batches are added up here, and the sum is sent with the last of them.
class LocalSums : public ReductionPolicy {
 public:
  LocalSums(const Partition& partition, dist::Communicator& communicator,
            std::unique_ptr<ReductionPolicy> of_sums)
      : partition_(partition), communicator_(communicator), of_sums_(std::move(of_sums)) {}
  void begin(const MicroStep& micro_step) override;
  Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) override;

 private:
  const Partition& partition_;
  dist::Communicator& communicator_;
  std::unique_ptr<ReductionPolicy> of_sums_;
  Tensor sums_;  // [flat_elements]; there are none until a step has several micro-steps
};

}  // namespace tessera::optim
