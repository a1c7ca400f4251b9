// Tests names, order, sharing, modes and memory of modules.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "nn/convolution.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A module to which tests add parameters, children and blocks from outside.
class Open : public Module {
 public:
  using Module::add;
  using Module::begin_block;
};

std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names;
  for (const auto& named : module.named_parameters()) names.push_back(named.name);
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("parameters are listed by name, in order of registration") {
  Open root, branch, leaf;
  leaf.add("w", Parameter({2, 3}, Initializer::zeros()));
  branch.add("b", Parameter({4}, Initializer::zeros()));
  branch.add("leaf", leaf);
  root.add("z", Parameter({1}, Initializer::zeros()));
  root.add("branch", branch);
  root.add("a", Parameter({}, Initializer::zeros()));
  CHECK(names_of(root) == Names{"z", "branch.b", "branch.leaf.w", "a"});
  CHECK(root.parameter_count() == 1 + 4 + 6 + 1);
  CHECK(names_of(Open()).empty());
  CHECK(Open().parameter_count() == 0);
}

TEST_CASE("a shared parameter is listed once, under its first name") {
  Open root, head;
  const Parameter table = root.add("table", Parameter({5, 2}, Initializer::zeros()));
  root.add("other", Parameter({3}, Initializer::zeros()));
  head.add("weight", table);
  root.add("head", head);
  const auto list = root.named_parameters();
  REQUIRE(list.size() == 2);
  CHECK(list[0].name == "table");
  CHECK(list[0].shared);
  CHECK(list[0].parameter.same(table));
  CHECK_FALSE(list[1].shared);
  CHECK(root.further_names() == std::map<std::string, std::string>{{"head.weight", "table"}});
  CHECK(root.parameter_count() == 13);
}

TEST_CASE("a module that would contain itself is refused") {
  Open root, branch, leaf;
  CHECK_THROWS_WITH(root.add("me", root), "module: 'me' would contain itself");
  root.add("branch", branch);
  branch.add("leaf", leaf);
  CHECK_THROWS_WITH(leaf.add("root", root), "module: 'root' would contain itself");
  leaf.add("w", Parameter({1}, Initializer::zeros()));
  CHECK(names_of(root) == Names{"branch.leaf.w"});
}

TEST_CASE("the running statistics of a shared batch norm are listed once, under its first name") {
  Open root;
  BatchNorm2d norm(2), other(2);
  root.add("x", norm);
  root.add("other", other);
  root.add("y", norm);
  const auto list = root.named_statistics();
  REQUIRE(list.size() == 2);
  CHECK(list[0].name == "x");
  CHECK(list[1].name == "other");
  CHECK(list[0].statistics != list[1].statistics);
}

TEST_CASE("two parameters with the same name are an error") {
  const auto fresh = [] { return Parameter({1}, Initializer::zeros()); };
  Open root;
  SECTION("in one module") {
    root.add("w", fresh());
    root.add("w", fresh());
  }
  SECTION("the same parameter twice") {
    const Parameter parameter = root.add("w", fresh());
    root.add("w", parameter);
  }
  SECTION("a new parameter takes the second name of a shared one") {
    const Parameter parameter = root.add("first", fresh());
    root.add("w", parameter);
    root.add("w", fresh());
  }
  SECTION("a shared parameter takes another's name as its second") {
    const Parameter parameter = root.add("first", fresh());
    root.add("w", fresh());
    root.add("w", parameter);
  }
  CHECK_THROWS_WITH(root.named_parameters(), ContainsSubstring("two parameters are called 'w'"));
}

TEST_CASE("a path of children can collide with a name too") {
  Open root, child;
  child.add("w", Parameter({1}, Initializer::zeros()));
  root.add("child", child);
  root.add("child.w", Parameter({1}, Initializer::zeros()));
  CHECK_THROWS_WITH(root.parameter_count(), ContainsSubstring("'child.w'"));
}

