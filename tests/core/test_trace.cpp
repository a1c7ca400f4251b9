// Tests trace scopes, and the file to which they are written.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/trace.h"
#include "tests/support/catch.h"

using namespace tessera;
using trace::Event;
using trace::Track;

namespace {

/// Enables tracing during a test. Events are discarded before and after it.
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

nlohmann::json parsed(const std::vector<Event>& events, int rank) {
  return nlohmann::json::parse("[" + trace::to_chrome_json(events, rank) + "]");
}

}  // namespace

TEST_CASE("what is off records nothing and asks for no detail") {
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
  // Even the shortest scope has a duration, because an event without one is an instant.
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
    CHECK(json[i + 1]["tid"] == i);
    CHECK(json[i + 1]["args"]["name"] == tracks[i]);
  }
  for (const auto& entry : json) CHECK(entry["pid"] == 3);

  CHECK(json[5]["ph"] == "X");
  CHECK(json[5]["name"] == "linear");
  CHECK(json[5]["tid"] == 0);
  CHECK(json[5]["ts"].get<double>() == 2000000001.5);  // microseconds
  CHECK(json[5]["dur"].get<double>() == 2.5);
  CHECK_FALSE(json[5].contains("args"));

  CHECK(json[6]["ph"] == "i");
  CHECK(json[6]["s"] == "t");
  CHECK(json[6]["ts"].get<double>() == 5);
  CHECK_FALSE(json[6].contains("dur"));
  CHECK(json[6]["tid"] == 3);
  CHECK(json[6]["args"]["bucket"] == 7);
  CHECK(json[6]["args"]["detail"] == "rank 0 [0, 256)");

  CHECK(json[7]["tid"] == 1);
  CHECK(json[7]["args"]["detail"] == "all");
}

TEST_CASE("a rank without events has valid JSON too") { CHECK(parsed({}, 0).size() == 5); }

TEST_CASE("any name and detail give valid JSON") {
  const std::string hostile = "a\"b\\c\n\t\x01{}\x7f\xff\xc3\xa9" + std::string(1, '\0') + "z";
  const auto json = parsed({{hostile, Track::compute, 1, 2, hostile, {0}}}, 0);
  const std::string expected = "a\"b\\c{}????z";
  CHECK(json.back()["name"] == expected);
  CHECK(json.back()["args"]["detail"] == expected);
}
