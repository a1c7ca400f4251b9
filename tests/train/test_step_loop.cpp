// Tests StepLoop on one rank: the functions that it calls, the arguments that it refuses, and the
// lines that it logs. Also tests saving and loading of weights, and the files that begin_run
// refuses. tests/package and tests/apps run StepLoop on several ranks.
#include "train/step_loop.h"

#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/trace.h"
#include "models/gpt/gpt.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/signal_handler.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tensors.h"
#include "train/plan/run_plan.h"
#include "train/weights.h"

using namespace tessera;
using namespace tessera::train;
using Catch::Matchers::ContainsSubstring;
using test::handler_of;

namespace {

const models::GptConfig tiny{.layers = 2, .heads = 2, .width = 8, .context = 4, .vocab = 11};
const TrainingRun run{.rule = optim::AdamW{.learning_rate = 1e-2f},
                      .zero = {.stage = 3, .seed = 2},
                      .loop = {.steps = 5, .batch = {.global = 4, .micro = 2}, .eval_every = 2}};

// Returns a world of one rank, and switches messages off.
dist::World alone() {
  set_up_messages(false);
  return {.communicator = dist::single_communicator()};
}

Tensor tokens_of(const MicroBatch& micro) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < micro.samples * tiny.context; ++i) {
    tokens.push_back(static_cast<int32_t>((micro.step * 7 + micro.index * 3 + i) % tiny.vocab));
  }
  return Tensor::from<int32_t>({micro.samples, tiny.context}, tokens);
}

