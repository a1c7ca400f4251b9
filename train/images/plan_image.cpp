#include "train/images/plan_image.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "data/images/image_batches.h"
#include "data/images/image_input.h"
#include "models/image/image_memory.h"
#include "optim/plan/checked_int.h"
#include "train/images/image_evaluation.h"

namespace tessera::train {
namespace {

/// Computes the memory of one rank's run on images.
class ImageRun {
 public:
  ImageRun(const TrainingRun& run, const PlannedImages& images, const JobPlace& place)
      : run_(run),
        images_(images),
        device_(place.device.device),
        ranks_(place.ranks),
        rank_(place.rank) {}

  /// Returns the larger of the peaks of a step and of an evaluation. Images that were read ahead
  /// for steps stay in memory during an evaluation.
  models::ImageMemory memory() const {
    const GraphWorkspace graphs = graph_workspace(run_, ranks_, has_dropout());
    models::ImageMemory peak =
        models::image_training_memory(images_.config, micro_batch(run_.loop.batch.micro));
    if (peak.workspace) *peak.workspace += graphs.capturing;
    for (const int64_t size : evaluated_sizes()) {
      const models::ImageMemory other =
          models::image_evaluation_memory(images_.config, micro_batch(size));
      peak.activations = std::max(
          {peak.activations, evaluation_input() + other.activations, evaluation_results()});
      if (!peak.workspace) continue;
      peak.workspace = std::max(*peak.workspace, *other.workspace + graphs.kept);
    }
    peak.activations += input(run_.loop.batch.micro, micro_batches());
    return peak;
  }

  /// Returns the host memory of a rank with a GPU: images read ahead for steps, plus images read
  /// ahead for an evaluation. Returns 0 for a rank on the CPU, whose images memory() includes.
  int64_t on_host() const {
    if (device_.is_cpu()) return 0;
    const int64_t evaluated =
        evaluated_sizes().empty() ? 0 : ahead(evaluated_at_once(), own_batches());
    return ahead(run_.loop.batch.micro, micro_batches()) + evaluated;
  }

 private:
  models::ImageMicroBatch micro_batch(int64_t images) const {
    return {.dtype = images_.dtype,
            .images = images,
            .label_smoothing = images_.label_smoothing,
            .device = device_};
  }

  /// Returns the bytes that an ImageInput takes on the device if it reads `count` batches of
  /// `images` images. A GPU has one batch at a time, because batches that are read ahead stay on
  /// the host.
  int64_t input(int64_t images, int64_t count) const {
    return device_.is_cpu() ? ahead(images, count) : batch_bytes(images);
  }
  int64_t ahead(int64_t images, int64_t count) const {
    return std::min(count, data::ImageInput::Options{}.depth) * batch_bytes(images);
  }
  int64_t batch_bytes(int64_t images) const {
    return data::ImageBatches::bytes(images, images_.shape, images_.dtype);
  }
  /// Returns the number of micro-batches that this rank computes in all steps that are left.
  int64_t micro_batches() const {
    return run_.loop.steps_left() * run_.loop.batch.micro_steps(ranks_);
  }

  bool has_dropout() const {
    const auto* vgg = std::get_if<models::VggConfig>(&images_.config);
    return vgg != nullptr && vgg->dropout > 0;
  }

  // batches() is the number of evaluation batches of all ranks together. own_batches() is the
  // number of forward passes that each rank runs in an evaluation.
  int64_t batches() const {
    return (images_.validation + run_.loop.batch.micro - 1) / run_.loop.batch.micro;
  }
  int64_t own_batches() const { return (batches() + ranks_ - 1) / ranks_; }

  int64_t evaluated_at_once() const { return std::min(run_.loop.batch.micro, images_.validation); }
  int64_t evaluation_input() const { return input(evaluated_at_once(), own_batches()); }
  int64_t evaluation_results() const {
    return batches() * evaluation_counts * dtype_size(DType::f32);
  }

  /// Returns the sizes of the batches that this rank evaluates: the size of a micro-batch, and the
  /// size of the evaluation's last batch, which may be smaller. A size is left out if this rank has
  /// no such batch. A rank without a batch for its last forward pass repeats the evaluation's last
  /// batch.
  std::vector<int64_t> evaluated_sizes() const {
    if (run_.loop.eval_every == 0) return {};
    const int64_t micro = run_.loop.batch.micro;
    const int64_t last = batches() - 1;
    std::vector<int64_t> sizes;
    if (rank_ < last) sizes.push_back(micro);
    if (rank_ + (own_batches() - 1) * ranks_ >= last) {
      sizes.push_back(images_.validation - last * micro);
    }
    return sizes;
  }

  const TrainingRun& run_;
  const PlannedImages& images_;
  Device device_;
  int64_t ranks_;
  int64_t rank_;
};

models::ImageSizes sizes_of(const models::ImageConfig& config) {
  return std::visit([](const auto& model) { return model.sizes; }, config);
}

/// Throws if an upper bound of activations and workspace does not fit into int64.
void check_size(const TrainingRun& run, const PlannedImages& images) {
  using optim::CheckedInt;
  constexpr int64_t more_than_all = 1 << 17;  // upper bound of the bytes per pixel or logit
  const CheckedInt of_pixels = CheckedInt(images.shape.height) * images.shape.width;
  (void)(CheckedInt(run.loop.batch.micro) * (of_pixels + sizes_of(images.config).classes) *
         more_than_all);
}

}  // namespace

PlannedImages planned_images(const models::ImageConfig& config, const data::ImageData& data,
                             float label_smoothing) {
  const models::ImageSizes sizes = sizes_of(config);
  const data::ImageShape& shape = data.transform.shape;
  TESSERA_CHECK(sizes.side == shape.height && sizes.side == shape.width &&
                    sizes.channels == shape.channels && sizes.classes == data.classes(),
                "plan: the model is for images of {} x {} x {} and {} classes, but the data has {} "
                "x {} x {} and {}",
                sizes.side, sizes.side, sizes.channels, sizes.classes, shape.height, shape.width,
                shape.channels, data.classes());
  return {.config = config,
          .dtype = data.transform.dtype,
          .shape = data.transform.shape,
          .validation = data.validation->size(),
          .label_smoothing = label_smoothing};
}

optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const PlannedImages& images,
                     const JobPlace& place) {
  TESSERA_CHECK(parameter_dtype(model) == images.dtype,
                "plan: the model is in {}, but the images are in {}",
                dtype_name(parameter_dtype(model)), dtype_name(images.dtype));
  optim::Plan plan = plan_run(run, model, place);
  check_size(run, images);
  const ImageRun image_run(run, images, place);
  const models::ImageMemory memory = image_run.memory();
  plan.activations = memory.activations;
  plan.host.activations = image_run.on_host();
  plan.workspace = memory.workspace;
  if (plan.workspace) plan.workspace = std::max(*plan.workspace, plan.filling);
  return plan;
}

void choose_algorithms(const TrainingRun& run, const PlannedImages& images, Device device) {
  // Even a run without evaluations may evaluate for its report (log_predictions).
  TrainingRun evaluating = run;
  evaluating.loop.eval_every = 1;
  // memory() asks the libraries for their workspace, and the libraries choose algorithms in order
  // to answer. The planned job has one rank, because a single rank computes batches of every size.
  (void)ImageRun(evaluating, images, {.device = {.device = device}}).memory();
}

}  // namespace tessera::train
