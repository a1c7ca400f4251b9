#include "train/run_files.h"

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/report/progress.h"

using namespace tessera;
using namespace tessera::train;
using Catch::Matchers::ContainsSubstring;

namespace {

// Returns a world of one rank, and switches messages off.
dist::World alone() {
  set_up_messages(false);
  return {.communicator = dist::single_communicator()};
}

}  // namespace

TEST_CASE("a report needs a log that can be read again") {
  const dist::World world = alone();
  const test::TemporaryFolder folder;
  const auto refusal = [&](const std::string& log) {
    return test::message_of<InputError>(
        [&] { begin_run({.log = log, .report = folder.path("run.html")}, world); });
  };
  CHECK_THAT(refusal(""), ContainsSubstring("made from the log"));
  CHECK_THAT(refusal("/dev/null"), ContainsSubstring("'/dev/null'"));
}

TEST_CASE("two files of a run have different paths") {
  const dist::World world = alone();
  const test::TemporaryFolder folder;
  const std::string path = folder.path("run.json");
  CHECK(test::message_of<InputError>([&] { begin_run({.log = path, .trace = path}, world); }) ==
        path + " is given for two files of the run, expected different paths");
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a trace or a log that could not be written does not prevent the other outputs") {
  const dist::World world = alone();
  const test::TemporaryFolder folder;
  RunFiles files{.log = folder.path("run.jsonl"), .csv = folder.path("run.csv")};
  {
    RunLog log(files.log);
    log.write(header_begin("test"));
    log.write(step_line({}, "tokens"));
  }
  files.trace = folder.path("no/trace.json");
  files.report = folder.path("no/run.html");
  const std::string failure =
      try_to_write_reports(files, world, try_to_write_trace(files, world, ""));
  CHECK_THAT(failure, ContainsSubstring("no/trace.json"));
  CHECK(std::filesystem::exists(folder.path("run.csv")));
  CHECK(try_to_write_trace(files, world, "an earlier one") == "an earlier one");
  CHECK(test::message_of<Error>([&] { throw_failure(failure, world); }) == failure);

  // On a full disk, the header may fit and all steps may be lost.
  { RunLog(files.log).write(header_begin("test")); }
  files.report = "";
  CHECK(try_to_write_reports(files, world, "") == files.log + ": the run has logged no step yet");

  std::ofstream(files.log).close();
  CHECK(try_to_write_reports(files, world, "") ==
        folder.path("run.csv") + " is not written, because the log could not be written");
}
