// Writes checkpoints while a run goes on, every so many steps and when a signal asks for one.
//
// A thread writes a checkpoint from a copy of the rank's own state, so that no step waits for the
// disk. When a rank has written its part, it notes this with the flags of its next step
// (ZeroOptimizer::set_notes). When all ranks have, rank 0's thread writes the manifest, and rank 0
// notes that too. So every rank learns the result after the same step. Without `async` all of this
// happens between two steps. The copy may be limited (CheckpointOptions::staging): then the next
// update waits until the state that is not in the copy has been read.
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

/// Claims a folder of checkpoints for one writer: makes the folder if it is missing, and removes
/// what ended writers have left unfinished. Throws InputError if another process has claimed it.
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
  /// settings. Handles SIGUSR1, SIGUSR2 and SIGTERM from now on, and allocates the copy.
  RunCheckpoints(CheckpointOptions options, const dist::World& world,
                 optim::ZeroOptimizer& optimizer, RunLog& log, CheckpointInfo info);
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// The notes of this rank for ZeroOptimizer::set_notes, before the next step is launched.
  uint8_t notes() const;
  /// Decisions by the notes of all ranks: saves() is true if after_step will read the optimizer's
  /// state, stops() if the run ends here.
  bool saves(int64_t done, uint8_t notes) const;
  static bool stops(uint8_t notes);

  /// The best evaluation so far, for checkpoints that begin from now on.
  void set_best(const std::optional<BestEvaluation>& best) { info_.best = best; }

  /// Called after each step; if saves() is true, the results of all launched steps must have been
  /// asked for. A checkpoint that falls due while another is written is skipped, and logged. If one
  /// cannot be written, the run goes on with a warning, and earlier ones stay. Collective.
  void after_step(int64_t done, int64_t skipped, uint8_t notes);
  /// Waits until no state is read in place any more. Returns how long that took in nanoseconds, 0
  /// if nothing was read. If the options limit the copy, it must be called before each update,
  /// between ZeroOptimizer::micro_steps and launch_step, and before anything else that changes
  /// state.
  int64_t wait_for_reads();

  /// Saves step `done` if it is not saved yet, waits until it is on the disk, and returns the path
  /// of the checkpoint. Throws if it cannot be written. Collective.
  std::string finish(int64_t done, int64_t skipped);

 private:
  enum class Phase : uint8_t { idle, shards, manifest };

  void start(const CheckpointInfo& info);
  std::vector<optim::StatePiece> pieces_to_write();
  /// Starts the next phase, once the work of this one is done on all ranks. Collective.
  void advance();
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
  CheckpointInfo writing_;  // the checkpoint that is being written
  std::thread thread_;
  std::atomic<bool> busy_ = false;
  std::atomic<bool> reading_ = false;  // state is read in place, and must not change meanwhile
  int64_t waited_ns_ = 0;              // for the reads of this checkpoint, on this rank
  std::string shard_;  // text of the shard that the thread wrote; digest_: of its manifest
  std::string digest_;
  std::string why_;          // why the thread failed; empty if it did not
  int64_t saved_step_ = -1;  // step of the last whole checkpoint
  std::string failure_;      // why the last checkpoint failed; empty if it did not
};

}  // namespace tessera::train
