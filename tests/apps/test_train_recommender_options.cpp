#include "apps/train_recommender_options.h"

#include <vector>

#include "tests/support/catch.h"

namespace tessera::apps {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;
using models::RecommenderObjective;

RecommenderTrainOptions parse(std::vector<const char*> arguments, int64_t interactions = 80'000) {
  arguments.insert(arguments.begin(), "train_recommender");
  RecommenderCommandLine line =
      parse_recommender_command_line(static_cast<int>(arguments.size()), arguments.data());
  complete(line, interactions);
  return line.options;
}

TEST_CASE("train_recommender: the seed and the implied log are known before the data are open") {
  const char* arguments[] = {"train_recommender", "--seed", "7", "--report", "run.html"};
  const auto options = parse_recommender_command_line(5, arguments).options;
  CHECK(options.seed == 7);
  CHECK(options.log == "run.jsonl");
}

TEST_CASE("train_recommender: the help says which files --verify-data is for") {
  const char* arguments[] = {"train_recommender", "--help"};
  std::string help = parse_recommender_command_line(2, arguments).help;
  std::erase_if(help, [](char c) { return c == ' ' || c == '\n'; });  // the help breaks lines
  CHECK_THAT(help, ContainsSubstring("ratingsarealwayscomparedcompletely"));
}

TEST_CASE("train_recommender: defaults without flags") {
  const RecommenderTrainOptions options = parse({});
  CHECK(options.data.empty());
  CHECK(options.split == "fold:1/5");
  CHECK(options.model.name == "mf");
  CHECK(options.model.factors == 64);
  CHECK(options.model.hidden == std::vector<int64_t>{64, 32, 16});
  CHECK_FALSE(options.ranks);
  CHECK(options.objective == RecommenderObjective::rating);
  CHECK(options.objective_name() == "rating");
  CHECK(options.negatives == 0);
  CHECK(options.sampled == 0);
  CHECK(options.l2 == 0.1f);
  CHECK(options.top == 10);
  CHECK(options.batch.global == 1024);
  CHECK(options.batch.micro == 256);
  CHECK(options.optimizer == "adam");
  CHECK(options.lr == 5e-3f);
  CHECK(options.min_lr == 0);
  CHECK(options.weight_decay == 0);
  CHECK(options.clip == 0);
  CHECK(options.warmup == 0);
  CHECK(options.beta2 == 0.999f);
  CHECK(options.steps_per_epoch == 78);
  CHECK(options.steps == 20 * 78);
  CHECK(options.epochs == 20);
  CHECK(options.eval_every == 78);
  CHECK(parse({"--optimizer", "sgd"}).lr == 0.1f);
}

TEST_CASE("train_recommender: defaults and flags of --objective ranking") {
  const RecommenderTrainOptions bce = parse({"--objective", "ranking"});
  CHECK(bce.ranks);
  CHECK(bce.split == "last");
  CHECK(bce.objective == RecommenderObjective::bce);
  CHECK(bce.objective_name() == "bce");
  CHECK(bce.negatives == 4);
  CHECK(bce.l2 == 1e-3f);
  CHECK(bce.lr == 5e-3f);
  CHECK(parse({"--objective", "ranking", "--model", "neumf"}).lr == 3e-3f);
  CHECK(parse({"--objective", "ranking", "--optimizer", "sgd"}).lr == 0.1f);
  const RecommenderTrainOptions bpr =
      parse({"--objective", "ranking", "--loss", "bpr", "--split", "fold:2/3", "--l2", "0.5"});
  CHECK(bpr.objective_name() == "bpr");
  CHECK(bpr.negatives == 1);
  CHECK(bpr.split == "fold:2/3");
  CHECK(bpr.l2 == 0.5f);
  const RecommenderTrainOptions sampled =
      parse({"--objective", "ranking", "--sampled-items", "99", "--negatives", "7", "--top", "5"});
  CHECK(sampled.sampled == 99);
  CHECK(sampled.negatives == 7);
  CHECK(sampled.top == 5);
}

TEST_CASE("train_recommender: the length of a run is given in epochs or in steps") {
  CHECK(parse({"--epochs", "2"}).steps == 156);
  CHECK(parse({"--epochs", "0.5"}).steps == 39);
  CHECK(parse({"--epochs", "0.001"}).steps == 1);
  CHECK(parse({"--steps", "39"}).epochs == Catch::Approx(0.5));
  CHECK(parse({"--batch", "2048", "--epochs", "1"}).steps == 39);
  CHECK_THROWS_WITH(parse({"--epochs", "1", "--steps", "2"}), ContainsSubstring("expected one"));
  for (const char* epochs : {"0", "-1", "nan", "inf", "1000001"}) {
    CHECK_THROWS_WITH(parse({"--epochs", epochs}), ContainsSubstring("--epochs"));
  }
}

TEST_CASE("train_recommender: the flags that make tables dense") {
  CHECK(parse({}).dense_flags.empty());
  CHECK(parse({"--tables", "dense"}).dense_flags == "--tables dense");
  CHECK(parse({"--weight-decay", "0.1"}).dense_flags == "--weight-decay");
  CHECK(parse({"--tables", "dense", "--weight-decay", "0.1"}).dense_flags ==
        "--tables dense and --weight-decay");
  CHECK_THROWS_WITH(
      parse({"--weight-decay", "0.1", "--table-optimizer", "rowwise-adagrad"}),
      ContainsSubstring("tables, but the tables are dense because of --weight-decay"));
}

TEST_CASE("the default micro-batch is at most the batch") {
  // Data with few interactions need a smaller --batch. They need no --micro-batch, because its
  // default shrinks with the batch.
  CHECK(parse({"--batch", "64"}, 305).batch.micro == 64);
  CHECK(parse({"--batch", "512"}).batch.micro == 256);
  CHECK_THROWS_WITH(parse({"--batch", "300"}),
                    ContainsSubstring("300 is not a multiple of the default micro-batch (256)"));
  CHECK_THROWS_WITH(parse({"--batch", "0"}), ContainsSubstring("--global-batch is 0"));
}

TEST_CASE("without a split, nothing is evaluated") {
  CHECK(parse({"--split", "none"}).eval_every == 0);
  CHECK(parse({"--split", "none", "--eval-every", "0"}).eval_every == 0);
  CHECK(parse({"--eval-every", "0"}).eval_every == 0);
  CHECK_THROWS_WITH(parse({"--split", "none", "--eval-every", "5"}),
                    ContainsSubstring("leave out --eval-every, or give another --split"));
  CHECK_THROWS_WITH(parse({"--split", "none", "--save", "model", "--save-best"}),
                    ContainsSubstring("leave out --save-best, or give another --split"));
  CHECK_THROWS_WITH(parse({"--objective", "ranking", "--split", "none", "--top", "3"}),
                    ContainsSubstring("leave out --top, or give another --split"));
}

TEST_CASE("train_recommender --eval-only takes a batch with which no step could be taken") {
  const RecommenderTrainOptions options = parse({"--eval-only", "--init", "model"}, 500);
  CHECK(options.batch.micro == 256);
  CHECK(options.eval_every > 0);
  CHECK(parse({"--eval-only", "--init", "model"}, 7).batch.micro == 7);
  CHECK(parse({"--eval-only", "--init", "model", "--micro-batch", "9"}).batch.micro == 9);
  CHECK_THROWS_WITH(parse({"--eval-only", "--init", "model", "--plan"}, 500),
                    ContainsSubstring("--eval-only takes none; leave out"));
}

TEST_CASE("flags that are for ranking only are refused if ratings are predicted") {
  CHECK_THROWS_WITH(parse({"--negatives", "3"}),
                    ContainsSubstring("--negatives is for --objective ranking"));
  CHECK_THROWS_WITH(parse({"--sampled-items", "9"}),
                    ContainsSubstring("--sampled-items is for --objective ranking"));
  CHECK_THROWS_WITH(parse({"--loss", "bpr"}),
                    ContainsSubstring("--loss is for --objective ranking"));
  CHECK_THROWS_WITH(parse({"--top", "3"}), ContainsSubstring("--top is for --objective ranking"));
  CHECK_THROWS_WITH(
      parse({"--objective", "ranking", "--sampled-items", "9", "--split", "fold:1/5"}),
      ContainsSubstring("--split is fold:1/5, expected last"));
  CHECK_THROWS_WITH(parse({"--hidden", "8,4"}), ContainsSubstring("--hidden is for --model neumf"));
}

TEST_CASE("train_recommender refuses invalid flags") {
  CHECK_THROWS_WITH(parse({"--batch", "4096"}, 500), ContainsSubstring("smaller --batch"));
  CHECK_THROWS_WITH(parse({"--model", "als"}), ContainsSubstring("als"));
  CHECK_THROWS_WITH(parse({"--model", "neumf", "--hidden", "5,3"}),
                    ContainsSubstring("--hidden: an MLP of widths 5, 3"));
  CHECK_THROWS_WITH(parse({"--factors", "0"}), Equals("--factors is 0, expected at least 1"));
  CHECK_THROWS_WITH(parse({"--factors", "65537"}), StartsWith("--factors is 65537, expected"));
  CHECK_THROWS_WITH(parse({"--split", "last:2"}), StartsWith("--split is 'last:2', expected"));
  CHECK_THROWS_WITH(parse({"--data", "u.data", "--columns", "a,b"}),
                    StartsWith("--columns are 'a,b', expected user"));
  CHECK_THROWS_WITH(parse({"--columns", "user,item"}), StartsWith("--columns is for --data"));
  for (const std::vector<const char*>& arguments :
       std::vector<std::vector<const char*>>{{"--model", "neumf", "--hidden", "8"},
                                             {"--model", "neumf", "--hidden", "8,x"},
                                             {"--model", "neumf", "--hidden", "8,0"},
                                             {"--objective", "ranks"},
                                             {"--objective", "ranking", "--loss", "warp"},
                                             {"--objective", "ranking", "--negatives", "0"},
                                             {"--objective", "ranking", "--negatives", "65537"},
                                             {"--objective", "ranking", "--sampled-items", "-1"},
                                             {"--objective", "ranking", "--top", "0"},
                                             {"--l2", "-0.1"},
                                             {"--l2", "nan"},
                                             {"--l2", "inf"},
                                             {"--stage", "4"},
                                             {"--batch", "10", "--micro-batch", "3"},
                                             {"--recompute"}}) {
    CAPTURE(arguments[0], arguments.back(), arguments.size());
    CHECK_THROWS_AS(parse(arguments), InputError);
  }
}

TEST_CASE("the widths of the MLP are those of --hidden") {
  CHECK(parse({"--model", "neumf", "--hidden", "8,6,4"}).model.hidden ==
        std::vector<int64_t>{8, 6, 4});
}

}  // namespace
}  // namespace tessera::apps
