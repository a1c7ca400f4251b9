#include "train/checkpoint/manifest.h"

#include <functional>
#include <limits>

#include "core/digest.h"
#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

using train::Manifest;

// Returns a manifest with two tensors. The first tensor is in two files.
Manifest example() {
  Manifest manifest{
      .version = "1.2.3",
      .step = 40,
      .skipped = 3,
      .digest = {},
      .layout = {.ranks = 2, .stage = 3, .bucket_bytes = 4096},
      .run = {{"lr", "0.001"}, {"model.layers", "2"}},
      .bits = {{"threads", "1"}},
      .files = {{"a.safetensors", 8000, 100, 0xfedcba9876543210}, {"b.safetensors", 4000, 80, 7}},
      .tensors = {{"wte.weight", "value", DType::f32, {30, 20}},
                  {"wte.weight", "updates", DType::i64, {}}},
      .ranges = {
          {0, 0, 512, 0, 100, {1, 2}}, {0, 512, 600, 1, 80, {3, 4}}, {1, 0, 1, 0, 2148, {5, 6}}}};
  for (const train::CheckpointRange& range : manifest.ranges) manifest.digest += range.digest;
  return manifest;
}

std::string refusal(const Manifest& manifest) {
  return message_of<InputError>([&] { train::parse_manifest("m.json", manifest_text(manifest)); });
}

TEST_CASE("a manifest is read as it was written") {
  const Manifest before = example();
  const Manifest after = train::parse_manifest("m.json", manifest_text(before));
  CHECK(after.version == "1.2.3");
  CHECK(after.step == 40);
  CHECK(after.skipped == 3);
  CHECK(after.digest == BlockDigest{9, 12});
  CHECK(after.layout.ranks == 2);
  CHECK(after.layout.stage == 3);
  CHECK(after.layout.bucket_bytes == 4096);
  CHECK(after.run == before.run);
  CHECK(after.bits == before.bits);
  REQUIRE(after.files.size() == 2);
  CHECK(after.files[0].header == 0xfedcba9876543210);
  CHECK(after.files[1].bytes == 4000);
  REQUIRE(after.tensors.size() == 2);
  CHECK(after.tensors[0].path() == "wte.weight/value");
  CHECK(after.tensors[0].shape == Shape{30, 20});
  CHECK(after.tensors[1].dtype == DType::i64);
  CHECK(after.ranges == before.ranges);
  CHECK_FALSE(after.best.has_value());
}

TEST_CASE("a manifest may have the best evaluation so far, and an invalid one is refused") {
  Manifest manifest = example();
  manifest.best = {.step = 30, .value = 0.1, .tie = 2.0f / 3};
  const Manifest after = train::parse_manifest("m.json", manifest_text(manifest));
  CHECK(after.best == manifest.best);
  // Older manifests lack the member `evaluated`, and must still be read. The manifest above lacks
  // this member too, because an empty `evaluated` is not written.
  CHECK(manifest_text(manifest).find("\"evaluated\"") == std::string::npos);
  manifest.best->evaluated = "ndcg@10 among all 1682 items";
  CHECK(train::parse_manifest("m.json", manifest_text(manifest)).best == manifest.best);
  // Older manifests also lack the size and the digest of the file with the best weights. Without
  // `file`, they are not written here either.
  CHECK(manifest_text(manifest).find("1682 items\"}") != std::string::npos);
  manifest.best->file = {.bytes = 5000, .digest = 0xfedcba9876543210};
  CHECK(train::parse_manifest("m.json", manifest_text(manifest)).best == manifest.best);
  for (const int64_t step : {0, 41}) {
    manifest.best->step = step;
    CHECK(refusal(manifest) ==
          fmt::format("m.json: best: step is {}, expected from 1 to 40", step));
  }
  manifest.best = {.step = 30, .value = std::numeric_limits<double>::quiet_NaN()};
  CHECK(refusal(manifest).find("m.json: best: value is null, expected a number") == 0);
  // Another program may have written a bad `best` with a valid checksum, so the values are checked.
  manifest.best = {.step = 30, .value = 0.5};
  std::string text = manifest_text(manifest);
  text.resize(text.rfind(",\n\"checksum\""));
  const auto with = [&](const std::string& best) {
    std::string changed = text;
    const size_t begin = changed.find("\"best\": ") + 8;
    changed.replace(begin, changed.find('}', begin) + 1 - begin, best);
    return message_of<InputError>(
        [&] { train::parse_manifest("m.json", train::with_checksum(changed)); });
  };
  CHECK(with("7").find("m.json: best: it is not a JSON object") == 0);
  CHECK(with(R"({"step":3})").find("m.json: best: it has no \"value\"") == 0);
  CHECK(with(R"({"step":3,"value":"low","tie":0})").find("expected a number") != std::string::npos);
  CHECK(with(R"({"step":3,"value":1,"tie":0,"evaluated":7})").find("best: evaluated is 7") !=
        std::string::npos);
  CHECK(with(R"({"step":-3,"value":1,"tie":0})").find("best: step") != std::string::npos);
  CHECK(with(R"({"step":3,"value":1,"tie":0,"bytes":9,"digest":"9"})") ==
        "m.json: best: digest is not a digest of 16 hexadecimal digits");
  CHECK(with(R"({"step":3,"value":1,"tie":0,"digest":"0123456789abcdef"})") ==
        "m.json: best: it has no \"bytes\"");
}

