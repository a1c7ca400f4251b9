#include "train/checkpoint/compare_checkpoints.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

using train::CheckpointDifference;
using train::CheckpointReader;

// Returns 600 elements, so that the last block of 256 is short.
std::vector<float> ramp() {
  std::vector<float> values(600);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i);
  return values;
}

std::vector<Stated> example(const std::vector<float>& weights) {
  return {stated("w", "value", {30, 20}, weights), stated("w", "exp_avg", {30, 20}, ramp()),
          stated("b", "value", {3}, {1, 2, 3}), stated_count("w", 7)};
}

struct Pair {
  TemporaryFolder folder;

  CheckpointDifference compare(const std::vector<Stated>& a, const std::vector<Stated>& b,
                               const train::Manifest& of_a = {.step = 1},
                               const train::Manifest& of_b = {.step = 1}, int64_t piece = 256) {
    const CheckpointReader first(write_checkpoint(folder.path("a"), a, of_a));
    const CheckpointReader second(write_checkpoint(folder.path("b"), b, of_b, piece));
    const CheckpointDifference difference = train::compare_checkpoints(first, second);
    // Comparing by digests must give the same result as comparing all elements.
    const CheckpointDifference shorter = train::compare_checkpoints(first, second, true);
    CHECK(shorter.same == difference.same);
    CHECK(shorter.tensors.size() == difference.tensors.size());
    return difference;
  }
};

TEST_CASE("checkpoints with equal values are equal, however they are split") {
  Pair pair;
  const int64_t piece = GENERATE(256, 512, 1024);
  const CheckpointDifference difference =
      pair.compare(example(ramp()), example(ramp()), {.step = 1}, {.step = 1}, piece);
  CHECK(difference.equal());
  CHECK(difference.same == 4);
  CHECK(difference.settings.empty());
}

TEST_CASE("a difference has the tensor, the number of different elements and the first one") {
  Pair pair;
  std::vector<float> other = ramp();
  other[257] = -1;
  other[599] = 0;
  const CheckpointDifference difference = pair.compare(example(ramp()), example(other));
  CHECK_FALSE(difference.equal());
  CHECK(difference.same == 3);
  REQUIRE(difference.tensors.size() == 1);
  const train::TensorDifference& tensor = difference.tensors[0];
  CHECK(tensor.path == "w/value");
  CHECK(tensor.shape == Shape{30, 20});
  CHECK(tensor.different == 2);
  CHECK(tensor.first == 257);
  CHECK(tensor.a == "64.25");
  CHECK(tensor.b == "-1");
}

TEST_CASE("bits are compared: 0 and -0 differ, and equal NaNs are equal") {
  const auto compare = [](float a, float b) {
    Pair pair;
    return pair.compare({stated("w", "value", {1}, {a})}, {stated("w", "value", {1}, {b})});
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(compare(nan, nan).equal());
  const CheckpointDifference zeros = compare(0.0f, -0.0f);
  REQUIRE(zeros.tensors.size() == 1);
  CHECK(zeros.tensors[0].b == "-0");
  const CheckpointDifference nans = compare(nan, std::bit_cast<float>(0x7fc00001));
  REQUIRE(nans.tensors.size() == 1);
  CHECK(nans.tensors[0].a == "nan (0x7fc00000)");
  CHECK(nans.tensors[0].b == "nan (0x7fc00001)");
  const CheckpointDifference signs = compare(nan, -nan);
  REQUIRE(signs.tensors.size() == 1);
  CHECK(signs.tensors[0].a == "nan (0x7fc00000)");
  CHECK(signs.tensors[0].b == "nan (0xffc00000)");
}

TEST_CASE("tensors that only one has, or that differ in shape or dtype, are named") {
  Pair pair;
  const CheckpointDifference difference =
      pair.compare({stated("w", "value", {2, 2}, {1, 2, 3, 4}), stated("x", "value", {1}, {0}),
                    stated_count("n", 3)},
                   {stated("w", "value", {4}, {1, 2, 3, 4}), stated("y", "value", {1}, {0}),
                    stated("n", "updates", {}, {3})});
  CHECK_FALSE(difference.equal());
  CHECK(difference.same == 0);
  CHECK(difference.only_a == std::vector<std::string>{"x/value"});
  CHECK(difference.only_b == std::vector<std::string>{"y/value"});
  REQUIRE(difference.forms.size() == 2);
  CHECK(difference.forms[0].path == "w/value");
  CHECK(difference.forms[0].a == "f32 [2, 2]");
  CHECK(difference.forms[0].b == "f32 [4]");
  CHECK(difference.forms[1].a == "i64 []");
}

TEST_CASE("different settings are listed, and checkpoints still count as equal") {
  Pair pair;
  const CheckpointDifference difference = pair.compare(
      example(ramp()), example(ramp()),
      {.step = 1, .layout = {.ranks = 3}, .run = {{"lr", "1"}, {"seed", "1"}}},
      {.step = 2, .run = {{"lr", "2"}, {"seed", "1"}}, .bits = {{"threads", "nothing"}}});
  CHECK(difference.equal());
  std::vector<std::string> texts;
  for (const auto& [name, a, b] : difference.settings) texts.push_back(name + " " + a + " " + b);
  CHECK(texts ==
        std::vector<std::string>{"run.lr 1 2", "step 1 2", "bits.threads nothing nothing"});
}

TEST_CASE("values changed after they were written differ, unless only digests are compared") {
  const TemporaryFolder folder;
  const CheckpointReader a(write_checkpoint(folder.path("a"), example(ramp()), {.step = 1}));
  const std::string path = write_checkpoint(folder.path("b"), example(ramp()), {.step = 1});
  {
    // Changes the last four bytes of the second file.
    std::fstream file(path + "/" + train::shard_name(1, 2),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("\1\2\3\4", 4);
  }
  const CheckpointReader b(path);
  CHECK_FALSE(train::compare_checkpoints(a, b).equal());
  CHECK(train::compare_checkpoints(a, b, true).equal());  // digests alone miss the damage
  CHECK_THROWS(b.verify());
}

}  // namespace
}  // namespace tessera::test
