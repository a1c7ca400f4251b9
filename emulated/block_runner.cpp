#include "emulated/block_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace emulated {

namespace {

constinit thread_local BlockRunner* running_one = nullptr;

struct Running {
  explicit Running(BlockRunner* runner) { running_one = runner; }
  ~Running() { running_one = nullptr; }
};

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() && a.file_name() == b.file_name();
}

std::string text(uint3 v) { return fmt::format("({}, {}, {})", v.x, v.y, v.z); }

}  // namespace

BlockRunner* BlockRunner::running() { return running_one; }

void BlockRunner::Free::operator()(void* memory) const { std::free(memory); }

std::string BlockRunner::run(const Launch& launch) {
  prepare(launch);
  const Running running(this);
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  order_.prepare_blocks(blocks);
  for (uint64_t i = 0; i < blocks && failure_.empty(); ++i) {
    const uint64_t block = order_.block(i);
    const uint64_t row = block / launch.grid.x;
    blockIdx = {static_cast<unsigned>(block % launch.grid.x),
                static_cast<unsigned>(row % launch.grid.y),
                static_cast<unsigned>(row / launch.grid.y)};
    run_block();
  }
  shared_.reset();
  return std::exchange(failure_, {});
}

void BlockRunner::prepare(const Launch& launch) {
  launch_ = &launch;
  order_ = Order::of_next_launch();
  blockDim = launch.block;
  gridDim = launch.grid;
  if (launch.shared_bytes > 0) {
    // Shared memory is allocated for each launch, so that the address sanitizer knows its end.
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, launch.shared_bytes) != 0) throw std::bad_alloc();
    shared_.reset(memory);
  }
  const size_t size = size_t{launch.block.x} * launch.block.y * launch.block.z;
  threads_.assign(size, Thread{});
  unsigned number = 0;
  uint3 index{};
  for (Thread& thread : threads_) {
    thread.number = number++;
    thread.index = index;
    if (++index.x < launch.block.x) continue;
    index.x = 0;
    if (++index.y < launch.block.y) continue;
    index.y = 0;
    ++index.z;
  }
  warps_.resize((size + 31) / 32);
  for (Warp& warp : warps_) warp.existing = 0xFFFFFFFFu;
  if (size % 32 != 0) warps_.back().existing = (1u << size % 32) - 1;
  arranged_.resize(size);
  order_.arrange(arranged_);
}

void BlockRunner::run_block() {
  if (shared_) std::memset(shared_.get(), 0xFF, launch_->shared_bytes);
  if (order_.shuffled()) order_.arrange(arranged_);
  waiting_first_ = order_.waiting_first();
  begun_ = 0;
  ended_ = 0;
  host_.switch_to(next_fiber());
  if (ended_ == threads_.size()) return;
  if (failure_.empty()) {
    failure_ = fmt::format("{}: no thread can go on: {}", position(), waiting_threads());
  }
  abandon_block();
}

void BlockRunner::abandon_block() {
  for (Warp& warp : warps_) warp.meetings.clear();
  ready_begin_ = ready_end_ = 0;
  at_barrier_ = 0;
  free_.clear();
  for (const auto& fiber : fibers_) {
    fiber->restart();
    free_.push_back(fiber.get());
  }
}

void BlockRunner::fiber_main() {
  BlockRunner& self = *running_one;
  Fiber& fiber = *self.started_;
  for (;;) self.run_threads(fiber);
}

void BlockRunner::run_threads(Fiber& fiber) {
  while (begun_ < threads_.size() && !(waiting_first_ && any_ready())) {
    run_thread(threads_[arranged_[begun_++]], fiber);
  }
  // The loop has ended because all threads have begun, or because a ready thread goes first. In
  // both cases next_fiber() takes nothing from free_, so it does not return this fiber.
  free_.push_back(&fiber);
  fiber.switch_to(next_fiber());
}

void BlockRunner::run_thread(Thread& thread, Fiber& fiber) {
  bool thrown = true;
  thread.state = State::runs;
  thread.fiber = &fiber;
  make_current(thread);
  try {
    launch_->run_thread(launch_->call);
    thrown = false;
  } catch (const std::exception& error) {
    note_failure(fmt::format("the kernel has thrown: {}", error.what()));
  } catch (...) {
    note_failure("the kernel has thrown something that is not a std::exception");
  }
  if (thrown) leave_block();
  thread.state = State::ended;
  ++ended_;
}

