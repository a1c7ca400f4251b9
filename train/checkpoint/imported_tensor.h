// What an imported checkpoint is made of: state tensors whose elements others have in their files.
// import_weights.cpp finds those of a file of weights, import_moments.cpp those of an optimizer,
// and import_checkpoint.cpp writes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/agreement.h"
#include "optim/zero/optimizer_state.h"

namespace tessera::train {

struct ImportedTensor {
  optim::StateTensor of;  // F32, or I64 [] for a count
  /// Of F32: elements [begin, begin + out.size()). Keeps the file open that it reads.
  std::function<void(int64_t begin, std::span<float> out)> read = nullptr;
  int64_t count = 0;  // of I64
};

/// A file of weights: the parameters, and what else it says.
struct ImportedWeights {
  std::string path;                             // of the safetensors file
  std::vector<ImportedTensor> values = {};      // kind "value", in the order of the model or file
  std::vector<ImportedTensor> statistics = {};  // of batch norms
  std::map<std::string, std::string> metadata = {};  // Manifest::weights
  dist::Settings run = {};  // what a run must have alike, because no tensor says it
  bool is_gpt = false;
};

/// Opens a GPT's weights with config.json beside them (the file, or the folder where it is called
/// model.safetensors), what train_resnet or train_recommender saved, or any file of F32, F16 and
/// BF16 tensors, which are parameters of these names but for running statistics. Throws InputError
/// naming file and tensor.
ImportedWeights open_imported_weights(const std::string& path);

/// What an optimizer keeps for the parameters.
struct ImportedMoments {
  std::vector<std::string> kinds = {};       // as optim's rules call them: "exp_avg", "exp_avg_sq"
  std::vector<ImportedTensor> tensors = {};  // for each of the weights' values all kinds in turn
  std::vector<std::optional<int64_t>> updates =
      {};  // of each value; nothing where it has no `step`
};

/// Opens a file of PyTorch's state: for each parameter NAME.exp_avg, NAME.exp_avg_sq and NAME.step
/// of Adam and AdamW, or NAME.momentum_buffer of SGD (and NAME.step, which PyTorch's SGD does not
/// count). Names are those of the weights; a GPT's may have the prefix "transformer.". Throws
/// InputError naming the tensor where one is missing, unknown, of another shape or no such state.
ImportedMoments open_imported_moments(const std::string& path, const ImportedWeights& weights);

}  // namespace tessera::train
