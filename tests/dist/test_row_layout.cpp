// Tests the owners of a table's rows for many sizes: every row has exactly one owner, and no block
// of 256 elements has elements of two ranks.
#include "dist/row_layout.h"
#include "tests/support/catch.h"

namespace tessera::dist {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("row layout: every row and every kernel block has one owner") {
  for (const int64_t rows : {1, 2, 7, 255, 256, 257, 1000, 4099}) {
    for (const int64_t width : {1, 3, 8, 20, 64, 100, 256, 300, 512}) {
      for (const int64_t ranks : {1, 2, 3, 5, 7, 16}) {
        CAPTURE(rows, width, ranks);
        const RowLayout layout(rows, width, ranks, row_multiple(width));
        int64_t next = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const Range own = layout.owned(rank);
          REQUIRE(own.begin == next);
          REQUIRE(own.size() <= layout.largest());
          next = own.end;
          if (own.size() == 0) continue;
          REQUIRE(layout.owner(own.begin) == rank);
          REQUIRE(layout.owner(own.end - 1) == rank);
          REQUIRE(own.begin * width % block_elements == 0);
          REQUIRE((own.end == rows || own.end * width % block_elements == 0));
        }
        REQUIRE(next == rows);
      }
    }
  }
}

TEST_CASE("row layout: the smallest number of rows that fills whole kernel blocks") {
  CHECK(row_multiple(1) == 256);
  CHECK(row_multiple(64) == 4);
  CHECK(row_multiple(100) == 64);
  CHECK(row_multiple(256) == 1);
  CHECK(row_multiple(300) == 64);
}

TEST_CASE("row layout: impossible sizes are errors") {
  CHECK_THROWS_WITH(RowLayout(0, 1, 1, 256), ContainsSubstring("[0, 1]"));
  CHECK_THROWS_WITH(RowLayout(int64_t{1} << 31, 1, 1, 256), ContainsSubstring("2^31"));
  CHECK_THROWS_WITH(RowLayout(10, 64, 1, 3), ContainsSubstring("multiples of 4 rows"));
}

}  // namespace
}  // namespace tessera::dist
