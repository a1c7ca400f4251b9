// Describes a rank's GPU and GPU libraries. The bits of the rank's results depend on both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::dist {

struct Machine {
  std::string gpu;              // "NVIDIA H200, compute capability 9.0"
  int64_t multiprocessors = 0;
  // Versions as the libraries report them; 0: not available.
  int64_t cublas_lt = 0;
  int64_t cudnn = 0;
  int64_t nccl = 0;

  bool operator==(const Machine&) const = default;
  std::string text() const;  // one line
  /// The inverse of text(). Throws if `text` is malformed.
  static Machine of_text(const std::string& text);
};

/// Describes GPU `device` and the libraries of the calling process.
Machine own_machine(int device);

/// Returns the first difference between a rank and rank 0: "rank 2 has 114 multiprocessors, rank 0
/// has 132 multiprocessors". Empty if all are equal.
std::string first_difference(const std::vector<Machine>& machines);

}  // namespace tessera::dist