TEST_CASE("a name that is not UTF-8 is an error") {
  Open root, child;
  child.add("w\xe4", Parameter({1}, Initializer::zeros()));
  root.add("child", child);
  CHECK_THROWS_WITH(root.named_parameters(), "module: the name \"child.w\\ufffd\" is not UTF-8");
  Open other;
  BatchNorm2d norm(2);
  other.add("\xff", norm);
  CHECK_THROWS_WITH(other.named_statistics(), "module: the name \"\\ufffd\" is not UTF-8");
  Open umlaut;
  umlaut.add("w\xc3\xa4", Parameter({1}, Initializer::zeros()));
  CHECK(names_of(umlaut) == Names{"w\xc3\xa4"});
}

TEST_CASE("an undefined parameter cannot be registered") {
  Open root;
  CHECK_THROWS_WITH(root.add("bias", Parameter()),
                    ContainsSubstring("parameter 'bias' is not defined"));
}

TEST_CASE("blocks are numbered over the whole model, in order of registration") {
  const auto fresh = [] { return Parameter({1}, Initializer::zeros()); };
  Open root, plain, inner;
  root.add("before", fresh());
  root.begin_block();
  const Parameter table = root.add("table", fresh());
  plain.add("a", fresh());
  root.add("plain", plain);
  plain.add("b", fresh());  // joins the block of `root` that contains `plain`
  root.begin_block();
  root.add("middle", fresh());
  inner.add("first", fresh());
  inner.begin_block();
  inner.add("second", fresh());
  root.add("inner", inner);
  root.add("after", fresh());
  root.begin_block();
  root.add("tied", table);
  root.add("last", fresh());
  std::vector<std::pair<std::string, int>> blocks;
  for (const auto& named : root.named_parameters()) blocks.emplace_back(named.name, named.block);
  CHECK(blocks == std::vector<std::pair<std::string, int>>{{"before", -1},
                                                           {"table", 0},
                                                           {"plain.a", 0},
                                                           {"plain.b", 0},
                                                           {"middle", 1},
                                                           {"inner.first", 1},
                                                           {"inner.second", 2},
                                                           {"after", 2},
                                                           {"last", 3}});
  CHECK(inner.named_parameters()[1].block == 0);
  CHECK(Linear(1, 1).named_parameters()[0].block == -1);
}

TEST_CASE("train() and eval() reach all modules below") {
  Open root, branch, leaf;
  branch.add("leaf", leaf);
  root.add("branch", branch);
  CHECK(leaf.training());
  root.eval();
  CHECK_FALSE(root.training());
  CHECK_FALSE(leaf.training());
  branch.train();
  CHECK_FALSE(root.training());
  CHECK(leaf.training());
}

TEST_CASE("Evaluating gives every module the mode back that it had before") {
  Open root, branch, leaf, frozen;
  branch.add("leaf", leaf);
  root.add("branch", branch);
  root.add("frozen", frozen);
  frozen.eval();
  {
    const Evaluating evaluating(root);
    for (const Module* module : {&root, &branch, &leaf, &frozen}) CHECK_FALSE(module->training());
  }
  for (const Module* module : {&root, &branch, &leaf}) CHECK(module->training());
  CHECK_FALSE(frozen.training());
  root.eval();
  leaf.train();
  {
    const Evaluating evaluating(root);
    CHECK_FALSE(leaf.training());
  }
  CHECK_FALSE(root.training());
  CHECK_FALSE(branch.training());
  CHECK(leaf.training());
}

TEST_CASE("calling a module without a forward of one tensor is an error") {
  Open root;
  CHECK_THROWS_WITH(root(Tensor::zeros({1})), ContainsSubstring("forward(x) is not defined"));
}

