// One training run with the student's optimizer, and the measurements for the checks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "course/lib/grade.h"
#include "course/lib/inspector.h"
#include "course/lib/observer.h"
#include "course/lib/reference.h"

namespace course {

struct Trial {
  std::vector<float> losses;
  Events events;                      // of the last step
  std::vector<std::string> unwaited;  // calls that nothing waited for
  std::vector<std::string> races;
  /// Bytes of the optimizer's memory by category: after the last step, and at the peak (peak_).
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t state = 0;
  int64_t peak_parameters = 0;
  int64_t peak_gradients = 0;
  /// Bytes that this rank sent in the last step.
  int64_t sent_gradients = 0;
  int64_t sent_parameters = 0;
  std::unique_ptr<dist::ShardLayout> layout;
  std::vector<nn::NamedParameter> named;

  int64_t elements() const { return layout->flat_elements(); }
};

/// Makes a student's optimizer.
using Make = std::function<std::unique_ptr<DataParallel>(nn::Module&, dist::Communicator&)>;

/// Trains with an Observer (course/lib/observer.h). Unless `late` is false, it delays every
/// collective call, which makes races visible. `after` is called after each step. Collective.
Trial train(Grade& grade, const Training& training, const Make& make, DType dtype = DType::f32,
            bool late = true, const std::function<void(DataParallel&)>& after = nullptr);

/// Returns a Make that constructs an `Optimizer` with the rule and the bucket size of `training`.
template <class Optimizer>
Make maker(const Training& training) {
  return [training](nn::Module& model, dist::Communicator& communicator) {
    return std::make_unique<Optimizer>(model, training.rule, communicator, training.bucket_bytes);
  };
}

/// What most likely causes a race, or a call without a wait, in the code of a lesson. require_order
/// adds these texts to its messages. An empty text adds nothing.
struct Hints {
  std::string race;
  std::string unwaited;
};
/// Requires that the trial had no race, and that every call was waited for.
void require_order(Grade& grade, const Trial& trial, const Hints& hints = {});

/// Checks that in each micro-step of the last step, all calls of this kind and purpose start before
/// any of them is waited for. Returns an empty text if so. Otherwise returns a message that names
/// the call that is waited for too early, and the call that had not started. If a call of this kind
/// and purpose does not name its bucket, returns a message that says so.
std::string early_wait(const Trial& trial, const std::string& kind, dist::Traffic purpose);

}  // namespace course
