// Saves a run while it goes on, every so many steps and when a signal asks for it.
//
// A checkpoint is written from a copy of the rank's own state, by a thread, and no step waits for
// the disk. That its rank has written its part each rank notes with the next step's flags
// (ZeroOptimizer::set_notes); when all have, rank 0's thread writes the manifest, and notes that
// too. So every rank knows after the same step what has become of it. Without `async` all of this
// happens between two steps. A copy may be limited (CheckpointOptions::staging): then the next
// update waits until what is not in it has been read.
//
//   SIGUSR1            save after the step, and go on
//   SIGUSR2, SIGTERM   save after the step, and end
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/state_copy.h"
#include "train/report/run_log.h"
#include "train/training_run.h"

namespace tessera::train {

/// The one writer of a folder of checkpoints: makes the folder where it is not there, and removes
/// what writers that are gone have left. Throws InputError where another process has it.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(const std::string& folder);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

 private:
  int lock_ = -1;
};

class RunCheckpoints {
 public:
  /// World, optimizer and log must outlive it. On rank 0 the folder must be claimed. `info` has the
  /// settings. Takes SIGUSR1, SIGUSR2 and SIGTERM over, and the memory of the copy.
  RunCheckpoints(CheckpointOptions options, const dist::World& world,
                 optim::ZeroOptimizer& optimizer, RunLog& log, CheckpointInfo info);
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// What the other ranks are told with the next step.
  uint8_t notes() const;
  /// What the notes of all ranks say: whether after_step will look at the optimizer's state, and
  /// whether the run ends here.
  bool saves(int64_t done, uint8_t notes) const;
  static bool stops(uint8_t notes);

  /// The best evaluation so far, for the checkpoints that begin from now on.
  void set_best(const std::optional<BestEvaluation>& best) { info_.best = best; }

  /// After a step of which nothing is under way any more. A checkpoint that falls due while one is
  /// written is skipped, and logged. Where one cannot be written the run goes on, and is warned;
  /// the ones before it stay. Collective.
  void after_step(int64_t done, int64_t skipped, uint8_t notes);
  /// Returns when no state is read in place any more, and how long that took in nanoseconds; 0
  /// where nothing was. Must be called before each update, where the options limit the copy:
  /// between ZeroOptimizer::micro_steps and launch_step, and before anything else that changes
  /// state.
  int64_t wait_for_reads();

  /// Saves what is not saved, and waits until it is on the disk. Throws where it cannot be written.
  /// Returns where the last checkpoint is. Collective.
  std::string finish(int64_t done, int64_t skipped);

 private:
  enum class Phase : uint8_t { idle, shards, manifest };

  void start(const CheckpointInfo& info);
  void write_own_shard(const CheckpointInfo& info, std::vector<optim::StatePiece> pieces);
  std::vector<optim::StatePiece> pieces_to_write();
  /// The next phase, once the work of this one is done on all ranks. Collective.
  void advance();
  void write_manifest(const std::vector<std::string>& shards);
  void conclude(const std::string& failure, const std::string& digest);
  void end_reading();
  void work(std::function<void()> body);
  void join();
  std::string path(int64_t step) const;

  CheckpointOptions options_;
  const dist::World& world_;
  optim::ZeroOptimizer& optimizer_;
  RunLog& log_;
  CheckpointInfo info_;
  StateCopy copy_;

  Phase phase_ = Phase::idle;
  CheckpointInfo writing_;  // what the running phases are about
  std::thread thread_;
  std::atomic<bool> busy_ = false;
  std::atomic<bool> reading_ = false;  // state where it lies, which must not change meanwhile
  int64_t waited_ns_ = 0;              // for this checkpoint's reads, on this rank
  std::string shard_;  // of the thread: what it has written,
  std::string digest_;
  std::string why_;          // or why not
  int64_t saved_step_ = -1;  // of the last checkpoint that is whole
  std::string failure_;      // of the last one that was tried; empty where it is whole
};

}  // namespace tessera::train
