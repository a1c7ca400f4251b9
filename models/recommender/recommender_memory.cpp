// Letters: B samples of K items each. A place (b, k) is item k of sample b.
#include "models/recommender/recommender_memory.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "models/kernel_workspace.h"
#include "models/memory_tape.h"

namespace tessera::models {
namespace {

/// Returns the bytes of a set of row numbers (optim/tables/row_slots.h): the row numbers, and a
/// hash table with at least two entries for each of them.
int64_t row_set_bytes(int64_t rows) {
  return 4 * (rows + static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * rows))));
}

/// The number of rows of a table. For a row-sparse table, also the largest number of distinct rows
/// that a micro-batch looks up.
struct Entries {
  int64_t all = 0;
  int64_t distinct = 0;  // 0: dense

  /// Returns the number of rows of the matrix that operations read in training. This matrix is the
  /// dense table itself, or a copy of the rows that the micro-batch looks up.
  int64_t read() const { return distinct > 0 ? distinct : all; }
};

/// Replays the operations of a micro-batch, with one function for each operation that the models
/// use.
class Tape {
 public:
  Tape(const RecommenderMicroBatch& micro, bool training) : tape_(training), micro_(micro) {
    if (can_be_queried(micro.device)) workspace_ = 0;
  }

  /// Looks up rows of a table, for indices of the given shape.
  Value embedding(const Entries& table, const Shape& indices, int64_t width) {
    Shape shape = indices;
    shape.push_back(width);
    return rows_of_table(table, shape, width, indices);
  }
  Value embedding_bag(const Entries& table, int64_t width) {
    return rows_of_table(table, {micro_.samples, width}, width, {micro_.history_places});
  }

  /// The left side of row_products: all rows of `x`, or rows looked up in a table.
  struct Rows {
    Entries entries = {};      // the table's size; used only if x is null
    const Value* x = nullptr;  // null: the rows are looked up in a table
  };
  /// Returns the products (B, K) of the left rows with rows of a table. If `squares` is true, also
  /// returns the sum of the squares of both sides' rows.
  std::vector<Value> row_products(const Rows& left, const Entries& right, const Shape& indices,
                                  int64_t width, bool squares) {
    std::vector<Memory> kept;
    std::vector<Value> looked_up;  // held until the operation returns
    const Shape users{micro_.samples};
    if (left.x == nullptr) look_up_with_bias(left.entries, users, width, kept, looked_up);
    look_up_with_bias(right, indices, width, kept, looked_up);
    const int64_t entries = rows_read(right, indices);
    const int64_t left_entries = left.x == nullptr ? rows_read(left.entries, users) : 0;
    const int64_t places = micro_.samples * indices[1];
    const DType dtype = left.x == nullptr ? micro_.dtype : left.x->dtype;
    if (squares) use_for_squares(left_entries, entries, indices);
    if (tape_.training()) {
      const bool repeated = left_entries > 0 && indices[1] > 1;
      // If the left rows are the rows of x, CUDA does not sort them, and needs no workspace for
      // them.
      const int64_t left_rows = left.x == nullptr ? left_entries : micro_.samples;
      if (left.x == nullptr || micro_.device.is_cpu()) {
        use_for_terms(left_rows, places, dtype, repeated);
      }
      use_for_terms(entries, places, dtype, repeated);
    }
    std::vector<Value> results{tape_.empty({micro_.samples, indices[1]}, dtype)};
    if (squares) results.push_back(tape_.empty({}, DType::f32));
    if (left.x != nullptr) kept.push_back(left.x->memory);
    tape_.record(results, kept, {{left.x}}, true);
    if (!squares) results.emplace_back();
    return results;
  }

  Value mul(const Value& a, const Value& b) {
    Value y = tape_.empty(broadcast(a.shape, b.shape), a.dtype);
    // The gradient of a broadcast operand is first written in y's shape, then summed to the
    // operand's shape.
    const bool repeats = a.shape != y.shape || b.shape != y.shape;
    if (tape_.training() && repeats) use(y.bytes());
    tape_.record(y, {a.memory, b.memory}, {{&a}, {&b}});
    return y;
  }
  /// Records a + b, or a - b if `subtract` is true.
  Value add(const Value& a, const Value& b, bool subtract = false) {
    Value y = tape_.empty(broadcast(a.shape, b.shape), a.dtype);
    tape_.record(y, {}, {{&a, a.shape == y.shape}, {&b, b.shape == y.shape && !subtract}});
    return y;
  }
  Value bce_with_logits(const Value& logits) {
    Value y = tape_.empty(logits.shape, logits.dtype);
    tape_.record(y, {logits.memory}, {{&logits}});
    return y;
  }

