// A ParameterSource provides the values of parameters: from a file, another model or an
// initialiser.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "nn/module.h"

namespace tessera::nn {

/// Writes elements [begin, begin + out.size()) of a parameter to `out`, in f32. A process
/// requests only the elements that it holds, in one or more calls.
using ParameterSource =
    std::function<void(const NamedParameter& named, int64_t begin, std::span<float> out)>;

}  // namespace tessera::nn
