// Tests row-sparse tables beside dense parameters. Bits must be equal for any number of ranks, any
// stage and any bucket size. Some test cases compare with a dense table, which must have the same
// bits.
#include <functional>

#include "tests/support/catch.h"
#include "tests/support/table_model.h"

namespace tessera::test {
namespace {

using optim::ZeroOptions;

const optim::UpdateRule adamw = optim::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.1f};
const optim::UpdateRule sgd = optim::Sgd{.learning_rate = 5e-2f, .momentum = 0.9f};

TEST_CASE("row-sparse tables: the bits of one rank, at every stage") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool rowwise : {false, true}) {
      const TableRun run{.dtype = dtype};
      ZeroOptions options{.stage = 0, .clip = 0.5f};
      if (rowwise) options.table_rule = optim::RowwiseAdagrad{.learning_rate = 5e-2f};
      const TrainingResult expected = train_tables(run, adamw, lone_world(), options);
      for (const int stage : {0, 1, 2, 3}) {
        for (const int64_t bucket : {300, 1 << 20}) {
          CAPTURE(dtype_name(dtype), rowwise, stage, bucket);
          options.stage = stage;
          options.bucket_bytes = bucket;
          CHECK(train_tables(run, adamw, job_world(), options) == expected);
        }
      }
    }
  }
}

TEST_CASE("row-sparse tables: the bits of dense tables if every row is touched") {
  const TableRun sparse{.users = 64, .items = 40, .all_rows = true, .steps = 3};
  TableRun dense = sparse;
  dense.sparse = false;
  for (const optim::UpdateRule& rule :
       {adamw, sgd, optim::UpdateRule(optim::Adagrad{.learning_rate = 5e-2f})}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      TableRun a = sparse;
      TableRun b = dense;
      a.dtype = b.dtype = dtype;
      const TrainingResult expected =
          train_tables(b, rule, lone_world(), {.stage = 0, .clip = 0.5f});
      for (const int stage : {0, 2, 3}) {
        CAPTURE(dtype_name(dtype), stage);
        CHECK(train_tables(a, rule, job_world(), {.stage = stage, .clip = 0.5f}) == expected);
      }
    }
  }
}

TEST_CASE("row-sparse tables: update_all_rows gives the bits of dense tables") {
  const TableRun sparse{};
  TableRun dense = sparse;
  dense.sparse = false;
  const TrainingResult expected =
      train_tables(dense, adamw, lone_world(), {.stage = 0, .clip = 0.5f});
  // Without update_all_rows, rows that were not looked up keep their weights. In a dense table,
  // weight decay shrinks these rows.
  CHECK(train_tables(sparse, adamw, lone_world(), {.stage = 0, .clip = 0.5f}).weights !=
        expected.weights);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK(train_tables(sparse, adamw, job_world(),
                       {.stage = stage, .clip = 0.5f, .update_all_rows = true}) == expected);
  }
}

TEST_CASE("row-sparse tables: SGD without momentum or decay gives the bits of dense tables") {
  // A row without a gradient changes neither in a sparse nor in a dense table. The gradient norms
  // are equal too: they are summed in blocks of elements, and untouched blocks add 0.
  const TableRun sparse{};
  TableRun dense = sparse;
  dense.sparse = false;
  const optim::UpdateRule rule = optim::Sgd{.learning_rate = 5e-2f};
  const TrainingResult expected =
      train_tables(dense, rule, lone_world(), {.stage = 0, .clip = 0.5f});
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK(train_tables(sparse, rule, job_world(), {.stage = stage, .clip = 0.5f}) == expected);
  }
}

TEST_CASE("row-sparse tables: one rank's bits with frozen tables and missing data") {
  for (const int stage : {1, 3}) {
    TableRun run{.freeze_items = true};
    const auto train_uneven = [&](const dist::World& world, int of) {
      TableModel model(run);
      const Training training{.steps = run.steps,
                              .batch = run.batch,
                              .rule = adamw,
                              .loss = [&](const MicroBatch& micro) {
                                const bool missing = micro.step > 0 && micro.index % 3 == 1;
                                return missing ? Tensor() : model.loss(micro);
                              }};
      return train(model, training, world, {.stage = of, .clip = 0.5f});
    };
    CAPTURE(stage);
    CHECK(train_uneven(job_world(), stage) == train_uneven(lone_world(), 0));
  }
}

