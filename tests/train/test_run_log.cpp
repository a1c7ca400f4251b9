#include "train/report/run_log.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/random.h"
#include "core/text/number_text.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/temporary_folder.h"
#include "train/plan/plan_table.h"
#include "train/report/event_file.h"
#include "train/report/log_reader.h"
#include "train/report/progress.h"
#include "train/report/run_report.h"

using namespace tessera;
using namespace tessera::train;
using Catch::Matchers::ContainsSubstring;

namespace {

// Returns the messages that opening a log prints.
std::string messages_of(const std::string& path, int64_t finished) {
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(text)));
  { const RunLog log(path, finished); }
  spdlog::set_default_logger(before);
  return text.str();
}

}  // namespace

TEST_CASE("a float in the log is the shortest text that reads back to the same float") {
  REQUIRE(json_number(0.1f) == "0.1");
  REQUIRE(json_number(1.0f) == "1");
  REQUIRE(json_number(5.545177f) == "5.545177");
  REQUIRE(json_number(16777216.0f) == "16777216");
  REQUIRE(json_number(1e-5f) == "1e-05");
  REQUIRE(json_number(NAN) == "null");
  REQUIRE(json_number(-INFINITY) == "null");
  RandomStream stream(1, "floats", 0);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::bit_cast<float>(stream.next_u32());
    if (!std::isfinite(value)) continue;
    const std::string text = json_number(value);
    REQUIRE(std::bit_cast<uint32_t>(std::strtof(text.c_str(), nullptr)) ==
            std::bit_cast<uint32_t>(value));
    REQUIRE(nlohmann::json::accept(text));
  }
}

TEST_CASE("lines of the log are JSON with members in a fixed order") {
  const std::string text = step_line({.step = 3,
                                      .loss = 2.5f,
                                      .grad_norm = 0.1f,
                                      .lr = 1e-3f,
                                      .samples_per_s = 1000.25,
                                      .step_ms = 12.3456,
                                      .comm_exposed_ms = 0},
                                     "tokens")
                               .text();
  REQUIRE(text ==
          R"({"type":"step","step":4,"loss":2.5,"grad_norm":0.1,"lr":0.001,"tokens_per_s":1000.25,)"
          R"("step_ms":12.346,"comm_exposed_ms":0})");
  const std::string skipped = step_line({.step = 3,
                                         .loss = INFINITY,
                                         .grad_norm = NAN,
                                         .lr = 1e-3f,
                                         .loss_scale = 65536,
                                         .skipped = true},
                                        "images")
                                  .text();
  REQUIRE(skipped ==
          R"({"type":"step","step":4,"loss":null,"grad_norm":null,"lr":0.001,"loss_scale":65536,)"
          R"("skipped":true,"images_per_s":0,"step_ms":0,"comm_exposed_ms":0})");
  REQUIRE(eval_line(250, 1.5f).text() == R"({"type":"eval","step":250,"val_loss":1.5})");
  const auto escaped = JsonObject().add("path", "a\"b\\c\n\xff").text();
  REQUIRE(nlohmann::json::parse(escaped)["path"].get<std::string>().starts_with("a\"b\\c\n"));
  REQUIRE(nlohmann::json::parse(JsonObject().add("a", true).add("b", "x").indented())["a"] == true);
}

TEST_CASE("a log can be read while it is written, and an empty name writes none") {
  const test::TemporaryFolder folder;
  RunLog log(folder.path("a.jsonl"));
  log.write(eval_line(1, 2));
  REQUIRE(folder.read("a.jsonl") == eval_line(1, 2).text() + "\n");
  RunLog("").write(eval_line(1, 2));
  REQUIRE_THROWS_AS(RunLog(folder.path("no/a.jsonl")), InputError);
}

TEST_CASE("a line that does not fit on the disk is left out whole, and the next is tried") {
  const test::TemporaryFolder folder;
  const std::string line = eval_line(1, 2).text() + "\n";
  RunLog log(folder.path("a.jsonl"));
  log.write(eval_line(1, 2));
  {
    // Imitates a full disk, on which half a line still fits.
    const test::FileSizeLimit limit(line.size() * 3 / 2);
    log.write(eval_line(1, 2));
    CHECK(folder.read("a.jsonl") == line);
    log.write(eval_line(1, 2));
    CHECK(folder.read("a.jsonl") == line);
  }
  log.write(eval_line(1, 2));
  CHECK(folder.read("a.jsonl") == line + line);
}

