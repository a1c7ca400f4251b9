#include "nn/module.h"

#include <set>
#include <unordered_map>
#include <utility>

#include "core/assign.h"
#include "core/text/utf8.h"
#include "nn/safetensors.h"

namespace tessera::nn {
namespace {

// Files of weights and checkpoints contain the names in JSON, which must be UTF-8. This check finds
// a wrong name when training begins, before a save could fail.
void check_utf8(const std::string& name) {
  TESSERA_CHECK(is_utf8(name), "module: the name {} is not UTF-8", printable(name));
}

}  // namespace

Tensor Module::forward(const Tensor&) {
  fail("module: forward(x) is not defined for this module; call the module's own function");
}

Parameter Module::add(const std::string& name, const Parameter& parameter) {
  TESSERA_CHECK(parameter.defined(), "module: parameter '{}' is not defined", name);
  entries_.push_back({name, parameter, nullptr});
  return parameter;
}

void Module::add(const std::string& name, Module& child) {
  TESSERA_CHECK(!child.contains(*this), "module: '{}' would contain itself", name);
  child.name_ = name;
  entries_.push_back({name, {}, &child});
}

void Module::add(std::shared_ptr<RunningStatistics> statistics) {
  TESSERA_CHECK(statistics_ == nullptr, "module: this module already has running statistics");
  statistics_ = std::move(statistics);
}

bool Module::contains(const Module& other) const {
  if (this == &other) return true;
  for (const Entry& entry : entries_) {
    if (entry.child != nullptr && entry.child->contains(other)) return true;
  }
  return false;
}

void Module::begin_block() { entries_.push_back({}); }

void Module::collect(const std::string& prefix, int& block,
                     std::vector<NamedParameter>& list) const {
  for (const Entry& entry : entries_) {
    if (entry.child != nullptr) {
      entry.child->collect(prefix + entry.name + ".", block, list);
    } else if (entry.parameter.defined()) {
      list.push_back({prefix + entry.name, entry.parameter, false, block});
    } else {
      ++block;
    }
  }
}

void Module::collect(const std::string& prefix, std::vector<NamedStatistics>& list) const {
  if (statistics_) {
    list.push_back({prefix.substr(0, prefix.empty() ? 0 : prefix.size() - 1), statistics_});
  }
  for (const Entry& entry : entries_) {
    if (entry.child != nullptr) entry.child->collect(prefix + entry.name + ".", list);
  }
}

std::vector<NamedStatistics> Module::named_statistics() const {
  std::vector<NamedStatistics> registrations;
  collect("", registrations);
  std::vector<NamedStatistics> list;
  std::set<const RunningStatistics*> known;
  for (NamedStatistics& named : registrations) {
    check_utf8(named.name);
    if (known.insert(named.statistics.get()).second) list.push_back(std::move(named));
  }
  return list;
}

std::vector<NamedParameter> Module::named_parameters() const {
  std::vector<NamedParameter> registrations;
  int block = -1;
  collect("", block, registrations);
  std::vector<NamedParameter> list;
  std::set<std::string> names;  // including all names of shared parameters
  std::unordered_map<const void*, size_t> places;
  for (const NamedParameter& named : registrations) {
    check_utf8(named.name);
    TESSERA_CHECK(names.insert(named.name).second, "module: two parameters are called '{}'",
                  named.name);
    const auto [known, is_new] = places.emplace(&named.parameter.leaf(), list.size());
    if (is_new) {
      list.push_back(named);
    } else {
      list[known->second].shared = true;
    }
  }
  return list;
}

std::map<std::string, std::string> Module::further_names() const {
  std::vector<NamedParameter> registrations;
  int block = -1;
  collect("", block, registrations);
  std::map<std::string, std::string> names;
  std::unordered_map<const void*, std::string> first;
  for (const NamedParameter& named : registrations) {
    const auto [known, is_new] = first.emplace(&named.parameter.leaf(), named.name);
    if (!is_new) names.emplace(named.name, known->second);
  }
  return names;
}

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (const auto& named : named_parameters()) count += named.parameter.elements();
  return count;
}

void Module::to(DType dtype) {
  const auto list = named_parameters();
  for (const auto& [name, parameter, shared, block] : list) {
    TESSERA_CHECK(!parameter.tensor().allocated() || parameter.dtype() == dtype,
                  "to: parameter '{}' already has memory, as {}; call to() before materialize and "
                  "before creating an optimizer",
                  name, dtype_name(parameter.dtype()));
  }
  for (const auto& named : list) named.parameter.set_dtype(dtype);
}

void Module::train(bool on) {
  training_ = on;
  for (const Entry& entry : entries_) {
    if (entry.child != nullptr) entry.child->train(on);
  }
}

Evaluating::Evaluating(Module& module) {
  record(module);
  module.eval();
}

Evaluating::~Evaluating() {
  for (const auto& [module, training] : modes_) module->training_ = training;
}

void Evaluating::record(Module& module) {
  modes_.emplace_back(&module, module.training_);
  for (const Module::Entry& entry : module.entries_) {
    if (entry.child != nullptr) record(*entry.child);
  }
}

void materialize(Module& model, Device device, uint64_t seed) {
  const auto list = model.named_parameters();
  // At ZeRO stage 3 an optimizer's parameters have no memory between their uses. Without this check
  // they would be taken for new parameters, and get initial values again.
  for (const auto& [name, parameter, shared, block] : list) {
    TESSERA_CHECK(!parameter.leaf().gradient_buffer,
                  "materialize: parameter '{}' belongs to an optimizer", name);
  }
  for (const auto& [name, parameter, shared, block] : list) {
    parameter.leaf().name = name;
    Tensor tensor = parameter.tensor();
    if (tensor.allocated()) continue;
    // The parameter gets the memory after its values are drawn. If drawing them fails, a later call
    // thus does not take the parameter for one that has values.
    const Tensor values =
        Tensor::empty(tensor.shape(), tensor.dtype(), device, Category::parameters);
    assign(values, [&](int64_t begin, std::span<float> out) {
      initialize(parameter.initializer(), seed, name, begin, out);
    });
    tensor.attach(values.storage(), 0);
  }
  for (const auto& [name, statistics] : model.named_statistics()) {
    if (statistics->mean.allocated()) continue;
    statistics->attach(allocate(statistics->bytes(), Category::parameters, device), 0);
    statistics->reset();
  }
}

}  // namespace tessera::nn