TEST_CASE("materialize gives every parameter memory and its initial values") {
  const int64_t before = memory_ledger().current(Category::parameters);
  {
    Open root;
    Linear linear(3, 2);
    LayerNorm norm(4);
    root.add("linear", linear);
    root.add("norm", norm);
    root.add("tied", linear.weight);
    materialize(root, {}, 5);
    CHECK(memory_ledger().current(Category::parameters) - before == 4 * (6 + 2 + 4 + 4));
    CHECK(linear.weight.leaf().name == "linear.weight");
    CHECK(norm.bias.leaf().name == "norm.bias");

    std::vector<float> expected(6);
    initialize(linear.weight.initializer(), 5, "linear.weight", 0, expected);
    CHECK(values_of(linear.weight) == Values(expected.begin(), expected.end()));
    CHECK(values_of(norm.weight) == Values{1, 1, 1, 1});
    CHECK(values_of(norm.bias) == Values{0, 0, 0, 0});

    // Parameters that already have memory keep that memory and their values.
    norm.weight.tensor().data<float>()[0] = 7;
    const void* address = linear.weight.tensor().raw();
    materialize(root, {}, 6);
    CHECK(linear.weight.tensor().raw() == address);
    CHECK(values_of(linear.weight) == Values(expected.begin(), expected.end()));
    CHECK(norm.weight.tensor().data<float>()[0] == 7);
  }
  CHECK(memory_ledger().current(Category::parameters) == before);
}

TEST_CASE("a model's dtype can change only while it has no memory") {
  Open root;
  Linear linear(3, 2);
  LayerNorm norm(4);
  root.add("linear", linear);
  root.add("norm", norm);
  root.add("tied", linear.weight);
  const int64_t before = memory_ledger().current(Category::parameters);
  root.to(DType::bf16);
  for (const auto& named : root.named_parameters()) {
    CHECK(named.parameter.dtype() == DType::bf16);
  }
  materialize(root, {}, 5);
  CHECK(memory_ledger().current(Category::parameters) - before == 2 * (6 + 2 + 4 + 4));
  std::vector<float> expected(6);
  initialize(linear.weight.initializer(), 5, "linear.weight", 0, expected);
  for (size_t i = 0; i < 6; ++i) {
    CHECK(linear.weight.tensor().values<BFloat16>()[i] == BFloat16(expected[i]));
  }
  root.to(DType::bf16);  // no change
  CHECK_THROWS_WITH(root.to(DType::f32), ContainsSubstring("parameter 'linear.weight' already has "
                                                           "memory, as bf16"));
  CHECK(norm.bias.dtype() == DType::bf16);
}

TEST_CASE("initial values do not depend on the rest of the model") {
  Open small, large;
  Linear a(4, 4), b(4, 4), other(9, 9);
  small.add("layer", a);
  large.add("other", other);
  large.add("layer", b);
  materialize(small, {}, 3);
  materialize(large, {}, 3);
  CHECK(same_bits(a.weight, b.weight));
  Open third;
  Linear c(4, 4);
  third.add("layer", c);
  materialize(third, {}, 4);
  CHECK_FALSE(same_bits(a.weight, c.weight));
}

TEST_CASE("materialize refuses a missing device") {
  Linear linear(2, 2);
  const Device missing{DeviceType::cuda, cuda::device_count()};
  CHECK_THROWS_WITH(materialize(linear, missing),
                    ContainsSubstring("there is no device " + missing.to_string()));
  CHECK_FALSE(linear.weight.tensor().allocated());
}

TEST_CASE("a parameter whose initial values cannot be drawn has no memory afterwards") {
  Open root;
  const Parameter whole = root.add("whole", Parameter({2}, Initializer::ones(), DType::i64));
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK_THROWS_WITH(materialize(root), ContainsSubstring("expected f32, bf16 or f16"));
    CHECK_FALSE(whole.tensor().allocated());
  }
}

TEST_CASE("Sequential numbers its modules and runs them in order") {
  Sequential model;
  Linear& first = model.emplace<Linear>(3, 5);
  model.emplace<Gelu>();
  Linear& last = model.emplace<Linear>(5, 2, Linear::Options{.bias = false});
  CHECK(names_of(model) == Names{"0.weight", "0.bias", "2.weight"});
  CHECK(model.parameter_count() == 15 + 5 + 10);
  materialize(model, {}, 1);
  const Tensor x = random_tensor({4, 3}, 1);
  CHECK(same_bits(model(x), last(ops::gelu(first(x)))));
  backward(ops::sum(model(x)));
  for (const auto& named : model.named_parameters()) {
    CHECK(named.parameter.gradient().shape() == named.parameter.shape());
  }
  CHECK(Sequential()(x).raw() == x.raw());
  model.eval();
  CHECK_FALSE(first.training());
}
