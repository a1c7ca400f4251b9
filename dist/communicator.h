// Collectives and point-to-point transfers between the ranks of a job or of a group. Every call
// except barrier and split returns Work to wait for, because the call may still be running. Calls
// run in the order in which they were made, except that all_gather_host over NCCL does not wait for
// earlier calls. All ranks must make the same collectives in the same order. A point-to-point
// transfer is called only by the ranks that send or receive its data.
//
//   Work work = communicator.all_gather(bucket, {Traffic::parameters, 3});
//   ... compute ...
//   work.wait();                                    // rethrows the collective's error
//
//   auto half = communicator.split(rank % 2, rank, "half");     // a group of every second rank
//
// "Piece r" of a buffer of N * n elements is [r * n, (r + 1) * n), where N is the number of ranks.
// Bytes that each rank sends, where `contributors` and `root` are arguments of the call:
//
//   exchange, reduce_scatter      (N-1) pieces if rank < contributors, else nothing
//   all_gather, all_gather_host   (N-1) times its own piece
//   all_reduce                    (N-1) times the buffer
//   broadcast                     (N-1) times the buffer if rank == root, else nothing
//   exchange_v                    the input without the rank's own piece
//   all_gather_v                  (N-1) times its own piece
//   send, send_receive            the outgoing buffer, nothing if it goes to the rank itself
//   barrier, receive, split       nothing
//
// Over MPI, a call first sends a header to every other rank, or to each peer of a transfer. If the
// headers show that ranks make different calls, these calls fail, and the error names both calls.
//
// If the work of a call fails, the communicator becomes unusable: later calls fail too, usually
// with the same error. A call that throws because of a wrong argument leaves the communicator
// usable. Over single_communicator(), the call itself throws if its work fails, and the
// communicator stays usable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "core/trace.h"
#include "dist/traffic.h"

namespace tessera::dist {

/// A handle of a call in flight. Copies refer to the same call.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;  // rethrows the collective's error
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

/// Describes a call. The traffic ledger counts bytes by `purpose`, and the trace shows the bucket.
/// All ranks must give equal values.
struct Call {
  Traffic purpose = Traffic::other;
  int64_t bucket = -1;
  /// Identifies the set of parameters that the bucket belongs to; not a group of ranks. Each set
  /// numbers its own buckets from 0.
  int64_t group = 0;

  std::string text() const;  // "gradients, bucket 3", with " of group 7" if `group` is not 0
  /// Returns the bucket in the form that the trace records.
  trace::BucketPlace place(trace::Station station = trace::Station::none) const {
    return {bucket, group, station};
  }
  /// Returns the station (see trace::Station) that the trace records with this call: `exchange` if
  /// `purpose` is Traffic::gradients, else `none`.
  trace::Station station() const {
    return purpose == Traffic::gradients ? trace::Station::exchange : trace::Station::none;
  }
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

/// Default time limit of a collective. The limit must exceed the longest time that one rank
/// computes, evaluates or saves while other ranks wait.
inline constexpr double default_comm_timeout_s = 600;

class Communicator {
 public:
  /// A function that receives a chunk: elements [begin, begin + chunk.elements()) of this rank's
  /// piece, as sent by `source`. `begin` and all lengths but the last are multiples of 256
  /// elements. Over MPI the function runs on the communication thread, not on the caller's thread.
  /// The function must own everything that it uses: it may run until wait() returns, even while an
  /// exception unwinds the caller.
  using Receive = std::function<void(int source, int64_t begin, const Tensor& chunk)>;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "mpi", "nccl", "single"
  /// The name that split() was given; empty for the communicator of all ranks.
  virtual std::string group() const { return ""; }

  /// Returns a new communicator of the ranks that give an equal `color`, in ascending order of
  /// `key` and then of rank; nullptr for a negative color. The new communicator has its own
  /// staging, traffic ledger and, over MPI, thread. So calls of two groups may be in flight at
  /// the same time. `group` names the new communicator in errors and traces. split() is collective
  /// over this communicator and returns when all ranks have called split().
  ///
  /// Before the ranks of a group destroy its communicator, they must call barrier(). Over MPI,
  /// Work::wait() for all their calls is enough. Over NCCL, Work::wait() makes only a stream wait.
  /// So the destructor waits on the host for each call for which Work::wait() was called, and
  /// aborts all other calls. But when a call has ended on this rank, its data may still be on the
  /// way to a rank on another host. Without a barrier, the destructor drops these data. The
  /// destructor does not wait if a call has failed, or if an exception destroys the communicator.
  virtual std::shared_ptr<Communicator> split(int color, int key, const std::string& group) = 0;

  /// The device on which allocate() allocates and the ranks compute.
  virtual Device device() const { return {}; }

  /// Allocates memory of device(). Over NCCL, the transport can use this memory directly, but an
  /// allocation takes milliseconds, so allocate only long-lived buffers in this way.
  virtual std::shared_ptr<Storage> allocate(int64_t bytes, Category category) = 0;

