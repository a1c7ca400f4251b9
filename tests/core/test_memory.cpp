// Tests that the ledger counts exact bytes in program order, and how memory is allocated and
// reused.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/context.h"
#include "core/cuda.h"
#include "core/memory.h"
#include "core/ops/add.h"
#include "core/ops/copy.h"
#include "core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;

namespace {

constexpr Category categories[] = {
    Category::parameters,    Category::gradients, Category::optimizer_state, Category::activations,
    Category::communication, Category::workspace, Category::checkpoint};

/// The current and peak bytes of the CPU's ledger, less the bytes allocated before this object.
class LedgerSince {
 public:
  LedgerSince() {
    memory_ledger({}).reset_peaks();
    for (const Category category : categories) {
      before_.push_back(memory_ledger({}).current(category));
    }
    total_ = memory_ledger({}).current_total();
  }
  int64_t current(Category category) const {
    return memory_ledger({}).current(category) - before_[static_cast<size_t>(category)];
  }
  int64_t peak(Category category) const {
    return memory_ledger({}).peak(category) - before_[static_cast<size_t>(category)];
  }
  int64_t current_total() const { return memory_ledger({}).current_total() - total_; }
  int64_t peak_total() const { return memory_ledger({}).peak_total() - total_; }

 private:
  std::vector<int64_t> before_;
  int64_t total_ = 0;
};

}  // namespace

TEST_CASE("categories have names") {
  CHECK(std::size(categories) == category_count);
  CHECK(category_name(Category::parameters) == "parameters");
  CHECK(category_name(Category::gradients) == "gradients");
  CHECK(category_name(Category::optimizer_state) == "optimizer_state");
  CHECK(category_name(Category::activations) == "activations");
  CHECK(category_name(Category::communication) == "communication");
  CHECK(category_name(Category::workspace) == "workspace");
  CHECK(category_name(Category::checkpoint) == "checkpoint");
}

TEST_CASE("the ledger counts requested bytes by category, in program order") {
  const LedgerSince ledger;
  auto a = allocate(100, Category::parameters);  // total 100
  auto b = allocate(7, Category::activations);   // 107
  CHECK(ledger.current(Category::parameters) == 100);
  CHECK(ledger.current(Category::activations) == 7);
  b.reset();                                     // 100
  auto c = allocate(50, Category::activations);  // 150
  a.reset();                                     // 50
  auto d = allocate(60, Category::activations);  // 110
  CHECK(ledger.current(Category::parameters) == 0);
  CHECK(ledger.peak(Category::parameters) == 100);
  CHECK(ledger.current(Category::activations) == 110);
  CHECK(ledger.peak(Category::activations) == 110);
  CHECK(ledger.current_total() == 110);
  // The total's peak is less than the sum of the categories' peaks, because the categories have
  // their peaks at different times.
  CHECK(ledger.peak_total() == 150);

  memory_ledger({}).reset_peaks();
  CHECK(ledger.peak(Category::parameters) == 0);
  CHECK(ledger.peak_total() == 110);
  c.reset();
  d.reset();
  CHECK(ledger.current_total() == 0);
  CHECK(ledger.peak(Category::activations) == 110);
  CHECK(ledger.current(Category::gradients) == 0);
  CHECK(ledger.peak(Category::workspace) == 0);
}

TEST_CASE("every category is counted on its own") {
  for (const Category category : categories) {
    const LedgerSince ledger;
    const auto block = allocate(33, category);
    CHECK(block->category() == category);
    CHECK(block->bytes() == 33);
    for (const Category other : categories) {
      CHECK(ledger.current(other) == (other == category ? 33 : 0));
    }
  }
}

TEST_CASE("memory with several views is counted once, and freed with the last view") {
  const LedgerSince ledger;
  Tensor view;
  {
    const Tensor x = Tensor::zeros({10, 10}, DType::f32, {}, Category::gradients);
    view = x.rows(3, 4);
    CHECK(ledger.current(Category::gradients) == 400);
  }
  CHECK(ledger.current(Category::gradients) == 400);
  view = {};
  CHECK(ledger.current(Category::gradients) == 0);
}

