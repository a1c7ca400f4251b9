// Tests which names of shared parameters a file of weights may have.
#include "nn/weights_file.h"

#include <string>
#include <vector>

#include "nn/layers.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

/// A model whose head reads the token table: "table.weight" is also called "head.weight".
class Tied : public nn::Module {
 public:
  Tied() : table(3, 2) {
    add("table", table);
    add("head.weight", table.weight);
  }

  nn::Embedding table;
};

const std::vector<float> weights{1, -2, 3, std::nanf(""), 5, 0.5f};

/// Returns the message with which the file is refused, or "nothing was thrown". A file that is not
/// refused must give the model `weights`.
std::string refusal(const std::vector<nn::NamedTensor>& tensors) {
  const TemporaryFolder folder;
  const std::string path = folder.path("w.safetensors");
  nn::write_safetensors(path, tensors);
  Tied model;
  const std::string message = message_of<InputError>([&] { nn::load_weights(path, model); });
  const Tensor loaded = model.table.weight.tensor();
  const bool is_loaded = message == "nothing was thrown";
  CHECK(loaded.allocated() == is_loaded);
  if (is_loaded) CHECK(same_bits(loaded, Tensor::from({3, 2}, weights)));
  return message;
}

TEST_CASE("a file of weights may have a shared parameter under each of its names") {
  const nn::NamedTensor table{"table.weight", Tensor::from({3, 2}, weights)};
  const auto with_head = [&](const Tensor& head) {
    return refusal({table, {"head.weight", head}});
  };
  CHECK(refusal({table}) == "nothing was thrown");
  CHECK(with_head(table.tensor) == "nothing was thrown");
  // bf16 holds these values exactly.
  CHECK(with_head(rounded_to(DType::bf16, table.tensor)) == "nothing was thrown");

  std::vector<float> others = weights;
  others.back() = 0.25f;
  CHECK_THAT(with_head(Tensor::from({3, 2}, others)),
             ContainsSubstring("tensor \"head.weight\" differs from \"table.weight\", but they "
                               "are one parameter of the model"));
  CHECK_THAT(with_head(Tensor::zeros({2, 3})),
             ContainsSubstring("\"head.weight\": shape is [2, 3], expected [3, 2]"));
  CHECK_THAT(with_head(Tensor::zeros({3, 2}, DType::i32)),
             ContainsSubstring("\"head.weight\": dtype is I32, expected F32, BF16 or F16"));
  // The first name is needed, and other names are unknown.
  CHECK_THAT(refusal({{"head.weight", table.tensor}}),
             ContainsSubstring("it has no tensor \"table.weight\""));
  CHECK_THAT(refusal({table, {"tail.weight", table.tensor}}),
             ContainsSubstring("\"tail.weight\" is unknown"));
}

TEST_CASE("values of a shared parameter are compared to the end of a large tensor") {
  const TemporaryFolder folder;
  const std::string path = folder.path("w.safetensors");
  const int64_t elements = (int64_t{1} << 18) + 3;
  const Tensor large = random_tensor({elements}, 1);
  Tensor other = Tensor::empty({elements}, DType::f32);
  other.copy_from(large);
  other.values<float>().back() += 1;
  nn::write_safetensors(path, {{"a", large}, {"b", large}, {"c", other}});
  const nn::SafetensorsReader file(path);
  CHECK(nn::same_weights(file, file.entry("a"), file.entry("b")));
  CHECK_FALSE(nn::same_weights(file, file.entry("a"), file.entry("c")));
}

}  // namespace
}  // namespace tessera::test
