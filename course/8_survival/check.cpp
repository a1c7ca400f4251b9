// Grades lesson 8: the bits of the losses after a resume on the same and on other numbers of ranks,
// the bytes on the disk, and a crash in every operation of a save.
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>

#include "core/error.h"
#include "course/8_survival/survivor.h"
#include "course/lib/grade.h"
#include "course/lib/inspector.h"
#include "course/lib/reference.h"

namespace course {
namespace {

namespace fs = std::filesystem;

const Training training;

// Makes new folders that all ranks share. All folders are removed when the check ends, unless MPI
// aborts the job.
class Folders {
 public:
  explicit Folders(dist::Communicator& communicator) : communicator_(communicator) {
    parent_ = dist::broadcast_text(
        communicator,
        (fs::temp_directory_path() / fmt::format("tessera-course-{}", ::getpid())).string());
  }
  ~Folders() {
    std::error_code ignored;
    if (communicator_.rank() == 0) fs::remove_all(parent_, ignored);
  }
  fs::path next() {
    const fs::path folder = parent_ / std::to_string(number_++);
    if (communicator_.rank() == 0) fs::create_directories(folder);
    communicator_.barrier();
    return folder;
  }

 private:
  dist::Communicator& communicator_;
  fs::path parent_;
  int number_ = 0;
};

// A run of the student's optimizer on the ranks of a communicator.
class Run {
 public:
  explicit Run(dist::Communicator& communicator)
      : trainer_(task_.model(), training.rule, communicator, training.bucket_bytes) {
    trainer_.start();
  }
  Survivor& trainer() { return trainer_; }
  int64_t updates() { return Inspector(trainer_).updates(); }
  float step(int64_t step) { return trainer_.step(step, training.batch, task_.losses()); }
  /// Trains from step `from` to the last step, and returns the losses.
  std::vector<float> to_the_end(int64_t from) {
    std::vector<float> losses;
    for (int64_t s = from; s < training.steps; ++s) losses.push_back(step(s));
    return losses;
  }

