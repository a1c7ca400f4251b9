// Quantities with units on a command line: 80GB, 24GiB, 25GB/s, 5us, 400T.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::apps {

// Each throws InputError, naming the flag, for what is no number with a unit, or not positive
// (seconds: negative), and beyond what a machine can be (rates from 1 to 1e24, at most 1e9 s).
// Whole numbers are exact, fractions of a byte are dropped. Prefixes are k, M, G, T, P, E for
// powers of 1000, and Ki ... for 1024.

int64_t parse_bytes(const char* flag, const std::string& text);   // "80GB", "24GiB", "1000"
double parse_rate(const char* flag, const std::string& text);     // bytes a second: "25GB", "1GB/s"
double parse_flops(const char* flag, const std::string& text);    // a second: "400T", "1.5e14"
double parse_seconds(const char* flag, const std::string& text);  // "5us", "0.1ms", "2"

}  // namespace tessera::apps
