#include "data/images/image_input.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr data::ImageShape tiny{6, 6, 1};

// A set of `count` images. Image i has the label i, and all its pixels have the value i % 256. Each
// read first calls `on_read`, which may count, wait or throw.
class TestImages : public data::ImageSet {
 public:
  explicit TestImages(int64_t count, std::function<void(int64_t)> on_read = [](int64_t) {})
      : count_(count), on_read_(std::move(on_read)) {}
  int64_t size() const override { return count_; }
  int32_t label(int64_t index) const override { return static_cast<int32_t>(index); }
  std::string name(int64_t index) const override { return std::to_string(index); }
  data::ImageView read(int64_t index, data::ImageMemory& memory) const override {
    on_read_(index);
    memory.pixels.assign(static_cast<size_t>(tiny.elements()), static_cast<uint8_t>(index % 256));
    return {tiny, memory.pixels.data()};
  }

 private:
  int64_t count_;
  std::function<void(int64_t)> on_read_;
};

const data::ImageTransformOptions transform{.shape = tiny, .norm = {{0.5f}, {0.25f}}, .seed = 11};

using Batches = std::shared_ptr<const data::ImageBatches>;

Batches in_order(int64_t count, int64_t size, std::function<void(int64_t)> on_read) {
  return std::make_shared<data::EvaluationBatches>(
      std::make_shared<TestImages>(count, std::move(on_read)), transform,
      data::EvaluationBatches::Share{.size = size});
}

template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  const Tensor host = tensor.to_host();
  const auto values = host.values<T>();
  return {values.begin(), values.end()};
}

// The pixels and labels of a micro-batch.
using Content = std::pair<std::vector<float>, std::vector<int32_t>>;
Content content_of(const Tensor& images, const Tensor& labels) {
  return {values_of<float>(images), values_of<int32_t>(labels)};
}

// Returns all micro-batches of `steps` steps, indexed by step and by MicroBatch::index. `ranks`
// ranks read the micro-batches, one rank after the other.
std::vector<std::vector<Content>> read_by(int64_t ranks, const Batch& batch, int64_t steps) {
  std::vector<std::vector<Content>> result(
      static_cast<size_t>(steps), std::vector<Content>(static_cast<size_t>(batch.micro_batches())));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto batches = std::make_shared<data::TrainingBatches>(
        std::make_shared<TestImages>(50), transform,
        data::TrainingBatches::Schedule{
            .batch = batch, .steps = steps, .ranks = ranks, .rank = rank});
    data::ImageInput input(batches, {.workers = 1 + static_cast<int>(rank)});
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t j = 0; j < batch.micro_steps(ranks); ++j) {
        const int64_t m = std::min(j * ranks + rank, batch.micro_batches() - 1);
        const MicroBatch micro{.step = step,
                               .index = m,
                               .micro_step = j,
                               .first_sample = m * batch.micro,
                               .samples = batch.micro};
        input.load(batches->number_of(micro));
        Content content = content_of(input.images(), input.labels());
        const data::ImageBatch again = batches->read(micro);
        REQUIRE(content == content_of(again.images, again.labels));
        result[static_cast<size_t>(step)][static_cast<size_t>(m)] = std::move(content);
      }
    }
  }
  return result;
}

}  // namespace

TEST_CASE("a micro-batch does not depend on the number of ranks", "[threads]") {
  const Batch batch{.global = 20, .micro = 4};
  const auto expected = read_by(1, batch, 5);  // 2 steps an epoch
  for (const int64_t ranks : {2, 3, 4, 7}) REQUIRE(read_by(ranks, batch, 5) == expected);
  REQUIRE(expected[0] != expected[2]);
}

TEST_CASE("an epoch has every image at most once, in an order of its own") {
  const data::TrainingBatches batches(std::make_shared<TestImages>(50), transform,
                                      {.batch = {.global = 12, .micro = 6}, .steps = 8});
  REQUIRE(batches.steps_per_epoch() == 4);
  std::vector<std::vector<int64_t>> epochs(2);
  for (int64_t step = 0; step < 8; ++step) {
    REQUIRE(batches.epoch(step) == step / 4);
    for (int64_t i = 0; i < 12; ++i) {
      epochs[static_cast<size_t>(step / 4)].push_back(batches.index_of(step, i));
    }
  }
  for (const auto& epoch : epochs) {
    const std::set<int64_t> different(epoch.begin(), epoch.end());
    REQUIRE(different.size() == 48);
    REQUIRE(*different.begin() >= 0);
    REQUIRE(*different.rbegin() < 50);
  }
  REQUIRE(epochs[0] != epochs[1]);
  REQUIRE_THAT(test::message_of<InputError>([] {
                 data::TrainingBatches(std::make_shared<TestImages>(11), transform,
                                       {.batch = {.global = 12, .micro = 6}});
               }),
               ContainsSubstring("11 images to train on do not fill a global batch of 12"));
}

