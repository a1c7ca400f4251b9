// Tests AwakeTime, the clock of time limits. AwakeTime must count at most half a second of a long
// pause, because the process may have been stopped during the pause.
#include "core/awake_time.h"

#include <thread>

#include "tests/support/catch.h"

using namespace tessera;

TEST_CASE("awake time counts short pauses, and at most half a second of a long pause") {
  AwakeTime time;
  CHECK(time.seconds() == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  time.look();
  const double short_pause = time.seconds();
  CHECK(short_pause >= 0.02);
  CHECK(short_pause <= 0.5);
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  time.look();
  CHECK(time.seconds() - short_pause > 0.49);
  CHECK(time.seconds() - short_pause < 0.51);
}
