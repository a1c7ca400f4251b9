// A small model of three embedding tables and two linear layers. The tables may be dense or
// row-sparse. Each micro-batch looks up users twice and items once. A row-sparse table is divided
// among ranks only between blocks of 256 elements (dist/row_layout.h). In the two tables of users,
// each block holds whole rows, because the widths 8 and 1 divide 256. In the table of items, which
// has width 20, a block may end inside a row.
#pragma once

#include <vector>

#include "core/random.h"
#include "core/recompute.h"
#include "nn/layers.h"
#include "tests/support/training.h"

namespace tessera::test {

struct TableRun {
  bool sparse = true;
  DType dtype = DType::f32;
  int64_t users = 700;
  int64_t items = 90;
  int64_t distinct_users = 12;
  /// If true, every micro-batch looks up every row, in steps of 7 rows. The steps reach every row
  /// only if neither `users` nor `items` is a multiple of 7. So a test that sets all_rows must also
  /// change `users`, whose default is a multiple of 7.
  bool all_rows = false;
  bool freeze_items = false;
  bool recompute = false;  // forward is computed again in backward
  int64_t steps = 4;
  Batch batch{.global = 42, .micro = 6};
};

class TableModel : public nn::Module {
 public:
  static constexpr int64_t user_width = 8;
  static constexpr int64_t item_width = 20;

  explicit TableModel(const TableRun& run)
      : run_(run),
        users_(run.users, user_width, options(run, run.all_rows ? run.users : run.distinct_users)),
        bias_(run.users, 1, options(run, run.all_rows ? run.users : run.distinct_users)),
        items_(run.items, item_width, options(run, run.all_rows ? run.items : 6)),
        hidden_(user_width + item_width, 16),
        output_(16, 1) {
    add("users", users_);
    add("user_bias", bias_);
    begin_block();
    add("hidden", hidden_);
    add("items", items_);
    begin_block();
    add("output", output_);
    for (nn::Module* table : {static_cast<nn::Module*>(&users_), static_cast<nn::Module*>(&bias_),
                              static_cast<nn::Module*>(&items_)}) {
      table->to(run.dtype);
    }
    if (run.freeze_items) items_.weight.set_trainable(false);
  }

  /// Returns the rows that lookup number `which` of a micro-batch reads from a table of `of` rows.
  /// The rows do not depend on the rank.
  Tensor rows(const MicroBatch& micro, int64_t which, int64_t of) const {
    const int64_t count = run_.all_rows ? of : micro.samples;
    std::vector<int32_t> values;
    for (int64_t i = 0; i < count; ++i) {
      const auto seed = static_cast<uint32_t>(micro.step * 1000 + micro.index * 31 + which * 7 + i);
      const PhiloxCounter words = philox({seed, 1, 2, 3}, {5, 6});
      // u is squared below, so that low row numbers are frequent and repeat in a micro-batch.
      const double u = words[0] * 0x1p-32;
      values.push_back(run_.all_rows ? static_cast<int32_t>((i * 7 + which) % of)
                                     : static_cast<int32_t>(u * u * static_cast<double>(of)));
    }
    return Tensor::from({count}, values);
  }

  Tensor loss(const MicroBatch& micro) {
    const Tensor first_rows = rows(micro, 0, run_.users);
    const Tensor second_rows = rows(micro, 1, run_.users);
    const Tensor item_rows = rows(micro, 2, run_.items);
    const auto forward = [=, this](const std::vector<Tensor>&) {
      const auto of_users = [this](const Tensor& at) {
        const Tensor own = ops::convert(users_(at), DType::f32);
        return own + ops::convert(bias_(at), DType::f32);
      };
      const Tensor first = of_users(first_rows);
      const Tensor second = of_users(second_rows);
      const Tensor items = ops::convert(items_(item_rows), DType::f32);
      const int64_t n = std::min(first.size(0), items.size(0));
      const Tensor users = ops::slice(first + second * second, 0, n);
      const Tensor x = ops::concat({users, ops::slice(items, 0, n)}, -1);
      return std::vector<Tensor>{output_(ops::silu(hidden_(x)))};
    };
    const Tensor y = run_.recompute ? recompute("tables", {}, forward)[0] : forward({})[0];
    return ops::mean(ops::square(y + -0.5f));
  }

  nn::Embedding& users() { return users_; }
  nn::Embedding& items() { return items_; }
  nn::Embedding& bias() { return bias_; }

 private:
  static nn::Embedding::Options options(const TableRun& run, int64_t distinct) {
    return {.initializer = nn::Initializer::normal(0.5f),
            .sparse = run.sparse,
            .distinct = run.sparse ? distinct : 0};
  }

  TableRun run_;
  nn::Embedding users_;
  nn::Embedding bias_;
  nn::Embedding items_;
  nn::Linear hidden_;
  nn::Linear output_;
};

inline TrainingResult train_tables(const TableRun& run, const optim::UpdateRule& rule,
                                   const dist::World& world, const optim::ZeroOptions& options) {
  TableModel model(run);
  const Training training{
      .steps = run.steps, .batch = run.batch, .rule = rule, .loss = [&](const MicroBatch& micro) {
        return model.loss(micro);
      }};
  return train(model, training, world, options);
}

}  // namespace tessera::test