  /// Moves the data of an ordered reduction. Sends piece r of `input` to rank r, and passes the
  /// pieces that arrive to `receive`, in chunks. For each element, `receive` gets the contributions
  /// in ascending order of source, including this rank's own contribution (without a copy). Only
  /// ranks < contributors send.
  virtual Work exchange(const Tensor& input, int contributors, Receive receive, Call call) = 0;

  /// shard (f32) = the sum of piece rank() of `input` (f32, bf16 or f16) over ranks < contributors,
  /// added in f32. The order of addition depends on the transport and is the same in every run.
  virtual Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                              Call call) = 0;

  /// Gathers every rank's piece of `buffer`, in place: afterwards all ranks have all pieces.
  /// Moves bytes, so any dtype works.
  virtual Work all_gather(const Tensor& buffer, Call call) = 0;

  /// all_gather of a buffer that is in host memory, even if device() is a GPU.
  /// Over NCCL this call waits neither for the GPU nor for earlier calls, and is done when it
  /// returns; it throws if a piece has 2 GiB or more.
  virtual Work all_gather_host(const Tensor& buffer, Call call) { return all_gather(buffer, call); }

  /// Replaces `buffer` (f32 or i64) with its sum over ranks, added in rank order.
  virtual Work all_reduce(const Tensor& buffer, Call call) = 0;

  virtual Work broadcast(const Tensor& buffer, int root, Call call) = 0;

  /// An all-to-all of pieces of any length and dtype (MPI_Alltoallv). `input` holds the pieces for
  /// ranks 0, 1, ... one after the other; the piece for rank r has counts.send[r] elements.
  /// `output` receives the pieces from ranks 0, 1, ... one after the other; the piece from rank s
  /// has counts.receive[s] elements. The buffers must not overlap. Over MPI, both ranks throw if a
  /// receiver expects a different number of elements than its sender sends.
  virtual Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                          Call call) = 0;

  /// all_gather with pieces of any length (MPI_Allgatherv), in place: `buffer` holds the pieces of
  /// ranks 0, 1, ... one after the other; the piece of rank r has counts[r] elements. All ranks
  /// must give equal counts.
  virtual Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) = 0;

  /// Sends one buffer and receives another at the same time, for example in each round of a ring.
  /// Two ranks that send to each other at the same time must use this call. If both called send and
  /// then receive, the calls would throw over MPI, and could hang over NCCL. Each peer must make
  /// the matching call, with a buffer of the same length and dtype. A rank may be its own peer in
  /// both directions.
  virtual Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) = 0;
  Work send(const Tensor& buffer, int to, Call call) {
    return send_receive({buffer, to}, {}, call);
  }
  Work receive(const Tensor& buffer, int from, Call call) {
    return send_receive({}, {buffer, from}, call);
  }

  /// Runs `body` in order with the communicator's calls. So `body` can use the result of an earlier
  /// collective, and the caller need not wait for this collective. Sends nothing, and the ledger
  /// does not count run() itself.
  ///  - `body` may make calls, but must not wait for them.
  ///  - Over MPI, `body` runs on the communication thread. Calls that `body` makes run after `body`
  ///    has returned. If `body` or a Receive function waits for an unfinished call of this
  ///    communicator, the wait throws, because the communication thread cannot wait for itself. The
  ///    communicator is unusable afterwards.
  ///  - With staged_communicator, a call that `body` makes with a buffer in GPU memory throws.
  virtual Work run(std::function<void()> body) = 0;

  /// Returns when every rank has called barrier() and earlier calls are done on all ranks.
  virtual void barrier() = 0;

  /// True if calls can be captured in a CUDA graph: all of their work runs on the device.
  virtual bool captures() const { return false; }
  /// Captures the launches of `body`, including its calls of this communicator, in a graph
  /// (cuda::Graph). Returns a function that launches the graph.
  ///  - In `body`, a call of another NCCL communicator throws.
  ///  - In `body`, all_gather_host throws, because no launch could repeat it.
  ///  - `body` must not wait for calls made before the capture.
  ///  - Until capture() returns, no other thread may make calls of this communicator.
  ///  - Every rank must launch the graph at the same place among its other calls.
  ///  - A launch runs after all earlier calls, and ends when all captured calls are done.
  ///  - Each launch counts as traffic; the capture does not.
  ///  - Destroy the function before the communicator: over NCCL, the communicator's destructor
  ///    waits until graphs with captured calls are destroyed.
  virtual std::function<void()> capture(const std::function<void()>& body);

  /// Bytes of staging memory on device(), shared by all calls (Category::communication).
  virtual int64_t staging_bytes() const = 0;

  /// Bytes of the header that a call sends to every other rank, or to each peer of a transfer.
  /// Header bytes count as Traffic::headers; in calls with purpose Traffic::other, they count as
  /// Traffic::other.
  virtual int64_t header_bytes() const { return 0; }

  /// Over MPI, a call throws when no data has moved for this many seconds. The error names the
  /// ranks that the call waits for. Time in which this process itself is stopped does not count.
  /// May be called from any thread. Other communicators ignore the value: a single rank has no one
  /// to wait for, and NCCL's watchdog uses NcclOptions::timeout_s.
  virtual void set_timeout(double) {}

  virtual TrafficLedger& traffic() { return traffic_; }

 protected:
  /// Implements capture() for communicators whose calls only launch work on streams.
  std::function<void()> capture_ordered(const std::function<void()>& body);

  TrafficLedger traffic_;
};

