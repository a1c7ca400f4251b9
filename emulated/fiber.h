// A fiber is a stack. An OS thread can switch from one fiber to another, and back. A CUDA thread
// that waits for other threads keeps its fiber, so its local variables survive.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulated {

class Fiber {
 public:
  /// Represents the calling OS thread's own stack.
  Fiber() = default;
  /// Creates a stack. The first switch to this fiber starts `entry`, which must never return.
  /// `number` shifts the top of the stack. Without the shift, the tops of all stacks would compete
  /// for the same cache sets.
  Fiber(void (*entry)(), int number);
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
  void arrive();

  void (*entry_)() = nullptr;
  char* mapping_ = nullptr;    // begins with a guard page
  const void* low_ = nullptr;  // lower end of the stack
  size_t bytes_ = 0;
  size_t offset_ = 0;  // bytes from the top down to the first frame
  void* fake_stack_ = nullptr;  // only with the address sanitizer
  void* tsan_fiber_ = nullptr;  // only with the thread sanitizer
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

}  // namespace emulated
