// Finds the operation where a loss became non-finite.
#pragma once

#include <functional>
#include <string>

namespace tessera::train {

/// Runs `forward` without gradients, watching every operation's output, and names the first
/// operation whose output is not finite: "linear with h.3.mlp.c_fc.weight". If parameters are
/// sharded over ranks, every rank must call it.
std::string first_non_finite(const std::function<void()>& forward);

}  // namespace tessera::train
