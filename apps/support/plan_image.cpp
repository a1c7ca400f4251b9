#include "apps/support/plan_image.h"

#include <algorithm>
#include <vector>

#include "apps/support/image_evaluation.h"
#include "apps/support/plan_table.h"
#include "core/assign.h"
#include "data/images/image_batches.h"
#include "data/images/image_input.h"
#include "models/image/image_memory.h"
#include "optim/plan/checked_int.h"

namespace tessera::apps {
namespace {

/// The run of one rank.
class ImageRun {
 public:
  ImageRun(const ImageTrainOptions& options, const PlannedImages& images, Device device,
           int64_t ranks, int64_t rank)
      : options_(options),
        images_(images),
        device_(device),
        ranks_(ranks),
        rank_(rank),
        dtype_(parameter_dtype(options.memory)),
        config_(models::image_config(options.model, {.side = images.shape.height,
                                                     .channels = images.shape.channels,
                                                     .classes = images.classes})) {}

  /// Of steps, and of evaluation while the images of the steps to come are there.
  models::ImageMemory memory() const {
    const GraphWorkspace graphs = graph_workspace(options_, ranks_, has_dropout());
    models::ImageMemory peak =
        models::image_training_memory(config_, micro_batch(options_.batch.micro));
    if (peak.workspace) *peak.workspace += graphs.capturing;
    for (const int64_t size : evaluated_sizes()) {
      const models::ImageMemory other =
          models::image_evaluation_memory(config_, micro_batch(size));
      peak.activations = std::max({peak.activations, evaluation_input() + other.activations,
                                   evaluation_results()});
      if (!peak.workspace) continue;
      peak.workspace = std::max(*peak.workspace, *other.workspace + graphs.kept);
    }
    // Before the first step parameters get their values; a GPU's from workspace of the host.
    if (device_.is_cpu() && dtype_ != DType::f32) {
      peak.workspace = std::max(*peak.workspace, assign_workspace_bytes);
    }
    const int64_t batches = options_.steps * options_.batch.micro_steps(ranks_);
    peak.activations += input(options_.batch.micro, batches);
    return peak;
  }

 private:
  models::ImageMicroBatch micro_batch(int64_t images) const {
    return {.dtype = dtype_,
            .images = images,
            .label_smoothing = options_.label_smoothing,
            .device = device_};
  }

  /// Of an ImageInput of `count` batches: on a GPU there is one, those ahead are on the host.
  int64_t input(int64_t images, int64_t count) const {
    const int64_t held = device_.is_cpu() ? std::min(count, data::ImageInput::Options{}.depth) : 1;
    return held * data::ImageBatches::bytes(images, images_.shape, dtype_);
  }

  bool has_dropout() const {
    const auto* vgg = std::get_if<models::VggConfig>(&config_);
    return vgg != nullptr && vgg->dropout > 0;
  }

  // Batches to evaluate on, of all ranks and of each.
  int64_t batches() const {
    return (images_.validation + options_.batch.micro - 1) / options_.batch.micro;
  }
  int64_t own_batches() const { return (batches() + ranks_ - 1) / ranks_; }

  int64_t evaluation_input() const {
    return input(std::min(options_.batch.micro, images_.validation), own_batches());
  }
  int64_t evaluation_results() const {
    return batches() * evaluation_counts * dtype_size(DType::f32);
  }

  /// Images in the rank's batches: all have as many, but for the last of all, which a rank that is
  /// short of one reads as well.
  std::vector<int64_t> evaluated_sizes() const {
    if (options_.eval_every == 0) return {};
    const int64_t micro = options_.batch.micro;
    const int64_t last = batches() - 1;
    std::vector<int64_t> sizes;
    if (rank_ < last) sizes.push_back(micro);
    if (rank_ + (own_batches() - 1) * ranks_ >= last) {
      sizes.push_back(images_.validation - last * micro);
    }
    return sizes;
  }

  const ImageTrainOptions& options_;
  const PlannedImages& images_;
  Device device_;
  int64_t ranks_;
  int64_t rank_;
  DType dtype_;
  models::ImageConfig config_;
};

/// Throws where more than all activations and workspace cannot be counted.
void check_size(const ImageTrainOptions& options, const PlannedImages& images) {
  using optim::CheckedInt;
  constexpr int64_t more_than_all = 1 << 17;  // bytes of a pixel
  const CheckedInt of_pixels = CheckedInt(images.shape.height) * images.shape.width;
  (void)(CheckedInt(options.batch.micro) * (of_pixels + images.classes) * more_than_all);
}

}  // namespace

PlannedImages PlannedImages::of(const data::ImageData& data) {
  return {.shape = data.transform.shape,
          .classes = data.classes(),
          .validation = data.validation->size()};
}

optim::Plan plan_run(const ImageTrainOptions& options, const nn::Module& model,
                     const PlannedImages& images, const PlanDevice& device, int64_t ranks,
                     int stage, int64_t rank) {
  optim::PlanInput input = plan_input(options, model, device, ranks, stage);
  input.sync_batch_norm = options.sync_bn;
  optim::Plan plan = optim::plan(input, rank);
  check_size(options, images);
  const models::ImageMemory memory =
      ImageRun(options, images, device.device, ranks, rank).memory();
  plan.activations = memory.activations;
  plan.workspace = memory.workspace;
  return plan;
}

void choose_algorithms(const ImageTrainOptions& options, const PlannedImages& images,
                       Device device) {
  // They are chosen where their workspace is asked for. A job of one rank has all sizes of batches.
  (void)ImageRun(options, images, device, 1, 0).memory();
}

}  // namespace tessera::apps
