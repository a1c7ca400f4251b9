// Finds the operation where a loss became non-finite.
#pragma once

#include <functional>
#include <string>

namespace tessera::train {

/// Runs `forward` without gradients and checks the output of every operation. Returns a text that
/// names the operation that computed the first NaN: "linear with h.3.mlp.c_fc.weight". If it
/// computed the NaN from infinities, names the operation that computed these instead. If there is
/// no NaN, names the operation that computed the first infinity. If no operation computed the NaN
/// or infinity, the text says that it was in a parameter or in the data (a tensor that no operation
/// computed). If all outputs are finite, the text says so. If parameters are sharded over ranks,
/// every rank must call this function.
std::string first_non_finite(const std::function<void()>& forward);

}  // namespace tessera::train
