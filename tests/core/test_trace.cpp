// Tests trace scopes, and the file to which they are written.
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/trace.h"
#include "tests/support/catch.h"

using namespace tessera;
using trace::Event;
using trace::Track;

namespace {

/// Enables tracing during a test. Discards all events before and after the test.
class Tracing {
 public:
  Tracing() {
    trace::take_events();
    trace::enable(true);
  }
  ~Tracing() {
    trace::enable(false);
    trace::take_events();
  }
};

nlohmann::json parsed(const std::vector<Event>& events, int rank, int64_t origin_ns = 0) {
  return nlohmann::json::parse("[" + trace::to_chrome_json(events, rank, origin_ns) + "]");
}

}  // namespace

TEST_CASE("tracing that is off records nothing, and asks for no detail") {
  trace::enable(false);
  trace::take_events();
  int asked = 0;
  {
    const trace::Scope scope("one");
    const trace::Scope other("two", Track::communication, {3}, [&asked] {
      ++asked;
      return std::string("detail");
    });
  }
  CHECK_FALSE(trace::enabled());
  CHECK(asked == 0);
  CHECK(trace::take_events().empty());
}

TEST_CASE("a scope that began while tracing was off stays out of the trace") {
  const Tracing tracing;
  trace::enable(false);
  {
    const trace::Scope scope("early");
    trace::enable(true);
    const trace::Scope inner("inner");
  }
  const auto events = trace::take_events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].name == "inner");
}

TEST_CASE("scopes nest, and are recorded as they end") {
  const Tracing tracing;
  {
    const trace::Scope outer("outer");
    const trace::Scope inner("inner", Track::buckets, {4}, [] { return std::string("rank 0"); });
  }
  const auto events = trace::take_events();
  REQUIRE(events.size() == 2);
  const Event& inner = events[0];
  const Event& outer = events[1];
  CHECK(inner.name == "inner");
  CHECK(inner.track == Track::buckets);
  CHECK(inner.place.bucket == 4);
  CHECK(inner.detail == "rank 0");
  CHECK(outer.name == "outer");
  CHECK(outer.track == Track::compute);
  CHECK(outer.place.bucket == -1);
  CHECK(outer.begin_ns <= inner.begin_ns);
  CHECK(inner.end_ns <= outer.end_ns);
  // Even the shortest scope gets a duration, because equal times would mark an instant event.
  CHECK(inner.begin_ns < inner.end_ns);
  CHECK(trace::take_events().empty());
}

TEST_CASE("threads record into one trace", "[threads]") {
  const Tracing tracing;
  std::vector<std::thread> team;
  for (int t = 0; t < 4; ++t) {
    team.emplace_back([] {
      for (int i = 0; i < 100; ++i) const trace::Scope scope("work", Track::communication);
    });
  }
  for (auto& thread : team) thread.join();
  CHECK(trace::take_events().size() == 400);
}

TEST_CASE("the clock moves forward") {
  const int64_t before = trace::now_ns();
  CHECK(before > 0);
  CHECK(trace::now_ns() >= before);
}

TEST_CASE("events become Chrome's JSON") {
  const std::vector<Event> events{
      {"linear", Track::compute, 2'000'000'001'500, 2'000'000'004'000, ""},
      {"ready", Track::buckets, 5'000, 5'000, "rank 0 [0, 256)", {7}},
      {"wait", Track::waiting, 1, 2, "all"},
  };
  const auto json = parsed(events, 3);
  // The file begins with the names of the process and of its four tracks; the events follow.
  REQUIRE(json.size() == 8);
  CHECK(json[0]["ph"] == "M");
  CHECK(json[0]["name"] == "process_name");
  CHECK(json[0]["args"]["name"] == "rank 3");
  const char* tracks[] = {"compute", "waiting", "communication", "buckets"};
  for (size_t i = 0; i < 4; ++i) {
    CHECK(json[i + 1]["name"] == "thread_name");
    CHECK(json[i + 1]["tid"] == 12 + i);  // threads of rank 3; no other rank uses these numbers
    CHECK(json[i + 1]["args"]["name"] == tracks[i]);
  }
  for (const auto& entry : json) CHECK(entry["pid"] == 3);

  CHECK(json[5]["ph"] == "X");
  CHECK(json[5]["name"] == "linear");
  CHECK(json[5]["tid"] == 12);
  CHECK(json[5]["ts"].get<double>() == 2000000001.5);  // microseconds
  CHECK(json[5]["dur"].get<double>() == 2.5);
  CHECK_FALSE(json[5].contains("args"));

  CHECK(json[6]["ph"] == "i");
  CHECK(json[6]["s"] == "t");
  CHECK(json[6]["ts"].get<double>() == 5);
  CHECK_FALSE(json[6].contains("dur"));
  CHECK(json[6]["tid"] == 15);
  CHECK(json[6]["args"]["bucket"] == 7);
  CHECK(json[6]["args"]["detail"] == "rank 0 [0, 256)");

  CHECK(json[7]["tid"] == 13);
  CHECK(json[7]["args"]["detail"] == "all");
}

