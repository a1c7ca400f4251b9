// Lists the checkpoints of a folder, or describes one checkpoint, as text or as JSON.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/checkpoint/commands.h"
#include "apps/console/shell_word.h"
#include "core/error.h"
#include "core/text/input_file.h"
#include "core/text/number_text.h"
#include "nn/safetensors.h"
#include "train/checkpoint/checkpoint.h"

namespace tessera::apps {
namespace {

using nlohmann::ordered_json;
using train::Manifest;

std::string text_of(const ordered_json& json) {
  // Names and settings may contain any bytes. `replace` keeps dump() from throwing if some bytes
  // are not UTF-8.
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json layout_json(const Manifest& manifest) {
  return {{"ranks", manifest.layout.ranks},
          {"stage", manifest.layout.stage},
          {"bucket_bytes", manifest.layout.bucket_bytes}};
}

std::string layout_text(const Manifest& manifest) {
  if (!manifest.imported.empty()) {
    return "imported from " + nn::printable(manifest.imported);
  }
  return fmt::format("{}, stage {}", counted(manifest.layout.ranks, "rank"), manifest.layout.stage);
}

std::string best_text(const Manifest& manifest) {
  if (!manifest.best) return "none";
  return fmt::format("{} at step {}", manifest.best->value, grouped(manifest.best->step));
}

std::vector<int64_t> ranges_of_tensors(const Manifest& manifest) {
  std::vector<int64_t> counts(manifest.tensors.size());
  for (const train::CheckpointRange& range : manifest.ranges) {
    ++counts[static_cast<size_t>(range.tensor)];
  }
  return counts;
}

ordered_json settings_json(const dist::Settings& settings) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : settings) json[name] = value;
  return json;
}

ordered_json summary_json(const std::string& path, const Manifest& manifest) {
  ordered_json json = {{"path", path},
                       {"files_complete", true},
                       {"version", manifest.version},
                       {"step", manifest.step},
                       {"skipped", manifest.skipped},
                       {"digest", manifest.digest.text()},
                       {"bytes", total_bytes(manifest)},
                       {"layout", layout_json(manifest)}};
  if (!manifest.imported.empty()) json["imported"] = manifest.imported;
  return json;
}

ordered_json best_json(const train::BestEvaluation& best) {
  ordered_json json = {{"step", best.step}, {"value", best.value}, {"tie", best.tie}};
  if (!best.evaluated.empty()) json["evaluated"] = best.evaluated;
  return json;
}

ordered_json checkpoint_json(const std::string& path, const Manifest& manifest) {
  ordered_json json = summary_json(path, manifest);
  if (manifest.best) json["best"] = best_json(*manifest.best);
  json["run"] = settings_json(manifest.run);
  json["bits"] = settings_json(manifest.bits);
  json["weights"] = manifest.weights;
  json["files"] = ordered_json::array();
  for (const train::CheckpointFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  json["tensors"] = ordered_json::array();
  const std::vector<int64_t> ranges = ranges_of_tensors(manifest);
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const optim::StateTensor& tensor = manifest.tensors[i];
    json["tensors"].push_back(
        {{"name", tensor.name},
         {"kind", tensor.kind},
         {"dtype", std::string(nn::safetensors_dtype(tensor.dtype))},
         {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
         {"elements", tensor.shape.elements()},
         {"ranges", ranges[i]}});
  }
  return json;
}

// Prints left-aligned columns, each as wide as its widest cell. Rows may have different numbers
// of cells.
void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const std::vector<std::string>& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}}", row[i], widths[i] + 1);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

template <class Pairs>
void print_pairs(const char* heading, const Pairs& pairs) {
  if (pairs.empty()) return;
  fmt::print("{}\n", heading);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : pairs) rows.push_back({plain(name), plain(value)});
  print_table(rows);
}

