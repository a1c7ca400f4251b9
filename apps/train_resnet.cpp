// Trains a classifier of images with ZeRO on any number of ranks.
//
//   train_resnet                                              one rank, synthetic pictures
//   mpirun -n 4 train_resnet --data cifar-10-batches-bin      four ranks, images of CIFAR-10
//
// On CPUs, with the same --threads, the default --reduction and no --sync-bn, the losses have the
// same bits on any number of ranks (docs/determinism.md).
//
// This file only connects the parts: options -> data, model, optimizer -> steps -> weights, tables
// of memory and traffic.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "apps/cli/agreement.h"
#include "apps/cli/class_folders.h"
#include "apps/cli/command_line.h"
#include "apps/cli/run_header.h"
#include "apps/cli/unwritten_outputs.h"
#include "apps/train_resnet_data.h"
#include "apps/train_resnet_options.h"
#include "core/context.h"
#include "data/images/image_data.h"
#include "data/images/image_digest.h"
#include "data/images/image_input.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "dist/shared_choices.h"
#include "models/image/image_classifier.h"
#include "models/image/image_model.h"
#include "nn/weights_file.h"
#include "optim/zero_optimizer.h"
#include "train/images/image_evaluation.h"
#include "train/images/image_report.h"
#include "train/images/plan_image.h"
#include "train/plan/plan_table.h"
#include "train/report/announce.h"
#include "train/step_loop.h"
#include "train/tuned_file.h"
#include "train/weights.h"

namespace tessera::apps {
namespace {

std::unique_ptr<nn::Module> build_model(const ImageTrainOptions& options,
                                        const data::ImageData& data) {
  auto model = models::image_classifier(options.model, sizes_of(data));
  model->to(parameter_dtype(options.memory));
  return model;
}

train::PlannedImages planned(const ImageTrainOptions& options, const data::ImageData& data) {
  return train::planned_images(models::image_config(options.model, sizes_of(data)), data,
                               options.label_smoothing);
}

// One training run of a rank, with everything that its steps need.
class Run {
 public:
  Run(const ImageTrainOptions& options, const data::ImageData& data, const Resumed& resumed,
      dist::World& world)
      : options_(options),
        resumed_(resumed),
        world_(world),
        training_(image_training_run(options)),
        data_(data),
        model_(build_model(options, data)) {
    set_thread_count(resumed.threads(options.threads, world));
    check_inputs(world, options, resumed, {});
    std::unique_ptr<nn::WeightsFile> weights;
    const bool begins = !resumed.found();  // a resumed run has the checkpoint's weights
    if (begins && !options.init.empty())
      weights = std::make_unique<nn::WeightsFile>(options.init, *model_);
    if (world.size > 1 && !world.communicator->device().is_cpu()) {
      train::choose_algorithms(training_, planned(options, data), world.communicator->device());
      dist::share_convolution_choices(world);
    }
    optim::ZeroOptimizer::check(*model_, training_.rule, world, training_.zero);
    batches_ = std::make_shared<data::TrainingBatches>(
        data.train, data.transform,
        data::TrainingBatches::Schedule{.batch = options.batch,
                                        .steps = std::max(options.steps, resumed.step()),
                                        .first_step = resumed.step(),
                                        .ranks = world.size,
                                        .rank = world.rank});
    left_ = go_on();
    if (left_ == Left::nothing) return;
    // The checks precede begin_run, so that a refused run does not change an older log. begin_run
    // starts counting memory and traffic, so it precedes the input and the optimizer.
    if (left_ == Left::steps) files_ = run_files(options, resumed, world);
    files_.save = options.save;
    log_ = train::begin_run(files_, world);
    input_ = std::make_unique<data::ImageInput>(
        batches_, data::ImageInput::Options{.workers = options.workers});
    optimizer_ =
        std::make_unique<optim::ZeroOptimizer>(*model_, training_.rule, world, training_.zero);
    resumed.restore(*optimizer_);
    if (!weights) return;
    optimizer_->set_parameters(weights->source());
    weights->load_statistics(*model_);
  }