TEST_CASE("an image is augmented by its index in the set and by the epoch") {
  const auto set = std::make_shared<TestImages>(20);
  const data::TrainingBatches batches(set, transform, {.batch = {.global = 20, .micro = 20}});
  data::ImageMemory memory;
  for (const int64_t epoch : {0, 1}) {  // an epoch has one step
    const data::ImageBatch read = batches.read({.step = epoch, .samples = 20});
    const std::vector<float> pixels = values_of<float>(read.images);
    std::vector<float> expected(pixels.size());
    for (int64_t row = 0; row < 20; ++row) {
      const int64_t index = batches.index_of(epoch, row);
      data::ImageTransform(transform).train(set->read(index, memory), epoch, index, memory,
                                            expected.data() + row * tiny.elements());
    }
    REQUIRE(pixels == expected);
  }
}

TEST_CASE("a resumed run reads the same batches as an uninterrupted run") {
  const Batch batch{.global = 10, .micro = 5};
  const auto set = std::make_shared<TestImages>(50);
  const data::TrainingBatches whole(set, transform, {.batch = batch, .steps = 9});
  const data::TrainingBatches rest(set, transform, {.batch = batch, .steps = 9, .first_step = 7});
  REQUIRE(rest.count() == 4);
  const MicroBatch micro{.step = 8, .index = 1, .micro_step = 1, .first_sample = 5, .samples = 5};
  REQUIRE(rest.number_of(micro) == 3);
  REQUIRE(whole.number_of(micro) == 17);
  const data::ImageBatch a = whole.allocate(5, false), b = rest.allocate(5, false);
  data::ImageMemory memory;
  for (int64_t row = 0; row < 5; ++row) {
    whole.prepare(17, row, memory, a);
    rest.prepare(3, row, memory, b);
  }
  REQUIRE(content_of(a.images, a.labels) == content_of(b.images, b.labels));
  REQUIRE_THAT(test::message_of<Error>([&] {
                 rest.number_of({.step = 8, .index = 0, .micro_step = 1});
               }),
               ContainsSubstring("micro-batch 0 in micro-step 1 of rank 0 of 1, expected 1"));
  REQUIRE(test::message_of<Error>(
              [&] { rest.number_of({.step = 8, .index = 1, .micro_step = 1, .samples = 2}); }) ==
          "images: a micro-batch has 2 samples, but the micro-batches of TrainingBatches have 5");
  REQUIRE(
      test::message_of<Error>([&] { rest.read({.step = 8, .first_sample = 8, .samples = 5}); }) ==
      "images: sample 10 of a step is asked for, but the global batch of TrainingBatches has "
      "10 samples");
}

TEST_CASE("an evaluation reads everything once, shared by any number of ranks", "[threads]") {
  for (const int64_t ranks : {1, 2, 3, 5}) {
    std::vector<std::vector<int32_t>> labels(4);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto batches = std::make_shared<data::EvaluationBatches>(
          std::make_shared<TestImages>(22), transform,
          data::EvaluationBatches::Share{.size = 6, .ranks = ranks, .rank = rank});
      REQUIRE(batches->total() == 4);
      REQUIRE(batches->count() == (4 + ranks - 1) / ranks);
      data::ImageInput input(batches, {});
      for (int64_t batch = 0; batch < batches->count(); ++batch) {
        input.load(batch);
        const auto read = values_of<int32_t>(input.labels());
        const int64_t number = batches->number_of(batch);
        if (number >= 4) {
          REQUIRE(read == std::vector<int32_t>{18, 19, 20, 21});
        } else {
          labels[static_cast<size_t>(number)] = read;
          REQUIRE(input.images().shape() == Shape{static_cast<int64_t>(read.size()), 6, 6, 1});
        }
      }
    }
    std::vector<int32_t> all;
    for (const auto& batch : labels) all.insert(all.end(), batch.begin(), batch.end());
    REQUIRE(all.size() == 22);
    for (int32_t i = 0; i < 22; ++i) REQUIRE(all[static_cast<size_t>(i)] == i);
  }
}

