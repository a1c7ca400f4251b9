// A GradientPolicy provides the memory of a bucket's gradient in one micro-batch, in the dtype of
// the bucket's parameters. A ReductionPolicy sends the gradient to the owners of its shards.
//
// The reducer (optim/zero/reducer.h) opens a bucket when the first gradient of its parameters is
// written. The reducer sends the bucket when all gradients of this bucket, and of all buckets
// before it in the order of collectives, are complete. The result of ReductionPolicy::send() has a
// member `left`: work that is done when the reduction no longer reads the bucket's memory. The
// reducer passes `left` to GradientPolicy::sent() immediately. The GradientPolicy waits for `left`
// before it reuses the bucket's memory.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "dist/communicator.h"
#include "optim/zero/options.h"
#include "optim/zero/partition.h"
#include "optim/zero/step_state.h"

namespace tessera::optim {

class GradientPolicy {
 public:
  virtual ~GradientPolicy() = default;

  /// Called before the first open() of each micro-step.
  virtual void begin(const MicroStep&) {}
  /// Returns memory for the bucket's gradient, [bucket elements]. Waits until the memory is free.
  virtual Tensor open(int bucket) = 0;
  /// Called after the bucket was sent. The bucket's memory is free when `work` is done.
  virtual void sent(int bucket, const dist::Work& work) = 0;
  /// Waits until all memory is free.
  virtual void wait_for_all() = 0;
  /// Called at the end of a step. Until the next open() no bucket needs memory.
  virtual void end_step() {}
  /// Announces the order in which buckets are completed from now on. Called between micro-steps.
  virtual void follow(const std::vector<int>&) {}
};

/// Stages 0 and 1: every bucket has its own memory until the end of the step.
class FullGradients : public GradientPolicy {
 public:
  FullGradients(const Partition& partition, dist::Communicator& communicator);
  Tensor open(int bucket) override;
  void sent(int bucket, const dist::Work& work) override;
  void wait_for_all() override;
  void end_step() override;
  BucketMemory& memory() { return memory_; }

 private:
  BucketMemory memory_;
  std::vector<dist::Work> works_;
};

/// Stages 2 and 3: the buckets share one buffer, called the ring. They are placed at the left and
/// the right end of the buffer in turn, so that one bucket is in flight while the next one fills.
/// The ring has room for the largest pair of buckets that follow each other. Both buckets of a pair
/// fill at the same time if they hold the weight and the bias of one operation.
///
///   | bucket 4 -->         |    <-- bucket 5 |   bucket 4 is in flight, bucket 5 fills
///   | bucket 6 -->   |          <-- bucket 5 |   bucket 4 has been sent, bucket 6 fills
///
/// A tied parameter is registered under several names. Its bucket is opened first and completed
/// last. The bucket has memory outside the ring, because in the ring it would occupy one end during
/// all of backward. Any other bucket gets a slot outside the ring only if the buckets that are
/// still filling leave no free memory in the ring. This can happen in the first micro-step if the
/// model does not complete its buckets in reverse order of registration. Afterwards the ring
/// follows the order of the model.
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
    int bucket = -1;  // the bucket that is filling the slot, or -1
  };
  /// An end of the ring.
  struct End {
    dist::Range range;  // the ring's elements that this end's last bucket used
    dist::Work work;    // done when this range is free
    int bucket = -1;    // the bucket that is filling the end, or -1
  };
  Slot new_slot(int64_t elements);
  /// Assigns the two ends in turn to the buckets of `order`. Returns the number of elements of the
  /// largest pair of neighbours in `order`.
  int64_t take_turns(const std::vector<int>& order);
  static Tensor claim(Slot& slot, int bucket, int64_t elements);
  /// Returns memory for a bucket at an end, and waits until the memory is free. Returns nullopt if
  /// a bucket that still fills needs the memory.
  std::optional<Tensor> place(size_t end, int bucket);
  Slot& free_slot(int64_t elements);

  const Partition& partition_;
  dist::Communicator& communicator_;
  Tensor ring_;
  std::array<End, 2> ends_;
  std::vector<size_t> end_of_;  // bucket -> the end of the ring that open() tries first
  std::vector<Slot> beside_;    // memory of buckets for which the ring had no free memory
  std::vector<Slot> own_;       // memory of the buckets of tied parameters
  std::vector<int> own_slot_;   // bucket -> index in own_, or -1
};