  void train() {
    if (left_ == Left::nothing) return;
    if (left_ == Left::save) {
      return end_save(save(resumed_.step() - resumed_.skipped()), options_, resumed_, world_);
    }
    if (options_.eval_only) return evaluate_only();
    // The loop's constructor may refuse the run, so it precedes the first line of the log.
    train::StepLoop loop(training_.loop, world_, *optimizer_, *log_,
                         {.unit = "images",
                          .units_per_step = options_.batch.global,
                          .forward =
                              [this](const MicroBatch& micro) {
                                const data::ImageBatch batch = batches_->read(micro);
                                return loss(batch.images, batch.labels);
                              },
                          .load = [this](const MicroBatch& micro) { load(micro); },
                          .loss = [this] { return loss(input_->images(), input_->labels()); },
                          .evaluate = [this](int64_t done) { return evaluation(done); },
                          .open_weights =
                              [this](const std::string& path, int64_t updates) {
                                return train::open_weights(path, *model_, save_options(updates));
                              },
                          .describe = [this](int64_t step) { return describe(step); },
                          .run = run_settings_,
                          .bits = bits_settings("train_resnet", world_),
                          .weights = models::image_metadata(description_of(options_, data_))});
    announce();
    train::warn_of_idle_ranks(options_.batch, world_);
    train::run_to_end(
        loop, files_, world_, [&] { return finish(loop); }, [&] { return save(loop.updates()); });
  }

 private:
  // Evaluates the weights of --init or of the checkpoint, and prints the result on standard output.
  void evaluate_only() {
    announce();
    print_evaluation(options_, evaluation(resumed_.step()), resumed_.step(), world_);
  }

  // Prepares the loop for checkpoints, and collects the settings that checkpoints record. If the
  // run resumes, checks that the checkpoint belongs to this run, and sets the loop to begin at the
  // checkpoint's step. Returns what is left to do.
  Left go_on() {
    if (!resumed_.found() && !options_.checkpoints.options.wanted()) return Left::steps;
    run_settings_ = run_settings(header());
    run_settings_.push_back({"data", fmt::format("{:016x}", data::digest_of_images(data_, false))});
    resumed_.check("train_resnet", run_settings_);
    const Left left = left_to_do(options_, resumed_);
    if (left != Left::steps) return left;
    resumed_.place(training_.loop, run_settings_, bits_settings("train_resnet", world_));
    return Left::steps;
  }

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
    log_->write(resumed_.first_line(*log_, header(), *optimizer_));
    train::announce_run(training_, options_.model, *model_, world_);
    spdlog::info("{}: {}", options_.data.empty() ? data_.format : options_.data,
                 data_.description());
    if (options_.sync_bn) {
      spdlog::info("--sync-bn: the same bits for any stage, bucket and overlap, but not for "
                   "another number of ranks");
    }
  }

  JsonObject header() const {
    const data::ImageShape& shape = data_.transform.shape;
    JsonObject line = header_begin("train_resnet", options_);
    line.add("format", data_.format)
        .add("model", JsonObject()
                          .add("name", options_.model)
                          .add("image_size", shape.height)
                          .add("channels", shape.channels)
                          .add("classes", data_.classes())
                          .add("parameters", model_->parameter_count()));
    add_run(line, options_, world_);
    return line.add("epochs", options_.epochs)
        .add("steps_per_epoch", batches_->steps_per_epoch())
        .add("schedule", options_.schedule)
        .add("nesterov", options_.nesterov)
        .add("label_smoothing", options_.label_smoothing)
        .add("augment", options_.augment)
        .add("sync_bn", options_.sync_bn)
        .add("workers", options_.workers);
  }

  train::StepWork::Evaluation evaluation(int64_t done) {
    const train::ImageEvaluation result = train::evaluate_images(
        *model_, data_.validation, data_.transform,
        {.batch = options_.batch.micro, .workers = options_.workers}, world_);
    JsonObject line = train::eval_line(done, result.loss);
    const std::string epoch = add_epoch(line, resumed_.epochs(done, batches_->steps_per_epoch()));
    line.add("top1", result.top1).add("top5", result.top5);
    return {line,
            fmt::format("{}validation loss {:.4f}  top-1 {:.2f} %  top-5 {:.2f} %", epoch,
                        result.loss, 100 * result.top1, 100 * result.top5),
            train::Score{.value = result.top1, .higher_is_better = true, .tie = result.loss}};
  }

