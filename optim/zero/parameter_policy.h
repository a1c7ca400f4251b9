// How an operation finds the values of the parameters that it reads, and how a rank's update
// reaches the others.
//
//   stage 0      ReplicatedParameters   every rank has updated everything: nothing to do
//   stages 1, 2  GatheredParameters     after an update each bucket is gathered; who reads waits
//   stage 3      ShardedParameters      a block is gathered when it is read, and let go after
//
// `use` is called before an operation reads a parameter, `done` behind it.
#pragma once

#include <vector>

#include "optim/zero/partition.h"
#include "optim/zero/step_state.h"

namespace tessera::optim {

class ParameterPolicy {
 public:
  virtual ~ParameterPolicy() = default;

  virtual void use(int parameter) = 0;
  virtual void done(int) {}
  /// The own values of a bucket are new. Returns what makes them known to the other ranks.
  virtual dist::Work publish(int bucket) = 0;
  /// After this, operations find the values as they are now.
  virtual void synchronize() {}
  /// Whether ranks gather values in the order in which their operations read them.
  virtual bool gathers_as_read() const { return false; }

  // Within a micro-step.
  virtual void begin_forward() {}
  virtual void begin_backward() {}
  virtual void end_backward() {}
};

class ReplicatedParameters : public ParameterPolicy {
 public:
  void use(int) override {}
  dist::Work publish(int) override { return {}; }
};

class GatheredParameters : public ParameterPolicy {
 public:
  GatheredParameters(const Partition& partition, dist::Communicator& communicator);
  ~GatheredParameters() override;
  void use(int parameter) override;
  dist::Work publish(int bucket) override;
  void synchronize() override;

 private:
  void wait(size_t bucket);

  const Partition& partition_;
  dist::Communicator& communicator_;
  std::vector<dist::Work> published_;  // one a bucket
};

/// Stage 3. What is gathered at once is a unit: the buckets of a block that the model names, or one
/// bucket where it names none. A unit stays until another takes its place; the one after it, as the
/// last micro-step of the kind has shown, is gathered meanwhile. A unit with a tied parameter stays
/// until the backward is over.
///
/// Which gathers start, and when, follows from the order in which operations read parameters, which
/// is the program's and so the same on every rank.
class ShardedParameters : public ParameterPolicy {
 public:
  ShardedParameters(const Partition& partition, dist::Communicator& communicator, bool prefetch,
                    MicroStepLog& log);
  ~ShardedParameters() override;
  void use(int parameter) override;
  void done(int parameter) override;
  dist::Work publish(int) override;
  void synchronize() override { release_all(); }
  bool gathers_as_read() const override { return true; }
  void begin_forward() override;
  void begin_backward() override;
  void end_backward() override;

 private:
  struct Unit {
    std::vector<int> buckets;
    bool tied = false;
    int64_t readers = 0;  // operations under way that read it
    std::vector<dist::Work> works;  // one a bucket, while gathered or under way
  };
  /// The units as a pass over the model reads them.
  struct Order {
    std::vector<int> units;
    size_t next = 0;
  };
  enum class Phase : uint8_t { evaluation, forward, backward };

  /// `kept`: units that operations under way read.
  void enter(int unit, const std::vector<int>& kept);
  std::vector<int> being_read() const;
  int successor(int unit);
  void gather(int unit);
  void release(int unit);
  void release_all();

  const Partition& partition_;
  dist::Communicator& communicator_;
  bool prefetch_;
  MicroStepLog& log_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_;  // bucket -> unit
  Phase phase_ = Phase::evaluation;
  Order forward_;
  Order backward_;
  int last_ = -1;  // the unit that was entered last
};

}  // namespace tessera::optim
