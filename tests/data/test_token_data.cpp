#include "data/tokens/token_data.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/text/number_text.h"
#include "data/tokens/token_input.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using test::TemporaryFolder;

namespace {

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Returns a token file as llm.c writes it: a header of 256 int32, then the tokens.
std::string with_header(const std::vector<uint16_t>& tokens, int32_t count, int32_t version = 1,
                        int32_t magic = 20240520) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return raw(header) + raw(tokens);
}

std::vector<int32_t> all_of(const data::TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.size()));
  file.copy(0, tokens);
  return tokens;
}

std::string refusal(const std::string& name, const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.file(name, bytes);
  return test::message_of<InputError>([&] { data::TokenFile{path}; });
}

std::string letters(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += static_cast<char>('a' + i % 26);
  return text;
}

}  // namespace

TEST_CASE("a text's tokens are its bytes") {
  const TemporaryFolder folder;
  const data::TokenFile file(folder.file("a.txt", "A\xff\n"));
  REQUIRE(file.is_text());
  REQUIRE(all_of(file) == std::vector<int32_t>{65, 255, 10});
  CHECK_FALSE(file.is_gzip());
  CHECK_FALSE(data::TokenFile(folder.file("b.txt", "\x1f")).is_gzip());
  CHECK(data::TokenFile(folder.file("c.txt", "\x1f\x8b")).is_gzip());
}

TEST_CASE("a .bin holds uint16, with and without llm.c's header") {
  const TemporaryFolder folder;
  const std::vector<uint16_t> tokens = {1, 50256, 0, 65535};
  const std::vector<int32_t> expected = {1, 50256, 0, 65535};
  CHECK_FALSE(data::TokenFile(folder.file("plain.bin", "\x1f\x8b")).is_gzip());
  REQUIRE(all_of(data::TokenFile(folder.file("plain.bin", raw(tokens)))) == expected);
  const data::TokenFile file(folder.file("header.bin", with_header(tokens, 4)));
  REQUIRE_FALSE(file.is_text());
  REQUIRE(all_of(file) == expected);
}

TEST_CASE("invalid token files are refused") {
  REQUIRE_THAT(test::message_of<InputError>([] { data::TokenFile{"/no/such.txt"}; }),
               ContainsSubstring("/no/such.txt: cannot be opened: No such file"));
  REQUIRE_THAT(test::message_of<InputError>([] { data::TokenFile{"/tmp"}; }),
               ContainsSubstring("not a regular file"));
  REQUIRE_THAT(refusal("a.txt", ""), ContainsSubstring("is empty"));
  REQUIRE_THAT(refusal("a.bin", ""), ContainsSubstring("is empty"));
  REQUIRE_THAT(refusal("a.bin", "abc"), ContainsSubstring("expected an even number"));
  REQUIRE_THAT(refusal("a.bin", with_header({1, 2}, 3)),
               ContainsSubstring("says 3 tokens, but 4 bytes follow, which hold 2"));
  REQUIRE_THAT(refusal("a.bin", with_header({1, 2}, -1)), ContainsSubstring("says -1 tokens"));
  REQUIRE_THAT(refusal("a.bin", with_header({1}, 1, 2)),
               ContainsSubstring("version 2, expected 1"));
  REQUIRE_THAT(refusal("a.bin", with_header({}, 0).substr(0, 512)),
               ContainsSubstring("but has 512"));
  REQUIRE_THAT(refusal("a.bin", with_header({1}, 1, 7, 20240801)),
               ContainsSubstring("tokens of 4 bytes"));
}

