// A second channel for the records (rank_record.h) of ranks on relaunch's own host. This channel
// does not pass through mpirun, so records arrive even after mpirun has crashed. The system queues
// only about ten records, so senders may have to wait until relaunch has read some.
#pragma once

#include <string>

namespace tessera::apps {

/// The environment variable with the name of relaunch's socket. Open MPI's mpirun passes the
/// variable only to ranks on its own host. If a launcher copies the variable to other hosts, no
/// socket there has the name, and RecordSender sends nothing.
inline constexpr const char* record_socket_variable = "TESSERA_RELAUNCH_SOCKET";

/// relaunch's end: a datagram socket with an abstract name, which leaves no file behind.
class RecordSocket {
 public:
  /// Makes the socket and publishes its name in this process's environment. Throws Error if the
  /// system makes no socket.
  RecordSocket();
  ~RecordSocket();
  RecordSocket(const RecordSocket&) = delete;
  RecordSocket& operator=(const RecordSocket&) = delete;

  int descriptor() const { return descriptor_; }
  /// Returns the next record, as record_text writes it; empty if none has arrived. Records from
  /// other users' processes are dropped.
  std::string next();

 private:
  int descriptor_ = -1;
};

/// A rank parent's end of the socket.
class RecordSender {
 public:
  RecordSender();
  ~RecordSender();
  RecordSender(const RecordSender&) = delete;
  RecordSender& operator=(const RecordSender&) = delete;

  /// Returns true if the text is in relaunch's queue, or if no relaunch on this host listens.
  /// Returns false if the queue had no room for the text within half a second.
  bool send(const std::string& text) const;

 private:
  int descriptor_ = -1;  // negative: no relaunch on this host listens
};

}  // namespace tessera::apps
