// Prints how two checkpoints differ.
#include <vector>

#include <fmt/format.h>

#include "apps/checkpoint/commands.h"
#include "core/text/number_text.h"
#include "nn/safetensors.h"
#include "train/checkpoint/compare_checkpoints.h"

namespace tessera::apps {
namespace {

// Returns the indices of an element as text: element 7 of a tensor of shape [2, 4] is at "[1, 3]".
std::string place_of(int64_t element, const Shape& shape) {
  std::vector<int64_t> places(static_cast<size_t>(shape.rank()));
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    places[static_cast<size_t>(dim)] = element % shape[dim];
    element /= shape[dim];
  }
  return fmt::format("[{}]", fmt::join(places, ", "));
}

void print_tensors(const train::CheckpointDifference& difference) {
  if (!difference.tensors.empty()) fmt::print("tensors that differ\n");
  for (const train::TensorDifference& tensor : difference.tensors) {
    fmt::print("  {}: {} of {}, the first at {}: {} and {}\n", plain(tensor.path),
               grouped(tensor.different), counted(tensor.shape.elements(), "element"),
               place_of(tensor.first, tensor.shape), tensor.a, tensor.b);
  }
  if (!difference.forms.empty()) fmt::print("tensors of another dtype or shape\n");
  for (const auto& [path, a, b] : difference.forms) {
    fmt::print("  {}: {} and {}\n", plain(path), a, b);
  }
}

void print_paths(const std::vector<std::string>& paths, const std::string& folder) {
  if (paths.empty()) return;
  fmt::print("tensors that only {} has\n", folder);
  for (const std::string& path : paths) fmt::print("  {}\n", plain(path));
}

}  // namespace

int diff_checkpoints(const CheckpointToolOptions& options) {
  const auto a = open_whole_checkpoint(options.path);
  const auto b = open_whole_checkpoint(options.other);
  const auto difference = train::compare_checkpoints(*a, *b, true);
  fmt::print("a: {}\nb: {}\n", a->folder(), b->folder());
  print_tensors(difference);
  print_paths(difference.only_a, "a");
  print_paths(difference.only_b, "b");
  if (!difference.settings.empty()) fmt::print("settings that differ\n");
  for (const auto& [name, in_a, in_b] : difference.settings) {
    fmt::print("  {}: {} and {}\n", plain(name), plain(in_a), plain(in_b));
  }
  const size_t others = difference.tensors.size() + difference.forms.size() +
                        difference.only_a.size() + difference.only_b.size();
  fmt::print("{} {} equal, {} {}\n", counted(difference.same, "tensor"),
             difference.same == 1 ? "is" : "are", others, others == 1 ? "differs" : "differ");
  return difference.equal() ? 0 : 1;
}

}  // namespace tessera::apps
