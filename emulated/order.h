// In which order a launch's blocks and threads run. emulated/control.h says what a seed means.
#pragma once

#include <cstdint>
#include <vector>

namespace emulated {

class Order {
 public:
  Order() = default;  // ascending
  /// Of a launch that starts with this seed, the calling OS thread's nth since the seed was set.
  static Order of_next_launch();

  bool shuffled() const { return seed_ > 1; }

  /// The block, out of `blocks`, that runs as number i. `prepare_blocks` comes first.
  void prepare_blocks(uint64_t blocks);
  uint64_t block(uint64_t i) const { return (first_ + i % blocks_ * stride_) % blocks_; }

  /// Fills `order` with 0 ... size - 1 as the seed wants it. A shuffled one changes with each call.
  void arrange(std::vector<uint16_t>& order);

  /// Whether threads that may go on do so before threads that have not begun.
  bool waiting_first() { return !shuffled() || (next() & 1) != 0; }

  /// The lane that goes on as number i after a warp has met; a permutation by first and odd step.
  struct Lanes {
    unsigned first;
    unsigned step;
    unsigned operator[](unsigned i) const { return (first + i * step) % 32; }
  };
  Lanes lanes();

 private:
  Order(uint64_t seed, uint64_t state) : seed_(seed), state_(state) {}
  uint64_t next();

  uint64_t seed_ = 0;
  uint64_t state_ = 0;
  uint64_t blocks_ = 1;
  uint64_t first_ = 0;
  uint64_t stride_ = 1;
};

}  // namespace emulated
