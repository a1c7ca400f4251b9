// The layers of a model in the trace. A layer has a span for its forward and a span for its
// backward. The layer's operations are inside its spans.
//
//   const trace::LayerScope scope(name_);   // in the forward of a layer
//
// Each node of autograd's graph stores the layer whose forward made the node. Backward visits nodes
// in reverse order, so the nodes of one layer follow each other. LayerSpans opens a layer's span at
// the first of these nodes, and closes the span after the last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/trace.h"

namespace tessera::trace {

/// A layer and the layer that contains it. There is one Layer for each path of names from an
/// outermost layer to an inner one. Layers are never freed, so that a node may outlive its model.
struct Layer {
  std::string name;
  const Layer* parent = nullptr;
  int depth = 1;  // number of layers from the outermost one to this one
};

/// Returns the innermost layer whose forward runs on this thread. Layers whose forward began while
/// tracing was off do not count. Returns nullptr if there is no such layer.
const Layer* current_layer();

/// Marks the forward of a layer while the object lives. A whole model has an empty name, and gets
/// no span. `name` must outlive the scope.
class LayerScope {
 public:
  explicit LayerScope(const std::string& name) {
    if (name.empty()) return;
    scope_.emplace(name.c_str());
    if (enabled()) enter(name);
  }
  ~LayerScope() {
    if (entered_) leave();
  }
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  void enter(const std::string& name);
  void leave();

  std::optional<Scope> scope_;
  const Layer* outer_ = nullptr;
  bool entered_ = false;
};

/// Opens and closes the spans of layers in a backward pass.
class LayerSpans {
 public:
  LayerSpans() = default;
  ~LayerSpans() { close_to(0); }
  LayerSpans(const LayerSpans&) = delete;
  LayerSpans& operator=(const LayerSpans&) = delete;

  /// Closes and opens spans, so that exactly the spans of `layer` and of the layers that contain it
  /// are open. With nullptr, all spans are closed.
  void enter(const Layer* layer) {
    if (layer != innermost()) change_to(layer);
  }

 private:
  struct Open {
    const Layer* layer;
    int64_t begin_ns;
  };

  const Layer* innermost() const { return open_.empty() ? nullptr : open_.back().layer; }
  void change_to(const Layer* layer);
  void close_to(size_t count);
  int64_t tick();

  std::vector<Open> open_;  // from the outermost layer to the innermost
  int64_t last_ns_ = 0;     // the time that tick() returned last
};

}  // namespace tessera::trace
