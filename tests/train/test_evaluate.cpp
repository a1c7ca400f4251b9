#include "train/evaluate.h"

#include "data/tokens/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/token_average.h"

using namespace tessera;
using namespace tessera::train;
using test::TemporaryFolder;

namespace {

std::vector<int64_t> evaluation_starts(const data::TokenRange& range,
                                       const EvaluationOptions& options) {
  const EvaluationWindows windows(range, options);
  std::vector<int64_t> starts;
  for (int64_t batch = 0; batch < windows.batches(); ++batch) {
    for (const int64_t start : windows.starts_of(batch)) starts.push_back(start);
  }
  CHECK(std::ssize(starts) == windows.count());
  return starts;
}

struct Parent : nn::Module {
  Parent() { add("child", child); }
  nn::Module child;
};

void evaluate_letters(nn::Module& model, const TokenLoss& loss) {
  const TemporaryFolder folder;
  auto file = std::make_shared<const data::TokenFile>(folder.file("a.txt", std::string(100, 'a')));
  evaluate(model, loss, {file, 0, 100}, {.context = 8},
           {.communicator = dist::single_communicator()});
}

}  // namespace

TEST_CASE("evaluation windows are evenly spaced, and 0 batches cover everything once") {
  const TemporaryFolder folder;
  auto file = std::make_shared<const data::TokenFile>(folder.file("a.txt", std::string(1000, 'a')));
  const data::TokenRange range{file, 100, 1000};
  REQUIRE(evaluation_starts(range, {.context = 64, .batches = 2, .sequences = 3}) ==
          std::vector<int64_t>{0, 167, 334, 501, 668, 835});
  REQUIRE(evaluation_starts(range, {.context = 64, .batches = 1, .sequences = 1}) ==
          std::vector<int64_t>{0});
  const auto all = evaluation_starts(range, {.context = 64});
  REQUIRE(all.size() == 14);  // (900 - 1) / 64 = 14 windows
  REQUIRE(all.back() == 13 * 64);
  REQUIRE(all.back() + 64 + 1 <= range.size());
  // The range is just long enough for one sequence and its last target.
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

TEST_CASE("an evaluation of very many batches does not list its windows") {
  const TemporaryFolder folder;
  auto file = std::make_shared<const data::TokenFile>(folder.file("a.txt", std::string(1000, 'a')));
  const data::TokenRange range{file, 0, 1000};
  const int64_t batches = int64_t{1} << 40;
  const EvaluationWindows windows(range, {.context = 64, .batches = batches, .sequences = 12});
  CHECK(windows.count() == batches * 12);
  CHECK(windows.start(0) == 0);
  CHECK(windows.start(windows.count() - 1) == 935);
  const EvaluationWindows one(range, {.context = 64, .sequences = INT64_MAX});
  CHECK(one.batches() == 1);
  CHECK(one.windows_of(0) == 15);
  CHECK_THROWS_AS(EvaluationWindows(range, {.context = 64, .batches = INT64_MAX, .sequences = 12}),
                  Error);
}

TEST_CASE("the batches of several all-reduces are added to one mean") {
  const test::TokenAverage average =
      test::average_of_tokens({.communicator = dist::single_communicator()});
  CHECK(average.evaluated == average.expected);
}

TEST_CASE("an evaluation leaves every module in the mode that it had before") {
  Parent model;
  model.train(GENERATE(true, false));
  model.child.train(GENERATE(true, false));
  const bool fails = GENERATE(true, false);
  const bool root = model.training();
  const bool child = model.child.training();
  CAPTURE(root, child, fails);
  const TokenLoss loss = [&](const Tensor&, const Tensor&) {
    CHECK_FALSE(model.training());
    CHECK_FALSE(model.child.training());
    if (fails) fail("the loss fails");
    return Tensor::from({1}, std::vector<float>{1});
  };
  if (fails) {
    CHECK_THROWS_AS(evaluate_letters(model, loss), Error);
  } else {
    evaluate_letters(model, loss);
  }
  CHECK(model.training() == root);
  CHECK(model.child.training() == child);
}
