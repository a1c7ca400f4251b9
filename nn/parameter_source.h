// Where the values of parameters come from: a file, another model, an initialiser.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "nn/module.h"

namespace tessera::nn {

/// Writes elements [begin, begin + out.size()) of a parameter, in f32. Whoever keeps a part of a
/// parameter asks for that part alone.
using ParameterSource =
    std::function<void(const NamedParameter& named, int64_t begin, std::span<float> out)>;

}  // namespace tessera::nn
