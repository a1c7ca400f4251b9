#include "optim/zero_optimizer.h"

#include <algorithm>
#include <set>
#include <string>

#include "core/ops/scale.h"
#include "core/text/step_number.h"
#include "optim/zero/option_checks.h"
#include "optim/zero/zero_engine.h"

namespace tessera::optim {

void ZeroOptimizer::check(const nn::Module& model, const UpdateRule& rule, const dist::World& world,
                          const ZeroOptions& options) {
  check_options(options);
  check_equal_ranks(options, world);
  const auto parameters = model.named_parameters();
  check_groups(options, rule, parameters, groups_of(options, parameters));
  check_graph(options, parameters, *world.communicator);
  check_tables(options, rule, parameters);
}

ZeroOptimizer::ZeroOptimizer(nn::Module& model, UpdateRule rule, const dist::World& world,
                             ZeroOptions options)
    : options_(std::move(options)), further_names_(model.further_names()) {
  check(model, rule, world, options_);
  auto parameters = model.named_parameters();
  check_not_optimised(parameters);
  const std::vector<int> groups = groups_of(options_, parameters);
  engine_ = std::make_unique<ZeroEngine>(options_, std::move(rule), world);
  engine_->add(std::move(parameters), groups, model.named_statistics());
}

ZeroOptimizer::~ZeroOptimizer() = default;

void ZeroOptimizer::add_param_group(nn::Module& module, const GroupOptions& group) {
  TESSERA_CHECK(!engine_->state().began() && !engine_->under_way(),
                "add_param_group: step {} is not finished", step_number(engine_->state().step()));
  synchronize();
  auto parameters = module.named_parameters();
  check_not_optimised(parameters);
  std::set<std::string> taken;
  for (const StagedPartition* staged : engine_->partitions()) {
    for (const auto& known : staged->partition().parameters()) taken.insert(known.named.name);
  }
  for (const auto& table : engine_->tables()) taken.insert(table->info().name());
  for (const auto& [name, first] : further_names_) taken.insert(name);
  const auto check_name = [&](const std::string& name) {
    TESSERA_CHECK(!taken.contains(name),
                  "add_param_group: the name '{}' is taken, expected a new name", name);
  };
  const auto further_names = module.further_names();
  for (const auto& named : parameters) check_name(named.name);
  for (const auto& [name, first] : further_names) check_name(name);
  ZeroOptions with_group = options_;
  with_group.groups.push_back(group);
  const std::vector<int> groups(parameters.size(), static_cast<int>(with_group.groups.size()));
  check_groups(with_group, engine_->rule(), parameters, groups);
  check_graph(options_, parameters, engine_->communicator());
  check_tables(options_, engine_->rule(), parameters);
  options_.groups.push_back(group);
  try {
    engine_->add(std::move(parameters), groups, module.named_statistics());
  } catch (...) {
    options_.groups.pop_back();
    throw;
  }
  further_names_.insert(further_names.begin(), further_names.end());
}

ZeroOptimizer::MicroBatches ZeroOptimizer::micro_batches(int64_t step, const Batch& batch) {
  TESSERA_CHECK(!options_.graph,
                "micro_batches: with graphs the optimizer must know what a micro-step is; call "
                "micro_steps(step, batch, load, loss)");
  return all_of(step, batch);
}

ZeroOptimizer::MicroBatches ZeroOptimizer::all_of(int64_t step, const Batch& batch) {
  batch.validate();
  TESSERA_CHECK(step >= 0, "optimizer: step {}, expected at least 0", step);
  TESSERA_CHECK(!engine_->state().began(), "optimizer: step {} is not finished",
                step_number(engine_->state().step()));
  const int ranks = engine_->communicator().size();
  if (options_.sync_batch_norm && batch.micro_batches() != ranks) {
    fail_input("sync_batch_norm: {} micro-batches on {} ranks, expected one for each rank: use {}",
               batch.micro_batches(), ranks,
               batch.global % ranks == 0
                   ? fmt::format("micro-batches of {} samples", batch.global / ranks)
                   : "a global batch that is a multiple of the number of ranks");
  }
  return {*this, step, batch, batch.micro_steps(engine_->communicator().size())};
}

MicroBatch ZeroOptimizer::describe(const MicroBatches& batches, int64_t micro_step) const {
  const Batch& batch = batches.batch_;
  const int64_t ranks = engine_->communicator().size();
  const int64_t rank = engine_->communicator().rank();
  const bool contributes = rank < batch.contributors(ranks, micro_step);
  // A rank without a micro-batch of its own repeats the last micro-batch of the step.
  const int64_t index = contributes ? micro_step * ranks + rank : batch.micro_batches() - 1;
  return {.step = batches.step_,
          .index = index,
          .micro_step = micro_step,
          .first_sample = index * batch.micro,
          .samples = batch.micro,
          .share = 1.0f / static_cast<float>(batch.micro_batches()),
          .contributes = contributes};
}

void ZeroOptimizer::begin(const MicroBatches& batches, int64_t micro_step) {
  const StepState& state = engine_->state();
  const bool is_running = state.running() && state.step() == batches.step_ &&
                          state.finished() == micro_step &&
                          state.micro_step().count == batches.micro_steps_ &&
                          state.micro_batches() == batches.batch_.micro_batches();
  if (is_running) return;
  TESSERA_CHECK(!state.all_micro_steps_done(),
                "optimizer: step {} is not finished; call step() before other micro-batches begin",
                step_number(state.step()));
  TESSERA_CHECK(!state.running() && state.finished() == micro_step,
                "optimizer: micro-step {} begins before the backward of the previous micro-step",
                micro_step);
  const MicroBatch micro = describe(batches, micro_step);
  const Batch& batch = batches.batch_;
  engine_->begin(batches.step_,
                 {.index = micro_step,
                  .count = batches.micro_steps_,
                  .micro_batches = batch.micro_batches(),
                  .contributors = batch.contributors(engine_->communicator().size(), micro_step),
                  .contributes = micro.contributes});
  dropout_.begin(
      {.seed = options_.seed, .step = batches.step_, .first_sample = micro.first_sample});
}

void ZeroOptimizer::micro_steps(int64_t step, const Batch& batch,
                                const std::function<void(const MicroBatch&)>& load,
                                const std::function<Tensor()>& loss) {
  for (const MicroBatch& micro : all_of(step, batch)) {
    load(micro);
    engine_->run_micro_step(loss);
    dropout_.end_micro_batch();
  }
}

void ZeroOptimizer::backward(const Tensor& loss) {
  engine_->check_open("backward");
  engine_->backward(loss);
  dropout_.end_micro_batch();
}

void ZeroOptimizer::skip() {
  engine_->check_open("skip");
  engine_->skip();
  dropout_.end_micro_batch();
}

StepReport LaunchedStep::get() { return engine_->result(number_); }

bool LaunchedStep::ready() const { return engine_->ready(number_); }

LaunchedStep ZeroOptimizer::launch_step() {
  const StepState& state = engine_->state();
  TESSERA_CHECK(state.began(),
                "optimizer: step() or launch_step() was called without a batch, expected after the "
                "micro-batches of micro_batches(step, batch)");
  TESSERA_CHECK(state.all_micro_steps_done(),
                "optimizer: step() or launch_step() was called after {} of {} micro-steps",
                state.finished(), state.micro_step().count);
  dropout_.end_step();  // forwards from here on do not belong to this step
  const int64_t number = engine_->launch();
  return {*engine_, number, engine_->deferred(), engine_->last_notes()};
}

void ZeroOptimizer::set_notes(uint8_t notes) { engine_->set_notes(notes); }

StepReport ZeroOptimizer::step(int64_t step, const Batch& batch,
                               const std::function<Tensor(const MicroBatch&)>& loss) {
  for (const MicroBatch& micro : micro_batches(step, batch)) {
    const Tensor value = loss(micro);
    if (value.defined()) {
      backward(value);
    } else {
      skip();
    }
  }
  return this->step();
}

Tensor ZeroOptimizer::gradient(const std::string& given) {
  const auto first = further_names_.find(given);
  const std::string& name = first == further_names_.end() ? given : first->second;
  TESSERA_CHECK(
      engine_->state().all_micro_steps_done(),
      "gradient: called for '{}' at the wrong time, expected between the last backward and step()",
      name);
  engine_->reduce();
  if (const Table* const table = engine_->find_table(name)) {
    const Tensor sums = table->gather_sums();
    kernels::scale(current_context(sums.device()), sums, sums, engine_->gradient_factor());
    return sums;
  }
  const auto [staged, parameter] = engine_->find(name);
  const Partition& partition = staged->partition();
  const dist::ParameterSlot& slot = partition.layout().slot(parameter);
  const Tensor whole = gather_bucket(partition, slot.bucket, partition.sums().of(slot.bucket),
                                     partition.own_range(slot.bucket), engine_->communicator());
  const Tensor sum = whole.flat(slot.offset, slot.offset + slot.elements);
  Tensor result = Tensor::empty(partition.parameter(parameter).named.parameter.shape(), DType::f32,
                                whole.device());
  kernels::scale(current_context(whole.device()), result, sum, engine_->gradient_factor());
  return result;
}

std::map<std::string, float> ZeroOptimizer::gradient_norms() {
  TESSERA_CHECK(
      engine_->state().all_micro_steps_done(),
      "gradient_norms: called at the wrong time, expected between the last backward and step()");
  engine_->reduce();
  std::map<std::string, float> norms;
  for (const auto& [name, norm] : engine_->norms()) {
    norms[name] = static_cast<float>(norm * engine_->gradient_factor());
  }
  return norms;
}

Ownership ZeroOptimizer::ownership() const {
  Ownership result;
  constexpr int64_t f32_bytes = 4;
  // Offloaded f32 parameters have master weights too, on the host.
  const bool all_have_masters =
      options_.offload != Offload::none && !(engine_->communicator().device() == Device{});
  for (const StagedPartition* staged : engine_->partitions()) {
    const Partition& partition = staged->partition();
    OwnedGroup group{.dtype = partition.dtype(), .trainable = partition.trainable(), .buckets = {}};
    if (group.trainable) {
      group.gradients_in_sums = gradients_in_sums(partition, engine_->communicator(), options_);
      group.sum_bytes = dtype_size(partition.sums().dtype());
      const bool has_masters = all_have_masters || group.dtype != DType::f32;
      group.state_bytes = f32_bytes * (std::ssize(engine_->rule().state_names()) + has_masters);
    }
    for (const dist::Bucket& bucket : partition.layout().buckets()) {
      OwnedBucket owned{bucket.elements, bucket.shard_elements, {}};
      for (const int index : bucket.parameters) {
        const dist::ParameterSlot& slot = partition.layout().slot(index);
        owned.parameters.push_back(
            {partition.parameter(index).named.name, slot.offset, slot.elements});
      }
      group.buckets.push_back(std::move(owned));
    }
    result.groups.push_back(std::move(group));
  }
  for (const auto& table : engine_->tables()) {
    const TableInfo& info = table->info();
    result.tables.push_back({info.name(), info.dtype(), info.rows(), info.width(),
                             info.layout.largest(), table->row_state_bytes()});
  }
  return result;
}

std::map<std::string, RowCounts> ZeroOptimizer::row_counts() const {
  std::map<std::string, RowCounts> counts;
  for (const auto& table : engine_->tables()) counts[table->info().name()] = table->counts();
  return counts;
}

void ZeroOptimizer::synchronize() {
  for (const auto& table : engine_->tables()) table->values().synchronize();
  for (StagedPartition* staged : engine_->partitions()) staged->parameters().synchronize();
}

void ZeroOptimizer::for_each_parameter(
    const std::function<void(const nn::NamedParameter&, std::span<const float>)>& body) {
  for (const StagedPartition* staged : engine_->partitions()) {
    const Partition& partition = staged->partition();
    for (int b = 0; b < partition.buckets(); ++b) {
      const Tensor whole = gather_bucket(partition, b, staged->weights(b), staged->range(b),
                                         engine_->communicator(), dist::Traffic::saves)
                               .to_host();
      for (const Partition::Part& part : partition.parts(b, partition.whole_range(b))) {
        const auto values = whole.values<float>().subspan(
            static_cast<size_t>(part.offset), static_cast<size_t>(part.end - part.begin));
        body(partition.parameter(part.parameter).named, values);
      }
    }
  }
  for (const auto& table : engine_->tables()) {
    const Tensor whole = table->gather_values(dist::Traffic::saves).to_host();
    body(table->info().placed.named, whole.values<float>());
  }
}

bool ZeroOptimizer::scales_losses() const { return engine_->scales_losses(); }

void ZeroOptimizer::prefetch(const nn::Parameter& parameter, const Tensor& indices) {
  const auto& tables = engine_->tables();
  const auto found = std::ranges::find_if(tables, [&](const auto& table) {
    return table->info().placed.named.parameter.same(parameter);
  });
  TESSERA_CHECK(found != tables.end(), "prefetch: '{}' is not a row-sparse table of this optimizer",
                parameter.leaf().name);
  const StepState& state = engine_->state();
  TESSERA_CHECK(state.running(),
                "prefetch: called outside of a micro-batch; call it before the backward of the "
                "micro-batch that computes while the rows arrive");
  (*found)->values().prefetch(indices, state.micro_step().last());
}

void ZeroOptimizer::set_parameters(const ParameterSource& source, RuleState state) {
  check_between_steps("set_parameters");
  synchronize();  // a gather in flight would overwrite the new values
  for (StagedPartition* staged : engine_->partitions()) staged->fill(source);
  for (const auto& table : engine_->tables()) table->fill(source);
  if (state == RuleState::reset) engine_->reset_rule_state();
}

std::vector<StateTensor> ZeroOptimizer::state_tensors() const { return engine_->state_tensors(); }

std::vector<StatePiece> ZeroOptimizer::own_state_pieces() const {
  check_between_steps("own_state_pieces");
  return engine_->own_state();
}

std::vector<int64_t> ZeroOptimizer::parameter_events() const { return engine_->parameter_events(); }

void ZeroOptimizer::restore_state(const StateSource& source) {
  check_between_steps("restore_state");
  synchronize();  // a gather in flight would overwrite the new values
  engine_->restore(source);
}

void ZeroOptimizer::check_between_steps(const char* what) const {
  TESSERA_CHECK(
      !engine_->state().began() && !engine_->under_way(),
      "{}: step {} is not finished; first end it with step(), or ask for the result of its launch",
      what, step_number(engine_->state().step()));
}

StateByName ZeroOptimizer::state() const {
  StateByName result;
  for (const auto& staged : engine_->trainable()) {
    staged->own_state(result);
  }
  for (const auto& table : engine_->tables()) {
    if (table->trainable()) table->own_state(result);
  }
  return result;
}

StateByName ZeroOptimizer::consolidated_state(int root) {
  TESSERA_CHECK(root >= 0 && root < engine_->communicator().size(),
                "consolidated_state: root {}, expected 0 to {}", root,
                engine_->communicator().size() - 1);
  StateByName result;
  for (const auto& staged : engine_->trainable()) {
    staged->gather_state(root, result);
  }
  for (const auto& table : engine_->tables()) {
    if (table->trainable()) table->gather_state(root, result);
  }
  return result;
}

}  // namespace tessera::optim
