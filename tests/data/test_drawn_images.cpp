#include "data/images/drawn_images.h"

#include "core/context.h"
#include "core/error.h"
#include "core/random.h"
#include "data/images/image_data.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;

namespace {

uint64_t hash_of(const data::ImageSet& set) {
  data::ImageMemory memory;
  uint64_t hash = 0;
  for (int64_t i = 0; i < set.size(); ++i) {
    const data::ImageView image = set.read(i, memory);
    const auto* text = reinterpret_cast<const char*>(image.pixels);
    hash = hash * 31 + stable_hash({text, static_cast<size_t>(image.shape.elements())});
  }
  return hash;
}

}  // namespace

TEST_CASE("drawn images are the same on every machine") {
  const auto set = data::draw_images("train", 200);
  REQUIRE(set->size() == 200);
  REQUIRE(hash_of(*set) == 0x2909183276c950b3);
  for (int64_t i = 0; i < 200; ++i) REQUIRE(set->label(i) == i % 10);
  REQUIRE(set->name(7) == "drawn image 7 of part train");
  // An image depends neither on the number of images nor on the number of threads. The parts
  // `train` and `validation` have different images.
  {
    const ThreadCountScope threads(3);
    REQUIRE(hash_of(data::ImageRange(data::draw_images("train", 300), 0, 200)) == hash_of(*set));
  }
  REQUIRE(hash_of(*data::draw_images("validation", 200)) != hash_of(*set));
}

TEST_CASE("a drawn set without images is refused") {
  const auto refusal = [](int64_t training, int64_t validation) {
    return test::message_of<InputError>([&] {
      data::open_image_data({.drawn_training = training, .drawn_validation = validation});
    });
  };
  CHECK(refusal(0, 20) == "number of drawn images of part train is 0, expected at least 1");
  CHECK(refusal(20, -1) == "number of drawn images of part validation is -1, expected at least 1");
}