TEST_CASE("the first line of a log is not lost if the disk is full for a while") {
  const test::TemporaryFolder folder;
  RunLog log(folder.path("a.jsonl"));
  {
    const test::FileSizeLimit limit(10);
    log.write(header_begin("test"));
    log.write(eval_line(1, 2));
    CHECK(folder.read("a.jsonl").empty());
  }
  log.write(eval_line(2, 3));
  log.write(eval_line(3, 4));
  CHECK(folder.read("a.jsonl") == header_begin("test").text() + "\n" + eval_line(2, 3).text() +
                                      "\n" + eval_line(3, 4).text() + "\n");
}

TEST_CASE("a log is a regular file or a device, and a pipe is refused, not waited for") {
  const test::TemporaryFolder folder;
  CHECK_THAT(test::message_of<InputError>([&] { RunLog{folder.path("")}; }),
             ContainsSubstring("cannot be written: it is a folder"));
  const std::string pipe = folder.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(
      test::message_of<InputError>([&] { RunLog{pipe}; }),
      ContainsSubstring("pipe: cannot be written: it already exists and is neither a regular"));
  RunLog("/dev/null").write(eval_line(1, 2));
}

TEST_CASE("files that cannot be opened because too many are open are not bad input") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("log.jsonl", header_begin("test").text() + "\n");
  using test::failure_with_files;
  CHECK(failure_with_files(0, [&] { RunLog{path}; }) ==
        path + ": cannot be written: Too many open files");
  // If a run goes on with its log, the log is opened a second time, to be read. If this fails, the
  // log must not count as empty, because it would then be overwritten.
  CHECK(failure_with_files(1, [&] { RunLog(path, 1); }) ==
        path + ": cannot be read: Too many open files");
  CHECK(failure_with_files(0, [&] { read_log(path, [](const auto&) {}); }) ==
        path + ": cannot be read: Too many open files");
  const std::string events = failure_with_files(0, [&] { EventFile(folder.path(""), 0); });
  CHECK(events.starts_with(folder.path("events.out.tfevents.")));
  CHECK(events.ends_with(": cannot be written: Too many open files"));
  CHECK(folder.entries() == 1);
}

TEST_CASE("a report expects a skipped step to send everything but its update") {
  optim::Plan plan;
  const auto gradients = static_cast<size_t>(dist::Traffic::gradients);
  plan.traffic[gradients] = 100;
  plan.update_traffic[gradients] = 30;
  plan.activations = 7;
  const dist::World world{.communicator = dist::single_communicator()};
  const RankReport report = measure(plan, {.steps = 5, .skipped = 2}, world);
  REQUIRE(report.traffic[gradients].planned == 440);
  REQUIRE_FALSE(report.traffic.back().planned.has_value());
  REQUIRE_THAT(report.table(), ContainsSubstring("sent, 5 steps, 2 skipped"));
  const auto planned = [&](Category category) {
    return report.memory[static_cast<size_t>(category)].planned;
  };
  REQUIRE(planned(Category::activations) == 7);
  REQUIRE_FALSE(planned(Category::workspace).has_value());
  REQUIRE_FALSE(report.equal());
}

TEST_CASE("numbers and durations are formatted for people") {
  REQUIRE(grouped(0) == "0");
  REQUIRE(grouped(999) == "999");
  REQUIRE(grouped(1000) == "1,000");
  REQUIRE(grouped(1234567) == "1,234,567");
  REQUIRE(grouped(-123456) == "-123,456");
  REQUIRE(counted(1, "rank") == "1 rank");
  REQUIRE(counted(0, "rank") == "0 ranks");
  REQUIRE(counted(1234, "step") == "1,234 steps");
  REQUIRE(counted(1, "class", "classes") == "1 class");
  REQUIRE(counted(2, "class", "classes") == "2 classes");
  REQUIRE(fmt::format("{}", without_nan_sign(-std::nanf(""))) == "nan");
  REQUIRE(fmt::format("{:.3f}", without_nan_sign(-std::nan(""))) == "nan");
  REQUIRE(without_nan_sign(-1.5) == -1.5);
  REQUIRE(duration_text(0) == "0:00");
  REQUIRE(duration_text(65.4) == "1:05");
  REQUIRE(duration_text(3723) == "1:02:03");
}

