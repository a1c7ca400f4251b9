#include "train/tuned_file.h"

#include <bit>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/cuda.h"
#include "core/digest.h"
#include "core/text/number_text.h"
#include "core/text/json_read.h"
#include "dist/agreement.h"

namespace tessera::train {
namespace {

using cuda::ProductShape;
using nlohmann::json;
using nlohmann::ordered_json;

// The text of the table of algorithms in use; empty without a table. One table per process is
// enough, because a process is one rank, and a rank computes its products on one device.
std::string table_in_use;

constexpr const char* file_type = "tessera tuned products";
constexpr int64_t most = std::numeric_limits<int32_t>::max();

ordered_json matrix_json(const ProductShape::Matrix& x) {
  return {{"stride", x.stride},
          {"batch_stride", x.batch_stride},
          {"transposed", x.transposed},
          {"alignment", x.alignment}};
}

std::string hex_of(const cuda::AlgorithmBytes& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) text += fmt::format("{:016x}", word);
  return text;
}

// Reads the members of one JSON object of a table. Errors name the object and the member.
class Fields {
 public:
  Fields(std::string where, const json& object) : where_(std::move(where)), object_(object) {
    if (!object.is_object()) fail_input("{}: expected an object", where_);
  }

  const json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) fail_input("{}: it has no {}", where_, name);
    return *found;
  }
  Fields object(const char* name) const { return {where_ + ": " + name, at(name)}; }

  int64_t number(const char* name, int64_t least, int64_t greatest) const {
    return json_integer(fmt::format("{}: {}", where_, name), at(name), least, greatest);
  }
  int64_t alignment(const char* name, int64_t least) const {
    const int64_t value = number(name, least, 256);
    if (value == 0 || std::has_single_bit(static_cast<uint64_t>(value))) return value;
    fail_input("{}: {} is {}, expected a power of two", where_, name, value);
  }
  bool flag(const char* name) const {
    if (at(name).is_boolean()) return at(name).get<bool>();
    fail_input("{}: {} is {}, expected true or false", where_, name, json_excerpt(at(name)));
  }
  std::string text(const char* name) const {
    if (at(name).is_string()) return at(name).get<std::string>();
    fail_input("{}: {} is {}, expected a text", where_, name, json_excerpt(at(name)));
  }
  DType dtype(const char* name) const {
    const std::string value = text(name);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (value == dtype_name(dtype)) return dtype;
    }
    fail_input("{}: {} is {}, expected f32, bf16 or f16", where_, name, json_excerpt(at(name)));
  }
  cuda::AlgorithmBytes algorithm() const {
    const std::string digits = text("algorithm");
    cuda::AlgorithmBytes result;
    const bool is_hex = digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!is_hex || digits.size() != 16 * result.size()) {
      fail_input("{}: algorithm is {}, expected {} hexadecimal digits", where_,
                 json_excerpt(at("algorithm")), 16 * result.size());
    }
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = std::stoull(digits.substr(16 * i, 16), nullptr, 16);
    }
    return result;
  }
  ProductShape::Matrix matrix(const char* name, DType dtype) const {
    const Fields fields = object(name);
    return {.stride = fields.number("stride", 1, most),
            .batch_stride = fields.number("batch_stride", 0, int64_t{1} << 62),
            .transposed = fields.flag("transposed"),
            .alignment = fields.alignment("alignment", dtype_size(dtype))};
  }

 private:
  std::string where_;
  const json& object_;
};

cuda::TunedProduct product_of(const Fields& fields) {
  ProductShape shape{.batch = fields.number("batch", 1, most),
                     .m = fields.number("m", 1, most),
                     .n = fields.number("n", 1, most),
                     .k = fields.number("k", 1, most),
                     .a = {},
                     .b = {},
                     .c = {},
                     .dtype = fields.dtype("dtype"),
                     .c_dtype = fields.dtype("c_dtype"),
                     .bias_alignment = fields.alignment("bias_alignment", 0)};
  shape.a = fields.matrix("a", shape.dtype);
  shape.b = fields.matrix("b", shape.dtype);
  shape.c = fields.matrix("c", shape.c_dtype);
  return {shape, fields.algorithm()};
}

