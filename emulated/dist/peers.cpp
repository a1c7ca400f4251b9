#include "emulated/dist/peers.h"

#include <algorithm>
#include <string>

#include "emulated/dist/control.h"

namespace emulated {

namespace {
std::atomic<double> timeout_s{120};
std::atomic<int> delay_ms{0};
}  // namespace

void set_nccl_timeout_s(double seconds) { timeout_s = seconds; }
double nccl_timeout_s() { return timeout_s; }

void set_nccl_delay_ms(int milliseconds) { delay_ms = milliseconds; }
int nccl_delay_ms() { return delay_ms; }

}  // namespace emulated

namespace emulated::nccl {

namespace {

constexpr int announcement_tag = 1;
constexpr int data_tag = 2;
constexpr size_t largest_message = size_t{1} << 30;  // MPI's counts are int

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Failure(ncclSystemError, std::string(call) + " failed");
}

bool mpi_runs() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

}  // namespace

Peers::Peers(int rank, int size) : rank_(rank), size_(size), gone_(static_cast<size_t>(size)) {
  if (size == 1) return;
  int level = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level < MPI_THREAD_MULTIPLE) {
    throw Failure(ncclSystemError, "emulated NCCL needs MPI_THREAD_MULTIPLE");
  }
  // Never freed: MPI_Comm_free is a collective, but a rank may call ncclCommDestroy alone.
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Peers::Peers(const PeersOfGroup& group)
    : comm_(group.comm),
      rank_(group.rank),
      size_(group.size),
      gone_(static_cast<size_t>(group.size)) {}

PeersOfGroup Peers::split(int color, int key) const {
  PeersOfGroup group;
  if (comm_ == MPI_COMM_NULL) return group;
  check(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &group.comm),
        "MPI_Comm_split");
  if (group.comm == MPI_COMM_NULL) return group;
  check(MPI_Comm_set_errhandler(group.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(group.comm, &group.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(group.comm, &group.size), "MPI_Comm_size");
  return group;
}

Peers::~Peers() {
  if (!mpi_runs()) {
    for (auto& announcement : announced_) (void)announcement.release();
    return;
  }
  for (auto& announcement : announced_) {
    int sent = 0;
    MPI_Test(&announcement->request, &sent, MPI_STATUS_IGNORE);
    if (!sent) (void)announcement.release();  // MPI may still read it
  }
}

void Peers::start_clock() {
  const std::chrono::duration<double> limit(nccl_timeout_s());
  deadline_ = std::chrono::steady_clock::now() +
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
  backoff_.reset();
}

template <class Text>
void Peers::pause(const Text& what_it_waits_for) {
  if (aborted_) throw Failure(ncclRemoteError, "the communicator was aborted");
  if (std::chrono::steady_clock::now() > deadline_) {
    throw Failure(ncclRemoteError, "rank " + std::to_string(rank_) + " has waited too long for " +
                                       what_it_waits_for());
  }
  backoff_.pause();
}

void Peers::announce(int peer, std::vector<Operation> operations) {
  while (!announced_.empty()) {
    int sent = 0;
    check(MPI_Test(&announced_.front()->request, &sent, MPI_STATUS_IGNORE), "MPI_Test");
    if (!sent) break;
    announced_.pop_front();
  }
  auto announcement = std::make_unique<Announcement>();
  announcement->operations = std::move(operations);
  const size_t bytes = announcement->operations.size() * sizeof(Operation);
  check(MPI_Isend(announcement->operations.data(), static_cast<int>(bytes), MPI_BYTE, peer,
                  announcement_tag, comm_, &announcement->request),
        "MPI_Isend");
  announced_.push_back(std::move(announcement));
}

std::vector<Operation> Peers::await(int peer, std::span<const Operation> mine) {
  const auto left = [&] {
    return Failure(ncclRemoteError, "rank " + std::to_string(rank_) + " makes " + text(mine) +
                                        ", but rank " + std::to_string(peer) +
                                        " has left the communicator");
  };
  if (gone_[static_cast<size_t>(peer)]) throw left();
  int there = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  for (;;) {
    check(MPI_Improbe(peer, announcement_tag, comm_, &there, &message, &status), "MPI_Improbe");
    if (there) break;
    pause([&] { return "rank " + std::to_string(peer) + " to meet its " + text(mine); });
  }
  backoff_.reset();
  int bytes = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  std::vector<Operation> theirs(static_cast<size_t>(bytes) / sizeof(Operation));
  check(MPI_Mrecv(theirs.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
  if (theirs.front().kind == Kind::goodbye) {
    gone_[static_cast<size_t>(peer)] = true;
    throw left();
  }
  return theirs;
}

void Peers::say_goodbye() {
  if (!mpi_runs()) return;  // e.g. a communicator of static lifetime, after MPI_Finalize
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) announce(peer, {Operation{}});
  }
}

void Peers::send(int peer, const void* data, size_t bytes) {
  for (size_t begin = 0; begin < bytes; begin += largest_message) {
    check(MPI_Isend(static_cast<const std::byte*>(data) + begin,
                    static_cast<int>(std::min(largest_message, bytes - begin)), MPI_BYTE, peer,
                    data_tag, comm_, &transfers_.emplace_back()),
          "MPI_Isend");
  }
}

void Peers::receive(int peer, void* data, size_t bytes) {
  for (size_t begin = 0; begin < bytes; begin += largest_message) {
    check(MPI_Irecv(static_cast<std::byte*>(data) + begin,
                    static_cast<int>(std::min(largest_message, bytes - begin)), MPI_BYTE, peer,
                    data_tag, comm_, &transfers_.emplace_back()),
          "MPI_Irecv");
  }
}

void Peers::finish() {
  if (transfers_.empty()) return;
  std::vector<int> done(transfers_.size());
  for (;;) {
    int count = 0;
    check(MPI_Testsome(static_cast<int>(transfers_.size()), transfers_.data(), &count, done.data(),
                       MPI_STATUSES_IGNORE),
          "MPI_Testsome");
    if (count == MPI_UNDEFINED) break;  // all transfers are done
    if (count > 0) {
      backoff_.reset();
    } else {
      pause([] { return std::string("data that other ranks have announced"); });
    }
  }
  transfers_.clear();
}

void Peers::cancel() {
  for (MPI_Request& request : transfers_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
}

}  // namespace emulated::nccl
