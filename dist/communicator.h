// Collectives and point-to-point transfers between the ranks of a job, or of a group of them. Every
// call is asynchronous and returns Work to wait for. Calls run in the order in which they were
// made. All ranks make the same collectives in the same order; a transfer concerns two ranks.
//
//   Work work = communicator.all_gather(bucket, {Traffic::parameters, 3});
//   ... compute ...
//   work.wait();                                    // throws what the collective threw
//
//   auto half = communicator.split(rank % 2, rank, "half");     // a group of every second rank
//
// "piece r" of a buffer of N * n elements is [r * n, (r + 1) * n). What a call sends:
//
//   exchange, reduce_scatter   (N-1) pieces a rank < contributors, nothing from the others
//   all_gather, .._host        (N-1) times the own piece
//   all_reduce                 (N-1) times the buffer
//   broadcast                  (N-1) times the buffer from the root, nothing from the others
//   exchange_v                 its input but for the own piece
//   all_gather_v               (N-1) times the own piece
//   send, send_receive         the outgoing buffer, nothing if it goes to the rank itself
//   barrier, receive, split    nothing
//
// Over MPI a header goes before it, to each other rank or to the peers of a transfer. Ranks that
// make different calls find out by it: these throw, and name both calls.
//
// A call that failed leaves its communicator unusable: later calls throw the same error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "dist/traffic.h"

namespace tessera::dist {

/// A collective under way. Copies share it.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;  // rethrows the failure of the collective
    virtual bool done() const = 0;
  };

  Work() = default;  // nothing to wait for
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  void wait() const {
    if (state_) state_->wait();
  }
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

/// What a call is for: the ledger counts by purpose, the trace shows the bucket. All of it is the
/// same on every rank.
struct Call {
  Traffic purpose = Traffic::other;
  int64_t bucket = -1;
  int64_t group = 0;  // of buckets that are counted together

  std::string text() const;  // "gradients, bucket 3"; where the group is not 0 "... of group 7"
};

/// exchange_v: elements that this rank sends to each rank, and that it gets from each.
struct ExchangeCounts {
  std::vector<int64_t> send = {};
  std::vector<int64_t> receive = {};
};

/// One direction of a point-to-point transfer: the buffer, and the rank at the other end.
struct Transfer {
  Tensor buffer = {};
  int peer = -1;  // -1: nothing moves in this direction
};

/// Longer than a rank may compute, evaluate or save while the others wait for it.
inline constexpr double default_comm_timeout_s = 600;

class Communicator {
 public:
  /// Called where the communicator runs, not on the caller's thread: elements
  /// [begin, begin + chunk.elements()) of this rank's piece as `source` sent them. `begin` is a
  /// multiple of 256, and so is the length but for the last chunk. It must own what it touches: it
  /// may run until wait() returns, also while an exception unwinds the caller.
  using Receive = std::function<void(int source, int64_t begin, const Tensor& chunk)>;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "mpi", "nccl", "single"
  /// The name that split() was given; empty for the communicator of all ranks.
  virtual std::string group() const { return ""; }

  /// The communicator of those ranks that give the same `color`, in ascending order of `key` and
  /// then of rank; nullptr for a negative color. It has staging, a traffic ledger and, over MPI, a
  /// thread of its own, so that calls of two groups may be under way at once. `group` names it in
  /// errors and traces. Collective over this communicator; returns when all ranks have called it.
  virtual std::shared_ptr<Communicator> split(int color, int key, const std::string& group) = 0;

  /// Where it allocates, and where the ranks compute.
  virtual Device device() const { return {}; }

  /// Memory of device() that the transport can use directly; for long-lived flat buffers.
  virtual std::shared_ptr<Storage> allocate(int64_t bytes, Category category) = 0;

  /// The ordered reduction's transport: sends piece r of `input` to rank r, and hands what arrives
  /// for this rank to `receive`, each element's contributions in ascending order of source, this
  /// rank's own included (without a copy). Only ranks < contributors send.
  virtual Work exchange(const Tensor& input, int contributors, Receive receive, Call call) = 0;

