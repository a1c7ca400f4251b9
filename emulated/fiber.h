// Fibers: stacks that one OS thread switches between in user space. A CUDA thread that waits for
// others keeps its fiber, and so its local variables.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulated {

class Fiber {
 public:
  /// Stands for the calling OS thread's own stack.
  Fiber() = default;
  /// Creates a stack. `entry` starts on it at the first switch to this fiber, and must never
  /// return. `number` shifts the top of the stack, so that the tops of many fibers do not share
  /// cache lines.
  Fiber(void (*entry)(), int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Switches to `to`. This fiber must be running. Returns when another fiber switches back to this
  /// fiber.
  void switch_to(Fiber& to);

  /// Discards this fiber's frames, so that its entry starts anew at the next switch. The fiber must
  /// not be running.
  void restart();

 private:
  static void start();
  void arrive();

  void (*entry_)() = nullptr;
  char* mapping_ = nullptr;    // begins with a guard page
  const void* low_ = nullptr;  // lower end of the stack, for the address sanitizer
  size_t bytes_ = 0;
  size_t offset_ = 0;  // bytes from the top down to the first frame
  void* fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

}  // namespace emulated
