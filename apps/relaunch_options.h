// Parses and checks the command line of `relaunch`.
#pragma once

#include <string>
#include <vector>

#include "apps/relaunch/hosts.h"

namespace tessera::apps {

struct RelaunchOptions {
  int ranks = 0;
  std::vector<Host> hosts = {};  // empty: mpirun chooses the hosts
  int min_ranks = 1;
  int restarts = 10;
  std::vector<std::string> mpirun = {};   // the launcher and its arguments
  std::vector<std::string> command = {};  // the program that each rank runs, with its arguments
};

struct RelaunchCommandLine {
  RelaunchOptions options = {};
  std::string help = {};  // if not empty: print this text and exit
};

/// Throws InputError if a flag is invalid.
RelaunchCommandLine parse_relaunch_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
