#include "dist/backoff.h"

#include "tests/support/catch.h"

using namespace tessera;
using dist::Backoff;

TEST_CASE("pauses between polls are short at first, then sleeps of up to 100 us") {
  Backoff backoff;
  const int64_t begin = trace::now_ns();
  while (backoff.slept_ns() == 0) backoff.pause();
  CHECK(trace::now_ns() - begin >= 30'000);
  // Sleeps take at least 5, 10, 20, 40 and 80 us, then 100 us each.
  for (int i = 0; i < 4; ++i) backoff.pause();
  CHECK(backoff.slept_ns() >= 155'000);
  const int64_t slept = backoff.slept_ns();
  for (int i = 0; i < 10; ++i) backoff.pause();
  CHECK(backoff.slept_ns() - slept >= 1'000'000);
}

TEST_CASE("after reset(), pauses are short again") {
  Backoff backoff;
  while (backoff.slept_ns() == 0) backoff.pause();
  backoff.reset();
  CHECK(backoff.slept_ns() == 0);
  backoff.pause();
  CHECK(backoff.slept_ns() == 0);
}
