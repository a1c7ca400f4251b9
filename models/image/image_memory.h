// Predicts how much memory the operations of an image model take in a training step, before it
// runs: the peaks of the ledger's activations and workspace, to the byte.
//
//   const ImageMemory memory = image_training_memory(
//       image_config("resnet50", sizes), {.dtype = DType::bf16, .images = 32});
//
// Images and labels are not counted here, because several micro-batches are held ahead of the step.
// train/images/plan_image.h counts them.
//
// The prediction goes through the model as its code does, with blocks of memory that have a size
// but no contents. The prediction shares no code with the run, except the queries for the scratch
// memory of libraries. The scratch memory depends on the processor, and on a CPU on the number of
// threads.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "models/image/image_classifier.h"

namespace tessera::models {

struct ImageMicroBatch {
  DType dtype = DType::f32;  // dtype of images and parameters
  int64_t images = 1;
  float label_smoothing = 0;
  Device device = default_device();
};

struct ImageMemory {
  int64_t activations = 0;  // peak bytes, without images and labels
  /// Peak bytes; nullopt if there is no such GPU here, so that its libraries cannot be queried.
  std::optional<int64_t> workspace = std::nullopt;
};

/// Predicts the memory of loss = smoothed_cross_entropy(model(images), labels, label_smoothing),
/// and then of backward(loss), with this process's number of threads. Loss and backward are two
/// statements: within one expression the logits would live until the end of backward.
ImageMemory image_training_memory(const ImageConfig& config, const ImageMicroBatch& micro);
/// Predicts the memory of cross_entropy(model(images), labels) without gradients, as in evaluation,
/// with the logits converted to f32.
ImageMemory image_evaluation_memory(const ImageConfig& config, const ImageMicroBatch& micro);

}  // namespace tessera::models
