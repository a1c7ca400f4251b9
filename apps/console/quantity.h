// Quantities with units on a command line: 80GB, 24GiB, 25GB/s, 5us, 400T.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::apps {

// Each function throws InputError, naming the flag, if the text is not a number with a known unit,
// is not positive (seconds: is negative) or is out of range (rates: 1 to 1e24; times: up to 1e9 s).
// Whole numbers of bytes are exact; fractions of a byte are dropped. The prefixes k, M, G, T, P and
// E are powers of 1000; Ki, Mi, ... are powers of 1024.

int64_t parse_bytes(const char* flag, const std::string& text);   // "80GB", "24GiB", "1000"
double parse_rate(const char* flag, const std::string& text);     // bytes per second: "25GB/s"
double parse_flops(const char* flag, const std::string& text);    // per second: "400T", "1.5e14"
double parse_seconds(const char* flag, const std::string& text);  // "5us", "0.1ms", "2"

}  // namespace tessera::apps
