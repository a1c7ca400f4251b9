#include "train/checkpoint/import_checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "nn/safetensors.h"
#include "optim/rules/update_rule.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/imported_tensor.h"
#include "train/checkpoint/path_within.h"
#include "train/report/run_log.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// Returns the kinds of state that the named optimizer keeps. Throws InputError for an unknown name.
std::vector<std::string> kinds_of(const std::string& optimizer) {
  if (optimizer == "adamw") return optim::AdamW().state_names();
  if (optimizer == "adam") return optim::Adam().state_names();
  if (optimizer == "sgd") return optim::Sgd{.momentum = 1}.state_names();
  if (optimizer == "plain-sgd") return optim::Sgd().state_names();
  fail_input("there is no optimizer \"{}\", expected one of adamw, adam, sgd, plain-sgd",
             optimizer);
}

void read_zeros(int64_t /*begin*/, std::span<float> out) { std::ranges::fill(out, 0.0f); }

ImportedMoments zero_moments(const ImportedWeights& weights, const std::string& optimizer) {
  ImportedMoments moments{.kinds = kinds_of(optimizer)};
  for (const ImportedTensor& value : weights.values) {
    for (const std::string& kind : moments.kinds) {
      moments.tensors.push_back(
          {.of = {value.of.name, kind, DType::f32, value.of.shape}, .read = read_zeros});
    }
    moments.updates.emplace_back(0);
  }
  return moments;
}

ImportedMoments open_moments(const ImportOptions& options, const ImportedWeights& weights) {
  if (options.moments.empty()) {
    return zero_moments(weights, options.optimizer.empty() ? "adamw" : options.optimizer);
  }
  ImportedMoments moments = open_imported_moments(options.moments, weights);
  if (!options.optimizer.empty() && kinds_of(options.optimizer) != moments.kinds) {
    fail_input("{}: it has {}, but the optimizer {} keeps {}", options.moments,
               fmt::join(moments.kinds, ", "), options.optimizer,
               kinds_of(options.optimizer).empty()
                   ? "nothing"
                   : fmt::format("{}", fmt::join(kinds_of(options.optimizer), ", ")));
  }
  return moments;
}

// Returns options.step if it is set. Otherwise returns the count of updates in the file of moments,
// which must be the same for all parameters. Without such a file, returns 0. Throws InputError if
// options.step is out of range, or if it is not set and a count is missing or differs.
int64_t finished_step(const ImportOptions& options, const ImportedWeights& weights,
                      const ImportedMoments& moments) {
  constexpr int64_t most = int64_t{1} << 40;
  if (options.step) {
    if (*options.step >= 0 && *options.step <= most) return *options.step;
    fail_input("the step is {}, expected 0 to 2^40", *options.step);
  }
  if (options.moments.empty()) return 0;
  const std::optional<int64_t> common = moments.updates.front();
  for (size_t i = 0; i < moments.updates.size(); ++i) {
    const std::optional<int64_t> own = moments.updates[i];
    const std::string& name = weights.values[i].of.name;
    if (!own) {
      fail_input("{}: {} has no step; give the number of finished steps with --step",
                 options.moments, nn::printable(name));
    }
    if (own != common) {
      fail_input(
          "{}: {} has {} updates, but {} has {}; give the number of finished steps with --step",
          options.moments, nn::printable(weights.values.front().of.name), *common,
          nn::printable(name), *own);
    }
  }
  return *common;
}

// Makes the tensors with the counts of updates. If the file of moments has no count for a
// parameter, the parameter's count is `step`. In this case, `step` must be at least 1: with a count
// of 0 the next update would be the parameter's first, and would replace the imported momentum by
// the gradient.
std::vector<ImportedTensor> update_counts(const ImportOptions& options,
                                          const ImportedWeights& weights,
                                          const ImportedMoments& moments, int64_t step) {
  std::vector<ImportedTensor> counts;
  for (size_t i = 0; i < weights.values.size(); ++i) {
    const std::string& name = weights.values[i].of.name;
    const int64_t count = moments.updates[i].value_or(step);
    if (count == 0 && !options.moments.empty() && !moments.updates[i]) {
      fail_input(
          "{}: {} has momentum, but the step is 0; give the number of finished steps with --step",
          options.moments, nn::printable(name));
    }
    counts.push_back({.of = {name, optim::updates_kind, DType::i64, {}}, .count = count});
  }
  return counts;
}

// Returns all tensors in the order in which an optimizer lists them.
std::vector<ImportedTensor> all_tensors(ImportedWeights& weights, ImportedMoments& moments,
                                        std::vector<ImportedTensor> counts) {
  std::vector<ImportedTensor> all;
  auto moment = moments.tensors.begin();
  for (ImportedTensor& value : weights.values) {
    all.push_back(std::move(value));
    for (size_t kind = 0; kind < moments.kinds.size(); ++kind) all.push_back(std::move(*moment++));
  }
  std::ranges::move(counts, std::back_inserter(all));
  std::ranges::move(weights.statistics, std::back_inserter(all));
  return all;
}

