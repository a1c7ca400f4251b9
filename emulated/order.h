// The order in which a launch's blocks and threads run. emulated/control.h says what a seed means.
#pragma once

#include <cstdint>
#include <vector>

namespace emulated {

/// A bijection of 64-bit numbers that spreads each bit over all bits (Steele and others, SplitMix).
uint64_t mixed(uint64_t x);
/// Advances `state`, and returns the next number of the SplitMix generator.
uint64_t next_random(uint64_t& state);

class Order {
 public:
  Order() = default;  // ascending
  /// Returns the order of the calling OS thread's next launch. The order depends only on the seed
  /// and on the number of this thread's launches since the seed was set.
  static Order of_next_launch();

  bool shuffled() const { return seed_ > 1; }

  /// Chooses the order of the blocks. Then block(i) is the index of the block that runs i-th, for
  /// i from 0 to blocks - 1.
  void prepare_blocks(uint64_t blocks);
  uint64_t block(uint64_t i) const { return (first_ + i % blocks_ * stride_) % blocks_; }

  /// Fills `order` with the numbers 0 to order.size() - 1. The seed decides whether they are
  /// ascending, descending or shuffled. Each call shuffles anew.
  void arrange(std::vector<uint16_t>& order);

  /// True if threads that can continue after a wait run before threads that have not begun. A
  /// shuffled order decides at random for each block; the other orders return true.
  bool waiting_first() { return !shuffled() || (next() & 1) != 0; }

  /// The order in which lanes continue after a warp operation: first lanes[0], then lanes[1] and so
  /// on. The order is a permutation, because the step is odd.
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
