#include "apps/relaunch/hosts.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"

namespace tessera::apps {
namespace {

constexpr int most_slots = 1 << 20;  // over all hosts

Host parse_host(const std::string& text, const std::string& all) {
  const size_t colon = text.find(':');
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

}  // namespace

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    hosts.push_back(parse_host(text.substr(begin, end - begin), text));
    if (!names.insert(hosts.back().name).second) {
      fail_input("--hosts {}: the host {} is listed twice", text, hosts.back().name);
    }
    begin = end + 1;
  }
  if (slots_of(hosts) > most_slots) {
    fail_input("--hosts {}: it has places for {} ranks, expected at most {}", text, slots_of(hosts),
               most_slots);
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

int64_t slots_of(const std::vector<Host>& hosts) {
  int64_t slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  return slots;
}

size_t host_of(const std::vector<Host>& hosts, int rank, const std::string& name) {
  const auto named = std::ranges::find(hosts, name, &Host::name);
  if (named != hosts.end()) return static_cast<size_t>(named - hosts.begin());
  int before = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    before += hosts[i].slots;
    if (rank < before) return i;
  }
  fail("hosts: rank {} of {} has no place", rank, before);
}

std::vector<Host> without_places(std::vector<Host> hosts, const std::vector<size_t>& places) {
  for (const size_t place : places) hosts[place].slots = std::max(0, hosts[place].slots - 1);
  std::erase_if(hosts, [](const Host& host) { return host.slots == 0; });
  return hosts;
}

}  // namespace tessera::apps
