// Before the first training step, checks that all ranks of a program have the same settings and
// inputs.
#pragma once

#include <string>

#include "apps/cli/run_options.h"
#include "dist/agreement.h"

namespace tessera::apps {

/// Compares the program, its build and its flags over all ranks. Call it right after parsing and
/// before any other collective, because the flags decide which collectives follow. Sets the time
/// limit of the world and of its communicator to devices.timeout_s. Throws InputError if `devices`
/// is invalid or if ranks differ. Collective.
void check_command_lines(dist::World& world, const std::string& program,
                         const dist::Settings& flags, const dist::DeviceOptions& devices);

/// Compares `data` over ranks. Unless the run resumes from a checkpoint, also compares the weights
/// of --init. If the ranks compute on CPUs, also compares the thread count and oneDNN's version,
/// instruction set and math mode. Call it after set_thread_count. Does nothing in a job of one
/// rank. Throws InputError if ranks differ, or if the file of --init is compared and cannot be
/// opened. Collective.
void check_inputs(const dist::World& world, const RunOptions& options, const Resumed& resumed,
                  const dist::Settings& data);

}  // namespace tessera::apps
