// What the ranks of a program compare with each other.
#pragma once

#include <string>

#include "apps/cli/run_options.h"
#include "dist/agreement.h"

namespace tessera::apps {

/// The program, its build and its flags, as soon as they are parsed: before the ranks do anything
/// together, because flags decide what that is. Throws InputError where ranks differ. Collective,
/// with the timeout of `devices`.
void check_command_lines(const dist::World& world, const std::string& program,
                         const dist::Settings& flags, const dist::DeviceOptions& devices);

/// What the ranks compute with, after set_thread_count, and what they read: `data`, and the weights
/// of --init. Throws InputError where ranks differ. Collective.
void check_inputs(const dist::World& world, const RunOptions& options, const dist::Settings& data);

}  // namespace tessera::apps
