#include "models/gpt/gpt_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "models/gpt/gpt_config_file.h"
#include "models/gpt/gpt_sizes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::models;
using Catch::Matchers::ContainsSubstring;
using test::TemporaryFolder;

namespace {

constexpr models::GptConfig tiny{.layers = 2, .heads = 2, .width = 8, .context = 4, .vocab = 11};

// Returns the parameters of `model`, each under its name with `prefix` before it.
std::vector<nn::NamedTensor> tensors_of(const models::Gpt& model, const std::string& prefix) {
  std::vector<nn::NamedTensor> tensors;
  for (const auto& named : model.named_parameters()) {
    tensors.push_back({prefix + named.name, named.parameter.tensor()});
  }
  return tensors;
}

// Saves a model of f32 as a sharded optimizer does: the last parameter first, here in pieces of
// seven elements.
void save(const models::Gpt& model, const std::string& path) {
  GptWriter writer(path, model);
  const auto parameters = model.named_parameters();
  for (auto named = parameters.rbegin(); named != parameters.rend(); ++named) {
    const std::span<const float> values = named->parameter.tensor().values<float>();
    for (size_t begin = 0; begin < values.size(); begin += 7) {
      writer.write(*named, values.subspan(begin, std::min<size_t>(7, values.size() - begin)),
                   static_cast<int64_t>(begin));
    }
  }
  writer.commit();
}

struct Saved {
  Saved() { nn::materialize(model, {}, 5); }

  // Returns the message with which a file of these tensors is refused.
  std::string refusal(const std::vector<nn::NamedTensor>& tensors) const {
    const std::string path = folder.path("model.safetensors");
    nn::write_safetensors(path, tensors);
    return test::message_of<InputError>([&] { GptWeights(path, models::Gpt(tiny)); });
  }

  models::Gpt model{tiny};
  TemporaryFolder folder;
};

std::vector<float> as_floats(const Tensor& x) {
  std::vector<float> values;
  visit_float(x.dtype(), "as_floats", [&]<class T>() {
    for (const T value : x.values<T>()) values.push_back(float(value));
  });
  return values;
}

Tensor rounded(const Tensor& x, DType dtype) {
  const Tensor y = Tensor::empty(x.shape(), dtype);
  const std::vector<float> values = as_floats(x);
  visit_float(dtype, "rounded", [&]<class T>() {
    std::transform(values.begin(), values.end(), y.data<T>(), [](float v) { return T(v); });
  });
  return y;
}

bool same_weights(const models::Gpt& a, const models::Gpt& b) {
  const auto left = a.named_parameters();
  const auto right = b.named_parameters();
  for (size_t i = 0; i < left.size(); ++i) {
    const Tensor& x = left[i].parameter.tensor();
    if (std::memcmp(x.raw(), right[i].parameter.tensor().raw(), static_cast<size_t>(x.bytes()))) {
      return false;
    }
  }
  return left.size() == right.size();
}

}  // namespace

TEST_CASE_METHOD(Saved, "a saved GPT is loaded again, bit for bit, with its config") {
  const std::string path = folder.path("model.safetensors");
  save(model, path);
  REQUIRE(folder.entries() == 2);
  models::Gpt loaded(read_gpt_config(config_path_beside(path)));
  REQUIRE(loaded.config().width == tiny.width);
  REQUIRE(loaded.config().epsilon == tiny.epsilon);
  GptWeights(path, loaded).load();
  REQUIRE(same_weights(model, loaded));

  const nn::SafetensorsReader file(path);
  REQUIRE(file.metadata().at("format") == "pt");
  REQUIRE(file.entry("transformer.h.1.mlp.c_fc.weight").shape == std::vector<int64_t>{8, 32});
  REQUIRE_THROWS_AS(file.entry("lm_head.weight"), InputError);
}

TEST_CASE_METHOD(Saved, "the writer's file is that of all tensors written at once") {
  save(model, folder.path("a.safetensors"));
  nn::write_safetensors(folder.path("b.safetensors"), tensors_of(model, "transformer."));
  REQUIRE(folder.read("a.safetensors") == folder.read("b.safetensors"));
}

