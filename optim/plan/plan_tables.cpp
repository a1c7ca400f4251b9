#include "optim/plan/plan_tables.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace tessera::optim {
namespace {

constexpr int64_t f32_bytes = 4;
constexpr int64_t index_bytes = 4;  // i32
constexpr int64_t count_bytes = 8;  // i64
constexpr int64_t f64_bytes = 8;
// Bytes per row of SortedRows: two i64 keys, the i32 row index and the row's i32 slot.
constexpr int64_t sorted_bytes = 24;

// Returns the bytes of a set of rows: a list of the rows, and a hash table with at least twice as
// many places.
CheckedInt set_bytes(int64_t rows) {
  const auto places = std::bit_ceil(static_cast<uint64_t>(2 * std::max<int64_t>(1, rows)));
  return CheckedInt(index_bytes) * (CheckedInt(rows) + static_cast<int64_t>(places));
}

// Returns the largest number of rows, out of `of` rows, that `batches` micro-batches can touch
// together. Each micro-batch touches at most `distinct` rows.
int64_t most(int64_t of, int64_t batches, int64_t distinct) {
  return batches >= of / distinct + 1 ? of : std::min(of, batches * distinct);
}

int64_t blocks_per_row(int64_t width) {
  constexpr int64_t block = dist::block_elements;
  if (width % block == 0) return width / block;
  return block % width == 0 ? 1 : (width + block - 2) / block + 1;
}

// Offload updates rows in chunks. The gradient sums of a chunk are at most as large as a bucket,
// but a chunk has at least one row.
void add_offload(const PlanInput& input, const PlanParameter& table, int64_t updated,
                 TableMemory& memory) {
  const CheckedInt row_sums = CheckedInt(table.width()) * f32_bytes;
  const CheckedInt row_values = CheckedInt(table.width()) * dtype_size(table.dtype);
  const int64_t chunk =
      std::min(updated, std::max<int64_t>(1, input.bucket_bytes / row_sums.value()));
  const bool ahead = !input.device.is_cpu() && updated > chunk;
  const CheckedInt slots = ahead ? 2 : 1;
  memory.crossing = slots * chunk * (row_sums + row_values);
  memory.device_rows += slots * chunk * row_sums + CheckedInt(chunk) * row_values;
}

}  // namespace

dist::RowLayout plan_row_layout(const PlanInput& input, const PlanParameter& table) {
  const int64_t multiple = dist::row_multiple(table.width());
  return {table.rows, table.width(), input.ranks,
          input.table_value_per_row ? dist::block_elements : multiple};
}

TableMemory table_memory(const PlanInput& input, const PlanParameter& table, int64_t rank) {
  const CheckedInt width = table.width();
  const CheckedInt row_bytes = width * dtype_size(table.dtype);
  const int64_t own = plan_row_layout(input, table).owned(rank).size();
  const int64_t n = table.distinct;
  const CheckedInt asked = CheckedInt(input.ranks) * std::min(n, own);
  const int64_t batches = input.batch.micro_batches();
  const int64_t touched = most(own, batches, n);
  const int64_t touched_of_all = most(table.rows, batches, n);
  const bool several = input.ranks > 1;
  const CheckedInt counts = CheckedInt(input.ranks) * input.ranks * count_bytes;
  // If the ranks compute on a GPU, the GPU has copies of some of the host's lists.
  const bool copies = !input.device.is_cpu();
  const CheckedInt copied = copies ? 2 * index_bytes : 0;  // per sorted row: the row and its slot
  TableMemory memory;
  memory.values = (input.stage == 3 ? CheckedInt(own) : CheckedInt(table.rows)) * row_bytes;
  memory.looked_up = CheckedInt(n) * row_bytes;
  memory.host_rows = set_bytes(n);
  if (copies) memory.device_rows += CheckedInt(n) * index_bytes;
  if (input.stage == 3 && several) {
    // An evaluation fetches its rows in several rounds of at most n rows (TableValues::fetch_all).
    // The host has one count per rank: the number of rounds that the rank needs.
    memory.host_rows += CheckedInt(input.ranks) * count_bytes;
    memory.host_rows += counts + CheckedInt(n) * sorted_bytes;
    memory.device_rows += asked * (row_bytes + index_bytes) + CheckedInt(n) * (row_bytes + copied);
  }
  if (!table.trainable) return memory;
  memory.gradients = CheckedInt(n) * row_bytes;
  memory.sums = CheckedInt(touched) * width * f32_bytes;
  const CheckedInt updated = input.stage == 0 ? table.rows : own;
  if (table.dtype != DType::f32 || input.offload) memory.masters = updated * width * f32_bytes;
  memory.state = updated * (input.table_value_per_row ? CheckedInt(1) : width) * f32_bytes *
                 input.table_state_tensors.value_or(input.state_tensors);
  memory.host_rows += CheckedInt(n) * sorted_bytes + CheckedInt(std::min(n, own)) * index_bytes;
  memory.device_rows += (CheckedInt(n) + touched) * copied;
  memory.host_rows += set_bytes(touched) + CheckedInt(touched) * sorted_bytes;
  const CheckedInt lists =
      CheckedInt(touched) * blocks_per_row(table.width()) * (count_bytes + index_bytes);
  memory.host_rows += lists;
  if (copies) memory.device_rows += lists + CheckedInt(std::min(n, own)) * index_bytes;
  if (input.offload) add_offload(input, table, updated.value(), memory);
  const CheckedInt blocks = CheckedInt(touched_of_all) * blocks_per_row(table.width());
  memory.blocks = std::min(dist::blocks_of(table.elements), blocks.value());
  if (!several) return memory;
  memory.host_rows += counts;
  memory.device_rows += CheckedInt(n) * row_bytes + asked * (row_bytes + index_bytes);
  if (input.stage == 0) {
    memory.device_rows += CheckedInt(touched_of_all) * (width * f32_bytes + index_bytes);
  } else if (input.stage < 3 && !input.update_all_rows) {
    memory.device_rows += CheckedInt(touched_of_all) * (row_bytes + index_bytes);
  }
  return memory;
}

