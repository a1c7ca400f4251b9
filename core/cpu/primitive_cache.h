// Primitives of oneDNN that calls come back for. Making one takes longer than many a product, so a
// training step must find all of its own again; but sampling brings new sizes with every token, and
// each primitive has code and descriptions.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "core/cpu/onednn.h"
#include "core/cpu/onednn_library.h"

namespace tessera::cpu::onednn {

/// The `most_primitives` that were used last. For one thread.
template <class Problem, class Primitive>
class PrimitiveCache {
 public:
  /// Returns the primitive for `problem`, which make(problem) makes if it is not kept. Valid until
  /// the next call.
  template <class Make>
  Primitive& find(const Problem& problem, Make&& make) {
    const auto found = places_.find(problem);
    if (found != places_.end()) {
      by_last_use_.splice(by_last_use_.begin(), by_last_use_, found->second);
      return found->second->second;
    }
    by_last_use_.emplace_front(problem, make(problem));
    places_.emplace(problem, by_last_use_.begin());
    if (size() > most_primitives) {
      places_.erase(by_last_use_.back().first);
      by_last_use_.pop_back();
    }
    return by_last_use_.front().second;
  }

  int64_t size() const { return std::ssize(by_last_use_); }

 private:
  using Entry = std::pair<const Problem, Primitive>;
  std::list<Entry> by_last_use_;  // the newest first
  std::unordered_map<Problem, typename std::list<Entry>::iterator, ProblemHash<Problem>> places_;
};

}  // namespace tessera::cpu::onednn
