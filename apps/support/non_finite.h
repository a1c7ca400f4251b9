// Where a loss that is not finite came from.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::apps {

/// Runs `forward` again, without gradients, watching every operation's output, and throws Error:
/// "step 17: the loss is not finite (nan); first at linear with h.3.mlp.c_fc.weight".
[[noreturn]] void fail_non_finite(int64_t step, float loss, const std::function<void()>& forward);

}  // namespace tessera::apps
