// Where a loss that is not finite came from.
#pragma once

#include <functional>
#include <string>

namespace tessera::train {

/// Runs `forward` without gradients, watching every operation's output, and names the first that is
/// not finite: "linear with h.3.mlp.c_fc.weight". Where the parameters are sharded over ranks, all
/// of them call it alike.
std::string first_non_finite(const std::function<void()>& forward);

}  // namespace tessera::train
