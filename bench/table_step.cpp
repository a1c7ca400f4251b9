// Times training steps of one large embedding table with Adam without decay. A step looks up a few
// of the table's rows. The drawn rows, the initial values and the loss are those of
// bench/peers/table_step.py.
//
//   bench_table_step --rows 1000000 --width 64 --batch 4096 --zipf 1.05
//   mpirun -n 2 bench_table_step --stage 2
//   bench_table_step --dense                          the same table, dense
//   bench_table_step --rowwise                        row-wise Adagrad in place of Adam
//
// The loss of a micro-batch is the sum of the squares of its looked-up values. A step's loss is the
// mean over its micro-batches. Prints one JSON object on rank 0: the losses of all steps, the
// median and the least time of the steps after the warm-up, bytes sent in the last step by rank 0,
// and the peak memory of rank 0.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/console/flags.h"
#include "bench/mixed.h"
#include "core/context.h"
#include "core/ops.h"
#include "dist/bootstrap.h"
#include "nn/layers.h"
#include "optim/zero_optimizer.h"
#include "train/report/run_report.h"

namespace {

using namespace tessera;

struct Options {
  int64_t rows = 1'000'000;
  int64_t width = 64;
  int64_t batch = 4096;  // lookups of a rank's micro-batch
  double zipf = 1.05;
  int64_t steps = 30;
  int64_t warmup = 5;
  int64_t stage = 2;
  int64_t micro_batches = 0;  // micro-batches per step, over all ranks; 0: one for each rank
  int threads = 1;
  bool dense = false;
  bool rowwise = false;
};

Options parse(int argc, char** argv) {
  Options options;
  apps::Flags app("Times training steps of one large table", "bench_table_step");
  app.add_option("--rows", options.rows);
  app.add_option("--width", options.width);
  app.add_option("--batch", options.batch, "lookups of a rank's micro-batch");
  app.add_option("--zipf", options.zipf, "exponent of the Zipf distribution of the rows");
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--stage", options.stage);
  app.add_option("--micro-batches", options.micro_batches,
                 "micro-batches of a step, over all ranks (default: one for each rank)");
  app.add_option("--threads", options.threads);
  app.add_flag("--dense", options.dense, "use a dense table");
  app.add_flag("--rowwise", options.rowwise, "use row-wise Adagrad instead of Adam");
  const std::string help = app.parse(argc, argv);
  if (!help.empty()) {
    fmt::print("{}", help);
    std::exit(0);
  }
  if (options.steps < 1) fail_input("--steps {}, expected at least 1", options.steps);
  return options;
}

// Initial value of element `index`: uniform in [-0.5, 0.5).
float initial(int64_t index) {
  return static_cast<float>(bench::mixed(static_cast<uint32_t>(index)) >> 8) * 0x1p-24f - 0.5f;
}

// Draws rows from a Zipf distribution: the k-th most frequent row has a probability proportional to
// k^-zipf.
class Rows {
 public:
  explicit Rows(const Options& options) : cumulative_(static_cast<size_t>(options.rows)) {
    double sum = 0;
    for (size_t i = 0; i < cumulative_.size(); ++i) {
      cumulative_[i] = sum += std::pow(static_cast<double>(i + 1), -options.zipf);
    }
  }
  /// Returns the rows of lookups [first, first + count), i32 (count).
  Tensor draw(int64_t first, int64_t count) const {
    std::vector<int32_t> rows;
    for (int64_t i = first; i < first + count; ++i) rows.push_back(row(static_cast<uint32_t>(i)));
    return Tensor::from({count}, rows);
  }

 private:
  int32_t row(uint32_t number) const {
    const double at = bench::mixed(number) * 0x1p-32 * cumulative_.back();
    const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
    // Frequent rows are spread over the table, so that they are not neighbours in memory. `rank` is
    // a row's place in the order of frequency.
    const auto rank = static_cast<uint64_t>(found - cumulative_.begin());
    return static_cast<int32_t>(rank * 2654435761u % cumulative_.size());
  }

  std::vector<double> cumulative_;
};

int run(int argc, char** argv, dist::World& world) {
  const Options options = parse(argc, argv);
  set_thread_count(options.threads);
  nn::Embedding table(options.rows, options.width,
                      {.sparse = !options.dense,
                       .distinct = options.dense ? 0 : std::min(options.rows, options.batch)});
  optim::ZeroOptions zero{.stage = static_cast<int>(options.stage)};
  if (options.rowwise) zero.table_rule = optim::RowwiseAdagrad{.learning_rate = 1e-2f};
  optim::ZeroOptimizer optimizer(table, optim::Adam{.learning_rate = 1e-2f}, world, zero);
  optimizer.set_parameters([](const nn::NamedParameter&, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = initial(begin + static_cast<int64_t>(i));
  });
  const Rows rows(options);
  std::vector<double> ms;
  std::vector<float> losses;
  const int64_t micro_batches = options.micro_batches > 0 ? options.micro_batches : world.size;
  const Batch batch{.global = options.batch * micro_batches, .micro = options.batch};
  int64_t sent = 0;
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    // The rows are drawn before the clock starts, so that only the step is timed.
    std::vector<Tensor> indices;
    for (int64_t m = 0; m < micro_batches; ++m) {
      indices.push_back(rows.draw((step * micro_batches + m) * options.batch, options.batch));
    }
    world.communicator->barrier();
    const int64_t before = world.communicator->traffic().bytes_sent();
    const auto begin = std::chrono::steady_clock::now();
    const optim::StepReport report = optimizer.step(step, batch, [&](const MicroBatch& micro) {
      return ops::sum(ops::square(table(indices[static_cast<size_t>(micro.index)])));
    });
    optimizer.synchronize();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    sent = world.communicator->traffic().bytes_sent() - before;
    losses.push_back(report.loss);
    if (step >= options.warmup) ms.push_back(time.count());
  }
  std::sort(ms.begin(), ms.end());
  if (world.rank != 0) return 0;
  fmt::print(R"({{"median_ms":{:.4f},"min_ms":{:.4f},"sent":{},"vm_hwm":{},"losses":[{}]}})"
             "\n",
             ms[ms.size() / 2], ms.front(), sent, train::process_peak_bytes(),
             fmt::join(losses, ","));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::dist::run(argc, argv,
                            [&](tessera::dist::World& world) { return run(argc, argv, world); });
}
