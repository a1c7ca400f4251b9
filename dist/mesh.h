// The ranks of a job as a grid with named axes, and the groups along each axis.
//
//   dist::Mesh mesh(world, {{"replica", 2}, {"data", 4}});         // 8 ranks
//   optim::ZeroOptimizer optimizer(model, rule, mesh.group("data"), {.stage = 2});
//   mesh.group("replica").communicator->all_gather(...);           // between ranks r and r + 4
//
// Ranks are numbered row by row: the last axis varies fastest, so the groups of the last axis have
// neighbouring ranks.
//
//   rank        0 1 2 3   4 5 6 7
//   "data"      0 1 2 3   0 1 2 3     two groups of four
//   "replica"   0 0 0 0   1 1 1 1     four groups of two: 0 4, 1 5, 2 6, 3 7
//
// A group is a World of its own: code that gets a group sees only the ranks of this group.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dist/bootstrap.h"

namespace tessera::dist {

class Mesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
  };

  /// Splits world.communicator once for each axis whose size is less than the number of ranks.
  /// Collective. Throws if a name is empty or occurs twice, if a size is less than 1, or if the
  /// product of the sizes is not the number of ranks.
  Mesh(const World& world, std::vector<Axis> axes);

  /// Returns the group of the ranks that differ from this rank only along `axis`, in the order of
  /// their coordinates. Throws if there is no such axis.
  const World& group(std::string_view axis) const;

  /// The place of this rank along `axis`, which is also its rank in the group.
  int coordinate(std::string_view axis) const { return group(axis).rank; }

  const std::vector<Axis>& axes() const { return axes_; }

 private:
  std::vector<Axis> axes_;
  std::vector<World> groups_;  // one for each axis
};

/// Returns a copy of `world` for the group of `communicator`, which was split from
/// world.communicator.
World world_of_group(const World& world, std::shared_ptr<Communicator> communicator);

}  // namespace tessera::dist