TEST_CASE("a better evaluation becomes the best, but never one that is not finite") {
  using train::is_better;
  const train::BestEvaluation best{.step = 3, .value = 0.5, .tie = 1};
  CHECK(is_better({.value = 0.25}, best));
  CHECK_FALSE(is_better({.value = 0.75}, best));
  CHECK(is_better({.value = 0.75, .higher_is_better = true}, best));
  CHECK_FALSE(is_better({.value = 0.25, .higher_is_better = true}, best));
  for (const bool higher : {false, true}) {
    CHECK(is_better({.value = 0.5, .higher_is_better = higher, .tie = 0.5}, best));
    CHECK_FALSE(is_better({.value = 0.5, .higher_is_better = higher, .tie = 1}, best));
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity()}) {
      CHECK_FALSE(is_better({.value = value, .higher_is_better = higher}, best));
    }
  }
}

TEST_CASE("a manifest has the metadata of the weights, if it is known") {
  // Manifests that were written before the members `weights` and `imported` existed must still be
  // read.
  const std::string before = manifest_text(example());
  CHECK(before.find("weights") == std::string::npos);
  CHECK(before.find("imported") == std::string::npos);
  CHECK(train::parse_manifest("m.json", before).weights.empty());
  CHECK(train::parse_manifest("m.json", before).imported.empty());

  Manifest manifest = example();
  manifest.weights = {{"format", "pt"}, {"classes", "[\"a \\ b\"]\n"}};
  manifest.imported = "model \"x\".safetensors";
  const Manifest after = train::parse_manifest("m.json", manifest_text(manifest));
  CHECK(after.weights == manifest.weights);
  CHECK(after.imported == manifest.imported);
  CHECK(manifest_text(after) == manifest_text(manifest));

  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = manifest_text(manifest);
    text.resize(text.rfind(",\n\"checksum\""));
    text.replace(text.find(from), from.size(), to);
    return message_of<InputError>(
        [&] { train::parse_manifest("m.json", train::with_checksum(text)); });
  };
  CHECK(with("\"format\":\"pt\"", "\"format\":3") == "m.json: weights is 3, expected text");
  CHECK(with("\"weights\": {", "\"weights\": 1, \"more\": {") ==
        "m.json: weights is 1, expected an object");
  CHECK(with("\"model \\\"x\\\".safetensors\"", "null") ==
        "m.json: imported is null, expected text");
}

TEST_CASE("a manifest that was cut or changed is refused") {
  const std::string text = manifest_text(example());
  const auto says = [](const std::string& changed) {
    return message_of<InputError>([&] { train::parse_manifest("m.json", changed); });
  };
  CHECK(says("").find("m.json: it is not whole") == 0);
  for (size_t length = 0; length < text.size(); ++length) {
    CHECK(says(text.substr(0, length)).starts_with("m.json: it"));
  }
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    CHECK(says(changed).starts_with("m.json: it"));
  }
}

TEST_CASE("a manifest of another format, or with a dtype that checkpoints lack, is refused") {
  std::string text = manifest_text(example());
  text.resize(text.rfind(",\n\"checksum\""));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return message_of<InputError>(
        [&] { train::parse_manifest("m.json", train::with_checksum(changed)); });
  };
  CHECK(with("tessera checkpoint 1", "tessera checkpoint 2") ==
        "m.json: its format is \"tessera checkpoint 2\", expected \"tessera checkpoint 1\"");
  CHECK(with("\"F32\"", "\"F64\"") ==
        "m.json: tensors: dtype is \"F64\", which is not a dtype of checkpoints");
}

TEST_CASE("an invalid manifest is refused even if its checksum is right") {
  const auto with = [](const std::function<void(Manifest&)>& change) {
    Manifest manifest = example();
    change(manifest);
    return refusal(manifest);
  };
  CHECK(with([](Manifest& m) { m.ranges.pop_back(); }) ==
        "m.json: ranges: expected the next range to begin at element 0 of \"wte.weight/updates\"");
  CHECK(with([](Manifest& m) { m.ranges[1].begin = 256; }) ==
        "m.json: ranges: expected the next range to begin at element 512 of \"wte.weight/value\"");
  CHECK(with([](Manifest& m) { m.ranges[1].begin = 513; }).find("a block of 256 elements") !=
        std::string::npos);
  CHECK(with([](Manifest& m) { m.ranges[1].end = 601; }).find("ranges") != std::string::npos);
  CHECK(with([](Manifest& m) { m.ranges[0].offset = 99; }).find("ranges") != std::string::npos);
  CHECK(with([](Manifest& m) { m.ranges[0].offset = 8000 - 2047; }).find("ranges") !=
        std::string::npos);
  CHECK(with([](Manifest& m) { m.ranges[0].file = 2; }).find("ranges") != std::string::npos);
  CHECK(with([](Manifest& m) { m.files[0].bytes = 2100; }).find("is longer than a.safetensors") !=
        std::string::npos);
  CHECK(with([](Manifest& m) { m.files[0].header_bytes = 9000; }) ==
        "m.json: files: header_bytes is 9000, but the whole file has 8000 bytes");
  CHECK(with([](Manifest& m) { m.ranges[0].digest.low = 2; }) ==
        "m.json: digest: it is not the sum of the ranges' digests");
  CHECK(with([](Manifest& m) { m.tensors[1] = m.tensors[0]; }) ==
        "m.json: tensors: \"wte.weight/value\" is there twice");
  CHECK(with([](Manifest& m) { m.skipped = 41; }) ==
        "m.json: skipped is 41, expected at most the 40 steps");
  for (const char* name : {"../a", "/etc/passwd", "", ".", "..", ".hidden", "sub/a"}) {
    CHECK(with([&](Manifest& m) { m.files[0].name = name; }) ==
          fmt::format("m.json: files: name is \"{}\", expected the name of a file", name));
  }
  CHECK(with([](Manifest& m) {
          m.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
        }).find("more than 2^48 elements") != std::string::npos);
}

}  // namespace
}  // namespace tessera::test