/// Elements [begin, end) of a tensor.
struct Part {
  size_t tensor = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Divides the tensors among files. A file has at most `shard_bytes` bytes of elements. Tensors are
// cut only between blocks of 256 elements.
std::vector<std::vector<Part>> divide(const std::vector<ImportedTensor>& tensors,
                                      int64_t shard_bytes) {
  std::vector<std::vector<Part>> shards(1);
  int64_t room = shard_bytes;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t elements = tensors[t].of.shape.elements();
    const int64_t size = dtype_size(tensors[t].of.dtype);
    for (int64_t begin = 0; begin < elements;) {
      const int64_t most = room / (size * digest_block) * digest_block;
      if (most == 0) {
        TESSERA_CHECK(room < shard_bytes, "import: a file of {} bytes holds no block", shard_bytes);
        shards.emplace_back();
        room = shard_bytes;
        continue;
      }
      const int64_t end = std::min(elements, begin + most);
      shards.back().push_back({t, begin, end});
      room -= (end - begin) * size;
      begin = end;
    }
  }
  return shards;
}

std::vector<optim::StatePiece> read_parts(const std::vector<ImportedTensor>& tensors,
                                          const std::vector<Part>& parts) {
  std::vector<optim::StatePiece> pieces;
  for (const Part& part : parts) {
    const ImportedTensor& tensor = tensors[part.tensor];
    Tensor values =
        Tensor::empty({part.end - part.begin}, tensor.of.dtype, Device{}, Category::checkpoint);
    if (tensor.of.dtype == DType::i64) {
      *values.data<int64_t>() = tensor.count;
    } else {
      tensor.read(part.begin, values.values<float>());
    }
    pieces.push_back(
        {.of = tensor.of, .begin = part.begin, .end = part.end, .values = values, .is_copy = true});
  }
  return pieces;
}

void check_folder(const ImportOptions& options, int64_t step) {
  for (const std::string& path : {options.weights, options.moments}) {
    if (path.empty() || !is_path_within(path, options.folder)) continue;
    fail_input("{} is in {}, where the checkpoint is to be written; give another folder", path,
               options.folder);
  }
  check_names_are_free(options.folder, step - 1);
  const std::vector<int64_t> steps = checkpoint_steps(options.folder);
  if (steps.empty() || steps.front() < step) return;
  const std::string newest = (fs::path(options.folder) / checkpoint_name(steps.front())).string();
  if (std::ranges::find(steps, step) != steps.end()) {
    fail_input("{}: it has a checkpoint of step {} already; give another folder or step",
               options.folder, step);
  }
  fail_input(
      "{} is there, and a run would go on from it rather than from step {}; give another "
      "folder",
      newest, step);
}

// Writes the files into the partial folder, one after the other, and then gives the checkpoint its
// final name. The values of only one of these files are in memory at a time.
void write_checkpoint(const ImportOptions& options, const std::vector<ImportedTensor>& tensors,
                      Manifest& manifest) {
  const std::string partial = partial_folder(options.folder, manifest.step);
  const std::vector<std::vector<Part>> shards = divide(tensors, options.shard_bytes);
  std::vector<WrittenShard> written;
  try {
    make_partial_folder(options.folder, manifest.step);
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string name = shard_name(static_cast<int>(i), static_cast<int>(shards.size()));
      written.push_back(
          write_shard(partial, name, read_parts(tensors, shards[i]), manifest.tensors));
    }
    add_shards(manifest, std::move(written));
    commit_checkpoint(options.folder, manifest);
  } catch (...) {
    // Files of a failed import must not remain.
    std::error_code ignored;
    fs::remove_all(partial, ignored);
    throw;
  }
}

}  // namespace

ImportedCheckpoint import_checkpoint(const ImportOptions& options) {
  ImportedWeights weights = open_imported_weights(options.weights);
  ImportedMoments moments = open_moments(options, weights);
  const int64_t step = finished_step(options, weights, moments);
  std::vector<ImportedTensor> counts = update_counts(options, weights, moments, step);
  check_folder(options, step);
  Manifest manifest{.version = version(),
                    .step = step,
                    .run = weights.run,
                    .weights = weights.metadata,
                    .imported = fs::path(weights.path).filename().string()};
  const std::vector<ImportedTensor> tensors = all_tensors(weights, moments, std::move(counts));
  for (const ImportedTensor& tensor : tensors) manifest.tensors.push_back(tensor.of);
  // The folder is claimed after the checks above, because a claim makes the folder and removes
  // unfinished checkpoints. The values of elements are checked later, when write_checkpoint reads
  // them.
  const CheckpointFolder claimed(options.folder);
  // Checks again, because the claim may have restored a checkpoint: if a process was killed while
  // it replaced a checkpoint, the claim gives the old checkpoint its final name back.
  check_folder(options, step);
  write_checkpoint(options, tensors, manifest);
  return {(fs::path(options.folder) / checkpoint_name(step)).string(), manifest};
}

}  // namespace tessera::train
