// The files of a training run: opened before the first step, and completed after the last one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dist/bootstrap.h"
#include "train/report/run_log.h"

namespace tessera::train {

/// Files that a run writes; a file without a path is not written.
struct RunFiles {
  std::string log = {};    // JSON lines (run_log.h)
  std::string trace = {};  // trace of all ranks (trace_file.h)
  std::string save = {};   // weights; written by the caller at the end
  /// `report` is a page that shows the run. `csv` is a table of its steps. write_reports makes both
  /// files from the log, which must be a regular file.
  std::string report = {};
  std::string csv = {};
  std::string tensorboard = {};  // folder for an event file (train/report/tensorboard.h)
  /// The number of finished steps if an existing log is continued (run_log.h); nullopt: a new log.
  std::optional<int64_t> finished = std::nullopt;
};
/// Begins a run; must be called before the run allocates memory. Rank 0 checks that the files can
/// be written, and opens the log only after all ranks have called begin_run without an error. Then
/// all ranks start the trace, if any, and reset the measured memory peaks and traffic. If a file
/// cannot be written, throws InputError, or Error if the reason is the machine (fail_to_open). Also
/// throws InputError if two files have the same path. `report` and `trace` must be given on all
/// ranks or on none. Collective.
std::unique_ptr<RunLog> begin_run(const RunFiles& files, const dist::World& world);

/// Writes files.report and files.csv on rank 0. Must be called at the end of a run, even if a
/// signal has stopped the run. If a file cannot be written, throws after trying the other one. The
/// log is kept in any case.
void write_reports(const RunFiles& files, const dist::World& world);

// The functions below collect the failures at the end of a run, so that an output that cannot be
// written does not prevent the next ones. `failure` is the first failure so far, or an empty text.

/// Returns `failure`, or `later` if `failure` is empty. If both have a text, logs `later` as a
/// warning, because the error that ends the job contains only the first failure.
std::string first_failure(const std::string& failure, const std::string& later);
/// Calls `write`, which writes an output. If `write` throws, sets `failure` to
/// first_failure(failure, the error's text). But a StalledError is thrown to the caller.
void attempt(std::string& failure, const std::function<void()>& write);
/// Like attempt, but for an output that every rank makes. If `write` throws on some ranks, all
/// ranks get the error's text from the lowest of these ranks, with the rank's number if this is not
/// 0. If only the failed ranks knew of the failure, a failed rank other than 0 would wait for the
/// other ranks in throw_failure until the time limit. Collective.
void attempt_together(std::string& failure, const dist::World& world,
                      const std::function<void()>& write);
/// Writes files.trace, if it has a path. Returns `failure`, or the reason if `failure` is empty and
/// the file was not written. Only rank 0 writes the file, so only rank 0 may return this reason.
/// Collective.
std::string try_to_write_trace(const RunFiles& files, const dist::World& world,
                               std::string failure);
/// Writes the same files as write_reports, but does not throw. Rank 0 returns the first failure:
/// `failure`, or the reason if `failure` is empty and a file was not written. Other ranks return
/// `failure`.
std::string try_to_write_reports(const RunFiles& files, const dist::World& world,
                                 std::string failure);
/// Does nothing if `failure` is empty. Otherwise rank 0 throws an error with this text, which ends
/// the job. The other ranks wait until the job ends, so that only rank 0 reports the failure.
void throw_failure(const std::string& failure, const dist::World& world);

}  // namespace tessera::train
