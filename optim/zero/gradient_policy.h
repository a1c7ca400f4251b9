// Where the gradient of a bucket in one micro-batch is written, in the dtype of its parameters, and
// how it reaches the owners of its shards.
//
// The reducer (optim/zero/reducer.h) opens a bucket when its first contribution arrives, sends it
// when it is complete, and then passes the collective to sent(). Until that collective is done the
// memory belongs to the communicator.
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
  /// The bucket was sent: its memory is free when `work` is done.
  virtual void sent(int bucket, const dist::Work& work) = 0;
  /// Waits until all memory is free.
  virtual void wait_for_all() = 0;
  /// From now on buckets are completed in this order. Called between micro-steps.
  virtual void follow(const std::vector<int>&) {}
};

/// Stages 0 and 1: a buffer as large as the model, with a place for every bucket.
class FullGradients : public GradientPolicy {
 public:
  FullGradients(const Partition& partition, dist::Communicator& communicator);
  Tensor open(int bucket) override;
  void sent(int bucket, const dist::Work& work) override;
  void wait_for_all() override;
  const Tensor& flat() const { return flat_; }

 private:
  const Partition& partition_;
  Tensor flat_;
  std::vector<dist::Work> works_;
};

/// Stages 2 and 3: a ring that buckets use from its two ends in turn. It has room for the largest
/// pair of neighbours in the order of the layout: one is in flight while the next one fills, and if
/// the weight and bias of an operation lie in two buckets, both fill at once. So the ring is never
/// larger than the model, even if one parameter is larger than all others.
///
///   | bucket 4 -->         |    <-- bucket 5 |
///   | bucket 6 -->   |                          when bucket 4 has left, and so on
///
/// The bucket of a tied parameter opens first and closes last, so it has a slot of its own. Buckets
/// that find no room get slots of their own size beside the ring. This happens in the first
/// micro-step of a model that does not complete its buckets in reverse order of registration;
/// afterwards the ring follows the order of the model.
class RingGradients : public GradientPolicy {
 public:
  RingGradients(const Partition& partition, dist::Communicator& communicator);
  Tensor open(int bucket) override;
  void sent(int bucket, const dist::Work& work) override;
  void wait_for_all() override;
  void follow(const std::vector<int>& order) override;

 private:
  struct Slot {
    Tensor memory;
    dist::Work work;
    int bucket = -1;  // the bucket that is filling it, or -1
  };
  /// An end of the ring, with the bucket that used it last.
  struct End {
    dist::Range range;
    dist::Work work;
    int bucket = -1;  // that bucket while it fills, else -1
  };
  Slot new_slot(int64_t elements);
  /// Assigns the two ends in turn to buckets that come in this order; returns the elements of the
  /// largest pair of neighbours.
  int64_t take_turns(const std::vector<int>& order);
  static Tensor claim(Slot& slot, int bucket, int64_t elements);
  /// The memory of a bucket at an end; nullopt if a bucket that still fills is in the way.
  std::optional<Tensor> place(size_t end, int bucket);
  Slot& free_slot(int64_t elements);

  const Partition& partition_;
  dist::Communicator& communicator_;
  Tensor ring_;
  std::array<End, 2> ends_;
  std::vector<size_t> end_of_;  // bucket -> the end that it goes to
  std::vector<Slot> beside_;    // memory of buckets that found no room in the ring
  std::vector<Slot> own_;       // memory of the buckets of tied parameters
  std::vector<int> own_slot_;   // bucket -> index in own_, or -1
};

/// How a complete bucket is added to the gradient sums of its owners.
class ReductionPolicy {
 public:
  struct Sent {
    dist::Work left;     // done when the gradient's memory is free
    dist::Work arrived;  // done when the own shard's sum has what was sent
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

/// The transport's reduce-scatter: the same bits from run to run.
class FastReduction : public ReductionPolicy {
 public:
  FastReduction(const Partition& partition, dist::Communicator& communicator);
  Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) override;

 private:
  dist::Work reduce_scatter(int bucket, const Tensor& gradient, const MicroStep& micro_step);

  const Partition& partition_;
  dist::Communicator& communicator_;
  Tensor scattered_;  // the result of a reduce-scatter, one shard
};

/// no_sync: adds up the micro-batches of this rank, and sends the sum with the last of them.
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
  Tensor sums_;  // [flat_elements]; undefined until a step has several micro-steps
};

}  // namespace tessera::optim
