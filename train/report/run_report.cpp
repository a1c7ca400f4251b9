#include "train/report/run_report.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "core/memory.h"
#include "core/text/number_text.h"

namespace tessera::train {
namespace {

std::optional<int64_t> planned_bytes(const optim::Plan& plan, Category category) {
  switch (category) {
    case Category::parameters: return plan.parameters;
    case Category::gradients: return plan.gradients;
    case Category::optimizer_state: return plan.optimizer_state;
    case Category::activations: return plan.activations;
    case Category::communication: return plan.communication;
    case Category::workspace: return plan.workspace;
    case Category::checkpoint:
      return plan.checkpoint;
  }
  return std::nullopt;
}

bool fits(const std::optional<int64_t>& planned, int64_t measured) {
  return !planned || *planned == measured;
}

std::string row(const std::string& name, const std::optional<int64_t>& planned, int64_t measured) {
  const char* verdict = !planned ? "" : *planned == measured ? "yes" : "DIFFERS";
  return fmt::format("{:<18} {:>17} {:>17}  {}\n", name, planned ? grouped(*planned) : "-",
                     grouped(measured), verdict);
}

void add_planned(JsonObject& json, const std::optional<int64_t>& planned) {
  if (planned) json.add("planned", *planned);
}

}  // namespace

bool RankReport::equal() const {
  return std::all_of(memory.begin(), memory.end(),
                     [](const Memory& m) { return fits(m.planned, m.peak); }) &&
         std::all_of(traffic.begin(), traffic.end(),
                     [](const Traffic& t) { return fits(t.planned, t.sent); });
}

JsonObject RankReport::json() const {
  JsonObject memory_json;
  for (const Memory& m : memory) {
    JsonObject entry;
    add_planned(entry, m.planned);
    memory_json.add(m.category, entry.add("current", m.current).add("peak", m.peak));
  }
  JsonObject traffic_json;
  for (const Traffic& t : traffic) {
    JsonObject entry;
    add_planned(entry, t.planned);
    traffic_json.add(t.purpose, entry.add("measured", t.sent));
  }
  JsonObject rows_json;
  for (const auto& [name, of] : count.rows) {
    rows_json.add(name, JsonObject()
                            .add("looked_up", of.looked_up)
                            .add("sent", of.sent)
                            .add("asked", of.asked)
                            .add("served", of.served)
                            .add("touched", of.touched)
                            .add("blocks", of.blocks));
  }
  return JsonObject()
      .add("rank", rank)
      .add("equal", equal())
      .add("memory", memory_json)
      .add("peak_total", peak_total)
      .add("vm_hwm", process_peak)
      .add("heap_peak", heap_peak)
      .add("traffic", traffic_json)
      .add("rows", rows_json);
}

std::string RankReport::table() const {
  const auto heading = [](const std::string& title) {
    return fmt::format("{:<18} {:>17} {:>17}  {}\n", title, "planned", "measured", "equal");
  };
  std::string text = heading("peak bytes");
  for (const Memory& m : memory) text += row(m.category, m.planned, m.peak);
  text += row("all at once", std::nullopt, peak_total);
  text += row("process (VmHWM)", std::nullopt, process_peak);
  text += '\n';
  std::string others = count.skipped > 0 ? fmt::format(", {} skipped", count.skipped) : "";
  if (count.saves > 0) others += ", " + counted(count.saves, "save");
  text += heading(fmt::format("sent, {}{}", counted(count.steps, "step"), others));
  for (const Traffic& t : traffic) text += row(t.purpose, t.planned, t.sent);
  if (!count.rows.empty()) {
    text += fmt::format("\n{:<26} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "rows of", "looked up",
                        "sent", "asked", "served", "touched");
  }
  for (const auto& [name, of] : count.rows) {
    text += fmt::format("{:<26} {:>12} {:>12} {:>12} {:>12} {:>12}\n", name, of.looked_up, of.sent,
                        of.asked, of.served, of.touched);
  }
  return text;
}

TrainingRun as_it_went(TrainingRun run, const StepCount& count) {
  if (count.saves == 0) run.loop.weights = {};
  if (!count.rows.empty()) run.rows = count.rows;
  return run;
}

RankReport measure(const optim::Plan& plan, const StepCount& count, const dist::World& world) {
  RankReport report{.rank = world.rank, .count = count, .memory = {}, .traffic = {}};
  const MemoryLedger& memory = memory_ledger(default_device());
  for (int i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    // Category::checkpoint counts copies of the training state in host memory. So if the run
    // computes on a GPU, the entry host_checkpoint below has these bytes. A run without copies has
    // no entry.
    const bool is_here = default_device().is_cpu() && plan.checkpoint + memory.peak(category) > 0;
    if (category == Category::checkpoint && !is_here) continue;
    report.memory.push_back({std::string(category_name(category)), planned_bytes(plan, category),
                             memory.current(category), memory.peak(category)});
  }
  if (!default_device().is_cpu()) {
    const MemoryLedger& host = memory_ledger(Device{});
    const auto add = [&](const char* name, Category category, int64_t planned) {
      report.memory.push_back({name, planned, host.current(category), host.peak(category)});
    };
    add("host_state", Category::optimizer_state, plan.host.optimizer_state);
    add("host_communication", Category::communication, plan.host.communication);
    if (plan.checkpoint > 0) add("host_checkpoint", Category::checkpoint, plan.checkpoint);
  }
  report.peak_total = memory.peak_total();
  report.process_peak = process_peak_bytes();
  report.heap_peak = peak_held_bytes();
  const dist::TrafficLedger& traffic = world.communicator->traffic();
  for (int i = 0; i < dist::traffic_count; ++i) {
    const auto purpose = static_cast<dist::Traffic>(i);
    std::optional<int64_t> planned;
    if (purpose != dist::Traffic::other) {
      const auto index = static_cast<size_t>(i);
      planned = count.steps * plan.traffic[index] - count.skipped * plan.update_traffic[index] +
                count.saves * plan.save_traffic[index] + plan.counted_traffic[index];
    }
    // These purposes are left out if nothing was planned or sent, for example statistics without
    // batch norms, rows without row-sparse tables, headers without MPI, and saves if no weights
    // were saved.
    const bool may_lack = purpose == dist::Traffic::statistics || purpose == dist::Traffic::rows ||
                          purpose == dist::Traffic::headers || purpose == dist::Traffic::saves;
    if (may_lack && planned == 0 && traffic.bytes_sent(purpose) == 0) continue;
    report.traffic.push_back(
        {std::string(dist::traffic_name(purpose)), planned, traffic.bytes_sent(purpose)});
  }
  return report;
}

GatheredReports gather_reports(const RankReport& own, const dist::World& world) {
  GatheredReports all;
  all.json = dist::gather_text(*world.communicator, own.json().text());
  const auto verdicts = dist::gather_text(*world.communicator, own.equal() ? "equal" : own.table());
  for (size_t rank = 0; rank < verdicts.size(); ++rank) {
    if (verdicts[rank] == "equal") continue;
    if (all.differing.empty()) all.first_table = verdicts[rank];
    all.differing.push_back(static_cast<int>(rank));
  }
  return all;
}

int64_t process_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kilobytes = 0;
    if (words >> key >> kilobytes && key == "VmHWM:") return kilobytes * 1024;
  }
  return 0;
}

}  // namespace tessera::train