TEST_CASE_METHOD(Saved, "a save that is not completed leaves nothing behind") {
  const auto parameters = model.named_parameters();
  {
    GptWriter writer(folder.path("model.safetensors"), model);
    for (size_t i = 1; i < parameters.size(); ++i) {
      writer.write(parameters[i], parameters[i].parameter.tensor().values<float>());
    }
    const auto values = parameters[0].parameter.tensor().values<float>();
    REQUIRE_THROWS_AS(writer.write(parameters[1], values.first(1)), Error);
    REQUIRE_THROWS_AS(writer.write({"h.9.ln_1.bias", {}}, values), Error);
    REQUIRE_THROWS_WITH(writer.commit(), ContainsSubstring("'transformer.wte.weight' were not"));
  }
  REQUIRE(folder.entries() == 0);
}

TEST_CASE_METHOD(Saved, "parts of parameters are read from files of any precision") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    auto tensors = tensors_of(model, "transformer.");
    for (auto& named : tensors) named.tensor = rounded(named.tensor, dtype);
    tensors.push_back({"lm_head.weight", tensors.front().tensor});
    const std::string path = folder.path("model.safetensors");
    nn::write_safetensors(path, tensors);

    models::Gpt other(tiny);
    const GptWeights weights(path, other);
    const nn::NamedParameter named = other.named_parameters()[3];
    std::vector<float> part(5);
    weights.read(named, 2, part);
    REQUIRE(part == as_floats(tensors[3].tensor.flat(2, 7)));
    REQUIRE_THROWS_AS(weights.read(named, named.parameter.elements() - 4, part), Error);
    REQUIRE_THROWS_AS(weights.read({"absent", {}}, 0, part), Error);

    // Weights are loaded into parameters of any precision. They are rounded if the parameters are
    // narrower than the file's values.
    for (const DType wanted : {DType::f32, DType::bf16, DType::f16}) {
      models::Gpt loaded(tiny);
      loaded.to(wanted);
      GptWeights(path, loaded).load();
      const auto parameters = loaded.named_parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor expected = rounded(tensors[i].tensor, wanted);
        REQUIRE(parameters[i].parameter.dtype() == wanted);
        REQUIRE(as_floats(parameters[i].parameter.tensor()) == as_floats(expected));
      }
    }
  }
}

TEST_CASE_METHOD(Saved, "a weight that a 16-bit parameter cannot hold is refused") {
  const std::string path = folder.path("model.safetensors");
  const auto load_with = [&](float weight, DType dtype) {
    model.named_parameters()[3].parameter.tensor().data<float>()[4] = weight;
    save(model, path);
    models::Gpt loaded(tiny);
    loaded.to(dtype);
    GptWeights(path, loaded).load();
  };
  const std::string message =
      test::message_of<InputError>([&] { load_with(-65520.0f, DType::f16); });
  CHECK_THAT(message, ContainsSubstring("h.0.ln_1.bias: element 4 is -65520"));
  load_with(65519.0f, DType::f16);  // rounded to 65504
  load_with(std::numeric_limits<float>::infinity(), DType::f16);
  load_with(1e30f, DType::bf16);
  constexpr float tie = 0x1.FFp127f;  // halfway between bf16's largest value and 2^128
  CHECK_THAT(test::message_of<InputError>([&] { load_with(-tie, DType::bf16); }),
             ContainsSubstring("h.0.ln_1.bias: element 4 is -3.39") &&
                 ContainsSubstring("but bf16 holds at most 3.3895314e+38; use fp32"));
  load_with(std::nextafter(tie, 0.0f), DType::bf16);  // rounded to the largest value
  load_with(-std::numeric_limits<float>::infinity(), DType::bf16);
  load_with(tie, DType::f32);
}

