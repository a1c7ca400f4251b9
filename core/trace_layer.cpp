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
  for (size_t i = common; i < path.size(); ++i) open_.push_back({path[i], tick()});
}

// Returns a time that is at least 2 ns after the last tick. So no two spans of this object begin or
// end at the same time, even after Perfetto has rounded the trace's microseconds to nanoseconds.
// Perfetto drops a span that partly overlaps another span. If two times were equal, the rounding
// could cause such an overlap.
int64_t LayerSpans::tick() {
  constexpr int64_t apart_ns = 2;
  return last_ns_ = std::max(now_ns(), last_ns_ + apart_ns);
}

void LayerSpans::close_to(size_t count) {
  while (open_.size() > count) {
    const Open last = open_.back();
    open_.pop_back();
    if (enabled()) record({last.layer->name, Track::compute, last.begin_ns, tick()});
  }
}

}  // namespace tessera::trace