TEST_CASE("row-sparse tables: gradients and norms are those of dense tables") {
  const auto gradients = [](bool sparse, const dist::World& world, int stage) {
    TableRun run{};
    run.sparse = sparse;
    TableModel model(run);
    optim::ZeroOptimizer optimizer(model, sgd, world, {.stage = stage});
    for (const auto& micro : optimizer.micro_batches(0, run.batch)) {
      optimizer.backward(model.loss(micro));
    }
    std::map<std::string, std::vector<float>> result;
    for (const std::string name : {"users.weight", "user_bias.weight", "items.weight"}) {
      const Tensor values = optimizer.gradient(name).to_host();
      result[name].assign(values.data<float>(), values.data<float>() + values.elements());
    }
    for (const auto& [name, norm] : optimizer.gradient_norms()) result["norm of " + name] = {norm};
    optimizer.step();
    return result;
  };
  const auto expected = gradients(false, lone_world(), 0);
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    CHECK(gradients(true, job_world(), stage) == expected);
  }
}

TEST_CASE("row-sparse tables: two groups of ranks train apart, with the bits of one rank") {
  const dist::World job = job_world();
  const auto half = job.communicator->split(job.rank % 2, job.rank, "half");
  const dist::World world{.communicator = half, .rank = half->rank(), .size = half->size()};
  TableRun run{};
  run.users += job.rank % 2;  // the groups train tables of different sizes
  const TrainingResult expected = train_tables(run, adamw, lone_world(), {.stage = 0});
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    CHECK(train_tables(run, adamw, world, {.stage = stage}) == expected);
  }
}

TEST_CASE("row-sparse tables: recompute gives the same bits") {
  const TableRun run{};
  TableRun again = run;
  again.recompute = true;
  const TrainingResult expected = train_tables(run, adamw, lone_world(), {.stage = 0});
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    CHECK(train_tables(again, adamw, job_world(), {.stage = stage}) == expected);
  }
}

bool missing(const MicroBatch& micro) { return micro.step > 0 && micro.index % 3 == 1; }

// Returns the rank's micro-batch of the next micro-step, in this step or in the next step. If the
// rank has no micro-batch in that micro-step, returns the last micro-batch of that step.
MicroBatch after(const MicroBatch& micro, const TableRun& run, const dist::World& world) {
  MicroBatch next = micro;
  const int64_t last = run.batch.micro_batches() - 1;
  if (micro.micro_step + 1 < run.batch.micro_steps(world.size)) {
    next.index = std::min<int64_t>((micro.micro_step + 1) * world.size + world.rank, last);
  } else {
    next.step = micro.step + 1;
    next.index = std::min<int64_t>(world.rank, last);
  }
  return next;
}

// Prefetches the rows of users that the micro-batch `next` looks up, and the last row, even if
// `next` does not look it up.
void prefetch_users(optim::ZeroOptimizer& optimizer, TableModel& model, const MicroBatch& next,
                    const TableRun& run) {
  std::vector<int32_t> users{static_cast<int32_t>(run.users - 1)};
  for (const int which : {0, 1}) {
    const Tensor rows = model.rows(next, which, run.users).to_host();
    users.insert(users.end(), rows.data<int32_t>(), rows.data<int32_t>() + rows.elements());
  }
  optimizer.prefetch(model.users(), Tensor::from({std::ssize(users)}, users));
}

TEST_CASE("row-sparse tables: rows that were prefetched have the same bits") {
  const TableRun run{.distinct_users = 13};
  const auto train_missing = [&](const dist::World& world, int stage, bool prefetches) {
    TableModel model(run);
    optim::ZeroOptimizer optimizer(model, adamw, world, {.stage = stage});
    TrainingResult result;
    for (int64_t step = 0; step < run.steps; ++step) {
      for (const auto& micro : optimizer.micro_batches(step, run.batch)) {
        const Tensor loss = missing(micro) ? Tensor() : model.loss(micro);
        // A rank with data prefetches between forward and backward, a rank without data before
        // skip().
        if (prefetches) prefetch_users(optimizer, model, after(micro, run, world), run);
        if (loss.defined()) {
          optimizer.backward(loss);
        } else {
          optimizer.skip();
        }
      }
      result.losses.push_back(optimizer.step().loss);
    }
    // Values that are set between steps must replace the prefetched values.
    const Weights before = weights_of(optimizer);
    optimizer.set_parameters(
        [&](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
          const auto& values = before.at(named.name);
          for (size_t i = 0; i < out.size(); ++i) {
            out[i] = values[static_cast<size_t>(begin) + i] * 0.5f;
          }
        });
    optimizer.step(run.steps, run.batch,
                   [&](const MicroBatch& micro) { return model.loss(micro); });
    result.weights = weights_of(optimizer);
    return result;
  };
  const TrainingResult expected = train_missing(lone_world(), 0, false);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK(train_missing(job_world(), stage, true) == expected);
  }
}

