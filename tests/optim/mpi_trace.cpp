// Tests the arrows in the trace of a step. Each arrow must begin where a bucket's gradient is ready
// to be sent, pass through the exchange that sends it, and end at the bucket's update.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/trace.h"
#include "tests/support/catch.h"
#include "tests/support/layered_model.h"

namespace tessera::test {
namespace {

constexpr int64_t micro_steps = 3;

// Trains a step of `micro_steps` micro-steps on each rank, and returns its trace.
std::vector<trace::Event> traced_step(const optim::ZeroOptions& options) {
  const dist::World world = job_world();
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, options);
  const Training training{.batch = {.global = micro_steps * world.size, .micro = 1},
                          .loss = [&](const MicroBatch& micro) { return model.loss(micro); }};
  trace::take_events();
  trace::enable(true);
  TrainingResult result;
  train_step(optimizer, training, 0, result);
  optimizer.synchronize();
  trace::enable(false);
  return trace::take_events();
}

int64_t count(const std::vector<trace::Event>& events, const std::string& name) {
  return std::ranges::count(events, name, &trace::Event::name);
}

// Returns the times of the arrows' points in nanoseconds, by the letter of the trace format: 's'
// for begins, 't' for exchanges and 'f' for ends.
std::map<std::string, std::vector<double>> arrows(const std::vector<trace::Event>& events) {
  std::map<std::string, std::vector<double>> points;
  const std::string json = trace::to_chrome_json(events, 0, events.front().begin_ns);
  for (const auto& entry : nlohmann::json::parse("[" + json + "]")) {
    if (!entry.contains("cat")) continue;
    points[entry["ph"].get<std::string>()].push_back(1e3 * entry["ts"].get<double>());
  }
  return points;
}

TEST_CASE("trace: each micro-step's gradients have arrows through an exchange", "[cpu]") {
  const auto events = traced_step({.stage = 2, .bucket_bytes = 1024});
  const int64_t updates = count(events, "update");
  auto points = arrows(events);
  CHECK(updates > 1);
  CHECK(std::ssize(points["s"]) == micro_steps * updates);
  CHECK(points["t"].size() == points["s"].size());
  CHECK(points["f"].size() == points["s"].size());
}

TEST_CASE("trace: with no_sync, arrows begin at the gradients of the last micro-step", "[cpu]") {
  const auto events = traced_step({.stage = 2, .bucket_bytes = 1024, .no_sync = true});
  int64_t last_backward_ns = 0;
  for (const trace::Event& event : events) {
    if (event.name == "backward") last_backward_ns = std::max(last_backward_ns, event.begin_ns);
  }
  REQUIRE(count(events, "backward") == micro_steps);
  const auto before = static_cast<double>(last_backward_ns - events.front().begin_ns);
  const int64_t updates = count(events, "update");
  auto points = arrows(events);
  CHECK(updates > 1);
  CHECK(count(events, "ready") == micro_steps * updates);
  CHECK(std::ssize(points["s"]) == updates);
  CHECK(points["t"].size() == points["s"].size());
  CHECK(points["f"].size() == points["s"].size());
  for (const double begin : points["s"]) CHECK(begin >= before);
}

}  // namespace
}  // namespace tessera::test
