#include "optim/zero/option_checks.h"

#include <limits>
#include <set>
#include <string>

#include "core/error.h"
#include "optim/zero/zero_engine.h"

namespace tessera::optim {
namespace {

// A rule throws for hyper-parameters that it cannot use. The error is thrown again with the number
// of the parameter group, which the rule does not know.
UpdateHyper hyper_of(const std::string& whose, const UpdateRule& rule, const GroupOptions& options,
                     int group) {
  try {
    return rule.hyper(1, options);
  } catch (const Error& error) {
    fail("{}: group {}: {}", whose, group, error.what());
  }
}

void check_group(const std::string& whose, const UpdateRule& rule,
                 const std::vector<GroupOptions>& groups, int group) {
  const GroupOptions own = group == 0 ? GroupOptions{} : groups[static_cast<size_t>(group) - 1];
  const UpdateHyper hyper = hyper_of(whose, rule, own, group);
  const auto check = [&whose, group](const char* what, float value, float below) {
    TESSERA_CHECK(value >= 0 && value < below, "{}: group {} has {} {}, expected in [0, {})", whose,
                  group, what, value, below);
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  check("a learning rate of", hyper.learning_rate, infinity);
  check("a first beta or momentum of", hyper.beta1, 1);
  check("a second beta of", hyper.beta2, 1);
  check("an epsilon of", hyper.epsilon, infinity);
  check("a weight decay of", hyper.weight_decay, infinity);
  TESSERA_CHECK(!hyper.nesterov || hyper.beta1 > 0,
                "{}: group {} has Nesterov momentum without momentum", whose, group);
}

}  // namespace

std::vector<int> groups_of(const ZeroOptions& options,
                           const std::vector<nn::NamedParameter>& parameters) {
  TESSERA_CHECK(options.group_of || options.groups.empty(),
                "optimizer: there are groups (number: {}), but no group_of that says which "
                "parameters are in them; set group_of",
                options.groups.size());
  std::vector<int> groups;
  for (const auto& named : parameters) {
    const int group = options.group_of ? options.group_of(named) : 0;
    TESSERA_CHECK(group >= 0 && group <= static_cast<int>(options.groups.size()),
                  "optimizer: parameter '{}' is in group {}, expected 0 to {}", named.name, group,
                  options.groups.size());
    groups.push_back(group);
  }
  return groups;
}

// Each rule is checked with its own hyper-parameters (group 0), and with the groups of the
// parameters that it updates. It need not be able to use the other groups. For example, SGD without
// momentum as table_rule cannot use the momentum of a group of dense parameters.
void check_groups(const ZeroOptions& options, const UpdateRule& rule,
                  const std::vector<nn::NamedParameter>& parameters, const std::vector<int>& of) {
  std::set<int> groups{0};
  std::set<int> table_groups{0};
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nn::Parameter& parameter = parameters[i].parameter;
    if (!parameter.trainable()) continue;
    const bool by_table_rule = options.table_rule && parameter.distinct_rows() > 0;
    (by_table_rule ? table_groups : groups).insert(of[i]);
  }
  for (const int group : groups) check_group("optimizer", rule, options.groups, group);
  if (!options.table_rule) return;
  for (const int group : table_groups) {
    check_group("table_rule", *options.table_rule, options.groups, group);
  }
}

void check_not_optimised(const std::vector<nn::NamedParameter>& parameters) {
  for (const auto& named : parameters) {
    TESSERA_CHECK(!named.parameter.leaf().gradient_buffer,
                  "optimizer: parameter '{}' is already optimised", named.name);
  }
}

void check_options(const ZeroOptions& options) {
  if (options.stage < 0 || options.stage > 3) {
    fail_input("stage {} does not exist, expected 0, 1, 2 or 3", options.stage);
  }
  if (options.bucket_bytes < 1) {
    fail_input("bucket of {} bytes, expected at least 1", options.bucket_bytes);
  }
  TESSERA_CHECK(options.schedule != nullptr, "optimizer: there is no schedule");
  if (!(options.clip >= 0)) fail_input("clip {}, expected at least 0", options.clip);
  if (options.grad_shard != DType::f32 && options.grad_shard != DType::bf16) {
    fail_input("gradient shards in {}, expected f32 or bf16", dtype_name(options.grad_shard));
  }
}

// Ordered reduction promises equal bits for any number of ranks, so it refuses ranks with different
// GPUs or libraries.
void check_equal_ranks(const ZeroOptions& options, const dist::World& world) {
  if (options.reduction != Reduction::ordered || world.difference.empty()) return;
  fail_input(
      "reduction ordered: {}, so results would depend on which rank computes what; use ranks with "
      "the same GPUs and libraries, or reduction fast, which promises the same bits from run to "
      "run",
      world.difference);
}

void check_graph(const ZeroOptions& options, const std::vector<nn::NamedParameter>& parameters,
                 const dist::Communicator& communicator) {
  if (!options.graph) return;
  if (communicator.device().is_cpu()) {
    fail_input(
        "graph: the ranks compute on the CPU, but graphs need CUDA; leave graphs off, or compute "
        "on a GPU");
  }
  if (!communicator.captures()) {
    fail_input(
        "graph: {} sends buckets through the host, which a graph cannot capture; leave graphs off, "
        "or communicate over nccl, with a GPU for each rank",
        communicator.name());
  }
  if (options.offload != Offload::none) {
    fail_input(
        "graph: offload updates on the host, which waits for every step; leave graphs or "
        "offload off");
  }
  if (options.sync_batch_norm) {
    fail_input(
        "graph: synchronized batch norms communicate within forward and backward; leave "
        "graphs or sync_batch_norm off");
  }
  if (options.loss_scaling || any_f16(parameters)) {
    fail_input(
        "graph: loss scaling (f16) changes the factor of the loss, but a graph keeps the factor "
        "that it has captured; leave graphs off, or train in bf16 or f32");
  }
}

void check_tables(const ZeroOptions& options, const UpdateRule& rule,
                  const std::vector<nn::NamedParameter>& parameters) {
  const UpdateRule& of_tables = options.table_rule ? *options.table_rule : rule;
  for (const nn::NamedParameter& named : parameters) {
    const bool sparse = named.parameter.distinct_rows() > 0;
    if (sparse && options.graph) {
      fail_input(
          "graph: '{}' is a row-sparse table, whose rows the host must know before they are "
          "sent; leave graphs off, or make the table dense",
          named.name);
    }
    if (!named.parameter.trainable()) continue;
    if (!sparse) {
      TESSERA_CHECK(rule.updates_ranges(),
                    "optimizer: the rule updates row-sparse tables only, and '{}' is dense; give "
                    "the rule as table_rule",
                    named.name);
      continue;
    }
    TESSERA_CHECK(
        of_tables.updates_rows(),
        "optimizer: {} cannot update rows, and '{}' is a row-sparse table; {}, or make the "
        "table dense",
        options.table_rule ? "table_rule" : "the rule", named.name,
        options.table_rule ? "set another table_rule" : "set table_rule");
  }
}

}  // namespace tessera::optim
