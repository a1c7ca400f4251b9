// Update rules. A rule updates contiguous ranges of weights and state in place. The result depends
// only on the old weights, the gradients, the state, the hyper-parameters and the scalars of the
// step (StepScalars). A rule is a plain struct of hyper-parameters:
//
//   optim::AdamW{.learning_rate = 3e-4f, .weight_decay = 0.1f}
//
// `UpdateRule` holds any rule. A new rule needs `state_names()`, `hyper(...)` and `update(...)`
// with the signatures below. A rule with `update_rows(...)` can also update the looked-up rows of
// row-sparse tables. A rule with `static constexpr bool value_per_row = true` has state tensors
// with one value for each row of a table, and needs no `update(...)`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "optim/kernels/rows.h"
#include "optim/kernels/update.h"

namespace tessera::optim {

/// Hyper-parameters of a parameter group. A hyper-parameter that is not set is taken from the rule.
struct GroupOptions {
  std::optional<float> learning_rate = std::nullopt;
  std::optional<float> beta1 = std::nullopt;  // SGD: momentum
  std::optional<float> beta2 = std::nullopt;
  std::optional<float> weight_decay = std::nullopt;
};

/// The tensors of one update: ranges of flat buffers. All have the same length, a multiple of 256
/// elements.
struct UpdateRanges {
  Tensor parameters;
  Tensor gradients;
  std::span<const Tensor> state;  // one tensor per name in state_names(), in this order
  /// The step's scalars in GPU memory, if the host launches the update before it knows the scalars.
  /// Otherwise null. A rule passes the pointer to its launcher, or applies the scalars as
  /// optim/kernels/update.h says.
  const StepScalars* scalars = nullptr;
};

/// SGD with momentum, as torch.optim.SGD defines it (Sutskever et al., ICML 2013, for Nesterov).
struct Sgd {
  float learning_rate = 1e-2f;
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;

  std::vector<std::string> state_names() const;
  UpdateHyper hyper(int64_t step, const GroupOptions& group) const;
  void update(const Context& context, const UpdateRanges& ranges,
              std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups) const;
  void update_rows(const Context& context, const RowUpdate& update, const UpdateHyper& hyper) const;
};

/// Adam (Kingma and Ba, arXiv:1412.6980), with weight decay added to the gradient.
struct Adam {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0;

  std::vector<std::string> state_names() const;
  UpdateHyper hyper(int64_t step, const GroupOptions& group) const;
  void update(const Context& context, const UpdateRanges& ranges,
              std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups) const;
  void update_rows(const Context& context, const RowUpdate& update, const UpdateHyper& hyper) const;
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101).
struct AdamW {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.01f;

  std::vector<std::string> state_names() const;
  UpdateHyper hyper(int64_t step, const GroupOptions& group) const;
  void update(const Context& context, const UpdateRanges& ranges,
              std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups) const;
  void update_rows(const Context& context, const RowUpdate& update, const UpdateHyper& hyper) const;
};

/// Adagrad (Duchi et al., JMLR 2011), as torch.optim.Adagrad defines it.
struct Adagrad {
  float learning_rate = 1e-2f;
  float epsilon = 1e-10f;
  float weight_decay = 0;

  std::vector<std::string> state_names() const;
  UpdateHyper hyper(int64_t step, const GroupOptions& group) const;
  void update(const Context& context, const UpdateRanges& ranges,
              std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups) const;
  void update_rows(const Context& context, const RowUpdate& update, const UpdateHyper& hyper) const;
};

/// Adagrad with one value of state for each row of a row-sparse table. This rule updates only
/// row-sparse tables (ZeroOptions::table_rule). kernels::rowwise_adagrad_update_rows has the
/// formula.
struct RowwiseAdagrad {
  float learning_rate = 1e-2f;
  float epsilon = 1e-10f;
  float weight_decay = 0;

