// Trains a classifier of images with ZeRO on any number of ranks.
//
//   train_resnet                                              one rank, pictures that it draws
//   mpirun -n 4 train_resnet --data cifar-10-batches-bin      four; the same losses, bit for bit
//
// Wiring only: options -> data, model, optimizer -> steps -> weights, tables.
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "apps/support/announce.h"
#include "apps/support/image_evaluation.h"
#include "apps/support/image_options.h"
#include "apps/support/image_weights.h"
#include "apps/support/plan_image.h"
#include "apps/support/plan_table.h"
#include "apps/support/progress.h"
#include "apps/support/run_log.h"
#include "apps/support/step_loop.h"
#include "apps/support/trace_file.h"
#include "apps/support/tuned_file.h"
#include "core/output_file.h"
#include "data/images/image_data.h"
#include "data/images/image_input.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "dist/shared_choices.h"
#include "models/image/image_classifier.h"
#include "optim/plan/plan.h"
#include "optim/zero_optimizer.h"

namespace tessera::apps {
namespace {

data::ImageData open_data(const ImageTrainOptions& options) {
  data::ImageData data =
      data::open_image_data({.path = options.data, .image_size = options.image_size});
  const data::ImageShape& shape = data.transform.shape;
  if (shape.height != shape.width) {
    fail_input("{}: its images are of {} x {} pixels, and models take square ones", options.data,
               shape.height, shape.width);
  }
  data.transform.augments = options.augment;
  data.transform.seed = options.seed;
  data.transform.dtype = parameter_dtype(options.memory);
  return data;
}

std::unique_ptr<nn::Module> build_model(const ImageTrainOptions& options,
                                        const data::ImageData& data) {
  auto model = models::image_classifier(options.model, {.side = data.transform.shape.height,
                                                        .channels = data.transform.shape.channels,
                                                        .classes = data.classes()});
  model->to(parameter_dtype(options.memory));
  return model;
}

// One training run of a rank: what its steps need, together.
class Run {
 public:
  Run(const ImageTrainOptions& options, const data::ImageData& data, dist::World& world)
      : options_(options), world_(world), data_(data), model_(build_model(options, data)) {
    set_thread_count(threads_per_rank(options.threads, world.local_size));
    std::unique_ptr<ImageWeights> weights;
    if (!options.init.empty()) weights = std::make_unique<ImageWeights>(options.init, *model_);
    if (world.rank == 0 && !options.save.empty()) check_writable(options.save);
    if (world.size > 1 && !world.communicator->device().is_cpu()) {
      choose_algorithms(options, PlannedImages::of(data), world.communicator->device());
      dist::share_convolution_choices(world);
    }
    log_ = begin_run(options, world);
    batches_ = std::make_shared<data::TrainingBatches>(
        data.train, data.transform,
        data::TrainingBatches::Schedule{.batch = options.batch,
                                        .steps = options.steps,
                                        .ranks = world.size,
                                        .rank = world.rank});
    input_ = std::make_unique<data::ImageInput>(
        batches_, data::ImageInput::Options{.workers = options.workers});
    optimizer_ = std::make_unique<optim::ZeroOptimizer>(*model_, update_rule(options), world,
                                                        image_zero_options(options));
    if (!weights) return;
    optimizer_->set_parameters(weights->source());
    weights->load_statistics(*model_);
  }

  void train() {
    announce();
    StepLoop loop(options_, world_, *optimizer_, *log_,
                  {.unit = "images",
                   .units_per_step = options_.batch.global,
                   .load = [this](const MicroBatch& micro) { load(micro); },
                   .loss = [this] { return loss(input_->images(), input_->labels()); },
                   .forward =
                       [this](const MicroBatch& micro) {
                         const data::ImageBatch batch = batches_->read(micro);
                         loss(batch.images, batch.labels);
                       },
                   .evaluate = [this](int64_t done) { return evaluation(done); },
                   .describe = [this](int64_t step) { return describe(step); }});
    loop.train();
    finish(loop.count());
  }

 private:
  Tensor loss(const Tensor& images, const Tensor& labels) {
    return ops::smoothed_cross_entropy((*model_)(images), labels, options_.label_smoothing);
  }

  void load(const MicroBatch& micro) {
    const int64_t before = input_->waited_ns();
    input_->load(batches_->number_of(micro));
    data_exposed_ns_ += input_->waited_ns() - before;
  }

  JsonObject describe(int64_t step) {
    const double exposed_ms = static_cast<double>(std::exchange(data_exposed_ns_, 0)) / 1e6;
    return JsonObject()
        .add("epoch", batches_->epoch(step))
        .add("data_exposed_ms", std::round(exposed_ms * 1000) / 1000);
  }

  void announce() {
    const int64_t parameters = model_->parameter_count();
    log_->write(header(parameters));
    announce_run(options_, options_.model, parameters, world_);
    spdlog::info("{}: {}", options_.data.empty() ? data_.format : options_.data,
                 data_.description());
    if (options_.sync_bn) {
      spdlog::info("--sync-bn: the same bits for any stage, bucket and overlap, but not for "
                   "another number of ranks");
    }
  }

