#include "apps/relaunch/hosts.h"

#include <charconv>
#include <set>

#include "core/error.h"

namespace tessera::apps {
namespace {

constexpr int most_slots = 1 << 20;

Host parse_host(const std::string& text, const std::string& all) {
  const size_t colon = text.rfind(':');
  Host host{.name = text.substr(0, colon)};
  bool good = !host.name.empty();
  if (good && colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, host.slots);
    good = error == std::errc() && at == end && host.slots >= 1 && host.slots <= most_slots;
  }
  if (!good) fail_input("--hosts {}: '{}' is not NAME or NAME:RANKS", all, text);
  return host;
}

// The place in the list of a rank's host.
size_t index_of(const std::vector<Host>& hosts, int rank) {
  int before = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    before += hosts[i].slots;
    if (rank < before) return i;
  }
  fail("hosts: rank {} of {} has no place", rank, before);
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    hosts.push_back(parse_host(text.substr(begin, end - begin), text));
    if (!names.insert(hosts.back().name).second) {
      fail_input("--hosts {}: it has {} twice", text, hosts.back().name);
    }
    begin = end + 1;
  }
  return hosts;
}

std::string hosts_text(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", host.name, host.slots);
  }
  return text;
}

int slots_of(const std::vector<Host>& hosts) {
  int slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  return slots;
}

const Host& host_of(const std::vector<Host>& hosts, int rank) {
  return hosts[index_of(hosts, rank)];
}

std::vector<Host> without_ranks(std::vector<Host> hosts, const std::vector<int>& ranks) {
  const std::vector<Host> before = hosts;
  for (const int rank : ranks) --hosts[index_of(before, rank)].slots;
  std::erase_if(hosts, [](const Host& host) { return host.slots == 0; });
  return hosts;
}

}  // namespace tessera::apps
