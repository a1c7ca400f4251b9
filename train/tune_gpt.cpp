#include "train/tune_gpt.h"

#include <chrono>

#include <spdlog/spdlog.h>

#include "core/context.h"
#include "core/cuda.h"
#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/tuned_file.h"

namespace tessera::train {
namespace {

void run_micro_step(const GptProducts& products, dist::World& world) {
  models::GptConfig config = products.model;
  config.layers = 1;
  models::Gpt model(config);
  model.to(products.dtype);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {.stage = 0});
  const Tensor tokens = Tensor::zeros({products.micro_batch, config.context}, DType::i32);
  const Batch batch{.global = products.micro_batch, .micro = products.micro_batch};
  for ([[maybe_unused]] const MicroBatch& micro : optimizer.micro_batches(0, batch)) {
    optimizer.backward(model.loss(tokens, tokens));
  }
  optimizer.step();
  // The step above is not a step of the run. Without these calls, messages would name step 1 as
  // finished.
  dist::set_running_step(-1);
  dist::set_finished_step(-1);
}

}  // namespace

std::vector<cuda::MeasuredProduct> measure_gpt_products(const GptProducts& products,
                                                        dist::World& world) {
  run_micro_step(products, world);
  std::vector<cuda::MeasuredProduct> measured;
  if (world.rank != 0) return measured;
  const Context context = current_context(default_device());
  for (const cuda::ProductShape& shape : cuda::computed_products(default_device().index)) {
    measured.push_back(cuda::measure_product(context, shape));
  }
  return measured;
}

void tune_gpt(const GptProducts& products, dist::World& world) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<cuda::MeasuredProduct> measured = measure_gpt_products(products, world);
  const TunedFor here{cuda::device_name(default_device().index), cuda::product_library_version()};
  use_tuned_text("the products measured on rank 0", tuned_text(here, measured), world);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  spdlog::info("the algorithms of {} products were measured in {:.1f} s, as with tune; --tune off "
               "takes the library's first proposals",
               measured.size(), seconds.count());
}

}  // namespace tessera::train
