// Users and items as files name them, and their dense numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/files/text_lines.h"

namespace tessera::data {

class IdTable {
 public:
  static constexpr size_t most_id_bytes = 256;

  /// `name` ("user") begins errors.
  explicit IdTable(std::string name);

  /// The number of an id in the order of first appearance. Refuses, with the last line of `lines`,
  /// an id that is empty, longer than most_id_bytes or has a control character, and more than
  /// 2^31 - 1 of them.
  int32_t number_of(std::string_view id, const TextLines& lines);

  /// Puts the ids in an order that does not depend on who came first: by their values if all are
  /// whole numbers of 64 bits (equal values, as 7 and 07, by their bytes), else by their bytes.
  /// Returns new numbers by the old ones. Nothing may be looked up afterwards.
  std::vector<int32_t> sort();
  std::vector<std::string> take_ids() { return std::move(ids_); }

 private:
  /// A number and half of its id's hash in one word: a look-up touches a slot and the id alone.
  struct Slot {
    uint32_t check = 0;
    int32_t number = -1;
  };

  int32_t add(std::string_view id, const TextLines& lines);
  void put(uint64_t hash, int32_t number);

  std::string name_;
  std::vector<std::string> ids_;
  std::vector<Slot> slots_;  // by hash, open addressing; at most half are taken
};

}  // namespace tessera::data
