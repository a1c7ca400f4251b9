// The hosts of a job, "a:2,b:4": their names and how many ranks each of them may get.
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

/// Throws InputError, which names --hosts, for a text of another form.
std::vector<Host> parse_hosts(const std::string& text);
/// As mpirun's --host takes it.
std::string hosts_text(const std::vector<Host>& hosts);
int64_t slots_of(const std::vector<Host>& hosts);

/// The place in the list of the host that a rank runs on: that of the name by which the host calls
/// itself, or, where the list has other names, as its address, by the rank's number. mpirun fills
/// one host after the other by default.
size_t host_of(const std::vector<Host>& hosts, int rank, const std::string& name);

/// The hosts without a slot for each of these places. A host without a slot is left out.
std::vector<Host> without_places(std::vector<Host> hosts, const std::vector<size_t>& places);

}  // namespace tessera::apps
