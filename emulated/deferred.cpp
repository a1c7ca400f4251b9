#include "emulated/deferred.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "emulated/arena.h"
#include "emulated/control.h"
#include "emulated/environment.h"
#include "emulated/errors.h"
#include "emulated/order.h"

namespace emulated {

namespace {

using Clock = std::chrono::steady_clock;
using SharedQueue = std::shared_ptr<Queue>;

struct Step {
  uint64_t number = 0;  // in the order in which all streams' steps were queued
  Clock::time_point queued = {};
  Kind kind = Kind::device;
  Work work = {};              // null for a step that only waits, or only marks a point
  SharedPoint awaited = {};    // the step runs after this point; may be null
  SharedPoint reached = {};    // the step marks this point as passed when it is done; may be null
};

}  // namespace

// Once other threads can see a Point or a Queue, it is changed only while the mutex of Device is
// held.

struct Point {
  SharedQueue queue;    // null once the point is passed
  uint64_t number = 0;  // the number of the step that marks the point
  bool passed = false;
  Clock::time_point when = {};
};

class Queue {
 public:
  Queue(int device_, bool is_null_, bool waits_)
      : device(device_), is_null(is_null_), waits_for_null_stream(waits_) {}

  const int device;
  const bool is_null;  // the null stream of its device
  const bool waits_for_null_stream;
  std::deque<Step> steps;
  bool busy = false;     // the first step is running
  bool listed = false;   // the queue is in Device's queues_, because it has steps
  uint64_t latest = 0;   // the number of the latest step that was queued
};

namespace {

/// Runs the steps of all queues on a thread of its own. A step that waits for other ranks gets
/// another thread, so that it does not hold up the other queues.
class Device {
 public:
  uint64_t seed() const { return seed_; }

  void set_seed(uint64_t seed, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    patience_ = {};
    changed_.notify_one();
    done_.wait(lock, [&] {
      const bool busy = std::any_of(queues_.begin(), queues_.end(),
                                    [](const SharedQueue& queue) { return queue->busy; });
      return queues_.empty() || (failure_ != cudaSuccess && !busy);
    });
    for (const SharedQueue& queue : std::exchange(queues_, {})) {  // steps left by a failure
      queue->steps.clear();
      queue->listed = false;
    }
    hint_ = {};  // because the queue in the old hint_ may be destroyed before the next pick()
    patience_ = patience;
    seed_ = seed;
    random_ = seed;
    failure_ = cudaSuccess;
  }

  cudaError_t add(const SharedQueue& queue, Step step) {
    std::unique_lock lock(mutex_);
    if (failure_ != cudaSuccess) return report(lock);
    start();
    if (!std::exchange(queue->listed, true)) queues_.push_back(queue);
    step.number = queue->latest = ++steps_;
    step.queued = Clock::now();
    if (step.reached) step.reached->number = step.number;
    queue->steps.push_back(std::move(step));
    changed_.notify_one();
    return cudaSuccess;
  }

  /// Waits until the queue's step `number` is done or deferred work has failed. If the queue is
  /// null, does not wait. In both cases, returns the failure of deferred work, if any.
  cudaError_t wait_for(const SharedQueue& queue, uint64_t number) {
    std::unique_lock lock(mutex_);
    if (queue == nullptr) return failure_ == cudaSuccess ? cudaSuccess : report(lock);
    const auto goal = goals_.emplace(goals_.end(), queue.get(), number);
    changed_.notify_one();
    done_.wait(lock, [&] { return is_done(*queue, number) || failure_ != cudaSuccess; });
    goals_.erase(goal);
    return failure_ == cudaSuccess ? cudaSuccess : report(lock);
  }

  cudaError_t wait_for_device(int device) {
    std::vector<std::pair<SharedQueue, uint64_t>> all;
    {
      const std::lock_guard lock(mutex_);
      for (const SharedQueue& queue : queues_) {
        if (queue->device == device) all.emplace_back(queue, queue->latest);
      }
    }
    for (const auto& [queue, number] : all) (void)wait_for(queue, number);
    return wait_for(nullptr, 0);
  }

  bool is_running(int device) {
    const std::lock_guard lock(mutex_);
    return std::any_of(queues_.begin(), queues_.end(), [&](const SharedQueue& queue) {
      return queue->device == device && queue->busy;
    });
  }

  bool is_done_now(const SharedQueue& queue, uint64_t number) {
    const std::lock_guard lock(mutex_);
    return is_done_or_hinted(*queue, number);
  }