TEST_CASE("a queue keeps the order, and reads no further ahead than it has slots", "[threads]") {
  std::atomic<int64_t> read{0};
  const auto batches = in_order(600, 20, [&](int64_t) { ++read; });
  data::ImageQueue queue(batches, {.workers = 3, .depth = 4});
  for (int64_t batch = 0; batch < 30; ++batch) {
    const data::ImageBatch taken = queue.take();
    const auto labels = taken.labels.values<int32_t>();
    for (int64_t i = 0; i < 20; ++i) {
      REQUIRE(labels[static_cast<size_t>(i)] == batch * 20 + i);
      const float value = static_cast<float>((batch * 20 + i) % 256);
      REQUIRE(taken.images.values<float>()[static_cast<size_t>(i * 36)] ==
              Catch::Approx((value / 255 - 0.5) / 0.25));
    }
    if (batch % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    REQUIRE(read <= (batch + 4) * 20);
    REQUIRE(queue.held() == 1);
    queue.release();
  }
  REQUIRE(read == 600);
  REQUIRE_THAT(test::message_of<Error>([&] { queue.take(); }), ContainsSubstring("batch 30 of 30"));
  REQUIRE_THAT(test::message_of<Error>([&] { queue.release(); }), ContainsSubstring("before"));
}

TEST_CASE("taking a batch while all slots are taken is an error") {
  data::ImageQueue queue(in_order(100, 10, [](int64_t) {}), {.depth = 2});
  queue.take();
  queue.take();
  REQUIRE_THAT(test::message_of<Error>([&] { queue.take(); }),
               ContainsSubstring("all 2 batches ahead are taken"));
}

TEST_CASE("the first bad image of a batch is an error when the batch is taken", "[threads]") {
  for (const int workers : {1, 4}) {
    const auto batches = in_order(200, 40, [](int64_t index) {
      if (index == 97) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (index == 97 || index == 110 || index == 119) fail_input("image {} is bad", index);
    });
    data::ImageQueue queue(batches, {.workers = workers});
    for (int batch = 0; batch < 2; ++batch) {
      REQUIRE(queue.take().labels.values<int32_t>()[0] == batch * 40);
      queue.release();
    }
    for (int again = 0; again < 2; ++again) {
      REQUIRE(test::message_of<InputError>([&] { queue.take(); }) == "image 97 is bad");
    }
  }
  data::ImageInput input(in_order(20, 10, [](int64_t) { fail_input("all are bad"); }), {});
  for (int again = 0; again < 2; ++again) {
    REQUIRE(test::message_of<InputError>([&] { input.load(0); }) == "all are bad");
  }
}

TEST_CASE("a queue may be destroyed at any time", "[threads]") {
  for (int64_t taken = 0; taken < 12; ++taken) {
    data::ImageQueue queue(in_order(1000, 10,
                                    [](int64_t index) {
                                      if (index % 5 == 0) std::this_thread::yield();
                                      if (index > 105) fail_input("bad");
                                    }),
                           {.workers = 3});
    for (int64_t i = 0; i < std::min<int64_t>(taken, 10); ++i) {
      queue.take();
      queue.release();
    }
  }
}

TEST_CASE("the time that a step waits for images is counted", "[threads]") {
  const auto batches = in_order(40, 10, [](int64_t index) {
    if (index == 25) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  data::ImageInput input(batches, {});
  for (int64_t batch = 0; batch < 4; ++batch) input.load(batch);
  REQUIRE(input.waited_ns() > 5'000'000);
  REQUIRE_THAT(test::message_of<Error>([&] { input.load(2); }),
               ContainsSubstring("batch 2 is asked for, the next one is 4"));
}

TEST_CASE("an input's memory is counted, and does not grow later", "[cpu]") {
  MemoryLedger& ledger = memory_ledger(Device{});
  const int64_t before = ledger.current(Category::activations);
  const int64_t bytes = data::ImageBatches::bytes(10, tiny, DType::f32);
  REQUIRE(bytes == 10 * (36 * 4 + 4));
  const auto batches = in_order(100, 10, [](int64_t) {});
  {
    data::ImageInput input(batches, {.depth = 4});
    REQUIRE(ledger.current(Category::activations) == before + 4 * bytes);
    ledger.reset_peaks();
    for (int64_t batch = 0; batch < 10; ++batch) input.load(batch);
    REQUIRE(ledger.peak_total() == ledger.current_total());
  }
  REQUIRE(ledger.current(Category::activations) == before);
  REQUIRE_THAT(test::message_of<Error>([&] { data::ImageInput(batches, {.depth = 2}); }),
               ContainsSubstring("2 batches ahead, expected at least 3"));
}
