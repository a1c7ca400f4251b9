#include "dist/agreement.h"

#include "tests/support/catch.h"

using namespace tessera;
using dist::first_difference;
using dist::Settings;

TEST_CASE("the first difference names the setting, the ranks and their values") {
  const Settings first = {{"--seed", "1"}, {"--lr", "0.1"}};
  CHECK(first_difference({first}).empty());
  CHECK(first_difference({first, first, first}).empty());
  const Settings seed = {{"--seed", "7"}, {"--lr", "0.2"}};
  CHECK(first_difference({first, first, seed}) == "--seed: rank 0 has 1, rank 2 has 7");
  const Settings rate = {{"--seed", "1"}, {"--lr", "0.3"}};
  CHECK(first_difference({first, rate, rate}) == "--lr: rank 0 has 0.1, ranks 1, 2 have 0.3");
  CHECK(first_difference({first, seed, first, rate, seed, {{"--seed", "8"}}}) ==
        "--seed: rank 0 has 1, ranks 1, 4 have 7, rank 5 has 8");
}

TEST_CASE("lists with different names of settings differ") {
  const Settings first = {{"a", "1"}};
  CHECK(first_difference({first, {}}) == "a: rank 0 has 1, rank 1 has no such setting");
  CHECK(first_difference({first, {{"a", "1"}, {"b", "2"}}}) ==
        "b: rank 0 has no such setting, rank 1 has 2");
  // Lists of different programs may have no common name.
  CHECK(first_difference({first, {{"b", "1"}}}) == "a: rank 0 has 1, rank 1 has no such setting");
}

TEST_CASE("a job of one rank always agrees") {
  dist::World world{.communicator = dist::single_communicator()};
  dist::check_agreement(world, {{"--seed", "1"}});
}
