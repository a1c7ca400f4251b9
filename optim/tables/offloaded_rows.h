// Offload of a row-sparse table. The host stores the master weights and the optimizer state, and
// updates the touched rows. The table's values are on the device (optim/zero/update_place.h).
//
// Touched rows are updated in chunks, so that the buffers of gradient sums and weights do not grow
// with the table. The sums of a chunk are packed on the device and copied to the host. The host
// updates, packs and rounds the weights, and copies the result to the device. The device writes
// each packed row to its row of the table:
//
//   device   pack sums 0   pack sums 1            write rows 0       ...
//   host                   update chunk 0         update chunk 1     ...
#pragma once

#include <cstdint>
#include <vector>

#include "dist/communicator.h"
#include "optim/rules/update_rule.h"
#include "optim/tables/table_info.h"
#include "optim/zero/update_place.h"

namespace tessera::optim {

/// Rows of a table that an update changes, and their gradient sums. A row has C elements. The sum
/// of rows[i] is row slots[i] of `sums`, or zero if slots[i] is -1. If `slots` is undefined, the
/// sum of rows[i] is row i of `sums`.
struct TouchedRows {
  Tensor rows;        // i32 [m]
  Tensor slots = {};  // i32 [m], or undefined
  Tensor sums;        // f32 [n, C]; n >= m if slots is undefined
};

class OffloadedRows {
 public:
  /// `rows`: the number of rows that this rank may have to update. A chunk has at most as many rows
  /// as fit into `bucket_bytes` of f32 sums, but at least one.
  OffloadedRows(const TableInfo& info, dist::Communicator& communicator, int64_t rows,
                int64_t bucket_bytes);

  /// Returns zeroed f32 host memory for master weights or optimizer state.
  Tensor zeros(const Shape& shape) const;

  /// The tensors that an update changes. Row 0 of each tensor belongs to row `first` of the table.
  struct Target {
    Tensor masters;                 // f32 [rows, C] on the host
    std::span<const Tensor> state;  // on the host
    Tensor values;                  // [rows, C] on the device
    int64_t first = 0;
  };
  void update(const UpdateRule& rule, const UpdateHyper& hyper, const TouchedRows& touched,
              const Target& target);

 private:
  dist::Range chunk(int64_t number, int64_t count) const;
  /// Packs the sums of a chunk, and starts to copy them to the host.
  void start(int64_t number, const TouchedRows& touched, const Tensor& host_slots);
  void pack(const TouchedRows& touched, const Tensor& host_slots, const dist::Range& range,
            const Tensor& to) const;

  int64_t width_;
  int64_t rows_at_once_;
  Device device_;
  UpdateOnHost place_;
  // Buffers on the device, each f32 [rows_at_once_, C]. If the device is a GPU and an update can
  // have several chunks, there are two buffers, which consecutive chunks use in turn. Otherwise
  // there is one buffer.
  std::vector<Tensor> sums_;
  Tensor values_;             // [rows_at_once_, C] on the device
};

}  // namespace tessera::optim