  static constexpr bool value_per_row = true;
  std::vector<std::string> state_names() const;
  UpdateHyper hyper(int64_t step, const GroupOptions& group) const;
  void update_rows(const Context& context, const RowUpdate& update, const UpdateHyper& hyper) const;
};

/// Holds any rule by value.
class UpdateRule {
 public:
  template <class Rule>
  UpdateRule(Rule rule)  // NOLINT: implicit, so that a rule can be passed as an UpdateRule
      : rule_(std::make_shared<Model<Rule>>(std::move(rule))) {}

  /// Returns the names of the state tensors. Each state tensor is as large as the parameters, or,
  /// if value_per_row(), has one value for each row of a table.
  std::vector<std::string> state_names() const { return rule_->state_names(); }
  /// Returns the hyper-parameters of a group for update number `step`. The first update of a
  /// parameter has the number 1.
  UpdateHyper hyper(int64_t step, const GroupOptions& group) const {
    return rule_->hyper(step, group);
  }
  void update(const Context& context, const UpdateRanges& ranges,
              std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups) const {
    rule_->update(context, ranges, segments, groups);
  }
  void update_rows(const Context& context, const RowUpdate& update,
                   const UpdateHyper& hyper) const {
    rule_->update_rows(context, update, hyper);
  }
  /// True if the rule has update(), for flat ranges of parameters.
  bool updates_ranges() const { return rule_->updates_ranges(); }
  /// True if the rule has update_rows(), for rows of row-sparse tables.
  bool updates_rows() const { return rule_->updates_rows(); }
  bool value_per_row() const { return rule_->value_per_row(); }

 private:
  struct Concept {
    virtual ~Concept() = default;
    virtual std::vector<std::string> state_names() const = 0;
    virtual UpdateHyper hyper(int64_t step, const GroupOptions& group) const = 0;
    virtual void update(const Context&, const UpdateRanges&, std::span<const UpdateSegment>,
                        std::span<const UpdateHyper>) const = 0;
    virtual void update_rows(const Context&, const RowUpdate&, const UpdateHyper&) const = 0;
    virtual bool updates_ranges() const = 0;
    virtual bool updates_rows() const = 0;
    virtual bool value_per_row() const = 0;
  };
  template <class Rule>
  struct Model final : Concept {
    explicit Model(Rule r) : rule(std::move(r)) {}
    std::vector<std::string> state_names() const override { return rule.state_names(); }
    UpdateHyper hyper(int64_t step, const GroupOptions& group) const override {
      return rule.hyper(step, group);
    }
    void update(const Context& context, const UpdateRanges& ranges,
                std::span<const UpdateSegment> segments,
                std::span<const UpdateHyper> groups) const override {
      if constexpr (has_update) {
        rule.update(context, ranges, segments, groups);
      } else {
        fail("optimizer: the rule updates row-sparse tables only");
      }
    }
    void update_rows(const Context& context, const RowUpdate& update,
                     const UpdateHyper& hyper) const override {
      if constexpr (has_rows) {
        rule.update_rows(context, update, hyper);
      } else {
        fail("optimizer: the rule cannot update row-sparse tables");
      }
    }
    bool updates_ranges() const override { return has_update; }
    bool updates_rows() const override { return has_rows; }
    bool value_per_row() const override {
      if constexpr (requires { Rule::value_per_row; }) return Rule::value_per_row;
      return false;
    }
    static constexpr bool has_update =
        requires(const Rule& r, const Context& c, const UpdateRanges& ranges,
                 std::span<const UpdateSegment> s, std::span<const UpdateHyper> g) {
          r.update(c, ranges, s, g);
        };
    static constexpr bool has_rows =
        requires(const Rule& r, const Context& c, const RowUpdate& update, const UpdateHyper& h) {
          r.update_rows(c, update, h);
        };
    Rule rule;
  };

  std::shared_ptr<const Concept> rule_;
};

}  // namespace tessera::optim
