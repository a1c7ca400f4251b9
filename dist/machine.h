// A rank's GPU and the libraries there, on which the bits of its results depend beside the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::dist {

struct Machine {
  std::string gpu;              // "NVIDIA H200, compute capability 9.0"
  int64_t multiprocessors = 0;
  // Versions as the libraries have them; 0: not there.
  int64_t cublas_lt = 0;
  int64_t cudnn = 0;
  int64_t nccl = 0;

  bool operator==(const Machine&) const = default;
  std::string text() const;  // one line
  /// The inverse of text(). Throws for what text() has not written.
  static Machine of_text(const std::string& text);
};

/// The calling process's, with the GPU `device`.
Machine own_machine(int device);

/// The first thing in which a rank differs from rank 0: "rank 2 has 114 multiprocessors, rank 0 has
/// 132 multiprocessors". Empty where all are equal.
std::string first_difference(const std::vector<Machine>& machines);

}  // namespace tessera::dist
