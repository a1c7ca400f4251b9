// Tests the code that makes reports from a log: thinned series, the history of a run, the CSV
// table, the HTML page, and TensorBoard's files.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/report/csv.h"
#include "train/report/event_file.h"
#include "train/report/log_reader.h"
#include "train/report/report_page.h"
#include "train/report/run_history.h"
#include "train/report/thinned_series.h"

using namespace tessera;
using namespace tessera::train;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::ordered_json;

namespace {

const std::string header =
    R"({"type":"header","program":"train_gpt","stage":2,"layout":{"groups":[]}})"
    "\n";
const std::string steps = R"({"type":"step","step":1,"loss":2.5,"lr":0.1})"
                          "\n"
                          R"({"type":"step","step":2,"loss":null,"lr":0.05,"skipped":true})"
                          "\n"
                          R"({"type":"eval","step":2,"val_loss":2.25,"best":true})"
                          "\n"
                          R"({"type":"step","step":3,"loss":1.5,"lr":0.01,"note":"a \"b\", c"})"
                          "\n";

std::string log_of(const test::TemporaryFolder& folder, const std::string& text) {
  std::ofstream(folder.path("run.jsonl"), std::ios::binary) << text;
  return folder.path("run.jsonl");
}

}  // namespace

TEST_CASE("a short series keeps all points, and a long one keeps every spike") {
  ThinnedSeries few(4);
  for (int i = 0; i < 4; ++i) few.add(i, i * i);
  CHECK(few.points().size() == 4);
  CHECK(few.points()[3].y == 9);
  ThinnedSeries many(8);
  constexpr int count = 100'003;
  for (int i = 0; i < count; ++i) many.add(i, i == 70'001 ? 50.0 : i == 12'345 ? -50.0 : 0.25);
  const auto points = many.points();
  CHECK(many.count() == count);
  CHECK(points.size() <= 17);
  CHECK(points.front().x == 0);
  CHECK(points.back().x == count - 1);
  const auto has = [&](double x, double y) {
    return std::ranges::any_of(points, [&](const auto& p) { return p.x == x && p.y == y; });
  };
  CHECK(has(70'001, 50));
  CHECK(has(12'345, -50));
  CHECK(std::ranges::is_sorted(points, {}, &ThinnedSeries::Point::x));
  CHECK(ThinnedSeries().points().empty());
}

TEST_CASE("a history has the values of the log") {
  const test::TemporaryFolder folder;
  const std::string end = R"({"type":"summary","equal":true,"ranks":[]})"
                          "\n";
  const Json run = read_history(log_of(folder, header + steps + end));
  CHECK(run["header"] == Json{{"program", "train_gpt"}, {"stage", 2}});
  CHECK(run["layout"] == Json{{"groups", Json::array()}});
  CHECK(run["steps"]["count"] == 3);
  CHECK(run["steps"]["series"]["loss"] == Json{{1, 2.5}, {3, 1.5}});
  CHECK(run["steps"]["series"]["lr"] == Json{{1, 0.1}, {2, 0.05}, {3, 0.01}});
  CHECK(run["skipped"] == Json{2});
  CHECK(run["evals"]["val_loss"] == Json::array({Json{2, 2.25}}));
  CHECK(run["best"] == 2);
  CHECK(run["summary"]["equal"] == true);
}

TEST_CASE("a resumed run has the settings of its last part") {
  const test::TemporaryFolder folder;
  const std::string resume =
      R"({"type":"resume","step":3,"checkpoint":"c","stage":3,"layout":{"groups":[1]}})"
      "\n";
  const Json run = read_history(log_of(folder, header + steps + resume));
  CHECK(run["header"]["stage"] == 3);
  CHECK(run["layout"]["groups"] == Json{1});
  CHECK(run["resumes"] == Json{3});
}

TEST_CASE("norms of many parameters are thinned to evenly spaced steps") {
  const test::TemporaryFolder folder;
  Json norms;
  for (int i = 0; i < 500; ++i) norms[fmt::format("p{}", i)] = i;
  std::string lines;
  for (int step = 1; step <= 300; ++step) {
    lines += Json{{"type", "norms"}, {"step", step}, {"norms", norms}}.dump() + "\n";
  }
  const Json table = read_history(log_of(folder, header + steps + lines))["norms"];
  CHECK(table["names"].size() == 500);
  CHECK(table["steps"].size() == table["values"].size());
  CHECK(table["steps"].size() * 500 <= 40'000);
  CHECK(table["steps"].size() >= 30);
  CHECK(table["steps"][0] == 1);
  CHECK(table["steps"][1].get<int>() - 1 ==
        table["steps"][2].get<int>() - table["steps"][1].get<int>());
  CHECK(table["values"][2][499] == 499);
}

TEST_CASE("the log of a run in progress is read up to its last whole line") {
  const test::TemporaryFolder folder;
  const Json run = read_history(log_of(folder, header + steps + R"({"type":"step","st)"));
  CHECK(run["steps"]["count"] == 3);
}

TEST_CASE("a file that is not a log is refused, and the error names it") {
  const test::TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    return [path = log_of(folder, text)] { read_history(path); };
  };
  CHECK_THROWS_WITH(read("")(), ContainsSubstring("run.jsonl: not the log of a run"));
  for (const char* other : {"text\n", "1,2.5\n2,2.4\n", "step,loss\n1,2.5\n"}) {
    CHECK_THROWS_WITH(read(other)(),
                      ContainsSubstring("its first line is not a header, {\"type\":\"header\"") &&
                          ContainsSubstring("give the FILE.jsonl that --log"));
  }
  CHECK_THROWS_WITH(read("{\"type\":\"step\"}\n")(), ContainsSubstring("not a header"));
  CHECK_THROWS_WITH(read(header + "[1]\n")(), ContainsSubstring("line 2 is not a line of a log"));
  CHECK_THROWS_WITH(read(header + "{\"type\":3}\n")(), ContainsSubstring("line 2"));
  CHECK_THROWS_WITH(read(header + "{\"type\":\"step\",\"step\":1,\"loss\":\"x\"}\n")(),
                    ContainsSubstring("run.jsonl: line 2 is not a line of a log: loss is of type "
                                      "string, expected a number or null"));
  CHECK_THROWS_WITH(read(header + steps + "{\"type\":\"eval\",\"step\":3,\"val_loss\":[1]}\n")(),
                    ContainsSubstring("line 6 is not a line of a log: val_loss is of type array"));
  CHECK_THROWS_WITH(read(header)(), ContainsSubstring("no step yet"));
  CHECK_THROWS_WITH(read_history(folder.path("none")), ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(read_history(folder.path("")), ContainsSubstring("not a regular file"));
  CHECK_THROWS_AS(read("text\n")(), InputError);
}

TEST_CASE("lines with unexpected members do not end a report") {
  const test::TemporaryFolder folder;
  const std::string odd = R"({"type":"step"})"
                          "\n"
                          R"({"type":"step","step":"four"})"
                          "\n"
                          R"({"type":"eval","step":[]})"
                          "\n"
                          R"({"type":"norms","step":3})"
                          "\n"
                          R"({"type":"of a later version","step":3})"
                          "\n";
  CHECK(read_history(log_of(folder, header + steps + odd))["steps"]["count"] == 3);
}

TEST_CASE("the table has a row for each step, with the evaluation after it") {
  const test::TemporaryFolder folder;
  write_csv(log_of(folder, header + steps), folder.path("run.csv"));
  CHECK(folder.read("run.csv") ==
        "step,loss,lr,skipped,val_loss,best,note\r\n"
        "1,2.5,0.1,,,,\r\n"
        "2,,0.05,true,2.25,true,\r\n"
        "3,1.5,0.01,,,,\"a \"\"b\"\", c\"\r\n");
}

TEST_CASE("an evaluation's epoch has another column than the epoch of its step") {
  const test::TemporaryFolder folder;
  const std::string lines = R"({"type":"step","step":8,"loss":2,"epoch":0})"
                            "\n"
                            R"({"type":"eval","step":8,"epoch":1,"rmse":0.5})"
                            "\n"
                            R"({"type":"step","step":9,"loss":1,"epoch":1})"
                            "\n";
  write_csv(log_of(folder, header + lines), folder.path("run.csv"));
  CHECK(folder.read("run.csv") ==
        "step,loss,epoch,eval_epoch,rmse\r\n"
        "8,2,0,1,0.5\r\n"
        "9,1,1,,\r\n");
}

TEST_CASE("names of columns are quoted where a comma or a quote would divide them") {
  const test::TemporaryFolder folder;
  const std::string step = R"({"type":"step","step":1,"a,b":2,"c \"d\"":3})"
                           "\n";
  write_csv(log_of(folder, header + step), folder.path("run.csv"));
  CHECK(folder.read("run.csv") == "step,\"a,b\",\"c \"\"d\"\"\"\r\n1,2,3\r\n");
}

TEST_CASE("a log without a step gives no table, as it gives no report") {
  const test::TemporaryFolder folder;
  const std::string evaluation = R"({"type":"eval","step":3,"val_loss":1})"
                                 "\n";
  for (const std::string& lines : {header, header + evaluation}) {
    CHECK(test::message_of<InputError>([&] {
            write_csv(log_of(folder, lines), folder.path("run.csv"));
          }) == folder.path("run.jsonl") + ": the run has logged no step yet");
    CHECK_FALSE(std::filesystem::exists(folder.path("run.csv")));
  }
}

TEST_CASE("a page holds its data, and no text of a log can end the script") {
  const test::TemporaryFolder folder;
  const std::string hostile =
      R"({"type":"header","program":"</script><script>alert(1)</script><!--","stage":0})"
      "\n";
  write_report_page({{.log = log_of(folder, hostile + steps), .name = "<b>one</b>"},
                     {.log = folder.path("run.jsonl")}},
                    folder.path("run.html"));
  const std::string page = folder.read("run.html");
  CHECK(page.find("alert(1)</script>") == std::string::npos);
  CHECK(page.find("<b>one") == std::string::npos);
  CHECK(page.find("http://") == page.find("http://www.w3.org/"));  // an XML namespace, not a link
  CHECK(page.find("https://") == std::string::npos);
  const std::string begin = "id=\"data\">";
  const size_t from = page.find(begin) + begin.size();
  const Json data = Json::parse(page.substr(from, page.find("</script>", from) - from));
  CHECK(data["runs"][0]["name"] == "<b>one</b>");
  CHECK(data["runs"][1]["name"] == "run");
  CHECK(data["runs"][0]["header"]["program"] == "</script><script>alert(1)</script><!--");
  CHECK(data["runs"][1]["steps"]["series"]["loss"][1][1] == 1.5);
}

TEST_CASE("CRC-32C has its check value and the values of RFC 3720") {
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
}

TEST_CASE("event files have whole records, and two in one second have two names") {
  const test::TemporaryFolder folder;
  std::string paths[2];
  for (std::string& path : paths) {
    EventFile file(folder.path("events"), 1);
    file.scalar("train/loss", 3, 0.5);
    file.histogram("norms", 3, std::vector<double>{1, 2, NAN, 4});
    file.histogram("nothing finite", 3, std::vector<double>{NAN});
    file.text("run", 0, "| a |");
    path = file.path();
  }
  CHECK(paths[0] != paths[1]);
  std::ifstream stream(paths[0], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const auto masked = [](std::string_view text) {
    const uint32_t crc = crc32c(text);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  size_t at = 0;
  int records = 0;
  while (at < bytes.size()) {
    uint64_t length = 0;
    uint32_t crc = 0;
    REQUIRE(bytes.size() >= at + 16);
    std::memcpy(&length, &bytes[at], 8);
    std::memcpy(&crc, &bytes[at + 8], 4);
    REQUIRE(crc == masked(std::string_view(bytes).substr(at, 8)));
    REQUIRE(bytes.size() >= at + 16 + length);
    std::memcpy(&crc, &bytes[at + 12 + length], 4);
    REQUIRE(crc == masked(std::string_view(bytes).substr(at + 12, length)));
    at += 16 + length;
    ++records;
  }
  CHECK(records == 5);  // version, session, scalar, histogram, text
  {
    EventFile file(folder.path("timed"), 1, 1000.5);
    file.set_time(2000.25);
    file.scalar("train/loss", 3, 0.5);
    paths[0] = file.path();
  }
  // Each record has the length (8 bytes), a checksum (4), the event and a checksum (4). An event
  // begins with the key of its time (1 byte) and the time (8 bytes).
  const std::string timed = folder.read(paths[0]);
  std::vector<double> times;
  for (size_t begin = 0; begin < timed.size();) {
    uint64_t length = 0;
    std::memcpy(&length, &timed[begin], 8);
    std::memcpy(&times.emplace_back(), &timed[begin + 13], 8);
    begin += 16 + length;
  }
  CHECK(times == std::vector<double>{1000.5, 1000.5, 2000.25});
  CHECK_THROWS_WITH(EventFile("/dev/null/x", 0), ContainsSubstring("/dev/null/x: cannot be made"));
}