  /// shard (f32) = the sum over ranks < contributors of their piece `rank()` (f32, bf16 or f16),
  /// in f32, in an order that is the transport's own and the same from run to run.
  virtual Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                              Call call) = 0;

  /// Every rank's piece of `buffer`, in place: afterwards all pieces are there on all ranks.
  /// Moves bytes; any dtype.
  virtual Work all_gather(const Tensor& buffer, Call call) = 0;

  /// The same of memory on the host, wherever the ranks compute: of what hosts know. Over NCCL it
  /// does not wait for the GPU, nor for the calls before it, and is done when it returns.
  virtual Work all_gather_host(const Tensor& buffer, Call call) { return all_gather(buffer, call); }

  /// buffer = its sum over ranks, f32 or i64, in rank order.
  virtual Work all_reduce(const Tensor& buffer, Call call) = 0;

  virtual Work broadcast(const Tensor& buffer, int root, Call call) = 0;

  /// An all-to-all of pieces of any length (MPI_Alltoallv): the counts.send[r] elements of `input`
  /// behind those for the ranks before r go to rank r, and the counts.receive[s] elements from rank
  /// s come to stand behind those of the ranks before s in `output`. Any dtype; the buffers do not
  /// overlap. If a rank expects another count than its peer sends, both throw over MPI.
  virtual Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                          Call call) = 0;

  /// all_gather with pieces of any length (MPI_Allgatherv), in place: counts[r] elements of rank r
  /// stand in `buffer` behind those of the ranks before r. Every rank gives the same counts.
  virtual Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) = 0;

  /// Sends one buffer and receives another at the same time, as each step round a ring does: a send
  /// and a receive behind it would wait for each other on two ranks. The peer makes the matching
  /// call, with a buffer of as many bytes. A rank may be its own peer in both directions.
  virtual Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) = 0;
  Work send(const Tensor& buffer, int to, Call call) {
    return send_receive({buffer, to}, {}, call);
  }
  Work receive(const Tensor& buffer, int from, Call call) {
    return send_receive({}, {buffer, from}, call);
  }

  /// Runs `body` where the communicator runs, after the calls before it and before those after it:
  /// what a rank computes on a collective's result without waiting for it. Sends nothing, and the
  /// ledger does not count it. Over MPI it may make calls, and wait for none that comes after it:
  /// that throws, as in Receive, and fails the communicator.
  virtual Work run(std::function<void()> body) = 0;

  /// Returns when every rank has called it and earlier calls are done.
  virtual void barrier() = 0;

  /// Whether calls can be part of a graph: all that they do they launch on the device.
  virtual bool captures() const { return false; }
  /// What `body` launches, its calls here included, as a graph (cuda::Graph): call what is returned
  /// to launch it, in the same order among other calls on every rank. It must go before the
  /// communicator does: NCCL's waits for graphs that have its calls. `body` waits for no call made
  /// before. A launch comes after all calls made before it, ends when all calls of `body` are done,
  /// and counts as traffic; capturing does not.
  virtual std::function<void()> capture(const std::function<void()>& body);

  /// Bytes of staging that the transport holds, once and for all calls (Category::communication).
  virtual int64_t staging_bytes() const = 0;

  /// Bytes that a call sends besides its data to each other rank, or to each peer of a transfer:
  /// Traffic::headers, or ::other in a call for other purposes.
  virtual int64_t header_bytes() const { return 0; }

  /// Over MPI: a collective throws when nothing of it has moved for so long, and says which rank
  /// has not come. The time in which this process itself is stopped does not count. From any
  /// thread. Elsewhere it means nothing: a single rank waits for nobody, and NCCL's watchdog goes
  /// by NcclOptions::timeout_s.
  virtual void set_timeout(double) {}

  virtual TrafficLedger& traffic() { return traffic_; }

 protected:
  /// The same where `body` itself orders its calls.
  std::function<void()> capture_ordered(const std::function<void()>& body);

  TrafficLedger traffic_;
};

/// The communicator of a job of one rank, whose buffers are on `device`: every call is done, or on
/// CUDA in the caller's stream, when it returns.
std::shared_ptr<Communicator> single_communicator(Device device = {});

/// Over MPI_COMM_WORLD (MPI must be initialised with MPI_THREAD_MULTIPLE). One communication thread
/// runs the calls; pairwise transfers go through persistent scratch in chunks. Collective.
std::shared_ptr<Communicator> mpi_communicator();

/// Over `host`, a communicator of host memory, for ranks whose buffers are on GPU `device`: what it
/// sends and receives is copied through host memory. Collective if making `host` is.
std::shared_ptr<Communicator> staged_communicator(std::shared_ptr<Communicator> host, int device);

/// The header_bytes() of mpi_communicator and staged_communicator.
inline constexpr int64_t mpi_header_bytes = 32;
/// The staging_bytes() of mpi_communicator in a job of `ranks` ranks.
int64_t mpi_staging_bytes(int64_t ranks);
/// The staging_bytes() of staged_communicator over it. On the host it holds, besides what `host`
/// does, a mirror of the largest buffer of a call so far, and one of the largest result that is not
/// in place (reduce_scatter's shard, exchange_v's output, a received buffer), each of this size at
/// least.
int64_t staged_staging_bytes(int64_t ranks);
inline constexpr int64_t staged_mirror_bytes = int64_t{64} << 10;

struct NcclOptions {
  double timeout_s = default_comm_timeout_s;  // a call that is the oldest for longer ends the job
  int64_t chunk_bytes = 0;  // of staging, whole blocks of 256 elements of 8 bytes; 0: by the ranks
  int min_ctas = 0;         // blocks of NCCL's kernels, which compete with those that compute;
  int max_ctas = 0;         // 0: its own choice
};

/// Over NCCL, for memory of the CUDA device `device`. Of all ranks of MPI_COMM_WORLD, each with a
/// GPU of its own, or of this one where MPI is not initialised. Every call is put on one stream of
/// high priority: `receive` and the body of run() are called at once, and what they launch takes
/// its turn there. Work::wait() lets the caller's current stream wait, not the host: who reads a
/// result there synchronises, as Tensor::to() does. Calls are made by one thread at a time. What
/// NCCL itself sends may differ from what is counted. Collective. Throws in a build without CUDA.
std::shared_ptr<Communicator> nccl_communicator(int device, const NcclOptions& options = {});

/// The version of NCCL, as 22809 for 2.28.9; 0 in a build without CUDA.
int64_t nccl_library_version();

/// The staging_bytes() of nccl_communicator in a job of `ranks` ranks.
int64_t nccl_staging_bytes(int64_t ranks, const NcclOptions& options = {});

/// Every rank's text on rank 0, in rank order; empty elsewhere. Collective.
std::vector<std::string> gather_text(Communicator& communicator, const std::string& text);

/// Bytes on the host that both take while they run, however long texts are.
int64_t text_exchange_bytes(int64_t ranks);

/// Rank 0's text, on every rank. Collective.
std::string broadcast_text(Communicator& communicator, const std::string& text);

/// Nanoseconds that the calling thread has spent in Work::wait since the process started.
int64_t waited_ns();

}  // namespace tessera::dist
