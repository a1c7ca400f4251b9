// Each rank has a parent process (rank_parent.h), which reports to relaunch in records. A record is
// a line on the parent's standard error, which mpirun forwards. No other channel leads from every
// host to the host of mpirun. A record begins with a character that does not occur in text. Ranks
// on relaunch's own host send their records over a socket too (record_socket.h).
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/run_status.h"

namespace tessera::apps {

struct RankRecord {
  enum class Event {
    started,
    told,  // mpirun told the parent to end, for instance because another rank failed
    ended,
  };
  int rank = 0;
  Event event = Event::started;
  std::string host = {};
  bool stopped = false;   // for told: true if the rank's program was stopped, as by SIGSTOP
  int signal = 0;         // for ended: the signal that killed the process or, if the process was a
                          // shell, the shell's program (set_end); 0 if there was no such signal
  int code = 0;           // for ended without a signal: the exit code
  bool was_told = false;  // for ended: true if mpirun had told the parent to end, or was gone
  RunStatus status = {};  // for told and ended

  bool operator==(const RankRecord&) const;
};

/// Sets `signal` or `code` from the status that waitpid has returned for the rank's process. If the
/// process was a shell whose program was killed by a signal, its exit code is 128 plus the signal.
/// Such a code is taken for the signal, unless the rank has reported a failure in `record.status`.
void set_end(RankRecord& record, int wait_status);

/// Returns the record as a line that cannot be confused with a program's output.
std::string record_text(const RankRecord& record);

/// Returns the record that record_text has written; nullopt if the text is not a record.
std::optional<RankRecord> parse_record(std::string_view text);

/// Splits the output of mpirun into records and the text of the ranks.
class RecordFilter {
 public:
  RecordFilter(std::function<void(std::string_view)> text,
               std::function<void(const RankRecord&)> record)
      : text_(std::move(text)), record_(std::move(record)) {}

  /// Takes the next bytes of the stream, which may be split anywhere. A repeated record is passed
  /// on only once. A record that cannot be parsed, because other output is inside it, is passed on
  /// as text.
  void feed(std::string_view bytes);
  /// Takes a record that did not arrive in the stream. A repeated record is not passed on.
  void take(const RankRecord& record);
  /// Ends the stream. An unfinished record is passed on as text.
  void finish();

 private:
  std::function<void(std::string_view)> text_;
  std::function<void(const RankRecord&)> record_;
  std::string begun_;            // a record whose end has not arrived yet
  std::set<std::string> taken_;  // the texts of all records so far, to drop repeated ones
};

}  // namespace tessera::apps
