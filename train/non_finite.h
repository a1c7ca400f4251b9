// Finds the operation where a loss became non-finite.
#pragma once

#include <functional>
#include <string>

namespace tessera::train {

/// Runs `forward` without gradients and checks the output of every operation. Returns a text that
/// names:
///  - if there is a NaN: the origin of the first NaN, or of the infinities from which an operation
///    computed this NaN;
///  - if there are infinities but no NaN: the origin of the first infinity that does not come from
///    the data, or the data if all infinities come from the data.
/// If all outputs are finite, the text says so. If parameters are sharded over ranks, every rank
/// must call this function.
///
/// An origin is one of these:
///  - an operation, such as "linear with h.3.mlp.c_fc.weight";
///  - a parameter that is not finite itself;
///  - the data: tensors that no operation computed.
std::string first_non_finite(const std::function<void()>& forward);

}  // namespace tessera::train