TEST_CASE("a token beyond the vocabulary is named with file and position when it is read") {
  const TemporaryFolder folder;
  const std::string bin = folder.file("a.bin", raw<uint16_t>({1, 2, 99, 100, 3}));
  const auto read = [](const std::string& path, int64_t vocab, int64_t begin, size_t count) {
    std::vector<int32_t> tokens(count);
    return test::message_of<InputError>([&] { data::TokenFile(path, vocab).copy(begin, tokens); });
  };
  CHECK(read(bin, 101, 0, 5) == "nothing was thrown");
  CHECK(read(bin, 100, 0, 3) == "nothing was thrown");
  CHECK(read(bin, 100, 1, 4) ==
        bin + ": token 100 at position 3 is beyond the model's vocabulary of 100");
  const std::string text = folder.file("a.txt", "ab\x80");
  CHECK(read(text, 256, 0, 3) == "nothing was thrown");
  CHECK_THAT(read(text, 128, 2, 1), ContainsSubstring("a.txt: token 128 at position 2"));
}

TEST_CASE("a token file that shrinks while it is read is an error that names the offset") {
  const TemporaryFolder folder;
  const data::TokenFile file(folder.file("a.bin", raw(std::vector<uint16_t>(40000, 7))));
  std::filesystem::resize_file(file.path(), 20000);
  std::vector<int32_t> tokens(100);
  file.copy(9900, tokens);
  CHECK_THAT(test::message_of<Error>([&] { file.copy(9901, tokens); }),
             ContainsSubstring("a.bin: has become shorter since it was opened: there is no byte "
                               "20000"));
}

TEST_CASE("opening data reads no token, and every sequence that is read is checked") {
  const TemporaryFolder folder;
  std::string text = letters(100);
  text[60] = text[95] = '\xf0';
  const data::TokenData data({.path = folder.file("a.txt", text), .context = 4, .vocab = 128});
  std::set<std::string> messages;
  for (int64_t step = 0; step < 60; ++step) {
    messages.insert(test::message_of<InputError>([&] { data.read({.step = step, .samples = 1}); }));
  }
  CHECK(messages.size() == 2);
  CHECK_THAT(*messages.begin(), ContainsSubstring("a.txt: token 240 at position 60 is beyond"));
  CHECK(*messages.rbegin() == "nothing was thrown");
  const std::vector<int64_t> starts = {0, 4};
  CHECK_THAT(
      test::message_of<InputError>([&] { data::read_sequences(data.validation(), starts, 4); }),
      ContainsSubstring("token 240 at position 95"));
}

TEST_CASE("validation uses the last tenth, or a file of its own") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt", letters(105));
  const data::TokenData data({.path = path, .context = 8, .vocab = 256});
  REQUIRE(data.training().begin == 0);
  REQUIRE(data.training().end == 94);
  REQUIRE(data.validation().begin == 94);
  REQUIRE(data.validation().end == 105);
  const data::TokenData separate({.path = path,
                                  .validation_path = folder.file("b.txt", letters(9)),
                                  .context = 8,
                                  .vocab = 256});
  REQUIRE(separate.training().size() == 105);
  REQUIRE(separate.validation().size() == 9);
}

TEST_CASE("data shorter than a sequence is refused") {
  const TemporaryFolder folder;
  const auto refuse = [&](int64_t size, bool evaluates) {
    const std::string path = folder.file("a.txt", letters(size));
    return test::message_of<InputError>([&] {
      data::TokenData({.path = path, .context = 8, .vocab = 256, .evaluates = evaluates});
    });
  };
  REQUIRE_THAT(refuse(8, false), ContainsSubstring("the data has 8 tokens, expected at least one"));
  REQUIRE_THAT(refuse(9, false), ContainsSubstring("the training part"));
  REQUIRE_THAT(refuse(10, false), ContainsSubstring("nothing was thrown"));
  REQUIRE_THAT(refuse(10, true), ContainsSubstring("the validation part has 1 tokens"));
  const std::string validation = folder.file("b.txt", letters(9));
  CHECK_NOTHROW(data::TokenData({.path = folder.file("a.txt", letters(2)),
                                 .validation_path = validation,
                                 .context = 8,
                                 .vocab = 256,
                                 .trains = false}));
}