  /// Records an elementwise operation whose closure keeps no tensor, such as adding a number.
  Value like(const Value& x) { return of_shape(x, x.shape, x.dtype, {}); }
  Value square(const Value& x) { return of_shape(x, x.shape, x.dtype, {x.memory}); }
  Value softplus(const Value& x) { return square(x); }
  Value relu(const Value& x) {
    Value y = tape_.empty(x.shape, x.dtype);
    tape_.record(y, {y.memory}, {{&x}});
    return y;
  }
  Value convert(const Value& x, DType dtype) {
    return x.dtype == dtype ? x : of_shape(x, x.shape, dtype, {});
  }
  Value sum(const Value& x) {
    use(mean_workspace(x.shape.elements()));
    return of_shape(x, {}, DType::f32, {});
  }

  Value reshape(const Value& x, const Shape& shape) {
    Value y{.shape = shape, .dtype = x.dtype, .memory = x.memory};
    tape_.record(y, {}, {{&x, true}});
    return y;
  }
  std::vector<Value> split_last(const Value& x, int64_t first) {
    std::vector<Value> parts{tape_.empty(x.shape.with_last(first), x.dtype),
                             tape_.empty(x.shape.with_last(x.shape[-1] - first), x.dtype)};
    tape_.record(parts, {}, {{&x}});
    return parts;
  }
  Value concat_last(const Value& a, const Value& b) {
    Value y = tape_.empty(a.shape.with_last(a.shape[-1] + b.shape[-1]), a.dtype);
    tape_.record(y, {}, {{&a}, {&b}});
    return y;
  }

  Value linear(const Value& x, int64_t out, bool bias = true) {
    const LinearSizes sizes{
        .rows = x.shape.elements() / x.shape[-1], .in = x.shape[-1], .out = out, .bias = bias};
    if (workspace_) {
      use(linear_workspace(current_context(micro_.device), x.dtype, sizes, tape_.training()));
    }
    Value y = tape_.empty(x.shape.with_last(out), x.dtype);
    tape_.record(y, {x.memory}, {{&x}}, true);
    return y;
  }

  void backward() { tape_.backward(); }
  RecommenderMemory memory() const { return {tape_.peak(), workspace_}; }

 private:
  /// Counts the workspace for row_products' sum of squares. `entries` is the number of rows of the
  /// right table. `left_entries` is the number of rows of the left table, or 0 if the left side is
  /// not a table.
  ///   - The CPU handles one side at a time. It holds an fp64 sum for every 64 rows. For a table,
  ///     it also holds the number of lookups of each row.
  ///   - CUDA holds an f32 square for each lookup, and the workspace of the kernel that adds them.
  void use_for_squares(int64_t left_entries, int64_t entries, const Shape& indices) {
    if (micro_.device.is_cpu()) {
      const auto sums = [](int64_t rows) { return 8 * pieces(rows, 64); };
      use(4 * entries + sums(entries));
      use(left_entries > 0 ? 4 * left_entries + sums(left_entries) : sums(micro_.samples));
    } else {
      const int64_t lookups = micro_.samples + indices.elements();
      use(4 * lookups + mean_workspace(lookups));
    }
  }
  /// Counts the workspace for the gradient of one side of row_products. This side has `rows` rows.
  /// The kernel sorts the places (b, k) by the row of this side that they use. The workspace has
  /// rows + 1 offsets, and for each place
  ///   - on the CPU, the index of the other side's row, and the gradient of the product;
  ///   - on CUDA, the index of the place; if the dtype is not f32, the gradient of the product in
  ///     f32; and if `repeated` is true, the index of the left row.
  /// `repeated` is true if the left side is a table and K > 1. CUDA then stores the left index of
  /// each sample K times.
  void use_for_terms(int64_t rows, int64_t places, DType dtype, bool repeated) {
    if (micro_.device.is_cpu()) {
      use(4 * (rows + 1) + 8 * places);
    } else {
      const int each = 1 + (dtype == DType::f32 ? 0 : 1) + (repeated ? 1 : 0);
      use(4 * (rows + 1 + each * places));
    }
  }
  void use(int64_t bytes) {
    if (workspace_) workspace_ = std::max(*workspace_, bytes);
  }