TEST_CASE("two runs cannot write one log at the same time") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("log.jsonl");
  {
    RunLog first(path);
    first.write(eval_line(1, 2));
    CHECK_THROWS_WITH(RunLog(path), ContainsSubstring("another run that still goes on"));
    CHECK_THROWS_WITH(RunLog(path, 1), ContainsSubstring("another run that still goes on"));
    first.write(eval_line(2, 3));
  }
  CHECK(folder.read("log.jsonl") == eval_line(1, 2).text() + "\n" + eval_line(2, 3).text() + "\n");
  RunLog(path, 1).write(eval_line(2, 4));
  CHECK(folder.read("log.jsonl") == eval_line(1, 2).text() + "\n" + eval_line(2, 4).text() + "\n");
}

TEST_CASE("the log of a resumed run keeps the finished steps, and has no step twice") {
  const test::TemporaryFolder folder;
  const std::string kept =
      "{\"type\":\"header\"}\n{\"type\":\"step\",\"step\":1}\n{\"type\":\"eval\",\"step\":2}\n";
  const auto after = [&](const std::string& rest, int64_t finished) {
    const std::string path = folder.file("log.jsonl", kept + rest);
    RunLog(path, finished).write(JsonObject().add("type", "resume"));
    return folder.read("log.jsonl");
  };
  const std::string resume = "{\"type\":\"resume\"}\n";
  CHECK(after("{\"type\":\"step\",\"step\":3}\n{\"type\":\"step\",\"step\":4}\n", 2) ==
        kept + resume);
  CHECK(after("{\"type\":\"summary\",\"steps\":2}\n", 2) == kept + resume);
  CHECK(after("{\"type\":\"step\",\"st", 5) == kept + resume);
  CHECK(after("not JSON\nnor this\n", 5) == kept + resume);
  CHECK_THROWS_WITH(after("not JSON\n{\"type\":\"step\",\"step\":3}\n", 5),
                    ContainsSubstring("line 4 is damaged, and later lines are not"));
  CHECK(after("{\"type\":\"step\",\"step\":\"3\"}\n", 5) == kept + resume);
  CHECK(after("", 0) == "{\"type\":\"header\"}\n" + resume);
  // If the log does not exist, RunLog creates it.
  RunLog fresh(folder.path("new.jsonl"), 7);
  CHECK(fresh.empty());
  fresh.write(JsonObject().add("type", "header"));
  CHECK(folder.read("new.jsonl") == "{\"type\":\"header\"}\n");
}

TEST_CASE("a log that is opened but not written stays as it was") {
  const test::TemporaryFolder folder;
  const std::string text =
      "{\"type\":\"header\"}\n{\"type\":\"step\",\"step\":1}\n{\"type\":\"step\",\"st";
  const std::string path = folder.file("log.jsonl", text);
  CHECK(RunLog(path).empty());
  CHECK_FALSE(RunLog(path, 1).empty());
  CHECK(folder.read("log.jsonl") == text);
}

TEST_CASE("only a log whose last steps are missing has a gap") {
  const test::TemporaryFolder folder;
  // The checkpoint of step 2 was written while steps 3 and 4 ran.
  const std::string path = folder.file(
      "log.jsonl", "{\"type\":\"step\",\"step\":4}\n{\"type\":\"checkpoint\",\"step\":2}\n");
  CHECK(messages_of(path, 4).empty());
  CHECK_THAT(messages_of(path, 5), ContainsSubstring("ends with step 4, and the run goes on after "
                                                     "step 5: the log has a gap"));
}

TEST_CASE("a line whose type is not a text is kept like any other") {
  const test::TemporaryFolder folder;
  const std::string lines = "{\"type\":7,\"step\":1}\n{\"step\":2}\n";
  const std::string path = folder.file("log.jsonl", lines);
  CHECK(messages_of(path, 2).empty());
  CHECK(folder.read("log.jsonl") == lines);
}