  // Returns why the weights or the trace were not written, or an empty text.
  std::string finish(const train::StepLoop& loop) {
    std::string failure;
    const optim::Plan plan = train::plan_run(train::as_it_went(training_, loop.count()), *model_,
                                             planned(options_, data_), train::place_of(world_));
    train::report_run(plan, loop.count(), world_, *log_, [&] {
      failure = save(loop.updates());
      failure = train::try_to_write_trace(files_, world_, failure);
      if (!options_.report.empty()) {
        train::log_predictions(*model_, data_.validation, data_.transform, data_.class_names,
                               {.batch = options_.batch.micro, .workers = options_.workers}, world_,
                               *log_);
      }
    });
    return failure;
  }

  // Writes the weights to --save, if it is given. The run has made `updates` updates. Returns why
  // writing failed, or an empty text.
  std::string save(int64_t updates) {
    if (options_.save.empty()) return "";
    return train::save_or_rescue(options_.save, *optimizer_, world_, [&](const std::string& path) {
      return train::open_weights(path, *model_, save_options(updates));
    });
  }

  train::SaveOptions save_options(int64_t updates) const {
    return {.metadata = models::image_metadata(description_of(options_, data_)),
            .batches = updates * options_.batch.micro_batches()};
  }

  const ImageTrainOptions& options_;
  const Resumed& resumed_;
  dist::Settings run_settings_;
  dist::World& world_;
  train::TrainingRun training_;
  const data::ImageData& data_;
  std::unique_ptr<nn::Module> model_;
  std::shared_ptr<data::TrainingBatches> batches_;
  std::unique_ptr<data::ImageInput> input_;
  int64_t data_exposed_ns_ = 0;  // time that the running step has waited for data
  Left left_ = Left::steps;
  train::RunFiles files_;
  std::unique_ptr<train::RunLog> log_;
  std::unique_ptr<optim::ZeroOptimizer> optimizer_;
};

std::string plan_text(const ImageTrainOptions& options, const data::ImageData& data,
                      const dist::World& world) {
  set_thread_count(dist::threads_per_rank(options.threads, world.local_size));
  const auto model = build_model(options, data);
  const train::PlannedImages images = planned(options, data);
  return train::plan_table({.model_name = options.model,
                            .parameters = model->parameter_count(),
                            .dtype = train::parameter_dtype(*model),
                            .optimizer = options.optimizer},
                           image_training_run(options),
                           {.device = train::plan_device(options.devices), .ranks = world.size},
                           [&](const train::TrainingRun& run, const train::JobPlace& place) {
                             return train::plan_run(run, *model, images, place);
                           });
}

int run(int argc, char** argv, dist::World& world) {
  train::set_up_messages(world.rank == 0);
  ImageCommandLine line = parse_image_command_line(argc, argv);
  // Reading the data may take long, so signals that come meanwhile are kept for the first step.
  const train::EarlySignals signals(line.options.writes_checkpoints());
  check_command_lines(world, "train_resnet", line.settings, line.options.devices);
  if (!line.help.empty()) {
    if (world.rank == 0) fmt::print("{}", line.help);
    return 0;
  }
  data::ImageData data = open_data(line.options);
  check_outside_classes(paths_of(line.options, ""), line.options.data, data.class_parents);
  check_data(world, line.options, data);
  take_size_of_init(line.options, data);
  complete(line, data.train->size(), data.format);
  const ImageTrainOptions& options = line.options;
  check_ranks(options, data.transform.shape.height, world.size);
  if (options.plan) {
    warn_of_plan(options);
    if (world.rank == 0) fmt::print("{}", plan_text(options, data, world));
    return 0;
  }
  set_up_messages(options, world);
  dist::choose_devices(world, options.devices);
  if (!options.tuned.empty()) train::use_tuned_file(options.tuned, world);
  const Resumed resumed(options.checkpoints, world);
  prepare_data(options, resumed, data);
  check_ranks(options, data.transform.shape.height, world.size);  // again, with the final size
  Run training(options, data, resumed, world);
  training.train();
  return 0;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  return tessera::apps::run_job(argc, argv, [&](tessera::dist::World& world) {
    return tessera::apps::run(argc, argv, world);
  });
}
