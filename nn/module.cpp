#include "nn/module.h"

#include <set>

namespace tessera::nn {

Tensor Module::forward(const Tensor&) {
  fail("module: it has no forward of one tensor; call its own function");
}

Parameter Module::add(const std::string& name, const Parameter& parameter) {
  TESSERA_CHECK(parameter.defined(), "module: parameter '{}' is not defined", name);
  entries_.push_back({name, parameter, nullptr});
  return parameter;
}

void Module::add(const std::string& name, Module& child) { entries_.push_back({name, {}, &child}); }

void Module::visit(const std::string& prefix,
                   const std::function<void(const std::string&, const Parameter&)>& body) const {
  for (const Entry& entry : entries_) {
    if (entry.child != nullptr) {
      entry.child->visit(prefix + entry.name + ".", body);
    } else {
      body(prefix + entry.name, entry.parameter);
    }
  }
}

std::vector<NamedParameter> Module::named_parameters() const {
  std::vector<NamedParameter> list;
  std::set<std::string> names;  // those of shared parameters too
  visit("", [&](const std::string& name, const Parameter& parameter) {
    TESSERA_CHECK(names.insert(name).second, "module: two parameters are called '{}'", name);
    for (NamedParameter& known : list) {
      if (known.parameter.same(parameter)) {
        known.shared = true;
        return;
      }
    }
    list.push_back({name, parameter, false});
  });
  return list;
}

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (const auto& named : named_parameters()) count += named.parameter.elements();
  return count;
}

void Module::train(bool on) {
  training_ = on;
  for (const Entry& entry : entries_) {
    if (entry.child != nullptr) entry.child->train(on);
  }
}

void materialize(Module& model, Device device, uint64_t seed) {
  for (const auto& [name, parameter, shared] : model.named_parameters()) {
    parameter.leaf().name = name;
    Tensor tensor = parameter.tensor();
    if (tensor.allocated()) continue;
    tensor.attach(allocate(tensor.bytes(), Category::parameters, device), 0);
    initialize(parameter.initializer(), seed, name, 0, tensor.values<float>());
  }
}

}  // namespace tessera::nn
