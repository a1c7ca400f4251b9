#include "nn/safetensors.h"

#include <cstring>

#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using nn::SafetensorsReader;
using test::TemporaryFolder;

namespace {

// A file of this header and so many bytes of data. The length may lie.
std::string bytes_of(const std::string& header, size_t data, uint64_t lie_about_length = 0) {
  const uint64_t length = lie_about_length != 0 ? lie_about_length : header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data, '\1');
}

// The message with which a file of these bytes is refused.
std::string refusal(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.file("bad.safetensors", bytes);
  return test::message_of<InputError>([&] { SafetensorsReader{path}; });
}

std::string refusal(const std::string& header, size_t data) {
  return refusal(bytes_of(header, data));
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

}  // namespace

TEST_CASE("safetensors: what is written is read back, aligned and described") {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.safetensors");
  nn::write_safetensors(path, {{"bytes", Tensor::from<uint8_t>({3}, {1, 2, 3})},
                               {"w", Tensor::from<float>({2, 2}, {1.5f, -0.0f, 3e-45f, 4})},
                               {"none", Tensor::empty({0, 7})},
                               {"scalar", Tensor::from<int32_t>({}, {-5})},
                               {"long", Tensor::from<int64_t>({1}, {int64_t{1} << 60})}});
  REQUIRE(folder.entries() == 1);
  const SafetensorsReader file(path);
  REQUIRE(file.metadata().at("format") == "pt");
  REQUIRE(file.entries().size() == 5);
  for (const auto& e : file.entries()) {
    if (e.dtype == "I64") REQUIRE(e.begin % 8 == 0);
    if (e.dtype == "F32" || e.dtype == "I32") REQUIRE(e.begin % 4 == 0);
  }
  std::vector<float> w(4);
  file.read<float>(file.entry("w"), 0, w);
  const float expected[] = {1.5f, -0.0f, 3e-45f, 4};
  REQUIRE(std::memcmp(w.data(), expected, sizeof(expected)) == 0);
  float last = 0;
  file.read<float>(file.entry("w"), 3, std::span(&last, 1));
  REQUIRE(last == 4);
  int64_t big = 0;
  file.read<int64_t>(file.entry("long"), 0, std::span(&big, 1));
  REQUIRE(big == int64_t{1} << 60);
  REQUIRE(file.entry("none").elements() == 0);
  REQUIRE(file.entry("scalar").elements() == 1);

  uint64_t header = 0;
  std::memcpy(&header, folder.read("a.safetensors").data(), 8);
  REQUIRE(header % 8 == 0);
  REQUIRE_THROWS_AS(file.read<float>(file.entry("w"), 1, std::span(w)), Error);
  REQUIRE_THAT(test::message_of<InputError>([&] { file.read<float>(file.entry("long"), 0, {}); }),
               ContainsSubstring("tensor \"long\": dtype is I64, expected F32"));
  REQUIRE_THAT(test::message_of<InputError>([&] { file.entry("absent"); }),
               ContainsSubstring("has no tensor \"absent\""));
}

TEST_CASE("safetensors: no tensors, and no metadata, are fine") {
  const TemporaryFolder folder;
  nn::write_safetensors(folder.path("a"), {}, {});
  const SafetensorsReader file(folder.path("a"));
  REQUIRE(file.entries().empty());
  REQUIRE(file.metadata().empty());
}

TEST_CASE("safetensors: a name may not be written twice, and nothing remains") {
  const TemporaryFolder folder;
  const Tensor x = Tensor::zeros({1});
  REQUIRE_THROWS_AS(nn::write_safetensors(folder.path("a"), {{"x", x}, {"x", x}}), Error);
  REQUIRE_THROWS_AS(
      nn::write_safetensors(folder.path("a"), {{"x", Tensor::unallocated({1}, DType::f32)}}),
      Error);
  REQUIRE_THROWS_AS(nn::write_safetensors(folder.path("no/a"), {{"x", x}}), InputError);
  REQUIRE(folder.entries() == 0);
}