  static Shape broadcast(const Shape& a, const Shape& b) {
    Shape shape;
    for (int dim = 0; dim < a.rank(); ++dim) shape.push_back(std::max(a[dim], b[dim]));
    return shape;
  }

  // Backward sorts the lookups by table row. The sort stores rows + 1 offsets, and one index for
  // each lookup.
  Value rows_of_table(const Entries& table, const Shape& shape, int64_t width,
                      const Shape& indices) {
    std::vector<Memory> kept;
    std::vector<Value> looked_up;  // held until the operation returns
    look_up(table, indices, width, kept, looked_up);
    if (tape_.training()) use(4 * (table.read() + 1 + indices.elements()));
    Value y = tape_.empty(shape, micro_.dtype);
    tape_.record(y, std::move(kept), {}, true);
    return y;
  }

  /// Returns the number of rows of the matrix that an operation reads for these indices.
  int64_t rows_read(const Entries& table, const Shape& indices) const {
    if (tape_.training()) return table.read();
    return fetches(table) ? std::min(table.all, indices.elements()) : table.all;
  }
  bool fetches(const Entries& table) const { return table.distinct > 0 && micro_.fetches; }
  /// Allocates the memory of a lookup in a row-sparse table:
  ///   - in training, for each index, the position of its row among the copied rows. The gradient's
  ///     closure keeps these positions;
  ///   - in an evaluation that fetches rows, the positions and the rows, and during the lookup also
  ///     a set of the row indices.
  void look_up(const Entries& table, const Shape& indices, int64_t width,
               std::vector<Memory>& kept, std::vector<Value>& looked_up) {
    if (tape_.training() && table.distinct > 0) {
      looked_up.push_back(tape_.empty(indices, DType::i32));
      kept.push_back(looked_up.back().memory);
    } else if (!tape_.training() && fetches(table)) {
      const int64_t rows = rows_read(table, indices);
      // With a GPU the set is in host memory, which does not count as activations.
      Value set;
      if (micro_.device.is_cpu()) set = tape_.empty({row_set_bytes(rows) / 4}, DType::i32);
      looked_up.push_back(tape_.empty(indices, DType::i32));
      looked_up.push_back(tape_.empty({rows, width}, micro_.dtype));
    }
  }
  /// Allocates the memory of two lookups with the same indices: in a table, and in the table's
  /// bias. The operation checks that the bias's rows have the same positions as the table's rows.
  /// Then the operation frees the bias's positions.
  void look_up_with_bias(const Entries& table, const Shape& indices, int64_t width,
                         std::vector<Memory>& kept, std::vector<Value>& looked_up) {
    look_up(table, indices, width, kept, looked_up);
    std::vector<Memory> of_bias;
    std::vector<Value> rows;
    look_up(table, indices, 1, of_bias, rows);
    if (!tape_.training() && !rows.empty()) looked_up.push_back(rows.back());
  }

  Value of_shape(const Value& x, const Shape& shape, DType dtype, std::vector<Memory> kept) {
    Value y = tape_.empty(shape, dtype);
    tape_.record(y, std::move(kept), {{&x}});
    return y;
  }

  MemoryTape tape_;
  RecommenderMicroBatch micro_;
  std::optional<int64_t> workspace_;
};

struct ScoreValues {
  Value scores;
  std::vector<Value> rows;
  Value squares = {};
};

/// Replays the operations of the models' score functions, in the same order.
class Walk {
 public:
  Walk(Tape& tape, const RecommenderConfig& config, const RecommenderMicroBatch& micro)
      : tape_(tape),
        config_(config),
        penalized_(micro.l2 > 0),
        users_{micro.samples},
        items_{micro.shared_items ? 1 : micro.samples, micro.items} {}

  ScoreValues score() {
    if (config_.name == "gmf") return generalized();
    return config_.name == "neumf" ? neural() : inner_product();
  }