TEST_CASE("blocks are aligned to 64 bytes and do not overlap") {
  std::vector<std::shared_ptr<Storage>> blocks;
  for (const int64_t bytes : {1, 2, 63, 64, 65, 100, 1000, 1025, 4095, 70000, 1 << 20, 2097151,
                              2097152, 2097153, 5 << 20}) {
    for (int copy = 0; copy < 2; ++copy) {
      blocks.push_back(allocate(bytes, Category::workspace));
      CHECK(reinterpret_cast<uintptr_t>(blocks.back()->data()) % 64 == 0);
      const auto mark = static_cast<int>(blocks.size());
      std::memset(blocks.back()->data(), mark, static_cast<size_t>(bytes));
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(blocks[i]->data());
    CHECK(bytes[0] == i + 1);
    CHECK(bytes[blocks[i]->bytes() - 1] == i + 1);
  }
}

TEST_CASE("freed memory is reused") {
  release_cached_memory();
  for (const int64_t bytes : {64, 3000, 40000}) {
    auto first = allocate(bytes, Category::activations);
    const auto* const address = static_cast<const char*>(first->data());
    CHECK(allocate(bytes, Category::activations)->data() != address);
    first.reset();
    // The freed block also serves another category, and a slightly smaller request.
    const auto again = allocate(bytes - bytes / 20, Category::workspace);
    const auto* const reused = static_cast<const char*>(again->data());
    CHECK(reused >= address);
    CHECK(reused + again->bytes() <= address + bytes);
    CHECK(again->bytes() == bytes - bytes / 20);
    CHECK(allocate(bytes, Category::activations)->data() != address);
  }
}

TEST_CASE("a small request takes the smallest free memory that has room") {
  release_cached_memory();
  auto large = allocate(1 << 20, Category::activations);
  const auto between = allocate(1 << 15, Category::activations);
  auto small = allocate(1 << 18, Category::activations);
  const auto behind = allocate(1 << 15, Category::activations);
  const void* addresses[] = {large->data(), small->data()};
  large.reset();
  small.reset();
  CHECK(allocate(1 << 18, Category::activations)->data() == addresses[1]);
  CHECK(allocate(1 << 20, Category::activations)->data() == addresses[0]);
}

TEST_CASE("the ledger does not count memory that the cache keeps") {
  const LedgerSince ledger;
  allocate(12345, Category::workspace);
  CHECK(ledger.current_total() == 0);
  CHECK(ledger.peak(Category::workspace) == 12345);
  release_cached_memory();
  CHECK(ledger.current_total() == 0);
  const auto block = allocate(12345, Category::workspace);
  std::memset(block->data(), 1, 12345);
  CHECK(ledger.current(Category::workspace) == 12345);
}

TEST_CASE("allocating zero bytes takes no memory, and is no error") {
  const LedgerSince ledger;
  const auto nothing = allocate(0, Category::workspace);
  CHECK(nothing->bytes() == 0);
  CHECK(nothing->data() == nullptr);
  CHECK(ledger.peak_total() == 0);
  CHECK_THROWS_WITH(allocate(-1, Category::workspace), ContainsSubstring("-1 bytes"));
}

TEST_CASE("an impossible allocation is an error with bytes and category, and is not counted") {
  const LedgerSince ledger;
  const int64_t bytes = int64_t{1} << 60;
  CHECK_THROWS_WITH(allocate(bytes, Category::gradients),
                    ContainsSubstring("no memory for 1152921504606846976 bytes of gradients"));
  CHECK_THROWS_AS(allocate(INT64_MAX, Category::gradients), Error);
  CHECK(ledger.current_total() == 0);
  CHECK(ledger.peak_total() == 0);
  CHECK(allocate(8, Category::gradients)->data() != nullptr);
}

TEST_CASE("threads share the allocator", "[threads]") {
  const LedgerSince ledger;
  constexpr int threads = 4;
  std::atomic<int> faults{0};
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([t, &faults] {
      // Blocks stay allocated while other threads allocate. Each thread marks its blocks. If two
      // threads got the same block, a thread would find another thread's mark.
      std::vector<std::shared_ptr<Storage>> held(8);
      for (int i = 0; i < 400; ++i) {
        auto& slot = held[static_cast<size_t>(i % 8)];
        if (slot) {
          const auto* bytes = static_cast<const unsigned char*>(slot->data());
          for (int64_t b = 0; b < slot->bytes(); b += 61) faults += bytes[b] != t + 1;
        }
        slot = allocate(64 + 64 * ((i * 7 + t) % 40), categories[i % category_count]);
        std::memset(slot->data(), t + 1, static_cast<size_t>(slot->bytes()));
      }
    });
  }
  for (auto& thread : team) thread.join();
  CHECK(faults == 0);
  CHECK(ledger.current_total() == 0);
  for (const Category category : categories) CHECK(ledger.current(category) == 0);
  CHECK(ledger.peak_total() > 0);
  CHECK(ledger.peak_total() <= threads * 9 * 64 * 41);
}

