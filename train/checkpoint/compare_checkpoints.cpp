#include "train/checkpoint/compare_checkpoints.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/text/number_text.h"

namespace tessera::train {
namespace {

constexpr int64_t piece_bytes = int64_t{1} << 20;

std::string form(const optim::StateTensor& tensor) {
  return fmt::format("{} {}", dtype_name(tensor.dtype), tensor.shape);
}

template <class T>
std::string number(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  if constexpr (std::is_integral_v<T>) {
    return fmt::format("{}", value);
  } else {
    return fmt::format("{}", without_nan_sign(float(value)));
  }
}

std::string value_text(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::f32:
      return number<float>(at);
    case DType::bf16:
      return number<BFloat16>(at);
    case DType::f16:
      return number<Float16>(at);
    case DType::i32:
      return number<int32_t>(at);
    case DType::i64:
      return number<int64_t>(at);
    case DType::u8:
      return number<uint8_t>(at);
  }
  return "";
}

// Returns the value of a little-endian number of `bytes` bytes, in hexadecimal.
std::string bits_text(const std::byte* at, int64_t bytes) {
  std::string text = "0x";
  for (int64_t i = bytes - 1; i >= 0; --i)
    text += fmt::format("{:02x}", static_cast<unsigned>(at[i]));
  return text;
}

// Compares a piece of a tensor, and adds the differences to `difference`. The piece begins at
// element `begin` of the tensor.
void compare_piece(DType dtype, int64_t begin, const std::vector<std::byte>& a,
                   const std::vector<std::byte>& b, TensorDifference& difference) {
  if (a == b) return;
  const int64_t size = dtype_size(dtype);
  for (int64_t at = 0; at < std::ssize(a); at += size) {
    const std::byte* const in_a = a.data() + at;
    const std::byte* const in_b = b.data() + at;
    if (std::memcmp(in_a, in_b, static_cast<size_t>(size)) == 0) continue;
    if (difference.different++ > 0) continue;
    difference.first = begin + at / size;
    difference.a = value_text(dtype, in_a);
    difference.b = value_text(dtype, in_b);
    // If both values have the same text, as NaNs do, appends their bits to the text.
    if (difference.a != difference.b) continue;
    difference.a += " (" + bits_text(in_a, size) + ")";
    difference.b += " (" + bits_text(in_b, size) + ")";
  }
}

TensorDifference compare_tensor(const CheckpointReader& a, const CheckpointReader& b,
                                const optim::StateTensor& tensor) {
  const int64_t size = dtype_size(tensor.dtype);
  const int64_t piece = piece_bytes / size;
  const int64_t elements = tensor.shape.elements();
  TensorDifference difference{.path = tensor.path(), .shape = tensor.shape};
  std::vector<std::byte> in_a;
  std::vector<std::byte> in_b;
  for (int64_t begin = 0; begin < elements; begin += piece) {
    const int64_t count = std::min(piece, elements - begin);
    in_a.resize(static_cast<size_t>(count * size));
    in_b.resize(in_a.size());
    a.read_bytes(difference.path, begin, in_a);
    b.read_bytes(difference.path, begin, in_b);
    compare_piece(tensor.dtype, begin, in_a, in_b, difference);
  }
  return difference;
}

// Returns the digest of each tensor, in the order of the manifest.
std::vector<BlockDigest> tensor_digests(const Manifest& manifest) {
  std::vector<BlockDigest> digests(manifest.tensors.size());
  for (const CheckpointRange& range : manifest.ranges) {
    digests[static_cast<size_t>(range.tensor)] += range.digest;
  }
  return digests;
}

using Texts = std::map<std::string, std::string>;

Texts settings_of(const Manifest& manifest) {
  Texts texts{{"step", std::to_string(manifest.step)},
              {"skipped", std::to_string(manifest.skipped)},
              {"version", manifest.version}};
  if (!manifest.imported.empty()) texts["imported"] = manifest.imported;
  for (const auto& [name, value] : manifest.run) texts["run." + name] = value;
  for (const auto& [name, value] : manifest.bits) texts["bits." + name] = value;
  for (const auto& [name, value] : manifest.weights) texts["weights." + name] = value;
  return texts;
}

std::vector<SettingDifference> compare_settings(const Manifest& a, const Manifest& b) {
  constexpr const char* nothing = "nothing";
  const Texts in_a = settings_of(a);
  const Texts in_b = settings_of(b);
  std::vector<SettingDifference> differences;
  for (const auto& [name, value] : in_a) {
    const auto found = in_b.find(name);
    const std::string other = found == in_b.end() ? nothing : found->second;
    if (found == in_b.end() || other != value) differences.push_back({name, value, other});
  }
  for (const auto& [name, value] : in_b) {
    if (!in_a.contains(name)) differences.push_back({name, nothing, value});
  }
  return differences;
}

}  // namespace

CheckpointDifference compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b,
                                         bool verified) {
  CheckpointDifference result;
  const std::vector<optim::StateTensor>& of_a = a.manifest().tensors;
  const std::vector<optim::StateTensor>& of_b = b.manifest().tensors;
  const std::vector<BlockDigest> digests_a = tensor_digests(a.manifest());
  const std::vector<BlockDigest> digests_b = tensor_digests(b.manifest());
  std::map<std::string, size_t> in_a;
  std::map<std::string, size_t> in_b;
  for (size_t i = 0; i < of_b.size(); ++i) in_b[of_b[i].path()] = i;
  for (size_t i = 0; i < of_a.size(); ++i) {
    const std::string path = of_a[i].path();
    in_a[path] = i;
    const auto found = in_b.find(path);
    if (found == in_b.end()) {
      result.only_a.push_back(path);
      continue;
    }
    const size_t j = found->second;
    if (form(of_a[i]) != form(of_b[j])) {
      result.forms.push_back({path, form(of_a[i]), form(of_b[j])});
      continue;
    }
    TensorDifference difference;
    const bool known = verified && digests_a[i] == digests_b[j];
    if (!known) difference = compare_tensor(a, b, of_a[i]);
    if (difference.different == 0) {
      ++result.same;
    } else {
      result.tensors.push_back(std::move(difference));
    }
  }
  for (const optim::StateTensor& tensor : of_b) {
    if (!in_a.contains(tensor.path())) result.only_b.push_back(tensor.path());
  }
  result.settings = compare_settings(a.manifest(), b.manifest());
  return result;
}

}  // namespace tessera::train