TEST_CASE("arrows lead from a gradient to its exchange and its update") {
  using trace::Station;
  const auto at = [](const char* name, Track track, int64_t begin, int64_t end, int64_t bucket,
                     int64_t group, Station station) {
    return Event{name, track, begin, end, "", {bucket, group, station}};
  };
  // Groups 0 and 9 are two sets of parameters. Bucket 1 of group 0 has two micro-steps, so it has
  // two arrows. Its first exchange begins after the second gradient is ready. Bucket 1 of group 9
  // has one arrow, which leads from the gradient directly to the update. This bucket has no
  // exchange, as in a run without mpirun. No arrow leads to the exchange after the update, or to
  // the wait.
  const std::vector<Event> events{
      at("ready", Track::buckets, 10'000, 10'000, 1, 0, Station::ready),
      at("ready", Track::buckets, 20'000, 20'000, 1, 0, Station::ready),
      at("exchange", Track::communication, 30'000, 40'000, 1, 0, Station::exchange),
      at("ready", Track::buckets, 35'000, 35'000, 1, 9, Station::ready),
      at("exchange", Track::communication, 50'000, 60'000, 1, 0, Station::exchange),
      at("update", Track::buckets, 70'000, 80'000, 1, 0, Station::update),
      at("update", Track::buckets, 80'000, 90'000, 1, 9, Station::update),
      at("exchange", Track::communication, 95'000, 96'000, 1, 0, Station::exchange),
      at("wait reduce", Track::waiting, 50'000, 60'000, 1, 0, Station::none),
  };
  // Each string lists an arrow's points as <phase><track>@<microseconds>.
  std::map<int64_t, std::string> ways;
  for (const auto& entry : parsed(events, 2)) {
    if (!entry.contains("cat")) continue;
    CHECK(entry["cat"] == "gradient");
    CHECK(entry["pid"] == 2);
    CHECK((entry["ph"] == "f") == entry.contains("bp"));
    ways[entry["id"].get<int64_t>()] +=
        fmt::format("{}{}@{} ", entry["ph"].get<std::string>(), entry["tid"].get<int>() - 8,
                    entry["ts"].get<double>());
  }
  std::vector<std::string> found;
  for (const auto& [id, way] : ways) found.push_back(way);
  CHECK(found == std::vector<std::string>{"s0@10 t2@30 f3@70 ", "s0@20 t2@50 f3@70 ",
                                          "s0@35 f3@80 "});
  // One file has the arrows of several ranks, so the arrows' numbers must differ between ranks.
  for (const auto& entry : parsed(events, 3)) {
    if (entry.contains("cat")) CHECK_FALSE(ways.contains(entry["id"].get<int64_t>()));
  }
}

TEST_CASE("times are exact to the nanosecond on a host that has been up for months") {
  constexpr int64_t origin = 20'000'000'000'000'000;
  const Event ready{
      "ready", Track::buckets, origin + 7, origin + 7, "", {0, 0, trace::Station::ready}};
  const auto json =
      parsed({{"linear", Track::compute, origin + 3, origin + 4'000'000'008}, ready}, 0, origin);
  REQUIRE(json.size() == 8);
  CHECK(json[5]["ts"].get<double>() == 0.003);
  CHECK(json[5]["dur"].get<double>() == 4'000'000.005);
  CHECK(json[6]["ts"].get<double>() == 0.007);
  CHECK(json[7]["ph"] == "s");
  CHECK(json[7]["ts"].get<double>() == 0.007);
}

TEST_CASE("events within a time span are copied, and stay in the trace") {
  const Tracing tracing;
  trace::record({"before", Track::compute, 1, 9});
  trace::record({"over the begin", Track::compute, 5, 15});
  trace::record({"inside", Track::compute, 12, 12});
  trace::record({"after", Track::compute, 21, 30});
  std::vector<std::string> names;
  for (const Event& event : trace::events_within(10, 20)) names.push_back(event.name);
  CHECK(names == std::vector<std::string>{"over the begin", "inside"});
  CHECK(trace::take_events().size() == 4);
}

TEST_CASE("a rank without events has valid JSON too") { CHECK(parsed({}, 0).size() == 5); }

TEST_CASE("any name and detail give valid JSON") {
  const std::string hostile = "a\"b\\c\n\t\x01{}\x7f\xff\xc3\xa9" + std::string(1, '\0') + "z";
  const auto json = parsed({{hostile, Track::compute, 1, 2, hostile, {0}}}, 0);
  const std::string expected = "a\"b\\c{}????z";
  CHECK(json.back()["name"] == expected);
  CHECK(json.back()["args"]["detail"] == expected);
}