/// Creates the communicator of a job of one rank, whose buffers are on `device`. On the CPU, the
/// work of a call is done when the call returns. On CUDA, the work has then been launched in the
/// caller's stream, and barrier() does not wait for the work.
std::shared_ptr<Communicator> single_communicator(Device device = {});

/// Creates the communicator over MPI_COMM_WORLD (MPI must be initialised with MPI_THREAD_MULTIPLE).
/// One communication thread runs the calls. Reductions receive chunks in staging memory, which is
/// allocated once. Collective.
std::shared_ptr<Communicator> mpi_communicator();

/// Creates a communicator for ranks whose buffers are on GPU `device`. It copies the buffers to
/// host memory and back, and sends over `host`, a communicator of host memory. Not collective.
std::shared_ptr<Communicator> staged_communicator(std::shared_ptr<Communicator> host, int device);

/// The header_bytes() of mpi_communicator and staged_communicator.
inline constexpr int64_t mpi_header_bytes = 32;
/// The staging_bytes() of mpi_communicator in a job of `ranks` ranks.
int64_t mpi_staging_bytes(int64_t ranks);
/// The staging_bytes() of staged_communicator over mpi_communicator, in a job of `ranks` ranks.
int64_t staged_staging_bytes(int64_t ranks);
/// The smallest size of a "mirror", a host buffer of staged_communicator. There are two mirrors:
/// one for a call's input or in-place buffer, and one for a result that is not in place
/// (reduce_scatter's shard, exchange_v's output or a received buffer). A mirror is allocated at its
/// first use, and grows to the largest tensor that it has held.
inline constexpr int64_t staged_mirror_bytes = int64_t{64} << 10;

struct NcclOptions {
  /// The job ends if one call has been the oldest unfinished call for longer than this time. The
  /// time limit for connecting the ranks is the same, but at least 10 s.
  double timeout_s = default_comm_timeout_s;
  /// Size of a chunk of staging memory in bytes, a multiple of 256 * 8; 0: a default that depends
  /// on the number of ranks. Each rank's staging has one chunk for each rank of the communicator.
  int64_t chunk_bytes = 0;
  // Bounds on the number of thread blocks (CTAs) of an NCCL kernel. The blocks take SMs from
  // compute kernels.
  int min_ctas = 0;  // 0: NCCL chooses
  int max_ctas = 0;  // 0: NCCL chooses
};

/// Creates the communicator over NCCL, for memory of the CUDA device `device`. Connects all ranks
/// of MPI_COMM_WORLD, each with a GPU of its own, or this rank alone if MPI is not initialised.
/// Collective. Throws in a build without CUDA.
///  - Every call but all_gather_host is launched on the communicator's stream, which has high
///    priority.
///  - `receive` and the body of run() are called on the caller's thread, before the call returns.
///    Their launches go to the communicator's stream.
///  - Work::wait() makes the caller's current stream wait, not the host. To read a result on the
///    host, synchronise, as Tensor::to() does.
///  - Only one thread at a time may make calls.
///  - The bytes that NCCL itself sends may differ from the bytes counted.
std::shared_ptr<Communicator> nccl_communicator(int device, const NcclOptions& options = {});

/// The version of NCCL: 22809 is 2.28.9. 0 in a build without CUDA.
int64_t nccl_library_version();

/// The staging_bytes() of nccl_communicator in a job of `ranks` ranks.
int64_t nccl_staging_bytes(int64_t ranks, const NcclOptions& options = {});

/// On rank 0, returns the texts of all ranks, in rank order; on other ranks, returns nothing.
/// Collective.
std::vector<std::string> gather_text(Communicator& communicator, const std::string& text);

/// Bytes of host memory that gather_text and broadcast_text take while they run, besides the texts
/// themselves. This number does not depend on the lengths of the texts.
int64_t text_exchange_bytes(int64_t ranks);

/// Returns rank 0's text on every rank. Collective.
std::string broadcast_text(Communicator& communicator, const std::string& text);

/// Nanoseconds that the calling thread has been blocked in waits for calls since the process
/// started. Over NCCL only all_gather_host counts: Work::wait does not block the host, and barrier
/// and split block it without being counted.
int64_t waited_ns();

}  // namespace tessera::dist
