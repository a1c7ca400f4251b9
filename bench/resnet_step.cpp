// Times training steps of a ResNet as bench/peers/resnet_step.py does: the same sizes, weights and
// synthetic images, and SGD with Nesterov momentum and with weight decay on filters and matrices.
//
//   bench_resnet_step --model resnet20 --batch 128 --size 32 --threads 2 --weights init.safetensors
//   bench_resnet_step --model resnet18 --batch 16 --size 224 --precision bf16
//
// Prints one JSON object: the losses of all steps, the median and least time of the steps after the
// warm-up, the ledger's peaks of activations and workspace, and the process's peak memory.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "core/context.h"
#include "core/image_ops.h"
#include "core/ops.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "models/image/image_classifier.h"
#include "nn/weights_file.h"
#include "optim/zero_optimizer.h"
#include "train/report/run_report.h"

namespace {

using namespace tessera;

struct Options {
  std::string model = "resnet20";
  int64_t batch = 128;
  int64_t size = 32;
  int64_t steps = 10;
  int64_t warmup = 2;
  int threads = 1;
  apps::MemoryOptions memory;
  std::string device = "cpu";
  std::string graph = "off";
  std::string weights;
};

constexpr int64_t classes = 10;

Options parse(int argc, char** argv) {
  Options options;
  apps::Flags app("Times training steps of a ResNet", "bench_resnet_step");
  app.add_option("--model", options.model);
  app.add_option("--batch", options.batch);
  app.add_option("--size", options.size, "pixels of each side of an image");
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--threads", options.threads);
  apps::add_memory_options(app, options.memory);
  apps::add_device_option(app, options.device);
  apps::add_graph_option(app, options.graph);
  app.add_option("--weights", options.weights, "safetensors, as the peer writes them");
  const std::string help = app.parse(argc, argv);
  if (!help.empty()) {
    fmt::print("{}", help);
    std::exit(0);
  }
  if (options.steps < 1) fail_input("--steps {}, expected at least 1", options.steps);
  return options;
}

// Returns the images of a step, (N, H, W, C). bench/peers/resnet_step.py computes the same images.
Tensor images_of(const Options& options, int64_t step) {
  const int64_t elements = options.batch * options.size * options.size * 3;
  std::vector<float> values(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) {
    const auto hash = static_cast<uint32_t>(i + 1000003 * step) * 2654435761u;
    values[static_cast<size_t>(i)] = static_cast<float>(hash >> 8) * 0x1p-23f - 1.0f;
  }
  const Tensor images = Tensor::from({options.batch, options.size, options.size, 3}, values);
  return ops::convert(images, apps::parameter_dtype(options.memory));
}

Tensor labels_of(const Options& options, int64_t step) {
  std::vector<int32_t> labels;
  for (int64_t n = 0; n < options.batch; ++n) {
    labels.push_back(static_cast<int32_t>((n * 7 + step) % classes));
  }
  return Tensor::from({options.batch}, labels);
}

int run(int argc, char** argv, dist::World& world) {
  const Options options = parse(argc, argv);
  TESSERA_CHECK(world.size == 1, "bench_resnet_step: {} ranks, expected one", world.size);
  dist::choose_devices(world, {.device = options.device});
  set_thread_count(options.threads);
  const auto model = models::image_classifier(options.model, {.side = options.size});
  model->to(apps::parameter_dtype(options.memory));
  const optim::Sgd rule{
      .learning_rate = 1e-3f, .momentum = 0.9f, .weight_decay = 5e-4f, .nesterov = true};
  optim::ZeroOptimizer optimizer(*model, rule, world,
                                 {.graph = options.graph == "on",
                                  .group_of =
                                      [](const nn::NamedParameter& named) {
                                        return named.parameter.shape().rank() >= 2 ? 0 : 1;
                                      },
                                  .groups = {{.weight_decay = 0.0f}}});
  if (!options.weights.empty()) {
    const nn::WeightsFile weights(options.weights, *model);
    optimizer.set_parameters(weights.source());
    weights.load_statistics(*model);
  }
  std::vector<double> ms;
  std::vector<float> losses;
  const Batch batch{.global = options.batch, .micro = options.batch};
  // A captured graph reads the memory of the first batch, so later batches are copied there.
  const Tensor images = images_of(options, 0);
  const Tensor labels = labels_of(options, 0);
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    images.copy_from(images_of(options, step));
    labels.copy_from(labels_of(options, step));
    const auto begin = std::chrono::steady_clock::now();
    optimizer.micro_steps(
        step, batch, [](const MicroBatch&) {},
        [&] { return ops::smoothed_cross_entropy((*model)(images), labels, 0); });
    const optim::StepReport report = optimizer.step();
    optimizer.synchronize();
    const std::chrono::duration<double, std::milli> time =
        std::chrono::steady_clock::now() - begin;
    losses.push_back(report.loss);
    if (step >= options.warmup) ms.push_back(time.count());
  }
  std::sort(ms.begin(), ms.end());
  const MemoryLedger& ledger = memory_ledger(default_device());
  fmt::print(R"({{"median_ms":{:.3f},"min_ms":{:.3f},"activations":{},"workspace":{},)"
             R"("vm_hwm_kib":{},"losses":[{}]}})"
             "\n",
             ms[ms.size() / 2], ms.front(), ledger.peak(Category::activations),
             ledger.peak(Category::workspace), train::process_peak_bytes() / 1024,
             fmt::join(losses, ","));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::dist::run(argc, argv,
                            [&](tessera::dist::World& world) { return run(argc, argv, world); });
}
