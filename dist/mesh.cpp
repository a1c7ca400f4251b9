#include "dist/mesh.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace tessera::dist {

namespace {

void check_axes(const std::vector<Mesh::Axis>& axes, int ranks) {
  int64_t product = 1;
  std::vector<std::string> sizes;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto& [name, size] = axes[i];
    TESSERA_CHECK(!name.empty(), "mesh: axis {} has no name", i);
    TESSERA_CHECK(size >= 1, "mesh: axis {} has {} ranks, expected at least 1", name, size);
    const auto same = std::ranges::count(axes, name, &Mesh::Axis::name);
    TESSERA_CHECK(same == 1, "mesh: {} axes are called {}, expected different names", same, name);
    // The product must not overflow, so it is clamped to ranks + 1, which is refused below.
    product = std::min<int64_t>(product * size, int64_t{ranks} + 1);
    sizes.push_back(fmt::format("{} {}", name, size));
  }
  TESSERA_CHECK(product == ranks,
                "mesh: axes {}, expected sizes whose product is {}, the number of ranks",
                fmt::join(sizes, ", "), ranks);
}

}  // namespace

World world_of_group(const World& world, std::shared_ptr<Communicator> communicator) {
  TESSERA_CHECK(communicator != nullptr, "world_of_group: this rank is in no group");
  World group = world;
  group.rank = communicator->rank();
  group.size = communicator->size();
  group.communicator = std::move(communicator);
  return group;
}

Mesh::Mesh(const World& world, std::vector<Axis> axes) : axes_(std::move(axes)) {
  check_axes(axes_, world.size);
  int stride = world.size;
  for (const auto& [name, size] : axes_) {
    // `stride` becomes the difference in rank between neighbours along this axis.
    stride /= size;
    if (size == world.size) {  // reuse the job's communicator, which already has its staging
      groups_.push_back(world);
      continue;
    }
    const int coordinate = world.rank / stride % size;
    // This color is equal on all ranks that differ only along this axis.
    const int color = world.rank - coordinate * stride;
    groups_.push_back(world_of_group(world, world.communicator->split(color, coordinate, name)));
  }
}

const World& Mesh::group(std::string_view axis) const {
  const auto found = std::ranges::find(axes_, axis, &Axis::name);
  if (found == axes_.end()) fail("mesh: there is no axis {}", axis);
  return groups_[static_cast<size_t>(found - axes_.begin())];
}

}  // namespace tessera::dist
