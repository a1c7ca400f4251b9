#include "train/evaluate.h"

#include "data/tokens/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::train;
using test::TemporaryFolder;

TEST_CASE("an evaluation's windows lie evenly, and 0 batches cover everything once") {
  const TemporaryFolder folder;
  auto file = std::make_shared<const data::TokenFile>(folder.file("a.txt", std::string(1000, 'a')));
  const data::TokenRange range{file, 100, 1000};
  REQUIRE(evaluation_starts(range, {.context = 64, .batches = 2, .sequences = 3}) ==
          std::vector<int64_t>{0, 167, 334, 501, 668, 835});
  REQUIRE(evaluation_starts(range, {.context = 64, .batches = 1, .sequences = 1}) ==
          std::vector<int64_t>{0});
  const auto all = evaluation_starts(range, {.context = 64});
  REQUIRE(all.size() == 14);  // (900 - 1) / 64
  REQUIRE(all.back() == 13 * 64);
  REQUIRE(all.back() + 64 + 1 <= range.size());
  // A range of exactly one sequence.
  REQUIRE(evaluation_starts({file, 0, 65}, {.context = 64}) == std::vector<int64_t>{0});
}

TEST_CASE("an evaluation without windows is refused") {
  const TemporaryFolder folder;
  auto file = std::make_shared<const data::TokenFile>(folder.file("a.txt", std::string(100, 'a')));
  const data::TokenRange range{file, 0, 100};
  CHECK_THROWS_AS(evaluation_starts(range, {}), Error);
  CHECK_THROWS_AS(evaluation_starts(range, {.context = 8, .sequences = 0}), Error);
  CHECK_THROWS_AS(evaluation_starts(range, {.context = 8, .batches = -1}), Error);
  CHECK_THROWS_AS(evaluation_starts(range, {.context = 100}), InputError);
  CHECK(evaluation_starts(range, {.context = 99}).size() == 1);
}
