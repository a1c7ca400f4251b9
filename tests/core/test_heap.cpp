// Tests the heap from which blocks of CPU memory are allocated. Blocks must not overlap, free
// memory must be reused, and the memory that the heap holds must be bounded.
#include "core/heap.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include <unistd.h>

#include "core/memory.h"
#include "tests/support/catch.h"

using namespace tessera;

namespace {

constexpr int64_t mebibyte = int64_t{1} << 20;

struct Block {
  unsigned char* data;
  int64_t bytes;
  unsigned char mark;
};

class Blocks {
 public:
  explicit Blocks(int64_t unit) : heap(unit) {}
  ~Blocks() {
    while (!live.empty()) give(0);
  }

  Block& take(int64_t bytes) {
    const int64_t size = heap.block_bytes(bytes);
    auto* data = static_cast<unsigned char*>(heap.take(size));
    REQUIRE(data != nullptr);
    live.push_back({data, bytes, ++mark_});
    std::memset(data, mark_, static_cast<size_t>(bytes));
    return live.back();
  }
  /// Frees a block, after checking that its mark is intact.
  void give(size_t index) {
    const Block block = live[index];
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
    const auto is_foreign = [&](unsigned char byte) { return byte != block.mark; };
    CHECK(std::none_of(block.data, block.data + block.bytes, is_foreign));
    heap.give(block.data, heap.block_bytes(block.bytes));
  }

  Heap heap;
  std::vector<Block> live;

 private:
  unsigned char mark_ = 0;
};

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

TEST_CASE("blocks of a heap are aligned to its unit and do not overlap", "[heap][cpu]") {
  const int64_t unit = GENERATE(64, 4096);
  std::minstd_rand random(static_cast<unsigned>(unit));
  Blocks blocks(unit);
  for (int i = 0; i < 3000; ++i) {
    const bool fills = i / 500 % 2 == 0;
    if (!blocks.live.empty() && random() % 8 < (fills ? 3 : 5)) {
      blocks.give(random() % blocks.live.size());
    } else {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % (16u << random() % 12));
      const Block& block = blocks.take(bytes * unit / 64);
      CHECK(reinterpret_cast<uintptr_t>(block.data) % static_cast<uintptr_t>(unit) == 0);
    }
    if (unit == 4096) REQUIRE(blocks.heap.held_bytes() <= blocks.heap.most_held_bytes());
  }
}

TEST_CASE("free blocks are joined with free neighbours, in any order of freeing", "[heap][cpu]") {
  std::vector<size_t> order{0, 1, 2};
  do {
    Blocks blocks(4096);
    blocks.take(9 * mebibyte);  // maps the pages that the next three blocks share
    blocks.give(0);
    for (int i = 0; i < 3; ++i) blocks.take(3 * mebibyte);
    const int64_t held = blocks.heap.held_bytes();
    CHECK(blocks.heap.peak_held_bytes() == held);
    std::vector<Block> given = blocks.live;
    blocks.live.clear();
    for (const size_t i : order) {
      blocks.heap.give(given[i].data, blocks.heap.block_bytes(given[i].bytes));
    }
    blocks.take(9 * mebibyte);
    CHECK(blocks.heap.held_bytes() == held);
    blocks.take(4 * mebibyte);
    CHECK(blocks.heap.peak_held_bytes() == blocks.heap.held_bytes());
    CHECK(blocks.heap.held_bytes() > held);
  } while (std::next_permutation(order.begin(), order.end()));
}

