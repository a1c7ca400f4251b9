// What the parents of ranks report to relaunch: lines within what mpirun passes on from their
// standard error, because that is the one way that leads from every host to where mpirun runs.
// A record begins with a character that no text has, and ends with its line.
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
    told,  // its parent was told to end, which mpirun does when another rank has ended the job
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

/// A line that no text of a program can be taken for.
std::string record_text(const RankRecord& record);

/// Takes a stream apart into records and what the ranks have written.
class RecordFilter {
 public:
  RecordFilter(std::function<void(std::string_view)> text,
               std::function<void(const RankRecord&)> record)
      : text_(std::move(text)), record_(std::move(record)) {}

  /// The next bytes of the stream, cut anywhere. A record that comes again is taken once. What
  /// cannot be read as one, because others' words are in it, is text.
  void feed(std::string_view bytes);
  /// The stream is over: what looked like the beginning of a record was text.
  void finish();

 private:
  void take(const std::string& line);

  std::function<void(std::string_view)> text_;
  std::function<void(const RankRecord&)> record_;
  std::string begun_;               // a record whose end has not come yet
  std::vector<std::string> taken_;  // records, as they came
};

}  // namespace tessera::apps
