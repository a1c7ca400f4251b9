// Policies that make parameter values available to operations, and send a rank's updated values to
// the other ranks.
//
//   stage 0      ReplicatedParameters   every rank has updated everything: nothing to do
//   stages 1, 2  GatheredParameters     each bucket is gathered after its update; readers wait
//   stage 3      ShardedParameters      a unit of buckets is gathered when read, and released later
//
// `use` is called before an operation reads a parameter, and `done` after the operation.
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
  /// Called after this rank has updated its shard of a bucket. Stages 1 and 2 start to gather the
  /// bucket and return that collective. Stages 0 and 3 send nothing and return an empty Work.
  virtual dist::Work gather_updated(int bucket) = 0;
  /// Makes sure that reads after this call see the values of the last update. Stages 1 and 2 wait
  /// for gathers in flight. Stage 3 releases all gathered values, so that the next read gathers
  /// them again.
  virtual void synchronize() {}
  /// True at stage 3: ranks gather values in the order in which their operations read them.
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
  std::vector<dist::Work> gathers_;  // one per bucket
};

/// Stage 3. Parameters are gathered in units: the consecutive buckets of one block
/// (Module::begin_block), or a single bucket outside any block. An operation that begins to read a
/// unit enters the unit, unless this unit was the last one entered. When a unit is entered:
///
///   the entered unit        is gathered
///   the unit read next      is gathered too, if `prefetch` is set and an earlier pass over the
///                           model has shown the order of units
///   units being read        stay gathered, because running operations need their values
///   tied units              stay gathered until backward ends. If an evaluation has gathered
///                           them, they stay until the next micro-step's forward, the next update
///                           or the next synchronize()
///   all remaining units     are released, unless the entered unit is tied
///
/// A unit is tied if the model registers one of its parameters under several names. Gathers are
/// collective, so all ranks must start them in the same order. This order depends only on the order
/// in which the program reads parameters, which must be the same on every rank.
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
    int64_t readers = 0;            // running operations that read the unit
    std::vector<dist::Work> works;  // one gather per bucket; empty after release()
  };
  /// The units in the order in which a pass over the model reads them.
  struct Order {
    std::vector<int> units;
    size_t next = 0;
  };
  enum class Phase : uint8_t { evaluation, forward, backward };

  /// Releases units that are no longer needed, then gathers `unit` and waits for it. `kept`: units
  /// that running operations read, which must not be released.
  void enter(int unit, const std::vector<int>& kept);
  std::vector<int> being_read() const;
  /// Returns the unit to gather ahead: the one that is expected to be read after `unit`. Returns -1
  /// if prefetch is off, if `unit` is the last one, or if the next unit is unknown. Within a
  /// micro-step, also records that `unit` was read.
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
