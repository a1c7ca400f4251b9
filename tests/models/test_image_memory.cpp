// Tests that an image model's peaks of activations and workspace equal the predictions of
// models/image/image_memory.h to the byte, in training and in evaluation. Varies residual blocks,
// projections, stems, precision, sizes of images and batches, threads and label smoothing.
#include "models/image/image_memory.h"

#include <array>

#include "core/autograd.h"
#include "core/context.h"
#include "core/image_ops.h"
#include "core/memory.h"
#include "core/random.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

using models::ImageConfig;
using models::ImageMemory;
using models::ImageMicroBatch;
using models::ResNetConfig;
using models::VggConfig;

models::ImageSizes sizes_of(const ImageConfig& config) {
  return std::visit([](const auto& model) { return model.sizes; }, config);
}

std::unique_ptr<nn::Module> built(const ImageConfig& config) {
  if (const auto* resnet = std::get_if<ResNetConfig>(&config)) {
    return std::make_unique<models::ResNet>(*resnet);
  }
  return std::make_unique<models::Vgg>(std::get<VggConfig>(config));
}

/// Returns the peaks of body(model, images, labels), without the bytes of images and labels.
template <class Body>
ImageMemory measured(const ImageConfig& config, const ImageMicroBatch& micro, Body&& body) {
  const models::ImageSizes sizes = sizes_of(config);
  const auto model = built(config);
  model->to(micro.dtype);
  nn::materialize(*model);
  const Tensor pixels = random_tensor({micro.images, sizes.side, sizes.side, sizes.channels}, 1);
  const Tensor images = ops::convert(pixels, micro.dtype);
  const Tensor labels = Tensor::empty({micro.images}, DType::i32);
  int32_t next = 0;
  for (int32_t& label : labels.values<int32_t>()) {
    label = next++ % static_cast<int32_t>(sizes.classes);
  }
  MemoryLedger& ledger = memory_ledger();
  const auto current = [&ledger] {
    return std::array{ledger.current(Category::activations), ledger.current(Category::workspace)};
  };
  const std::array before = current();
  ledger.reset_peaks();
  body(*model, images, labels);
  CHECK(current() == before);
  return {ledger.peak(Category::activations) - before[0],
          ledger.peak(Category::workspace) - before[1]};
}

void check_training(const ImageConfig& config, const ImageMicroBatch& micro) {
  const auto actual =
      measured(config, micro, [&](auto& model, const auto& images, const auto& labels) {
        dropout_state() = {.step = 0};
        const Tensor loss =
            ops::smoothed_cross_entropy(model(images), labels, micro.label_smoothing);
        dropout_state() = {};
        backward(loss);
      });
  const ImageMemory expected = models::image_training_memory(config, micro);
  CHECK(actual.activations == expected.activations);
  CHECK(actual.workspace == expected.workspace);
}

void check_evaluation(const ImageConfig& config, const ImageMicroBatch& micro) {
  const auto actual = measured(config, micro, [](auto& model, const auto& images,
                                                 const auto& labels) {
    const NoGrad no_grad;
    model.eval();
    const Tensor logits = model(images);
    ops::cross_entropy(ops::convert(logits, DType::f32), labels);
  });
  const ImageMemory expected = models::image_evaluation_memory(config, micro);
  CHECK(actual.activations == expected.activations);
  CHECK(actual.workspace == expected.workspace);
}

void check(const ImageConfig& config, const ImageMicroBatch& micro) {
  CAPTURE(dtype_name(micro.dtype), micro.images, micro.label_smoothing, sizes_of(config).side,
          sizes_of(config).channels, thread_count());
  check_training(config, micro);
  check_evaluation(config, micro);
}

/// Calls check() with 1 and 2 threads (on a GPU only with 1), with and without label smoothing.
void check_all(const ImageConfig& config, DType dtype, int64_t images) {
  const ThreadCountRestorer restore;
  for (const int threads : {1, 2}) {
    if (threads > 1 && !on_cpu()) continue;  // threads do not change a GPU's kernels
    set_thread_count(threads);
    check(config, {.dtype = dtype, .images = images});
    check(config, {.dtype = dtype, .images = images, .label_smoothing = 0.1f});
  }
}

ResNetConfig small_resnet(bool bottleneck, bool small_images, int64_t side) {
  return {.blocks = {1, 2},
          .width = 8,
          .bottleneck = bottleneck,
          .small_images = small_images,
          .sizes = {.side = side, .channels = 3, .classes = 5}};
}

TEST_CASE("a ResNet's activations and workspace equal the formula") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  for (const bool bottleneck : {false, true}) {
    for (const bool small_images : {false, true}) {
      CAPTURE(bottleneck, small_images);
      check_all(small_resnet(bottleneck, small_images, 9), dtype, 3);
      check_all(small_resnet(bottleneck, small_images, 16), dtype, 2);
    }
  }
}

TEST_CASE("the formula of a ResNet's memory holds without projections and at extreme sizes") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  ResNetConfig config = small_resnet(false, true, 6);
  config.blocks = {2};
  check_all(config, dtype, 2);
  config.sizes = {.side = 1, .channels = 1, .classes = 3};
  check_all(config, dtype, 5);
  // The logits are larger than all other activations together. So the peak of activations is in an
  // operation that holds the logits: the linear layer or the loss.
  config.sizes = {.side = 3, .channels = 1, .classes = 40'000};
  check_all(config, dtype, 2);
}

