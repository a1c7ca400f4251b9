// Runs the blocks of a launch one after another on one OS thread. A block's threads run in turn;
// each thread runs until it waits for other threads or ends. Threads that never wait share one
// stack. A thread that waits keeps its stack, and the next thread gets another stack.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "emulated/fiber.h"
#include "emulated/order.h"
#include "emulated/runtime_api.h"

namespace emulated {

inline constexpr int max_block_threads = 1024;

class BlockRunner {
 public:
  /// The runner whose launch runs on the calling OS thread; null if there is none.
  static BlockRunner* running();

  /// Runs a launch whose shape has been checked. Returns a text that describes the failure; empty
  /// if there is none.
  std::string run(const Launch& launch);

  // The running CUDA thread calls block_barrier and warp_meeting. block_barrier returns when all
  // threads of the block have arrived, warp_meeting when all lanes of the mask have arrived. (If a
  // warp has fewer than 32 lanes, warp_meeting does not wait for the missing lanes.) If a thread or
  // lane never arrives, the launch fails and the call does not return.
  void block_barrier(Site site);
  void warp_meeting(const char* name, unsigned mask, void* mine,
                    void (*compute)(void* const* lanes), Site site);
  /// Records an error of the running thread. The caller must then call leave_block() in a separate
  /// statement. leave_block() ends the launch without running destructors on the block's stacks, so
  /// the temporaries of the message must already be destroyed.
  void note_failure(std::string_view message);
  [[noreturn]] void leave_block();

  unsigned lane() const { return current_->number % 32; }
  void* shared_memory() { return shared_.get(); }

 private:
  enum class State : uint8_t { runs, waits, ended };
  struct Thread {
    unsigned number;
    uint3 index;
    State state;
    unsigned mask;          // mask of the warp operation; 0 at a barrier of the block
    const char* operation;  // the operation in which the thread waits
    Site site;
    Fiber* fiber;
  };
  /// A warp operation for which some lanes have arrived and wait for the others.
  struct Meeting {
    const char* name;
    void (*compute)(void* const* lanes);
    Site site;
    unsigned mask;
    unsigned arrived;
    void* lanes[32];
  };
  struct Warp {
    unsigned existing;  // mask of the warp's lanes; the last warp may have fewer than 32
    std::vector<Meeting> meetings;
  };
  struct Free {
    void operator()(void* memory) const;
  };

  static void fiber_main();
  void prepare(const Launch& launch);
  void run_block();
  void run_threads(Fiber& fiber);
  void run_thread(Thread& thread, Fiber& fiber);
  void wait(Thread& thread);
  Fiber& next_fiber();
  static Meeting& find_meeting(Warp& warp, const char* name, unsigned mask,
                               void (*compute)(void* const* lanes), const Site& site);
  void abandon_block();
  std::string position() const;
  std::string waiting_threads() const;

  void make_current(Thread& thread) {
    current_ = &thread;
    threadIdx = thread.index;
  }
  void make_ready(unsigned thread) {
    ready_[ready_end_++ % ready_.size()] = static_cast<uint16_t>(thread);
  }
  bool any_ready() const { return ready_begin_ != ready_end_; }

  const Launch* launch_ = nullptr;
  Order order_;
  std::unique_ptr<void, Free> shared_;
  std::string failure_;

  std::vector<Thread> threads_;       // [thread's index in the block]: threads of the running block
  std::vector<Warp> warps_;
  std::vector<uint16_t> arranged_;    // order in which threads begin, or go on after a barrier
  size_t begun_ = 0;
  size_t ended_ = 0;
  bool waiting_first_ = true;  // Order::waiting_first() for the running block
  Thread* current_ = nullptr;
  std::array<uint16_t, max_block_threads> ready_{};  // ring buffer of threads that can continue
  unsigned ready_begin_ = 0;
  unsigned ready_end_ = 0;

  size_t at_barrier_ = 0;    // the number of threads that wait at a barrier of the block
  bool one_barrier_ = true;  // true if all threads at the barrier are at one call site
  Site barrier_site_;

  Fiber host_;  // the stack that called run()
  FiberStacks stacks_{max_block_threads};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  /// The fiber that next_fiber() took from free_ most recently; fiber_main reads it to learn which
  /// fiber it runs on.
  Fiber* started_ = nullptr;
};

}  // namespace emulated
