// How much memory the operations of an image model take in a training step, before it runs: the
// peaks of the ledger's activations and workspace, to the byte.
//
//   const ImageMemory memory = image_training_memory(
//       image_config("resnet50", sizes), {.dtype = DType::bf16, .images = 32});
//
// Images and labels are not in it: whoever makes them keeps several micro-batches of them
// (train/images/plan_image.h counts these).
//
// The formula walks through the model as its code does, with blocks of memory that have a size and
// no contents. It shares nothing with the run but the sizes of scratch memory that libraries are
// asked for, which depend on the processor, and on a CPU on the number of threads.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "models/image/image_classifier.h"

namespace tessera::models {

struct ImageMicroBatch {
  DType dtype = DType::f32;  // of images and parameters
  int64_t images = 1;
  float label_smoothing = 0;
  Device device = default_device();
};

struct ImageMemory {
  int64_t activations = 0;  // peak bytes, without images and labels
  /// Peak bytes; absent for a GPU that cannot be used here, whose libraries nobody can ask.
  std::optional<int64_t> workspace = std::nullopt;
};

/// Of loss = smoothed_cross_entropy(model(images), labels, label_smoothing), and then of
/// backward(loss), with this process's number of threads. (Within one expression the logits would
/// live on.)
ImageMemory image_training_memory(const ImageConfig& config, const ImageMicroBatch& micro);
/// Of cross_entropy(model(images), labels) without gradients as in evaluation, the logits in f32.
ImageMemory image_evaluation_memory(const ImageConfig& config, const ImageMicroBatch& micro);

}  // namespace tessera::models
