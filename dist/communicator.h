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
//   exchange_v                 the input except for the own piece
//   all_gather_v               (N-1) times the own piece
//   send, send_receive         the outgoing buffer, nothing if it goes to the rank itself
//   barrier, receive, split    nothing
//
// Over MPI a header goes before the data, to each other rank or to the peer of a transfer. By it,
// ranks that make different calls notice: their calls throw, and the error names both.
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

/// A handle of a call in flight. Copies refer to the same call.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;  // rethrows what the collective threw
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

/// The purpose of a call: the ledger counts by purpose, the trace shows the bucket. Every rank
/// gives the same values.
struct Call {
  Traffic purpose = Traffic::other;
  int64_t bucket = -1;
  int64_t group = 0;  // tells apart sets of parameters that each number their own buckets

  std::string text() const;  // "gradients, bucket 3", with " of group 7" if the group is not 0
};

/// For exchange_v: elements that this rank sends to each rank, and receives from each.
struct ExchangeCounts {
  std::vector<int64_t> send = {};
  std::vector<int64_t> receive = {};
};

/// One direction of a point-to-point transfer: the buffer, and the rank at the other end.
struct Transfer {
  Tensor buffer = {};
  int peer = -1;  // -1: nothing moves in this direction
};

/// Must be longer than any rank computes, evaluates or saves while the others wait for it.
inline constexpr double default_comm_timeout_s = 600;

class Communicator {
 public:
  /// Called with elements [begin, begin + chunk.elements()) of this rank's piece as `source` sent
  /// them; over MPI on the communication thread, not on the caller's. `begin` is a multiple of 256,
  /// and so is the length of every chunk but the last. The function must own what it uses: it may
  /// run until wait() returns, also while an exception unwinds the caller.
  using Receive = std::function<void(int source, int64_t begin, const Tensor& chunk)>;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "mpi", "nccl", "single"
  /// The name that split() was given; empty for the communicator of all ranks.
  virtual std::string group() const { return ""; }

  /// A new communicator of the ranks that give the same `color`, in ascending order of `key` and
  /// then of rank; nullptr for a negative color. It has its own staging, traffic ledger and, over
  /// MPI, thread, so that calls of two groups may be in flight at once. `group` names it in errors
  /// and traces. Collective over this communicator; returns when all ranks have called it.
  virtual std::shared_ptr<Communicator> split(int color, int key, const std::string& group) = 0;

  /// The device on which allocate() allocates and the ranks compute.
  virtual Device device() const { return {}; }

  /// Allocates memory of device() that the transport can use directly; for long-lived flat buffers.
  virtual std::shared_ptr<Storage> allocate(int64_t bytes, Category category) = 0;

  /// The transport of the ordered reduction: sends piece r of `input` to rank r, and passes the
  /// pieces that arrive for this rank to `receive`, in chunks. Each element's contributions come in
  /// ascending order of source, including this rank's own (without a copy). Only ranks <
  /// contributors send.
  virtual Work exchange(const Tensor& input, int contributors, Receive receive, Call call) = 0;

  /// shard (f32) = the sum over ranks < contributors of their piece `rank()` (f32, bf16 or f16), in
  /// f32. The order of addition depends on the transport and is equal from run to run.
  virtual Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                              Call call) = 0;

  /// Gathers every rank's piece of `buffer`, in place: afterwards all ranks have all pieces.
  /// Moves bytes, so any dtype works.
  virtual Work all_gather(const Tensor& buffer, Call call) = 0;

  /// all_gather of host memory, on whatever device the ranks compute: for values that the host
  /// knows. Over NCCL it does not wait for the GPU nor for earlier calls, and is done when it
  /// returns.
  virtual Work all_gather_host(const Tensor& buffer, Call call) { return all_gather(buffer, call); }

  /// Replaces `buffer` (f32 or i64) with its sum over ranks, added in rank order.
  virtual Work all_reduce(const Tensor& buffer, Call call) = 0;

  virtual Work broadcast(const Tensor& buffer, int root, Call call) = 0;

  /// An all-to-all of pieces of any length (MPI_Alltoallv). `input` holds the pieces for ranks 0,
  /// 1, ... one after the other, of counts.send[r] elements each; `output` receives the pieces from
  /// ranks 0, 1, ... one after the other, of counts.receive[s] elements each. Any dtype; the
  /// buffers must not overlap. If a rank expects another count than its peer sends, both throw over
  /// MPI.
  virtual Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                          Call call) = 0;

  /// all_gather with pieces of any length (MPI_Allgatherv), in place: `buffer` holds the pieces of
  /// rank 0, 1, ... one after the other, of counts[r] elements each. Every rank gives the same
  /// counts.
  virtual Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) = 0;

  /// Sends one buffer and receives another at the same time, as each step round a ring does: if two
  /// ranks each sent first and received afterwards, they would wait for each other. The peer makes
  /// the matching call, with a buffer of as many bytes. A rank may be its own peer in both
  /// directions.
  virtual Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) = 0;
  Work send(const Tensor& buffer, int to, Call call) {
    return send_receive({buffer, to}, {}, call);
  }
  Work receive(const Tensor& buffer, int from, Call call) {
    return send_receive({}, {buffer, from}, call);
  }

  /// Runs `body` where the communicator runs, in order with its calls: for computing on the result
  /// of a collective without waiting for it. Sends nothing, and the ledger does not count it. Over
  /// MPI, `body` may make calls but must not wait for them, since they run after it: waiting
  /// throws, as in Receive, and fails the communicator.
  virtual Work run(std::function<void()> body) = 0;

  /// Returns when every rank has called it and earlier calls are done.
  virtual void barrier() = 0;

  /// True if calls can be captured in a CUDA graph: all of their work runs on the device.
  virtual bool captures() const { return false; }
  /// Captures what `body` launches, its calls of this communicator included, in a graph
  /// (cuda::Graph). In it a call of another NCCL communicator throws. The returned function
  /// launches the graph; every rank must launch it at the same place among its other calls. Destroy
  /// the function before the communicator: NCCL's destructor waits for graphs with captured calls.
  /// `body` must not wait for calls made before the capture. A launch runs after all calls made
  /// before it and ends when all calls of `body` are done. Each launch counts as traffic; capturing
  /// does not.
  virtual std::function<void()> capture(const std::function<void()>& body);

  /// Bytes of staging that the transport holds, shared by all calls (Category::communication).
  virtual int64_t staging_bytes() const = 0;

  /// Bytes that a call sends besides its data to each other rank, or to each peer of a transfer.
  /// They count as Traffic::headers, or as Traffic::other in calls with that purpose.
  virtual int64_t header_bytes() const { return 0; }

  /// Over MPI, a collective throws when nothing has moved for this many seconds, and says which
  /// rank has not come. Time in which this process itself is stopped does not count. Callable from
  /// any thread. Other communicators ignore it: a single rank waits for nobody, and NCCL's watchdog
  /// uses NcclOptions::timeout_s.
  virtual void set_timeout(double) {}

  virtual TrafficLedger& traffic() { return traffic_; }

 protected:
  /// Implements capture() for a `body` that itself orders its launches and calls by events.
  std::function<void()> capture_ordered(const std::function<void()>& body);

  TrafficLedger traffic_;
};

