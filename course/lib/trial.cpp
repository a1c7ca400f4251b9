#include "course/lib/trial.h"

#include <fmt/format.h>

namespace course {

Trial train(Grade& grade, const Training& training, const Make& make, DType dtype, bool late,
            const std::function<void(DataParallel&)>& after) {
  Trial trial;
  Task task(dtype);
  Observer observer(grade.communicator(), trial.events, late);
  const MemoryUse memory;
  const std::unique_ptr<DataParallel> trainer = make(task.model(), observer);
  trainer->start();
  trial.named = trainer->parameters();
  trial.layout = std::make_unique<dist::ShardLayout>(trainer->layout());
  watch(trial.named, trial.events);
  for (int64_t step = 0; step < training.steps; ++step) {
    trial.events.clear();
    observer.traffic().reset();
    trial.losses.push_back(trainer->step(step, training.batch, task.losses()));
    for (const std::string& call : observer.finish()) trial.unwaited.push_back(call);
    if (after) after(*trainer);
  }
  trial.races = observer.races();
  trial.parameters = memory.current(Category::parameters);
  trial.gradients = memory.current(Category::gradients);
  trial.state = memory.current(Category::optimizer_state);
  trial.peak_parameters = memory.peak(Category::parameters);
  trial.peak_gradients = memory.peak(Category::gradients);
  trial.sent_gradients = observer.traffic().bytes_sent(dist::Traffic::gradients);
  trial.sent_parameters = observer.traffic().bytes_sent(dist::Traffic::parameters);
  return trial;
}

void require_order(Grade& grade, const Trial& trial) {
  grade.require(
      "no memory is written while a call reads it",
      trial.races.empty()
          ? ""
          : fmt::format("the memory of {} was written before the call was done: wait for the call "
                        "before its memory is used again",
                        trial.races.front()));
  grade.require("every call is waited for",
                trial.unwaited.empty()
                    ? ""
                    : fmt::format("nothing waits for {}: its result is not there when it is read, "
                                  "or only by luck",
                                  trial.unwaited.front()));
}

}  // namespace course
