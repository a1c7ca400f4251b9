// The version and the settings of oneDNN, on which the bits of its results depend.
#pragma once

#include <string>

namespace tessera::cpu::onednn {

struct Library {
  std::string version;       // "2.6.3"
  std::string instructions;  // the widest set that oneDNN may use: "avx512_core_bf16"
  std::string math_mode;     // "strict", or what f32 may be rounded to: "bf16", "f16", "any"
};
/// Describes the oneDNN that this process uses. The environment variable ONEDNN_MAX_CPU_ISA limits
/// the instruction set, and ONEDNN_DEFAULT_FPMATH_MODE sets the math mode.
Library library();

}  // namespace tessera::cpu::onednn