VggConfig small_vgg(int64_t side, float dropout) {
  return {.stages = {{4, 6}, {8}},
          .hidden = 16,
          .dropout = dropout,
          .sizes = {.side = side, .channels = 3, .classes = 5}};
}

TEST_CASE("a VGG's activations and workspace equal the formula") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  check_all(small_vgg(4, 0.5f), dtype, 3);  // pooling leaves one pixel, so flatten copies nothing
  check_all(small_vgg(13, 0.5f), dtype, 2);
  check_all(small_vgg(10, 0), dtype, 1);
}

TEST_CASE("the formulas hold for image models as they are trained", "[cpu]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  check(models::image_config("resnet20", {.side = 32}), {.dtype = dtype, .images = 8});
  check(models::image_config("vgg11", {.side = 32}), {.dtype = dtype, .images = 4});
  check(models::image_config("resnet50", {.side = 80, .classes = 100}),
        {.dtype = dtype, .images = 2, .label_smoothing = 0.1f});
}

// The model has three convolutions, each with a norm, and no projection. Every tensor between them
// has w channels and takes `image` bytes.
TEST_CASE("activations of a small ResNet, derived by hand") {
  const int64_t n = 2, side = 4, w = 16, classes = 10;
  const ResNetConfig config{.blocks = {1},
                            .width = w,
                            .small_images = true,
                            .sizes = {.side = side, .channels = 3, .classes = classes}};
  const int64_t image = n * side * side * w * 4;
  // In training each norm saves its x, y, mean and rstd, and the caller holds the loss. The peak is
  // in the last norm's backward, which also has dy, dx and the residual's gradient.
  const int64_t kept = 3 * (2 * image + 2 * w * 4) + 4;
  CHECK(models::image_training_memory(config, {.images = n}).activations == kept + 3 * image);
  // In evaluation the peak is at the last norm. These tensors are held: the first norm's y, which
  // is the residual; y of the residual block's second convolution; y and rstd of the last norm.
  CHECK(models::image_evaluation_memory(config, {.images = n}).activations == 3 * image + w * 4);
}

// For each image, the forward saves two tensors for each 3x3 convolution, and one for each
// projection. Such a tensor has the size of the convolution's result: 16,384 floats in the first
// stage, 8,192 in the second, 4,096 in the third. The norms save 2 floats for each of their 784
// channels. The last norm's backward has three more tensors. The loss is one float.
TEST_CASE("activations of ResNet-20, derived by hand") {
  const int64_t kept = 7 * 2 * 16'384 + 13 * 8'192 + 13 * 4'096;
  const int64_t images = 64;
  CHECK(models::image_training_memory(models::image_config("resnet20", {}), {.images = images})
            .activations == 4 * (images * (kept + 3 * 4'096) + 2 * 784) + 4);
}

TEST_CASE("activations of a small VGG, derived by hand") {
  const VggConfig config{.stages = {{32}},
                         .hidden = 8,
                         .sizes = {.side = 4, .channels = 1, .classes = 2}};
  const int64_t image = 3 * 4 * 4 * 32 * 2;
  const ImageMicroBatch micro{.dtype = DType::bf16, .images = 3};
  // The peak of training is in ReLU's backward, with y, dy and dx, while the caller holds the loss.
  // The peak of evaluation is in ReLU's forward, with x and y.
  CHECK(models::image_training_memory(config, micro).activations == 3 * image + 4);
  CHECK(models::image_evaluation_memory(config, micro).activations == 2 * image);
}

TEST_CASE("workspace of norms over many pixels, derived by hand") {
  const ResNetConfig config{.blocks = {1},
                            .width = 8,
                            .small_images = true,
                            .sizes = {.side = 128, .channels = 1, .classes = 2}};
  const ImageMicroBatch micro{.images = 5};
  const ThreadCountRestorer restore;
  set_thread_count(1);
  check(config, micro);
  // A norm reads 5 * 128 * 128 = 81,920 pixels of 8 channels.
  //
  // On the CPU, 32 pixels form a row of 256 values. The 2,560 rows are divided into 32 chunks. Each
  // chunk has 4 floats for each column.
  //
  // On CUDA, two threads share the channels of a pixel, so a block of 256 threads handles 128
  // pixels at a time. All pixels at once would need 640 blocks, but at most 528 are launched. So
  // each block handles 128 pixels twice: there are 320 chunks of 256 pixels. The gradient needs two
  // sums per channel for each chunk, and two for the total.
  const int64_t bytes = on_cpu() ? 32 * 4 * 256 * 4 : (320 + 1) * 2 * 8 * 4;
  const int64_t workspace = models::image_training_memory(config, micro).workspace.value();
  // On a real GPU, cuDNN's convolutions need more workspace than the norms.
  CHECK((on_real_gpu() ? workspace > bytes : workspace == bytes));
}

}  // namespace
}  // namespace tessera::test
