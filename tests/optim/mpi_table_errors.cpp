// Tests that an optimizer refuses wrong uses of row-sparse tables, and that a refused use changes
// nothing.
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/table_model.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

const optim::UpdateRule adamw = optim::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.1f};

Tensor list(const std::vector<int32_t>& rows) { return Tensor::from({std::ssize(rows)}, rows); }

// Looks up rows of a table, and returns their values.
std::vector<float> look_up(nn::Embedding& table, const std::vector<int32_t>& rows) {
  const Tensor values = table(list(rows)).to_host();
  return {values.data<float>(), values.data<float>() + values.elements()};
}

/// A rule that has no function to update rows.
struct WithoutRows {
  std::vector<std::string> state_names() const { return {}; }
  UpdateHyper hyper(int64_t, const optim::GroupOptions&) const { return {}; }
  void update(const Context&, const optim::UpdateRanges&, std::span<const UpdateSegment>,
              std::span<const UpdateHyper>) const {}
};

TEST_CASE("row-sparse tables: a rule that cannot update rows is an error that names the rule") {
  const TableModel model(TableRun{});
  const auto check = [&](const optim::UpdateRule& rule, const optim::ZeroOptions& options) {
    optim::ZeroOptimizer::check(model, rule, lone_world(), options);
  };
  CHECK_THROWS_WITH(check(WithoutRows{}, {}),
                    "optimizer: the rule cannot update rows, and 'users.weight' is a row-sparse "
                    "table; set table_rule, or make the table dense");
  CHECK_THROWS_WITH(check(adamw, {.table_rule = WithoutRows{}}),
                    "optimizer: table_rule cannot update rows, and 'users.weight' is a row-sparse "
                    "table; set another table_rule, or make the table dense");
  CHECK_NOTHROW(check(WithoutRows{}, {.table_rule = adamw}));
}

TEST_CASE("row-sparse tables: unsupported uses are errors") {
  const TableRun run{.distinct_users = 3};
  TableModel model(run);
  optim::ZeroOptimizer optimizer(model, adamw, lone_world(), {.stage = 1});
  const auto micro = *optimizer.micro_batches(0, run.batch).begin();
  CHECK_THROWS_WITH(model.loss(micro), ContainsSubstring("more than 3 distinct rows of 'user"));
  CHECK_THROWS_WITH(ops::sum(model.users().weight),
                    ContainsSubstring("'users.weight' is a row-sparse table"));
  CHECK_THROWS_WITH(model.users()(Tensor::from<int32_t>({2}, {0, 700})), ContainsSubstring("700"));
  TableModel other(TableRun{});
  CHECK_THROWS_WITH(optim::ZeroOptimizer(other, optim::RowwiseAdagrad{}, lone_world()),
                    ContainsSubstring("row-sparse tables only"));
}

TEST_CASE("row-sparse tables: a refused lookup leaves no rows in the micro-batch") {
  const TableRun run{.distinct_users = 3};
  TableModel model(run);
  optim::ZeroOptimizer optimizer(model, adamw, lone_world(), {.stage = 1});
  const auto several = ContainsSubstring("more than 3 distinct rows of 'users.weight'");
  const std::vector<float> expected = look_up(model.users(), {5, 3, 9});
  for ([[maybe_unused]] const auto& micro : optimizer.micro_batches(0, {.global = 6, .micro = 6})) {
    look_up(model.users(), {5});
    CHECK_THROWS_WITH(look_up(model.users(), {1, 2, 3, 4}), several);
    // The micro-batch has room for 3 distinct rows. If rows 1 and 2 of the refused lookup had
    // remained beside row 5, the next lookup would be refused too.
    CHECK(look_up(model.users(), {5, 3, 9}) == expected);
    CHECK_THROWS_WITH(look_up(model.users(), {1}), several);
    optimizer.backward(ops::mean(model.users()(list({5, 3, 9}))));
  }
  optimizer.step();
  CHECK(optimizer.row_counts().at("users.weight").touched == 3);
}

// Trains one micro-batch, whose first lookup is refused if `refuses` is set. Returns the events
// that a checkpoint would record.
std::vector<int64_t> events_of_step(bool refuses) {
  TableModel model(TableRun{.distinct_users = 3});
  optim::ZeroOptimizer optimizer(model, adamw, lone_world(), {.stage = 3});
  for ([[maybe_unused]] const auto& micro : optimizer.micro_batches(0, {.global = 6, .micro = 6})) {
    if (refuses) {
      CHECK_THROWS_WITH(look_up(model.users(), {1, 2, 3, 4}), ContainsSubstring("more than 3"));
    }
    optimizer.backward(ops::mean(model.users()(list({5, 3, 9}))));
  }
  optimizer.step();
  return optimizer.parameter_events();
}

