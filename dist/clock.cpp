#include "dist/clock.h"

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/trace.h"
#include "dist/backoff.h"
#include "dist/host_buffer.h"
#include "dist/mpi/mpi_check.h"
#include "dist/stalled.h"

namespace tessera::dist {
namespace {

constexpr int questions = 16;
constexpr int tag = 0;

/// Returns the ranks of `world`, which may be a group, as ranks of the job. Collective.
std::vector<int> job_ranks_of(const World& world) {
  int own = 0;
  TESSERA_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &own));
  const HostBuffer ranks(world.size, DType::i32, *world.communicator);
  ranks.data<int32_t>()[world.rank] = own;
  ranks.all_gather(*world.communicator, Traffic::other).wait();
  const auto values = ranks.values().values<int32_t>();
  return {values.begin(), values.end()};
}

/// Returns an MPI communicator of these ranks of the job, in this order. Collective among these
/// ranks, so a group does not wait for ranks outside of it. The communicator is kept for later
/// comparisons, and is never freed: MPI_Comm_free is a collective, so if only one rank fails and
/// frees it, this rank waits for the others for ever.
MPI_Comm connect(const std::vector<int>& job_ranks) {
  static std::map<std::vector<int>, MPI_Comm> connected;
  if (const auto found = connected.find(job_ranks); found != connected.end()) return found->second;
  MPI_Group job = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  TESSERA_MPI(MPI_Comm_group(MPI_COMM_WORLD, &job));
  TESSERA_MPI(MPI_Group_incl(job, static_cast<int>(job_ranks.size()), job_ranks.data(), &group));
  TESSERA_MPI(MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &communicator));
  TESSERA_MPI(MPI_Group_free(&group));
  TESSERA_MPI(MPI_Group_free(&job));
  TESSERA_MPI(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN));
  connected.emplace(job_ranks, communicator);
  return communicator;
}

/// Sends and receives over a separate MPI communicator, so that these messages do not mix with
/// others. connect() would wait without a time limit for a rank that never comes. So the gather in
/// job_ranks_of() is made first: it has a time limit, and ends only when all ranks have come.
class Ranks {
 public:
  explicit Ranks(const World& world)
      : job_ranks_(job_ranks_of(world)),
        communicator_(connect(job_ranks_)),
        timeout_s_(world.comm_timeout_s) {}

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
      const int job_rank = job_ranks_[static_cast<size_t>(from)];
      throw StalledError(
          fmt::format("comparing clocks: rank {} has sent nothing for {} s (--comm-timeout)",
                      job_rank, timeout_s_),
          {job_rank});
    }
  }

  std::vector<int> job_ranks_;
  MPI_Comm communicator_;
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
  const Ranks ranks(world);
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
