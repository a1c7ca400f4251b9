// Times collectives and checks their results. All ranks make the same calls.
//
//   CommMeasurement measurement(*world.communicator, {.dtype = DType::f32, .max_bytes = 1 << 20});
//   CommResult result = measurement.measure(dist::Collective::all_gather, 4096);
//
// A call is timed until it is done; on CUDA, until the device is done. The time of a call is the
// time of the slowest rank. An exchange (an all-to-all) is followed by the f32 additions that make
// it an ordered reduction. These additions are timed too, because a reduce-scatter, with which
// exchange is compared, also adds.
#pragma once

#include <cstdint>

#include "dist/communicator.h"
#include "dist/host_buffer.h"

namespace tessera::apps {

struct CommPlan {
  DType dtype = DType::f32;  // f32, bf16 or f16
  int64_t max_bytes = 0;     // size of a rank's largest buffer
  int64_t iterations = 20;
  int64_t warmup = 5;
};

struct CommResult {
  dist::Collective collective = dist::Collective::barrier;
  int64_t bytes = 0;   // size of a rank's buffer
  double seconds = 0;  // median time of a call
  int64_t wrong = 0;   // wrong elements on all ranks, after one more, untimed call
};

class CommMeasurement {
 public:
  /// Allocates the buffers. Collective.
  CommMeasurement(dist::Communicator& communicator, const CommPlan& plan);

  /// Measures a collective on buffers of `bytes` bytes, at most the plan's max_bytes. `bytes` must
  /// be a multiple of the number of ranks times the size of an element. A buffer of N * n elements
  /// has N pieces, one for each rank. The pieces have n elements each, except that exchange_v and
  /// all_gather_v use pieces of different sizes if N is at least 3 and n at least 2. A barrier and
  /// a split cannot be measured. all_reduce needs f32.
  /// send_receive sends the buffer to the next rank of a ring. Collective; all ranks get the same
  /// result.
  CommResult measure(dist::Collective collective, int64_t bytes);

 private:
  /// The tensors that a call reads and writes, for N ranks and pieces of n elements.
  struct Buffers {
    Tensor all;      // [N * n], of the plan's dtype: the input, or the buffer of in-place calls
    Tensor arrived;  // [N * n], of the plan's dtype: the output of exchange_v and send_receive
    Tensor piece;    // [n], f32: this rank's piece of the sum over all ranks
  };

  dist::Work start(dist::Collective collective, const Buffers& buffers);
  int64_t time(dist::Collective collective, const Buffers& buffers);  // ns
  void prepare(dist::Collective collective, const Buffers& buffers);
  int64_t wrong(dist::Collective collective, const Buffers& buffers);
  int64_t wrong_arrivals(const Buffers& buffers);

  dist::Communicator& communicator_;
  CommPlan plan_;
  Buffers largest_;
  dist::HostBuffer counts_;  // i64 [ranks, 1 + iterations]: wrong elements, ns of each call
};

}  // namespace tessera::apps
