#include "apps/checkpoint_options.h"

#include <string>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::apps;

namespace {

CheckpointCommandLine parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"checkpoint"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return parse_checkpoint_command_line(static_cast<int>(argv.size()), argv.data());
}

std::string refusal(const std::vector<std::string>& arguments) {
  return test::message_of<InputError>([&] { parse(arguments); });
}

TEST_CASE("each command of checkpoint takes its own arguments") {
  CHECK(parse({"inspect", "runs/a", "--json"}).options.json);
  CHECK(parse({"inspect", "--dir", "runs/a"}).options.path == "runs/a");
  CHECK(parse({"verify", "runs/a"}).options.command == CheckpointCommand::verify);
  const CheckpointToolOptions diff = parse({"diff", "x", "y"}).options;
  CHECK(diff.command == CheckpointCommand::diff);
  CHECK(diff.path == "x");
  CHECK(diff.other == "y");
  CHECK(parse({"export", "x", "y.safetensors"}).options.other == "y.safetensors");
  const train::ImportOptions import =
      parse({"import", "w", "runs", "--step", "7", "--optimizer", "sgd", "--shard-bytes=1MiB"})
          .options.import;
  CHECK(import.weights == "w");
  CHECK(import.folder == "runs");
  CHECK(import.step == 7);
  CHECK(import.optimizer == "sgd");
  CHECK(import.shard_bytes == 1 << 20);
  CHECK_FALSE(parse({"import", "w", "runs"}).options.import.step.has_value());
}

TEST_CASE("checkpoint explains its commands, with examples") {
  const std::string help = parse({"--help"}).help;
  for (const char* command : {"inspect", "verify", "diff", "export", "import"}) {
    CHECK(help.find("\n  " + std::string(command) + " ") != std::string::npos);
    const std::string own = parse({command, "--help"}).help;
    CHECK(own.find("checkpoint " + std::string(command) + " ") != std::string::npos);
    CHECK(own.find("Example") != std::string::npos);
  }
  for (const char* command : {"diff", "export"}) {
    const std::string own = parse({command, "--help"}).help;
    CHECK(own.find("newest whole one") != std::string::npos);
    CHECK(own.find("a damaged checkpoint is passed over with a") != std::string::npos);
  }
  CHECK(parse({"--version"}).help.find("checkpoint ") == 0);
}

TEST_CASE("checkpoint refuses unknown commands, missing arguments and invalid values") {
  CHECK(refusal({}).find("no command is given") == 0);
  CHECK(refusal({"inspekt", "x"}).find("unknown command 'inspekt'") == 0);
  CHECK(refusal({"--json", "inspect"}).find("unknown flag --json") == 0);
  CHECK(refusal({"inspect"}) == "an argument is missing: checkpoint inspect DIR");
  CHECK(refusal({"diff", "x"}) == "an argument is missing: checkpoint diff A B");
  CHECK(refusal({"import", "x"}) == "an argument is missing: checkpoint import FILE DIR");
  CHECK(refusal({"verify", "x", "y"}).find("unexpected argument 'y'") == 0);
  CHECK(refusal({"import", "w", "d", "--step", "-1"}).find("--step is -1") == 0);
  CHECK(refusal({"import", "w", "d", "--step", "1.5"}).find("--step") == 0);
  CHECK(refusal({"import", "w", "d", "--optimizer", "lion"}).find("--optimizer is") == 0);
  CHECK(refusal({"import", "w", "d", "--shard-bytes", "2047"}).find("--shard-bytes is 2047") == 0);
}

}  // namespace
