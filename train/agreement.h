// What a program that trains lets its ranks compare (dist/agreement.h): the program itself, what it
// computes with, and the files that it reads.
//
//   dist::check_agreement(world, train::program_settings("my_program"));
//   dist::check_agreement(world, train::processor_settings(world));
#pragma once

#include <string>

#include "dist/agreement.h"

namespace tessera::train {

/// The program's name, Tessera's version, and the linker's digest of the program file, which is
/// another one for other sources, another compiler or other instructions.
dist::Settings program_settings(const std::string& program);

/// Where the ranks compute on CPUs, what the bits of their results depend on: threads, as
/// set_thread_count has them, and oneDNN's version, instructions and rounding. On GPUs nothing:
/// dist::choose_devices compares these.
dist::Settings processor_settings(const dist::World& world);

/// Size and digest of the file that a flag names, of all of it or of 64 blocks (core/digest.h);
/// "no file" for an empty path. Throws InputError where it cannot be read.
dist::Setting file_setting(const std::string& flag, const std::string& path, bool whole);

}  // namespace tessera::train
