// Ranks compare their flags, because they can be started with different ones (dist/agreement.h). A
// flag that is not compared could make ranks train inconsistently. So this test goes through every
// flag in the help of train_gpt, train_resnet, train_recommender and comm_bench. --config is left
// out. Ranks must compare the flag's value, with two exceptions: for a flag in `paths`, ranks
// compare only whether the flag is given, and flags in `each_its_own` are not compared.
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "apps/comm_bench_options.h"
#include "apps/train_gpt_options.h"
#include "apps/train_recommender_options.h"
#include "apps/train_resnet_options.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::apps;

namespace {

template <class Parse>
auto parsed(Parse&& parse, const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"program"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return parse(static_cast<int>(argv.size()), argv.data());
}

std::string value_of(const dist::Settings& settings, const std::string& name) {
  for (const dist::Setting& setting : settings) {
    if (setting.name == name) return setting.value;
  }
  return "not compared";
}

// Returns the first long name of each flag that begins a line of the help.
std::set<std::string> flags_in(const std::string& help) {
  std::set<std::string> flags;
  const std::regex flag(R"((?:^|\n)\s+(?:-h,)?(--[a-z0-9-]+))");
  for (std::sregex_iterator i(help.begin(), help.end(), flag); i != std::sregex_iterator(); ++i) {
    flags.insert((*i)[1]);
  }
  return flags;
}

// For each flag that ranks compare by its value: a value that differs from the flag's default. An
// empty value means that the flag takes no value. A test case may replace an entry for its program.
const std::map<std::string, std::string> other = {
    {"--layers", "2"},
    {"--heads", "2"},
    {"--width", "64"},
    {"--context", "32"},
    {"--vocab", "300"},
    {"--preset", "micro"},
    {"--dropout", "0.1"},
    {"--steps", "7"},
    {"--global-batch", "24"},
    {"--micro-batch", "3"},
    {"--optimizer", "adam"},
    {"--lr", "0.5"},
    {"--min-lr", "1e-09"},
    {"--warmup", "3"},
    {"--weight-decay", "0.2"},
    {"--beta1", "0.8"},
    {"--beta2", "0.9"},
    {"--clip", "0.5"},
    {"--seed", "9"},
    {"--stage", "1"},
    {"--bucket-bytes", "4096"},
    {"--reduction", "fast"},
    {"--overlap", "off"},
    {"--graph", "on"},
    {"--device", "cpu"},
    {"--comm", "mpi"},
    {"--comm-timeout", "5"},
    {"--precision", "fp16"},
    {"--offload", "optimizer"},
    {"--recompute", ""},
    {"--loss-rows", "5"},
    {"--verify-data", ""},
    {"--eval-every", "9"},
    {"--eval-batches", "3"},
    {"--eval-only", ""},
    {"--norms-every", "7"},
    {"--quiet", ""},
    {"--sample", "4"},
    {"--tune", "off"},
    {"--plan", ""},
    {"--augment", "off"},
    {"--model", "resnet32"},
    {"--image-size", "16"},
    {"--sync-bn", ""},
    {"--epochs", "2"},
    {"--label-smoothing", "0.1"},
    {"--schedule", "onecycle"},
    {"--min-bytes", "2KiB"},
    {"--max-bytes", "1MiB"},
    {"--factor", "3"},
    {"--dtype", "f16"},
    {"--collective", "exchange"},
    {"--iterations", "3"},
    {"--groups", "2"},
    {"--grad-shard", "bf16"},
    {"--columns", "user,item"},
    {"--split", "time:0.5"},
    {"--factors", "5"},
    {"--tables", "dense"},
    {"--table-optimizer", "rowwise-adagrad"},
    {"--hidden", "8,4"},
    {"--objective", "ranking"},
    {"--loss", "bpr"},
    {"--negatives", "7"},
    {"--l2", "0.25"},
    {"--save-every", "5"},
    {"--save-best", ""},
    {"--checkpoint-every", "5"},
    {"--checkpoint-keep", "2"},
    {"--checkpoint-async", "off"},
    {"--checkpoint-staging", "4096"},
    {"--resume-changed", "lr"},
    {"--top", "3"},
    {"--sampled-items", "9"},
};
const std::set<std::string> paths = {"--data",   "--val-data",   "--init",   "--tuned",
                                     "--save",   "--trace",      "--resume", "--checkpoint",
                                     "--report", "--tensorboard"};
const std::set<std::string> each_its_own = {"--log",  "--threads", "--workers",
                                            "--json", "--csv",     "--color"};

// Maps each flag that needs other flags to these flags and their values.
const std::map<std::string, std::vector<std::string>> needed = {
    {"--save-every", {"--save", "model.safetensors"}},
    {"--save-best", {"--save", "model.safetensors"}},
    {"--eval-only", {"--checkpoint", "runs"}},
    {"--checkpoint-every", {"--checkpoint", "runs"}},
    {"--checkpoint-keep", {"--checkpoint", "runs"}},
    {"--checkpoint-async", {"--checkpoint", "runs"}},
    {"--checkpoint-staging", {"--checkpoint", "runs"}},
    {"--resume-changed", {"--resume", "runs"}},
    {"--grad-shard", {"--precision", "bf16"}},
    {"--columns", {"--data", "ratings.csv"}},
    {"--hidden", {"--model", "neumf"}},
    {"--loss", {"--objective", "ranking"}},
    {"--negatives", {"--objective", "ranking"}},
    {"--top", {"--objective", "ranking"}},
    {"--sampled-items", {"--objective", "ranking"}},
};

// Checks every flag in the help. Entries of `values` replace entries of `other`.
template <class Parse>
void check_flags(Parse&& parse, const std::vector<std::string>& base,
                 std::map<std::string, std::string> values = {}) {
  values.insert(other.begin(), other.end());
  const dist::Settings before = parsed(parse, base).settings;
  const std::string help = parsed(parse, {"--help"}).help;
  CHECK(value_of(parsed(parse, {"--help"}).settings, "--help") == "on");
  CHECK(value_of(before, "--help") == "off");
  CHECK(value_of(parsed(parse, {"--version"}).settings, "--version") == "on");
  const auto value_with = [&](const std::string& flag, const std::string& value) {
    std::vector<std::string> arguments = base;
    arguments.push_back(flag);
    if (!value.empty()) arguments.push_back(value);
    if (const auto found = needed.find(flag); found != needed.end()) {
      arguments.insert(arguments.end(), found->second.begin(), found->second.end());
    }
    return value_of(parsed(parse, arguments).settings, flag);
  };
  for (const std::string& flag : flags_in(help)) {
    // Ranks compare the flags that the file of --config sets, not the file's name.
    if (flag == "--help" || flag == "--version" || flag == "--config") continue;
    INFO(flag);
    if (each_its_own.contains(flag)) {
      CHECK(value_of(before, flag) == "not compared");
    } else if (paths.contains(flag)) {
      // Parsing --init may open the file to read the model's sizes. So both values of --init must
      // exist: the file and its folder. The other paths need not exist.
      const std::string folder = test::fixture("hf_tiny");
      CHECK(value_with(flag, folder + "/model.safetensors") == "a value");
      CHECK(value_with(flag, flag == "--init" ? folder : "another.file") == "a value");
    } else {
      REQUIRE(values.contains(flag));
      const std::string value = values.at(flag);
      CHECK(value_with(flag, value) == (value.empty() ? "on" : value));
      CHECK(value_of(before, flag) != value_with(flag, value));
    }
  }
}

}  // namespace

TEST_CASE("ranks compare every flag of train_gpt") {
  check_flags(parse_command_line, {"--data", "text"});
}

TEST_CASE("ranks compare every flag of train_resnet") { check_flags(parse_image_command_line, {}); }

TEST_CASE("ranks compare every flag of train_recommender") {
  check_flags(parse_recommender_command_line, {}, {{"--model", "gmf"}, {"--optimizer", "sgd"}});
}

TEST_CASE("ranks compare every flag of comm_bench") { check_flags(parse_comm_command_line, {}); }

TEST_CASE("ranks compare the values of flags, not how they are written") {
  const auto rate = [](const char* text) {
    return value_of(parsed(parse_command_line, {"--data", "text", "--lr", text}).settings, "--lr");
  };
  CHECK(rate("1e-3") == rate("0.001"));
  CHECK(rate("0.001") != rate("0.0010001"));
}