std::vector<int64_t> table_pieces(const PlanInput& input, const PlanParameter& table,
                                  int64_t rank) {
  const CheckedInt own = plan_row_layout(input, table).owned(rank).size();
  const CheckedInt elements = own * table.width();
  if (!table.trainable) return {(elements * dtype_size(table.dtype)).value()};
  std::vector<int64_t> pieces{(elements * f32_bytes).value()};
  const int64_t tensors = input.table_state_tensors.value_or(input.state_tensors);
  for (int64_t i = 0; i < tensors; ++i) {
    pieces.push_back(((input.table_value_per_row ? own : elements) * f32_bytes).value());
  }
  return pieces;
}

TableCalls table_calls(const PlanInput& input, const PlanParameter& table) {
  TableCalls calls;
  // Each exchange of rows takes three calls: for the numbers of rows, for the row indices and for
  // the rows' values.
  if (input.stage == 3) calls.micro_step += 3 * table.lookups;
  if (!table.trainable) return calls;
  calls.micro_step += 3;
  calls.step = 1;  // block sums of the norm
  if (input.stage == 0) calls.update = 2;
  if (input.stage == 1 || input.stage == 2) calls.update = input.update_all_rows ? 1 : 2;
  return calls;
}

CheckedInt table_count_bytes(const PlanInput& input, const PlanParameter& table) {
  const int64_t exchanges = table_calls(input, table).micro_step / 3;
  return CheckedInt(input.ranks - 1) * input.ranks * count_bytes * exchanges;
}

std::array<int64_t, dist::traffic_count> table_traffic(const PlanInput& input,
                                                       const PlanParameter& table, int64_t rank,
                                                       const RowCounts& counts) {
  std::array<CheckedInt, dist::traffic_count> sent;
  sent.fill(0);
  const auto add = [&sent](dist::Traffic purpose, CheckedInt bytes) {
    sent[static_cast<size_t>(purpose)] += bytes;
  };
  const CheckedInt others = input.ranks - 1;
  const CheckedInt row_bytes = CheckedInt(table.width()) * dtype_size(table.dtype);
  const CheckedInt to_all = others * counts.updated;
  add(dist::Traffic::rows, (CheckedInt(counts.sent) + counts.asked) * index_bytes);
  add(dist::Traffic::gradients, CheckedInt(counts.sent) * row_bytes);
  add(dist::Traffic::parameters, CheckedInt(counts.served) * row_bytes);
  add(dist::Traffic::norms, others * counts.blocks * f64_bytes);
  if (input.stage == 0) {
    add(dist::Traffic::rows, to_all * index_bytes);
    add(dist::Traffic::gradients, to_all * table.width() * f32_bytes);
  } else if (input.stage < 3 && input.update_all_rows) {
    const int64_t own = plan_row_layout(input, table).owned(rank).size();
    add(dist::Traffic::parameters, others * counts.updates * own * row_bytes);
  } else if (input.stage < 3) {
    add(dist::Traffic::rows, to_all * index_bytes);
    add(dist::Traffic::parameters, to_all * row_bytes);
  }
  std::array<int64_t, dist::traffic_count> result{};
  for (size_t i = 0; i < result.size(); ++i) result[i] = sent[i].value();
  return result;
}

std::array<int64_t, dist::traffic_count> tables_traffic(
    const PlanInput& input, int64_t rank, const std::map<std::string, RowCounts>& counts) {
  std::array<int64_t, dist::traffic_count> sum{};
  for (const PlanParameter& parameter : input.parameters) {
    if (!parameter.row_sparse()) continue;
    const auto found = counts.find(parameter.name);
    TESSERA_CHECK(found != counts.end(), "plan: no rows of table '{}' were counted",
                  parameter.name);
    const auto bytes = table_traffic(input, parameter, rank, found->second);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = (CheckedInt(sum[i]) + bytes[i]).value();
  }
  return sum;
}