  JsonObject header(int64_t parameters) const {
    const data::ImageShape& shape = data_.transform.shape;
    JsonObject line = header_begin("train_resnet", options_);
    line.add("format", data_.format)
        .add("model", JsonObject()
                          .add("name", options_.model)
                          .add("image_size", shape.height)
                          .add("channels", shape.channels)
                          .add("classes", data_.classes())
                          .add("parameters", parameters));
    add_run(line, options_, world_, thread_count());
    return line.add("epochs", options_.epochs)
        .add("steps_per_epoch", batches_->steps_per_epoch())
        .add("schedule", options_.schedule)
        .add("nesterov", options_.nesterov)
        .add("label_smoothing", options_.label_smoothing)
        .add("augment", options_.augment)
        .add("sync_bn", options_.sync_bn)
        .add("workers", options_.workers);
  }

  StepWork::Evaluation evaluation(int64_t done) {
    const ImageEvaluation result =
        evaluate_images(*model_, data_.validation, data_.transform,
                        {.batch = options_.batch.micro, .workers = options_.workers}, world_);
    const double epochs =
        static_cast<double>(done) / static_cast<double>(batches_->steps_per_epoch());
    JsonObject line = eval_line(done, result.loss);
    line.add("epoch", std::round(epochs * 1000) / 1000)
        .add("top1", result.top1)
        .add("top5", result.top5);
    return {line, fmt::format("epoch {:.4g}  validation loss {:.4f}  top-1 {:.2f} %  top-5 "
                              "{:.2f} %", epochs, result.loss, 100 * result.top1,
                              100 * result.top5)};
  }

  void finish(const StepCount& count) {
    const optim::Plan planned =
        plan_run(options_, *model_, PlannedImages::of(data_), plan_device(world_), world_.size,
                 options_.stage, world_.rank);
    report_run(planned, count, world_, *log_, [&] {
      if (!options_.trace.empty()) write_trace(options_.trace, world_);
      const int64_t updates = count.steps - count.skipped;
      if (!options_.save.empty()) save(updates * options_.batch.micro_batches());
    });
  }

  // No rank need hold the whole model: its tensors come by one after the other.
  void save(int64_t batches) {
    std::unique_ptr<ImageWriter> writer;
    if (world_.rank == 0) {
      const data::ImageShape& shape = data_.transform.shape;
      writer = std::make_unique<ImageWriter>(
          options_.save, *model_,
          ImageModel{.name = options_.model,
                     .sizes = {.side = shape.height,
                               .channels = shape.channels,
                               .classes = data_.classes()},
                     .norm = data_.transform.norm,
                     .class_names = data_.class_names});
    }
    optimizer_->for_each_parameter(
        [&](const nn::NamedParameter& named, std::span<const float> values) {
          if (writer) writer->write(named, values);
        });
    if (writer) writer->commit(*model_, batches);
  }

  const ImageTrainOptions& options_;
  dist::World& world_;
  const data::ImageData& data_;
  std::unique_ptr<nn::Module> model_;
  std::shared_ptr<data::TrainingBatches> batches_;
  std::unique_ptr<data::ImageInput> input_;
  int64_t data_exposed_ns_ = 0;  // of the running step
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<optim::ZeroOptimizer> optimizer_;
};

std::string plan_text(const ImageTrainOptions& options, const data::ImageData& data,
                      const dist::World& world) {
  set_thread_count(threads_per_rank(options.threads, world.local_size));
  const auto model = build_model(options, data);
  const PlannedImages images = PlannedImages::of(data);
  return plan_table(options, options.model, model->parameter_count(), world.size,
                    [&](const PlanDevice& device, int64_t ranks, int stage, int64_t rank) {
                      return plan_run(options, *model, images, device, ranks, stage, rank);
                    });
}

int run(int argc, char** argv, dist::World& world) {
  set_up_messages(world.rank == 0);
  ImageCommandLine line = parse_image_command_line(argc, argv);
  if (!line.help.empty()) {
    if (world.rank == 0) fmt::print("{}", line.help);
    return 0;
  }
  const data::ImageData data = open_data(line.options);
  complete(line, data.train->size(), data.format);
  const ImageTrainOptions& options = line.options;
  check_ranks(options, data.transform.shape.height, world.size);
  if (options.plan) {
    if (world.rank == 0) fmt::print("{}", plan_text(options, data, world));
    return 0;
  }
  dist::choose_devices(world, options.devices);
  if (!options.tuned.empty()) use_tuned_file(options.tuned, world);
  Run training(options, data, world);
  training.train();
  return 0;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  return tessera::dist::run(argc, argv, [&](tessera::dist::World& world) {
    return tessera::apps::run(argc, argv, world);
  });
}