void check_place(const std::string& path, const Fields& table, const TunedFor& here) {
  if (const std::string device = table.text("device"); device != here.device) {
    fail_input("{}: the table is of {}, and this is {}; measure here with tune", path, device,
               here.device);
  }
  if (const int64_t library = table.number("cublaslt", 0, most); library != here.library) {
    fail_input("{}: the table is of cuBLASLt {}, and this is {}, which cannot use its algorithms; "
               "measure again with tune",
               path, library, here.library);
  }
}

}  // namespace

std::string tuned_text(const TunedFor& where, const std::vector<cuda::MeasuredProduct>& products) {
  ordered_json list = ordered_json::array();
  for (const auto& [fastest, fastest_us, first_us, proposals] : products) {
    const ProductShape& shape = fastest.shape;
    list.push_back({{"batch", shape.batch},
                    {"m", shape.m},
                    {"n", shape.n},
                    {"k", shape.k},
                    {"dtype", dtype_name(shape.dtype)},
                    {"c_dtype", dtype_name(shape.c_dtype)},
                    {"a", matrix_json(shape.a)},
                    {"b", matrix_json(shape.b)},
                    {"c", matrix_json(shape.c)},
                    {"bias_alignment", shape.bias_alignment},
                    {"algorithm", hex_of(fastest.algorithm)},
                    {"time_us", fastest_us},
                    {"first_time_us", first_us},
                    {"proposals", proposals}});
  }
  const ordered_json table = {{"type", file_type},
                              {"device", where.device},
                              {"cublaslt", where.library},
                              {"products", std::move(list)}};
  return table.dump(1) + "\n";
}

std::vector<cuda::TunedProduct> parse_tuned(const std::string& path, const std::string& text,
                                            const TunedFor& here) {
  const json parsed = parse_json(path, text);
  if (!parsed.is_object() || parsed.value("type", json()) != file_type) {
    fail_input("{}: it is not a table that tune wrote", path);
  }
  const Fields table(path, parsed);
  check_place(path, table, here);
  if (!table.at("products").is_array()) fail_input("{}: products is not a list", path);
  std::vector<cuda::TunedProduct> products;
  std::map<ProductShape, size_t> seen;
  for (const json& object : table.at("products")) {
    const size_t index = products.size();
    products.push_back(product_of({fmt::format("{}: product {}", path, index), object}));
    const auto [first, is_new] = seen.emplace(products.back().shape, index);
    if (!is_new) fail_input("{}: product {} repeats product {}", path, index, first->second);
  }
  return products;
}

void use_tuned_file(const std::string& path, dist::World& world) {
  if (world.communicator->device().is_cpu()) {
    const std::string why = cuda::unusable();
    fail_input("{}: the table is for products on CUDA, and {}", path,
               why.empty() ? "the ranks compute on the CPU" : "there is no usable GPU: " + why);
  }
  use_tuned_text(path, world.rank == 0 ? read_text_file(path, JsonLimits{}.bytes) : "", world);
}

std::string try_tuned_text(const std::string& where, const std::string& text, dist::World& world) {
  const int device = world.communicator->device().index;
  std::string table =
      dist::broadcast_text(*world.communicator, world.rank == 0 ? text : std::string());
  std::vector<cuda::TunedProduct> products;
  std::string why;
  try {
    products =
        parse_tuned(where, table, {cuda::device_name(device), cuda::product_library_version()});
    cuda::check_tuned_products(device, products);
  } catch (const InputError& error) {
    why = error.what();
  } catch (const Error& error) {
    why = fmt::format("{}: {}", where, error.what());
  }
  // The ranks' GPUs or libraries may differ, so all ranks check the table before any rank uses it.
  why = dist::first_reason(why, *world.communicator);
  if (!why.empty()) return why;
  cuda::use_tuned_products(device, products);
  table_in_use = std::move(table);
  return "";
}

void use_tuned_text(const std::string& where, const std::string& text, dist::World& world) {
  const std::string why = try_tuned_text(where, text, world);
  if (!why.empty()) fail_input("{}", why);
}

const std::string& tuned_table() { return table_in_use; }

std::string tuned_digest() {
  if (table_in_use.empty()) return "no file";
  return fmt::format("{} bytes with digest {:016x}", grouped(std::ssize(table_in_use)),
                     xxh3(table_in_use));
}

}  // namespace tessera::train
