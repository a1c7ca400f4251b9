#include "core/digest.h"

#include <sys/stat.h>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("xxh3 gives the published hashes, and takes a seed") {
  CHECK(xxh3("") == 0x2D06800538D394C2u);
  CHECK(xxh3("abc") == 0x78AF5F94892F3950u);
  CHECK(xxh3("abc", 1) != xxh3("abc"));
  CHECK(xxh3("bc", xxh3("a")) != xxh3("c", xxh3("ab")));
}

TEST_CASE("a list's digest covers its texts in order, and where one list ends") {
  const std::vector<std::string> list{"a", "b"};
  CHECK(digest_of_list(list) == digest_of_list({"a", "b"}));
  CHECK(digest_of_list(list) != digest_of_list({"b", "a"}));
  CHECK(digest_of_list(list) != digest_of_list(list, 1));
  CHECK(digest_of_list({"c"}, digest_of_list(list)) !=
        digest_of_list({"b", "c"}, digest_of_list({"a"})));
}

TEST_CASE("a file's digest covers 64 blocks from start to end, or the whole file") {
  const test::TemporaryFolder folder;
  constexpr size_t block = 4096;
  const std::string text(1'000'000, 'a');
  const auto digest_with = [&](size_t changed, bool whole) {
    std::string other = text;
    other[changed] = 'b';
    const FileDigest digest = digest_of_file(folder.file("other", other), whole);
    CHECK(digest.bytes == 1'000'000);
    return digest.digest;
  };
  const std::string path = folder.file("text", text);
  for (const bool whole : {false, true}) {
    const uint64_t same = digest_of_file(path, whole).digest;
    CHECK(digest_of_file(folder.file("copy", text), whole).digest == same);
    // Without `whole`, only 64 blocks of 4,096 bytes are read. They begin at multiples of 15,808
    // bytes. A changed byte in a block must change the digest.
    for (const size_t place : {size_t{0}, block - 1, size_t{15'900}, text.size() - 1}) {
      CHECK(digest_with(place, whole) != same);
    }
    CHECK((digest_with(block + 100, whole) == same) == !whole);
  }
}

TEST_CASE("a small file's digest covers every byte") {
  const test::TemporaryFolder folder;
  std::string text(64 * 4096, 'a');
  const uint64_t before = digest_of_file(folder.file("text", text)).digest;
  text[5000] = 'b';
  CHECK(digest_of_file(folder.file("text", text)).digest != before);
  CHECK(digest_of_file(folder.file("empty", "")).bytes == 0);
}

TEST_CASE("only regular files have a digest") {
  const test::TemporaryFolder folder;
  REQUIRE(::mkfifo(folder.path("fifo").c_str(), 0600) == 0);
  const auto refusal = [](const std::string& path) {
    return test::message_of<InputError>([&] { digest_of_file(path); });
  };
  CHECK_THAT(refusal(folder.path("missing")), ContainsSubstring("missing: cannot be opened"));
  CHECK_THAT(refusal(folder.path("fifo")), ContainsSubstring("fifo: is not a regular file"));
  CHECK_THAT(refusal(folder.path(".")), ContainsSubstring("is not a regular file"));
}
