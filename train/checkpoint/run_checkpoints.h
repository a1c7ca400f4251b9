// Writes checkpoints during a run, at intervals (CheckpointOptions::every) and on a signal.
//
// With CheckpointOptions::async, steps go on while a thread of each rank writes the checkpoint from
// a copy of the state. In each step, a rank whose thread is writing sends a busy note, a bit that
// every rank sees (ZeroOptimizer::set_notes). All ranks see the same notes, so each phase of the
// checkpoint begins after the same step on all ranks:
//   1. Each rank's thread writes the rank's shard.
//   2. After the first step without a busy note, all shards have been written. Rank 0's thread then
//      writes the manifest.
//   3. After the next step without a busy note, every rank learns the result.
// If CheckpointOptions::staging limits the copy, the next update waits until the thread has read
// the state that is not in the copy. Without `async`, all three phases run between two steps.
//
//   SIGUSR1                            save after the current step, and continue the run
//   SIGUSR2, SIGTERM, SIGHUP, SIGINT   save after the current step, and end the run
//
// A signal that comes after the current step's notes were sent is obeyed after the next step.
//
// A program whose start takes long, because it reads large data, makes an EarlySignals first. A
// signal that comes before RunCheckpoints exists is then obeyed after the first step.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/state_copy.h"
#include "train/report/run_log.h"
#include "train/training_run.h"

namespace tessera::train {

/// True if SIGINT (Ctrl-C) has asked a run of this process to save a checkpoint and end. A program
/// should call this function after each run. If the result is true, the program should start no
/// other run, and should end itself by SIGINT. A shell script that called the program then ends
/// too. The first SIGINT restores the previous handler; by default, the next one ends the process.
bool was_interrupted();

/// Handles signals as RunCheckpoints does, from the start of a program until the first
/// RunCheckpoints is made. The first RunCheckpoints takes over the handlers, obeys the signals that
/// have come, and restores the previous handlers when it is destroyed. If the program makes no
/// RunCheckpoints, because it fails or no step is left, the destructor of EarlySignals restores the
/// previous handlers. A program may have one EarlySignals. It must be made before the first
/// RunCheckpoints and destroyed after the last one.
///
/// The destructor raises SIGTERM again if a SIGTERM has come and an exception ends the program
/// before a RunCheckpoints is made. The process then ends without reporting the exception. This is
/// for bad input that makes every rank fail: when the first rank fails, mpirun sends SIGTERM to all
/// ranks, and the slower ranks must not report the same error again.
class EarlySignals {
 public:
  /// If `wanted` is false, constructor and destructor do nothing.
  explicit EarlySignals(bool wanted);
  ~EarlySignals();
  EarlySignals(const EarlySignals&) = delete;
  EarlySignals& operator=(const EarlySignals&) = delete;

  /// Restores the previous handlers immediately. A program calls this function when it finds that
  /// no step is left, because no RunCheckpoints will then obey a signal. Does nothing if no signals
  /// are handled.
  static void end();