nlohmann::json lines_of(const std::string& text) {
  nlohmann::json lines = nlohmann::json::array();
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("a run logs each step and evaluation, and uses the memory that was planned") {
  const test::TemporaryFolder folder;
  const dist::World world = alone();
  models::Gpt model(tiny);
  std::vector<int64_t> evaluated;
  const auto log = begin_run({.log = folder.path("run.jsonl")}, world);
  optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
  StepLoop loop(
      run.loop, world, optimizer, *log,
      {.unit = "tokens",
       .units_per_step = 16,
       .forward =
           [&](const MicroBatch& micro) { return model.loss(tokens_of(micro), tokens_of(micro)); },
       .evaluate = [&](int64_t done) -> StepWork::Evaluation {
         evaluated.push_back(done);
         return {eval_line(done, 1), "text"};
       },
       .describe = [](int64_t step) { return JsonObject().add("square", step * step); }});
  loop.train();
  CHECK(evaluated == std::vector<int64_t>{2, 4, 5});
  CHECK(loop.count().steps == 5);
  CHECK(loop.count().skipped == 0);
  const nlohmann::json lines = lines_of(folder.read("run.jsonl"));
  REQUIRE(lines.size() == 8);
  CHECK(lines[0]["square"] == 0);
  CHECK(lines[4]["square"] == 9);
  CHECK(lines[2]["type"] == "eval");
  CHECK_FALSE(lines[0].contains("loss_scale"));
  CHECK(lines[6]["loss"] < lines[0]["loss"]);

  const optim::Plan plan = plan_run(run, static_cast<const nn::Module&>(model), place_of(world));
  CHECK_FALSE(plan.activations.has_value());
  CHECK(measure(plan, loop.count(), world).equal());
  TrainingRun other = run;
  other.zero.stage = 0;
  const optim::Plan wrong = plan_run(other, static_cast<const nn::Module&>(model), place_of(world));
  CHECK_FALSE(measure(wrong, loop.count(), world).equal());
}

TEST_CASE("a run of one step without evaluation uses the memory that was planned") {
  const dist::World world = alone();
  TrainingRun short_run = run;
  short_run.loop = {.steps = 1, .batch = {.global = 2, .micro = 2}};
  models::Gpt model(tiny);
  const auto log = begin_run({}, world);
  optim::ZeroOptimizer optimizer(model, short_run.rule, world, short_run.zero);
  StepLoop loop(short_run.loop, world, optimizer, *log,
                {.unit = "tokens", .units_per_step = 8, .forward = [&](const MicroBatch& micro) {
                   return model.loss(tokens_of(micro), tokens_of(micro));
                 }});
  loop.train();
  const nn::Module& module = model;
  CHECK(measure(plan_run(short_run, module, place_of(world)), loop.count(), world).equal());
}

TEST_CASE("separate load and loss give the same weights as forward") {
  const dist::World world = alone();
  const auto trained = [&](bool apart) {
    models::Gpt model(tiny);
    optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
    RunLog log("");
    Tensor loaded;
    StepWork work{.unit = "tokens", .units_per_step = 16};
    work.forward = [&](const MicroBatch& micro) {
      return model.loss(tokens_of(micro), tokens_of(micro));
    };
    if (apart) {
      work.load = [&](const MicroBatch& micro) { loaded = tokens_of(micro); };
      work.loss = [&] { return model.loss(loaded, loaded); };
    }
    LoopOptions options = run.loop;
    options.eval_every = 0;
    StepLoop(options, world, optimizer, log, work).train();
    std::vector<float> all;
    optimizer.for_each_parameter([&](const nn::NamedParameter&, std::span<const float> values) {
      all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  };
  CHECK(trained(true) == trained(false));
}

TEST_CASE("a loop without the functions that its options need is refused") {
  const dist::World world = alone();
  models::Gpt model(tiny);
  optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
  RunLog log("");
  const auto refusal = [&](StepWork work) {
    return test::message_of<Error>([&] { StepLoop(run.loop, world, optimizer, log, work); });
  };
  const auto forward = [&](const MicroBatch& micro) {
    return model.loss(tokens_of(micro), tokens_of(micro));
  };
  CHECK_THAT(refusal({}), ContainsSubstring("no forward"));
  CHECK_THAT(refusal({.forward = forward, .load = [](const MicroBatch&) {}}),
             ContainsSubstring("only one of load and loss"));
  CHECK_THAT(refusal({.forward = forward}), ContainsSubstring("an evaluation every 2 steps"));
  LoopOptions options{.steps = 1, .batch = run.loop.batch, .weights = {.path = "w", .every = 1}};
  const auto saving = [&](const StepWork& work) {
    return test::message_of<Error>([&] { StepLoop(options, world, optimizer, log, work); });
  };
  CHECK_THAT(saving({.forward = forward}), ContainsSubstring("nothing opens their file"));
  options.weights = {.path = "w", .best = true};
  const auto open = [&](const std::string& path, int64_t) { return open_weights(path, model); };
  CHECK_THAT(saving({.forward = forward, .open_weights = open}),
             ContainsSubstring("there is no evaluation"));
  options.weights = {.path = "./folder/w", .every = 1};
  options.checkpoints.folder = "folder";
  CHECK_THAT(saving({.forward = forward, .open_weights = open}),
             ContainsSubstring("give one of them another folder"));
}

TEST_CASE("weights saved from one optimizer load into another") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("weights.safetensors");
  const dist::World world = alone();
  models::Gpt model(tiny);
  optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
  save_weights(path, model, optimizer, world, {.metadata = {{"format", "pt"}, {"made", "here"}}});
  CHECK(nn::SafetensorsReader(path).metadata().at("made") == "here");

  models::Gpt again(tiny);
  optim::ZeroOptions zero = run.zero;
  zero.seed = 77;
  optim::ZeroOptimizer other(again, run.rule, world, zero);
  load_weights(path, again, other);
  const std::string second = folder.path("second.safetensors");
  save_weights(second, again, other, world, {.metadata = {{"format", "pt"}, {"made", "here"}}});
  CHECK(folder.read("weights.safetensors") == folder.read("second.safetensors"));

  models::Gpt in_memory(tiny);
  nn::load_weights(path, in_memory);
  models::GptConfig wider = tiny;
  wider.vocab = 12;
  models::Gpt larger(wider);
  optim::ZeroOptimizer its(larger, run.rule, world, run.zero);
  CHECK_THAT(test::message_of<InputError>([&] { load_weights(path, larger, its); }),
             ContainsSubstring("wte.weight"));
}

TEST_CASE("a run that could not write its files does not begin, and keeps the older log") {
  const test::TemporaryFolder folder;
  const dist::World world = alone();
  folder.file("run.jsonl", "older");
  const std::string log = folder.path("run.jsonl");
  const std::string nowhere = folder.path("no/file");
  CHECK_THROWS_AS(begin_run({.log = log, .save = nowhere}, world), InputError);
  CHECK_THROWS_AS(begin_run({.log = log, .trace = nowhere}, world), InputError);
  CHECK_THROWS_AS(begin_run({.log = log, .csv = folder.path("./run.jsonl")}, world), InputError);
  // No folder of events can be made below a file.
  CHECK_THAT(test::message_of<InputError>(
                 [&] { begin_run({.log = log, .tensorboard = log + "/events"}, world); }),
             ContainsSubstring("run.jsonl/events: cannot be made"));
  CHECK(folder.read("run.jsonl") == "older");
}

TEST_CASE("a run that is refused before its first line changes neither the log nor the events") {
  const test::TemporaryFolder folder;
  const dist::World world = alone();
  const RunFiles files{.log = folder.file("run.jsonl", "older"),
                       .tensorboard = folder.path("events")};
  begin_run(files, world);
  CHECK(folder.read("run.jsonl") == "older");
  CHECK(std::filesystem::is_empty(files.tensorboard));
  begin_run(files, world)->write(JsonObject().add("type", "header"));
  CHECK(folder.read("run.jsonl") == "{\"type\":\"header\"}\n");
  CHECK_FALSE(std::filesystem::is_empty(files.tensorboard));
}

TEST_CASE("after the steps, a request for a checkpoint does not end the program") {
  const test::TemporaryFolder folder;
  const dist::World world = alone();
  const auto own = [](int) {};
  ::signal(SIGUSR1, own);
  ::signal(SIGUSR2, SIG_DFL);
  ::signal(SIGHUP, SIG_DFL);
  const auto told = handler_of(SIGTERM);
  ::signal(SIGINT, own);
  models::Gpt model(tiny);
  optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
  RunLog log("");
  const LoopOptions options{.steps = 1,
                            .batch = {.global = 2, .micro = 2},
                            .checkpoints = {.folder = folder.path("saved")}};
  StepLoop loop(options, world, optimizer, log,
                {.unit = "tokens", .units_per_step = 8, .forward = [&](const MicroBatch& micro) {
                   return model.loss(tokens_of(micro), tokens_of(micro));
                 }});
  CHECK(handler_of(SIGUSR2) != SIG_DFL);
  CHECK(handler_of(SIGUSR2) != SIG_IGN);
  // The first Ctrl-C asks the run to end. A second Ctrl-C would reach the previous handler.
  CHECK(handler_of(SIGINT) != +own);
  ::raise(SIGHUP);
  ::raise(SIGINT);
  CHECK(was_interrupted());
  CHECK(handler_of(SIGINT) == +own);
  loop.train();
  CHECK(std::filesystem::exists(folder.path("saved/step-000000001")));
  CHECK(handler_of(SIGUSR1) == +own);
  CHECK(handler_of(SIGUSR2) == SIG_IGN);
  CHECK(handler_of(SIGHUP) == SIG_IGN);  // a closed terminal may send a second one
  CHECK(handler_of(SIGTERM) == told);
  CHECK(handler_of(SIGINT) == +own);
  ::signal(SIGHUP, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGUSR1, SIG_DFL);
  ::signal(SIGUSR2, SIG_DFL);
}

TEST_CASE("if the last evaluation is not finite or the weights are lost, other files are written") {
  const test::TemporaryFolder folder;
  const dist::World world = alone();
  // Trains with the given scores of the evaluations after steps 2, 4 and 5. `unsaved` says why the
  // weights were not saved, or is empty. Checks that the run writes the CSV file and the last
  // checkpoint even if it ends with an error, and returns the error's message.
  const auto error_of = [&](std::map<int64_t, double> scores, const std::string& unsaved) {
    std::filesystem::remove_all(folder.path("saved"));
    std::filesystem::remove(folder.path("run.csv"));
    const RunFiles files{.log = folder.path("run.jsonl"), .csv = folder.path("run.csv")};
    LoopOptions options = run.loop;
    options.checkpoints.folder = folder.path("saved");
    options.weights = {.path = folder.path("w.safetensors"), .best = true};
    models::Gpt model(tiny);
    const auto log = begin_run(files, world);
    log->write(header_begin("test"));
    optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
    StepLoop loop(options, world, optimizer, *log,
                  {.unit = "tokens",
                   .units_per_step = 16,
                   .forward =
                       [&](const MicroBatch& micro) {
                         return model.loss(tokens_of(micro), tokens_of(micro));
                       },
                   .evaluate = [&](int64_t done) -> StepWork::Evaluation {
                     return {eval_line(done, 1), "text", Score{.value = scores.at(done)}};
                   },
                   .open_weights = [&](const std::string& path,
                                       int64_t) { return open_weights(path, model); }});
    bool finished = false;
    const std::string error = test::message_of<Error>([&] {
      run_to_end(loop, files, world, [&] {
        finished = true;
        return unsaved;
      });
    });
    CHECK(finished);
    CHECK(std::filesystem::exists(folder.path("run.csv")));
    CHECK(std::filesystem::exists(folder.path("saved/step-000000005")));
    return error;
  };
  const std::string last = non_finite_evaluation(5, false);
  CHECK(non_finite_evaluation(5, true) ==
        "the evaluation after step 5 is not finite: activations overflow in fp16, or the weights "
        "or the data are invalid");
  CHECK(error_of({{2, 1}, {4, NAN}, {5, 2}}, "") == "nothing was thrown");
  CHECK(error_of({{2, NAN}, {4, 1}, {5, NAN}}, "") == last);
  std::vector<int64_t> best;
  for (const auto& line : lines_of(folder.read("run.jsonl"))) {
    if (line.contains("best")) best.push_back(line["step"]);
  }
  CHECK(best == std::vector<int64_t>{4});
  CHECK(error_of({{2, 1}, {4, 1}, {5, 1}}, "no weights") == "no weights");
  CHECK(error_of({{2, 1}, {4, 1}, {5, NAN}}, "no weights") == last);
  // The best weights cannot be written, because a file has the name of their folder.
  std::filesystem::remove_all(folder.path("best"));
  std::ofstream(folder.path("best")) << "in the way";
  CHECK(error_of({{2, 3}, {4, 2}, {5, 3}}, "") ==
        "the weights of step 5 were not written to " + folder.path("best/w.safetensors"));
  CHECK(error_of({{2, 1}, {4, 1}, {5, 1}}, "no weights") == "no weights");
}

TEST_CASE("norms and the timeline of steps are in the log, and change nothing else") {
  const dist::World world = alone();
  const test::TemporaryFolder folder;
  const auto trained = [&](bool shown, const std::string& name) {
    TrainingRun shown_run = run;
    shown_run.loop.eval_every = 0;
    shown_run.loop.norms_every = shown ? 2 : 0;
    shown_run.loop.timeline = shown;
    models::Gpt model(tiny);
    RunFiles files{.log = folder.path(name + ".jsonl")};
    if (shown) {
      files.report = folder.path("run.html");
      files.csv = folder.path("run.csv");
      files.tensorboard = folder.path("events");
    }
    const auto log = begin_run(files, world);
    log->write(header_begin("test"));
    optim::ZeroOptimizer optimizer(model, shown_run.rule, world, shown_run.zero);
    StepLoop loop(shown_run.loop, world, optimizer, *log,
                  {.unit = "tokens", .units_per_step = 16, .forward = [&](const MicroBatch& micro) {
                     return model.loss(tokens_of(micro), tokens_of(micro));
                   }});
    loop.train();
    const nn::Module& module = model;
    const optim::Plan plan = plan_run(as_it_went(shown_run, loop.count()), module, place_of(world));
    CHECK(measure(plan, loop.count(), world).equal());
    report_run(plan, loop.count(), world, *log);
    write_reports(files, world);
    return lines_of(folder.read(name + ".jsonl"));
  };
  const nlohmann::json plain = trained(false, "plain");
  const nlohmann::json shown = trained(true, "shown");
  std::vector<nlohmann::json> losses[2];
  for (const auto& line : plain) {
    if (line["type"] == "step") losses[0].push_back({line["loss"], line["grad_norm"]});
  }
  std::vector<nlohmann::json> norms;
  nlohmann::json timeline;
  for (const auto& line : shown) {
    if (line["type"] == "step") losses[1].push_back({line["loss"], line["grad_norm"]});
    if (line["type"] == "norms") norms.push_back(line);
    if (line["type"] == "timeline") timeline = line;
  }
  CHECK(losses[0] == losses[1]);
  REQUIRE(norms.size() == 2);
  CHECK(norms[0]["step"] == 2);
  double squares = 0;
  for (const auto& [name, norm] : norms[1]["norms"].items()) {
    squares += norm.get<double>() * norm.get<double>();
  }
  CHECK(std::abs(std::sqrt(squares) / losses[0][3][1].get<double>() - 1) < 1e-5);
  REQUIRE(timeline["ranks"].size() == 1);
  CHECK(timeline["step"] == 3);
  std::set<std::string> names;
  for (const auto& event : timeline["ranks"][0]["events"]) names.insert(event[1]);
  for (const char* name : {"step 3", "micro-batch 0", "micro-batch 1", "forward", "backward", "h.1",
                           "end of step", "update", "linear"}) {
    CHECK(names.contains(name));
  }
  CHECK_FALSE(names.contains("step 2"));
  CHECK_FALSE(trace::enabled());
  CHECK(folder.read("run.html").find("id=\"data\"") != std::string::npos);
  CHECK(folder.read("run.csv").find("step,loss,grad_norm") == 0);
}
