// The part of ZeroEngine that handles row-sparse tables.
#include <algorithm>
#include <array>

#include "optim/zero/zero_engine.h"

namespace tessera::optim {

const Table* ZeroEngine::find_table(const std::string& name) const {
  const auto found = std::ranges::find_if(tables_, [&name](const auto& table) {
    return table->trainable() && table->info().name() == name;
  });
  return found == tables_.end() ? nullptr : found->get();
}

void ZeroEngine::gather_touched_counts() {
  std::vector<Table*> trainable;
  for (const auto& table : tables_) {
    if (table->trainable()) trainable.push_back(table.get());
  }
  if (trainable.empty()) return;
  const int64_t ranks = communicator_->size();
  const auto per_rank = 2 * std::ssize(trainable);
  if (!touched_counts_.values().defined() ||
      touched_counts_.values().elements() != ranks * per_rank) {
    touched_counts_ = dist::HostBuffer(ranks * per_rank, DType::i64, *communicator_);
  }
  const dist::HostBuffer& counts = touched_counts_;
  auto* own = counts.data<int64_t>() + communicator_->rank() * per_rank;
  for (Table* const table : trainable) {
    table->finish();
    for (const int64_t count : table->touched_counts()) *own++ = count;
  }
  counts.all_gather(*communicator_, dist::Traffic::rows).wait();
  for (size_t t = 0; t < trainable.size(); ++t) {
    // of[0] counts each rank's touched rows, of[1] each rank's touched blocks of 256 elements.
    std::array<std::vector<int64_t>, 2> of;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t* const at = counts.data<int64_t>() + rank * per_rank;
      of[0].push_back(at[2 * t]);
      of[1].push_back(at[2 * t + 1]);
    }
    trainable[t]->set_counts(std::move(of[0]), std::move(of[1]));
  }
}

void ZeroEngine::update_tables(const std::vector<bool>& reached, float gradient_scale,
                               const StepScalars* scalars) {
  for (const auto& table : tables_) {
    if (!table->trainable() || !reached[static_cast<size_t>(table->number())]) continue;
    const int64_t count = ++update_counts_[static_cast<size_t>(table->number())];
    table->update(hyper(table_rule(), table->info().placed.group, count, gradient_scale), scalars);
  }
}

}  // namespace tessera::optim