 private:
  Task task_;
  Survivor trainer_;
};

// Trains `steps` steps, and saves. The last rename of save() declares the save complete. Returns a
// message if no barrier follows this rename, because another rank could then return from save()
// before the save is complete. The message depends only on the order of calls, and not on the speed
// of ranks.
std::string train_and_save(dist::Communicator& communicator, const fs::path& folder,
                           int64_t steps) {
  Run run(communicator);
  for (int64_t step = 0; step < steps; ++step) run.step(step);
  Disk disk(folder, communicator);
  run.trainer().save(disk, steps);
  communicator.barrier();  // a faulty save() may return before rank 0 declares the save complete
  const std::string rename = disk.rename_after_barriers();
  if (rename.empty() || communicator.size() == 1) return "";
  return fmt::format(
      "no barrier follows '{}': save returns on other ranks while a resume still reads the save "
      "before",
      rename);
}

// Resumes, and trains to the end. Returns a message about the first mistake, or an empty text.
// `allowed` lists the numbers of steps that resume() may return.
std::string resume_message(dist::Communicator& communicator, const fs::path& folder,
                           const std::vector<int64_t>& allowed) {
  Run run(communicator);
  int64_t step = 0;
  std::string wrong;
  try {
    step = run.trainer().resume(Disk(folder, communicator));
  } catch (const Error& error) {
    wrong = fmt::format("resume fails: {}", error.what());
  }
  if (wrong.empty() && std::ranges::find(allowed, step) == allowed.end()) {
    wrong = fmt::format("resume returns {} steps, expected {}", step, fmt::join(allowed, " or "));
  }
  if (wrong.empty() && step > 0 && run.updates() != step) {
    wrong = fmt::format(
        "after the resume updates_ is {}, expected {}: the bias correction of AdamW "
        "depends on the number of updates",
        run.updates(), step);
  }
  // If the resume is wrong on any rank, no rank continues to train, because step() is collective.
  const Tensor failed = Tensor::zeros({1}, DType::i64);
  failed.data<int64_t>()[0] = wrong.empty() ? 0 : 1;
  communicator.all_reduce(failed, {}).wait();
  if (failed.data<int64_t>()[0] > 0) return wrong;
  const std::vector<float> all = reference_losses(training);
  const std::vector<float> expected(all.begin() + step, all.end());
  const std::vector<float> found = run.to_the_end(step);
  if (found == expected) return "";
  std::string text;
  for (size_t i = 0; i < expected.size() && text.empty(); ++i) {
    if (found[i] == expected[i]) continue;
    text = fmt::format("resumed after step {}, the loss of step {} is {:.9g}, expected {:.9g}",
                       step, step + static_cast<int64_t>(i) + 1, found[i], expected[i]);
  }
  if (step == 3 && found[0] == expected[0]) {
    text += "\n      The first loss is right, so the weights are: are the moments?";
  } else {
    text += "\n      Where in the file, and where in this rank's range, does the overlap begin?";
  }
  return text;
}

// Adds the likely causes if `wrong`, a message of resume_message, says that a file is missing.
// After a crash, explanation() names the causes instead.
std::string with_causes(const std::string& wrong) {
  if (wrong.find("there is no file step") == std::string::npos) return wrong;
  return wrong +
         "\n      Does resume look for the files of as many ranks as the save was made on? Or does "
         "save list or remove files before a barrier has told it that all ranks have written?";
}

int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

// Returns the range of the token table that `rank` owns in a run on `ranks` ranks.
dist::Range owned_of_table(int64_t ranks, int64_t rank) {
  const auto parameters = Task().model().named_parameters();
  std::vector<dist::LayoutParameter> list;
  for (const auto& [name, parameter, shared, block] : parameters) {
    list.push_back({name, parameter.elements(), shared, block});
  }
  return dist::ShardLayout(std::move(list), ranks, training.bucket_bytes / 4).owned(0, rank);
}

void check_sizes(Grade& grade, const fs::path& folder) {
  int64_t parameters = 0;
  for (const auto& named : Task().model().named_parameters()) {
    parameters += named.parameter.elements();
  }
  const int64_t bytes = bytes_in(folder);
  std::string wrong;
  if (bytes > 13 * parameters + 10000) {
    wrong = fmt::format(
        "a save has {} bytes, expected about {}: 12 for each of {} parameters. Does "
        "every rank save only what it owns?",
        grouped(bytes), grouped(12 * parameters), grouped(parameters));
  }
  grade.require("every element is saved once", wrong);
  if (grade.world().size != 3) return;
  const dist::Range own = owned_of_table(2, 0);
  int64_t files = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const dist::Range saved = owned_of_table(3, rank);
    files += saved.begin < own.end && own.begin < saved.end ? 1 : 0;
  }
  grade.predicted("bytes of weights and moments in a save", 12 * parameters);
  grade.predicted("elements of the token table that rank 1 of 3 owns", owned_of_table(3, 1).size());
  grade.predicted("files of 3 ranks that rank 0 of 2 needs for the table", files);
}

// Returns the smaller numbers of ranks to test: 1, and `ranks` - 1.
std::vector<int> fewer_than(int ranks) {
  if (ranks == 1) return {};
  if (ranks == 2) return {1};
  return {1, ranks - 1};
}

// Saves on fewer ranks and resumes on all ranks. Then saves on all ranks and resumes on fewer.
void check_other_ranks(Grade& grade, Folders& folders) {
  dist::Communicator& all = grade.communicator();
  for (const int fewer : fewer_than(all.size())) {
    const auto group = all.split(all.rank() < fewer ? 0 : -1, all.rank(), "fewer");
    const fs::path from_fewer = folders.next();
    if (group) train_and_save(*group, from_fewer, 3);
    all.barrier();
    grade.require(fmt::format("saved on {}, resumed on {} ranks", fewer, all.size()),
                  with_causes(resume_message(all, from_fewer, {3})));
    const fs::path from_all = folders.next();
    train_and_save(all, from_all, 3);
    all.barrier();
    grade.require(fmt::format("saved on {}, resumed on {} ranks", all.size(), fewer),
                  group ? with_causes(resume_message(*group, from_all, {3})) : "");
  }
}

// Returns the likely cause if the resume after a crash of rank `victim` fails. Ranks other than 0
// only write their files. So if such a rank crashed, rank 0 probably declared the save complete too
// early.
std::string explanation(int victim, const std::string& operation, const std::string& wrong) {
  if (victim > 0) {
    return "\n      The save was declared complete before the files of all ranks were: declare it "
           "after a barrier";
  }
  if (wrong.find("damaged") != std::string::npos) {
    return fmt::format(
        "\n      '{}' was itself written by halves, although a resume already reads it: write "
        "under a name that nothing reads yet, and then rename",
        operation.substr(operation.find(' ') + 1));
  }
  return "\n      The save before was given up before this one was complete";
}

// Saves after step 2 and again after step 3. Returns this rank's operations in the second save.
std::vector<std::string> operations_of_save(dist::Communicator& communicator, const fs::path& at) {
  train_and_save(communicator, at, 2);
  Run run(communicator);
  Disk disk(at, communicator);
  run.trainer().resume(disk);
  run.step(2);
  run.trainer().save(disk, 3);
  return disk.operations();
}

// Makes a save after step 2. Then rank `victim` crashes in operation `number` of the save after
// step 3. Returns a message if the resume after the crash is wrong.
std::string crash_message(dist::Communicator& communicator, const fs::path& folder, int victim,
                          int64_t number, const std::string& operation) {
  train_and_save(communicator, folder, 2);
  {
    Run run(communicator);
    Disk disk(folder, communicator);
    run.trainer().resume(disk);
    run.step(2);
    if (communicator.rank() == victim) disk.crash_at(number);
    bool crashed = false;
    bool alone = false;
    try {
      run.trainer().save(disk, 3);
    } catch (const Crash&) {
      crashed = true;
      alone = communicator.rank() == victim;
    }
    // The victim reports its crash to the other ranks. A rank that waits in a barrier of save()
    // receives the report there, and save() throws. A rank whose save() has returned receives the
    // report here.
    if (alone || !crashed) disk.finish(alone);
  }
  communicator.barrier();
  std::string wrong = resume_message(communicator, folder, {2, 3});
  if (wrong.empty()) return wrong;
  return fmt::format("after a crash of rank {} in '{}', {}{}", victim, operation, wrong,
                     explanation(victim, operation, wrong));
}

// Tests crashes of rank 0, which also declares a save complete, and of the last rank.
void check_crashes(Grade& grade, Folders& folders) {
  dist::Communicator& communicator = grade.communicator();
  const std::vector<std::string> own = operations_of_save(communicator, folders.next());
  std::string wrong;
  int64_t crashes = 0;
  std::vector<int> victims{0};
  if (communicator.size() > 1) victims.push_back(communicator.size() - 1);
  for (const int victim : victims) {
    // Every rank gets the names of the victim's operations.
    for (int64_t k = 0;; ++k) {
      const std::vector<std::string> all =
          dist::gather_text(communicator, k < std::ssize(own) ? own[static_cast<size_t>(k)] : "");
      const std::string operation =
          dist::broadcast_text(communicator, all.empty() ? "" : all[static_cast<size_t>(victim)]);
      if (operation.empty()) break;
      const std::string found = crash_message(communicator, folders.next(), victim, k, operation);
      if (wrong.empty()) wrong = found;
      ++crashes;
    }
  }
  grade.require(fmt::format("a crash at any of {} moments leaves a complete save", crashes), wrong);
}

void check(Grade& grade) {
  grade.communicator().set_timeout(20);
  Folders folders(grade.communicator());
  const fs::path folder = folders.next();
  grade.require("save returns only when the save counts",
                train_and_save(grade.communicator(), folder, 3));
  grade.require("a resumed run has the same bits on the same number of ranks",
                with_causes(resume_message(grade.communicator(), folder, {3})));
  check_sizes(grade, folder);
  grade.require("without a save a run begins anew",
                resume_message(grade.communicator(), folders.next(), {0}));
  check_other_ranks(grade, folders);
  check_crashes(grade, folders);
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 8: survival", course::check);
}
