// Quantities with units on a command line: 80GB, 24GiB, 25GB/s, 5us, 400T.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::apps {

/// Says if a size of 0 is allowed.
enum class Zero { refused, allowed };

/// The largest size that a flag allows, as a number and as text for error messages.
struct MostBytes {
  int64_t bytes = 4'000'000'000'000'000'000;
  const char* text = "4 EB";
};

// Each function reads a number that may have a unit. It throws InputError, naming the flag, for
// other text and for values outside these bounds:
//
//   bytes    1 to MostBytes::bytes; with Zero::allowed, 0 is accepted too
//   rates    1 to 1e24 per second
//   seconds  0 to 1e9
//
// Bytes and rates may have the prefixes k, M, G, T, P and E (powers of 1000) and Ki, Mi, ...
// (powers of 1024). Times may have the units s, ms, us and ns. Bytes are exact if the number is
// written with digits alone. Other sizes, such as 1.5GB, are computed as a double and rounded down.

int64_t parse_bytes(const char* flag, const std::string& text,  // "80GB", "24GiB", "1000"
                    Zero zero = Zero::refused, const MostBytes& most = {});
double parse_rate(const char* flag, const std::string& text);     // bytes per second: "25GB/s"
double parse_flops(const char* flag, const std::string& text);    // per second: "400T", "1.5e14"
double parse_seconds(const char* flag, const std::string& text);  // "5us", "0.1ms", "2"

}  // namespace tessera::apps
