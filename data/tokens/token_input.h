// Provides the tokens of a micro-batch to training. Each micro-batch is loaded into the same
// buffer, over the previous one, because a CUDA graph needs a fixed address (core/cuda.h). On a
// GPU, the copy of the tokens runs while the host continues.
//
//   TokenInput input(data, {.sequences = 12, .context = 64});
//   input.load(micro);
//   model.loss(input.tokens(), input.targets());
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/cuda.h"
#include "data/tokens/token_data.h"

namespace tessera::data {

class TokenInput {
 public:
  struct Sizes {
    int64_t sequences = 0;  // sequences in every micro-batch
    int64_t context = 0;
  };
  /// Allocates a batch on the default device and, if that is a GPU, two batches in pinned host
  /// memory. `data` must outlive this object.
  TokenInput(const TokenData& data, const Sizes& sizes);
  /// Returns the bytes of the host buffers that a TokenInput holds if `device` is a GPU; 0 for the
  /// CPU.
  static int64_t host_bytes(const Sizes& sizes, Device device);

  /// Loads a micro-batch's sequences. Throws if the micro-batch does not have Sizes::sequences
  /// samples. On a GPU this launches a copy, which the stream runs after the kernels that read the
  /// previous sequences.
  void load(const MicroBatch& micro);

  const Tensor& tokens() const { return input_.tokens; }    // i32 (B, T)
  const Tensor& targets() const { return input_.targets; }  // i32 (B, T)

 private:
  /// One of two pinned host buffers: the GPU copies from one while the host fills the other.
  struct Slot {
    Tensor both;  // i32 (2 B, T): tokens, then targets
    std::optional<cuda::Event> copied;
  };

  const TokenData& data_;
  Tensor both_;  // i32 (2 B, T)
  Sequences input_;
  std::vector<Slot> slots_;  // empty on the CPU
  size_t next_ = 0;
};

}  // namespace tessera::data
