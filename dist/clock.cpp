#include "dist/clock.h"

#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/trace.h"
#include "dist/backoff.h"
#include "dist/mpi/mpi_check.h"
#include "dist/stalled.h"

namespace tessera::dist {
namespace {

constexpr int questions = 16;
constexpr int tag = 0;

/// Sends and receives over a separate MPI communicator, so that these messages do not mix with
/// others. The communicator is never freed: MPI_Comm_free is a collective, so if only one rank
/// fails and frees it, this rank waits for the others for ever.
class Ranks {
 public:
  explicit Ranks(double timeout_s) : timeout_s_(timeout_s) {
    static MPI_Comm own = [] {
      MPI_Comm duplicate = MPI_COMM_NULL;
      TESSERA_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &duplicate));
      TESSERA_MPI(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN));
      return duplicate;
    }();
    communicator_ = own;
  }

  /// Does not wait for the receiver: MPI buffers a message of so few bytes.
  template <size_t count>
  void send(int to, const std::array<int64_t, count>& values) const {
    TESSERA_MPI(MPI_Send(values.data(), count, MPI_INT64_T, to, tag, communicator_));
  }
  template <size_t count>
  std::array<int64_t, count> receive(int from) const {
    wait_for(from);
    std::array<int64_t, count> values{};
    TESSERA_MPI(
        MPI_Recv(values.data(), count, MPI_INT64_T, from, tag, communicator_, MPI_STATUS_IGNORE));
    return values;
  }

 private:
  /// Polls with Backoff's pauses, because other ranks may need the core.
  void wait_for(int from) const {
    Backoff backoff;
    for (;;) {
      int there = 0;
      TESSERA_MPI(MPI_Iprobe(from, tag, communicator_, &there, MPI_STATUS_IGNORE));
      if (there != 0) return;
      backoff.pause();
      if (static_cast<double>(backoff.slept_ns()) < timeout_s_ * 1e9) continue;
      throw StalledError(
          fmt::format("comparing clocks: rank {} has sent nothing for {} s (--comm-timeout)", from,
                      timeout_s_),
          {from});
    }
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  double timeout_s_;
};

// Runs on rank 0, and compares rank 0's clock with the clock of `rank`. Rank `rank` reads its clock
// between two readings of rank 0's clock. So the error of the measured offset is at most half of
// the time between the two readings.
ClockReading ask(const Ranks& ranks, int rank) {
  ClockReading best{.error_ns = std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < questions; ++i) {
    const int64_t asked = trace::now_ns();
    ranks.send<1>(rank, {0});
    const auto [theirs] = ranks.receive<1>(rank);
    const int64_t answered = trace::now_ns();
    const int64_t error = (answered - asked + 1) / 2;
    if (error >= best.error_ns) continue;
    best = {.at_ns = theirs, .offset_ns = asked + error - theirs, .error_ns = error};
  }
  if (std::abs(best.offset_ns) <= best.error_ns) best.offset_ns = 0;
  return best;
}

}  // namespace

ClockReading compare_clocks(const World& world) {
  const int64_t begin_ns = trace::now_ns();
  if (world.size == 1) return {.at_ns = begin_ns, .rank_0_ns = begin_ns};
  const Ranks ranks(world.comm_timeout_s);
  if (world.rank == 0) {
    for (int rank = 1; rank < world.size; ++rank) {
      const ClockReading reading = ask(ranks, rank);
      ranks.send<4>(rank, {reading.at_ns, reading.offset_ns, reading.error_ns, begin_ns});
    }
    return {.at_ns = trace::now_ns(), .rank_0_ns = begin_ns};
  }
  for (int i = 0; i < questions; ++i) {
    ranks.receive<1>(0);
    ranks.send<1>(0, {trace::now_ns()});
  }
  const auto [at, offset, error, rank_0] = ranks.receive<4>(0);
  return {.at_ns = at, .offset_ns = offset, .error_ns = error, .rank_0_ns = rank_0};
}

int64_t on_rank_0(int64_t ns, const ClockReading& first, const ClockReading& last) {
  const int64_t time = last.at_ns - first.at_ns;
  const double part =
      time == 0 ? 0 : static_cast<double>(ns - first.at_ns) / static_cast<double>(time);
  const double change = part * static_cast<double>(last.offset_ns - first.offset_ns);
  return ns + first.offset_ns + std::llround(change);
}

}  // namespace tessera::dist
