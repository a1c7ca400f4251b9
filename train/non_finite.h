// Finds the operation where a loss became non-finite.
#pragma once

#include <functional>
#include <string>

namespace tessera::train {

/// Runs `forward` without gradients, checks every operation's output, and names the first operation
/// whose output is not finite: "linear with h.3.mlp.c_fc.weight". If all outputs are finite, the
/// returned text says so. If parameters are sharded over ranks, every rank must make this call.
std::string first_non_finite(const std::function<void()>& forward);

}  // namespace tessera::train
