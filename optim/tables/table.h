// A row-sparse table under ZeRO (nn::Parameter::set_row_sparse). Gradients are sent, and enter the
// norm, only for the rows that micro-batches look up. By default, only these rows are updated. Each
// rank owns a range of rows (dist/row_layout.h). A table belongs to no partition, because
// partitions have only dense parameters.
//
//   parts     TableValues      the rows that operations read; stage 3 fetches rows
//             TableGradients   the gradient rows of a micro-batch, and their sums at the owners
//             TableUpdate      applies the update rule to rows
//
// Shapes use the letters of optim/tables/table_info.h.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "optim/tables/table_gradients.h"
#include "optim/tables/table_update.h"
#include "optim/tables/table_values.h"
#include "optim/zero/optimizer_state.h"
#include "optim/zero/step_report.h"

namespace tessera::optim {

class Table {
 public:
  /// Called when a backward has completed the table's gradient.
  using Complete = std::function<void(int64_t number)>;

  /// `number`: the table's index among the optimizer's trainable parameters; -1 for a frozen table.
  /// Sets the hooks of the parameter; the destructor removes them. The caller must have called
  /// check_tables() (optim/zero/option_checks.h).
  Table(PlacedParameter placed, int64_t number, const UpdateRule& rule,
        std::shared_ptr<dist::Communicator> communicator, const ZeroOptions& options,
        MicroStepLog& log, Complete complete);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const TableInfo& info() const { return info_; }
  int64_t number() const { return number_; }
  bool trainable() const { return info_.trainable(); }
  TableValues& values() { return values_; }
  const TableGradients& gradients() const { return *gradients_; }

  // The calls of a micro-step, in this order:
  void begin(const MicroStep& micro_step);
  void begin_backward();
  /// Sends the gradient to the owners of its rows. Called when the backward of the whole model is
  /// over. Without `overlap`, waits until this rank has added the rows that it received.
  void send(bool overlap);
  void end_backward();

  /// For a rank without data: takes part in the collective calls that the other ranks make at a
  /// ParameterEvent of this kind. Adds these calls to the log, so that later micro-steps without
  /// data can repeat them.
  void follow(ParameterEvent::Kind kind, MicroStepLog& log) {
    log.add([this, kind] { follow(kind); });
    follow(kind);
  }

  /// Waits for the gradient sums of the step. The caller must then gather touched_counts() from all
  /// ranks, and pass the counts to set_counts().
  void finish();
  /// The number of rows of this rank that the step has touched, and the number of blocks of 256
  /// elements that contain elements of these rows.
  std::array<int64_t, 2> touched_counts() const;
  /// rows[r] and blocks[r] are touched_counts() of rank r.
  void set_counts(std::vector<int64_t> rows, std::vector<int64_t> blocks);
  const std::vector<int64_t>& block_counts() const { return block_counts_; }
  /// An upper bound on the number of blocks that all ranks together touch in a step with as many
  /// micro-batches as the current step.
  int64_t most_blocks() const;
  int64_t all_blocks() const;  // the sum of block_counts()

  void update(const UpdateHyper& hyper, const StepScalars* scalars);
  /// Called at the end of each step, even if the step updated nothing.
  void updated() { values_.updated(); }

  RowCounts counts() const;

  void fill(const ParameterSource& source);
  void reset_state();
  /// Returns all values in f32, [V, C], on every rank. Allocates memory for the whole table.
  /// Collective.
  Tensor gather_values(dist::Traffic purpose) const;
  /// Returns the step's gradient sum, f32 [V, C], on every rank. Allocates memory for the whole
  /// table. Collective.
  Tensor gather_sums() const;

  void list_state(std::vector<StateTensor>& list) const;
  void list_pieces(std::vector<StatePiece>& list) const;
  void restore(const StateSource& source);
  /// The bytes of one row's master weights and state on a rank that updates the row; 0 for a frozen
  /// table.
  int64_t row_state_bytes() const;
  /// Copies the update rule's state on this rank into `result`.
  void own_state(StateByName& result) const;
  /// Copies the update rule's state of all rows into `result`, on rank `root` only. Collective.
  void gather_state(int root, StateByName& result) const;

 private:
  void set_hooks(MicroStepLog& log, Complete complete);
  void follow(ParameterEvent::Kind kind);
  Tensor gather(const Tensor& own, int64_t width, dist::Traffic purpose) const;
  StateTensor state_tensor(const std::string& kind, DType dtype, bool value_per_row) const;
  /// The number of values that each state tensor has per row.
  int64_t state_width() const { return update_->rule().value_per_row() ? 1 : info_.width(); }
  Tensor own_weights() const;
  Tensor own_of(const Tensor& held) const;

  std::shared_ptr<dist::Communicator> communicator_;
  TableInfo info_;
  int64_t number_;
  TableValues values_;
  // A frozen table has neither gradients_ nor update_.
  std::optional<TableGradients> gradients_;
  std::optional<TableUpdate> update_;
  bool looked_up_ = false;  // true if operations of the running micro-batch have looked up rows
  int64_t micro_batches_ = 1;
  int64_t updates_ = 0;
  int64_t updated_rows_ = 0;
  std::vector<int64_t> row_counts_;  // rows that the step touched, by rank
  std::vector<int64_t> block_counts_;
};

}  // namespace tessera::optim
