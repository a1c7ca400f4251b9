// The table that `tune` writes and training reads: cuBLASLt's fastest algorithm for each matrix
// product, for one kind of GPU and one version of the library (docs/formats.md).
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

/// Returns the text of the table.
std::string tuned_text(const TunedFor& where, const std::vector<cuda::MeasuredProduct>& products);

/// Parses the text of a table and returns its products. Throws InputError, naming `path`, if the
/// text is not a table, or if the table is for another device or library version than `here`.
std::vector<cuda::TunedProduct> parse_tuned(const std::string& path, const std::string& text,
                                            const TunedFor& here);

/// Makes every rank use the algorithms of a table. Rank 0 reads the file and sends it to all ranks,
/// so that all use the same algorithms. Must be called after the devices are chosen. Throws
/// InputError for a table that cannot be used, and if the ranks compute on the CPU. Collective.
void use_tuned_file(const std::string& path, dist::World& world);

/// Does the same as use_tuned_file with a table that rank 0 has as text. Errors begin with `where`.
/// Collective.
void use_tuned_text(const std::string& where, const std::string& text, dist::World& world);

/// Returns the text of the table whose algorithms this process uses. Empty if there is no table.
const std::string& tuned_table();

/// Returns the table's size and digest, for comparisons and for the log, or "no file" without a
/// table.
std::string tuned_digest();

}  // namespace tessera::train
