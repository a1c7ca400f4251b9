#include "apps/comm_bench/comm_bandwidth.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::apps {

std::vector<int64_t> CommSizes::in_units_of(int64_t unit) const {
  std::vector<int64_t> sizes;
  for (int64_t bytes = min_bytes; bytes <= max_bytes; bytes *= factor) {
    const int64_t rounded_up = (bytes + unit - 1) / unit * unit;
    if (sizes.empty() || sizes.back() != rounded_up) sizes.push_back(rounded_up);
    if (bytes > max_bytes / factor) break;  // the next size is too large, and might overflow
  }
  return sizes;
}

double bus_factor(dist::Collective collective, int64_t ranks) {
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  switch (collective) {
    case dist::Collective::all_reduce: return 2 * others;
    case dist::Collective::reduce_scatter:
    case dist::Collective::exchange:
    case dist::Collective::all_gather:
    case dist::Collective::exchange_v:
    case dist::Collective::all_gather_v: return others;
    case dist::Collective::broadcast:
    case dist::Collective::send_receive: return 1;
    case dist::Collective::barrier:
    case dist::Collective::split: break;
  }
  fail("bus_factor: a {} has no bandwidth", dist::collective_name(collective));
}

Bandwidth bandwidth(dist::Collective collective, int64_t bytes, int64_t ranks, double seconds) {
  const double algorithm = 1e-9 * static_cast<double>(bytes) / seconds;
  return {.algorithm = algorithm, .bus = algorithm * bus_factor(collective, ranks)};
}

int64_t argument_elements(dist::Collective collective, int64_t elements, int64_t ranks) {
  const bool whole = collective == dist::Collective::all_reduce ||
                     collective == dist::Collective::broadcast ||
                     collective == dist::Collective::send_receive;
  return whole ? elements : elements / ranks;
}

double median(std::vector<double> values) {
  TESSERA_CHECK(!values.empty(), "median: of no values");
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace tessera::apps
