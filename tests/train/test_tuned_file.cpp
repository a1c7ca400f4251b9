// Tests the table that `tune` writes: the fastest measured algorithm of each matrix product. A
// written table can be read again. Invalid files are refused with an error that names the file.
// tests/emulated/emulated_training.sh tests that training uses the algorithms of a table.
#include "train/tuned_file.h"

#include <functional>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

using namespace tessera;
using namespace tessera::train;
using nlohmann::json;

namespace {

const TunedFor here{"a GPU", 130100};

std::vector<cuda::MeasuredProduct> measured() {
  cuda::ProductShape shape{.m = 64, .n = 96, .k = 32, .a = {.stride = 32}, .b = {.stride = 96},
                           .c = {.stride = 96}, .dtype = DType::bf16, .c_dtype = DType::bf16,
                           .bias_alignment = 256};
  cuda::MeasuredProduct first{.fastest = {shape, {1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}}},
                              .fastest_us = 1.5, .first_us = 2.5, .proposals = 3};
  cuda::MeasuredProduct second = first;
  second.fastest.shape = {.batch = 4, .m = 64, .n = 96, .k = 32,
                          .a = {.stride = 64, .batch_stride = 2048, .transposed = true,
                                .alignment = 2},
                          .b = {.stride = 96, .batch_stride = 3072},
                          .c = {.stride = 96, .batch_stride = 6144}, .dtype = DType::f16,
                          .c_dtype = DType::f32};
  return {first, second};
}

std::vector<cuda::TunedProduct> parse(const std::string& text) {
  return parse_tuned("table.json", text, here);
}

void refused(const char* expected, const std::function<void(json&)>& change) {
  json table = json::parse(tuned_text(here, measured()));
  change(table);
  INFO(expected);
  CHECK_THROWS_WITH(parse(table.dump()), Catch::Matchers::ContainsSubstring(expected));
  CHECK_THROWS_AS(parse(table.dump()), InputError);
}

}  // namespace

TEST_CASE("a table of measured products is read as it was written") {
  const std::vector<cuda::MeasuredProduct> written = measured();
  const std::vector<cuda::TunedProduct> read = parse(tuned_text(here, written));
  REQUIRE(read.size() == written.size());
  for (size_t i = 0; i < read.size(); ++i) {
    CHECK(read[i].shape == written[i].fastest.shape);
    CHECK(read[i].algorithm == written[i].fastest.algorithm);
  }
  CHECK(parse(tuned_text(here, {})).empty());

  json with_more = json::parse(tuned_text(here, written));
  with_more["note"] = "members with other names are ignored";
  CHECK(parse(with_more.dump()).size() == written.size());
}

TEST_CASE("a table of another GPU or library, and an invalid table, are refused") {
  refused("table.json: the table is of another GPU, and this is a GPU",
          [](json& table) { table["device"] = "another GPU"; });
  refused("table.json: the table is of cuBLASLt 120000, and this is 130100",
          [](json& table) { table["cublaslt"] = 120000; });
  refused("table.json: it is not a table that tune wrote", [](json& table) { table["type"] = 3; });
  refused("table.json: it is not a table that tune wrote", [](json& table) { table = 3; });
  refused("table.json: it has no device", [](json& table) { table.erase("device"); });
  refused("table.json: products is not a list", [](json& table) { table["products"] = 3; });
  refused("product 2 repeats product 0",
          [](json& table) { table["products"].push_back(table["products"][0]); });
  for (const char* text : {"", "{", "[]", "null", "\xff"}) {
    CHECK_THROWS_AS(parse(text), InputError);
  }
}

TEST_CASE("an impossible product is refused") {
  const auto with = [](const char* name, const json& value) {
    return [name, value](json& table) { table["products"][1][name] = value; };
  };
  const auto in_a = [](const char* name, const json& value) {
    return [name, value](json& table) { table["products"][1]["a"][name] = value; };
  };
  refused("product 1: expected an object", [](json& table) { table["products"][1] = 3; });
  refused("product 1: it has no k", [](json& table) { table["products"][1].erase("k"); });
  refused("product 1: k is -1, expected a whole number from 1 to 2147483647", with("k", -1));
  refused("product 1: m is 1.5, expected a whole number", with("m", 1.5));
  refused("product 1: n is 18446744073709551615, expected", with("n", ~uint64_t{0}));
  refused("product 1: dtype is \"f64\", expected f32, bf16 or f16", with("dtype", "f64"));
  refused("product 1: a: expected an object", with("a", 3));
  refused("product 1: a: stride is 0", in_a("stride", 0));
  refused("product 1: a: transposed is 1, expected true or false", in_a("transposed", 1));
  refused("product 1: a: alignment is 1, expected", in_a("alignment", 1));
  refused("product 1: a: alignment is 48, expected a power of two", in_a("alignment", 48));
  refused("product 1: algorithm is \"xyz\", expected 128 hexadecimal", with("algorithm", "xyz"));
  refused("product 1: algorithm is 3, expected a text", with("algorithm", 3));
}
