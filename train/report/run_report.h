// Compares the memory and traffic of a rank with the plan. After a run, planned and measured bytes
// are expected to be equal (for exceptions see train/plan/run_plan.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "optim/plan/plan.h"
#include "optim/tables/row_counts.h"
#include "train/report/timeline.h"
#include "train/training_run.h"

namespace tessera::train {

struct StepCount {
  int64_t steps = 0;
  int64_t skipped = 0;                                // steps without an update
  std::map<std::string, optim::RowCounts> rows = {};  // row counts of row-sparse tables, by name
  int64_t saves = 0;  // saves of the weights before the end of the run, including failed saves
  std::optional<TimelineWindow> timeline = std::nullopt;  // the step whose events were recorded
};

/// Returns `run` with changes, so that its plan equals what the run has measured. If the run has
/// saved no weights before its end (StepCount::saves is 0), the result has no LoopOptions::weights,
/// because the run has allocated no memory for such saves. For example, a run that keeps its best
/// weights saves none if no evaluation has a valid score. The result also has the counted rows of
/// row-sparse tables (StepCount::rows).
TrainingRun as_it_went(TrainingRun run, const StepCount& count);

struct RankReport {
  struct Memory {
    std::string category;
    std::optional<int64_t> planned;  // nullopt: depends on the model's operations
    int64_t current = 0;
    int64_t peak = 0;
  };
  struct Traffic {
    std::string purpose;
    std::optional<int64_t> planned;  // nullopt: not planned (evaluation, trace and this report)
    int64_t sent = 0;
  };

  int rank = 0;
  StepCount count;
  std::vector<Memory> memory;
  int64_t peak_total = 0;        // largest sum of all categories at one time
  int64_t process_peak = 0;      // VmHWM: all resident memory, including code and libraries
  int64_t heap_peak = 0;         // peak bytes of pages in Tessera's host heaps (peak_held_bytes)
  std::vector<Traffic> traffic;  // traffic of the whole run

  /// True if every planned number equals the measured one.
  bool equal() const;
  JsonObject json() const;
  std::string table() const;
};

/// Makes this rank's report after a run, from the process's ledgers of memory and traffic.
RankReport measure(const optim::Plan& plan, const StepCount& count, const dist::World& world);

/// The reports of all ranks, gathered on rank 0.
struct GatheredReports {
  std::vector<std::string> json;  // one per rank
  std::vector<int> differing;     // ranks whose measurement differs from the plan
  std::string first_table;        // the printed table of the first differing rank
};
/// Gathers the reports of all ranks on rank 0. The result is empty on other ranks. Collective.
GatheredReports gather_reports(const RankReport& own, const dist::World& world);

/// Returns the largest resident size of this process so far (VmHWM), in bytes.
int64_t process_peak_bytes();

}  // namespace tessera::train
