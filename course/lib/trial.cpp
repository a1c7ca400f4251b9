#include "course/lib/trial.h"

#include <set>

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
  note_into(&trial.events);
  for (int64_t step = 0; step < training.steps; ++step) {
    trial.events.clear();
    observer.traffic().reset();
    trial.losses.push_back(trainer->step(step, training.batch, task.losses()));
    for (const std::string& call : observer.finish()) trial.unwaited.push_back(call);
    if (after) after(*trainer);
  }
  note_into(nullptr);
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

void require_order(Grade& grade, const Trial& trial, const Hints& hints) {
  const auto with = [](const std::string& hint) { return hint.empty() ? "" : "\n      " + hint; };
  std::string race;
  if (!trial.races.empty()) {
    race = fmt::format(
        "the memory of {} was written before the call was done: wait for the call "
        "before its memory is used again, and fill it before the call{}",
        trial.races.front(), with(hints.race));
  }
  grade.require("no memory is written while a call reads it", race);
  std::string unwaited;
  if (!trial.unwaited.empty()) {
    unwaited = fmt::format(
        "nothing waits for {}: its result may not be there when it is read, and "
        "an error of the call is lost{}",
        trial.unwaited.front(), with(hints.unwaited));
  }
  grade.require("every call is waited for", unwaited);
}

std::string early_wait(const Trial& trial, const std::string& kind, dist::Traffic purpose) {
  std::set<int64_t> sent;    // buckets whose calls have started in this micro-step
  std::set<int64_t> waited;  // buckets in `sent` whose calls were waited for
  for (const Event& event : trial.events.list()) {
    if (event.purpose != purpose) continue;
    if (event.bucket < 0) {
      if (event.kind == kind) return fmt::format("a call of {} does not name its bucket", kind);
      continue;  // a call of another kind, or the wait for such a call
    }
    if (event.kind == "wait") {
      if (sent.contains(event.bucket)) waited.insert(event.bucket);
      continue;
    }
    if (event.kind != kind) continue;
    if (sent.contains(event.bucket)) {  // a new micro-step
      sent.clear();
      waited.clear();
    }
    if (!waited.empty()) {
      return fmt::format("the {} of bucket {} is waited for before that of bucket {} has started",
                         kind, *waited.begin(), event.bucket);
    }
    sent.insert(event.bucket);
  }
  return "";
}

}  // namespace course
