// Settings of the emulator in environment variables.
#pragma once

#include <cstdint>

namespace emulated {

/// Reads a number; returns `initial` if the variable is not set or is empty. Throws
/// std::invalid_argument for anything but a number from `least` to `most`.
int number_of(const char* variable, int initial, int least, int most);

/// Reads a seed; returns 0 if the variable is not set or is empty. Throws std::invalid_argument if
/// the text has anything but digits, or if the number exceeds 2^64 - 1. The message contains
/// `meanings`, a text that explains the seeds.
uint64_t seed_of(const char* variable, const char* meanings);

}  // namespace emulated