TEST_CASE("row-sparse tables: ranks without data do not repeat refused lookups") {
  CHECK(events_of_step(true) == events_of_step(false));
  // A step has two micro-steps. In both, the first lookup of the last rank is refused. In the first
  // micro-step this rank then computes its loss. In the second one it then has no data.
  const int64_t ranks = job_world().size;
  const auto trained = [ranks](const dist::World& world, int stage) {
    TableModel model(TableRun{.distinct_users = 3});
    const Training training{
        .steps = 2,
        .batch = {.global = 2 * ranks, .micro = 1},
        .rule = adamw,
        .loss = [&](const MicroBatch& micro) {
          if (micro.index % ranks < ranks - 1) return model.loss(micro);
          CHECK_THROWS_WITH(look_up(model.users(), {1, 2, 3, 4}), ContainsSubstring("more than 3"));
          return micro.index < ranks ? model.loss(micro) : Tensor();
        }};
    return train(model, training, world, {.stage = stage});
  };
  CHECK(trained(job_world(), 3) == trained(lone_world(), 0));
}

TEST_CASE("row-sparse tables: a row that was not prefetched is refused again") {
  // If a micro-batch may look up only 2 distinct rows, the 2 prefetched rows leave no room for a
  // third one. Nevertheless the error must say that the row was not prefetched.
  const int64_t distinct = GENERATE(12, 2);
  TableModel model(TableRun{.distinct_users = distinct});
  optim::ZeroOptimizer optimizer(model, adamw, lone_world(), {.stage = 1});
  for (const auto& micro : optimizer.micro_batches(0, {.global = 12, .micro = 6})) {
    if (micro.index == 1) {
      for (int i = 0; i < 2; ++i) {
        CHECK_THROWS_WITH(look_up(model.users(), {7}),
                          ContainsSubstring("row 7 of 'users.weight' was not prefetched"));
      }
    }
    const Tensor loss = ops::mean(model.users()(list({1, 2})));
    if (micro.index == 0) optimizer.prefetch(model.users(), list({1, 2}));
    optimizer.backward(loss);
  }
  optimizer.step();
  CHECK(optimizer.row_counts().at("users.weight").touched == 2);
}

TEST_CASE("row-sparse tables: a row that only backward looks up is refused") {
  const int64_t distinct = GENERATE(12, 2);  // with room for a third row, and without
  TableModel model(TableRun{.distinct_users = distinct});
  optim::ZeroOptimizer optimizer(model, adamw, lone_world(), {.stage = 1});
  std::vector<int32_t> rows{1, 2};
  const auto forward = [&](const std::vector<Tensor>&) {
    return std::vector<Tensor>{model.users()(list(rows))};
  };
  const auto batches = optimizer.micro_batches(0, {.global = 6, .micro = 6});
  [[maybe_unused]] const auto first = batches.begin();
  const Tensor loss = ops::mean(recompute("users", {}, forward)[0]);
  rows = {1, 3};  // backward computes the segment again
  CHECK_THROWS_WITH(optimizer.backward(loss),
                    ContainsSubstring("backward looks up rows of 'users.weight' that the forward"));
}

TEST_CASE("row-sparse tables: a step whose schedule throws starts the prefetch for the next step") {
  const auto not_prefetched = ContainsSubstring("row 7 of 'users.weight' was not prefetched");
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    TableModel model(TableRun{});
    const auto schedule = [](int64_t step) -> float {
      return step > 0 ? 1.0f : throw InputError("there is no factor");
    };
    optim::ZeroOptimizer optimizer(model, adamw, lone_world(),
                                   {.stage = stage, .schedule = schedule});
    const auto train = [&](int64_t step) {
      for ([[maybe_unused]] const auto& micro :
           optimizer.micro_batches(step, {.global = 6, .micro = 6})) {
        const Tensor loss = ops::mean(model.users()(list({1, 2})));
        // In step 1, only the rows that step 0 has prefetched may be looked up.
        if (step == 1) CHECK_THROWS_WITH(look_up(model.users(), {7}), not_prefetched);
        optimizer.prefetch(model.users(), list({1, 2}));
        optimizer.backward(loss);
      }
      optimizer.step();
    };
    CHECK_THROWS_WITH(train(0), "there is no factor");
    train(1);
  }
}

TEST_CASE("row-sparse tables: a loss that was computed outside of its micro-batch is refused") {
  const TableRun run{};
  const auto outside = ContainsSubstring("a gradient of 'users.weight' arrived, but the running");
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    TableModel model(run);
    optim::ZeroOptimizer optimizer(model, adamw, lone_world(), {.stage = stage});
    const auto loss = [&model] { return ops::mean(ops::square(model.users()(list({600, 650})))); };
    const Tensor early = loss();
    for (const auto& micro : optimizer.micro_batches(0, {.global = 12, .micro = 6})) {
      if (micro.index == 0) {
        optimizer.backward(loss());
        CHECK_THROWS_WITH(backward(loss()), outside);
      } else {
        CHECK_THROWS_WITH(optimizer.backward(early), outside);
        break;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
