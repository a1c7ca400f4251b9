#include "core/recompute.h"

#include <algorithm>
#include <utility>

#include "core/autograd.h"
#include "core/random.h"
#include "core/trace.h"

namespace tessera {
namespace {

/// Sets an earlier dropout state while the object lives, so that dropout draws the earlier masks.
class DropoutAsOf {
 public:
  explicit DropoutAsOf(const DropoutState& state)
      : before_(std::exchange(dropout_state(), state)) {}
  ~DropoutAsOf() { dropout_state() = before_; }
  DropoutAsOf(const DropoutAsOf&) = delete;
  DropoutAsOf& operator=(const DropoutAsOf&) = delete;

 private:
  DropoutState before_;
};

thread_local bool is_repeated = false;

/// Exists while backward runs a segment again. Meanwhile segment_is_repeated() returns true, also
/// in segments nested in this segment. The destructor restores the earlier result of
/// segment_is_repeated().
class Repeating {
 public:
  Repeating() : before_(std::exchange(is_repeated, true)) {}
  ~Repeating() { is_repeated = before_; }
  Repeating(const Repeating&) = delete;
  Repeating& operator=(const Repeating&) = delete;

 private:
  bool before_;
};

using Tensors = std::vector<Tensor>;

Tensors::const_iterator find(const Tensors& list, Tensors::const_iterator end, const Tensor& x) {
  return std::find_if(list.begin(), end, [&x](const Tensor& other) { return other.same(x); });
}

/// Runs the segment for the first time, without recording. Adds the segment's parameters to
/// `inputs`.
Tensors run_first(const char* name, const Segment& segment, const Tensors& values,
                  Tensors& inputs) {
  const trace::Scope scope(name);
  const NoGrad no_grad;
  const InputCollector collector;
  Tensors results = segment(values);
  for (const Tensor& input : collector.inputs()) {
    TESSERA_CHECK(input.leaf() != nullptr,
                  "{}: the segment uses a tensor of shape {} that has history but is not among its "
                  "inputs; pass it as an input, or detach it",
                  name, input.shape());
    inputs.push_back(input);
  }
  return results;
}

/// Called for a segment that runs without recording. If a containing segment is in its first run,
/// adds the trainable parameters among `inputs` to those that the containing segment uses. When
/// backward runs the containing segment again, the inner segment's node has all of `inputs`, even
/// those that no operation reads, and each trainable parameter among them awaits a contribution.
/// Tensors with history are not added: a segment may return one from outside without reading it.
void collect_parameters(const char* name, const Tensors& inputs) {
  Tensors parameters;
  for (const Tensor& input : inputs) {
    if (input.defined() && input.leaf()) parameters.push_back(input);
  }
  record(name, std::span<Tensor>(), std::span<const Tensor>(parameters), nullptr);
}

/// Returns the positions of the results that the segment has made itself. If the segment returns a
/// tensor several times, only the tensor's first position counts.
std::vector<size_t> new_results(const Tensors& results, const Tensors& values) {
  std::vector<size_t> positions;
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& result = results[i];
    if (!result.defined() || result.leaf() || result.producer()) continue;
    const auto before = results.begin() + static_cast<std::ptrdiff_t>(i);
    if (find(values, values.end(), result) != values.end()) continue;
    if (find(results, before, result) == before) positions.push_back(i);
  }
  return positions;
}

Tensors chosen(const Tensors& list, const std::vector<size_t>& positions) {
  Tensors result;
  for (const size_t position : positions) result.push_back(list[position]);
  return result;
}

/// Replaces each tensor from[i] in the list by with[i].
void replace(Tensors& list, const Tensors& from, const Tensors& with) {
  for (Tensor& tensor : list) {
    const auto at = find(from, from.end(), tensor);
    if (at != from.end()) tensor = with[static_cast<size_t>(at - from.begin())];
  }
}

}  // namespace

std::vector<Tensor> recompute(const char* name, std::vector<Tensor> inputs, Segment segment) {
  if (!grad_enabled()) {
    collect_parameters(name, inputs);
    return segment(inputs);
  }
  const DropoutState drawn_at = dropout_state();
  const std::vector<Kept> kept(inputs.begin(), inputs.end());
  Tensors values;
  for (const Tensor& input : inputs) values.push_back(saved(input));
  Tensors results = run_first(name, segment, values, inputs);

  const std::vector<size_t> positions = new_results(results, values);
  const Tensors made = chosen(results, positions);
  Tensors outputs;
  for (const Tensor& tensor : made) outputs.push_back(tensor.detach());  // record() adds a history
  record(name, outputs, inputs,
         [name, kept, segment = std::move(segment), drawn_at, positions, count = results.size()](
             std::span<const Tensor>, InputGradients& grads) {
           Tensors again;
           for (const Kept& input : kept) again.push_back(input.get());
           const auto run = [&](const Tensors& in) {
             const trace::Scope scope("recompute");
             const DropoutAsOf as_of(drawn_at);
             const Repeating repeating;
             const Tensors list = segment(in);
             TESSERA_CHECK(list.size() == count,
                           "{}: the segment has {} outputs when it runs again, expected {}", name,
                           list.size(), count);
             return chosen(list, positions);
           };
           grads.differentiate_through(run, std::move(again));
         });
  // Results that the segment made get the history that record() gave to `outputs`. Results that are
  // inputs keep their own history.
  replace(results, made, outputs);
  replace(results, values, inputs);
  return results;
}

bool segment_is_repeated() { return is_repeated; }

}  // namespace tessera
