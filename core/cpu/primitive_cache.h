// A cache of oneDNN primitives. Making a primitive often takes longer than the product that it
// computes, so all primitives of a training step must stay cached. The cache is bounded, because
// text generation needs products of new sizes for every token, and each primitive takes memory for
// its code.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "core/cpu/onednn.h"
#include "core/cpu/onednn_library.h"

namespace tessera::cpu::onednn {

/// Keeps the `most_primitives` primitives that were used last. Each thread needs its own cache.
template <class Problem, class Primitive>
class PrimitiveCache {
 public:
  /// Returns the primitive for `problem`; make(problem) makes it if it is not cached. The reference
  /// is valid until the next call.
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
  std::list<Entry> by_last_use_;  // the most recently used first
  std::unordered_map<Problem, typename std::list<Entry>::iterator, ProblemHash<Problem>> places_;
};

}  // namespace tessera::cpu::onednn