  bool passed(const Point& point, Clock::time_point* when) {
    const std::lock_guard lock(mutex_);
    if (!point.passed) return is_done_or_hinted(*point.queue, point.number);
    if (when != nullptr) *when = point.when;
    return true;
  }

  /// Returns the queue and number of the step to wait for; a null queue if the point was passed.
  std::pair<SharedQueue, uint64_t> goal_of(const Point& point) {
    const std::lock_guard lock(mutex_);
    return {point.queue, point.number};
  }
  uint64_t latest(const Queue& queue) {
    const std::lock_guard lock(mutex_);
    return queue.latest;
  }

 private:
  using Goal = std::pair<Queue*, uint64_t>;

  static bool is_done(const Queue& queue, uint64_t number) {
    return queue.steps.empty() || queue.steps.front().number > number;
  }

  /// True if the step is done, or if deferred work has failed: the caller then gets the failure
  /// from wait_for(). Otherwise makes the device's thread run work that this step needs.
  bool is_done_or_hinted(Queue& queue, uint64_t number) {
    if (is_done(queue, number) || failure_ != cudaSuccess) return true;
    hint_ = {&queue, number};
    changed_.notify_one();
    return false;
  }

  cudaError_t report(std::unique_lock<std::mutex>& lock) {
    const cudaError_t failure = failure_;
    const std::string why = why_;
    lock.unlock();
    return failed(failure, why);
  }

  void start() {
    if (std::exchange(runs_, true)) return;
    // Never joined: work may be queued until the process ends.
    std::thread([this] { run(); }).detach();
  }

  /// Returns the steps of other queues that must be done before the queue's first step can run.
  std::vector<Goal> obstacles(const Queue& queue) const {
    std::vector<Goal> result;
    const Step& step = queue.steps.front();
    // After a failure, the step that marks the point may have been discarded. Then the point would
    // never be passed, so it is no obstacle.
    if (step.awaited && !step.awaited->passed &&
        !is_done(*step.awaited->queue, step.awaited->number)) {
      result.emplace_back(step.awaited->queue.get(), step.awaited->number);
    }
    for (const SharedQueue& other : queues_) {
      const bool is_ordered =
          other->device == queue.device && ((queue.is_null && other->waits_for_null_stream) ||
                                            (other->is_null && queue.waits_for_null_stream));
      if (is_ordered && !other->steps.empty() && other->steps.front().number < step.number) {
        result.emplace_back(other.get(), step.number - 1);
      }
    }
    return result;
  }

  /// Finds the queues whose first step can run now and must run to reach the goal. This step may be
  /// the goal itself. Adds each queue to `needed`, under the number of its first step.
  void add_needed(const Goal& goal, std::map<uint64_t, Queue*>& needed) const {
    Queue& queue = *goal.first;
    if (is_done(queue, goal.second) || queue.busy) return;
    const std::vector<Goal> before = obstacles(queue);
    if (before.empty()) needed[queue.steps.front().number] = &queue;
    for (const Goal& obstacle : before) add_needed(obstacle, needed);
  }

