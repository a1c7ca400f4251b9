// Tensors for an imported checkpoint. Their elements are read from files of other programs.
// import_weights.cpp opens files of weights, import_moments.cpp files of optimizer state, and
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
  optim::StateTensor of;  // of dtype F32; or a scalar of dtype I64, a number of updates
  /// For F32: reads elements [begin, begin + out.size()). The function keeps its file open.
  std::function<void(int64_t begin, std::span<float> out)> read = nullptr;
  int64_t count = 0;  // for I64: the number of updates
};

/// The contents of a weights file.
struct ImportedWeights {
  std::string path;  // path of the safetensors file
  /// Tensors of kind "value". Their order is that of the model's parameters if is_gpt is true, and
  /// otherwise that of the file.
  std::vector<ImportedTensor> values = {};
  std::vector<ImportedTensor> statistics = {};       // running statistics of batch norms
  std::map<std::string, std::string> metadata = {};  // Manifest::weights
  dist::Settings run = {};  // settings that the file determines; a run that resumes must have them
  bool is_gpt = false;
};

/// Opens a safetensors file of one of three kinds:
///  - the weights of a GPT with config.json beside them; if the file is called model.safetensors,
///    `path` may also be its folder. A file with only some of a GPT's tensors is refused if
///    config.json beside it has the model_type gpt2;
///  - a file that train_resnet or train_recommender saved;
///  - any file of F32, F16 and BF16 tensors, unless its metadata have the model_type gpt2. Its
///    tensors become parameters of the same names, except running statistics, which are recognised
///    by their names.
/// If the file cannot be imported, throws an InputError that names the file, and the tensor if one
/// tensor is the reason. Whether the elements of running means and variances are valid is checked
/// later, when ImportedTensor::read reads them.
ImportedWeights open_imported_weights(const std::string& path);

/// The state that an optimizer keeps for the parameters.
struct ImportedMoments {
  std::vector<std::string> kinds = {};       // names as in optim's rules: "exp_avg", "exp_avg_sq"
  std::vector<ImportedTensor> tensors = {};  // all kinds of one parameter, then of the next one
  std::vector<std::optional<int64_t>> updates =
      {};  // count of updates per parameter; nullopt: no `step` of the parameter in the state file
};

/// Opens a file of a PyTorch optimizer's state. For each parameter the file has these tensors:
///  - Adam and AdamW: NAME.exp_avg, NAME.exp_avg_sq and NAME.step;
///  - SGD: NAME.momentum_buffer. NAME.step is optional, because PyTorch's SGD does not count steps.
/// NAME is the parameter's name in the weights file. For a GPT, NAME may have the prefix
/// "transformer.". Throws an InputError that names the tensor if a tensor is missing or unknown,
/// has a wrong shape, or is an invalid NAME.step. The elements of the other tensors are checked
/// later, when ImportedTensor::read reads them.
ImportedMoments open_imported_moments(const std::string& path, const ImportedWeights& weights);

}  // namespace tessera::train
