// The data that ranks exchange when a step ends: the loss of each micro-batch, a flag that says if
// the micro-batch had data, a flag for each parameter that says if it got a gradient, and notes.
// Notes are eight bits whose meaning the caller defines. Losses are exchanged between the devices
// of the ranks. All other data is exchanged between the hosts of the ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dist/host_buffer.h"

namespace tessera::optim {

class StepRecord {
 public:
  explicit StepRecord(std::shared_ptr<dist::Communicator> communicator);

  /// Begins a step of `micro_steps` micro-steps for a model with `parameters` trainable parameters.
  void begin(int64_t micro_steps, int64_t parameters);
  /// Records that a micro-step had data, and its loss (one element). The host does not wait for
  /// the loss.
  void set_loss(int64_t micro_step, const Tensor& loss);
  /// Records that a parameter got a gradient on this rank.
  void set_reached(int64_t parameter);
  void set_notes(uint8_t notes);

  /// Exchanges the records of all ranks. If the losses are on a GPU, the host waits for them only
  /// when ranks communicate over MPI. Collective.
  void exchange();

  // After the exchange:
  /// The losses, f32 [ranks * micro_steps], in the layout that kernels::end_step reads.
  const Tensor& losses() const { return losses_; }
  /// True if micro-batch m = micro-step * ranks + rank had data.
  bool had_data(int64_t micro_batch) const;
  /// True if the parameter got a gradient on any rank.
  bool reached(int64_t parameter) const;
  /// The bits that are set in the notes of any rank.
  uint8_t notes() const;

 private:
  bool flag(int64_t rank, int64_t index) const;
  void set_flag(int64_t index);

  std::shared_ptr<dist::Communicator> communicator_;
  int64_t micro_steps_ = 0;
  int64_t parameters_ = 0;
  int64_t flag_bytes_ = 0;  // of one rank: notes, then a bit for each micro-step and each parameter
  Tensor losses_;
  dist::HostBuffer flags_;  // u8 [ranks * flag_bytes]
};

}  // namespace tessera::optim
