// Where training finds the tokens of a micro-batch: in the same memory every time, which a graph
// needs (core/cuda.h), and which is filled while the host goes on.
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
    int64_t sequences = 0;  // of every micro-batch
    int64_t context = 0;
  };
  /// On the default device; `data` must outlive it.
  TokenInput(const TokenData& data, const Sizes& sizes);
  /// What it holds on the host, besides the input itself on the GPU; nothing for the CPU.
  static int64_t host_bytes(const Sizes& sizes, Device device);

  /// Launches the copy of a micro-batch's sequences, behind what reads those before.
  void load(const MicroBatch& micro);

  const Tensor& tokens() const { return input_.tokens; }    // i32 (B, T)
  const Tensor& targets() const { return input_.targets; }  // i32 (B, T)

 private:
  /// Of a GPU's input on the host, pinned: the device copies one while the host fills the other.
  struct Slot {
    Tensor both;  // i32 (2 B, T): tokens, then targets
    std::optional<cuda::Event> copied;
  };

  const TokenData& data_;
  Tensor both_;  // i32 (2 B, T)
  Sequences input_;
  std::vector<Slot> slots_;  // none on the CPU
  size_t next_ = 0;
};

}  // namespace tessera::data
