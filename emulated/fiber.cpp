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

// Large enough for a kernel's frames, which sanitizers make larger, and for a sanitizer's report of
// an error in a kernel.
constexpr size_t smallest_stack = 124 << 10;

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

FiberStacks::FiberStacks(int count)
    : count_(count), guard_bytes_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
  stack_bytes_ = (smallest_stack + guard_bytes_ - 1) / guard_bytes_ * guard_bytes_;
  range_.bytes = static_cast<size_t>(count) * (guard_bytes_ + stack_bytes_);
  void* const mapping = mmap(nullptr, range_.bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<char*>(mapping);
  range_.low = mapping;
}

FiberStacks::~FiberStacks() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(mapping_, range_.bytes);
#endif
  munmap(mapping_, range_.bytes);
}

char* FiberStacks::open(int number) {
  if (number >= count_) throw std::bad_alloc();
  // When an exception is thrown, the address sanitizer unpoisons the memory from the running frame
  // up to the upper end of all stacks, but only if this memory has at most 64 MiB. If the memory
  // stays poisoned, the sanitizer may later report errors that do not exist. To keep this memory
  // small, the stacks are used from the upper end down: stack 0, used first, is the uppermost.
  const auto place = static_cast<size_t>(count_ - 1 - number);
  char* const low = mapping_ + place * (guard_bytes_ + stack_bytes_) + guard_bytes_;
  if (mprotect(low, stack_bytes_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return low;
}

Fiber::Fiber(void (*entry)(), FiberStacks& stacks, int number)
    : entry_(entry), stack_(stacks.open(number)), range_(&stacks.range_) {
  // Without this shift, the tops of all stacks would compete for the same cache sets.
  bytes_ = stacks.stack_bytes_ - static_cast<size_t>(number % 32) * 256;
  restart();
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  if (stack_ != nullptr && tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
#endif
}

void Fiber::restart() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, bytes_);  // abandoned frames leave poisoned memory
#endif
#if defined(__x86_64__)
  // Lays out the stack as emulated_switch_stacks expects it: six saved registers, and above them
  // the address of start() as return address. The x86-64 ABI demands that a function begins with
  // the stack pointer 8 bytes below a multiple of 16.
  auto* const top = reinterpret_cast<uintptr_t*>(stack_ + bytes_);
  top[-1] = 0;  // the return address of start(), which never returns
  top[-2] = reinterpret_cast<uintptr_t>(&Fiber::start);
  for (int i = 3; i <= 8; ++i) top[-i] = 0;
  stack_pointer_ = top - 8;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = bytes_;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::start, 0);
#endif
}

void Fiber::start() {
  const Fiber& self = *arriving;
  arrive();
  self.entry_();
  std::abort();
}

void Fiber::switch_to(Fiber& to) {
  departing = this;
  arriving = &to;
#if defined(__SANITIZE_ADDRESS__)
  if (range_ != to.range_) {
    __sanitizer_start_switch_fiber(&range_->fake_stack, to.range_->low, to.range_->bytes);
  }
#endif
#if defined(__SANITIZE_THREAD__)
  if (stack_ == nullptr) tsan_fiber_ = __tsan_get_current_fiber();
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
  StackRange& from = *departing->range_;
  if (&from == arriving->range_) return;
  // Stores the range of the stack that was left. For an OS thread's own stack, only this call tells
  // the range.
  __sanitizer_finish_switch_fiber(arriving->range_->fake_stack, &from.low, &from.bytes);
#endif
}

}  // namespace emulated
