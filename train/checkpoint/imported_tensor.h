// The tensors of an imported checkpoint, whose elements are in files of other programs.
// import_weights.cpp opens weights files, import_moments.cpp the state of optimizers, and
// import_checkpoint.cpp writes the checkpoint.
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
  /// For F32: reads elements [begin, begin + out.size()). Keeps its file open.
  std::function<void(int64_t begin, std::span<float> out)> read = nullptr;
  int64_t count = 0;  // for I64
};

/// A weights file: the parameters, and what else the file says.
struct ImportedWeights {
  std::string path;                             // of the safetensors file
  std::vector<ImportedTensor> values = {};      // kind "value", in the order of the model or file
  std::vector<ImportedTensor> statistics = {};  // of batch norms
  std::map<std::string, std::string> metadata = {};  // Manifest::weights
  dist::Settings run = {};  // settings that a run must have too, because the file fixes them
  bool is_gpt = false;
};

/// Opens the weights of a GPT with config.json beside them (the file, or its folder if it is called
/// model.safetensors), a file that train_resnet or train_recommender saved, or any file of F32, F16
/// and BF16 tensors, which become parameters of the same names except running statistics. Throws an
/// InputError that names file and tensor.
ImportedWeights open_imported_weights(const std::string& path);

/// The state that an optimizer keeps for the parameters.
struct ImportedMoments {
  std::vector<std::string> kinds = {};       // names as in optim's rules: "exp_avg", "exp_avg_sq"
  std::vector<ImportedTensor> tensors = {};  // all kinds of one value, then all of the next
  std::vector<std::optional<int64_t>> updates =
      {};  // of each value; nullopt if the file has no `step` of it
};

/// Opens a file of PyTorch's state: for each parameter NAME.exp_avg, NAME.exp_avg_sq and NAME.step
/// of Adam and AdamW, or NAME.momentum_buffer of SGD (and NAME.step, which PyTorch's SGD does not
/// count). Names are those of the weights; a GPT's may have the prefix "transformer.". Throws an
/// InputError that names the tensor if one is missing, unknown, of another shape or no such state.
ImportedMoments open_imported_moments(const std::string& path, const ImportedWeights& weights);

}  // namespace tessera::train
