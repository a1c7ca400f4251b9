// Functions with which tests control emulated NCCL; NCCL itself does not have them.
#pragma once

namespace emulated {

/// Sets how many seconds a call waits for the other ranks before it fails; 120 by default.
void set_nccl_timeout_s(double seconds);
double nccl_timeout_s();

}  // namespace emulated
