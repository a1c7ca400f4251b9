// The settings of a training program that its ranks compare (dist/agreement.h): the program itself,
// what it computes with, and the files that it reads.
//
//   dist::check_agreement(world, train::program_settings("my_program"));
//   dist::check_agreement(world, train::processor_settings(world));
#pragma once

#include <string>

#include "dist/agreement.h"

namespace tessera::train {

/// The program's name, Tessera's version, and the linker's build id of the program file. The build
/// id differs for other sources, another compiler or another instruction set.
dist::Settings program_settings(const std::string& program);

/// If the ranks compute on CPUs, the settings that the bits of their results depend on: threads, as
/// set by set_thread_count, and oneDNN's version, instruction set and math mode. Empty on GPUs,
/// whose settings dist::choose_devices compares.
dist::Settings processor_settings(const dist::World& world);

/// The size and digest of the file that a flag names. The digest is of the `whole` file or of 64
/// blocks of it (core/digest.h). "no file" for an empty path. Throws InputError if unreadable.
dist::Setting file_setting(const std::string& flag, const std::string& path, bool whole);

}  // namespace tessera::train
