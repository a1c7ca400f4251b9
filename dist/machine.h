// What the bits of a rank's results depend on beside the program: its GPU and the libraries there.
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
  /// What text() has written. Throws for anything else.
  static Machine of_text(const std::string& text);
};

/// What the calling process has with the GPU `device`.
Machine own_machine(int device);

/// The first thing in which a rank differs from rank 0: "rank 2 has 114 multiprocessors, rank 0 has
/// 132 multiprocessors". Empty where all are equal.
std::string first_difference(const std::vector<Machine>& machines);

}  // namespace tessera::dist