/// The communicator of a job of one rank, whose buffers are on `device`. When a call returns, it is
/// done; on CUDA it has been launched in the caller's stream.
std::shared_ptr<Communicator> single_communicator(Device device = {});

/// The communicator over MPI_COMM_WORLD (MPI must be initialised with MPI_THREAD_MULTIPLE). One
/// communication thread runs the calls; reductions pass through staging that is allocated once, in
/// chunks. Collective.
std::shared_ptr<Communicator> mpi_communicator();

/// A communicator for ranks whose buffers are on GPU `device`: it copies them to host memory and
/// back, and sends over `host`, a communicator of host memory. Not a collective itself.
std::shared_ptr<Communicator> staged_communicator(std::shared_ptr<Communicator> host, int device);

/// The header_bytes() of mpi_communicator and staged_communicator.
inline constexpr int64_t mpi_header_bytes = 32;
/// The staging_bytes() of mpi_communicator in a job of `ranks` ranks.
int64_t mpi_staging_bytes(int64_t ranks);
/// The staging_bytes() of staged_communicator over mpi_communicator, in a job of `ranks` ranks.
int64_t staged_staging_bytes(int64_t ranks);
/// On the host, staged_communicator also holds a mirror of the largest buffer of a call so far, and
/// one of the largest result that is not in place (reduce_scatter's shard, exchange_v's output, a
/// received buffer). This is the least size of each mirror.
inline constexpr int64_t staged_mirror_bytes = int64_t{64} << 10;

struct NcclOptions {
  double timeout_s = default_comm_timeout_s;  // a call that is the oldest for longer ends the job
  int64_t chunk_bytes = 0;  // of staging, a multiple of 256 * 8; 0: chosen by the number of ranks
  int min_ctas = 0;         // bounds on the thread blocks of NCCL's kernels, which take SMs from
  int max_ctas = 0;         // compute kernels; 0: NCCL chooses
};

/// The communicator over NCCL, for memory of the CUDA device `device`. Connects all ranks of
/// MPI_COMM_WORLD, each with a GPU of its own, or this rank alone if MPI is not initialised. Every
/// call is launched on one stream of high priority. `receive` and the body of run() are called on
/// the caller's thread at once, and their launches go to that stream. Work::wait() makes the
/// caller's current stream wait, not the host: to read a result on the host, synchronise, as
/// Tensor::to() does. Only one thread at a time may make calls. What NCCL itself sends may differ
/// from the bytes counted. Collective. Throws in a build without CUDA.
std::shared_ptr<Communicator> nccl_communicator(int device, const NcclOptions& options = {});

/// The version of NCCL: 22809 is 2.28.9. 0 in a build without CUDA.
int64_t nccl_library_version();

/// The staging_bytes() of nccl_communicator in a job of `ranks` ranks.
int64_t nccl_staging_bytes(int64_t ranks, const NcclOptions& options = {});

/// Returns every rank's text on rank 0, in rank order, and nothing on other ranks. Collective.
std::vector<std::string> gather_text(Communicator& communicator, const std::string& text);

/// Bytes of host memory that gather_text and broadcast_text take while they run, however long the
/// texts are.
int64_t text_exchange_bytes(int64_t ranks);

/// Returns rank 0's text on every rank. Collective.
std::string broadcast_text(Communicator& communicator, const std::string& text);

/// Nanoseconds that the calling thread has spent in Work::wait since the process started.
int64_t waited_ns();

}  // namespace tessera::dist
