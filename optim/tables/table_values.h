// The values of a row-sparse table, and the lookups of its rows.
//
//   stages 0 to 2   every rank has the whole table; at stages 1 and 2, rows that other ranks
//                   updated are gathered after each step
//   stage 3         a rank has only the rows that it owns; all rows that a micro-batch looks up
//                   are fetched from their owners
//
// At every stage, the operations of a micro-batch read a copy of the rows that the micro-batch
// looks up. A row's place in the copy is called its slot (optim/tables/row_slots.h). The row's
// gradient has the same slot. n is the most distinct rows that a micro-batch may look up.
#pragma once

#include <optional>

#include "core/autograd.h"
#include "optim/tables/row_exchange.h"
#include "optim/tables/row_slots.h"

namespace tessera::optim {

class TableValues {
 public:
  TableValues(const TableInfo& info, dist::Communicator& communicator, bool sharded);
  ~TableValues();
  TableValues(const TableValues&) = delete;
  TableValues& operator=(const TableValues&) = delete;

  /// The range of rows that this rank holds, and their values.
  dist::Range held() const { return sharded_ ? info_.own() : dist::Range{0, info_.rows()}; }
  const Tensor& values() const { return values_; }
  /// The values of the rows in `range`. This rank must hold these rows.
  Tensor values_of(const dist::Range& range) const;

  /// Begins a micro-batch. If rows were prefetched for this micro-batch, waits for the rows' values
  /// and puts the rows into looked_up(). Otherwise looked_up() is empty at first.
  void begin_forward();
  /// Ends the forward. Until end_backward(), only rows of looked_up() may be looked up again.
  void begin_backward();
  void end_backward();
  /// True from begin_forward() to end_backward().
  bool running() const { return phase_ != Phase::evaluation; }
  /// Looks up rows for the current micro-batch, as Leaf::look_up describes. At stage 3, collective
  /// in a forward whose rows were not prefetched. Throws InputError for more than n distinct rows
  /// in a micro-batch, and for an index outside the table. If the rows were prefetched, and in
  /// backward, throws Error for a row that is not in looked_up(). A lookup that throws adds no
  /// rows.
  TableRows look_up(const Tensor& indices, int64_t used);
  /// Takes part in the collective calls of another rank's look_up().
  void follow_look_up();
  /// Looks up any number of rows for an evaluation, within a micro-batch or outside. Does not add
  /// to looked_up(). Collective at stage 3. Checks indices only if it fetches rows (stage 3 with
  /// several ranks), and then throws InputError for an index outside the table.
  TableRows look_up_in_evaluation(const Tensor& indices, int64_t used);
  /// Takes part in the collective calls of another rank's look_up_in_evaluation().
  void follow_evaluation();
  /// The rows that were looked up by the current micro-batch or prefetched for it, by slot.
  const RowSlots& looked_up() const { return current_.slots; }
  /// If the rows were prefetched: for each row of looked_up(), 1 if the micro-batch has really
  /// looked the row up, else 0. Empty if the rows were not prefetched.
  std::span<const uint8_t> used() const;

  /// Counts so far, without evaluations: `asked`, the rows that this rank has requested from other
  /// ranks, and `served`, the rows whose values this rank has sent to other ranks.
  const RowCounts& counts() const { return counts_; }

  /// Fetches rows for the next micro-batch (ZeroOptimizer::prefetch). `updates_next`: true if the
  /// step's update comes before the next micro-batch. If true, the fetch starts in updated(),
  /// otherwise in begin_backward().
  void prefetch(const Tensor& indices, bool updates_next);

  /// Allocates the buffers of gather_updated(), for at most `most` rows of all ranks together.
  void reserve_updated(int64_t most);
  /// Sends the rows that this rank has updated, `changed`, to all ranks (stages 1 and 2). Rank r
  /// has updated counts[r] rows. reserve_updated() must have allocated buffers for the rows of all
  /// ranks. The next lookup or prefetch that reads values() waits for the rows of the other ranks.
  /// Collective.
  void gather_updated(const Tensor& changed, const std::vector<int64_t>& counts);
  /// Starts to gather all rows from their owners into values(). Lookups wait for the rows, as after
  /// gather_updated(). Collective.
  void gather_all();
  /// Drops prefetched rows. Called before Table::fill writes new values.
  void forget_prefetched();
  /// Called at the end of each step, even if the step updated nothing. If a prefetch was to start
  /// after the update, starts it now.
  void updated();
  /// Waits until values() has the values of the last update.
  void synchronize();

 private:
  /// Rows of a micro-batch. values[s] is a copy of the row with slot s.
  struct LookedUpRows {
    RowSlots slots;
    Tensor values = {};
  };
  enum class Phase : uint8_t { evaluation, forward, backward };
  /// The state of the prefetch for the next micro-batch: none was requested, the fetch will start
  /// in backward, the fetch will start after the update, or the fetch has started.
  enum class Ahead : uint8_t { none, in_backward, after_update, started };

  Tensor host_indices(const Tensor& indices, int64_t used) const;
  Tensor slots_of(RowSlots& slots, const Tensor& indices, int64_t used, bool may_add = true) const;
  Tensor slots_of_micro_batch(const Tensor& indices, int64_t used);
  [[noreturn]] void refuse_new_row(int32_t row) const;
  /// The category of a lookup's indices and slots on the host. On the CPU, operations keep these
  /// lists for backward. With a GPU, operations keep copies on the device instead.
  Category host_category() const {
    return communicator_.device().is_cpu() ? Category::activations : Category::workspace;
  }
  void fetch_all(const RowSlots& slots, const Tensor& values);
  void bring(int64_t first_slot);
  void copy_rows_to(const LookedUpRows& to, int64_t first_slot);
  void start_prefetch();
  LookedUpRows make_looked_up_rows() const;

  const TableInfo& info_;
  dist::Communicator& communicator_;
  bool sharded_;
  Tensor values_;  // [held rows, width]
  Phase phase_ = Phase::evaluation;
  LookedUpRows current_;
  Tensor device_rows_;             // on a GPU: i32 [n], indices of the rows that are being copied
  std::optional<RowFetch> fetch_;  // fetches for current_ and for evaluations
  dist::HostBuffer rounds_;        // i64 [ranks]: each rank's number of fetches in an evaluation
  // Rows prefetched for the next micro-batch. next_, next_fetch_ and used_ are empty until the
  // first prefetch.
  std::optional<LookedUpRows> next_;
  std::optional<RowFetch> next_fetch_;
  Ahead ahead_ = Ahead::none;
  Tensor used_;  // u8 [n] on the host: 1 for each slot that the current micro-batch has looked up;
                 // written only in a micro-batch whose rows were prefetched
  RowCounts counts_;         // only `asked` and `served` are used
  bool prefetched_ = false;  // true if the current micro-batch's rows were prefetched
  RowGather updated_rows_;
  dist::Work gathered_;  // done when the rows of the last update are in values_
};

}  // namespace tessera::optim
