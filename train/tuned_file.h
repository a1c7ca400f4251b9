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

/// Returns the text of a table with `products`, which were measured on the device and with the
/// library version of `where`.
std::string tuned_text(const TunedFor& where, const std::vector<cuda::MeasuredProduct>& products);

/// Parses the text of a table and returns its products. Throws InputError, naming `path`, if the
/// text is not a table, or if the table is for another device or library version than `here`.
std::vector<cuda::TunedProduct> parse_tuned(const std::string& path, const std::string& text,
                                            const TunedFor& here);

/// Makes every rank use the algorithms of a table. Rank 0 reads the table from the file `path`, and
/// sends the table to all ranks, so that all use the same algorithms. Must be called after the
/// devices are chosen. Throws InputError for a table that cannot be used, and if the ranks compute
/// on the CPU. Collective.
void use_tuned_file(const std::string& path, dist::World& world);

/// Makes every rank use the algorithms of the table that rank 0 passes as `text`, and returns an
/// empty text. If a rank cannot use the table, changes nothing on any rank, and returns the reason.
/// The reason begins with `where`, and is the same text on every rank. Only rank 0's `text` is
/// used. Must be called after the devices are chosen, on CUDA. Collective.
std::string try_tuned_text(const std::string& where, const std::string& text, dist::World& world);
/// Calls try_tuned_text, and throws the reason as an InputError. Collective.
void use_tuned_text(const std::string& where, const std::string& text, dist::World& world);

/// Returns the text of the table whose algorithms this process uses. Empty if there is no table.
const std::string& tuned_table();

/// Returns size and digest of tuned_table(), for the log and for comparison with a checkpoint.
/// Returns "no file" if there is no table.
std::string tuned_digest();

}  // namespace tessera::train