// Allocates as training steps do: activations and workspace in turn. The workspace of a layer is
// freed before the next layer. Activations are freed in the order of their allocation, or in
// reverse order.
TEST_CASE("a step reuses the memory of the step before, without fresh pages", "[heap][cpu]") {
  Blocks blocks(4096);
  blocks.take(20 * mebibyte);
  int64_t held = 0;
  for (int step = 0; step < 4; ++step) {
    for (int64_t layer = 0; layer < 12; ++layer) {
      blocks.take((1 + layer % 5) * 300'000);
      blocks.take(700'000 + 500'000 * (layer % 3));
      blocks.take(40'000 * (1 + layer));
      blocks.give(blocks.live.size() - 2);
    }
    while (blocks.live.size() > 1) blocks.give(step % 2 ? 1 : blocks.live.size() - 1);
    if (step == 1) held = blocks.heap.held_bytes();
    if (step > 1) CHECK(blocks.heap.held_bytes() == held);
  }
}

// As in forward, each layer allocates activations, which stay, and workspace, which is freed. A gap
// between the activations of two layers would stay unused until backward.
TEST_CASE("growing leaves no gaps between blocks", "[heap][cpu]") {
  Blocks blocks(4096);
  const int64_t first = 64 * mebibyte;
  // grow() maps new pages below the newest pages, if the addresses there are free. A first block of
  // 64 MiB is too large for the gaps between other mappings. So the system maps the block below
  // these mappings, and the addresses below the block are free.
  blocks.take(first);
  const int64_t largest = 3 * mebibyte + 4096;
  for (int layer = 0; layer < 12; ++layer) {
    for (const int64_t bytes : {largest, mebibyte / 2, largest}) blocks.take(bytes);
    blocks.give(blocks.live.size() - 1);
  }
  const int64_t live = first + 12 * (largest + mebibyte / 2);
  CHECK(blocks.heap.held_bytes() <= live + largest + 2 * mebibyte);
}

TEST_CASE("a heap frees pages to hold at most a quarter more than the peak of its blocks",
          "[heap][cpu]") {
  Blocks blocks(4096);
  for (int i = 0; i < 32; ++i) blocks.take(2 * mebibyte);
  for (size_t i = 16; i-- > 0;) blocks.give(2 * i);
  // The holes between the remaining blocks are too small for blocks of 4 MiB.
  for (int i = 0; i < 8; ++i) {
    blocks.take(4 * mebibyte);
    CHECK(blocks.heap.held_bytes() <= blocks.heap.most_held_bytes());
  }
  CHECK(blocks.heap.most_held_bytes() <= (64 + 16 + 3) * mebibyte);
}

TEST_CASE("a heap without blocks returns all memory to the system", "[heap][cpu]") {
  Blocks blocks(4096);
  for (int i = 1; i < 20; ++i) blocks.take(i * 300'000);
  while (!blocks.live.empty()) blocks.give(blocks.live.size() / 2);
  blocks.heap.release();
  CHECK(blocks.heap.held_bytes() == 0);
  CHECK(blocks.heap.most_held_bytes() == 2 * mebibyte);
  blocks.take(5 * mebibyte);
  CHECK(blocks.heap.held_bytes() == 6 * mebibyte);
}

TEST_CASE("a block for which the system has no memory is refused, and the heap stays usable",
          "[heap][cpu]") {
  Blocks blocks(4096);
  const auto no_block = [&] { return blocks.heap.take(int64_t{1} << 60) == nullptr; };
  CHECK(no_block());
  for (int i = 0; i < 40; ++i) blocks.take(3 * mebibyte);
  for (size_t i = 0; i < 20; ++i) blocks.give(i);  // leaves free ranges, which grow() unmaps
  CHECK(no_block());
  CHECK(no_block());
  const int64_t live = 20 * blocks.heap.block_bytes(3 * mebibyte);
  CHECK(blocks.heap.held_bytes() >= live);
  for (int i = 0; i < 20; ++i) blocks.take(5 * mebibyte);
  CHECK(blocks.heap.held_bytes() >= live + 20 * 5 * mebibyte);
  CHECK(blocks.heap.held_bytes() <= blocks.heap.most_held_bytes());
}

// The address sanitizer holds more memory. So the test is tagged [slow], and sanitizer builds leave
// it out.
TEST_CASE("growing blocks leave little more memory resident than the largest block",
          "[slow][cpu]") {
  static_assert(noexcept(std::declval<Heap&>().give(nullptr, 0)));
  release_cached_memory();
  const int64_t before = resident_bytes();
  int64_t largest = 0;
  for (double bytes = 100'000; bytes < 100e6; bytes *= 1.13) {
    largest = static_cast<int64_t>(bytes);
    const auto block = allocate(largest, Category::activations);
    std::memset(block->data(), 1, static_cast<size_t>(largest));
    CHECK(resident_bytes() - before <= largest + largest / 4 + 6 * mebibyte);
  }
  // The heap keeps freed memory, because the next step needs it.
  CHECK(resident_bytes() - before >= largest);
  release_cached_memory();
  CHECK(resident_bytes() - before <= 2 * mebibyte);
}
