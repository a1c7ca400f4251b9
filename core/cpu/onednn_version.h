// Which oneDNN computes here, and with what: its results' bits depend on it.
#pragma once

#include <string>

namespace tessera::cpu::onednn {

struct Library {
  std::string version;       // "2.6.3"
  std::string instructions;  // those that it takes at most: "avx512_core_bf16"; ONEDNN_MAX_CPU_ISA
  std::string math_mode;     // "strict", or what ONEDNN_DEFAULT_FPMATH_MODE lets it round to
};
Library library();

}  // namespace tessera::cpu::onednn
