// The state of the current step, and a log of the collective work of its micro-steps.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tessera::optim {

/// A part of a step in which each rank runs at most one micro-batch (core/micro_batch.h).
struct MicroStep {
  int64_t index = 0;          // counted from 0
  int64_t count = 1;          // number of micro-steps in the step
  int64_t micro_batches = 1;  // number of micro-batches of all ranks in the step
  int64_t contributors = 1;   // number of ranks that have a micro-batch in this micro-step
  bool contributes = true;    // false: this rank only repeats the step's last micro-batch

  bool last() const { return index + 1 == count; }
};

/// The counters of the current step.
class StepState {
 public:
  /// Begins a micro-step; the first one of a step begins the step.
  void begin(int64_t step, const MicroStep& micro_step) {
    if (!began_) step_ = step;
    micro_step_ = micro_step;
    began_ = true;
    running_ = true;
  }
  void end_micro_step() {
    running_ = false;
    ++finished_;
  }
  /// Ends the step. step() and micro_step() stay readable until the next step begins.
  void end() {
    finished_ = 0;
    began_ = false;
  }

  int64_t step() const { return step_; }
  bool began() const { return began_; }
  /// True from the beginning of a micro-step to the end of its backward.
  bool running() const { return running_; }
  int64_t finished() const { return finished_; }  // number of finished micro-steps
  bool all_micro_steps_done() const {
    return began_ && !running_ && finished_ == micro_step_.count;
  }
  const MicroStep& micro_step() const { return micro_step_; }
  int64_t micro_batches() const { return micro_step_.micro_batches; }
  /// A micro-batch's share of the step, by which its loss and gradient are scaled.
  float share() const { return 1.0f / static_cast<float>(micro_step_.micro_batches); }

 private:
  int64_t step_ = 0;
  bool began_ = false;
  bool running_ = false;
  int64_t finished_ = 0;
  MicroStep micro_step_;
};

/// An event of a parameter in a micro-step. The order of events follows from the model alone, so it
/// is the same for any number of ranks, any stage and any bucket size.
struct ParameterEvent {
  // The meanings of `use` and `done` below do not hold for a row-sparse table. For such a table,
  // `use` means that an operation looks up rows for training, and `done` means that an evaluation
  // within the micro-batch looks up rows.
  enum class Kind : uint8_t {
    use,             // an operation is about to read the parameter
    done,            // an operation has finished reading the parameter
    complete,        // the parameter's gradient is complete
    begin_backward,  // backward begins; this event has no parameter
  };
  Kind kind = Kind::use;
  int64_t parameter = 0;  // registration index in the optimizer

  bool operator==(const ParameterEvent&) const = default;
};

/// Records the collective work of a micro-step in order, so that a rank without data can repeat it.
class MicroStepLog {
 public:
  /// Begins a micro-step. Keeps the log of the previous micro-step for repeat_last(), unless that
  /// log is empty.
  void begin() {
    if (!running_.empty()) last_ = std::exchange(running_, {});
    if (!running_events_.empty()) last_events_ = std::exchange(running_events_, {});
    notes_ = true;
  }
  /// Ends the micro-step. Reads of parameters from here to the next micro-step belong to an
  /// evaluation and are not noted.
  void end() { notes_ = false; }

  void note(const ParameterEvent& event) {
    if (notes_) running_events_.push_back(event);
  }
  /// Returns the events of the last micro-step with data. After set_events(), returns the given
  /// events (those of a checkpoint) until a micro-step has data.
  const std::vector<ParameterEvent>& events() const {
    return running_events_.empty() ? last_events_ : running_events_;
  }
  /// Forgets the events of the current micro-step, which has no data: they belong to an evaluation.
  void forget_running_events() { running_events_.clear(); }
  void set_events(std::vector<ParameterEvent> events) {
    forget_running_events();
    last_events_ = std::move(events);
  }

  /// Adds collective work of the current micro-step. Calling `together` repeats this work.
  void add(std::function<void()> together) { running_.push_back(std::move(together)); }
  /// Repeats the collective work of the last micro-step that had data.
  void repeat_last() {
    const auto replay = last_;
    for (const auto& together : replay) together();
    running_ = replay;  // drops the entries that the replay itself has added
  }
  bool empty() const { return running_.empty(); }
  bool knows_last() const { return !last_.empty(); }
  void clear() {
    running_.clear();
    last_.clear();
    set_events({});
  }

 private:
  std::vector<std::function<void()>> running_;
  std::vector<std::function<void()>> last_;  // of the last micro-step that had data
  bool notes_ = false;                       // true if events are noted
  std::vector<ParameterEvent> running_events_;
  std::vector<ParameterEvent> last_events_;
};

}  // namespace tessera::optim
