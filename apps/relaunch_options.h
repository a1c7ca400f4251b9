// The command line of relaunch.
#pragma once

#include <string>
#include <vector>

#include "apps/relaunch/hosts.h"

namespace tessera::apps {

struct RelaunchOptions {
  int ranks = 0;
  std::vector<Host> hosts = {};  // none: this one
  int min_ranks = 1;
  int restarts = 10;
  std::vector<std::string> mpirun = {};   // with arguments
  std::vector<std::string> command = {};  // what each rank runs
};

struct RelaunchCommandLine {
  RelaunchOptions options = {};
  std::string help = {};  // not empty: only to be printed
};

/// Throws InputError.
RelaunchCommandLine parse_relaunch_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