std::string dense_table_advice(const PlanInput& input) {
  double all = 0;
  for (const PlanParameter& parameter : input.parameters) {
    all += static_cast<double>(parameter.elements);
  }
  for (const PlanParameter& table : input.parameters) {
    const double share = static_cast<double>(table.elements) / all;
    // There is no advice for a tied table. It is also the weight of a matrix product, so every step
    // reads and updates all its rows anyway. A frozen table has no gradient and no update.
    if (table.lookups == 0 || table.row_sparse() || table.shared || !table.trainable) continue;
    if (share <= 0.5) continue;
    const double bytes = static_cast<double>(table.elements * dtype_size(table.dtype));
    return fmt::format(
        "{} is dense and has {:.0f} % of the parameters: every step sends and updates all of it{}; "
        "if a step looks up only a few rows, make the table row-sparse (nn::Embedding's .sparse)",
        table.name, 100 * share,
        input.stage == 3 ? fmt::format(", and stage 3 gathers {:.1f} MB", bytes / 1e6) : "");
  }
  return "";
}

namespace {

/// Returns f(1) + f(2) + ... + f(count) with a relative error below 1e-12. f must vary slowly, as
/// a power x^-s does. Only the first 2^14 terms are added one by one, because 10^8 terms would take
/// seconds. The sum of the other terms, f(a) + ... + f(b), is the integral of f from a - 1/2 to
/// b + 1/2, plus one correction (Euler-Maclaurin formula). The integral is computed by
/// Gauss-Legendre quadrature, with eight points in each interval [x, 1.125 x].
template <class F>
double sum_of(int64_t count, const F& f) {
  constexpr int64_t first_terms = int64_t{1} << 14;
  struct Node {
    double place, weight;
  };
  constexpr std::array<Node, 4> nodes = {{{0.1834346424956498, 0.3626837833783620},
                                          {0.5255324099163290, 0.3137066458778873},
                                          {0.7966664774136267, 0.2223810344533745},
                                          {0.9602898564975363, 0.1012285362903763}}};
  double sum = 0;
  for (int64_t i = 1; i <= std::min(count, first_terms); ++i) sum += f(static_cast<double>(i));
  if (count <= first_terms) return sum;
  const double begin = static_cast<double>(first_terms) + 0.5;
  const double end = static_cast<double>(count) + 0.5;
  for (double from = begin; from < end;) {
    const double to = std::min(end, 1.125 * from);
    const double half = (to - from) / 2;
    const double middle = from + half;
    for (const auto& [place, weight] : nodes) {
      sum += half * weight * (f(middle - place * half) + f(middle + place * half));
    }
    from = to;
  }
  const auto slope = [&](double x) { return f(x + 0.5) - f(x - 0.5); };
  return sum - (slope(end) - slope(begin)) / 24;
}

}  // namespace

double expected_rows(int64_t rows, int64_t lookups, const RowDistribution& distribution) {
  const auto draws = static_cast<double>(lookups);
  // Returns 1 - (1 - p)^draws, without loss of precision for small p.
  const auto drawn = [draws](double p) { return -std::expm1(draws * std::log1p(-p)); };
  const auto count = static_cast<double>(rows);
  if (rows == 1) return lookups > 0 ? 1 : 0;  // for 0 draws, drawn(1) would be NaN: 0 * log1p(-1)
  if (distribution.zipf == 0) return count * drawn(1 / count);
  const auto weight = [&](double row) { return std::pow(row, -distribution.zipf); };
  const double weights = sum_of(rows, weight);
  return sum_of(rows, [&](double row) { return drawn(weight(row) / weights); });
}

RowCounts expected_counts(const PlanInput& input, const PlanParameter& table, int64_t rank,
                          int64_t lookups, const RowDistribution& distribution) {
  // Assumes that a rank owns the same share of the looked-up rows as of all rows. This holds if row
  // indices are hashes.
  const int64_t own = plan_row_layout(input, table).owned(rank).size();
  const double share = static_cast<double>(own) / static_cast<double>(table.rows);
  const double distinct = std::min(expected_rows(table.rows, lookups, distribution),
                                   static_cast<double>(table.distinct));
  const int64_t batches = input.batch.micro_batches();
  const int64_t contributed = rank >= batches ? 0 : (batches - rank - 1) / input.ranks + 1;
  const double touched = expected_rows(table.rows, lookups * batches, distribution) * share;
  const double blocks = touched * static_cast<double>(blocks_per_row(table.width()));
  const auto rounded = [](double x) { return std::llround(x); };
  RowCounts counts;
  const bool several = input.ranks > 1;
  if (several && input.stage == 3) {
    const auto micro_steps = static_cast<double>(input.batch.micro_steps(input.ranks));
    counts.asked = rounded(distinct * (1 - share) * micro_steps);
    counts.served = rounded(distinct * share * static_cast<double>(input.ranks - 1) * micro_steps);
  }
  if (!table.trainable) return counts;
  counts.looked_up = rounded(distinct * static_cast<double>(contributed));
  counts.touched = counts.updated = rounded(touched);
  counts.blocks = std::min<int64_t>(rounded(blocks), dist::blocks_of(own * table.width()));
  counts.updates = 1;
  if (several) counts.sent = rounded(distinct * (1 - share) * static_cast<double>(contributed));
  return counts;
}

}  // namespace tessera::optim
