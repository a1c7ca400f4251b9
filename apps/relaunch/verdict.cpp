#include "apps/relaunch/verdict.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "apps/relaunch/processes.h"

namespace tessera::apps {
namespace {

using Event = RankRecord::Event;
using Records = std::vector<RankRecord>;

LostRank lost(const RankRecord& record, std::string why, int signal = 0) {
  return {.rank = record.rank,
          .why = std::move(why),
          .finished_steps = record.status.finished_steps,
          .signal = signal};
}

const RankRecord* last_of(const Records& records, int rank) {
  const auto found = std::find_if(records.rbegin(), records.rend(),
                                  [rank](const RankRecord& record) { return record.rank == rank; });
  return found == records.rend() ? nullptr : &*found;
}

// Returns the record of the first rank that a signal killed before mpirun told the rank's parent
// process (rank_parent.h) to end; nullptr if there is none.
const RankRecord* first_killed(const Records& records) {
  const auto found = std::ranges::find_if(records, [](const RankRecord& record) {
    return record.event == Event::ended && record.signal != 0 && !record.was_told;
  });
  return found == records.end() ? nullptr : &*found;
}

// Returns a message with the failure that the rank reported. If the rank reported none, but ended
// with an exit code other than 0 before mpirun told it to end, the message gives the exit code. In
// all other cases, returns an empty text.
std::string own_failure(const RankRecord& record) {
  if (record.event == Event::started) return "";
  switch (record.status.failure) {
    case RunFailure::input:
      return fmt::format("rank {} has bad input", record.rank);
    case RunFailure::error:
      return fmt::format("rank {} has ended with an error", record.rank);
    case RunFailure::stalled:
      return fmt::format(
          "rank {} timed out in a collective, and does not know which ranks are missing",
          record.rank);
    case RunFailure::none:
      break;
  }
  const bool exited = record.event == Event::ended && record.code != 0 && !record.was_told;
  return exited ? fmt::format("rank {} ended with exit code {}", record.rank, record.code) : "";
}

// Returns the ranks that caused a stall. The rank of the record `stalled` timed out and lists the
// ranks that it waited for. Listed ranks that timed out too are left out. Returns the first of
// these groups that is not empty:
//
//   ranks that were stopped
//   ranks that did not wait in a collective
//   all remaining ranks
std::vector<LostRank> absent_ranks(const JobEnd& job, const RankRecord& stalled) {
  std::array<std::vector<LostRank>, 3> groups;  // stopped, not waiting, all
  for (const int rank : stalled.status.absent) {
    if (rank < 0 || rank >= job.ranks) continue;
    const RankRecord* const last = last_of(job.records, rank);
    if (last != nullptr && last->status.failure == RunFailure::stalled) continue;
    const bool stopped = last != nullptr && last->stopped;
    const bool waits = last != nullptr && last->status.waits;
    const LostRank absent{.rank = rank,
                          .why = stopped ? "was stopped" : "did not come to a collective",
                          .finished_steps = stalled.status.finished_steps};
    if (stopped) groups[0].push_back(absent);
    if (!waits) groups[1].push_back(absent);
    groups[2].push_back(absent);
  }
  const auto best = std::ranges::find_if(groups, [](const auto& group) { return !group.empty(); });
  return best == groups.end() ? std::vector<LostRank>() : *best;
}

// Returns the number of steps that the job has finished: the largest number in a record.
int64_t steps_of(const JobEnd& job) {
  int64_t steps = 0;
  for (const RankRecord& record : job.records) {
    steps = std::max(steps, record.status.finished_steps);
  }
  return steps;
}

// Returns the ranks that reported nothing or only their start. If this is true of all ranks,
// returns no ranks.
std::vector<LostRank> silent_ranks(const JobEnd& job) {
  std::set<int> heard;
  for (const RankRecord& record : job.records) {
    if (record.event != Event::started) heard.insert(record.rank);
  }
  std::vector<LostRank> silent;
  if (heard.empty()) return silent;
  for (int rank = 0; rank < job.ranks; ++rank) {
    if (!heard.contains(rank)) {
      silent.push_back({.rank = rank, .why = "fell silent", .finished_steps = steps_of(job)});
    }
  }
  return silent;
}

// Returns the silent ranks on the hosts of `absent`. Silent ranks on other hosts are left out,
// because they may be healthy: reports go through mpirun, so the crash of mpirun can lose them.
std::vector<LostRank> silent_beside(const JobEnd& job, const std::vector<LostRank>& absent) {
  std::set<std::string> hosts;
  for (const LostRank& rank : absent) {
    if (const RankRecord* const last = last_of(job.records, rank.rank)) hosts.insert(last->host);
  }
  std::vector<LostRank> silent = silent_ranks(job);
  std::erase_if(silent, [&](const LostRank& rank) {
    const RankRecord* const last = last_of(job.records, rank.rank);
    return last == nullptr || !hosts.contains(last->host);
  });
  return silent;
}

std::vector<LostRank> stopped_ranks(const Records& records) {
  std::vector<LostRank> stopped;
  for (const RankRecord& record : records) {
    if (record.event == Event::told && record.stopped)
      stopped.push_back(lost(record, "was stopped"));
  }
  return stopped;
}

void add_missing(const std::vector<LostRank>& more, std::vector<LostRank>& ranks) {
  for (const LostRank& rank : more) {
    const bool known = std::ranges::find(ranks, rank.rank, &LostRank::rank) != ranks.end();
    if (!known) ranks.push_back(rank);
  }
}

void name_hosts(const JobEnd& job, std::vector<LostRank>& ranks) {
  for (LostRank& rank : ranks) {
    const RankRecord* const record = last_of(job.records, rank.rank);
    if (record != nullptr) rank.host = record->host;
  }
}

// Judges a job whose mpirun crashed. No rank of the job was killed by a signal before the crash.
Verdict judge_crash(const JobEnd& job) {
  for (const RankRecord& record : job.records) {
    if (record.status.failure != RunFailure::stalled) continue;
    std::vector<LostRank> absent = absent_ranks(job, record);
    add_missing(silent_beside(job, absent), absent);
    if (!absent.empty()) return {.kind = Verdict::Kind::lost_ranks, .lost = std::move(absent)};
  }
  return {.kind = Verdict::Kind::crashed,
          .why = "mpirun was killed by " + signal_name(job.launcher_signal)};
}

Verdict judge_records(const JobEnd& job) {
  if (job.code == 0) return {.kind = Verdict::Kind::finished};
  if (const RankRecord* const killed = first_killed(job.records)) {
    return {
        .kind = Verdict::Kind::lost_ranks,
        .lost = {lost(*killed, "was killed by " + signal_name(killed->signal), killed->signal)}};
  }
  // Bad input is judged before timeouts: a rank with bad input may report it only after other ranks
  // that waited for this rank have timed out.
  for (const RankRecord& record : job.records) {
    if (record.status.failure == RunFailure::input) return {.why = own_failure(record)};
  }
  if (job.launcher_signal != 0) return judge_crash(job);
  // Failures are judged before silent ranks. A rank that mpirun ends may have no time to report its
  // end, and would look silent.
  const auto failed = std::ranges::find_if(
      job.records, [](const RankRecord& record) { return !own_failure(record).empty(); });
  if (failed != job.records.end()) {
    const bool stalled = failed->status.failure == RunFailure::stalled;
    std::vector<LostRank> gone;
    if (job.hung) gone = silent_ranks(job);
    // If a host does not answer, ranks on other hosts may get an MPI error before they time out.
    // Then the silent ranks are the cause.
    if (!stalled && !gone.empty()) {
      return {.kind = Verdict::Kind::lost_ranks, .lost = std::move(gone)};
    }
    if (!stalled) return {.why = own_failure(*failed)};
    std::vector<LostRank> absent = absent_ranks(job, *failed);
    // Ranks of a host that does not answer may have reached the collective before their host was
    // lost. Such ranks are silent, but not among the absent ranks, so they are added.
    add_missing(gone, absent);
    // A rank that stalls in MPI_Init does not know which ranks it waits for. Then stopped ranks
    // are the cause.
    if (absent.empty()) absent = stopped_ranks(job.records);
    if (!absent.empty()) return {.kind = Verdict::Kind::lost_ranks, .lost = std::move(absent)};
    return {.kind = Verdict::Kind::stalled,
            .why = own_failure(*failed),
            .finished_steps = failed->status.finished_steps};
  }
  std::vector<LostRank> silent = silent_ranks(job);
  if (!silent.empty()) return {.kind = Verdict::Kind::lost_ranks, .lost = std::move(silent)};
  return {.why = job.records.empty()
                     ? fmt::format("mpirun ended with exit code {} before any rank began", job.code)
                     : fmt::format("mpirun ended with exit code {}", job.code)};
}

}  // namespace

Verdict judge(const JobEnd& job) {
  Verdict verdict = judge_records(job);
  name_hosts(job, verdict.lost);
  return verdict;
}

}  // namespace tessera::apps
