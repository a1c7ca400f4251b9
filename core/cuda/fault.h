// Faults: a kernel records wrong input as a fault, and the host throws an Error for the fault at
// the next synchronisation. So no operation waits for the device just to check its arguments.
//
//   Fault* fault = device_fault(context);  // host: passes it to the kernel as an argument
//   report_fault(fault, ...)               // kernel: reports (core/cuda/fault.cuh) and goes on
#pragma once

#include "core/context.h"

namespace tessera::cuda {

enum class FaultKind : int {
  embedding_token,
  embedding_bag_token,
  cross_entropy_target,
  linear_cross_entropy_target,
  smoothed_cross_entropy_target,
  embedding_bag_offset,
  index_select_index,
  gather_index,
  scatter_add_index,
  row_products_index,
  cross_entropy_weights  // the weights add up to zero; `limit` is the number of rows
};

/// The record of a fault, in host memory that the device can write.
struct Fault {
  unsigned claimed;     // 1 from the beginning of the first report; later reports are ignored
  unsigned complete;    // 1 when the report has been written
  FaultKind kind;
  int value;            // the wrong value, outside [low, limit); 0 for cross_entropy_weights
  long long position;
  long long limit;
  long long low;        // 0 except for embedding_bag_offset
};

/// Returns the record of faults on the context's device.
Fault* device_fault(const Context& context);

/// If a kernel of the device has reported a fault, clears the fault and throws an Error for it. A
/// report that a running kernel is still writing is left for a later call. If several threads call
/// this function at the same time, only one of them throws.
void throw_fault(Device device);

}  // namespace tessera::cuda