// A copy of an optimizer's state in memory. The optimizer must hold all of its state, as on a
// single rank.
class SavedState : public optim::StateSource {
 public:
  explicit SavedState(const optim::ZeroOptimizer& optimizer)
      : events_(optimizer.parameter_events()) {
    for (const optim::StatePiece& piece : optimizer.own_state_pieces()) {
      const Tensor values = piece.values.to_host();
      REQUIRE(values.elements() == piece.end - piece.begin);
      if (values.dtype() == DType::i64) {
        counts_[piece.of.path()] = values.data<int64_t>()[0];
        continue;
      }
      auto& all = values_[piece.of.path()];
      all.resize(static_cast<size_t>(piece.of.shape.elements()));
      std::copy_n(values.data<float>(), values.elements(), all.begin() + piece.begin);
    }
  }
  void read(const std::string& path, int64_t begin, std::span<float> out) const override {
    std::copy_n(values_.at(path).begin() + begin, out.size(), out.begin());
  }
  int64_t count(const std::string& path) const override { return counts_.at(path); }
  std::vector<int64_t> parameter_events() const override { return events_; }

 private:
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, int64_t> counts_;
  std::vector<int64_t> events_;
};

// Evaluates first, so that the recorded order of parameter uses includes lookups of an evaluation.
// Then returns the loss of `micro`.
Tensor loss_after_evaluation(TableModel& model, const MicroBatch& micro) {
  {
    const NoGrad no_grad;
    model.loss({.step = 100, .samples = 40});
  }
  return model.loss(micro);
}

TEST_CASE("row-sparse tables: a run is resumed in any layout, also by ranks without data") {
  for (const bool rowwise : {false, true}) {
    // One of the two runs has a bf16 table, because a 16-bit table is saved differently: its f32
    // master weights are saved in place of the 16-bit values.
    const TableRun run{.dtype = rowwise ? DType::bf16 : DType::f32};
    ZeroOptions options{.clip = 0.5f};
    if (rowwise) options.table_rule = optim::RowwiseAdagrad{.learning_rate = 5e-2f};
    const auto go_on = [&](optim::ZeroOptimizer& optimizer, TableModel& model) {
      TrainingResult result;
      for (int64_t step = 2; step < 4; ++step) {
        // In step 2 only micro-batch 0 has data, so all ranks but rank 0 resume without data. In
        // step 3 all micro-batches have data.
        result.losses.push_back(optimizer
                                    .step(step, run.batch,
                                          [&](const MicroBatch& micro) {
                                            const bool has = step == 3 || micro.index == 0;
                                            return has ? loss_after_evaluation(model, micro)
                                                       : Tensor();
                                          })
                                    .loss);
      }
      result.weights = weights_of(optimizer);
      return result;
    };
    options.stage = 0;
    TableModel first(run);
    optim::ZeroOptimizer lone(first, adamw, lone_world(), options);
    for (int64_t step = 0; step < 2; ++step) {
      lone.step(step, run.batch,
                [&](const MicroBatch& micro) { return loss_after_evaluation(first, micro); });
    }
    const SavedState saved(lone);
    const TrainingResult expected = go_on(lone, first);
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(rowwise, stage);
      options.stage = stage;
      TableModel model(run);
      optim::ZeroOptimizer optimizer(model, adamw, job_world(), options);
      optimizer.restore_state(saved);
      CHECK(go_on(optimizer, model) == expected);
    }
  }
}

}  // namespace
}  // namespace tessera::test
