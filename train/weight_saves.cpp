#include "train/weight_saves.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include <spdlog/spdlog.h>

#include "core/trace.h"
#include "train/checkpoint/checkpoint.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

std::string beside(const std::string& path, const std::string& folder) {
  const fs::path file(path);
  return (file.parent_path() / folder / file.filename()).string();
}

// Returns what happened to the best weights if the file at `path` does not have them, otherwise an
// empty text. The file may be missing or have other weights if --save now names another path than
// before the resume. The file may also have other weights if the earlier run replaced it after its
// last checkpoint.
std::string fate_of_best(const std::string& path, const BestEvaluation& best) {
  std::error_code error;
  if (!fs::exists(path, error)) return "are missing";
  if (best.file && digest_of_file(path) != *best.file) return "were replaced by others";
  return "";
}

}  // namespace

std::string step_weights_path(const std::string& path, int64_t step) {
  return beside(path, checkpoint_name(step));
}

std::string best_weights_path(const std::string& path) { return beside(path, "best"); }

WeightSaves::WeightSaves(WeightSaveOptions options, const dist::World& world,
                         optim::ZeroOptimizer& optimizer, RunLog& log, Open open,
                         std::optional<BestEvaluation> best)
    : options_(std::move(options)),
      world_(world),
      optimizer_(optimizer),
      log_(log),
      open_(std::move(open)),
      best_(std::move(best)) {
  if (!options_.best || !best_) return;
  const std::string path = best_weights_path(options_.path);
  const std::string fate =
      dist::broadcast_text(*world.communicator, world.rank == 0 ? fate_of_best(path, *best_) : "");
  if (fate.empty()) return;
  spdlog::warn(
      "{}: the best weights so far, of step {}, {}; the next evaluation counts as the best", path,
      best_->step, fate);
  best_.reset();
}

bool WeightSaves::due(int64_t done, bool evaluated) const {
  return (options_.every > 0 && done % options_.every == 0) || (options_.best && evaluated);
}

bool WeightSaves::keep_best(int64_t done, int64_t updates, const std::optional<Score>& score) {
  if (!options_.best || !score || !score->valid()) return false;
  if (best_ && !is_better(*score, *best_)) return false;
  const std::string path = best_weights_path(options_.path);
  const std::string why = save(path, updates);
  if (!why.empty()) {
    best_failure_ = report_failure(done, path, why);
    return false;
  }
  best_failure_.clear();
  best_ = {.step = done,
           .value = score->value,
           .tie = score->tie,
           .evaluated = options_.evaluated,
           .file = world_.rank == 0 ? std::optional(written_) : std::nullopt};
  return true;
}

void WeightSaves::after_step(int64_t done, int64_t updates) {
  if (options_.every <= 0 || done % options_.every != 0) return;
  const std::string path = step_weights_path(options_.path, done);
  const std::string why = save(path, updates);
  step_failure_ = why.empty() ? "" : report_failure(done, path, why);
  if (!why.empty()) return;
  log_.write(JsonObject().add("type", "save").add("step", done).add("path", path));
}

std::string WeightSaves::save(const std::string& path, int64_t updates) {
  const trace::Scope scope("save");
  ++count_;
  return try_save_parameters(path, optimizer_, world_, [&](const std::string& to) {
    const fs::path folder = fs::path(to).parent_path();
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail("the folder {} cannot be made: {}", folder.string(), error.message());
    WeightsSink sink = open_(to, updates);
    sink.commit = [this, to, commit = std::move(sink.commit)] {
      commit();
      written_ = digest_of_file(to);
    };
    return sink;
  });
}

std::string WeightSaves::report_failure(int64_t done, const std::string& path,
                                        const std::string& why) {
  log_.write(
      JsonObject().add("type", "save").add("step", done).add("path", path).add("failed", why));
  spdlog::warn("the weights of step {} were not saved: {}; training goes on", done, why);
  // Removes the save's folder if the failure has left it empty. If the folder's path is a file or a
  // symbolic link of the user, rmdir keeps it, but fs::remove would remove it.
  if (world_.rank == 0) ::rmdir(fs::path(path).parent_path().c_str());
  return fmt::format("the weights of step {} were not written to {}", done, path);
}

}  // namespace tessera::train
