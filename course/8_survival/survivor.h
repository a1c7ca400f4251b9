// Lesson 8: a run that survives. Every rank saves its shards, and a run goes on from them with any
// number of ranks, with the bits of a run that never stopped.
#pragma once

#include <array>

#include "course/6_zero3/zero3.h"
#include "course/8_survival/disk.h"

namespace course {

class Survivor : public Zero3 {
 public:
  using Zero3::Zero3;

  /// Saves the state after `step` steps. Whenever a rank crashes, the disk has a save that is
  /// complete: the one before, or this one. Collective.
  void save(Disk& disk, int64_t step);
  /// Restores the last complete save, which may be one of another number of ranks. Returns how many
  /// steps it had done; 0 if there is none. Called after start(). Collective.
  int64_t resume(const Disk& disk);

 private:
  /// What a rank must save for a parameter: its values and moments, of which this rank owns the
  /// elements layout_.owned(p, rank).
  std::array<Tensor, 3> shards() const { return {values_, first_moment_, second_moment_}; }
  /// The elements layout_.owned(p, rank) of parameter p in a buffer of this rank's shards.
  std::span<float> part(const Tensor& shards, int p) const;
};

}  // namespace course
