// Lesson 8: a run that survives crashes. Every rank saves its shards. A run on any number of ranks
// can continue from a save, and then computes the same bits as a run that never stopped.
#pragma once

#include <array>

#include "course/6_zero3/zero3.h"
#include "course/8_survival/disk.h"

namespace course {

class Survivor : public Zero3 {
 public:
  using Zero3::Zero3;

  /// Saves the training state after `step` steps. If a rank crashes meanwhile, the last complete
  /// save on the disk is this save or the previous one. After a crash in the first save, the disk
  /// may have no complete save. Collective.
  void save(Disk& disk, int64_t step);
  /// Restores the last complete save, which may have been made on another number of ranks. Returns
  /// the `step` of that save, or 0 if there is no complete save. Called after start(). Collective.
  int64_t resume(const Disk& disk);

 private:
  /// Returns the tensors that a rank must save: this rank's shards of the values and of both
  /// moments. The rank owns the elements layout_.owned(p, rank) of parameter p.
  std::array<Tensor, 3> shards() const { return {values_, first_moment_, second_moment_}; }
  /// Returns elements layout_.owned(p, rank) of parameter p from a buffer of this rank's shards.
  std::span<float> part(const Tensor& shards, int p) const;
};

}  // namespace course
