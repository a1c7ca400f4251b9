// Maps the ids of users or items in files to dense numbers.
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

  /// Error messages call an id of this table a `name`, for example a "user".
  explicit IdTable(std::string name);

  /// Returns the number of an id; a new id gets the next number. Throws InputError if the id is
  /// empty, is longer than most_id_bytes or has a control character. Also throws if there would be
  /// more than 2^31 - 1 ids. The error names the line that was last read from `lines`.
  int32_t number_of(std::string_view id, const TextLines& lines);

  /// Sorts the ids, so that their numbers do not depend on the order of the lines. Returns the new
  /// number of each old number. number_of must not be called afterwards.
  ///  - If all ids are whole numbers that fit int64_t, they are sorted by value. Ids of equal value
  ///    (7 and 07) are sorted by their bytes.
  ///  - Otherwise all ids are sorted by their bytes.
  std::vector<int32_t> sort();
  std::vector<std::string> take_ids() { return std::move(ids_); }

 private:
  /// The number of an id, and half of the id's hash as `check`. Comparing this half first tells
  /// most ids apart, so that a look-up compares few strings.
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
