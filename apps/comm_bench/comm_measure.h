// Times collectives and checks what they deliver. All ranks make the same calls.
//
//   CommMeasurement measurement(*world.communicator, {.dtype = DType::f32, .max_bytes = 1 << 20});
//   CommResult result = measurement.measure(dist::Collective::all_gather, 4096);
//
// A call is waited for, and on CUDA the device is too, before the clock is read; it has taken as
// long as on the slowest rank. An exchange is timed with the additions, in f32, that make it the
// ordered reduction: a reduce-scatter has them too.
#pragma once

#include <cstdint>

#include "dist/communicator.h"
#include "dist/host_buffer.h"

namespace tessera::apps {

struct CommPlan {
  DType dtype = DType::f32;  // f32, bf16 or f16
  int64_t max_bytes = 0;     // of a rank's buffer
  int64_t iterations = 20;
  int64_t warmup = 5;
};

struct CommResult {
  dist::Collective collective = dist::Collective::barrier;
  int64_t bytes = 0;   // of a rank's buffer
  double seconds = 0;  // of a call: the median
  int64_t wrong = 0;   // elements of all ranks' results, after one more call
};

class CommMeasurement {
 public:
  /// Allocates the buffers. Collective.
  CommMeasurement(dist::Communicator& communicator, const CommPlan& plan);

  /// `bytes`: a multiple of ranks elements, at most the plan's. Any collective but a barrier and a
  /// split; all_reduce with f32. The pieces of exchange_v and all_gather_v have unequal lengths;
  /// send_receive passes the buffer on round a ring. Collective; the result is the same on every
  /// rank.
  CommResult measure(dist::Collective collective, int64_t bytes);

 private:
  /// What a call reads and writes.
  struct Buffers {
    Tensor all;      // [N * n], of the plan's dtype: the input, or what is worked on in place
    Tensor arrived;  // [N * n], of the plan's dtype: the output of exchange_v and send_receive
    Tensor piece;    // [n], f32: this rank's sums
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
