#include <fmt/format.h>

#include "core/error.h"
#include "course/8_survival/survivor.h"

namespace course {
namespace {

std::string file_name(int64_t step, int64_t rank, int64_t ranks) {
  return fmt::format("step-{}-rank-{}-of-{}", step, rank, ranks);
}

}  // namespace

void Survivor::save(Disk& disk, int64_t step) {
  const int rank = communicator_.rank();
  Writer file;
  file.add(updates_);
  for (int p = 0; p < static_cast<int>(parameters_.size()); ++p) {
    const dist::Range own = layout_.owned(p, rank);
    if (own.size() == 0) continue;
    file.add(p);
    file.add(own.begin);
    file.add(own.end);
    for (const Tensor& tensor : shards()) file.add(part(tensor, p));
  }
  disk.write(file_name(step, rank, communicator_.size()), file.bytes());
  disk.barrier();  // the files of all ranks are complete
  if (rank == 0) {
    Writer latest;
    latest.add(step);
    latest.add(communicator_.size());
    disk.write("latest.new", latest.bytes());
    disk.rename("latest.new", "latest");  // from here on this save counts
    for (const std::string& name : disk.list()) {
      if (name.starts_with("step-") && !name.starts_with(fmt::format("step-{}-", step))) {
        disk.remove(name);
      }
    }
  }
  disk.barrier();
}

int64_t Survivor::resume(const Disk& disk) {
  if (!disk.exists("latest")) return 0;
  Reader latest(disk.read("latest"));
  const int64_t step = latest.number();
  const int64_t ranks = latest.number();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Reader file(disk.read(file_name(step, rank, ranks)));
    updates_ = file.number();
    while (!file.done()) {
      const int p = static_cast<int>(file.number());
      const int64_t begin = file.number();
      const int64_t end = file.number();
      const dist::Range own = layout_.owned(p, communicator_.rank());
      for (const Tensor& tensor : shards()) {
        const std::vector<float> saved = file.floats(end - begin);
        const std::span<float> to = part(tensor, p);
        // Copies the elements that are in the saved range and in this rank's range.
        for (int64_t i = std::max(begin, own.begin); i < std::min(end, own.end); ++i) {
          to[static_cast<size_t>(i - own.begin)] = saved[static_cast<size_t>(i - begin)];
        }
      }
    }
  }
  return step;
}

}  // namespace course