TEST_CASE("safetensors: files that are no safetensors") {
  const TemporaryFolder folder;
  REQUIRE_THAT(test::message_of<InputError>([&] { SafetensorsReader{folder.path("absent")}; }),
               ContainsSubstring("absent: cannot be opened: No such file"));
  REQUIRE_THAT(test::message_of<InputError>([&] { SafetensorsReader{folder.path("")}; }),
               ContainsSubstring("not a regular file"));
  REQUIRE_THAT(refusal(""), ContainsSubstring("has 0 bytes"));
  REQUIRE_THAT(refusal("1234567"), ContainsSubstring("has 7 bytes"));
  REQUIRE_THAT(refusal("PK\3\4 a zip file of torch"), ContainsSubstring("not a safetensors file"));
}

TEST_CASE("safetensors: header lengths") {
  REQUIRE_THAT(refusal(bytes_of("{}", 0, 3)), ContainsSubstring("truncated: a header of 3 bytes"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, 100'000'000)), ContainsSubstring("truncated"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, 100'000'001)), ContainsSubstring("at most 100000000"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, UINT64_MAX)), ContainsSubstring("at most 100000000"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, uint64_t{1} << 63)), ContainsSubstring("at most"));
}

TEST_CASE("safetensors: headers that are not what the format says") {
  REQUIRE_THAT(refusal("", 8), ContainsSubstring("not valid JSON"));
  REQUIRE_THAT(refusal("{\"a\":", 0), ContainsSubstring("not valid JSON, at byte"));
  REQUIRE_THAT(refusal("\xff\xfe{}", 0), ContainsSubstring("not valid JSON"));
  REQUIRE_THAT(refusal("{\"a\":1e999}", 0), ContainsSubstring("not valid JSON: "));
  REQUIRE_THAT(refusal("[]", 0), ContainsSubstring("not a JSON object"));
  REQUIRE_THAT(refusal(std::string(100000, '['), 0), ContainsSubstring("nested deeper"));
  REQUIRE_THAT(refusal("{\"a\":5}", 0), ContainsSubstring("\"a\": its description is not"));
  REQUIRE_THAT(refusal("{\"a\":{}}", 0), ContainsSubstring("\"a\": it has no dtype"));
  REQUIRE_THAT(refusal("{" + entry("a", "[1]", "[0,4]", "F31") + "}", 4),
               ContainsSubstring("dtype \"F31\" is unknown"));
  REQUIRE_THAT(refusal(R"({"a":{"dtype":4,"shape":[],"data_offsets":[0,4]}})", 4),
               ContainsSubstring("dtype is not a string"));
  REQUIRE_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), ContainsSubstring("is not a string"));
  REQUIRE_THAT(refusal(R"({"__metadata__":[]})", 0), ContainsSubstring("__metadata__ is not"));
}

TEST_CASE("safetensors: names that come twice, or are not fit to print") {
  const std::string twice = entry("a", "[1]", "[0,4]") + "," + entry("a", "[1]", "[4,8]");
  REQUIRE_THAT(refusal("{" + twice + "}", 8), ContainsSubstring("name \"a\" twice"));
  REQUIRE_THAT(
      refusal(R"({"a":{"dtype":"F32","dtype":"F64","shape":[1],"data_offsets":[0,4]}})", 4),
      ContainsSubstring("name \"dtype\" twice"));
  const std::string message = refusal("{\"" + std::string(5000, 'x') + "\\n\":1}", 0);
  REQUIRE(message.size() < 400);
  REQUIRE_THAT(refusal("{\"a\\n\\u001b\":1}", 0), ContainsSubstring(R"("a\n\u001b")"));
}

TEST_CASE("safetensors: shapes") {
  const auto with_shape = [](const std::string& shape) {
    return refusal("{" + entry("a", shape, "[0,4]") + "}", 4);
  };
  REQUIRE_THAT(with_shape("[2]"),
               ContainsSubstring("takes 8 bytes, but data_offsets [0, 4] hold 4"));
  REQUIRE_THAT(with_shape("[-1]"), ContainsSubstring("shape holds -1"));
  REQUIRE_THAT(with_shape("[1.0]"), ContainsSubstring("shape holds 1.0"));
  REQUIRE_THAT(with_shape("[\"1\"]"), ContainsSubstring("expected whole numbers"));
  REQUIRE_THAT(with_shape("1"), ContainsSubstring("shape is not a list"));
  REQUIRE_THAT(with_shape("[99999999999999999999]"), ContainsSubstring("expected whole numbers"));
  // 2^62 * 4 bytes wraps to 0 in 64 bits, (2^31 + 1)^2 * 4 to a small positive number.
  REQUIRE_THAT(with_shape("[4611686018427387904]"), ContainsSubstring("too large"));
  REQUIRE_THAT(with_shape("[4294967296,4294967296]"), ContainsSubstring("too large"));
  REQUIRE_THAT(with_shape("[4294967296,4294967296,0]"), ContainsSubstring("takes 0 bytes"));
}

