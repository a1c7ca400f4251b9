#include "course/5_zero2/zero2.h"
#include "course/lib/trial.h"

namespace course {
namespace {

const Training training;

void check(Grade& grade) {
  const Trial trial = train(grade, training, maker<Zero2>(training));
  require_order(grade, trial);
  grade.require("the losses have the bits of ZeroOptimizer",
                difference(trial.losses, reference_losses(training)));
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) { return course::grade(argc, argv, "lesson 5", course::check); }
