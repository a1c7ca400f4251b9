// A fiber is a stack. An OS thread can switch from one fiber to another, and back. A CUDA thread
// that waits for other threads keeps its fiber, so its local variables survive.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulated {

/// A stack as the address sanitizer knows it.
struct StackRange {
  const void* low = nullptr;
  size_t bytes = 0;
  void* fake_stack = nullptr;
};

/// The stacks, side by side, of fibers that switch to each other. The address sanitizer treats all
/// of them as one stack: it is told of a switch only when an OS thread leaves or enters its own
/// stack. Telling it of every switch would take a sixth of the time of the tests. Treating the
/// stacks as one has two consequences:
///   - A throw makes the sanitizer forget what it knows of the frames on the other stacks. So an
///     exception in a kernel must end the launch: no other thread of the block may go on.
///   - The leak sanitizer cannot scan the stacks of a kernel that still runs when the process ends.
class FiberStacks {
 public:
  /// Reserves addresses for `count` stacks. Only memory pages that have been touched take memory.
  explicit FiberStacks(int count);
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

 private:
  friend class Fiber;
  /// Returns the lower end of a stack. Below it is a guard page, so an overflow faults.
  char* open(int number);

  char* mapping_ = nullptr;
  int count_ = 0;
  size_t guard_bytes_ = 0;
  size_t stack_bytes_ = 0;
  StackRange range_;
};

class Fiber {
 public:
  /// Represents the calling OS thread's own stack.
  Fiber() = default;
  /// Takes stack `number`, which no other fiber may use. The first switch to this fiber starts
  /// `entry`, which must never return.
  Fiber(void (*entry)(), FiberStacks& stacks, int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Switches to `to`. This fiber must be running. Returns when another fiber switches back to this
  /// fiber.
  void switch_to(Fiber& to);

  /// Discards this fiber's frames, so that the next switch to this fiber starts its entry anew. The
  /// fiber must not be running.
  void restart();

 private:
  static void start();
  static void arrive();

  void (*entry_)() = nullptr;
  char* stack_ = nullptr;  // the lower end; null for an OS thread's own stack
  size_t bytes_ = 0;       // from the lower end to the first frame
  StackRange own_;         // for an OS thread's own stack
  StackRange* range_ = &own_;
  void* tsan_fiber_ = nullptr;  // only with the thread sanitizer
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

}  // namespace emulated