  /// Picks a candidate at random. Returns nullptr if there is no candidate. A queue is a candidate
  /// if its first step can run now, and if one of these is true:
  ///  - the step is due (see patience_);
  ///  - a host thread needs the step;
  ///  - the seed is even, and a host thread needs the first step of another candidate.
  Queue* pick() {
    // Sorted by step number, so that equal calls under the same seed lead to equal choices.
    std::map<uint64_t, Queue*> choices;
    for (const Goal& goal : goals_) add_needed(goal, choices);
    const auto hint = std::exchange(hint_, {});
    if (hint.first != nullptr) add_needed(hint, choices);
    const bool any = seed_ % 2 == 0 && !choices.empty();
    const auto old = Clock::now() - patience_;
    for (const SharedQueue& queue : queues_) {
      const bool is_due = any || queue->steps.front().queued <= old;
      if (is_due && !queue->busy && obstacles(*queue).empty()) {
        choices[queue->steps.front().number] = queue.get();
      }
    }
    if (choices.empty()) return nullptr;
    return std::next(choices.begin(), static_cast<long>(next_random(random_) % choices.size()))
        ->second;
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Queue* const queue = failure_ == cudaSuccess ? pick() : nullptr;
      if (queue != nullptr) {
        run_first(*queue, lock);
      } else if (queues_.empty() || failure_ != cudaSuccess) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, patience_ / 4);
      }
    }
  }

  void run_first(Queue& queue, std::unique_lock<std::mutex>& lock) {
    const Step& step = queue.steps.front();  // stays where it is: only finish() removes it
    if (!step.work) return finish(queue, cudaSuccess);
    queue.busy = true;
    if (step.kind == Kind::ranks || step.kind == Kind::host_and_ranks) {
      std::thread([this, &queue, &step] {
        const cudaError_t error = execute(queue, step);
        const std::lock_guard own_lock(mutex_);
        finish(queue, error);
      }).detach();
      return;
    }
    lock.unlock();
    const cudaError_t error = execute(queue, step);
    lock.lock();
    finish(queue, error);
  }

  static cudaError_t execute(const Queue& queue, const Step& step) {
    (void)cudaSetDevice(queue.device);
    return run_now(step.kind, step.work);
  }

  void finish(Queue& queue, cudaError_t error) {
    if (error != cudaSuccess && failure_ == cudaSuccess) {
      failure_ = error;
      why_ = last_failure();
    }
    const Step step = std::move(queue.steps.front());
    queue.steps.pop_front();
    queue.busy = false;
    if (step.reached) {
      step.reached->passed = true;
      step.reached->when = Clock::now();
      step.reached->queue = nullptr;
    }
    if (queue.steps.empty()) {
      queue.listed = false;
      if (hint_.first == &queue) hint_ = {};
      std::erase_if(queues_, [&](const SharedQueue& other) { return other.get() == &queue; });
    }
    done_.notify_all();
    changed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable changed_;  // for the device's thread
  std::condition_variable done_;     // for threads that wait for steps
  std::atomic<uint64_t> seed_{
      seed_of("TESSERA_EMULATED_STREAMS",
              "0 for streams that are not deferred, any other for deferred streams")};
  // A step is due once it has been queued for this long. It then runs even if no host thread waits
  // for the step, because other ranks may wait for it.
  std::chrono::milliseconds patience_{20};
  uint64_t random_ = seed_;
  uint64_t steps_ = 0;
  bool runs_ = false;
  std::vector<SharedQueue> queues_;  // the queues that have steps
  std::list<Goal> goals_;            // the steps that threads wait for
  Goal hint_ = {};                   // the step that a thread has last queried without waiting
  cudaError_t failure_ = cudaSuccess;
  std::string why_;
};

// Never destroyed, because objects of static lifetime may still make calls after main.
Device& device() {
  static auto& one = *new Device;
  return one;
}

}  // namespace

void set_stream_seed(uint64_t seed, int patience_ms) {
  device().set_seed(seed, std::chrono::milliseconds(patience_ms));
}
bool streams_are_deferred() { return device().seed() != 0; }

cudaError_t run_now(Kind kind, const Work& work) {
  if (kind == Kind::host || kind == Kind::host_and_ranks) return work();
  const DeviceAccess access;
  return work();
}

std::shared_ptr<Queue> new_queue(int index, bool is_null, bool waits_for_null_stream) {
  return std::make_shared<Queue>(index, is_null, waits_for_null_stream);
}

cudaError_t defer(cudaStream_t stream, Kind kind, Work work) {
  return device().add(queue_of(stream), {.kind = kind, .work = std::move(work)});
}

SharedPoint point_behind(cudaStream_t stream) {
  auto point = std::make_shared<Point>();
  if (!streams_are_deferred()) {
    point->passed = true;
    point->when = Clock::now();
    return point;
  }
  point->queue = queue_of(stream);
  (void)device().add(point->queue, {.reached = point});  // a failure shows at the next wait
  return point;
}

cudaError_t defer_behind(cudaStream_t stream, const SharedPoint& point) {
  if (!streams_are_deferred()) return cudaSuccess;
  return device().add(queue_of(stream), {.awaited = point});
}

bool passed(const SharedPoint& point, Clock::time_point* when) {
  return device().passed(*point, when);
}

bool is_idle(cudaStream_t stream) {
  const SharedQueue queue = queue_of(stream);
  return device().is_done_now(queue, device().latest(*queue));
}

cudaError_t wait_for(const SharedPoint& point) {
  const auto [queue, number] = device().goal_of(*point);
  return device().wait_for(queue, number);
}

cudaError_t wait_for_stream(cudaStream_t stream) {
  const SharedQueue queue = queue_of(stream);
  return device().wait_for(queue, device().latest(*queue));
}

cudaError_t wait_for_device(int index) { return device().wait_for_device(index); }

bool is_running(int index) { return device().is_running(index); }

}  // namespace emulated
