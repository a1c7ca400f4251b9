// Reduce, the first verb of a step: from a micro-batch's loss to gradient sums at their owners.
//
// Backward calls a leaf's hooks: `gradient_buffer` opens the bucket of the parameter and gives its
// place there, `gradient_complete` counts down. A complete bucket is sent, but only after those
// before it in the order of collectives, because every rank must start them in one order. That is
// the reverse order of registration, and after the first micro-step the order in which rank 0's
// backward has completed them, as in PyTorch's DistributedDataParallel (Li et al., "PyTorch
// Distributed", VLDB 2020, section 4.2.1).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "optim/zero/end_of_step/batch_statistics.h"
#include "optim/zero/end_of_step/step_record.h"
#include "optim/zero/staged_partition.h"
#include "optim/zero/step_state.h"

namespace tessera::optim {

class Reducer {
 public:
  /// Where a rank leaves what it does and finds out in a micro-step.
  struct Notes {
    MicroStepLog& log;
    StepRecord& record;
    BatchStatistics& statistics;
  };
  Reducer(const ZeroOptions& options, std::shared_ptr<dist::Communicator> communicator,
          const Notes& notes);
  virtual ~Reducer();  // takes the gradients' hooks off; the partitions must still be there
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Takes the gradients of a partition over: sets their hooks, and sorts its buckets among those
  /// of the partitions before it.
  void add(TrainablePartition& partition);
  /// Gives a partition's gradients back: its hooks go, and its buckets leave the order. Does
  /// nothing for a partition that was not added.
  void remove(const TrainablePartition& partition);
  /// Frozen parameters have no gradient, but forward and backward find their values too.
  void add_frozen(StagedPartition& partition);
  void remove_frozen(StagedPartition& partition);
  /// Forgets what micro-steps have shown so far, the order of buckets too: after partitions came,
  /// they are others.
  virtual void forget();

  virtual void begin(const MicroStep& micro_step);
  /// The running micro-step's forward and backward. `loss` gives the micro-batch's mean loss, or an
  /// undefined tensor for no data; gradients are multiplied by `scale`.
  virtual void run(const std::function<Tensor()>& loss, float scale);
  void backward(const Tensor& loss, float scale);
  /// In place of forward and backward: this rank has no data.
  void skip();

  /// Waits for the own shards of the step's gradient sums.
  void finish();

 protected:
  // What begin and run consist of.
  void start(const MicroStep& micro_step);
  /// Buckets begin to fill, and forward to find its parameters.
  void open();
  /// Backward, until every bucket is complete.
  void propagate(const Tensor& loss, float scale);
  /// Waits for everything that is under way, that of parameters too: before a capture, and at its
  /// end.
  void settle();

  void begin_forward();
  void begin_backward();
  void end_backward();
  /// Counts a micro-batch that contributes: its loss and its batch statistics.
  void note_data(const Tensor& loss);
  /// Notes which parameters have got their gradient, where the rank contributes.
  void note_reached();

  const ZeroOptions& options_;
  std::shared_ptr<dist::Communicator> communicator_;
  Notes notes_;
  MicroStep micro_step_;
  std::vector<int64_t> reached_;  // numbers of parameters, in the running micro-step

 private:
  /// Where a bucket stands in the running micro-step.
  struct Bucket {
    Tensor gradient;           // while open
    std::vector<bool> written;
    int64_t missing = 0;       // parameters still without a complete gradient
    dist::Work arrived;        // at its owner, after it was sent
    int64_t turn = 0;          // buckets are sent in ascending order of it
  };
  /// The buckets of a partition.
  struct Filling {
    TrainablePartition& of;
    std::vector<Bucket> buckets;

    Bucket& bucket(int index) { return buckets[static_cast<size_t>(index)]; }
  };
  /// A bucket's place in the order of collectives.
  struct Turn {
    Filling* filling;
    int bucket;

    bool operator==(const Turn&) const = default;
  };
  void attach(Filling& filling);
  static void detach(const TrainablePartition& partition);
  void add_turns(Filling& filling);
  /// Turns by registration, which every rank knows without asking.
  static void reset_turns(Filling& filling);
  void sort_turns();
  /// Gives buckets the order in which rank 0 has completed them, once it has had data. Collective.
  void agree_on_order();
  void open_bucket(Filling& filling, int bucket);
  Tensor gradient_view(Filling& filling, int parameter);
  void gradient_complete(Filling& filling, int parameter);
  void note_completed(Filling& filling, int bucket);
  void follow_events();
  void complete_missing();  // parameters that backward did not reach give zeros
  void complete_bucket(Filling& filling, int bucket);
  void send_complete();
  void send(Filling& filling, int bucket);

  std::vector<std::unique_ptr<Filling>> trainable_;
  std::vector<ParameterPolicy*> parameters_;  // of all partitions, of frozen ones too
  std::vector<StagedPartition*> frozen_;
  std::vector<Turn> order_;                   // in which collectives start, the same on every rank
  size_t next_ = 0;
  bool agreed_ = false;          // order_ is rank 0's order of completion
  std::vector<Turn> completed_;  // buckets in the running micro-step, until the order is agreed
};

}  // namespace tessera::optim
