#include "apps/checkpoint/commands.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/text/input_file.h"
#include "core/text/number_text.h"
#include "core/text/output_file.h"
#include "dist/communicator.h"
#include "models/recommender/recommender_file.h"
#include "nn/safetensors.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/export_weights.h"
#include "train/checkpoint/import_checkpoint.h"
#include "train/checkpoint/path_within.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;

dist::World this_process() { return {.communicator = dist::single_communicator()}; }

std::string in_folder(const std::string& folder, int64_t step) {
  return (fs::path(folder) / train::checkpoint_name(step)).string();
}

struct Verified {
  bool was_read = true;  // false: the checkpoint could not be read, and may be whole or not
  std::string why = {};  // the error message; empty if the checkpoint is whole
  bool removed = false;  // true: the run that writes to the folder has removed the checkpoint
};

// Verifies a checkpoint and prints the result.
Verified verify_one(const std::string& path) {
  try {
    const train::CheckpointReader checkpoint(path);
    checkpoint.verify();
    const train::Manifest& manifest = checkpoint.manifest();
    fmt::print("{}: whole, {} bytes, digest {}\n", path, grouped(total_bytes(manifest)),
               manifest.digest.text());
    return {};
  } catch (const Error& error) {
    if (!has_name(path)) {
      fmt::print("{}: was removed while it was read\n", path);
      return {.why = error.what(), .removed = true};
    }
    if (dynamic_cast<const InputError*>(&error) != nullptr) {
      fmt::print("{}: not whole\n", path);
      return {.why = error.what()};
    }
    // Reading failed, for instance without permission or on a failing disk.
    fmt::print("{}: cannot be checked\n", path);
    return {.was_read = false, .why = fmt::format("{}: cannot be checked: {}", path, error.what())};
  }
}

}  // namespace

bool is_one_checkpoint(const std::string& path) {
  const std::string no_folder = train::why_no_folder(path);
  if (!no_folder.empty()) fail_input("{}", no_folder);
  return train::names_checkpoint(path) || train::has_manifest(path);
}

std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps = train::checkpoint_steps(folder);
  if (steps.empty()) fail_input("{}: it has no checkpoints", folder);
  return steps;
}

std::unique_ptr<train::CheckpointReader> open_whole_checkpoint(const std::string& path) {
  if (is_one_checkpoint(path)) return train::open_checkpoint(path, this_process());
  auto found = train::find_checkpoint(path, this_process());
  if (found == nullptr) fail_input("{}: it has no checkpoints", path);
  return found;
}

int64_t total_bytes(const train::Manifest& manifest) {
  int64_t bytes = 0;
  for (const train::CheckpointFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

std::string plain(const std::string& text) {
  const std::string quoted = nn::printable(text);
  return quoted == '"' + text + '"' ? text : quoted;
}

int verify_checkpoints(const CheckpointToolOptions& options) {
  const std::string& path = options.path;
  if (is_one_checkpoint(path)) {
    const Verified result = verify_one(path);
    if (!result.why.empty()) fail("{}", result.why);
    return 0;
  }
  const std::vector<int64_t> steps = steps_in(path);
  int64_t damaged = 0;
  int64_t removed = 0;
  std::string first_damage;
  std::string first_unread;
  for (const int64_t step : steps) {
    const Verified result = verify_one(in_folder(path, step));
    if (result.removed) ++removed;
    if (result.removed || result.why.empty()) continue;
    if (result.was_read) ++damaged;
    std::string& first = result.was_read ? first_damage : first_unread;
    if (first.empty()) first = result.why;
  }
  const int64_t verified = std::ssize(steps) - removed;
  if (verified == 0) fail("{}: all its checkpoints were removed while they were read", path);
  if (damaged > 0) {
    fail("{} of {} {} not whole: {}", damaged, counted(verified, "checkpoint"),
         damaged == 1 ? "is" : "are", first_damage);
  }
  if (!first_unread.empty()) fail("{}", first_unread);
  return 0;
}

int export_checkpoint(const CheckpointToolOptions& options) {
  check_writable(options.other);  // before the checkpoint is read
  const auto checkpoint = open_whole_checkpoint(options.path);
  if (train::is_path_within(options.other, checkpoint->folder())) {
    fail_input("{} is in the checkpoint {}, expected another folder", options.other,
               checkpoint->folder());
  }
  train::export_weights(*checkpoint, options.other);
  fmt::print("{}: the weights of {}, after step {}\n", options.other, checkpoint->folder(),
             checkpoint->manifest().step);
  if (models::describes_recommender(checkpoint->manifest().weights)) {
    spdlog::warn("{} is without the ids and histories that recommend needs", options.other);
  }
  return 0;
}

int import_weights(const CheckpointToolOptions& options) {
  const train::ImportedCheckpoint imported = train::import_checkpoint(options.import);
  const train::Manifest& manifest = imported.manifest;
  fmt::print("{}: {} of {}, {} bytes, digest {}\n", imported.path,
             counted(std::ssize(manifest.tensors), "tensor"), manifest.imported,
             grouped(total_bytes(manifest)), manifest.digest.text());
  return 0;
}

}  // namespace tessera::apps
