#include "train/run_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/context.h"
#include "core/error.h"
#include "core/text/error_text.h"
#include "core/text/output_file.h"
#include "core/trace.h"
#include "dist/agreement.h"
#include "dist/stalled.h"
#include "train/checkpoint/path_within.h"
#include "train/report/csv.h"
#include "train/report/rank_clock.h"
#include "train/report/report_page.h"
#include "train/report/tensorboard.h"
#include "train/report/trace_file.h"

namespace tessera::train {
namespace {

// Reports are made from the log, so the log must be a file that can be read again.
void check_readable_later(const std::string& log) {
  if (log.empty()) fail_input("a report or table is made from the log, but no log is given");
  std::error_code error;
  const auto status = std::filesystem::status(log, error);
  if (std::filesystem::exists(status) && !is_regular_file(status)) {
    fail_input("a report or table is made from the log, but '{}' is not a regular file", log);
  }
}

// Does not make the event file yet, because this run may still be refused. A new event file makes
// TensorBoard hide steps of other event files in the folder.
void check_event_folder(const std::string& folder) {
  make_event_folder(folder);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail_input("{}: cannot be written: {}", folder, std::strerror(errno));
  }
}

void check_files(const RunFiles& files) {
  const std::string* const all[] = {&files.log, &files.trace, &files.save, &files.report,
                                    &files.csv};
  for (const std::string* path : all) {
    if (path->empty()) continue;
    if (path != &files.log) check_writable(*path);
    for (const std::string* other : all) {
      if (other != path && !other->empty() && is_same_path(*other, *path)) {
        fail_input("{} is given for two files of the run, expected different paths", *path);
      }
    }
  }
  if (!files.report.empty() || !files.csv.empty()) check_readable_later(files.log);
  if (!files.tensorboard.empty()) check_event_folder(files.tensorboard);
}

// Makes the event file when the run logs its first line. Before that, the run may still be refused.
void write_events(RunLog& log, const std::string& folder, int64_t finished) {
  log.follow([folder, finished,
              writer = std::shared_ptr<TensorBoardWriter>()](const std::string& line) mutable {
    if (writer == nullptr) writer = std::make_shared<TensorBoardWriter>(folder, finished);
    writer->add(line);
  });
}

// Throws if the log of a run that has ended is gone or empty. An empty log means that no line could
// be written, for instance on a full disk. Any other log begins with the header (RunLog::write).
void check_log_has_lines(const std::string& log, const std::string& output) {
  std::error_code error;
  const bool is_empty = std::filesystem::file_size(log, error) == 0;
  if (error) {
    fail("{} is not written, because the log {} cannot be read: {}", output, log, error.message());
  }
  if (is_empty) {
    fail("{} is not written, because the log could not be written", output);
  }
}

}  // namespace

std::unique_ptr<RunLog> begin_run(const RunFiles& files, const dist::World& world) {
  if (world.rank == 0) check_files(files);
  // The barrier waits for all ranks. A rank with bad input ends the job before this point, so the
  // log of an earlier run is not replaced.
  world.communicator->barrier();
  auto log = std::make_unique<RunLog>(world.rank == 0 ? files.log : "", files.finished);
  if (world.rank == 0 && !files.tensorboard.empty()) {
    write_events(*log, files.tensorboard, files.finished.value_or(0));
  }
  trace::enable(false);
  if (!files.trace.empty()) {
    begin_trace(world);
  } else if (!files.report.empty()) {
    begin_rank_clock(world);
  }
  // Memory peaks and traffic are measured from here on, so that they do not include the program's
  // setup.
  memory_ledger(default_device()).reset_peaks();
  memory_ledger(Device{}).reset_peaks();
  world.communicator->traffic().reset();
  return log;
}

std::string try_to_write_trace(const RunFiles& files, const dist::World& world,
                               std::string failure) {
  if (files.trace.empty()) return failure;
  // Only rank 0 writes the file, so only rank 0 can fail to write it. An error on another rank is a
  // communication error, which must end the job.
  if (world.rank == 0) {
    attempt(failure, [&] { write_trace(files.trace, world); });
  } else {
    write_trace(files.trace, world);
  }
  return failure;
}

std::string try_to_write_reports(const RunFiles& files, const dist::World& world,
                                 std::string failure) {
  if (world.rank != 0) return failure;
  if (!files.report.empty()) {
    attempt(failure, [&] {
      check_log_has_lines(files.log, files.report);
      write_report_page({{.log = files.log}}, files.report);
      spdlog::info("report: {}", files.report);
    });
  }
  if (!files.csv.empty()) {
    attempt(failure, [&] {
      check_log_has_lines(files.log, files.csv);
      write_csv(files.log, files.csv);
      spdlog::info("table: {}", files.csv);
    });
  }
  return failure;
}

void write_reports(const RunFiles& files, const dist::World& world) {
  const std::string failure = try_to_write_reports(files, world, "");
  if (!failure.empty()) fail("{}", failure);
}

std::string first_failure(const std::string& failure, const std::string& later) {
  if (failure.empty()) return later;
  if (!later.empty()) spdlog::warn("{}", later);
  return failure;
}

void attempt(std::string& failure, const std::function<void()>& write) {
  try {
    write();
  } catch (const dist::StalledError&) {
    throw;  // ends the job immediately, and `relaunch` starts it again
  } catch (const std::exception& error) {
    failure = first_failure(failure, error_text(error));
  }
}

void attempt_together(std::string& failure, const dist::World& world,
                      const std::function<void()>& write) {
  std::string own;
  attempt(own, write);
  if (!own.empty() && world.rank != 0) own += fmt::format(" (rank {})", world.rank);
  failure = first_failure(failure, dist::first_reason(own, *world.communicator));
}

void throw_failure(const std::string& failure, const dist::World& world) {
  if (failure.empty()) return;
  if (world.rank != 0) world.communicator->barrier();
  fail("{}", failure);
}

}  // namespace tessera::train