TEST_CASE_METHOD(Saved, "no prefix, a tied head with a NaN and old buffers are accepted") {
  model.named_parameters().front().parameter.tensor().values<float>()[1] = std::nanf("");
  auto tensors = tensors_of(model, "");
  tensors.push_back({"lm_head.weight", tensors.front().tensor});
  tensors.push_back({"h.0.attn.bias", Tensor::zeros({1, 1, 4, 4}, DType::u8)});
  tensors.push_back({"h.1.attn.masked_bias", Tensor::zeros({})});
  const std::string path = folder.path("a.safetensors");
  nn::write_safetensors(path, tensors);
  models::Gpt loaded(tiny);
  GptWeights(path, loaded).load();
  REQUIRE(same_weights(model, loaded));
}

TEST_CASE_METHOD(Saved, "weights that are not the model's are refused") {
  const auto good = tensors_of(model, "transformer.");
  auto missing = good;
  missing.pop_back();
  REQUIRE_THAT(refusal(missing), ContainsSubstring("it has no tensor \"ln_f.bias\""));

  auto unknown = good;
  unknown.push_back({"transformer.h.2.ln_1.weight", Tensor::zeros({8})});
  REQUIRE_THAT(refusal(unknown), ContainsSubstring("\"h.2.ln_1.weight\" is unknown"));

  auto shape = good;
  shape.back().tensor = Tensor::zeros({9});
  REQUIRE_THAT(refusal(shape), ContainsSubstring("shape is [9], expected [8]"));

  auto rank = good;
  rank.back().tensor = Tensor::zeros({1, 8});
  REQUIRE_THAT(refusal(rank), ContainsSubstring("shape is [1, 8], expected [8]"));

  auto dtype = good;
  dtype.back().tensor = Tensor::zeros({8}, DType::i32);
  REQUIRE_THAT(refusal(dtype), ContainsSubstring("dtype is I32, expected F32, BF16 or F16"));

  auto twice = good;
  twice.push_back({"wte.weight", good.front().tensor});
  REQUIRE_THAT(refusal(twice), ContainsSubstring("with and without the prefix"));

  auto head = good;
  head.push_back({"lm_head.weight", Tensor::zeros({11, 8})});
  REQUIRE_THAT(refusal(head), ContainsSubstring("lm_head.weight differs from"));
  head.back().tensor = Tensor::zeros({12, 8});
  REQUIRE_THAT(refusal(head), ContainsSubstring("shape is [12, 8], expected [11, 8]"));
}

