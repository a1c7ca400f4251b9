// Reads a file of ratings and prints a description of them. Without a file, generates ratings.
#include <cstdio>

#include "core/error.h"
#include "data/ratings/rating_data.h"

int main(int argc, char** argv) {
  try {
    const auto data = tessera::data::open_rating_data({.path = argc > 1 ? argv[1] : ""});
    std::printf("%s\n", data.description().c_str());
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
