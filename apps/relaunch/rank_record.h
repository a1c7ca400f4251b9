// Records that the parents of ranks send to relaunch: lines on their standard error, which mpirun
// forwards. This is the only channel that leads from every host to the host of mpirun. A record
// begins with a character that does not occur in text, and ends with a newline.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/run_status.h"

namespace tessera::apps {

struct RankRecord {
  enum class Event {
    started,
    told,  // its parent was told to end: mpirun does so after another rank has ended the job
    ended,
  };
  int rank = 0;
  Event event = Event::started;
  std::string host = {};
  bool stopped = false;   // told: the process was stopped (SIGSTOP)
  int signal = 0;         // ended: the signal that killed it, or 0
  int code = 0;           // ended without a signal: its exit code
  bool was_told = false;  // ended: its parent had been told to end before
  RunStatus status = {};  // told, ended

  bool operator==(const RankRecord&) const;
};

/// The record as a line that cannot be confused with a program's output.
std::string record_text(const RankRecord& record);

/// Splits the output of mpirun into records and the text of the ranks.
class RecordFilter {
 public:
  RecordFilter(std::function<void(std::string_view)> text,
               std::function<void(const RankRecord&)> record)
      : text_(std::move(text)), record_(std::move(record)) {}

  /// Takes the next bytes of the stream, split anywhere. Repeated records are taken once. A record
  /// that cannot be parsed, because other output is inside it, is text.
  void feed(std::string_view bytes);
  /// Ends the stream: an unfinished record is text.
  void finish();

 private:
  void take(const std::string& line);

  std::function<void(std::string_view)> text_;
  std::function<void(const RankRecord&)> record_;
  std::string begun_;               // a record whose end has not arrived yet
  std::vector<std::string> taken_;  // all records so far, to drop repeated ones
};

}  // namespace tessera::apps
