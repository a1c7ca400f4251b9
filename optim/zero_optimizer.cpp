#include "optim/zero_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/autograd.h"
#include "core/kernels.h"
#include "core/trace.h"
#include "optim/bucket_flow.h"
#include "optim/gradient_norm.h"
#include "optim/state_gather.h"

namespace tessera::optim {

namespace {

// Throws for hyper-parameters with which no update makes sense.
void check_hyper(const UpdateHyper& hyper, size_t group) {
  const auto check = [group](const char* what, float value, float below) {
    TESSERA_CHECK(value >= 0 && value < below, "optimizer: group {} has {} {}, expected in [0, {})",
                  group, what, value, below);
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  check("a learning rate of", hyper.learning_rate, infinity);
  check("a first beta or momentum of", hyper.beta1, 1);
  check("a second beta of", hyper.beta2, 1);
  check("an epsilon of", hyper.epsilon, infinity);
  check("a weight decay of", hyper.weight_decay, infinity);
  TESSERA_CHECK(!hyper.nesterov || hyper.beta1 > 0,
                "optimizer: group {} has Nesterov momentum without momentum", group);
}

// One entry a group; 0 is the rule's own.
std::vector<UpdateHyper> group_hypers(const UpdateRule& rule,
                                      const std::vector<GroupOptions>& groups, int64_t step,
                                      float schedule, float clip_factor) {
  std::vector<UpdateHyper> hypers{rule.hyper(step, {})};
  for (const GroupOptions& group : groups) hypers.push_back(rule.hyper(step, group));
  for (UpdateHyper& hyper : hypers) {
    check_hyper(hyper, static_cast<size_t>(&hyper - hypers.data()));
    hyper.learning_rate *= schedule;
    hyper.gradient_scale = clip_factor;
  }
  return hypers;
}

// A second optimizer would take the parameters' hooks away from the first.
void check_not_optimised(const std::vector<nn::NamedParameter>& parameters) {
  for (const auto& named : parameters) {
    TESSERA_CHECK(!named.parameter.leaf().gradient_complete,
                  "optimizer: parameter '{}' is already optimised", named.name);
  }
}

}  // namespace

struct ZeroOptimizer::Engine {
  Engine(UpdateRule update_rule, const dist::World& world)
      : rule(std::move(update_rule)), communicator(world.communicator), norm(communicator) {}

  UpdateRule rule;
  std::shared_ptr<dist::Communicator> communicator;
  GradientNorm norm;
  std::vector<std::unique_ptr<BucketFlow>> flows;  // in order of registration

  // The running step.
  int64_t step = 0;
  float share = 1;
  MicroStep micro_step;
  bool running = false;      // between a micro-batch's begin and its backward
  int64_t finished = 0;      // micro-steps
  bool began = false;
  int64_t waited_before_ns = 0;
  Tensor losses;             // a piece of k losses a rank
  int64_t micro_batches = 0;

  // Collectives start in layout order, which is the same on every rank: later partitions first, as
  // backward reaches later registered parameters first.
  std::vector<std::pair<BucketFlow*, int>> order;
  size_t next = 0;

  void add(std::vector<nn::NamedParameter> parameters, std::vector<int> groups,
           const ZeroOptions& options) {
    auto partition = std::make_unique<Partition>(std::move(parameters), std::move(groups),
                                                 *communicator, options.bucket_bytes, options.seed);
    auto flow = std::make_unique<BucketFlow>(std::move(partition), rule, communicator, options);
    norm.add(flow->partition());
    flow->on_complete = [this] { launch_complete(); };
    flows.push_back(std::move(flow));
    order.clear();
    for (auto it = flows.rbegin(); it != flows.rend(); ++it) {
      for (int b = 0; b < (*it)->partition().buckets(); ++b) order.emplace_back(it->get(), b);
    }
  }

  void launch_complete() {
    while (next < order.size() && order[next].first->complete(order[next].second)) {
      order[next].first->launch(order[next].second);
      ++next;
    }
  }

  void room_for_losses(int64_t micro_steps) {
    const int64_t elements = micro_steps * communicator->size();
    if (losses.defined() && losses.elements() == elements) return;
    losses = {};
    losses = flat_buffer(*communicator, elements, Category::communication);
  }

