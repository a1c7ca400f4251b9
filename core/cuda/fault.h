// What a kernel found wrong in its input, for the host to throw at the next synchronisation: no
// operation waits for the device in order to check its arguments.
//
//   Fault* fault = device_fault(context);          // an argument of a kernel, which calls
//   report_fault(fault, ...)                       // core/cuda/fault.cuh, and goes on
#pragma once

#include "core/context.h"

namespace tessera::cuda {

enum class FaultKind : int {
  embedding_token,
  embedding_bag_token,
  cross_entropy_target,
  linear_cross_entropy_target,
  embedding_bag_offset,
  index_select_index,
  gather_index,
  scatter_add_index,
  row_products_index,
  cross_entropy_weights  // add up to zero; the limit is the number of rows
};

/// Lies in host memory that the device can write.
struct Fault {
  unsigned claimed;     // 1 once a thread has found something; the first one stays
  FaultKind kind;
  int value;            // out of [0, limit)
  long long position;
  long long limit;
};

/// That of the context's device.
Fault* device_fault(const Context& context);

/// Throws what a kernel of the device has reported, and forgets it. The device must be idle.
void throw_fault(Device device);

}  // namespace tessera::cuda
