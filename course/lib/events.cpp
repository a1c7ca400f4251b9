#include "course/lib/events.h"

#include <fmt/format.h>

#include "dist/communicator.h"

namespace course {
namespace {

Events* events_of_trial = nullptr;

}  // namespace

void note_into(Events* events) { events_of_trial = events; }

void note(const std::string& kind) {
  if (events_of_trial != nullptr) events_of_trial->add(kind);
}

std::string Event::text() const {
  if (!parameter.empty()) return fmt::format("{} {}", kind, parameter);
  if (bucket < 0 && purpose == dist::Traffic::other) return kind;
  return fmt::format("{} of {}", kind, dist::Call{purpose, bucket}.text());
}

std::string Events::text() const {
  std::string text;
  for (const Event& event : list_) text += event.text() + "\n";
  return text;
}

void watch(const std::vector<nn::NamedParameter>& parameters, Events& events) {
  for (const nn::NamedParameter& named : parameters) {
    Leaf& leaf = named.parameter.leaf();
    const auto before = [&events, &named](const char* kind, std::function<void()>& hook) {
      hook = [&events, kind, name = named.name, inner = hook] {
        events.add({.kind = kind, .parameter = name});
        if (inner) inner();
      };
    };
    before("use", leaf.about_to_be_used);
    before("done", leaf.no_longer_used);
    before("complete", leaf.gradient_complete);
  }
}

}  // namespace course
