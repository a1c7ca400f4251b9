// The memory and traffic of a rank compared with the plan: after a run they are equal, to the byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "optim/plan/plan.h"
#include "train/training_run.h"

namespace tessera::train {

/// The steps of a run, those without an update because gradients overflowed, and the saves of its
/// weights before its end.
struct StepCount {
  int64_t steps = 0;
  int64_t skipped = 0;
  int64_t saves = 0;
};

/// The run to plan after it has ended. Best weights are saved where an evaluation improves: a run
/// in which none did has saved nothing, and held no memory for it.
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
    std::optional<int64_t> planned;  // nullopt: evaluation, trace and this report
    int64_t sent = 0;
  };

  int rank = 0;
  StepCount count;
  std::vector<Memory> memory;
  int64_t peak_total = 0;       // largest sum over the categories
  int64_t process_peak = 0;     // VmHWM: with the program, its libraries and what they allocate
  int64_t heap_peak = 0;        // the part of it that the library's heap on the host has held
  std::vector<Traffic> traffic;  // of all steps

  /// True if every planned number equals the measured one.
  bool equal() const;
  JsonObject json() const;
  std::string table() const;
};

/// This rank's report after a run, from the process's ledgers.
RankReport measure(const optim::Plan& plan, const StepCount& count, const dist::World& world);

/// All ranks' reports on rank 0; empty elsewhere. Collective.
struct GatheredReports {
  std::vector<std::string> json;
  std::vector<int> differing;  // ranks whose measurement is not the plan
  std::string first_table;     // of the first rank that differs
};
GatheredReports gather_reports(const RankReport& own, const dist::World& world);

/// Largest resident size of this process so far, in bytes.
int64_t process_peak_bytes();

}  // namespace tessera::train
