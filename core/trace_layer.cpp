#include "core/trace_layer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace tessera::trace {
namespace {

thread_local const Layer* innermost_layer = nullptr;

const Layer* layer_of(const std::string& name, const Layer* parent) {
  static std::mutex mutex;
  static auto* const layers =
      new std::map<std::pair<const Layer*, std::string>, std::unique_ptr<Layer>>;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<Layer>& layer = (*layers)[{parent, name}];
  if (!layer) {
    layer = std::make_unique<Layer>(Layer{name, parent, parent == nullptr ? 1 : parent->depth + 1});
  }
  return layer.get();
}

}  // namespace

const Layer* current_layer() { return innermost_layer; }

void LayerScope::enter(const std::string& name) {
  entered_ = true;
  outer_ = std::exchange(innermost_layer, layer_of(name, innermost_layer));
}

void LayerScope::leave() { innermost_layer = outer_; }

void LayerSpans::change_to(const Layer* layer) {
  std::vector<const Layer*> path;
  for (; layer != nullptr; layer = layer->parent) path.push_back(layer);
  std::ranges::reverse(path);
  size_t common = 0;
  while (common < std::min(path.size(), open_.size()) && path[common] == open_[common].layer) {
    ++common;
  }
  close_to(common);
  const int64_t now = now_ns();
  for (size_t i = common; i < path.size(); ++i) open_.push_back({path[i], now});
}

void LayerSpans::close_to(size_t count) {
  const int64_t now = now_ns();
  while (open_.size() > count) {
    const Open last = open_.back();
    open_.pop_back();
    // Equal times would mark an instant.
    if (enabled()) {
      record({last.layer->name, Track::compute, last.begin_ns, std::max(now, last.begin_ns + 1)});
    }
  }
}

}  // namespace tessera::trace
