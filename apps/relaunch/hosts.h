// The hosts of a job, "a:2,b:4": their names and how many ranks each of them may get.
#pragma once

#include <string>
#include <vector>

namespace tessera::apps {

struct Host {
  std::string name;
  int slots = 1;

  bool operator==(const Host&) const = default;
};

/// Throws InputError, which names --hosts, for a text of another form.
std::vector<Host> parse_hosts(const std::string& text);
/// As mpirun's --host takes it.
std::string hosts_text(const std::vector<Host>& hosts);
int slots_of(const std::vector<Host>& hosts);

/// The host of a rank. Ranks fill one host after the other, as mpirun places them by default.
const Host& host_of(const std::vector<Host>& hosts, int rank);

/// The hosts without the places of some ranks. A host without a place is left out.
std::vector<Host> without_ranks(std::vector<Host> hosts, const std::vector<int>& ranks);

}  // namespace tessera::apps
