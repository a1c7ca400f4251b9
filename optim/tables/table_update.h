// The update of a row-sparse table: its master weights, the update rule's state, and the choice of
// the rows that a rank updates.
//
//   stage 0        every rank updates all touched rows, after it has gathered their sums
//   stages 1 to 3  a rank updates the touched rows that it owns
//
// With offload the host updates the rows (optim/tables/offloaded_rows.h).
//
// By default, the rule is applied to touched rows only: weight decay and moments do not change the
// other rows. With ZeroOptions::update_all_rows the other rows are updated too, with a gradient of
// zero, as in a dense table.
#pragma once

#include <optional>
#include <vector>

#include "optim/rules/update_rule.h"
#include "optim/tables/offloaded_rows.h"
#include "optim/tables/table_gradients.h"
#include "optim/tables/table_values.h"
#include "optim/zero/options.h"

namespace tessera::optim {

class TableUpdate {
 public:
  TableUpdate(const TableInfo& info, dist::Communicator& communicator, UpdateRule rule,
              const ZeroOptions& options);

  /// Allocates buffers for `most` rows, the most that all ranks together may touch in a step.
  /// Called when a micro-step begins, so that the memory does not depend on whether the step
  /// updates anything.
  void reserve(TableValues& values, int64_t most);
  /// Updates rows with the gradient sums in `gradients`. At stages 1 and 2 also sends the new
  /// values to the other ranks. Rank r owns counts[r] touched rows. reserve() must have allocated
  /// buffers for the touched rows of all ranks. Collective.
  void update(TableGradients& gradients, TableValues& values, const std::vector<int64_t>& counts,
              const UpdateHyper& hyper, const StepScalars* scalars);

  /// The rows that this rank may update: all rows at stage 0, else the rows that it owns.
  dist::Range range() const { return everything_ ? dist::Range{0, info_.rows()} : info_.own(); }
  /// The f32 weights of the rows of range(): the master weights if there are any, else the values.
  Tensor weights(const TableValues& values) const;
  bool has_masters() const { return masters_.defined(); }
  /// The state of the rows of range(). Each tensor is [rows, C], or [rows] for a rule with one
  /// value per row.
  const std::vector<Tensor>& state() const { return state_; }
  const UpdateRule& rule() const { return rule_; }
  void reset_state();

 private:
  Tensor zeros(const Shape& shape, Device device) const;
  void apply(const TableValues& values, const TouchedRows& touched, const UpdateHyper& hyper,
             const StepScalars* scalars);
  TouchedRows all_rows(const TouchedRows& touched) const;

  const TableInfo& info_;
  UpdateRule rule_;
  bool everything_;  // stage 0
  bool sharded_;     // stage 3
  bool all_rows_;
  std::optional<OffloadedRows> offloaded_;
  Tensor masters_;  // f32, rows of range(); undefined if the values themselves are updated
  std::vector<Tensor> state_;
  RowGather touched_rows_;  // stage 0: gathers the touched rows of all ranks, with their sums
};

}  // namespace tessera::optim