TEST_CASE("sequences are a function of seed, step and sample alone") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt", letters(5000));
  const data::TokenData data(
      {.path = path, .context = 16, .vocab = 256, .seed = 7, .global_batch = 12});
  const data::Sequences whole = data.read({.step = 3, .first_sample = 0, .samples = 12});
  for (int64_t first = 0; first < 12; first += 4) {
    const data::Sequences part = data.read({.step = 3, .first_sample = first, .samples = 4});
    const auto expected = whole.tokens.rows(first, first + 4).values<int32_t>();
    const auto actual = part.tokens.values<int32_t>();
    REQUIRE(std::equal(actual.begin(), actual.end(), expected.begin()));
  }
  // Targets are the tokens shifted by one.
  const auto tokens = whole.tokens.values<int32_t>();
  const auto targets = whole.targets.values<int32_t>();
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    if ((i + 1) % 16 != 0) REQUIRE(tokens[i + 1] == targets[i]);
  }
  const data::TokenData other(
      {.path = path, .context = 16, .vocab = 256, .seed = 8, .global_batch = 12});
  REQUIRE(other.start_of(3, 0) != data.start_of(3, 0));
}

TEST_CASE("an epoch has every window of a grid once, the next one in another order") {
  const TemporaryFolder folder;
  const data::TokenData data({.path = folder.file("a.txt", letters(5000)),
                              .context = 16,
                              .vocab = 256,
                              .seed = 7,
                              .global_batch = 4});
  // 4,500 tokens to train on give 4,484 start positions, 280 windows, and 70 steps per epoch.
  std::vector<std::vector<int64_t>> epochs(2);
  for (int64_t step = 0; step < 140; ++step) {
    for (int64_t sample = 0; sample < 4; ++sample) {
      epochs[static_cast<size_t>(step / 70)].push_back(data.start_of(step, sample));
    }
  }
  for (const auto& starts : epochs) {
    const std::set<int64_t> sorted(starts.begin(), starts.end());
    REQUIRE(sorted.size() == 280);
    REQUIRE(*sorted.begin() >= 0);
    REQUIRE(*sorted.rbegin() < 4484);
    REQUIRE(*sorted.rbegin() - *sorted.begin() == 279 * 16);
    REQUIRE(!std::is_sorted(starts.begin(), starts.end()));
  }
  REQUIRE(epochs[0] != epochs[1]);
}

TEST_CASE("steps of another batch are refused") {
  const TemporaryFolder folder;
  const data::TokenData data(
      {.path = folder.file("a.txt", letters(200)), .context = 8, .vocab = 256, .global_batch = 4});
  CHECK(test::message_of<Error>([&] { data.read({.first_sample = 3, .samples = 2}); }) ==
        "tokens: sample 4 of a step is asked for, but TokenDataOptions::global_batch is 4; give "
        "the global batch of the steps");
  data::TokenInput input(data, {.sequences = 2, .context = 8});
  for (const int64_t samples : {1, 3}) {
    CHECK(test::message_of<Error>([&] { input.load({.samples = samples}); }) ==
          fmt::format("tokens: {} read into a batch of 2", counted(samples, "sequence")));
  }
  CHECK(test::message_of<Error>([&] { input.load({.samples = 2}); }) == "nothing was thrown");
}

TEST_CASE("a context of 0, and batches of another context, are refused") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.txt", letters(200));
  CHECK(test::message_of<Error>([&] { data::TokenData({.path = path, .vocab = 256}); }) ==
        "tokens: TokenDataOptions::context is 0, expected at least 1");
  const data::TokenData data({.path = path, .context = 8, .vocab = 256, .global_batch = 4});
  data::TokenInput input(data, {.sequences = 2, .context = 16});
  CHECK(test::message_of<Error>([&] { input.load({.samples = 2}); }) ==
        "tokens: a batch has shape [2, 16], expected sequences of 8 tokens, which is "
        "TokenDataOptions::context");
}

TEST_CASE("the shortest text that trains has one sequence") {
  const TemporaryFolder folder;
  const data::TokenData data(
      {.path = folder.file("a.txt", letters(10)), .context = 8, .vocab = 256, .evaluates = false});
  REQUIRE(data.start_of(0, 0) == 0);
  REQUIRE(data.read({.samples = 1}).targets.values<int32_t>().back() == 'i');
}
