// The settings that the ranks of a training program compare (dist/agreement.h): the program's
// version and build, its processor and threads, and the files that it reads.
//
//   dist::check_agreement(world, train::program_settings("my_program"));
//   dist::check_agreement(world, train::processor_settings(world));
#pragma once

#include <string>

#include "dist/agreement.h"

namespace tessera::train {

/// Returns the program's name, Tessera's version, and the linker's build id of the program file.
/// The build id changes with the sources, the compiler and the instruction set.
dist::Settings program_settings(const std::string& program);

/// Returns the settings of a CPU that change the bits of results: the number of threads, and
/// oneDNN's version, instruction set and math mode. Returns an empty list if the ranks compute on
/// GPUs, because dist::choose_devices compares the GPUs and their libraries.
dist::Settings processor_settings(const dist::World& world);

/// Returns the size and digest of the file at `path`. `flag` is the flag with which the user gave
/// the path. If `whole` is true, the digest covers the whole file. Otherwise it covers 64 blocks of
/// the file (core/digest.h). Returns "no file" if `path` is empty. Throws InputError if the file
/// cannot be opened or is not a regular file, and Error if reading fails.
dist::Setting file_setting(const std::string& flag, const std::string& path, bool whole);

}  // namespace tessera::train
