#include "train/weight_saves.h"

#include <unistd.h>

#include <exception>
#include <filesystem>
#include <utility>

#include <spdlog/spdlog.h>

#include "core/digest.h"
#include "core/text/input_file.h"
#include "core/trace.h"
#include "train/checkpoint/checkpoint.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

std::string beside(const std::string& path, const std::string& folder) {
  const fs::path file(path);
  return (file.parent_path() / folder / file.filename()).string();
}

// Returns "missing" if there is no file at `path`, "replaced" if the file does not have the best
// weights, otherwise an empty text. The file may be missing or replaced if --save now names another
// path than before the resume. The file is also replaced if a better evaluation came between the
// last checkpoint and the end of the earlier run. Without BestEvaluation::file, the weights may
// have any name in the folder of `path`. In this case, returns "missing" if this folder is empty or
// not there, and never returns "replaced". Throws if the file or the folder cannot be examined.
std::string fate_of_best(const std::string& path, const BestEvaluation& best) {
  const fs::path place = best.file ? fs::path(path) : fs::path(path).parent_path();
  std::error_code error;
  bool there = fs::exists(place, error);
  if (there && !best.file) there = !fs::is_empty(place, error);
  if (error) fail_with_reason(error.value(), place.string() + ": cannot be read");
  if (!there) return "missing";
  if (best.file && digest_of_file(path) != *best.file) return "replaced";
  return "";
}

// Returns nullopt if there is no file at `path` that can be read, so that a resume only checks
// whether the folder of `path` has a file. The save has still succeeded, because a WeightsSink may
// write any format, for example a folder or a file of another name.
std::optional<FileDigest> digest_if_file(const std::string& path) {
  try {
    return digest_of_file(path);
  } catch (const std::exception&) {
    return std::nullopt;
  }
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
  // Without options_.best the run makes no comparisons. It only passes the best evaluation on to
  // its own checkpoints.
  if (!options_.best || !best_) return;
  if (!best_->evaluated.empty() && best_->evaluated != options_.evaluated) {
    spdlog::warn(
        "the best evaluation so far, of step {}, measured {}, but this run {}, so earlier "
        "evaluations no longer count as the best",
        best_->step, best_->evaluated,
        options_.evaluated.empty() ? "does not say what it measures"
                                   : "measures " + options_.evaluated);
    best_.reset();
    return;
  }
  const std::string path = best_weights_path(options_.path);
  const std::string fate =
      dist::broadcast_text(*world.communicator, world.rank == 0 ? fate_of_best(path, *best_) : "");
  if (fate == "missing") {
    spdlog::warn(
        "{}: the best weights so far, of step {}, are missing; the next evaluation counts as the "
        "best",
        path, best_->step);
    best_.reset();
  } else if (fate == "replaced") {
    // The recorded score remains the one to beat. The file may have better weights, from a later
    // evaluation that this run repeats, and a worse evaluation must not overwrite these weights.
    spdlog::warn(
        "{}: the best weights so far, of step {}, were replaced by others, which stay until an "
        "evaluation is better",
        path, best_->step);
    best_failure_ = fmt::format("the best weights, of step {}, are lost: {} has other weights",
                                best_->step, path);
  }
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
           .file = world_.rank == 0 ? digest_if_file(path) : std::nullopt};
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
    return open_(to, updates);
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