Fiber& BlockRunner::next_fiber() {
  const bool all_have_begun = begun_ == threads_.size();
  if (any_ready() && (waiting_first_ || all_have_begun)) {
    return *threads_[ready_[ready_begin_++ % ready_.size()]].fiber;
  }
  if (all_have_begun) return host_;
  if (free_.empty()) {
    const auto number = static_cast<int>(fibers_.size());
    fibers_.push_back(std::make_unique<Fiber>(fiber_main, stacks_, number));
    free_.push_back(fibers_.back().get());
  }
  started_ = free_.back();
  free_.pop_back();
  return *started_;
}

void BlockRunner::wait(Thread& thread) {
  Fiber& next = next_fiber();
  if (&next != thread.fiber) thread.fiber->switch_to(next);
  thread.state = State::runs;
  make_current(thread);
}

void BlockRunner::block_barrier(Site site) {
  Thread& self = *current_;
  self.state = State::waits;
  self.operation = "__syncthreads";
  self.mask = 0;
  self.site = site;
  if (at_barrier_ == 0) {
    barrier_site_ = site;
    one_barrier_ = true;
  }
  one_barrier_ = one_barrier_ && same(site, barrier_site_);
  if (++at_barrier_ == threads_.size()) {
    if (!one_barrier_) {
      note_failure(fmt::format("threads meet at different barriers: {}", waiting_threads()));
      leave_block();
    }
    at_barrier_ = 0;
    if (order_.shuffled()) order_.arrange(arranged_);
    for (const uint16_t thread : arranged_) make_ready(thread);
  }
  wait(self);
}

BlockRunner::Meeting& BlockRunner::find_meeting(Warp& warp, const char* name, unsigned mask,
                                                void (*compute)(void* const* lanes),
                                                const Site& site) {
  for (Meeting& meeting : warp.meetings) {
    if (meeting.mask == mask && meeting.name == name && meeting.compute == compute &&
        same(meeting.site, site)) {
      return meeting;
    }
  }
  return warp.meetings.emplace_back(Meeting{name, compute, site, mask, 0, {}});
}

void BlockRunner::warp_meeting(const char* name, unsigned mask, void* mine,
                               void (*compute)(void* const* lanes), Site site) {
  Thread& self = *current_;
  Warp& warp = warps_[self.number / 32];
  if ((mask >> lane() & 1) == 0) {
    note_failure(fmt::format("{} is called by lane {}, which is not in its mask {:#010x}", name,
                             lane(), mask));
    leave_block();
  }
  self.state = State::waits;
  self.operation = name;
  self.mask = mask;
  self.site = site;
  Meeting& meeting = find_meeting(warp, name, mask, compute, site);
  meeting.arrived |= 1u << lane();
  meeting.lanes[lane()] = mine;
  if (meeting.arrived == (mask & warp.existing)) {
    compute(meeting.lanes);
    const unsigned first = self.number / 32 * 32;
    const Order::Lanes lanes = order_.lanes();
    for (unsigned i = 0; i < 32; ++i) {
      if ((meeting.arrived >> lanes[i] & 1) != 0) make_ready(first + lanes[i]);
    }
    if (&meeting != &warp.meetings.back()) meeting = warp.meetings.back();
    warp.meetings.pop_back();
  }
  wait(self);
}

void BlockRunner::note_failure(std::string_view message) {
  failure_ = fmt::format("{}, thread {}: {}", position(), text(current_->index), message);
}

void BlockRunner::leave_block() {
  current_->fiber->switch_to(host_);
  std::abort();  // no fiber switches back to an abandoned block
}

std::string BlockRunner::position() const {
  return fmt::format("block {} of a grid of {} with {} threads each", text(blockIdx),
                     text(launch_->grid), text(launch_->block));
}

std::string BlockRunner::waiting_threads() const {
  struct Group {
    const Thread* first;
    size_t count;
  };
  std::vector<Group> groups;
  for (const Thread& thread : threads_) {
    const auto alike = [&](const Group& group) {
      const Thread& other = *group.first;
      if (thread.state != other.state || thread.state == State::ended) {
        return thread.state == other.state;
      }
      return thread.operation == other.operation && thread.mask == other.mask &&
             same(thread.site, other.site);
    };
    const auto group = std::find_if(groups.begin(), groups.end(), alike);
    if (group == groups.end()) {
      groups.push_back({&thread, 1});
    } else {
      ++group->count;
    }
  }
  std::string result;
  std::string kernel;
  for (const auto& [first, count] : groups) {
    std::string what = "have ended";
    if (first->state == State::waits) {
      what = fmt::format("wait in {} at {}:{}", first->operation, first->site.file_name(),
                         first->site.line());
      if (first->mask != 0) what += fmt::format(" with mask {:#010x}", first->mask);
      kernel = first->site.function_name();
    }
    result += fmt::format("{} of {} threads {}, the first is {}; ", count, threads_.size(), what,
                          text(first->index));
  }
  return result + "in " + kernel;
}

}  // namespace emulated
