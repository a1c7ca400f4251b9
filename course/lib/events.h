// The events of a step, in order. The check of a lesson grades this order, and never a duration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/traffic.h"
#include "nn/module.h"

namespace course {

using namespace tessera;

struct Event {
  std::string kind;            // a communicator's call, such as "all_gather"; "wait" (for a call);
                               // "use", "done" or "complete" (of a parameter); or "update"
  std::string parameter = {};  // set for use, done and complete
  dist::Traffic purpose = dist::Traffic::other;  // set for a call or wait
  int64_t bucket = -1;                           // set for a call or wait

  std::string text() const;
};

class Events {
 public:
  void add(Event event) { list_.push_back(std::move(event)); }
  void add(const std::string& kind) { list_.push_back({.kind = kind}); }
  void clear() { list_.clear(); }
  const std::vector<Event>& list() const { return list_; }
  /// Returns the index of the first event, from `from` on, for which `wanted` is true, or -1.
  template <class Wanted>
  int64_t find(Wanted wanted, int64_t from = 0) const {
    for (int64_t i = from; i < std::ssize(list_); ++i) {
      if (wanted(list_[static_cast<size_t>(i)])) return i;
    }
    return -1;
  }
  /// Returns the events for a message, one per line.
  std::string text() const;

 private:
  std::vector<Event> list_;
};

/// Sets the list to which note() adds events. With nullptr, note() does nothing.
void note_into(Events* events);
/// Adds an event without a bucket, such as "update", to the list that note_into() has set.
void note(const std::string& kind);

/// Adds hooks that record events: "use" before a parameter is read, "done" when the reading has
/// ended, and "complete" when the parameter's gradient is complete. Each added hook then calls the
/// hook that was set before. Call watch() after all other hooks are set.
void watch(const std::vector<nn::NamedParameter>& parameters, Events& events);

}  // namespace course
