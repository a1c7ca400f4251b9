// The table that `tune` writes and training reads: which of cuBLASLt's algorithms a product
// takes, for one kind of GPU and one version of the library (docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/product_tuning.h"
#include "dist/bootstrap.h"

namespace tessera::train {

/// The device and library version for which a table is valid.
struct TunedFor {
  std::string device;   // cuda::device_name
  int64_t library = 0;  // cuda::product_library_version
};

std::string tuned_text(const TunedFor& where, const std::vector<cuda::MeasuredProduct>& products);

/// The products of a table. Throws InputError, naming `path`, for a text that is no table, and for
/// a table of another device or version than `here`.
std::vector<cuda::TunedProduct> parse_tuned(const std::string& path, const std::string& text,
                                            const TunedFor& here);

/// Rank 0 reads the file and sends it to all ranks, so that every rank uses the same algorithms.
/// Called once the devices are chosen. Throws InputError for a table that cannot be used.
/// Collective.
void use_tuned_file(const std::string& path, dist::World& world);

}  // namespace tessera::train