 private:
  Entries all_users() const { return {config_.users, config_.distinct.users}; }
  Entries all_items() const { return {config_.items, config_.distinct.items}; }
  Value users(int64_t width) { return tape_.embedding(all_users(), users_, width); }
  Value items(int64_t width) { return tape_.embedding(all_items(), items_, width); }
  Value for_each_item(const Value& rows) {
    return tape_.reshape(rows, {rows.shape[0], 1, rows.shape[1]});
  }
  Value as_scores(const Value& y) { return tape_.reshape(y, {y.shape[0], y.shape[1]}); }

  /// Returns the users' factors in svd++.
  Value user_rows() {
    const Value own = users(config_.factors);
    const Entries history{config_.items, config_.distinct.history};
    return tape_.add(own, tape_.embedding_bag(history, config_.factors));
  }

  ScoreValues inner_product() {
    const auto products = [&](const Tape::Rows& left) {
      return tape_.row_products(left, all_items(), items_, config_.factors, penalized_);
    };
    if (!config_.reads_histories()) {
      const std::vector<Value> results = products({.entries = all_users()});
      return {tape_.like(results[0]), {}, results[1]};
    }
    const Value bias = users(1);
    std::vector<Value> results;
    // In the model the users' rows are a temporary. After row_products, only the operation's
    // closure holds the rows.
    {
      const Value p = user_rows();
      results = products({.x = &p});
    }
    return {tape_.like(tape_.add(results[0], bias)), {bias}, results[1]};
  }

  ScoreValues generalized() {
    const Value p = users(config_.factors);
    const Value q = items(config_.factors);
    return {as_scores(tape_.linear(tape_.mul(for_each_item(p), q), 1)), {p, q}};
  }

  ScoreValues neural() {
    const std::vector<int64_t>& hidden = config_.hidden;
    const Value p = users(config_.factors);
    const Value q = items(config_.factors);
    const Value mlp_p = users(hidden[0] / 2);
    const Value mlp_q = items(hidden[0] / 2);
    const Value of_user = for_each_item(tape_.linear(mlp_p, hidden[1], false));
    Value x = tape_.relu(tape_.add(of_user, tape_.linear(mlp_q, hidden[1])));
    for (size_t i = 2; i < hidden.size(); ++i) x = tape_.relu(tape_.linear(x, hidden[i]));
    const Value product = tape_.mul(for_each_item(p), q);
    return {as_scores(tape_.linear(tape_.concat_last(product, x), 1)), {p, q, mlp_p, mlp_q}};
  }

  Tape& tape_;
  const RecommenderConfig& config_;
  bool penalized_;
  Shape users_;
  Shape items_;
};

Value objective_of(Tape& tape, const Value& scores, const RecommenderMicroBatch& micro) {
  const Value targets{.shape = scores.shape, .dtype = DType::f32};
  if (micro.objective == RecommenderObjective::rating) {
    return tape.sum(tape.square(tape.add(scores, targets, true)));
  }
  if (micro.objective == RecommenderObjective::bce) return tape.sum(tape.bce_with_logits(scores));
  const std::vector<Value> parts = tape.split_last(scores, 1);
  return tape.sum(tape.softplus(tape.add(parts[1], parts[0], true)));
}

Value loss_of(Tape& tape, const ScoreValues& scores, const RecommenderMicroBatch& micro) {
  Value loss = objective_of(tape, tape.convert(scores.scores, DType::f32), micro);
  if (micro.l2 == 0) return loss;
  Value squares;
  const auto add = [&](const Value& sum) {
    squares = squares.memory ? tape.add(squares, sum) : sum;
  };
  for (const Value& rows : scores.rows) add(tape.sum(tape.square(rows)));
  if (scores.squares.memory) add(scores.squares);
  return tape.add(loss, tape.like(squares));
}

}  // namespace

RecommenderMemory recommender_training_memory(const RecommenderConfig& config,
                                              const RecommenderMicroBatch& micro) {
  Tape tape(micro, true);
  Value loss;
  {
    const ScoreValues scores = Walk(tape, config, micro).score();
    loss = loss_of(tape, scores, micro);
  }
  tape.backward();
  return tape.memory();
}

RecommenderMemory recommender_evaluation_memory(const RecommenderConfig& config,
                                                const RecommenderMicroBatch& micro) {
  Tape tape(micro, false);
  const ScoreValues scores = Walk(tape, config, micro).score();
  const Value wide = tape.convert(scores.scores, DType::f32);
  return tape.memory();
}

}  // namespace tessera::models
