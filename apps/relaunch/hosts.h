// The hosts of a job, "a:2,b:4": each host's name and the number of ranks that it may run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::apps {

struct Host {
  std::string name;
  int slots = 1;

  bool operator==(const Host&) const = default;
};

/// Parses "a:2,b:4": each host's name and slots. A slot is room for one rank. A host without a
/// number has one slot. Throws InputError, naming --hosts, if the text has another form or repeats
/// a host, or if the hosts have more than 2^20 slots together.
std::vector<Host> parse_hosts(const std::string& text);
/// Returns the hosts in the form of mpirun's --host: "a:2,b:4".
std::string hosts_text(const std::vector<Host>& hosts);
int64_t slots_of(const std::vector<Host>& hosts);

/// Returns the index in `hosts` of the host that `rank` runs on. `name` is the name that the rank's
/// host reports for itself. `hosts` may lack the name, for instance if `hosts` lists addresses. The
/// index is then computed from the rank, because mpirun by default fills one host after the other.
size_t host_of(const std::vector<Host>& hosts, int rank, const std::string& name);

/// Returns `hosts` with fewer slots. Each entry of `places` is an index in `hosts` and takes one
/// slot from that host. An index may occur repeatedly. Hosts without slots are removed.
std::vector<Host> without_places(std::vector<Host> hosts, const std::vector<size_t>& places);

}  // namespace tessera::apps
