// Stacks that one OS thread switches between without the system's help: a CUDA thread that waits
// keeps its own.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulated {

class Fiber {
 public:
  /// The stack that the calling OS thread came with.
  Fiber() = default;
  /// A stack on which `entry` starts at the first switch to it, and from which it never returns.
  /// `number` tells fibers apart: their tops must not share the same lines of the cache.
  Fiber(void (*entry)(), int number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Leaves this fiber, which must be the running one, for `to`; returns when it is switched to.
  void switch_to(Fiber& to);

  /// Forgets what a fiber that does not run was doing: its entry starts anew.
  void restart();

 private:
  static void start();
  void arrive();

  void (*entry_)() = nullptr;
  char* mapping_ = nullptr;    // begins with a page that cannot be touched
  const void* low_ = nullptr;  // of the stack, for the address sanitizer
  size_t bytes_ = 0;
  size_t offset_ = 0;  // of the first frame below the top
  void* fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_{};
#endif
};

}  // namespace emulated
