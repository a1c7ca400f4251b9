// What happened in a step, in order. Checks grade this order, and never durations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/traffic.h"
#include "nn/module.h"

namespace course {

using namespace tessera;

struct Event {
  std::string kind;            // a call ("all_gather"), "wait" for one, "use", "done", "complete",
                               // "update" by the rule
  std::string parameter = {};  // of use, done and complete
  dist::Traffic purpose = dist::Traffic::other;  // of a call or wait
  int64_t bucket = -1;                           // of a call or wait

  std::string text() const;
};

class Events {
 public:
  void add(Event event) { list_.push_back(std::move(event)); }
  void add(const std::string& kind) { list_.push_back({.kind = kind}); }
  void clear() { list_.clear(); }
  const std::vector<Event>& list() const { return list_; }
  /// The place of the first event, from `from` on, for which `wanted` is true; -1: there is none.
  template <class Wanted>
  int64_t find(Wanted wanted, int64_t from = 0) const {
    for (int64_t i = from; i < std::ssize(list_); ++i) {
      if (wanted(list_[static_cast<size_t>(i)])) return i;
    }
    return -1;
  }
  /// One event a line, for a message.
  std::string text() const;

 private:
  std::vector<Event> list_;
};

/// Sets the list into which note() writes; nullptr: none.
void note_into(Events* events);
/// Adds an event without a bucket, such as "update", to the trial that runs, if there is one.
void note(const std::string& kind);

/// Writes down when parameters are read ("use", "done") and when their gradients are complete
/// ("complete"), and then calls the hooks that are set already. Call it after the hooks are set.
void watch(const std::vector<nn::NamedParameter>& parameters, Events& events);

}  // namespace course
