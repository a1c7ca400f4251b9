// Times cuBLASLt's algorithms for the matrix products of a GPT, and writes a table of the fastest.
//
//   tune --preset gpt2 --micro-batch 16 --precision bf16 --out tuned.json
//   mpirun -n 8 train_gpt --preset gpt2 --micro-batch 16 --precision bf16 --tuned tuned.json ...
//
// The timed products are those of one micro-step of the model.
#include <cstdio>
#include <vector>

#include <fmt/format.h>

#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/tune_options.h"
#include "core/cuda.h"
#include "core/product_tuning.h"
#include "core/text/number_text.h"
#include "core/text/output_file.h"
#include "dist/bootstrap.h"
#include "train/report/table.h"
#include "train/tune_gpt.h"
#include "train/tuned_file.h"

namespace tessera::apps {
namespace {

void print_table(const std::vector<cuda::MeasuredProduct>& products) {
  train::Table table({"m", "n", "k", "operands", "result", "first us", "fastest us", "of"});
  for (const auto& [fastest, fastest_us, first_us, proposals] : products) {
    const cuda::ProductShape& shape = fastest.shape;
    table.add({grouped(shape.m), grouped(shape.n), grouped(shape.k),
               std::string(dtype_name(shape.dtype)), std::string(dtype_name(shape.c_dtype)),
               fmt::format("{:.1f}", first_us), fmt::format("{:.1f}", fastest_us),
               std::to_string(proposals)});
  }
  fmt::print("{}", table.text());
}

int run(int argc, char** argv, dist::World& world) {
  const auto [options, help] = parse_tune_command_line(argc, argv);
  if (!help.empty()) {
    if (world.rank == 0) fmt::print("{}", help);
    return 0;
  }
  if (world.size > 1) {
    fail_input("tune measures on one rank, but was started on {} ranks", world.size);
  }
  // choose_devices would refuse too, but name the flag --device, which tune does not have.
  if (cuda::device_count() == 0) {
    fail_input("there is no usable GPU to measure on: {}", cuda::unusable());
  }
  dist::choose_devices(world, {.device = "cuda", .comm = "mpi"});
  check_output_path("--out", options.out);
  const train::TunedFor here{cuda::device_name(default_device().index),
                             cuda::product_library_version()};
  fmt::print("{}, cuBLASLt {}\n", here.device, here.library);
  const std::vector<cuda::MeasuredProduct> products = train::measure_gpt_products(
      {.model = options.model, .dtype = options.dtype, .micro_batch = options.micro_batch}, world);
  print_table(products);
  OutputFile file(options.out);
  file.write(train::tuned_text(here, products));
  file.commit();
  return 0;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  return tessera::apps::run_job(argc, argv, [&](tessera::dist::World& world) {
    return tessera::apps::run(argc, argv, world);
  });
}
