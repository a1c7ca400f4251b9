#include "train/checkpoint/state_copy.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace tessera::train {
namespace {

bool must_be_copied(const optim::StatePiece& piece) {
  return piece.is_copy || piece.always_copied || !piece.values.device().is_cpu();
}

int64_t bytes_of(const std::vector<optim::StatePiece>& pieces, bool forced) {
  int64_t bytes = 0;
  for (const optim::StatePiece& piece : pieces) {
    if (!forced || must_be_copied(piece)) bytes += piece.values.bytes();
  }
  return bytes;
}

void check_limit(const CheckpointOptions& options, const std::vector<optim::StatePiece>& pieces,
                 optim::Offload offload) {
  const bool on_gpu = std::ranges::any_of(
      pieces, [](const auto& piece) { return !piece.values.device().is_cpu(); });
  const int64_t all = bytes_of(pieces, false);
  if (!options.staging || !on_gpu || offload != optim::Offload::none || *options.staging >= all) {
    return;
  }
  fail_input(
      "checkpoint staging of {} bytes: the state is on the GPU, where the thread that writes a "
      "checkpoint cannot read it; expected at least the {} bytes of the rank's state, or offload "
      "to the host",
      *options.staging, all);
}

}  // namespace

StateCopy::StateCopy(const CheckpointOptions& options, const std::vector<optim::StatePiece>& pieces,
                     optim::Offload offload) {
  check_limit(options, pieces, offload);
  copies_.resize(pieces.size());
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Pieces are chosen from the largest to the smallest, as in optim::plan, so that the plan's bytes
  // equal the copy's.
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    return pieces[a].values.bytes() > pieces[b].values.bytes();
  });
  int64_t room = options.staging.value_or(std::numeric_limits<int64_t>::max());
  // Pieces that must be copied are subtracted from the limit first.
  room = std::max<int64_t>(0, room - bytes_of(pieces, true));
  for (const size_t i : order) {
    const Tensor& values = pieces[i].values;
    if (pieces[i].is_copy) continue;  // the optimizer has already copied this piece
    if (!must_be_copied(pieces[i])) {
      if (values.bytes() > room) continue;
      room -= values.bytes();
    }
    copies_[i] = Tensor::empty(values.shape(), values.dtype(), Device{}, Category::checkpoint);
  }
}

std::vector<optim::StatePiece> StateCopy::take(std::vector<optim::StatePiece> pieces) const {
  TESSERA_CHECK(pieces.size() == copies_.size(),
                "checkpoint: the state has {} pieces on this rank, but had {} at the start",
                pieces.size(), copies_.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!copies_[i].defined()) continue;
    copies_[i].copy_from(pieces[i].values);
    pieces[i].values = copies_[i];
    pieces[i].is_copy = true;
  }
  return pieces;
}

}  // namespace tessera::train
