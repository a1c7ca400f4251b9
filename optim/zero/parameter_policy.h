// How an operation gets the values of the parameters that it reads, and how a rank's update reaches
// the other ranks.
//
//   stage 0      ReplicatedParameters   every rank has updated everything: nothing to do
//   stages 1, 2  GatheredParameters     each bucket is gathered after its update; readers wait
//   stage 3      ShardedParameters      a block is gathered when read, and released afterwards
//
// `use` is called before an operation reads a parameter, and `done` after it.
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
  /// Called after this rank has updated its own part of a bucket. Stages 1 and 2 start to gather
  /// the bucket and return that collective. Stages 0 and 3 send nothing and return an empty Work.
  virtual dist::Work gather_updated(int bucket) = 0;
  /// After this call, operations read the values of the last update: gathers in flight are waited
  /// for (stages 1, 2), or gathered units are released, so that the next read gathers them again
  /// (stage 3).
  virtual void synchronize() {}
  /// True if ranks gather values in the order in which their operations read them.
  virtual bool gathers_as_read() const { return false; }

  // Called within a micro-step:
  virtual void begin_forward() {}
  virtual void begin_backward() {}
  virtual void end_backward() {}
};

class ReplicatedParameters : public ParameterPolicy {
 public:
  void use(int) override {}
  dist::Work gather_updated(int) override { return {}; }
};

class GatheredParameters : public ParameterPolicy {
 public:
  GatheredParameters(const Partition& partition, dist::Communicator& communicator);
  ~GatheredParameters() override;
  void use(int parameter) override;
  dist::Work gather_updated(int bucket) override;
  void synchronize() override;

 private:
  void wait(size_t bucket);

  const Partition& partition_;
  dist::Communicator& communicator_;
  std::vector<dist::Work> published_;  // one per bucket
};

/// Stage 3. Parameters are gathered in units: the consecutive buckets of one block
/// (Module::begin_block), or a single bucket outside any block. When an operation reads a unit that
/// was not the last one entered, that unit is gathered and the others are released, except units
/// that running operations read, the unit that comes next, and tied units. With `prefetch`, the
/// gather of the next unit starts at the same time, if an earlier pass has shown which one that is.
/// A unit with a tied parameter stays gathered until backward ends.
///
/// Which gathers start, and when, follows from the order in which operations read parameters. This
/// is the order of the program, and so the same on every rank.
class ShardedParameters : public ParameterPolicy {
 public:
  ShardedParameters(const Partition& partition, dist::Communicator& communicator, bool prefetch,
                    MicroStepLog& log);
  ~ShardedParameters() override;
  void use(int parameter) override;
  void done(int parameter) override;
  dist::Work gather_updated(int) override;
  void synchronize() override { release_all(); }
  bool gathers_as_read() const override { return true; }
  void begin_forward() override;
  void begin_backward() override;
  void end_backward() override;

 private:
  struct Unit {
    std::vector<int> buckets;
    bool tied = false;
    int64_t readers = 0;            // running operations that read it
    std::vector<dist::Work> works;  // one per bucket, while gathered or in flight
  };
  /// The units in the order in which a pass over the model reads them.
  struct Order {
    std::vector<int> units;
    size_t next = 0;
  };
  enum class Phase : uint8_t { evaluation, forward, backward };

  /// Makes room for a unit and gathers it. `kept`: units that running operations read.
  void enter(int unit, const std::vector<int>& kept);
  std::vector<int> being_read() const;
  /// The unit that will be read next, to be gathered ahead; -1 if there is none or it is unknown.
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
