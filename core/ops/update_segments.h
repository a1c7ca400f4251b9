// What the update rules share on the CPU: their checks and the walk over segments.
#pragma once

#include <span>
#include <string_view>

#include "core/kernels.h"
#include "core/ops/blocks.h"

namespace tessera::cpu {

/// Calls body(hyper, begin, end) for ranges that together are the segments, on threads split at
/// blocks of 256 elements. Throws for a segment outside the buffer, off a block, or of no group.
template <class Body>
void for_each_segment(std::string_view rule, const Tensor& parameters,
                      std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups,
                      Body&& body) {
  const int64_t elements = parameters.elements();
  for (const UpdateSegment& segment : segments) {
    TESSERA_CHECK(0 <= segment.begin && segment.begin <= segment.end && segment.end <= elements,
                  "{}: segment [{}, {}) is outside {} elements", rule, segment.begin, segment.end,
                  elements);
    TESSERA_CHECK(segment.begin % block_elements == 0 &&
                      (segment.end % block_elements == 0 || segment.end == elements),
                  "{}: segment [{}, {}) does not lie on blocks of {} elements", rule, segment.begin,
                  segment.end, block_elements);
    TESSERA_CHECK(0 <= segment.group && static_cast<size_t>(segment.group) < groups.size(),
                  "{}: segment of group {}, expected less than {}", rule, segment.group,
                  groups.size());
  }
  // One division of the whole buffer: many small segments still make one parallel region.
  parallel_blocks(elements, 8, [&](int64_t first, int64_t last) {
    for (const UpdateSegment& segment : segments) {
      const int64_t begin = std::max(first, segment.begin);
      const int64_t end = std::min(last, segment.end);
      if (begin < end) body(groups[static_cast<size_t>(segment.group)], begin, end);
    }
  });
}

}  // namespace tessera::cpu
