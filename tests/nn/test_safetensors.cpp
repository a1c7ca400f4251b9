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

// Returns a file with this header and `data` bytes of data. If lie_about_length is not 0, the file
// states lie_about_length as the header's length.
std::string bytes_of(const std::string& header, size_t data, uint64_t lie_about_length = 0) {
  const uint64_t length = lie_about_length != 0 ? lie_about_length : header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data, '\1');
}

// Returns the message with which a file of these bytes is refused.
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

TEST_CASE("safetensors: written tensors are read back, aligned, with metadata") {
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

TEST_CASE("safetensors: a writer takes pieces in any order") {
  const TemporaryFolder folder;
  const std::vector<float> w = {0, 1, 2, 3, 4, 5};
  const std::vector<uint8_t> bytes = {7, 8, 9};
  nn::write_safetensors(folder.path("all"), {{"bytes", Tensor::from<uint8_t>({3}, bytes)},
                                             {"none", Tensor::empty({0})},
                                             {"w", Tensor::from<float>({2, 3}, w)},
                                             {"v", Tensor::from<float>({6}, w)}});
  RandomStream stream(1, "pieces", 0);
  for (int round = 0; round < 50; ++round) {
    nn::SafetensorsWriter file(folder.path("pieces"), {{"bytes", DType::u8, {3}},
                                                       {"none", DType::f32, {0}},
                                                       {"w", DType::f32, {2, 3}},
                                                       {"v", DType::f32, {6}}});
    // Writes fifteen pieces of one element, in another random order each round.
    std::vector<int> order(15);
    for (int i = 0; i < 15; ++i) order[static_cast<size_t>(i)] = i;
    for (size_t i = 14; i > 0; --i) std::swap(order[i], order[stream.below(i + 1)]);
    for (const int piece : order) {
      const auto i = static_cast<size_t>(piece % 6);
      if (piece >= 12) {
        file.write<uint8_t>("bytes", piece - 12, std::span(bytes).subspan(i, 1));
      } else {
        file.write<float>(piece < 6 ? "w" : "v", piece % 6, std::span(w).subspan(i, 1));
      }
    }
    file.commit();
    REQUIRE(folder.read("pieces") == folder.read("all"));
    REQUIRE(folder.entries() == 2);
  }
}

TEST_CASE("safetensors: a writer refuses data that the declared tensors do not have") {
  const TemporaryFolder folder;
  const std::vector<float> values(4);
  const auto some = std::span(values).first(2);
  {
    nn::SafetensorsWriter file(folder.path("a"), {{"x", DType::f32, {4}}, {"y", DType::bf16, {2}}});
    REQUIRE_THROWS_WITH(file.write<float>("z", 0, some), ContainsSubstring("tensor 'z'"));
    REQUIRE_THROWS_WITH(file.write<float>("y", 0, some),
                        ContainsSubstring("'y' is written as F32, expected BF16"));
    REQUIRE_THROWS_WITH(file.write<float>("x", 3, some),
                        ContainsSubstring("2 elements from 3 on are written, but 'x' has 4"));
    REQUIRE_THROWS_AS(file.write<float>("x", -1, some), Error);
    REQUIRE_THROWS_AS(file.write<float>("x", INT64_MAX, some), Error);
    REQUIRE_THROWS_AS(file.write("x", Tensor::zeros({5})), Error);
    file.write<float>("x", 1, some);
    for (const int64_t first : {0, 1, 2}) {
      REQUIRE_THROWS_WITH(file.write<float>("x", first, some),
                          ContainsSubstring("elements of 'x' are written twice"));
    }
    REQUIRE_THROWS_WITH(file.commit(), ContainsSubstring("elements of 'x' were not written"));
    file.write<float>("x", 0, some.first(1));
    file.write<float>("x", 3, some.first(1));
    REQUIRE_THROWS_WITH(file.commit(), ContainsSubstring("elements of 'y' were not written"));
    REQUIRE(folder.entries() == 1);  // the unfinished file, under its temporary name
  }
  REQUIRE(folder.entries() == 0);
  REQUIRE_THROWS_AS(nn::SafetensorsWriter(folder.path("no/a"), {}), InputError);
  const nn::SafetensorsSpec taken{"__metadata__", DType::f32, {1}};
  REQUIRE_THROWS_AS(nn::SafetensorsWriter(folder.path("a"), {taken}), Error);
  REQUIRE(folder.entries() == 0);
}

TEST_CASE("safetensors: a writer keeps no tensor in memory") {
  const TemporaryFolder folder;
  constexpr int64_t piece = 1000;
  nn::SafetensorsWriter file(folder.path("a"), {{"x", DType::f32, {300, piece}}});
  memory_ledger().reset_peaks();
  const int64_t before = memory_ledger().current_total();
  std::vector<float> values(piece);
  for (int64_t row = 299; row >= 0; --row) {
    std::fill(values.begin(), values.end(), static_cast<float>(row));
    file.write<float>("x", row * piece, values);
  }
  file.commit();
  REQUIRE(memory_ledger().peak_total() == before);
  const SafetensorsReader reader(folder.path("a"));
  float value = 0;
  for (const int64_t row : {0, 1, 150, 299}) {
    reader.read<float>(reader.entry("x"), row * piece + 999, std::span(&value, 1));
    REQUIRE(value == static_cast<float>(row));
  }
}

TEST_CASE("safetensors: tensors of 16 bits are read as f32") {
  const TemporaryFolder folder;
  constexpr int64_t elements = 70'000;  // more than the reader converts at once
  const Tensor bf16 = Tensor::empty({elements}, DType::bf16);
  const Tensor f16 = Tensor::empty({elements}, DType::f16);
  for (int64_t i = 0; i < elements; ++i) {
    bf16.data<BFloat16>()[i] = BFloat16(static_cast<float>(i % 256));
    f16.data<Float16>()[i] = Float16(static_cast<float>(i % 2048) / 1024.0f);
  }
  nn::write_safetensors(folder.path("a"), {{"bf16", bf16},
                                           {"f16", f16},
                                           {"f32", Tensor::from<float>({2}, {0.1f, 0.2f})},
                                           {"i32", Tensor::from<int32_t>({1}, {1})}});
  const SafetensorsReader file(folder.path("a"));
  REQUIRE(file.entry("bf16").dtype == "BF16");
  REQUIRE(file.entry("f16").dtype == "F16");
  std::vector<float> out(elements);
  file.read_as_f32(file.entry("bf16"), 0, out);
  for (int64_t i = 0; i < elements; ++i) REQUIRE(out[static_cast<size_t>(i)] == float(i % 256));
  out.resize(3);
  file.read_as_f32(file.entry("f16"), 65'537, out);
  REQUIRE(out == std::vector<float>{1.0f / 1024, 2.0f / 1024, 3.0f / 1024});
  out.resize(1);
  file.read_as_f32(file.entry("f32"), 1, out);
  REQUIRE(out[0] == 0.2f);
  REQUIRE_THROWS_AS(file.read_as_f32(file.entry("f16"), elements, out), Error);
  REQUIRE_THAT(test::message_of<InputError>([&] { file.read_as_f32(file.entry("i32"), 0, out); }),
               ContainsSubstring("\"i32\": dtype is I32, expected F32, BF16 or F16"));
}

TEST_CASE("safetensors: no tensors, and no metadata, are fine") {
  const TemporaryFolder folder;
  nn::write_safetensors(folder.path("a"), {}, {});
  const SafetensorsReader file(folder.path("a"));
  REQUIRE(file.entries().empty());
  REQUIRE(file.metadata().empty());
}

TEST_CASE("safetensors: in metadata, bytes that are not UTF-8 are replaced") {
  const TemporaryFolder folder;
  nn::write_safetensors(folder.path("a"), {}, {{"author", "J\xfcrgen"}});
  CHECK(SafetensorsReader(folder.path("a")).metadata().at("author") == "J\xef\xbf\xbdrgen");
}

TEST_CASE("safetensors: refused writes, such as a name twice, leave no file") {
  const TemporaryFolder folder;
  const Tensor x = Tensor::zeros({1});
  REQUIRE_THROWS_AS(nn::write_safetensors(folder.path("a"), {{"x", x}, {"x", x}}), Error);
  REQUIRE_THROWS_AS(
      nn::write_safetensors(folder.path("a"), {{"x", Tensor::unallocated({1}, DType::f32)}}),
      Error);
  CHECK(test::message_of<Error>([&] {
          nn::write_safetensors(folder.path("a"), {{"w\xe4", x}});
        }) == "safetensors: the tensor name \"w\\ufffd\" is not UTF-8");
  REQUIRE_THROWS_AS(nn::write_safetensors(folder.path("no/a"), {{"x", x}}), InputError);
  REQUIRE(folder.entries() == 0);
}

TEST_CASE("safetensors: files in other formats are refused") {
  const TemporaryFolder folder;
  REQUIRE_THAT(test::message_of<InputError>([&] { SafetensorsReader{folder.path("absent")}; }),
               ContainsSubstring("absent: cannot be opened: No such file"));
  REQUIRE_THAT(test::message_of<InputError>([&] { SafetensorsReader{folder.path("")}; }),
               ContainsSubstring("not a regular file"));
  REQUIRE_THAT(refusal(""), ContainsSubstring("has 0 bytes"));
  REQUIRE_THAT(refusal("1234567"), ContainsSubstring("has 7 bytes"));
  REQUIRE_THAT(refusal("PK\3\4 a zip file of torch"), ContainsSubstring("not a safetensors file"));
}

TEST_CASE("safetensors: invalid header lengths are refused") {
  REQUIRE_THAT(refusal(bytes_of("{}", 0, 3)), ContainsSubstring("truncated: a header of 3 bytes"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, 100'000'000)), ContainsSubstring("truncated"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, 100'000'001)), ContainsSubstring("at most 100000000"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, UINT64_MAX)), ContainsSubstring("at most 100000000"));
  REQUIRE_THAT(refusal(bytes_of("{}", 0, uint64_t{1} << 63)), ContainsSubstring("at most"));
}

