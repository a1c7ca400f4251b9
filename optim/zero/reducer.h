// The first phase of a step: backward computes the gradients of a micro-batch's loss, and the ranks
// add them to the gradient sums. Each rank owns a shard of the sums.
//
// Backward calls two hooks of a trainable parameter. `gradient_buffer` opens the parameter's
// bucket, and returns the parameter's place in the memory of the bucket. `gradient_complete` marks
// the gradient as complete.
//
// A bucket is sent when all its gradients are complete and all buckets that come before it have
// been sent. Buckets have the same order on all ranks, because all ranks must start collectives in
// the same order. At first it is the reverse order of registration. After the first micro-step in
// which rank 0 has data, it is the order in which rank 0's backward completed the buckets, as in
// PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020, section 4.2.1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "optim/tables/table.h"
#include "optim/zero/end_of_step/batch_statistics.h"
#include "optim/zero/end_of_step/step_record.h"
#include "optim/zero/staged_partition.h"
#include "optim/zero/step_state.h"

namespace tessera::optim {

class Reducer {
 public:
  /// The objects in which a reducer records a micro-step.
  struct Notes {
    MicroStepLog& log;
    StepRecord& record;
    BatchStatistics& statistics;
  };
  Reducer(const ZeroOptions& options, std::shared_ptr<dist::Communicator> communicator,
          const Notes& notes);
  virtual ~Reducer();  // removes the gradient hooks; the partitions must still exist
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Adds a partition: sets the gradient hooks of its parameters, and sorts its buckets into the
  /// order of collectives.
  void add(TrainablePartition& partition);
  /// Undoes add(): removes the hooks, and removes the buckets from the order. Does nothing for a
  /// partition that was not added.
  void remove(const TrainablePartition& partition);
  /// Adds frozen parameters: they have no gradient, but forward and backward read their values.
  void add_frozen(StagedPartition& partition);
  void remove_frozen(StagedPartition& partition);
  /// Adds a row-sparse table, which may be frozen. If the table is trainable, its gradient is sent
  /// when backward is over.
  void add_table(Table& table) { tables_.push_back(&table); }
  void remove_table(const Table& table) { std::erase(tables_, &table); }
  /// Records that a backward has completed a table's gradient. `number` is the table's index among
  /// the optimizer's trainable parameters.
  void note_completed_table(int64_t number) { reached_.push_back(number); }
  /// Forgets everything learned from earlier micro-steps: the order of buckets, and the log. Called
  /// after parameters were added, because later micro-steps differ from earlier ones.
  virtual void forget();

  virtual void begin(const MicroStep& micro_step);
  /// Runs forward and backward of the current micro-step. `loss` returns the micro-batch's mean
  /// loss, or an undefined tensor for no data; gradients are multiplied by `scale`.
  virtual void run(const std::function<Tensor()>& loss, float scale);
  void backward(const Tensor& loss, float scale);
  /// Replaces forward and backward if this rank has no data.
  void skip();

  /// Waits until the step's gradient sums of this rank's shards are complete. Table::finish waits
  /// for the sums of a row-sparse table.
  void finish();

 protected:
  // The parts of begin() and run(), which GraphedReducer combines differently.
  void start(const MicroStep& micro_step);
  /// Makes buckets ready to fill, and parameters ready for a forward.
  void open();
  /// Runs backward, and sends every bucket and every table.
  void propagate(const Tensor& loss, float scale);
  /// Waits for all collectives in flight, gathers of parameters included. Needed before a graph
  /// capture and at its end.
  void wait_for_all();

  void begin_forward();
  void begin_backward();
  void end_backward();
  /// Completes and sends the buckets that backward left incomplete, then sends the tables.
  void send_rest();
  /// Records the loss and batch statistics of the micro-batch. Does nothing if this rank only
  /// repeats another rank's micro-batch (MicroStep::contributes is false).
  void note_data(const Tensor& loss);
  /// Records which parameters got a gradient, if the rank contributes.
  void note_reached();

  const ZeroOptions& options_;
  std::shared_ptr<dist::Communicator> communicator_;
  Notes notes_;
  MicroStep micro_step_;
  std::vector<int64_t> reached_;  // parameters that got a gradient in the current micro-step

 private:
  /// The state of a bucket in the current micro-step.
  struct Bucket {
    Tensor gradient;            // the bucket's memory, from its opening until it is sent
    std::vector<bool> written;  // per parameter of the bucket: true if its gradient is complete
    int64_t missing = 0;        // parameters still without a complete gradient
    dist::Work arrived;  // done when all ranks' gradients are in the sum of this rank's shard
    int64_t turn = 0;    // buckets are sent in ascending order of their turns
  };
  /// The buckets of a partition.
  struct PartitionBuckets {
    TrainablePartition& partition;
    std::vector<Bucket> buckets;

    Bucket& bucket(int index) { return buckets[static_cast<size_t>(index)]; }
  };
  /// An entry of order_: a bucket, given by its partition and by its index in that partition.
  struct Turn {
    PartitionBuckets* part;
    int bucket;

    bool operator==(const Turn&) const = default;
  };
  void attach(PartitionBuckets& part);
  static void detach(const TrainablePartition& partition);
  void add_turns(PartitionBuckets& part);
  /// Sets turns in reverse order of registration, which is the same on every rank.
  static void reset_turns(PartitionBuckets& part);
  void sort_turns();
  /// Adopts rank 0's order of completing buckets, once rank 0 has had data. Collective.
  void agree_on_order();
  void open_bucket(PartitionBuckets& part, int bucket);
  Tensor gradient_view(PartitionBuckets& part, int parameter);
  void gradient_complete(PartitionBuckets& part, int parameter);
  void note_completed(PartitionBuckets& part, int bucket);
  /// Repeats, with zero gradients, the gathers and sends of the micro-step whose parameter events
  /// are in the log.
  void follow_events();
  Table* find_table(int64_t registration) const {
    const auto found = std::ranges::find_if(
        tables_, [&](const Table* t) { return t->info().placed.registration == registration; });
    return found == tables_.end() ? nullptr : *found;
  }
  void complete_missing();  // parameters that backward did not reach get zeros
  void complete_bucket(PartitionBuckets& part, int bucket);
  void send_complete();
  void send(PartitionBuckets& part, int bucket);

  std::vector<std::unique_ptr<PartitionBuckets>> trainable_;
  std::vector<ParameterPolicy*> parameters_;  // of all partitions, frozen ones included
  std::vector<StagedPartition*> frozen_;
  std::vector<Table*> tables_;
  std::vector<Turn> order_;      // all buckets in the order of sending, the same on every rank
  size_t next_ = 0;              // index in order_ of the next bucket to send
  bool agreed_ = false;          // true once order_ is rank 0's order of completion
  std::vector<Turn> completed_;  // until agreed_: buckets of this micro-step in order of completion
};

}  // namespace tessera::optim
