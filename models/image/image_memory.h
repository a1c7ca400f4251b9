// Predicts, before a training step runs, how much memory the operations of an image model will
// take: the peaks of activations and workspace in the memory ledger (core/memory.h), to the byte.
//
//   const ImageMemory memory = image_training_memory(
//       image_config("resnet50", sizes), {.dtype = DType::bf16, .images = 32});
//
// Images and labels are not counted here: their memory depends on how many micro-batches the run
// reads ahead. train/images/plan_image.h counts it.
//
// The prediction replays the model's operations in order, on blocks of memory that have a size but
// no contents. The prediction shares only two things with the operations' code: the output sizes of
// convolutions, and the queries for the scratch memory of convolutions and matrix products. The
// scratch memory depends on the processor. On a CPU the scratch memory also depends on the number
// of threads.
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
  /// Peak bytes; nullopt if the micro-batch's device is a GPU that this machine does not have,
  /// because CUDA's libraries report their workspace only on a machine with the GPU.
  std::optional<int64_t> workspace = std::nullopt;
};

/// Predicts the memory of loss = smoothed_cross_entropy(model(images), labels, label_smoothing),
/// and then of backward(loss), with this process's number of threads. Loss and backward must be two
/// statements. In a single expression the logits would stay alive until the end of backward.
ImageMemory image_training_memory(const ImageConfig& config, const ImageMicroBatch& micro);
/// Predicts the memory of evaluation: cross_entropy(model(images), labels) without gradients, and
/// with the logits converted to f32.
ImageMemory image_evaluation_memory(const ImageConfig& config, const ImageMicroBatch& micro);

}  // namespace tessera::models