TEST_CASE("safetensors: offsets") {
  const auto with_offsets = [](const std::string& offsets, size_t data) {
    return refusal("{" + entry("a", "[1]", offsets) + "}", data);
  };
  REQUIRE_THAT(with_offsets("[0,4]", 3), ContainsSubstring("the file has 3 bytes of data"));
  REQUIRE_THAT(with_offsets("[4,0]", 4), ContainsSubstring("data_offsets are [4, 0]"));
  REQUIRE_THAT(with_offsets("[-4,0]", 4), ContainsSubstring("data_offsets holds -4"));
  REQUIRE_THAT(with_offsets("[0]", 4), ContainsSubstring("not a list of two"));
  REQUIRE_THAT(with_offsets("[0,4,8]", 4), ContainsSubstring("not a list of two"));
  REQUIRE_THAT(with_offsets("[18446744073709551612,0]", 4), ContainsSubstring("whole numbers"));
  REQUIRE_THAT(with_offsets("[4,8]", 8), ContainsSubstring("bytes from 0 to there"));
  REQUIRE_THAT(with_offsets("[0,4]", 5), ContainsSubstring("end at byte 4 of the data, but"));

  const auto two = [](const std::string& a, const std::string& b, size_t data) {
    return refusal("{" + entry("a", "[2]", a) + "," + entry("b", "[2]", b) + "}", data);
  };
  REQUIRE_THAT(two("[0,8]", "[4,12]", 12),
               ContainsSubstring("tensor \"b\": its bytes [4, 12] overlap"));
  REQUIRE_THAT(two("[0,8]", "[0,8]", 8), ContainsSubstring("overlap"));
  REQUIRE_THAT(two("[0,8]", "[12,20]", 20),
               ContainsSubstring("bytes from 8 to there belong to no"));
}

TEST_CASE("safetensors: entries may come in any order, and the header may be padded") {
  const TemporaryFolder folder;
  const std::string header =
      "{" + entry("b", "[2]", "[4,12]") + "," + entry("a", "[1]", "[0,4]") + "}   ";
  const SafetensorsReader file(folder.file("a", bytes_of(header, 12)));
  REQUIRE(file.entries()[0].name == "a");
  REQUIRE(file.entries()[1].name == "b");
}

TEST_CASE("safetensors: a file that shrinks while it is read is an error") {
  const TemporaryFolder folder;
  const std::string path = folder.path("a");
  nn::write_safetensors(path, {{"x", Tensor::zeros({4})}});
  const SafetensorsReader file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  std::vector<float> x(4);
  REQUIRE_THAT(test::message_of<InputError>([&] { file.read<float>(file.entry("x"), 0, x); }),
               ContainsSubstring("has become shorter"));
}

TEST_CASE("safetensors: a damaged header is refused or read, and never more than the file is") {
  const TemporaryFolder folder;
  nn::write_safetensors(folder.path("good"), {{"a", Tensor::zeros({2, 3})},
                                              {"b", Tensor::zeros({4}, DType::u8)}});
  const std::string good = folder.read("good");
  RandomStream stream(1, "damage", 0);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + stream.below(3); n > 0; --n) {
      // Mostly into digits, brackets and the like, which keep the JSON alive.
      const std::string_view pieces = "0123456789-[]{},:\"e.\xff";
      bad[stream.below(bad.size())] = pieces[stream.below(pieces.size())];
    }
    bad.resize(bad.size() - (stream.below(4) == 0 ? stream.below(bad.size()) : 0));
    const std::string path = folder.file("bad", bad);
    try {
      const SafetensorsReader file(path);
      for (const auto& entry : file.entries()) {
        REQUIRE(entry.end <= std::ssize(bad));
        if (entry.dtype != "F32") continue;
        std::vector<float> values(static_cast<size_t>(entry.elements()));
        file.read<float>(entry, 0, values);
      }
    } catch (const InputError&) {
      ++refused;
    }
  }
  REQUIRE(refused > 1000);
}
