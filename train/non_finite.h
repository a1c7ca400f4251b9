// Finds the operation where a loss became non-finite.
#pragma once

#include <functional>
#include <string>

namespace tessera::train {

/// Runs `forward` without gradients, checks every operation's output, and names the operation that
/// computed the first NaN from finite inputs: "linear with h.3.mlp.c_fc.weight". If the NaN was
/// computed from infinities, names their origin; if there is no NaN, that of the first infinity.
/// The text says so if the values were in a parameter, in the data (a tensor that no operation
/// computed), or if all outputs are finite. If parameters are sharded over ranks, every rank must
/// make this call.
std::string first_non_finite(const std::function<void()>& forward);

}  // namespace tessera::train
