#include "train/report/rank_clock.h"

#include <optional>

#include "dist/clock.h"

namespace tessera::train {
namespace {

std::optional<dist::ClockReading> clock_at_begin;

}  // namespace

void begin_rank_clock(const dist::World& world) { clock_at_begin = dist::compare_clocks(world); }

int64_t to_clock_of_rank_0(std::vector<trace::Event>& events, const dist::World& world) {
  const dist::ClockReading last = dist::compare_clocks(world);
  const dist::ClockReading first = clock_at_begin.value_or(last);
  for (trace::Event& event : events) {
    const int64_t moved = dist::on_rank_0(event.begin_ns, first, last) - event.begin_ns;
    event.begin_ns += moved;
    event.end_ns += moved;
  }
  return first.rank_0_ns;
}

}  // namespace tessera::train
