// What files of weights of all models have in common.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "nn/module.h"
#include "nn/safetensors.h"
#include "optim/zero/partition.h"

namespace tessera::apps {

/// Throws InputError unless the tensor has this shape and is F32, BF16 or F16.
void check_weights(const std::string& path, const nn::SafetensorsEntry& entry, const Shape& shape);

/// Elements [begin, begin + out.size()) for a parameter. Throws InputError for a finite weight that
/// the parameter cannot hold.
void read_weights(const nn::SafetensorsReader& file, const nn::SafetensorsEntry& entry,
                  const nn::NamedParameter& named, int64_t begin, std::span<float> out);

/// Overwrites a parameter, rounding to its dtype; gives it memory on the default device if it has
/// none.
void load_weights(const nn::NamedParameter& named, const optim::ParameterSource& source);

}  // namespace tessera::apps
