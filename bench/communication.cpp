// Measures how fast the ranks of one machine reduce and gather, compared with copies in its memory
// and with MPI's own reduce-scatter.
//
//   mpirun -n 2 bench_communication [payload MB = 128] [runs = 15]
//
// Prints one JSON object. GB/s are the bytes that all ranks together read and write, divided by the
// time of the slowest rank. Values are medians over runs; a run times each operation once. With a
// payload of P bytes on each of N ranks, a rank reads and writes these bytes:
//
//   memcpy           each rank copies its payload: P read, P written
//   ordered_reduce   exchange with additions: each rank reads N contributions of P/N and writes one
//                    sum of P/N: P + P/N. Extra copies for staging are not counted
//   mpi_reduce_scatter_block   the same reduction by the MPI library: P + P/N
//   all_gather       each rank reads and writes N-1 pieces of P/N: 2 P (N-1)/N
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "core/context.h"
#include "core/trace.h"
#include "dist/bootstrap.h"
#include "dist/fold.h"
#include "dist/mpi/mpi_check.h"

using namespace tessera;

namespace {

struct Buffers {
  Tensor payload;  // read by the copy and by the reductions
  Tensor other;    // as large as payload: the copy's destination; all_gather's buffer
  Tensor sum;      // one rank's piece of the sum
};

class Benchmark {
 public:
  Benchmark(dist::World& world, int64_t payload_bytes)
      : world_(world), piece_(payload_bytes / 4 / world.size / 256 * 256) {
    TESSERA_CHECK(piece_ <= std::numeric_limits<int>::max(),
                  "a rank's piece has {} floats, expected at most 2^31 - 1 (MPI)", piece_);
    const int64_t elements = piece_ * world.size;
    const auto buffer = [&](int64_t n) {
      Tensor x = Tensor::unallocated({n}, DType::f32);
      x.attach(world.communicator->allocate(4 * n, Category::gradients), 0);
      for (float& value : x.values<float>()) value = 1.0f;  // touch every page before timing
      return x;
    };
    buffers_ = {buffer(elements), buffer(elements), buffer(piece_)};
  }

  double payload_bytes() const { return 4.0 * static_cast<double>(piece_ * world_.size); }

  void copy() {
    std::memcpy(buffers_.other.raw(), buffers_.payload.raw(),
                static_cast<size_t>(buffers_.payload.bytes()));
  }

  void ordered_reduce() {
    const auto fold = [sum = buffers_.sum](int source, int64_t begin, const Tensor& chunk) {
      kernels::fold(current_context(sum.device()), sum.flat(begin, begin + chunk.elements()),
                    chunk, source == 0);
    };
    world_.communicator->exchange(buffers_.payload, world_.size, fold, {}).wait();
  }

  void mpi_reduce() {
    TESSERA_MPI(MPI_Reduce_scatter_block(buffers_.payload.raw(), buffers_.sum.raw(),
                                         static_cast<int>(piece_), MPI_FLOAT, MPI_SUM,
                                         MPI_COMM_WORLD));
  }

  void all_gather() { world_.communicator->all_gather(buffers_.other, {}).wait(); }

  /// Returns the seconds that the slowest rank takes.
  double time(void (Benchmark::*body)()) {
    TESSERA_MPI(MPI_Barrier(MPI_COMM_WORLD));
    const int64_t begin = trace::now_ns();
    (this->*body)();
    double seconds = 1e-9 * static_cast<double>(trace::now_ns() - begin);
    TESSERA_MPI(MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
    return seconds;
  }

 private:
  dist::World& world_;
  int64_t piece_;
  Buffers buffers_;
};

struct Subject {
  const char* name;
  void (Benchmark::*body)();
  double bytes_a_rank;
  std::vector<double> seconds{};

  double gigabytes_per_s(int ranks) {
    std::ranges::sort(seconds);
    return 1e-9 * ranks * bytes_a_rank / seconds[seconds.size() / 2];
  }
};

int measure(dist::World& world, int64_t payload_bytes, int runs) {
  Benchmark benchmark(world, payload_bytes);
  const double payload = benchmark.payload_bytes();
  const double piece = payload / world.size;
  Subject subjects[] = {
      {"memcpy", &Benchmark::copy, 2 * payload},
      {"ordered_reduce", &Benchmark::ordered_reduce, payload + piece},
      {"all_gather", &Benchmark::all_gather, 2 * (payload - piece)},
      {"mpi_reduce_scatter_block", &Benchmark::mpi_reduce, payload + piece},
  };
  for (int run = -1; run < runs; ++run) {
    for (Subject& subject : subjects) {
      const double seconds = benchmark.time(subject.body);
      if (run >= 0) subject.seconds.push_back(seconds);  // run -1 warms up
    }
  }
  if (world.rank != 0) return 0;

  double speed[4];
  std::printf("{\"ranks\": %d, \"payload_bytes\": %.0f, \"runs\": %d", world.size, payload, runs);
  for (int i = 0; i < 4; ++i) {
    speed[i] = subjects[i].gigabytes_per_s(world.size);
    std::printf(", \"%s_gb_per_s\": %.2f", subjects[i].name, speed[i]);
  }
  std::printf(", \"reduce_to_memcpy\": %.3f, \"gather_to_memcpy\": %.3f", speed[1] / speed[0],
              speed[2] / speed[0]);
  std::printf(", \"reduce_to_mpi\": %.2f}\n", speed[1] / speed[3]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dist::run(argc, argv, [&](dist::World& world) {
    const int64_t megabytes = argc > 1 ? std::atoll(argv[1]) : 128;
    const int runs = argc > 2 ? std::atoi(argv[2]) : 15;
    if (world.communicator->name() != "mpi" || megabytes < 1 || runs < 1) {
      fail_input("usage: mpirun -n RANKS bench_communication [payload MB] [runs]");
    }
    return measure(world, megabytes * 1'000'000, runs);
  });
}
