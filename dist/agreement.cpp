#include "dist/agreement.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "dist/host_buffer.h"

namespace tessera::dist {
namespace {

constexpr char separator = '\0';  // cannot occur in a command-line argument

std::string text_of(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    TESSERA_CHECK((name + value).find(separator) == std::string::npos,
                  "check_agreement: setting {} has a null character, expected none", name);
    text += name + separator + value + separator;
  }
  return text;
}

Settings settings_of(std::string_view text) {
  const auto next = [&] {
    const size_t end = text.find(separator);
    std::string part(text.substr(0, end));
    text.remove_prefix(end + 1);
    return part;
  };
  Settings settings;
  while (!text.empty()) {
    std::string name = next();
    settings.push_back({std::move(name), next()});
  }
  return settings;
}

std::string value_in(const Settings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings, name, &Setting::name);
  return found == settings.end() ? "no such setting" : found->value;
}

/// "rank 2 has 7", "ranks 2, 3 have 7"
std::string holders(const std::vector<size_t>& ranks, const std::string& value) {
  const bool one = ranks.size() == 1;
  return fmt::format("rank{} {} {} {}", one ? "" : "s", fmt::join(ranks, ", "),
                     one ? "has" : "have", value);
}

/// Describes how the ranks' values of setting `name` differ; empty if they are equal.
std::string difference_in(const std::string& name, const std::vector<Settings>& of_ranks) {
  const std::string first = value_in(of_ranks[0], name);
  std::vector<std::pair<std::string, std::vector<size_t>>> others;
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const std::string value = value_in(of_ranks[rank], name);
    if (value == first) continue;
    auto group = std::ranges::find_if(others, [&](const auto& o) { return o.first == value; });
    if (group == others.end()) group = others.insert(group, {value, {}});
    group->second.push_back(rank);
  }
  if (others.empty()) return "";
  std::string text = fmt::format("{}: {}", name, holders({0}, first));
  for (const auto& [value, ranks] : others) text += ", " + holders(ranks, value);
  return text;
}

}  // namespace

std::string first_difference(const std::vector<Settings>& of_ranks) {
  // Rank 0's settings are compared first, then the settings that only other ranks have.
  for (const Settings& settings : of_ranks) {
    for (const Setting& setting : settings) {
      std::string difference = difference_in(setting.name, of_ranks);
      if (!difference.empty()) return difference;
    }
  }
  return "";
}

void check_agreement(const World& world, const Settings& own) {
  if (world.size == 1) return;
  Communicator& communicator = *world.communicator;
  const std::string text = text_of(own);
  const HostBuffer digests(world.size, DType::i64, communicator);
  digests.data<int64_t>()[world.rank] = static_cast<int64_t>(xxh3(text));
  digests.all_gather(communicator, Traffic::other).wait();
  const auto values = digests.values().values<int64_t>();
  if (std::ranges::all_of(values, [&](int64_t digest) { return digest == values[0]; })) return;

  std::vector<Settings> of_ranks;
  for (const std::string& list : gather_text(communicator, text)) {
    of_ranks.push_back(settings_of(list));
  }
  const std::string difference =
      broadcast_text(communicator, world.rank == 0 ? first_difference(of_ranks) : "");
  // The digests differ, but no setting does. So the ranks have the same settings in different
  // orders.
  if (difference.empty()) fail_input("the ranks of a job must give settings in the same order");
  fail_input("{}; all ranks of a job must have the same value", difference);
}

std::string first_reason(const std::string& own, Communicator& communicator) {
  const std::vector<std::string> all = gather_text(communicator, own);
  const auto first = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  return broadcast_text(communicator, first == all.end() ? "" : *first);
}

}  // namespace tessera::dist
