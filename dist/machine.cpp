#include "dist/machine.h"

#include <array>
#include <sstream>

#include "core/convolution_choices.h"
#include "core/cuda.h"
#include "core/error.h"
#include "core/product_tuning.h"
#include "dist/communicator.h"

namespace tessera::dist {

namespace {

int64_t cublas_lt_version() {
  try {
    return cuda::product_library_version();
  } catch (const Error&) {
    return 0;  // the library cannot be loaded; the first matrix product will report the reason
  }
}

std::string versioned(const char* library, int64_t version) {
  return version == 0 ? fmt::format("no {}", library) : fmt::format("{} {}", library, version);
}

/// The rank's GPU and libraries in words, in the order in which they are compared.
std::array<std::string, 5> described(const Machine& machine) {
  return {machine.gpu, fmt::format("{} multiprocessors", machine.multiprocessors),
          versioned("cuBLASLt", machine.cublas_lt), versioned("cuDNN", machine.cudnn),
          versioned("NCCL", machine.nccl)};
}

}  // namespace

std::string Machine::text() const {
  return fmt::format("{} {} {} {} {}", multiprocessors, cublas_lt, cudnn, nccl, gpu);
}

Machine Machine::of_text(const std::string& text) {
  Machine machine;
  std::istringstream words(text);
  words >> machine.multiprocessors >> machine.cublas_lt >> machine.cudnn >> machine.nccl;
  words.get();  // the space before the name
  std::getline(words, machine.gpu);
  TESSERA_CHECK(!words.fail(), "a rank describes its GPU as '{}', expected four numbers and a name",
                text);
  return machine;
}

Machine own_machine(int device) {
  return {.gpu = cuda::device_name(device),
          .multiprocessors = cuda::multiprocessor_count(device),
          .cublas_lt = cublas_lt_version(),
          .cudnn = cuda::convolution_library_version(),
          .nccl = nccl_library_version()};
}

std::string first_difference(const std::vector<Machine>& machines) {
  for (size_t rank = 1; rank < machines.size(); ++rank) {
    const auto own = described(machines[rank]);
    const auto first = described(machines[0]);
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i] != first[i]) {
        return fmt::format("rank {} has {}, rank 0 has {}", rank, own[i], first[i]);
      }
    }
  }
  return "";
}

}  // namespace tessera::dist
