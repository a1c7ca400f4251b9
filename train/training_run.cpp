#include "train/training_run.h"

#include "core/error.h"

namespace tessera::train {

DType parameter_dtype(const nn::Module& model) {
  const std::vector<nn::NamedParameter> parameters = model.named_parameters();
  TESSERA_CHECK(!parameters.empty(), "train: the model has no parameters");
  return parameters.front().parameter.dtype();
}

const char* precision_name(DType dtype) {
  if (dtype == DType::bf16) return "bf16";
  return dtype == DType::f16 ? "fp16" : "fp32";
}

const char* reduction_name(optim::Reduction reduction) {
  return reduction == optim::Reduction::ordered ? "ordered" : "fast";
}

}  // namespace tessera::train
