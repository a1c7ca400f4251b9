#include "train/weights.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include <spdlog/spdlog.h>

#include "core/text/error_text.h"
#include "nn/weights_file.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;
using OpenWeights = std::function<WeightsSink(const std::string&)>;

// Throws unless model and optimizer have parameters of the same names. The names are equal on all
// ranks, so all ranks throw. The error recommends `instead`, a function of the optimizer that needs
// no model.
void check_same_parameters(const char* what, const nn::Module& model,
                           const optim::ZeroOptimizer& optimizer, const char* instead) {
  std::set<std::string> left;  // the optimizer's names that are not yet found in the model
  for (const optim::StateTensor& tensor : optimizer.state_tensors()) {
    if (tensor.kind == optim::value_kind) left.insert(tensor.name);
  }
  for (const nn::NamedParameter& named : model.named_parameters()) {
    TESSERA_CHECK(left.erase(named.name) == 1,
                  "{}: parameter '{}' is in the model but not in the optimizer; use the "
                  "optimizer's {}",
                  what, named.name, instead);
  }
  TESSERA_CHECK(left.empty(),
                "{}: parameter '{}' is in the optimizer but not in the model; use the optimizer's "
                "{}",
                what, *left.begin(), instead);
}

// Saves the weights to path(). Only rank 0 calls path(). On every rank, returns the reason of a
// failure, or an empty text. Gathering parameters is collective, so rank 0 takes part to the end
// even if writing has failed.
std::string try_to_save(const std::function<std::string()>& path, optim::ZeroOptimizer& optimizer,
                        const dist::World& world, const OpenWeights& open) {
  std::string why;
  std::optional<WeightsSink> sink;
  const auto attempt = [&](const std::function<void()>& part) {
    try {
      part();
    } catch (const std::exception& error) {
      why = error_text(error);
      sink.reset();
    }
  };
  if (world.rank == 0) attempt([&] { sink = open(path()); });
  optimizer.for_each_parameter([&](const nn::NamedParameter& named, std::span<const float> values) {
    if (sink) attempt([&] { sink->write(named, values); });
  });
  if (sink) attempt([&] { sink->commit(); });
  return dist::broadcast_text(*world.communicator, why);
}

// Creates a new folder in `parent`, named after `file`. In a new folder, the weights and files
// beside them, such as a GPT's config.json, replace no existing file.
fs::path new_folder(const fs::path& parent, const fs::path& file) {
  std::string name = (parent / (file.stem().string() + "-rescued-XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {
    fail("{}: cannot be written: {}", parent.string(), std::strerror(errno));
  }
  return name;
}

// Tries to save the weights in other places. Returns a message for rank 0 to report. The message
// names the place of the weights, or says that they are lost.
std::string rescue(const std::string& lost, optim::ZeroOptimizer& optimizer,
                   const dist::World& world, const OpenWeights& open) {
  const fs::path file = fs::path(lost).filename();
  std::string failures;
  for (const auto& parent :
       {+[] { return fs::current_path(); }, +[] { return fs::temp_directory_path(); }}) {
    fs::path folder;
    const auto path = [&] {
      folder = new_folder(parent(), file);
      return (folder / file).string();
    };
    const std::string why = try_to_save(path, optimizer, world, open);
    if (why.empty()) return fmt::format("the weights are in {} instead", (folder / file).string());
    std::error_code ignored;
    if (!folder.empty()) fs::remove_all(folder, ignored);
    failures += "; " + why;
  }
  return "the weights are lost, because no other place can be written either" + failures;
}

}  // namespace

void save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                     const dist::World& world, const OpenWeights& open) {
  const std::string why = try_save_parameters(path, optimizer, world, open);
  if (why.empty()) return;
  const std::string outcome = rescue(path, optimizer, world, open);
  // Rank 0 throws, and its exception ends the job. The other ranks wait in the barrier until then.
  if (world.rank != 0) world.communicator->barrier();
  fail("{}; {}", why, outcome);
}

std::string save_or_rescue(const std::string& path, optim::ZeroOptimizer& optimizer,
                           const dist::World& world, const OpenWeights& open) {
  const std::string why = try_save_parameters(path, optimizer, world, open);
  if (why.empty()) return "";
  const std::string outcome = rescue(path, optimizer, world, open);
  // The files that the caller writes next may fail with another error, so the user is told now.
  if (world.rank == 0) spdlog::warn("{}; {}", why, outcome);
  return fmt::format("the weights were not written to {}", path);
}

std::string try_save_parameters(const std::string& path, optim::ZeroOptimizer& optimizer,
                                const dist::World& world, const OpenWeights& open) {
  return try_to_save([&] { return path; }, optimizer, world, open);
}

void save_weights(const std::string& path, const nn::Module& model, optim::ZeroOptimizer& optimizer,
                  const dist::World& world, const SaveOptions& options) {
  check_same_parameters("save_weights", model, optimizer, "for_each_parameter");
  save_parameters(path, optimizer, world,
                  [&](const std::string& to) { return open_weights(to, model, options); });
}

WeightsSink open_weights(const std::string& path, const nn::Module& model,
                         const SaveOptions& options) {
  const auto writer =
      std::make_shared<nn::WeightsWriter>(path, model, options.metadata, options.others);
  return {
      .write = [writer](const nn::NamedParameter& named,
                        std::span<const float> values) { writer->write(named, values); },
      .commit = [writer, &model, batches = options.batches] { writer->commit(model, batches); }};
}

void load_weights(const std::string& path, const nn::Module& model,
                  optim::ZeroOptimizer& optimizer) {
  check_same_parameters("load_weights", model, optimizer, "set_parameters");
  const nn::WeightsFile weights(path, model);
  optimizer.set_parameters(weights.source());
  weights.load_statistics(model);
}

}  // namespace tessera::train
