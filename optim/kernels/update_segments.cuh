// Shared by the update rules on CUDA. Segments and hyper-parameters are in device memory, and each
// thread looks up the segment of its elements. So one launch updates all segments of all parameter
// groups.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "core/cuda/elementwise.cuh"
#include "optim/kernels/update_segments.h"

namespace tessera::cuda {

/// Pointers to device memory. Segments are in ascending order, not empty, and do not overlap.
struct UpdateTable {
  const UpdateSegment* segments;
  int count;
  const UpdateHyper* groups;
  const StepScalars* scalars;  // or nullptr
};

/// Finds the hyper-parameters for `element` by binary search. Returns false if `element` must not
/// be updated. The result holds for the element's whole block of 256 elements.
__device__ inline bool find_hyper(const UpdateTable& table, int64_t element, UpdateHyper& hyper) {
  int first = 0;
  int last = table.count;  // a segment with the element, if any, has its index in [first, last)
  while (last - first > 1) {
    const int middle = (first + last) / 2;
    (table.segments[middle].begin <= element ? first : last) = middle;
  }
  const UpdateSegment segment = table.segments[first];
  if (element < segment.begin || segment.end <= element) return false;
  hyper = table.groups[segment.group];
  if (table.scalars == nullptr) return true;
  hyper.gradient_scale *= table.scalars->gradient_scale;
  return table.scalars->skip == 0;
}

/// Returns the non-empty segments in ascending order, for the binary search. Throws as
/// check_segments does, and if two segments overlap.
inline std::vector<UpdateSegment> searchable(std::string_view rule, int64_t elements,
                                             std::span<const UpdateSegment> segments,
                                             std::span<const UpdateHyper> groups) {
  check_segments(rule, elements, segments, groups);
  std::vector<UpdateSegment> result;
  std::copy_if(segments.begin(), segments.end(), std::back_inserter(result),
               [](const UpdateSegment& segment) { return segment.begin < segment.end; });
  std::sort(result.begin(), result.end(),
            [](const UpdateSegment& a, const UpdateSegment& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < result.size(); ++i) {
    TESSERA_CHECK(result[i - 1].end <= result[i].begin,
                  "{}: segments [{}, {}) and [{}, {}) overlap", rule, result[i - 1].begin,
                  result[i - 1].end, result[i].begin, result[i].end);
  }
  return result;
}

/// 32-bit words that one launch passes as kernel arguments. Arguments stay below 4 KB, the limit of
/// CUDA before 12.1.
struct CarriedWords {
  static constexpr int most = 896;
  uint32_t value[most];
};

__global__ inline void __launch_bounds__(256)
    store_kernel(uint32_t* to, CarriedWords words, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 256) to[i] = words.value[i];
}

/// An UpdateTable and its device memory. The table is sent to the device as kernel arguments,
/// because a copy from pageable host memory may wait for all earlier work of the stream.
class DeviceUpdateTable {
 public:
  DeviceUpdateTable(const Context& context, std::span<const UpdateSegment> segments,
                    std::span<const UpdateHyper> groups, const StepScalars* scalars) {
    static_assert(sizeof(UpdateSegment) % 4 == 0 && sizeof(UpdateHyper) % 4 == 0);
    std::vector<uint32_t> words((segments.size_bytes() + groups.size_bytes()) / 4);
    auto* const bytes = reinterpret_cast<std::byte*>(words.data());
    std::memcpy(bytes, segments.data(), segments.size_bytes());
    std::memcpy(bytes + segments.size_bytes(), groups.data(), groups.size_bytes());
    memory_ = context.workspace({std::ssize(words) * 4}, DType::u8);
    auto* const data = static_cast<std::byte*>(memory_.raw());
    for (size_t begin = 0; begin < words.size(); begin += CarriedWords::most) {
      const size_t count = std::min<size_t>(CarriedWords::most, words.size() - begin);
      CarriedWords carried{};
      std::copy_n(words.data() + begin, count, carried.value);
      launch(context, "update", {1, 256}, store_kernel,
             reinterpret_cast<uint32_t*>(data) + begin, carried, count);
    }
    table_ = {reinterpret_cast<const UpdateSegment*>(data), static_cast<int>(segments.size()),
              reinterpret_cast<const UpdateHyper*>(data + segments.size_bytes()), scalars};
  }
  const UpdateTable& table() const { return table_; }

 private:
  Tensor memory_;
  UpdateTable table_;
};

inline constexpr int update_threads = 256;

template <int n, class Rule>
__global__ void __launch_bounds__(update_threads)
    update_kernel(Rule rule, UpdateTable table, int64_t elements) {
  const int64_t at = (int64_t{blockIdx.x} * update_threads + threadIdx.x) * n;
  if (at + n <= elements) {
    rule.template update<n>(table, at);
  } else {
    for (int64_t i = at; i < elements; ++i) rule.template update<1>(table, i);
  }
}

/// Updates all segments in one launch. On the device, `rule.update<n>(table, at)` updates the n
/// elements from `at` on. All n elements are in one segment, or all are in none. `aligned` may be
/// true only if all tensors of the rule are aligned for accesses of n elements. Throws as
/// `searchable` does.
template <int n, class Rule>
void launch_update(const Context& context, const char* name, const Rule& rule, bool aligned,
                   int64_t elements, std::span<const UpdateSegment> segments,
                   std::span<const UpdateHyper> groups, const StepScalars* scalars) {
  const std::vector<UpdateSegment> sorted = searchable(name, elements, segments, groups);
  if (sorted.empty()) return;
  const DeviceUpdateTable on_device(context, sorted, groups, scalars);
  const int per_thread = aligned ? n : 1;
  launch(context, name, {blocks_for(elements, update_threads * per_thread), update_threads},
         aligned ? update_kernel<n, Rule> : update_kernel<1, Rule>, rule, on_device.table(),
         elements);
}

}  // namespace tessera::cuda