TEST_CASE("safetensors: a PyTorch pickle is refused, with advice to convert it") {
  const std::string rest(100, 'x');
  CHECK_THAT(refusal("PK\3\4\0\0\x08\x08" + rest),
             ContainsSubstring("but a zip of pickles as PyTorch writes it") &&
                 ContainsSubstring("s.save_file({k: v.clone() for k, v in torch.load("));
  for (const char protocol : {'\2', '\3', '\4', '\5'}) {
    CHECK_THAT(refusal(std::string("\x80") + protocol + "\x8a\nl\xfc\x9c\x46" + rest),
               ContainsSubstring("but a pickle as PyTorch writes it"));
  }
  // A safetensors file whose header has 640 bytes begins with the same two bytes as a pickle of
  // protocol 2. The file must not be called a pickle.
  CHECK_THAT(refusal(std::string("\x80\2\0\0\0\0\0\0", 8) + rest), ContainsSubstring("truncated"));
}

TEST_CASE("safetensors: invalid headers are refused") {
  REQUIRE_THAT(refusal("", 8), ContainsSubstring("not valid JSON"));
  REQUIRE_THAT(refusal("{\"a\":", 0), ContainsSubstring("not valid JSON: it ends early"));
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

TEST_CASE("safetensors: duplicate names are refused, and unprintable names escaped") {
  const std::string twice = entry("a", "[1]", "[0,4]") + "," + entry("a", "[1]", "[4,8]");
  REQUIRE_THAT(refusal("{" + twice + "}", 8), ContainsSubstring("name \"a\" twice"));
  REQUIRE_THAT(
      refusal(R"({"a":{"dtype":"F32","dtype":"F64","shape":[1],"data_offsets":[0,4]}})", 4),
      ContainsSubstring("name \"dtype\" twice"));
  const std::string message = refusal("{\"" + std::string(5000, 'x') + "\\n\":1}", 0);
  REQUIRE(message.size() < 400);
  REQUIRE_THAT(refusal("{\"a\\n\\u001b\":1}", 0), ContainsSubstring(R"("a\n\u001b")"));
}

TEST_CASE("safetensors: invalid shapes are refused") {
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
  // These sizes wrap to 0 in 64 bits: the bytes of 2^62 f32 elements, and the number of elements of
  // a shape (2^32, 2^32).
  REQUIRE_THAT(with_shape("[4611686018427387904]"), ContainsSubstring("too large"));
  REQUIRE_THAT(with_shape("[4294967296,4294967296]"), ContainsSubstring("too large"));
  REQUIRE_THAT(with_shape("[4294967296,4294967296,0]"), ContainsSubstring("takes 0 bytes"));
}

TEST_CASE("safetensors: invalid offsets are refused") {
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
  REQUIRE_THAT(test::message_of<Error>([&] { file.read<float>(file.entry("x"), 0, x); }),
               ContainsSubstring("has become shorter"));
}

TEST_CASE("safetensors: a damaged header never makes a reader go beyond the file") {
  const TemporaryFolder folder;
  nn::write_safetensors(folder.path("good"), {{"a", Tensor::zeros({2, 3})},
                                              {"b", Tensor::zeros({4}, DType::u8)}});
  const std::string good = folder.read("good");
  RandomStream stream(1, "damage", 0);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + stream.below(3); n > 0; --n) {
      // Writes mostly digits and brackets, so that the text often remains valid JSON.
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