 private:
  bool wanted_;
};

/// Thrown on all ranks if the last checkpoint of a run cannot be written, or may be lost if the
/// machine fails (UnflushedCheckpoint). The ranks can still use the trained parameters, for example
/// to save the weights.
class LastCheckpointError : public Error {
 public:
  using Error::Error;
};

class RunCheckpoints {
 public:
  /// World, optimizer and log must outlive this object. Rank 0 must have claimed the folder
  /// (claim_folder in checkpoint_folder.h). Checkpoints record the settings, metadata and best
  /// evaluation of `info`. Allocates the copy if the options ask for one. Throws if options.keep is
  /// less than 1, or if the copy's limit is too small for a GPU. The handlers of signals are then
  /// unchanged.
  ///
  /// Until its destruction, the object handles SIGUSR1, SIGUSR2, SIGTERM, SIGHUP and SIGINT. But
  /// if the process ignores SIGHUP or SIGINT, this signal stays ignored. If a SIGINT has
  /// interrupted an earlier run of the process, SIGINT keeps its previous handler. The first SIGINT
  /// restores the previous handler of SIGINT, so a second one reaches that handler. The object also
  /// obeys the signals that an EarlySignals has handled before.
  ///
  /// The destructor restores the previous handlers. But if SIGUSR1 or SIGUSR2 had none, the process
  /// ignores the signal from then on, so that a late signal does not end a program that still saves
  /// results. The same holds for SIGHUP if a SIGHUP has come. If this rank's thread is writing a
  /// checkpoint, the destructor waits for it, which takes long on a slow disk.
  RunCheckpoints(CheckpointOptions options, const dist::World& world,
                 optim::ZeroOptimizer& optimizer, RunLog& log, CheckpointInfo info);
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  /// True while this rank's thread writes its shard of a checkpoint. False while rank 0's thread
  /// writes the manifest, which is short and makes the checkpoint whole.
  bool writes_shard() const { return busy_ && phase_ == Phase::shards; }
  /// Returns this rank's notes, to be passed to ZeroOptimizer::set_notes in each step: after the
  /// step's last backward, so that a signal that came in the step is obeyed after it, and before
  /// gradient_norms or launch_step sends the notes.
  uint8_t notes() const;
  /// True if a checkpoint is due after `done` steps: by the interval, or because at least one rank
  /// asks for a save. `notes` is LaunchedStep::notes(), the combined notes of all ranks.
  bool saves(int64_t done, uint8_t notes) const;
  /// True if at least one rank asks for the end of the run. `notes` are the combined notes of all
  /// ranks.
  static bool stops(uint8_t notes);

  /// Sets the best evaluation that later checkpoints record.
  void set_best(const std::optional<BestEvaluation>& best) { info_.best = best; }

  /// Continues a checkpoint that is being written. Then starts a new checkpoint if one is due. Must
  /// be called after each step; after the run's last step, finish() is enough. If saves() is true,
  /// the caller must first get the results of all launched steps.
  ///
  /// If a checkpoint is due while another one is being written, the due checkpoint is skipped. The
  /// log has a line for each skipped checkpoint, and finish() prints their number. Warns of each
  /// skipped checkpoint that a signal has asked for, and of the first skipped checkpoint that was
  /// due by the interval. If a checkpoint cannot be written, warns and keeps earlier checkpoints.
  /// Collective.
  void after_step(int64_t done, int64_t skipped, uint8_t notes);
  /// Waits until the thread has read all state that is not in the copy. Returns the time waited in
  /// nanoseconds. If the options limit the copy, this must be called before each change of the
  /// state. In a step, the call belongs between ZeroOptimizer::micro_steps and launch_step.
  int64_t wait_for_reads();

  /// Saves step `done` unless its checkpoint exists, waits until the checkpoint is on the disk, and
  /// returns its path. Throws LastCheckpointError on all ranks if this fails. Collective.
  std::string finish(int64_t done, int64_t skipped);

 private:
  enum class Phase : uint8_t { idle, shards, manifest };

  void start(const CheckpointInfo& info);
  void skip(int64_t done, bool asked_for);
  std::vector<optim::StatePiece> pieces_to_write();
  /// Waits for this rank's thread. Then starts the checkpoint's next phase, or concludes the
  /// checkpoint after a failure or the last phase. Collective.
  void advance();
  /// `failure` is why the checkpoint was not written, or why it may be lost; empty if neither.
  /// `digest` is the checkpoint's, or empty if the checkpoint was not written.
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
  std::atomic<bool> reading_ = false;  // true while the thread reads state that must not change
  int64_t waited_ns_ = 0;              // time this rank has waited for reads of this checkpoint
  std::string shard_;                  // shard_text of the shard that the thread wrote
  std::string digest_;                 // rank 0: digest of the committed manifest, or empty
  std::string why_;                    // why the thread failed; empty if it did not
  int64_t not_written_ = 0;            // number of skipped checkpoints
  bool warned_ = false;                // true: has warned of a skipped scheduled checkpoint
  int64_t saved_step_ = -1;            // step of the last checkpoint that is safe on the disk
  int64_t placed_step_ = -1;           // step of the last checkpoint that got its final name
  std::set<int64_t> whole_later_;      // for prune_checkpoints, in the thread of rank 0
  std::string failure_;                // how and why the last checkpoint failed; empty if not
};

}  // namespace tessera::train
