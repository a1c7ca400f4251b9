#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>

#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/text/error_text.h"
#include "core/text/input_file.h"
#include "core/text/output_file.h"
#include "dist/agreement.h"
#include "train/checkpoint/made_folders.h"
#include "train/report/run_log.h"
#include "train/tuned_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* partial_end = ".partial";
// Ends the name of a checkpoint that is being replaced.
constexpr const char* replaced_end = ".before.partial";

// Copies values in GPU memory to the host, because files are written from host memory.
std::vector<optim::StatePiece> on_host(std::vector<optim::StatePiece> pieces) {
  for (optim::StatePiece& piece : pieces) piece.values = piece.values.to_host();
  return pieces;
}

struct Verified {
  std::string why = {};  // why the checkpoint is not whole; empty if it is
  bool removed = false;  // true: the folder was removed meanwhile, which is not damage
};

// Opens a checkpoint on all ranks, and verifies it: each rank verifies its share of the bytes. If
// the checkpoint is damaged or was removed, returns the reason. If it is there, but reading fails
// on a rank, throws: the checkpoint may be whole, and must not be passed over, because a run that
// begins from an older checkpoint trains the later steps once more. Collective.
Verified verify_together(const std::string& path, const dist::World& world,
                         std::unique_ptr<CheckpointReader>& reader) {
  std::string damage;
  std::string failure;
  try {
    reader = std::make_unique<CheckpointReader>(path);
    reader->verify(world.rank, world.size);
  } catch (const InputError& error) {
    damage = error.what();
  } catch (const std::exception& error) {
    failure = error_text(error);
  }
  failure = dist::first_reason(failure, *world.communicator);
  damage = dist::first_reason(damage, *world.communicator);
  if (failure.empty() && damage.empty()) return {};
  const std::string there = has_name(path) ? "there" : "";
  if (dist::broadcast_text(*world.communicator, there).empty()) {
    return {.why = path + ": was removed while it was read", .removed = true};
  }
  if (!failure.empty()) fail("{}: cannot be checked: {}", path, failure);
  return {.why = damage};
}

// Returns the steps of a folder's checkpoints, newest first. Rank 0 lists the folder and broadcasts
// the steps: all ranks need the same list, because they verify each checkpoint together. If rank 0
// cannot read the folder, all ranks throw rank 0's error. Collective.
std::vector<int64_t> steps_together(const std::string& folder, const dist::World& world) {
  std::string names;
  try {
    if (world.rank == 0) {
      for (const int64_t step : checkpoint_steps(folder)) names += fmt::format("{} ", step);
    }
  } catch (const InputError& error) {
    names = std::string("!") + error.what();  // a list of steps begins with a digit
  } catch (const Error& error) {
    names = std::string("?") + error.what();
  }
  names = dist::broadcast_text(*world.communicator, names);
  if (names.starts_with('!')) fail_input("{}", names.substr(1));
  if (names.starts_with('?')) fail("{}", names.substr(1));
  std::vector<int64_t> steps;
  const char* const end = names.data() + names.size();
  for (const char* at = names.data(); at < end;) {
    at = std::from_chars(at, end, steps.emplace_back()).ptr + 1;
  }
  return steps;
}

// Returns why there is no checkpoint at `path`, or an empty text if there may be one.
std::string why_no_checkpoint(const std::string& path) {
  const std::string no_folder = why_no_folder(path);
  if (!no_folder.empty() || has_manifest(path)) return no_folder;
  const std::vector<int64_t> steps = checkpoint_steps(path);
  if (steps.empty()) return "";
  return fmt::format("{} is a folder of checkpoints; name one of them, such as {}", path,
                     (fs::path(path) / checkpoint_name(steps.front())).string());
}

}  // namespace

std::string why_no_folder(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return "";
  if (fs::exists(status)) return path + " is a file, expected the folder of a checkpoint";
  // The status of a missing path is known (it is missing). The status is unknown if, for instance,
  // this user has no permission to search a folder of the path.
  if (!fs::status_known(status)) return path + ": cannot be read: " + error.message();
  return path + ": there is no such folder";
}

std::string first_failure(const std::vector<std::string>& texts) {
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) return fmt::format("rank {}: {}", rank, texts[rank]);
  }
  return "";
}

bool names_partial_checkpoint(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const size_t dot = std::min(name.find('.'), name.size());
  const std::string end = name.substr(dot);
  // The whole name is compared, because another program's step-7.safetensors.partial must not be
  // removed as a checkpoint.
  return names_checkpoint(name.substr(0, dot)) && (end == partial_end || end == replaced_end);
}

std::string partial_folder(const std::string& folder, int64_t step) {
  return (fs::path(folder) / (checkpoint_name(step) + partial_end)).string();
}

std::string make_partial_folder(const std::string& folder, int64_t step) {
  MadeFolders made;
  if (const auto error = made.make(folder)) {
    fail("{}: cannot be made: {}", folder, error.message());
  }
  made.flush();
  std::string partial = partial_folder(folder, step);
  // From here on no folder in `made` is empty, so its destructor removes none. The name of the
  // partial folder needs no flush: commit_checkpoint renames it, and flushes the new name.
  fs::create_directory(partial);
  return partial;
}

