#include "apps/comm_bench/comm_measure.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>
#include <vector>

#include "apps/comm_bench/comm_bandwidth.h"
#include "core/context.h"
#include "core/cuda.h"
#include "core/trace.h"
#include "dist/fold.h"

namespace tessera::apps {
namespace {

using dist::Collective;

constexpr int64_t root = 0;

// value_at() repeats after this many indices, and also after this many ranks.
constexpr int64_t period = 101;

// Returns element `index` of the input of rank `source`: an integer from 1 to 101. f32, bf16 and
// f16 represent these integers exactly. 0 never occurs in the input, so a missing write shows.
float value_at(int64_t source, int64_t index) {
  return static_cast<float>((7 * source + 3 * index) % period + 1);
}

/// at(index) is the sum of value_at(rank, index) over all ranks. The sums are exact in f32 for up
/// to 166,000 ranks, because they are integers below 2^24.
class Sums {
 public:
  explicit Sums(int64_t ranks) : values_(period) {
    for (int64_t index = 0; index < period; ++index) {
      for (int64_t r = 0; r < ranks; ++r) values_[static_cast<size_t>(index)] += value_at(r, index);
    }
  }
  float at(int64_t index) const { return values_[static_cast<size_t>(index % period)]; }

 private:
  std::vector<float> values_;
};

// Returns the number of elements that rank `source` sends to rank `to` in exchange_v. The number is
// `piece`, with two exceptions: modulo the number of ranks, rank source + 1 gets half a piece more,
// and rank source + 2 gets half a piece less. With fewer than three ranks, pieces are equal.
int64_t count_between(int64_t source, int64_t to, int64_t ranks, int64_t piece) {
  const int64_t distance = (to - source + ranks) % ranks;
  if (ranks < 3 || distance == 0 || distance > 2) return piece;
  return distance == 1 ? piece + piece / 2 : piece - piece / 2;
}

std::vector<int64_t> counts_from(int64_t source, int64_t ranks, int64_t piece) {
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < ranks; ++r) counts.push_back(count_between(source, r, ranks, piece));
  return counts;
}

dist::ExchangeCounts exchange_counts(int64_t rank, int64_t ranks, int64_t piece) {
  dist::ExchangeCounts counts{.send = counts_from(rank, ranks, piece)};
  for (int64_t source = 0; source < ranks; ++source) {
    counts.receive.push_back(count_between(source, rank, ranks, piece));
  }
  return counts;
}

// Returns the number of elements of each rank's piece in all_gather_v.
std::vector<int64_t> gather_counts(int64_t ranks, int64_t piece) {
  return counts_from(0, ranks, piece);
}

int64_t sum_before(const std::vector<int64_t>& counts, int64_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

/// Sets each element i of x to value(i).
template <class Value>
void write(const Tensor& x, Value&& value) {
  const Tensor host = x.device().is_cpu() ? x
                                          : Tensor::empty(x.shape(), x.dtype(), Device{},
                                                          Category::workspace);
  visit_float(x.dtype(), "comm_bench", [&]<class T>() {
    T* const out = host.data<T>();
    parallel_ranges(x.elements(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = rounded<T>(value(i));
    });
  });
  x.copy_from(host);
}

/// Returns the number of elements i of x that differ from value(i).
template <class Value>
int64_t differing(const Tensor& x, Value&& value) {
  const Tensor host = x.to_host();
  std::atomic<int64_t> count = 0;
  visit_float(x.dtype(), "comm_bench", [&]<class T>() {
    const T* const in = host.data<T>();
    parallel_ranges(x.elements(), 4, [&](int64_t begin, int64_t end) {
      int64_t differences = 0;
      for (int64_t i = begin; i < end; ++i) differences += float(in[i]) != value(i);
      count += differences;
    });
  });
  return count;
}

}  // namespace

CommMeasurement::CommMeasurement(dist::Communicator& communicator, const CommPlan& plan)
    : communicator_(communicator),
      plan_(plan),
      counts_(communicator.size() * (1 + plan.iterations), DType::i64, communicator) {
  const auto buffer = [&](int64_t elements, DType dtype) {
    Tensor x = Tensor::unallocated({elements}, dtype);
    x.attach(communicator.allocate(x.bytes(), Category::communication), 0);
    return x;
  };
  const int64_t elements = plan.max_bytes / dtype_size(plan.dtype);
  largest_ = {.all = buffer(elements, plan.dtype),
              .arrived = buffer(elements, plan.dtype),
              .piece = buffer(elements / communicator.size(), DType::f32)};
}

dist::Work CommMeasurement::start(Collective collective, const Buffers& buffers) {
  const int ranks = communicator_.size();
  const int rank = communicator_.rank();
  const int64_t piece = buffers.piece.elements();
  switch (collective) {
    case Collective::exchange:
      return communicator_.exchange(
          buffers.all, ranks,
          [sum = buffers.piece](int source, int64_t begin, const Tensor& chunk) {
            kernels::fold(current_context(sum.device()),
                          sum.flat(begin, begin + chunk.elements()), chunk, source == 0);
          },
          {});
    case Collective::reduce_scatter:
      return communicator_.reduce_scatter(buffers.piece, buffers.all, ranks, {});
    case Collective::all_gather: return communicator_.all_gather(buffers.all, {});
    case Collective::all_reduce: return communicator_.all_reduce(buffers.all, {});
    case Collective::broadcast: return communicator_.broadcast(buffers.all, root, {});
    case Collective::exchange_v:
      return communicator_.exchange_v(buffers.all, buffers.arrived,
                                      exchange_counts(rank, ranks, piece), {});
    case Collective::all_gather_v:
      return communicator_.all_gather_v(buffers.all, gather_counts(ranks, piece), {});
    case Collective::send_receive:
      return communicator_.send_receive({buffers.all, (rank + 1) % ranks},
                                        {buffers.arrived, (rank + ranks - 1) % ranks}, {});
    case Collective::barrier:
    case Collective::split: break;
  }
  fail("comm_bench: a {} is not measured", dist::collective_name(collective));
}

int64_t CommMeasurement::time(Collective collective, const Buffers& buffers) {
  communicator_.barrier();
  const int64_t begin = trace::now_ns();
  start(collective, buffers).wait();
  // On CUDA, Work::wait() makes only the current stream wait. The host must wait for the device
  // before it reads the clock.
  const Device device = communicator_.device();
  if (!device.is_cpu()) cuda::synchronize(device.index);
  return std::max<int64_t>(1, trace::now_ns() - begin);
}

void CommMeasurement::prepare(Collective collective, const Buffers& buffers) {
  const int64_t rank = communicator_.rank();
  const int64_t piece = buffers.piece.elements();
  const std::vector<int64_t> gathered = gather_counts(communicator_.size(), piece);
  const int64_t begin = sum_before(gathered, rank);
  const int64_t end = sum_before(gathered, rank + 1);
  // Elements that must arrive from other ranks begin as 0, so that a missing element shows.
  write(buffers.piece, [](int64_t) { return 0.0f; });
  write(buffers.arrived, [](int64_t) { return 0.0f; });
  write(buffers.all, [&](int64_t i) {
    if (collective == Collective::all_gather && i / piece != rank) return 0.0f;
    if (collective == Collective::all_gather_v && (i < begin || i >= end)) return 0.0f;
    if (collective == Collective::broadcast && rank != root) return 0.0f;
    return value_at(rank, i);
  });
}

// Counts wrong elements after an exchange_v. From each source, this rank must have received the
// part of the source's buffer that is for this rank.
int64_t CommMeasurement::wrong_arrivals(const Buffers& buffers) {
  const int64_t ranks = communicator_.size();
  const int64_t rank = communicator_.rank();
  const int64_t piece = buffers.piece.elements();
  const dist::ExchangeCounts counts = exchange_counts(rank, ranks, piece);
  int64_t count = 0;
  int64_t begin = 0;
  for (int64_t source = 0; source < ranks; ++source) {
    const int64_t elements = counts.receive[static_cast<size_t>(source)];
    const int64_t first = sum_before(counts_from(source, ranks, piece), rank);
    count += differing(buffers.arrived.flat(begin, begin + elements),
                       [&](int64_t i) { return value_at(source, first + i); });
    begin += elements;
  }
  return count;
}

int64_t CommMeasurement::wrong(Collective collective, const Buffers& buffers) {
  const int64_t piece = buffers.piece.elements();
  const int64_t ranks = communicator_.size();
  const int64_t before = (communicator_.rank() + ranks - 1) % ranks;
  const Sums sums(ranks);
  switch (collective) {
    case Collective::exchange:
    case Collective::reduce_scatter: {
      const int64_t first = piece * communicator_.rank();
      return differing(buffers.piece, [&](int64_t i) { return sums.at(first + i); });
    }
    case Collective::all_gather:
      return differing(buffers.all, [&](int64_t i) { return value_at(i / piece, i); });
    case Collective::all_reduce:
      return differing(buffers.all, [&](int64_t i) { return sums.at(i); });
    case Collective::broadcast:
      return differing(buffers.all, [&](int64_t i) { return value_at(root, i); });
    case Collective::exchange_v: return wrong_arrivals(buffers);
    case Collective::all_gather_v: {
      const std::vector<int64_t> counts = gather_counts(ranks, piece);
      int64_t count = 0;
      for (int64_t source = 0; source < ranks; ++source) {
        const int64_t begin = sum_before(counts, source);
        count += differing(buffers.all.flat(begin, sum_before(counts, source + 1)),
                           [&](int64_t i) { return value_at(source, begin + i); });
      }
      return count;
    }
    case Collective::send_receive:
      return differing(buffers.arrived, [&](int64_t i) { return value_at(before, i); });
    case Collective::barrier:
    case Collective::split: break;
  }
  return 0;
}

CommResult CommMeasurement::measure(Collective collective, int64_t bytes) {
  const int64_t ranks = communicator_.size();
  const int64_t elements = bytes / dtype_size(plan_.dtype);
  TESSERA_CHECK(bytes % (ranks * dtype_size(plan_.dtype)) == 0 && bytes <= plan_.max_bytes,
                "comm_bench: {} bytes, expected {} equal pieces of {} and at most {}", bytes, ranks,
                dtype_name(plan_.dtype), plan_.max_bytes);
  const Buffers buffers{.all = largest_.all.flat(0, elements),
                        .arrived = largest_.arrived.flat(0, elements),
                        .piece = largest_.piece.flat(0, elements / ranks)};

  prepare(collective, buffers);  // writes all buffers, so that no page fault is timed
  const int64_t columns = 1 + plan_.iterations;
  int64_t* const own = counts_.data<int64_t>() + communicator_.rank() * columns;
  // An all-reduce works in place, so repeated calls make the values grow, eventually to infinity.
  // The time of a call does not depend on the values. Results are checked after one more call, for
  // which the inputs are written again.
  for (int64_t i = 0; i < plan_.warmup; ++i) time(collective, buffers);
  for (int64_t i = 0; i < plan_.iterations; ++i) own[1 + i] = time(collective, buffers);
  prepare(collective, buffers);
  time(collective, buffers);
  own[0] = wrong(collective, buffers);

  counts_.all_gather(communicator_, dist::Traffic::other).wait();
  const auto count = [&](int64_t rank, int64_t column) {
    return counts_.data<int64_t>()[rank * columns + column];
  };
  CommResult result{.collective = collective, .bytes = bytes};
  std::vector<double> seconds(static_cast<size_t>(plan_.iterations));
  for (int64_t r = 0; r < ranks; ++r) {
    result.wrong += count(r, 0);
    for (int64_t i = 0; i < plan_.iterations; ++i) {
      double& slowest = seconds[static_cast<size_t>(i)];
      slowest = std::max(slowest, 1e-9 * static_cast<double>(count(r, 1 + i)));
    }
  }
  result.seconds = median(std::move(seconds));
  return result;
}

}  // namespace tessera::apps