/// True if a partition of trained parameters uses GradientsInSums. The conditions are a single rank
/// on the CPU, gradients with the dtype of their sums, ordered reduction, and no options.no_sync.
bool gradients_in_sums(const Partition& partition, const dist::Communicator& communicator,
                       const ZeroOptions& options);

/// The first micro-step of a step writes gradients directly into the sums. So a step with one
/// micro-step needs no other memory for gradients. Works only on a single rank, because the sums of
/// several ranks are sharded.
class GradientsInSums : public GradientPolicy {
 public:
  /// `make_later` makes the policy for all micro-steps of a step except the first. It is called
  /// once, in the first step that has several micro-steps, and its policy is kept for the rest of
  /// the run.
  GradientsInSums(const Partition& partition,
                  std::function<std::unique_ptr<GradientPolicy>()> make_later)
      : partition_(partition), make_later_(std::move(make_later)) {}
  void begin(const MicroStep& micro_step) override;
  Tensor open(int bucket) override;
  void sent(int bucket, const dist::Work& work) override;
  void wait_for_all() override;
  void end_step() override;
  void follow(const std::vector<int>& order) override;

 private:
  const Partition& partition_;
  std::function<std::unique_ptr<GradientPolicy>()> make_later_;
  std::unique_ptr<GradientPolicy> later_;
  std::vector<int> order_;  // argument of the last follow(); empty before the first follow()
  bool first_ = true;       // true during the first micro-step of a step
};

/// Sends a bucket's complete gradient to the owners of the bucket's shards, which add the gradient
/// to their sums.
class ReductionPolicy {
 public:
  struct Sent {
    dist::Work left;     // done when the gradient's memory is free
    // Done when all ranks' gradients are in the sum of this rank's shard. With LocalSums, only the
    // last micro-step of a step adds to this sum; in earlier micro-steps `arrived` is empty.
    dist::Work arrived;
  };
  virtual ~ReductionPolicy() = default;

  virtual void begin(const MicroStep&) {}
  virtual Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) = 0;
  /// Returns the trace's station (core/trace.h) of a gradient that is complete in this micro-step:
  /// `ready`, or `none` if send() only adds the gradient to a local sum.
  virtual trace::Station station(const MicroStep&) const { return trace::Station::ready; }
};

/// Adds contributions in order of micro-batch. Gives the same bits for any number of ranks.
class OrderedReduction : public ReductionPolicy {
 public:
  OrderedReduction(const Partition& partition, dist::Communicator& communicator)
      : partition_(partition), communicator_(communicator) {}
  Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) override;

 private:
  const Partition& partition_;
  dist::Communicator& communicator_;
};

/// Uses the transport's reduce-scatter. Gives the same bits from run to run.
class FastReduction : public ReductionPolicy {
 public:
  FastReduction(const Partition& partition, dist::Communicator& communicator);
  Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) override;

 private:
  dist::Work reduce_scatter(int bucket, const Tensor& gradient, const MicroStep& micro_step);

  const Partition& partition_;
  dist::Communicator& communicator_;
  Tensor scattered_;  // the result of a reduce-scatter, as large as the largest shard of a bucket
};

/// With no_sync: adds up the gradients of this rank's micro-batches in a step, and sends the sum in
/// the last micro-step.
class LocalSums : public ReductionPolicy {
 public:
  LocalSums(const Partition& partition, dist::Communicator& communicator,
            std::unique_ptr<ReductionPolicy> reduction)
      : partition_(partition), communicator_(communicator), reduction_(std::move(reduction)) {}
  void begin(const MicroStep& micro_step) override;
  Sent send(int bucket, const Tensor& gradient, const MicroStep& micro_step) override;
  trace::Station station(const MicroStep& micro_step) const override {
    return micro_step.last() ? trace::Station::ready : trace::Station::none;
  }

 private:
  const Partition& partition_;
  dist::Communicator& communicator_;
  std::unique_ptr<ReductionPolicy> reduction_;
  Tensor sums_;  // [flat_elements]; undefined until a step has several micro-steps
};

}  // namespace tessera::optim
