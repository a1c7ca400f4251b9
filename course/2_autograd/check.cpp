// Grades lesson 2: the loops, the recorded operation, its announcements of parameters (InUse), and
// the order in which gradients become complete.
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check_gradient.h"
#include "course/2_autograd/mlp.h"
#include "course/lib/grade.h"

namespace course {
namespace {

// Runs `body`. Returns the message of the Error that `body` throws, or "".
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Calls `compute` on a tensor filled with NaN. Requires that the tensor has the values `expected`
// after the call.
void require_values(Grade& grade, const std::string& requirement, const char* name,
                    const Shape& shape, const std::function<void(const Tensor&)>& compute,
                    const Values& expected, const std::vector<Mistake>& mistakes) {
  const Tensor found = Tensor::full(shape, NAN);
  std::string wrong = error_of([&] { compute(found); });
  if (wrong.empty()) wrong = wrong_values(name, values_of(found), expected, shape[-1], mistakes);
  grade.require(requirement, wrong);
}

const char* const mean_text =
    "The result is divided by the number of rows. If the loss is a mean, dy is divided already";

void check_loops(Grade& grade, const Example& example) {
  constexpr int64_t rows = Example::rows, in = Example::in, out = Example::out;
  const auto& [x, weight, bias, dy] = example;
  require_values(grade, "multiply: y = x W + b", "y", {rows, out},
                 [&](const Tensor& y) { multiply(y, x, weight, bias); }, example.y(),
                 {{"Where is the bias?", example.y(false)}});
  require_values(grade, "multiply, without bias", "y", {rows, out},
                 [&](const Tensor& y) { multiply(y, x, weight, {}); }, example.y(false), {});
  require_values(
      grade, "input_gradient: dx = dy W^T", "dx", {rows, in},
      [&](const Tensor& dx) { input_gradient(dx, dy, weight); }, example.dx(),
      {{"W is read as if it were stored as (out, in): its element (i, o) is at i * out + o",
        example.dx_with_wrong_layout()}});
  const std::string alone = "row's part only: a weight acts on every row of the batch";
  require_values(grade, "weight_gradient: dW = x^T dy", "dW", {in, out},
                 [&](const Tensor& dweight) { weight_gradient(dweight, x, dy); }, example.dweight(),
                 {{"The numbers of dW are right, but it is stored as (out, in)",
                   transposed(example.dweight(), in, out)},
                  {"dW has the last " + alone, example.dweight(rows - 1)},
                  {"dW has the first " + alone, example.dweight(0, 1)},
                  {mean_text, scaled(example.dweight(), 1.0f / rows)}});
  require_values(grade, "bias_gradient: db is the sum of dy's rows", "db", {out},
                 [&](const Tensor& dbias) { bias_gradient(dbias, dy); }, example.dbias(),
                 {{"Instead of the sum of dy's rows it is the last row alone: a bias acts on every "
                   "row of the batch",
                   example.dbias(rows - 1)},
                  {"Instead of the sum of dy's rows it is the first row alone: a bias acts on "
                   "every row of the batch",
                   example.dbias(0, 1)},
                  {mean_text, scaled(example.dbias(), 1.0f / rows)}});
}

Tensor contracted(const Tensor& y, const Tensor& dy) { return ops::sum(ops::mul(y, dy)); }

// Returns the names of the operations that one call of the student's linear records.
std::vector<std::string> operations_of(const Example& example) {
  std::vector<std::string> names;
  observe_outputs(
      [&](const char* name, const Tensor&, std::span<const Tensor>) { names.emplace_back(name); });
  linear(example.x, example.weight, example.bias);
  observe_outputs(nullptr);
  return names;
}

void check_forward(Grade& grade, const Example& example) {
  const Tensor y = linear(example.x, example.weight, example.bias);
  const Tensor theirs =
      ops::linear(example.x, example.weight, example.bias, {.layout = WeightLayout::in_out});
  grade.require("linear has the values of ops::linear",
                y.shape() == theirs.shape()
                    ? wrong_values("y", values_of(y), values_of(theirs), Example::out)
                    : fmt::format("y has shape {}, expected {}", y.shape(), theirs.shape()));
  const auto names = operations_of(example);
  const std::vector<std::string> expected{operation};
  grade.require("linear is one operation, and your own",
                names == expected ? ""
                                  : fmt::format("a call records the operations {}, expected {}",
                                                names, expected));
}

struct Wanted {
  bool x, weight, bias;
};

// Runs the forward and backward of a layer. `wanted` says which of x, weight and bias need a
// gradient. Returns a message if one of these gradients is wrong or an Error is thrown. If
// `without_bias`, the layer has no bias.
std::string gradient_message(const Example& example, Wanted wanted, bool without_bias = false) {
  const Tensor x = wanted.x ? parameter("x", example.x) : example.x;
  const Tensor weight = parameter("weight", example.weight, wanted.weight);
  const Tensor bias = without_bias ? Tensor() : parameter("bias", example.bias, wanted.bias);
  const std::string error =
      error_of([&] { backward(contracted(linear(x, weight, bias), example.dy)); });
  std::string wrong;
  if (error.ends_with("is not wanted")) {
    wrong = error + "\n      Ask grads.wanted(input) first: data needs no gradient";
  } else {
    wrong = error;
  }
  const auto compare = [&](const Tensor& tensor, const char* name, bool is_wanted,
                           const Values& values, int64_t columns) {
    if (!wrong.empty() || !is_wanted) return;
    wrong = wrong_values(name, values_of(tensor.leaf()->gradient), values, columns);
  };
  compare(x, "dx", wanted.x, example.dx(), Example::in);
  compare(weight, "dW", wanted.weight, example.dweight(), Example::out);
  compare(bias, "db", wanted.bias && !without_bias, example.dbias(), Example::out);
  if (wrong.empty()) return wrong;
  return fmt::format("where the gradients of x, weight and bias are {}, {} and {}: {}",
                     wanted.x ? "wanted" : "not wanted", wanted.weight ? "wanted" : "not wanted",
                     without_bias  ? "absent"
                     : wanted.bias ? "wanted"
                                   : "not wanted",
                     wrong);
}

std::string differences_message(int64_t rank) {
  const auto halves = [](const Shape& shape, int64_t seed) {
    const Tensor tensor = integers(shape, seed);
    for (float& value : tensor.values<float>()) value = 0.37f * value + 0.11f;
    return tensor;
  };
  const GradientCheck check =
      check_gradient([](const auto& in) { return linear(in[0], in[1], in[2]); },
                     {halves({7, 5}, rank), halves({5, 2}, rank + 1), halves({2}, rank + 2)});
  if (check) return "";
  std::ostringstream text;
  text << check;
  return text.str();
}

// Checks the gradient of a weight that is used twice, on different inputs.
std::string tied_message(const Example& example, const Example& other) {
  const Tensor weight = parameter("weight", example.weight);
  const Tensor first = linear(example.x, weight, {});
  const Tensor second = linear(other.x, weight, {});
  // Backward visits the uses in reverse: the first contribution to dW comes from `second`, and the
  // second contribution comes from `first`.
  backward(ops::add(contracted(first, example.dy), contracted(second, other.dy)));
  const Values by_first = example.dweight();
  const Values by_second = other.dweight();
  Values sum = by_first;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += by_second[i];
  return wrong_values("dW", values_of(weight.leaf()->gradient), sum, Example::out,
                      {{"Of the two contributions, the second contribution has overwritten the "
                        "first. grads.destination gives the right memory for each",
                        by_first},
                       {"dW has only the first contribution: the second one is lost", by_second}});
}

// Checks the graph after the forward. The closure that linear() records must not keep the history
// of x. The closure must not keep y either: y owns the closure, so without a backward y and the
// closure would never be freed.
std::string history_message(const Example& example) {
  const Tensor weight = parameter("weight", example.weight);
  Tensor x = ops::scale(parameter("x", example.x), 2);
  const std::weak_ptr<Node> before = x.producer();
  Tensor y = linear(x, weight, example.bias);
  x = {};
  if (!y.producer()) return "y has no history: is it what record() returned?";
  if (before.use_count() > 1) {
    return "the closure keeps x with its history: it should capture saved(x), or a long graph is "
           "released by a deep recursion";
  }
  const std::weak_ptr<Node> own = y.producer();
  y = {};
  if (!own.expired()) {
    return "the graph is not released when y is: does the closure capture y? Then y keeps the "
           "closure and the closure keeps y";
  }
  return "";
}

void check_operation(Grade& grade, const Example& example, const Example& other) {
  check_forward(grade, example);
  grade.require("backward gives dx, dW and db", gradient_message(example, {true, true, true}));
  grade.require("dx, dW and db agree with finite differences",
                differences_message(grade.world().rank));
  std::string wrong = gradient_message(example, {false, true, true});
  if (wrong.empty()) wrong = gradient_message(example, {true, false, true});
  if (wrong.empty()) wrong = gradient_message(example, {true, true, false});
  if (wrong.empty()) wrong = gradient_message(example, {true, true, false}, true);
  grade.require("only gradients that are wanted are computed", wrong);
  grade.require("a weight that is used twice gets the sum", tied_message(example, other));
  grade.require("the closure keeps no history", history_message(example));
}

int64_t count(const Events& events, const std::string& kind, const std::string& name) {
  return std::ranges::count_if(events.list(), [&](const Event& event) {
    return event.kind == kind && event.parameter == name;
  });
}

// Checks the announcements of one pass, a forward or a backward; `phase` names the pass. The pass
// must announce the parameters in `read`, and must not announce `not_read`. `error` is the message
// of the Error that the pass threw, or "".
std::string announcements(const std::string& phase, const Events& events, const std::string& error,
                          const std::vector<std::string>& read, const std::string& not_read = "") {
  for (const std::string& name : read) {
    if (count(events, "use", name) > 0) continue;
    return fmt::format(
        "{} does not announce '{}', whose values it reads: at ZeRO-3 they are not there", phase,
        name);
  }
  if (!not_read.empty() && count(events, "use", not_read) > 0) {
    return fmt::format(
        "{} announces '{}', whose values it does not need: at ZeRO-3 every rank would fetch them "
        "for nothing",
        phase, not_read);
  }
  if (error.find("has memory only while") != std::string::npos && !read.empty()) {
    return fmt::format(
        "{} reads a parameter that is not in use. Perhaps it announces '{}', and reads it when the "
        "announcement has ended: an InUse without a name ends at once",
        phase, read[0]);
  }
  if (!error.empty()) return fmt::format("{} fails with: {}", phase, error);
  for (const char* name : {"x", "weight", "bias"}) {
    const int64_t uses = count(events, "use", name);
    const int64_t ends = count(events, "done", name);
    if (uses == ends) continue;
    return fmt::format("{} announces {} uses of '{}', and {} ends of a use", phase, uses, name,
                       ends);
  }
  return "";
}

void check_announcements(Grade& grade, const Example& example) {
  Events events;
  Lent x("x", example.x, events);
  Lent weight("weight", example.weight, events);
  Lent bias("bias", example.bias, events);
  Tensor y;
  std::string error = error_of([&] { y = linear(x.tensor, weight.tensor, bias.tensor); });
  std::string wrong = announcements("the forward", events, error, {"x", "weight", "bias"});
  if (wrong.empty()) wrong = wrong_values("y", values_of(y), example.y(), Example::out);
  grade.require("the forward announces what it reads", wrong);

  events.clear();
  error = error_of([&] { backward(contracted(y, example.dy)); });
  wrong = announcements("backward", events, error, {"weight", "x"}, "bias");
  if (wrong.empty()) wrong = wrong_values("dx", x.gradient(), example.dx(), Example::in);
  if (wrong.empty()) wrong = wrong_values("dW", weight.gradient(), example.dweight(), Example::out);
  if (wrong.empty()) wrong = wrong_values("db", bias.gradient(), example.dbias(), Example::out);
  grade.require("backward announces what it reads, and not the bias", wrong);

  const auto not_announced = [&](const Tensor& input, const Tensor& w, const std::string& layer,
                                 const std::string& not_read) -> std::string {
    error = error_of([&] { y = linear(input, w, bias.tensor); });
    if (!error.empty()) return fmt::format("the forward of {} fails with: {}", layer, error);
    events.clear();
    error = error_of([&] { backward(contracted(y, example.dy)); });
    return announcements("backward of " + layer, events, error, {}, not_read);
  };
  // The input of a network's first layer is data, so dx is not wanted.
  grade.require("backward does not announce the weight if dx is not wanted",
                not_announced(example.x, weight.tensor, "a first layer", "weight"));
  const Tensor frozen = parameter("weight", example.weight, false);
  grade.require("backward does not announce x if dW is not wanted",
                not_announced(x.tensor, frozen, "a layer with a frozen weight", "x"));
}

// Compares the gradients that the hook saw with the gradients of `reference`, the same network with
// ops::linear.
std::string complete_message(const Told& told, const Mlp& model, const Mlp& reference) {
  const auto parameters = reference.named_parameters();
  const auto own = model.named_parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto& [name, parameter, shared, block] = parameters[p];
    const auto seen = told.gradients.find(name);
    if (seen == told.gradients.end()) continue;
    if (seen->second.empty()) {
      return fmt::format(
          "when the hook is called for '{}', there is no gradient: it is called when autograd asks "
          "for the gradient's memory, before the first contribution is written",
          name);
    }
    const Values expected = values_of(parameter.gradient());
    const int64_t columns = parameter.shape()[-1];
    std::string wrong = wrong_values(fmt::format("the gradient of '{}' that the hook sees", name),
                                     seen->second, expected, columns);
    if (!wrong.empty() && values_of(own[p].parameter.gradient()) == expected) {
      wrong +=
          "\n      After backward the gradient is right: the hook is called before it is complete";
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string ranks_message(Grade& grade, const std::vector<std::string>& names) {
  const std::string own = fmt::format("{}", fmt::join(names, ", "));
  const std::string first = dist::broadcast_text(grade.communicator(), own);
  if (own == first) return "";
  return fmt::format("the order is {}; on rank 0 it is {}", own, first);
}

void check_order(Grade& grade) {
  const int rank = grade.world().rank;
  const std::vector<std::string> expected{"fc3.bias",   "fc2.weight", "fc2.bias",
                                          "fc1.weight", "fc1.bias",   "fc0.weight"};
  Mlp reference(library_linear);
  const Tensor x = integers({Mlp::rows, 8}, rank);
  backward(reference.loss(x));
  Mlp model(linear);
  Watched watched(model);
  const Told told = watched.run(x);
  grade.require("the hook is called once for each parameter", once_message(told, expected));
  grade.require("the gradient is complete when the hook is called",
                complete_message(told, model, reference));
  grade.require("last layer first, the tied weight last", order_message(told.names, expected));
  grade.require("all ranks have the same order", ranks_message(grade, told.names));

  // On all ranks but rank 0 the inputs are zero, so that many gradients are zero.
  const Told again = watched.run(rank == 0 ? x : Tensor::zeros({Mlp::rows, 8}));
  const std::string unlike = ranks_message(grade, again.names);  // collective: all ranks call it
  std::string wrong = once_message(again, expected);
  if (wrong.empty()) wrong = unlike;
  grade.require("the next backward has the same order, whatever the data", wrong);

  const Told part = watched.run(x, false);
  grade.require("the hook is not called for a parameter that the loss does not depend on",
                once_message(part, {expected.begin() + 1, expected.end()}));

  Mlp frozen(linear);
  for (const nn::NamedParameter& named : frozen.named_parameters()) {
    if (named.name == "fc2.weight" || named.name == "fc1.bias")
      named.parameter.set_trainable(false);
  }
  Watched watched_frozen(frozen);
  grade.require(
      "the hook is not called for a frozen parameter",
      once_message(watched_frozen.run(x), {"fc3.bias", "fc2.bias", "fc1.weight", "fc0.weight"}));
}

void check_predictions(Grade& grade) {
  const Tensor x = Tensor::from<float>({3, 2}, {2, 1, 0, 3, 4, 1});
  const Tensor dy = Tensor::from<float>({3, 2}, {1, 5, 2, 0, 3, 1});
  const Tensor weight = parameter("weight", integers({2, 2}, 0));
  const Tensor bias = parameter("bias", integers({2}, 0));
  backward(contracted(linear(x, weight, bias), dy));
  grade.predicted("element (1, 0) of dW", std::llround(at(weight.leaf()->gradient, 1, 0)));
  grade.predicted("element 1 of db", std::llround(bias.leaf()->gradient.data<float>()[1]));

  Mlp model(linear);
  const std::vector<nn::NamedParameter> parameters = model.named_parameters();
  Watched watched(model);
  Events events;
  watch(parameters, events);
  const Told told = watched.run(integers({Mlp::rows, 8}, 0));
  int64_t before = 0;
  int64_t elements = 0;
  while (told.names[static_cast<size_t>(before)] != "fc0.weight") {
    elements += std::ssize(told.gradients.at(told.names[static_cast<size_t>(before++)]));
  }
  grade.predicted("uses of fc0.weight that a forward and a backward announce",
                  count(events, "use", "fc0.weight"));
  grade.predicted("parameters that are complete before fc0.weight", before);
  grade.predicted("bytes of gradients that are complete before fc0.weight", 4 * elements);
}

void check(Grade& grade) {
  const int rank = grade.world().rank;
  const Example example(rank);
  const Example other(rank + 100);
  check_loops(grade, example);
  check_operation(grade, example, other);
  check_announcements(grade, example);
  check_order(grade);
  if (grade.world().size == 3) check_predictions(grade);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 2: autograd and a layer", course::check);
}