Manifest manifest_of(const std::vector<std::string>& shards, const optim::ZeroOptimizer& optimizer,
                     const dist::World& world, const CheckpointInfo& info) {
  Manifest manifest{.version = version(),
                    .step = info.step,
                    .skipped = info.skipped,
                    .best = info.best,
                    .digest = {},
                    .layout = {.ranks = world.size,
                               .stage = optimizer.options().stage,
                               .bucket_bytes = optimizer.options().bucket_bytes},
                    .run = info.run,
                    .bits = info.bits,
                    .weights = info.weights,
                    .tuned = tuned_table(),
                    .events = optimizer.parameter_events(),
                    .files = {},
                    .tensors = optimizer.state_tensors(),
                    .ranges = {}};
  std::vector<WrittenShard> written;
  for (const std::string& text : shards) written.push_back(parse_shard(text));
  add_shards(manifest, std::move(written));
  return manifest;
}

void add_shards(Manifest& manifest, std::vector<WrittenShard> shards) {
  for (WrittenShard& shard : shards) {
    for (CheckpointRange& range : shard.ranges) {
      range.file = std::ssize(manifest.files);
      manifest.digest += range.digest;
      manifest.ranges.push_back(range);
    }
    manifest.files.push_back(std::move(shard.file));
  }
  // parse_manifest expects the ranges of all ranks in this order.
  std::sort(manifest.ranges.begin(), manifest.ranges.end(), [](const auto& a, const auto& b) {
    return std::pair(a.tensor, a.begin) < std::pair(b.tensor, b.begin);
  });
}

void commit_checkpoint(const std::string& folder, const Manifest& manifest) {
  const fs::path partial = partial_folder(folder, manifest.step);
  for (const CheckpointFile& file : manifest.files) {
    std::error_code error;
    if (fs::exists(partial / file.name, error)) continue;
    fail("{}: is not there, although a rank has written it; all ranks must share the folder {}",
         (partial / file.name).string(), folder);
  }
  const std::string text = manifest_text(manifest);
  const std::string path = (partial / manifest_name).string();
  // Throws if the text is not a valid manifest. A later run must be able to read every committed
  // manifest.
  parse_manifest(path, text);
  OutputFile file(path);
  file.write(text);
  file.commit();
  // All content must be on the disk before the folder gets its final name below.
  flush_folder(partial);
  // There may be a checkpoint of this step already. Nothing is lost if it is replaced: either the
  // checkpoint is damaged, or this run has done the step again. Its folder is moved away first,
  // because rename() replaces only empty folders. If the process is killed between the two renames,
  // remove_partial_checkpoints moves the folder back.
  const fs::path whole = fs::path(folder) / checkpoint_name(manifest.step);
  const fs::path before = whole.string() + replaced_end;
  if (has_other_files(whole.string())) {
    fail(
        "{}: it is a file or has files of no checkpoint, such as saved weights, and is not "
        "replaced",
        whole.string());
  }
  const bool replaces = fs::exists(whole);
  if (replaces) {
    fs::remove_all(before);  // left over if an earlier removal failed
    fs::rename(whole, before);
  }
  std::error_code error;
  fs::rename(partial, whole, error);
  if (error) {
    std::error_code ignored;
    if (replaces) fs::rename(before, whole, ignored);
    throw fs::filesystem_error("cannot rename", partial, whole, error);
  }
  // The new name must be on the disk before the replaced and older checkpoints may be removed.
  try {
    flush_folder(folder);
  } catch (const Error& unflushed) {
    throw UnflushedCheckpoint(
        fmt::format("{} is in its place, but may be lost if the machine fails now: {}",
                    whole.string(), unflushed.what()));
  }
  // The new checkpoint is valid even if this removal fails. remove_partial_checkpoints then removes
  // the old folder when the next writer starts.
  if (replaces) fs::remove_all(before, error);
}

void prune_checkpoints(const std::string& folder, int64_t newest, int64_t keep,
                       std::set<int64_t>& whole_later) {
  int64_t kept = 0;
  // The steps are listed newest first, so the first `keep` steps up to `newest` stay.
  for (const int64_t step : checkpoint_steps(folder)) {
    const fs::path old = fs::path(folder) / checkpoint_name(step);
    // Shards without a manifest stay, because they may be all that is left of a run.
    if (!has_manifest(old.string())) continue;
    if (step <= newest && kept++ < keep) continue;
    if (step > newest && (whole_later.contains(step) || !is_damaged(old.string()))) {
      if (!whole_later.insert(step).second) continue;
      spdlog::warn("{} is of a later step than {}, and is kept; a later start would go on from it",
                   old.string(), newest);
      continue;
    }
    // commit_checkpoint may have failed to remove the folder that `old` replaced. The replaced
    // folder must be removed before `old`, because remove_partial_checkpoints would restore the
    // replaced folder if `old` were missing.
    fs::remove_all(old.string() + replaced_end);
    // Renames the folder before removing it. A folder whose removal is interrupted is then not
    // mistaken for a checkpoint.
    const fs::path going = old.string() + partial_end;
    fs::rename(old, going);
    fs::remove_all(going);
  }
}