TEST_CASE("the second device has a ledger and a cache of its own") {
  const Device second{DeviceType::cpu, 1};
  CHECK(second.is_cpu());
  CHECK(second.to_string() == "cpu:1");
  CHECK(Device{}.to_string() == "cpu");
  CHECK(second != Device{});

  const LedgerSince host;
  MemoryLedger& ledger = memory_ledger(second);
  const int64_t before = ledger.current(Category::gradients);
  auto x = Tensor::empty({100}, DType::bf16, second, Category::gradients);
  CHECK(x.device() == second);
  CHECK(x.flat(10, 20).device() == second);
  CHECK(x.view({10, 10}).rows(2, 3).device() == second);
  CHECK(Tensor::zeros({3}, DType::i32, second).device() == second);
  CHECK(ledger.current(Category::gradients) - before == 200);
  CHECK(host.peak_total() == 0);

  // Only the second device may reuse its freed block. The host must get another block.
  const void* address = x.raw();
  x = {};
  CHECK(ledger.current(Category::gradients) == before);
  CHECK(Tensor::empty({100}, DType::bf16).raw() != address);
  CHECK(Tensor::empty({100}, DType::bf16, second).raw() == address);
  release_cached_memory();
}

TEST_CASE("kernels run on the second device, and copy between the two") {
  const Device second{DeviceType::cpu, 1};
  const Tensor x = Tensor::from<float>({4}, {1, 2, 3, 4});
  const Tensor y = Tensor::empty({4}, DType::f32, second);
  kernels::copy(current_context(second), y, x);
  kernels::add(current_context(second), y, y, y);
  const Tensor z = Tensor::empty({4});
  kernels::copy(current_context({}), z, y);
  CHECK(z.data<float>()[3] == 8);

  const MemoryLedger& ledger = memory_ledger(second);
  const int64_t before = ledger.current(Category::workspace);
  const Tensor scratch = current_context(second).workspace({6});
  CHECK(scratch.device() == second);
  CHECK(ledger.current(Category::workspace) - before == 24);
}

TEST_CASE("a missing device is refused by name") {
  const Device third{DeviceType::cpu, 2};
  const Device gpu{DeviceType::cuda, cuda::device_count()};
  CHECK_THROWS_WITH(allocate(1, Category::workspace, third), ContainsSubstring("device cpu:2"));
  CHECK_THROWS_WITH(memory_ledger(gpu),
                    ContainsSubstring("there is no device " + gpu.to_string() + ": ") &&
                        !EndsWith(": "));
  CHECK_THROWS_AS(Tensor::empty({0}, DType::f32, gpu), Error);
}

TEST_CASE("a block may be freed by another thread", "[threads]") {
  const LedgerSince ledger;
  auto block = allocate(256, Category::communication);
  std::thread([block = std::move(block)]() mutable { block.reset(); }).join();
  CHECK(ledger.current(Category::communication) == 0);
}

TEST_CASE("pinned memory is counted for the host, and a GPU can copy from and to it") {
  if (test::on_cpu()) {
    CHECK_THROWS_AS(allocate_pinned(1, Category::communication), Error);
    return;
  }
  const MemoryLedger& host = memory_ledger(Device{});
  const int64_t before = host.current(Category::communication);
  {
    const auto there = allocate_pinned(4 * sizeof(float), Category::communication);
    const auto back = allocate_pinned(4 * sizeof(float), Category::communication);
    CHECK(there->device() == Device{});
    CHECK(host.current(Category::communication) == before + 32);
    const Tensor x = Tensor::empty({4});
    const int index = x.device().index;
    const std::vector<float> values{1, 2, 3, 4};
    std::memcpy(there->data(), values.data(), 16);
    // Values are copied to the device on the copy stream, doubled on the compute stream, and copied
    // back on the copy stream.
    const auto copy = [index](void* to, const void* from) {
      const cuda::Event launched(index);
      const cuda::StreamScope here(index, cuda::copy_stream(index));
      launched.wait();
      cuda::copy(index, to, from, 16);
      return cuda::Event(index);
    };
    copy(x.raw(), there->data()).wait();
    kernels::add(current_context(x.device()), x, x, x);
    copy(back->data(), x.raw()).synchronize();
    CHECK(static_cast<const float*>(back->data())[0] == 2);
    CHECK(static_cast<const float*>(back->data())[3] == 8);
  }
  CHECK(host.current(Category::communication) == before);
  CHECK(allocate_pinned(0, Category::communication)->data() == nullptr);
}
