// Shared by the update rules: checks, and the CPU's loop over segments.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>

#include "core/ops/blocks.h"
#include "optim/kernels/update.h"

namespace tessera {

/// Throws unless parameters are f32, and moments and gradients have as many elements as parameters.
inline void check_update(std::string_view rule, const Tensor& parameters,
                         std::initializer_list<Tensor> others) {
  TESSERA_CHECK(parameters.dtype() == DType::f32, "{}: parameters have dtype {}, expected f32",
                rule, dtype_name(parameters.dtype()));
  for (const Tensor& other : others) {
    const int64_t elements = other.defined() ? other.elements() : 0;
    TESSERA_CHECK(elements == parameters.elements(),
                  "{}: moments or gradients have {} elements, expected {}", rule, elements,
                  parameters.elements());
  }
}

/// True if any parameter group has momentum. SGD then reads the momentum buffer.
inline bool any_momentum(std::span<const UpdateHyper> groups) {
  return std::any_of(groups.begin(), groups.end(),
                     [](const UpdateHyper& hyper) { return hyper.beta1 != 0; });
}

/// Throws for a segment that is outside [0, elements), does not consist of whole blocks of 256
/// elements, or names a group that does not exist. The buffer's last block may be shorter.
inline void check_segments(std::string_view rule, int64_t elements,
                           std::span<const UpdateSegment> segments,
                           std::span<const UpdateHyper> groups) {
  constexpr int64_t block = cpu::block_elements;
  for (const UpdateSegment& segment : segments) {
    TESSERA_CHECK(0 <= segment.begin && segment.begin <= segment.end && segment.end <= elements,
                  "{}: segment [{}, {}) is outside {} elements", rule, segment.begin, segment.end,
                  elements);
    TESSERA_CHECK(
        segment.begin % block == 0 && (segment.end % block == 0 || segment.end == elements),
        "{}: segment [{}, {}) does not consist of whole blocks of {} elements", rule, segment.begin,
        segment.end, block);
    TESSERA_CHECK(0 <= segment.group && static_cast<size_t>(segment.group) < groups.size(),
                  "{}: a segment of group {}, expected a group of at least 0 and less than {}",
                  rule, segment.group, groups.size());
  }
}

namespace cpu {

/// Calls body(hyper, begin, end) for ranges that together cover the segments. Work is divided among
/// threads only between blocks of 256 elements. `scalars` (may be null) are applied as update.h
/// says. Throws as check_segments does.
template <class Body>
void for_each_segment(std::string_view rule, const Tensor& parameters,
                      std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups,
                      const StepScalars* scalars, Body&& body) {
  const int64_t elements = parameters.elements();
  check_segments(rule, elements, segments, groups);
  if (scalars != nullptr && scalars->skip != 0) return;
  const float scale = scalars == nullptr ? 1.0f : scalars->gradient_scale;
  // The buffer, not each segment, is divided among threads. So even many small segments need only
  // one parallel region.
  parallel_blocks(elements, 8, [&](int64_t first, int64_t last) {
    for (const UpdateSegment& segment : segments) {
      const int64_t begin = std::max(first, segment.begin);
      const int64_t end = std::min(last, segment.end);
      if (begin >= end) continue;
      UpdateHyper hyper = groups[static_cast<size_t>(segment.group)];
      hyper.gradient_scale *= scale;
      body(hyper, begin, end);
    }
  });
}

}  // namespace cpu

}  // namespace tessera
