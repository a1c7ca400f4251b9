#include "dist/shared_choices.h"

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/convolution_choices.h"
#include "dist/communicator.h"

namespace tessera::dist {

namespace {
using Choice = cuda::ConvolutionChoice;
static_assert(std::is_trivially_copyable_v<Choice>, "choices travel as bytes");
}  // namespace

void share_convolution_choices(const World& world) {
  const Device device = world.communicator->device();
  if (device.is_cpu() || world.size == 1 || !world.difference.empty()) return;
  std::vector<Choice> choices;
  std::string bytes;
  if (world.rank == 0) {
    choices = cuda::convolution_choices(device.index);
    bytes.assign(reinterpret_cast<const char*>(choices.data()), choices.size() * sizeof(Choice));
  }
  bytes = broadcast_text(*world.communicator, bytes);
  if (world.rank == 0) return;
  choices.resize(bytes.size() / sizeof(Choice));
  std::memcpy(choices.data(), bytes.data(), bytes.size());
  cuda::use_convolution_choices(device.index, choices);
}

}  // namespace tessera::dist
