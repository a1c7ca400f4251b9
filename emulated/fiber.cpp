#include "emulated/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulated {

namespace {

// Large enough for a kernel's frames, even with sanitizers, which make frames larger. Only touched
// pages take memory.
constexpr size_t stack_bytes = 256 << 10;

// The switch in progress leaves `departing` and enters `arriving`.
constinit thread_local Fiber* departing = nullptr;
constinit thread_local Fiber* arriving = nullptr;

}  // namespace

#if defined(__x86_64__)
// emulated_switch_stacks(void** from, void* to): saves the callee-saved general registers on the
// running stack and stores the stack pointer in *from. Then restores the registers from the stack
// `to`. Vector registers are caller-saved, so they need no saving. swapcontext would make a system
// call.
extern "C" void emulated_switch_stacks(void** from, void* to);
asm(R"(
  .pushsection .text
  .p2align 4
  .globl emulated_switch_stacks
  .hidden emulated_switch_stacks
  .type emulated_switch_stacks, @function
emulated_switch_stacks:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulated_switch_stacks, . - emulated_switch_stacks
  .popsection
)");
#endif

Fiber::Fiber(void (*entry)(), int number) : entry_(entry) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const mapping = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<char*>(mapping);
  mprotect(mapping_, page, PROT_NONE);  // guard page: a stack overflow faults
  low_ = mapping_ + page;
  bytes_ = stack_bytes;
  offset_ = static_cast<size_t>(number % 32) * 256;
  restart();
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#if defined(__SANITIZE_THREAD__)
  if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(low_, bytes_);
#endif
  munmap(mapping_, static_cast<size_t>(static_cast<const char*>(low_) - mapping_) + bytes_);
}

void Fiber::restart() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(low_, bytes_);  // abandoned frames leave poisoned memory
  fake_stack_ = nullptr;
#endif
  char* const low = mapping_ + (static_cast<const char*>(low_) - mapping_);
#if defined(__x86_64__)
  // Lays out the stack as emulated_switch_stacks expects it: six saved registers, and above them
  // the address of start() as return address. The x86-64 ABI demands that a function begins with
  // the stack pointer 8 bytes below a multiple of 16.
  auto* const top = reinterpret_cast<uintptr_t*>(low + bytes_ - offset_);
  top[-1] = 0;  // start() never returns
  top[-2] = reinterpret_cast<uintptr_t>(&Fiber::start);
  for (int i = 3; i <= 8; ++i) top[-i] = 0;
  stack_pointer_ = top - 8;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = low;
  context_.uc_stack.ss_size = bytes_ - offset_;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::start, 0);
#endif
}

void Fiber::start() {
  Fiber& self = *arriving;
  self.arrive();
  self.entry_();
  std::abort();
}

void Fiber::switch_to(Fiber& to) {
  departing = this;
  arriving = &to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, to.low_, to.bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  if (mapping_ == nullptr) tsan_fiber_ = __tsan_get_current_fiber();
  if (to.tsan_fiber_ == nullptr) to.tsan_fiber_ = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(to.tsan_fiber_, 0);
#endif
#if defined(__x86_64__)
  emulated_switch_stacks(&stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&context_, &to.context_);
#endif
  arrive();
}

void Fiber::arrive() {
#if defined(__SANITIZE_ADDRESS__)
  // Stores the bounds of the departing fiber's stack. A fiber for an OS thread's own stack gets its
  // bounds only from this call.
  __sanitizer_finish_switch_fiber(fake_stack_, &departing->low_, &departing->bytes_);
#endif
}

}  // namespace emulated