void remove_partial_checkpoints(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> left;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (names_partial_checkpoint(entry->path().string())) left.push_back(entry->path());
  }
  // Folders are removed after the loop, because removals would disturb the listing.
  for (const fs::path& path : left) {
    const std::string name = path.string();
    const fs::path whole = name.substr(0, name.size() - std::strlen(replaced_end));
    // If the final name is free, commit_checkpoint was interrupted before the new checkpoint got
    // the name. The old checkpoint gets the name back.
    if (name.ends_with(replaced_end) && !fs::exists(whole)) {
      fs::rename(path, whole);
    } else {
      fs::remove_all(path);
    }
  }
}

BlockDigest save_checkpoint(const std::string& folder, optim::ZeroOptimizer& optimizer,
                            const dist::World& world, const CheckpointInfo& info) {
  const std::string partial = partial_folder(folder, info.step);
  std::string shard;
  std::string why;
  const auto attempt = [&why](const auto& part) {
    try {
      part();
    } catch (const std::exception& error) {
      why = error_text(error);
    }
  };
  // A rank that fails still takes part in the collectives below. Otherwise the other ranks would
  // wait forever.
  attempt([&] {
    make_partial_folder(folder, info.step);
    shard =
        shard_text(write_shard(partial, shard_name(world.rank, world.size),
                               on_host(optimizer.own_state_pieces()), optimizer.state_tensors()));
  });
  // The manifest may be written only after every rank has written its shard.
  const std::vector<std::string> shards = dist::gather_text(*world.communicator, shard);
  why = first_failure(dist::gather_text(*world.communicator, why));
  BlockDigest digest;
  if (world.rank == 0) {
    const char* fate = not_written;
    if (why.empty()) {
      attempt([&] {
        const Manifest manifest = manifest_of(shards, optimizer, world, info);
        try {
          commit_checkpoint(folder, manifest);
        } catch (const UnflushedCheckpoint&) {
          fate = not_safe;
          throw;
        }
        digest = manifest.digest;
      });
    }
    if (!why.empty()) why = fmt::format("{}: {}", fate, why);
    std::error_code ignored;
    // No rank is writing any more, so rank 0 can remove the shards of all ranks.
    if (!why.empty()) fs::remove_all(partial, ignored);
  }
  // Rank 0 sends its reason, so that either all ranks return or all throw, and the digest.
  why = dist::broadcast_text(*world.communicator, why);
  const std::string text = dist::broadcast_text(*world.communicator, digest.text());
  if (why.empty()) return *BlockDigest::parse(text);
  fail("{}: the checkpoint of step {} {}", folder, info.step, why);
}

std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path,
                                                  const dist::World& world) {
  std::unique_ptr<CheckpointReader> reader;
  const std::string why = verify_together(path, world, reader).why;
  if (why.empty()) return reader;
  const std::string plainer = why_no_checkpoint(path);
  fail_input("{}", plainer.empty() ? why : plainer);
}

std::unique_ptr<CheckpointReader> find_checkpoint(const std::string& folder,
                                                  const dist::World& world) {
  // The run that writes to the folder may remove or replace a listed checkpoint before it is read.
  // There is usually a newer checkpoint then, or one of the same step. So the folder is listed
  // again, and the older checkpoints of this listing are not tried. The limit ends the search if
  // checkpoints are removed faster than they are read.
  constexpr int most_listings = 5;
  std::string newest_failure;
  std::set<int64_t> failed;  // steps whose checkpoints are not whole; they are not read again
  bool again = true;
  for (int listing = 0; again && listing < most_listings; ++listing) {
    again = false;
    for (const int64_t step : steps_together(folder, world)) {
      if (failed.contains(step)) continue;
      std::unique_ptr<CheckpointReader> reader;
      const std::string path = (fs::path(folder) / checkpoint_name(step)).string();
      const auto [why, removed] = verify_together(path, world, reader);
      if (why.empty()) return reader;
      again = removed;
      if (removed) break;
      spdlog::warn("{} is passed over: {}", path, why);
      failed.insert(step);
      if (newest_failure.empty()) newest_failure = why;
    }
  }
  if (again) fail_input("{}: its checkpoints are removed faster than they can be read", folder);
  if (newest_failure.empty()) return nullptr;
  fail_input("{}: no checkpoint there is whole: {}", folder, newest_failure);
}

void restore_checkpoint(const CheckpointReader& checkpoint, optim::ZeroOptimizer& optimizer) {
  checkpoint.check_tensors(optimizer.state_tensors());  // throws before anything is changed
  optimizer.restore_state(checkpoint);
}

}  // namespace tessera::train
