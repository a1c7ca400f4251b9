// Functions with which tests control emulated NCCL; NCCL itself does not have them.
#pragma once

namespace emulated {

/// Sets how many seconds a collective or transfer waits for the other ranks before it fails; 120 by
/// default.
void set_nccl_timeout_s(double seconds);
double nccl_timeout_s();

/// Makes calls on this rank end this many milliseconds after their data have arrived; 0 by default.
/// The calls of other ranks end as soon as their own data have arrived, as over a network.
void set_nccl_delay_ms(int milliseconds);
int nccl_delay_ms();

}  // namespace emulated