TEST_CASE_METHOD(Saved, "a config.json that says something else is refused") {
  const std::string path = folder.path("model.safetensors");
  save(model, path);
  auto config = nlohmann::json::parse(folder.read("config.json"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto changed = config;
    changed[key] = value;
    folder.file("config.json", changed.dump());
  };
  with("n_head", 4);
  REQUIRE_THAT(test::message_of<InputError>([&] { GptWeights(path, model); }),
               ContainsSubstring("n_head is 4, the model's is 2"));

  const auto refuse = [&] {
    return test::message_of<InputError>([&] { read_gpt_config(folder.path("config.json")); });
  };
  with("activation_function", "relu");
  REQUIRE_THAT(refuse(), ContainsSubstring("activation_function is \"relu\", but only"));
  with("tie_word_embeddings", false);
  REQUIRE_THAT(refuse(), ContainsSubstring("tie_word_embeddings is false"));
  with("n_inner", 31);
  REQUIRE_THAT(refuse(), ContainsSubstring("n_inner is 31"));
  with("model_type", "llama");
  REQUIRE_THAT(refuse(), ContainsSubstring("model_type is \"llama\""));
  REQUIRE_THAT(test::message_of<InputError>([&] { GptWeights(path, model); }),
               ContainsSubstring("config.json: model_type is \"llama\", but only \"gpt2\""));
  REQUIRE_THAT(test::message_of<InputError>([&] { read_gpt_file_sizes(path); }),
               ContainsSubstring("config.json: model_type is \"llama\", but only \"gpt2\""));
  with("n_embd", "8");
  REQUIRE(refuse().ends_with("config.json: n_embd is \"8\", expected a whole number"));
  with("n_embd", 9);
  REQUIRE_THAT(refuse(), ContainsSubstring("n_embd 9 is not divisible by n_head 2"));
  config.erase("n_layer");
  with("n_head", 2);
  REQUIRE_THAT(refuse(), ContainsSubstring("it has no n_layer"));
  folder.file("config.json", "{");
  REQUIRE_THAT(refuse(), ContainsSubstring("is not valid JSON"));
  folder.file("config.json", "[]");
  REQUIRE_THAT(refuse(), ContainsSubstring("is not a JSON object"));
  std::filesystem::remove(folder.path("config.json"));
  REQUIRE_THAT(refuse(), ContainsSubstring("there is no such file"));
  std::filesystem::create_symlink("config.json", folder.path("config.json"));
  REQUIRE_THAT(refuse(), ContainsSubstring("config.json: cannot be opened"));
}

TEST_CASE_METHOD(Saved, "config.json is read within the limits of a GPT, and before weights") {
  const std::string path = folder.path("model.safetensors");
  save(model, path);
  const auto config = nlohmann::json::parse(folder.read("config.json"));
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    auto changed = config;
    changed[key] = value;
    folder.file("config.json", changed.dump());
    return test::message_of<InputError>([&] { read_gpt_config_of(path); });
  };
  constexpr int64_t huge = int64_t{1} << 62;
  CHECK_THAT(refused("n_layer", 1'000'000),
             ContainsSubstring("config.json: n_layer is 1000000, expected at most 16384"));
  for (const char* key : {"n_layer", "n_embd", "n_positions", "vocab_size", "n_head"}) {
    const std::string expected = fmt::format("config.json: {} is {}, expected at most", key, huge);
    CHECK_THAT(refused(key, huge), ContainsSubstring(expected));
    CHECK_THAT(refused(key, uint64_t{1} << 63), ContainsSubstring("expected a whole number"));
  }
  for (const auto& [epsilon, expected] :
       {std::pair{-1.0, "-1, expected above 0"}, std::pair{0.0, "0, expected above 0"},
        std::pair{1e300, "1e+300, which is out of the range"},
        std::pair{1e-60, "1e-60, which is out of the range"}}) {
    CHECK_THAT(refused("layer_norm_epsilon", epsilon),
               ContainsSubstring(std::string("config.json: layer_norm_epsilon is ") + expected));
  }
  CHECK_THAT(refused("initializer_range", "0.3"),
             ContainsSubstring("config.json: initializer_range is not a number"));
  CHECK_THAT(refused("initializer_range", -1),
             ContainsSubstring("initializer_range is -1, expected a finite number of at least 0"));
  CHECK(refused("initializer_range", 0.3) == "nothing was thrown");
  CHECK(read_gpt_config_of(path).initializer_range == 0.3f);
  CHECK_THAT(refused("n_layer", 16384),
             ContainsSubstring("config.json: says n_layer 16384, but the tensors of "));

  auto changed = config;
  changed.update({{"n_layer", 3}, {"vocab_size", 12}});
  changed.erase("model_type");  // without it, the sizes are compared too
  folder.file("config.json", changed.dump());
  CHECK_THAT(test::message_of<InputError>([&] { read_gpt_config_of(path); }),
             ContainsSubstring("says n_layer 3, vocab_size 12, but the tensors of ") &&
                 ContainsSubstring("have 2, 11"));
  for (const std::string& text : {std::string(200'000, '['), std::string((1 << 20) + 1, ' ')}) {
    folder.file("config.json", text);
    CHECK_THROWS_AS(read_gpt_config_of(path), InputError);
    CHECK_THROWS_AS(GptWeights(path, model), InputError);
  }
}

TEST_CASE_METHOD(Saved, "a config.json without model_type is ignored where it may be missing") {
  const std::string path = folder.path("model.safetensors");
  save(model, path);
  auto config = nlohmann::json::parse(folder.read("config.json"));
  config.erase("model_type");
  config["n_head"] = 4;
  folder.file("config.json", config.dump());
  CHECK(read_gpt_config_of(path).heads == 4);
  CHECK_FALSE(read_gpt_file_sizes(path).heads.has_value());
  CHECK_NOTHROW(GptWeights(path, model));
}

TEST_CASE("weights do not replace another program's config.json") {
  const TemporaryFolder folder;
  const std::string path = folder.path("model.safetensors");
  check_gpt_destination(path, GptConfig());
  folder.file("config.json", R"({"name": "a web page"})");
  REQUIRE_THAT(test::message_of<InputError>([&] { check_gpt_destination(path, GptConfig()); }),
               ContainsSubstring("does not describe a GPT-2"));
  folder.file("config.json", R"({"model_type": "gpt2"})");
  check_gpt_destination(path, GptConfig());
  REQUIRE_THROWS_AS(check_gpt_destination(folder.path("") + "/config.json", {}), InputError);
  REQUIRE_THROWS_AS(check_gpt_destination(folder.path("no/gpt"), GptConfig()), InputError);
  REQUIRE(folder.entries() == 1);
}

TEST_CASE_METHOD(Saved, "weights do not replace a config.json that other weights need") {
  const std::string path = folder.path("model.safetensors");
  save(model, path);
  GptConfig larger = tiny;
  ++larger.layers;
  check_gpt_destination(path, larger);  // allowed: weights and config.json are both replaced
  check_gpt_destination(folder.path("again.safetensors"), tiny);
  REQUIRE_THAT(test::message_of<InputError>(
                   [&] { check_gpt_destination(folder.path("larger.safetensors"), larger); }),
               ContainsSubstring("model.safetensors would be left without its sizes") &&
                   ContainsSubstring("n_layer is 2, the model's is 3"));

  // Weights need their config.json also if they are divided among files, or are PyTorch's.
  const auto refused = [&] {
    return test::message_of<InputError>([&] { check_gpt_destination(path, larger); });
  };
  const auto tensors = tensors_of(model, "transformer.");
  const std::string part = folder.path("model-00002-of-00002.safetensors");
  for (const auto& held : {std::vector(tensors.begin(), tensors.begin() + 1),
                           std::vector(tensors.end() - 2, tensors.end())}) {
    nn::write_safetensors(part, held);
    CHECK_THAT(refused(), ContainsSubstring("model-00002-of-00002.safetensors would be left"));
  }
  nn::write_safetensors(part, {{"fc.weight", Tensor::zeros({2})}});
  CHECK(refused() == "nothing was thrown");
  folder.file("pytorch_model-00001-of-00002.bin", "PK\3\4 of torch.save");
  CHECK_THAT(refused(), ContainsSubstring("pytorch_model-00001-of-00002.bin would be left"));
}

TEST_CASE("a model saved by transformers has the logits of transformers") {
  const std::string path = test::fixture("hf_tiny/model.safetensors");
  if (!std::filesystem::exists(path)) TESSERA_SKIP("tests/fixtures/hf_tiny is not there");
  models::Gpt model(read_gpt_config(config_path_beside(path)));
  GptWeights(path, model).load();
  model.eval();

  const nn::SafetensorsReader file(test::fixture("hf_tiny/logits.safetensors"));
  const auto& ids = file.entry("input_ids");
  Tensor tokens = Tensor::empty(Shape(std::span<const int64_t>(ids.shape)), DType::i32);
  file.read(ids, 0, tokens.values<int32_t>());
  std::vector<float> expected(static_cast<size_t>(file.entry("logits").elements()));
  file.read<float>(file.entry("logits"), 0, expected);

  NoGrad no_grad;
  const Tensor logits = model.logits(tokens);
  REQUIRE(logits.elements() == std::ssize(expected));
  for (size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(std::abs(logits.values<float>()[i] - expected[i]) < 1e-4f);
  }
}
