#include "data/ratings/id_table.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "core/text/control_character.h"

namespace tessera::data {
namespace {

constexpr int32_t no_number = -1;

uint64_t hash_of(std::string_view id) { return std::hash<std::string_view>{}(id); }
uint32_t check_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

bool is_whole_number(const std::string& id, int64_t& value) {
  const char* const end = id.data() + id.size();
  const auto [last, error] = std::from_chars(id.data(), end, value);
  return error == std::errc{} && last == end;
}

}  // namespace

IdTable::IdTable(std::string name) : name_(std::move(name)), slots_(1024) {}

int32_t IdTable::number_of(std::string_view id, const TextLines& lines) {
  const uint64_t hash = hash_of(id);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.number == no_number) return add(id, lines);
    if (slot.check == check_of(hash) && ids_[static_cast<size_t>(slot.number)] == id) {
      return slot.number;
    }
  }
}

int32_t IdTable::add(std::string_view id, const TextLines& lines) {
  if (id.empty()) lines.refuse("has an empty {}", name_);
  if (id.size() > most_id_bytes) {
    lines.refuse("has a {} of {} bytes, expected at most {}: {}", name_, id.size(), most_id_bytes,
                 excerpt(id));
  }
  if (has_control_character(id)) {
    lines.refuse("has a {} with a control character: {}", name_, excerpt(id));
  }
  if (ids_.size() == size_t{std::numeric_limits<int32_t>::max()}) {
    lines.refuse("has one {} too many, expected at most {}", name_, ids_.size());
  }
  const auto number = static_cast<int32_t>(ids_.size());
  ids_.emplace_back(id);
  if (ids_.size() * 2 <= slots_.size()) {
    put(hash_of(id), number);
    return number;
  }
  slots_.assign(slots_.size() * 2, Slot{});
  for (size_t i = 0; i < ids_.size(); ++i) put(hash_of(ids_[i]), static_cast<int32_t>(i));
  return number;
}

void IdTable::put(uint64_t hash, int32_t number) {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].number != no_number) at = (at + 1) & mask;
  slots_[at] = {check_of(hash), number};
}

std::vector<int32_t> IdTable::sort() {
  const size_t count = ids_.size();
  std::vector<int64_t> values(count);
  bool all_numbers = true;
  for (size_t i = 0; i < count && all_numbers; ++i) {
    all_numbers = is_whole_number(ids_[i], values[i]);
  }
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    if (all_numbers && values[i] != values[j]) return values[i] < values[j];
    return ids_[i] < ids_[j];
  });
  std::vector<std::string> sorted(count);
  std::vector<int32_t> new_numbers(count);
  for (size_t i = 0; i < count; ++i) {
    const auto old = static_cast<size_t>(order[i]);
    sorted[i] = std::move(ids_[old]);
    new_numbers[old] = static_cast<int32_t>(i);
  }
  ids_ = std::move(sorted);
  slots_ = {};
  return new_numbers;
}

}  // namespace tessera::data
