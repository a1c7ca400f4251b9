// What tests may ask of emulated NCCL beyond NCCL's own calls.
#pragma once

namespace emulated {

/// How long a call waits for the other ranks before it fails; 120 s to begin with.
void set_nccl_timeout_s(double seconds);
double nccl_timeout_s();

}  // namespace emulated
