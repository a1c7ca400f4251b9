// The command line of comm_bench, parsed and checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/comm_bench/comm_bandwidth.h"
#include "core/dtype.h"
#include "dist/agreement.h"
#include "dist/device_choice.h"

namespace tessera::apps {

struct CommOptions {
  dist::DeviceOptions devices;
  CommSizes sizes;
  std::vector<dist::Collective> collectives;
  /// True if "all" collectives were asked for but all_reduce is left out, because it cannot sum
  /// values of `dtype`.
  bool without_all_reduce = false;
  DType dtype = DType::f32;
  /// The number of groups that the ranks are split into. All groups are measured at the same time.
  /// 0 means no split; 1 splits too, into one group of all ranks.
  int64_t groups = 0;
  int64_t iterations = 20;
  int64_t warmup = 5;
  std::string json;  // a file's path; "-": print JSON in place of the tables; empty: no JSON
};

struct CommCommandLine {
  CommOptions options;
  std::string help;         // if not empty: print this text and exit
  dist::Settings settings;  // must be equal on all ranks
};

/// Throws InputError, with a message of one line, if the command line is invalid.
CommCommandLine parse_comm_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
