// The command line of comm_bench, complete and checked.
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
  /// Asked for with all others, but not measured: it does not sum values of this dtype.
  bool without_all_reduce = false;
  DType dtype = DType::f32;
  int64_t groups = 0;  // of equal size or one rank apart, measured at once; 0: no split
  int64_t iterations = 20;
  int64_t warmup = 5;
  std::string json;  // a file, or - for standard output in place of tables; empty: none
};

struct CommCommandLine {
  CommOptions options;
  std::string help;  // not empty: only to be printed
  dist::Settings settings;  // for ranks to compare
};

/// Throws InputError, one line, for what cannot be measured as asked.
CommCommandLine parse_comm_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
