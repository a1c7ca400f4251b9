// What a rank held and sent, beside what was planned: after a run they are equal, to the byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "optim/plan/plan.h"

namespace tessera::train {

/// How many steps a run took, in how many of them gradients overflowed and nothing was updated, and
/// how often its weights were saved before its end.
struct StepCount {
  int64_t steps = 0;
  int64_t skipped = 0;
  int64_t saves = 0;
};

struct RankReport {
  struct Memory {
    std::string category;
    std::optional<int64_t> planned;  // none: it depends on the model's operations
    int64_t current = 0;
    int64_t peak = 0;
  };
  struct Traffic {
    std::string purpose;
    std::optional<int64_t> planned;  // none: evaluation, trace and this report
    int64_t sent = 0;
  };

  int rank = 0;
  StepCount count;
  std::vector<Memory> memory;
  int64_t peak_total = 0;       // largest sum over the categories
  int64_t process_peak = 0;     // VmHWM: with the program, its libraries and what they allocate
  int64_t heap_peak = 0;        // what the heap of blocks on the host has held of it
  std::vector<Traffic> traffic;  // of all steps

  /// Whether everything that was planned came out equal.
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
  std::string first_table;     // of the first of them
};
GatheredReports gather_reports(const RankReport& own, const dist::World& world);

/// Largest resident size of this process so far, in bytes.
int64_t process_peak_bytes();

}  // namespace tessera::train