  // The same left fold over micro-batches as the gradients'.
  float fold_losses() {
    communicator->all_gather(losses, {dist::Traffic::losses, -1}).wait();
    const int64_t ranks = communicator->size();
    const auto values = losses.values<float>();
    float total = 0;
    for (int64_t m = 0; m < micro_batches; ++m) {
      const int64_t at = (m % ranks) * micro_step.count + m / ranks;
      total += share * values[static_cast<size_t>(at)];
    }
    return total;
  }

  double gradient_norm() {
    std::vector<const Partition*> partitions;
    for (const auto& flow : flows) {
      for (int b = 0; b < flow->partition().buckets(); ++b) flow->finish_reduction(b);
      partitions.push_back(&flow->partition());
    }
    return norm.compute(partitions);
  }
};

ZeroOptimizer::ZeroOptimizer(nn::Module& model, UpdateRule rule, const dist::World& world,
                             ZeroOptions options)
    : options_(std::move(options)) {
  if (options_.stage == 3) fail_input("stage 3 is not available yet; 0, 1 and 2 are");
  if (options_.stage < 0 || options_.stage > 3) {
    fail_input("stage {} does not exist; 0, 1 and 2 are available", options_.stage);
  }
  if (options_.bucket_bytes < 1) fail_input("bucket of {} bytes", options_.bucket_bytes);
  TESSERA_CHECK(options_.schedule != nullptr, "optimizer: there is no schedule");
  group_hypers(rule, options_.groups, 1, 1, 1);  // so that what makes no sense is said at once
  if (!(options_.clip >= 0)) fail_input("clip {} is negative", options_.clip);
  engine_ = std::make_unique<Engine>(std::move(rule), world);
  auto parameters = model.named_parameters();
  check_not_optimised(parameters);
  std::vector<int> groups;
  for (const auto& named : parameters) {
    const int group = options_.group_of ? options_.group_of(named) : 0;
    TESSERA_CHECK(group >= 0 && group <= static_cast<int>(options_.groups.size()),
                  "optimizer: parameter '{}' is in group {}, there are groups 0 to {}", named.name,
                  group, options_.groups.size());
    groups.push_back(group);
  }
  engine_->add(std::move(parameters), std::move(groups), options_);
}

ZeroOptimizer::~ZeroOptimizer() = default;

void ZeroOptimizer::add_parameters(nn::Module& module, const GroupOptions& group) {
  TESSERA_CHECK(!engine_->began, "add_parameters: step {} is not finished", engine_->step);
  synchronize();
  auto parameters = module.named_parameters();
  check_not_optimised(parameters);
  for (const auto& flow : engine_->flows) {
    for (const auto& known : flow->partition().parameters()) {
      for (const auto& named : parameters) {
        TESSERA_CHECK(named.name != known.name,
                      "add_parameters: the name '{}' is taken, expected one that is new",
                      named.name);
      }
    }
  }
  group_hypers(engine_->rule, {group}, 1, 1, 1);
  options_.groups.push_back(group);
  std::vector<int> groups(parameters.size(), static_cast<int>(options_.groups.size()));
  engine_->add(std::move(parameters), std::move(groups), options_);
}

ZeroOptimizer::MicroBatches ZeroOptimizer::micro_batches(int64_t step, const Batch& batch) {
  batch.validate();
  TESSERA_CHECK(!engine_->began, "micro_batches: step {} is not finished", engine_->step);
  return {*this, step, batch, batch.micro_steps(engine_->communicator->size())};
}

MicroBatch ZeroOptimizer::begin(const MicroBatches& batches, int64_t micro_step) {
  Engine& engine = *engine_;
  TESSERA_CHECK(!engine.running && engine.finished == micro_step,
                "optimizer: micro-step {} begins before the backward of the one before it",
                micro_step);
  const int64_t ranks = engine.communicator->size();
  const int64_t rank = engine.communicator->rank();
  const int64_t contributors = batches.batch_.contributors(ranks, micro_step);
  const bool contributes = rank < contributors;
  // A rank without a micro-batch of its own repeats the last one of the step.
  const int64_t index =
      contributes ? micro_step * ranks + rank : batches.batch_.micro_batches() - 1;
  if (!engine.began) {
    engine.step = batches.step_;
    engine.waited_before_ns = dist::waited_ns();
    dist::set_running_step(engine.step);
  }
  engine.began = true;
  engine.running = true;
  engine.micro_batches = batches.batch_.micro_batches();
  engine.share = 1.0f / static_cast<float>(engine.micro_batches);
  engine.micro_step = {micro_step, batches.micro_steps_, contributors, contributes};
  engine.next = 0;
  engine.room_for_losses(batches.micro_steps_);
  for (const auto& flow : engine.flows) flow->begin(engine.micro_step, engine.micro_batches);
  const int64_t first_sample = index * batches.batch_.micro;
  dropout_state() = {
      .seed = options_.seed, .step = batches.step_, .first_sample = first_sample};
  return {.step = batches.step_,
          .index = index,
          .micro_step = micro_step,
          .first_sample = first_sample,
          .samples = batches.batch_.micro,
          .share = engine.share,
          .contributes = contributes};
}

void ZeroOptimizer::backward(const Tensor& loss) {
  Engine& engine = *engine_;
  TESSERA_CHECK(engine.running, "optimizer: backward outside of micro_batches");
  const int64_t at =
      engine.communicator->rank() * engine.micro_step.count + engine.micro_step.index;
  engine.losses.data<float>()[at] = loss.item();
  // The one place where a gradient is scaled by its share of the step.
  tessera::backward(loss, engine.share);
  for (const auto& flow : engine.flows) flow->complete_missing();
  engine.running = false;
  ++engine.finished;
}

StepReport ZeroOptimizer::step() {
  Engine& engine = *engine_;
  TESSERA_CHECK(engine.began && !engine.running && engine.finished == engine.micro_step.count,
                "optimizer: step after {} of {} micro-steps", engine.finished,
                engine.micro_step.count);
  const trace::Scope scope("step");
  StepReport report;
  report.step = engine.step;
  report.loss = engine.fold_losses();
  report.grad_norm = static_cast<float>(engine.gradient_norm());
  if (!std::isfinite(report.grad_norm)) {
    fail("step {}: the gradient norm is not finite ({}), the loss is {}", engine.step,
         report.grad_norm, report.loss);
  }
  // As torch.nn.utils.clip_grad_norm_ defines it.
  const float clip_factor =
      options_.clip > 0 ? std::min(1.0f, options_.clip / (report.grad_norm + 1e-6f)) : 1.0f;
  const float schedule = options_.schedule(engine.step);
  for (auto it = engine.flows.rbegin(); it != engine.flows.rend(); ++it) {
    const int64_t count = ++(*it)->partition().steps_taken;
    const auto hypers =
        group_hypers(engine.rule, options_.groups, count, schedule, clip_factor);
    (*it)->update(hypers);
    if (it == engine.flows.rbegin()) report.learning_rate = hypers[0].learning_rate;
  }
  engine.finished = 0;
  engine.began = false;
  report.exposed_ns = dist::waited_ns() - engine.waited_before_ns;
  dist::set_finished_step(engine.step);
  return report;
}

void ZeroOptimizer::synchronize() {
  for (const auto& flow : engine_->flows) flow->synchronize();
}

std::map<std::string, ZeroOptimizer::StateShard> ZeroOptimizer::state() const {
  std::map<std::string, StateShard> result;
  for (const auto& flow : engine_->flows) {
    own_state(flow->partition(), flow->updates(), engine_->rule.state_names(), result);
  }
  return result;
}

std::map<std::string, ZeroOptimizer::StateShard> ZeroOptimizer::consolidated_state(int root) {
  TESSERA_CHECK(root >= 0 && root < engine_->communicator->size(),
                "consolidated_state: root {}, expected 0 to {}", root,
                engine_->communicator->size() - 1);
  std::map<std::string, StateShard> result;
  for (const auto& flow : engine_->flows) {
    gather_state(flow->partition(), flow->updates(), engine_->rule.state_names(),
                 *engine_->communicator, root, result);
  }
  return result;
}

}  // namespace tessera::optim
