// The functions that device code calls, and the computations of warp operations, which run when all
// lanes have arrived.
#include <fmt/format.h>

#include <bit>
#include <cstdlib>
#include <stdexcept>

#include "emulated/block_runner.h"

namespace emulated {

namespace {

BlockRunner& runner() {
  BlockRunner* const running = BlockRunner::running();
  if (running == nullptr) {
    throw std::logic_error("emulated CUDA: device code was called on the host");
  }
  return *running;
}

struct ShuffleLane {
  uint64_t bits;
  int source;
  uint64_t result;
};

void shuffle_lanes(void* const* lanes) {
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] == nullptr) continue;
    auto& mine = *static_cast<ShuffleLane*>(lanes[i]);
    const auto* const source = static_cast<const ShuffleLane*>(lanes[mine.source]);
    mine.result = source == nullptr ? ~uint64_t{0} : source->bits;
  }
}

struct BallotLane {
  bool predicate;
  unsigned result;
};

void ballot_lanes(void* const* lanes) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] == nullptr) continue;
    result |= unsigned{static_cast<const BallotLane*>(lanes[i])->predicate} << i;
  }
  for (int i = 0; i < 32; ++i) {
    if (lanes[i] != nullptr) static_cast<BallotLane*>(lanes[i])->result = result;
  }
}

// Returns the lane that `lane` reads from, as PTX defines it for shfl. A segment is the `width`
// lanes that contain `lane`. For `index`, the argument wraps around within the segment. The other
// kinds return `lane` itself if the requested lane is below the segment (`up`) or above the segment
// (`down`, `butterfly`).
int source_lane(Shuffle kind, int lane, int argument, int width) {
  const int first = lane & ~(width - 1);
  const int last = first + width - 1;
  switch (kind) {
    case Shuffle::index: return first + (argument & (width - 1));
    case Shuffle::up: return lane - argument >= first ? lane - argument : lane;
    case Shuffle::down: return lane + argument <= last ? lane + argument : lane;
    case Shuffle::butterfly: return (lane ^ argument) <= last ? lane ^ argument : lane;
  }
  std::abort();
}

}  // namespace

void fail(const char* message) {
  runner().note_failure(message);
  runner().leave_block();
}

void* dynamic_shared_memory() { return runner().shared_memory(); }
void block_barrier(Site site) { runner().block_barrier(site); }

void warp_meeting(const char* name, unsigned mask, void* mine, void (*compute)(void* const* lanes),
                  Site site) {
  runner().warp_meeting(name, mask, mine, compute, site);
}

uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t bits, int argument, int width, Site site) {
  constexpr const char* names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                   "__shfl_xor_sync"};
  const char* const name = names[static_cast<int>(kind)];
  BlockRunner& block = runner();
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width))) {
    block.note_failure(
        fmt::format("{} of width {}, expected a power of two up to 32", name, width));
    block.leave_block();
  }
  if (kind != Shuffle::index && (argument < 0 || argument > 31)) {
    block.note_failure(fmt::format("{} by {}, expected 0 to 31", name, argument));
    block.leave_block();
  }
  const int source = source_lane(kind, static_cast<int>(block.lane()), argument, width);
  ShuffleLane mine{bits, source, 0};
  block.warp_meeting(name, mask, &mine, shuffle_lanes, site);
  return mine.result;
}

unsigned ballot(const char* name, unsigned mask, bool predicate, Site site) {
  BallotLane mine{predicate, 0};
  runner().warp_meeting(name, mask, &mine, ballot_lanes, site);
  return mine.result;
}

}  // namespace emulated