void print_checkpoint(const std::string& path, const Manifest& manifest) {
  fmt::print("{}\n", path);
  print_table({{"version", plain(manifest.version)},
               {"step", grouped(manifest.step)},
               {"skipped", grouped(manifest.skipped)},
               {"best", best_text(manifest)},
               {"digest", manifest.digest.text()},
               {"layout", layout_text(manifest)},
               {"bytes", grouped(total_bytes(manifest))}});
  print_pairs("run", manifest.run);
  print_pairs("bits", manifest.bits);
  print_pairs("weights", manifest.weights);
  fmt::print("files\n");
  std::vector<std::vector<std::string>> rows;
  for (const train::CheckpointFile& file : manifest.files) {
    rows.push_back({plain(file.name), grouped(file.bytes) + " bytes"});
  }
  print_table(rows);
  fmt::print("tensors\n");
  rows = {{"name", "kind", "dtype", "shape", "elements", "ranges"}};
  const std::vector<int64_t> ranges = ranges_of_tensors(manifest);
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const optim::StateTensor& tensor = manifest.tensors[i];
    rows.push_back({plain(tensor.name), plain(tensor.kind), std::string(dtype_name(tensor.dtype)),
                    fmt::format("{}", tensor.shape), grouped(tensor.shape.elements()),
                    std::to_string(ranges[i])});
  }
  print_table(rows);
}

/// A checkpoint in a folder. list_folder checks the sizes and headers of the checkpoint's files. It
/// does not read tensors. `manifest` is nullopt if a check or the reading of a file failed.
struct Listed {
  std::string path;
  int64_t step = 0;
  std::optional<Manifest> manifest;
  bool was_read = true;  // false: reading failed, so it is unknown whether there is damage
  std::string why;       // the error message, if there is no manifest; else empty
};

std::vector<Listed> list_folder(const std::string& folder) {
  std::vector<Listed> list;
  for (const int64_t step : steps_in(folder)) {
    const auto path = std::filesystem::path(folder) / train::checkpoint_name(step);
    Listed one{.path = path.string(), .step = step, .manifest = {}, .why = {}};
    try {
      one.manifest = train::CheckpointReader(one.path).manifest();
    } catch (const InputError& error) {
      one.why = error.what();
    } catch (const Error& error) {  // for instance no permission, or a failing disk
      one.was_read = false;
      one.why = error.what();
    }
    // A training run that writes to the folder may remove a checkpoint after steps_in() has found
    // this checkpoint. A removed checkpoint is left out.
    if (!one.manifest && !has_name(one.path)) continue;
    list.push_back(std::move(one));
  }
  return list;
}

ordered_json folder_json(const std::vector<Listed>& list) {
  ordered_json json = ordered_json::array();
  for (const Listed& one : list) {
    json.push_back(one.manifest
                       ? summary_json(one.path, *one.manifest)
                       : ordered_json{{"path", one.path},
                                      {"files_complete",
                                       one.was_read ? ordered_json(false) : ordered_json(nullptr)},
                                      {"step", one.step},
                                      {"why", one.why}});
  }
  return {{"checkpoints", json}};
}

// Prints "complete" where `checkpoint verify` prints "whole". The words differ because tensors are
// not read here: an element that was changed is not noticed.
void print_folder(const std::string& folder, const std::vector<Listed>& list) {
  std::vector<std::vector<std::string>> rows{{"step", "files", "digest", "bytes", "layout"}};
  for (const Listed& one : list) {
    rows.push_back({std::to_string(one.step), one.manifest   ? "complete"
                                              : one.was_read ? "damaged"
                                                             : "unreadable"});
    if (!one.manifest) continue;
    rows.back().push_back(one.manifest->digest.text());
    rows.back().push_back(grouped(total_bytes(*one.manifest)));
    rows.back().push_back(layout_text(*one.manifest));
  }
  print_table(rows);
  for (const Listed& one : list) {
    if (one.manifest) continue;
    fmt::print("{} {}: {}\n", one.path, one.was_read ? "is not whole" : "cannot be checked",
               one.why);
  }
  fmt::print(
      "\"complete\" means that sizes and headers of all files are right; checkpoint verify {} also "
      "checks the digests of all tensors\n",
      shell_word(folder));
}

}  // namespace

int inspect_checkpoints(const CheckpointToolOptions& options) {
  if (is_one_checkpoint(options.path)) {
    const train::CheckpointReader checkpoint(options.path);
    if (options.json) {
      fmt::print("{}", text_of(checkpoint_json(options.path, checkpoint.manifest())));
    } else {
      print_checkpoint(options.path, checkpoint.manifest());
    }
    return 0;
  }
  const std::vector<Listed> list = list_folder(options.path);
  if (list.empty()) fail("{}: all its checkpoints were removed while they were read", options.path);
  if (options.json) {
    fmt::print("{}", text_of(folder_json(list)));
  } else {
    print_folder(options.path, list);
  }
  const auto unread = std::ranges::find(list, false, &Listed::was_read);
  if (unread != list.end()) fail("{}: cannot be checked: {}", unread->path, unread->why);
  return 0;
}

}  // namespace tessera::apps
