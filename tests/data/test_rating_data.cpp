#include "data/ratings/rating_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "data/ratings/rating_digest.h"
#include "data/ratings/rating_file.h"
#include "tests/support/catch.h"
#include "tests/support/image_files.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace std::string_literals;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using data::RatingData;
using test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
using Numbers = std::vector<int32_t>;

RatingData read(const std::string& name, const std::string& bytes, const std::string& columns = "",
                const std::string& split = "none") {
  const TemporaryFolder folder;
  return data::open_rating_data(
      {.path = folder.file(name, bytes), .columns = columns, .split = split});
}

std::string refusal(const std::string& name, const std::string& bytes,
                    const std::string& columns = "", const std::string& split = "none") {
  return test::message_of<InputError>([&] { read(name, bytes, columns, split); });
}

// Checks the three ratings that all formats below have: user 10 rates b with 3.5 and a with 1, and
// user 9 rates a with 5.
void check_three(const RatingData& data, const std::string& format, bool times = true) {
  REQUIRE(data.format == format);
  REQUIRE(data.user_ids == Strings{"9", "10"});  // sorted as numbers, so 9 comes first
  REQUIRE(data.item_ids == Strings{"a", "b"});
  REQUIRE(data.train.users == Numbers{1, 1, 0});
  REQUIRE(data.train.items == Numbers{1, 0, 0});
  REQUIRE(data.train.values == std::vector<float>{3.5f, 1.0f, 5.0f});
  const std::vector<double> expected = {881250949, 881250950.25, 5};
  REQUIRE(data.train.times == (times ? expected : std::vector<double>{}));
  REQUIRE(data.has_ratings);
  REQUIRE(data.validation.size() == 0);
}

const std::string tabs = "10\tb\t3.5\t881250949\n10\ta\t1\t881250950.25\n9\ta\t5\t5\n";

std::string with_separator(const std::string& separator, std::string text = tabs) {
  for (size_t at = text.find('\t'); at != text.npos; at = text.find('\t', at + separator.size())) {
    text.replace(at, 1, separator);
  }
  return text;
}

}  // namespace

TEST_CASE("MovieLens: tabs, '::' or commas below a header, compressed or not") {
  check_three(read("u.data", tabs), "movielens");
  check_three(read("any name", tabs), "movielens");
  check_three(read("ratings.dat", with_separator("::")), "movielens");
  const std::string csv = "userId,movieId,rating,timestamp\n" + with_separator(",");
  check_three(read("ratings.csv", csv), "csv");
  check_three(read("ratings.csv", "\xEF\xBB\xBF" + csv), "csv");
  check_three(read("u.data.gz", test::gzipped(tabs)), "movielens");
  check_three(read("ratings.csv.gz", test::gzipped(csv)), "csv");
  // In a.csv the columns are in another order, a field is quoted, and lines end in CRLF. a.csv has
  // no times, and no newline at the end.
  check_three(read("a.csv", "item_id,rating,User\r\nb,3.5,10\r\n\"a\", 1 ,10\r\na,5,9"), "csv",
              false);
}

TEST_CASE("RecBole's .inter files are read") {
  check_three(
      read("ml.inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + tabs),
      "inter");
  const RatingData data =
      read("a.inter.gz", test::gzipped("item_id:token\tuser_id:token\nx\t1\ny\t1\n"));
  REQUIRE_FALSE(data.has_ratings);
  REQUIRE(data.train.values == std::vector<float>{1, 1});
  REQUIRE(data.train.times.empty());
  REQUIRE(data.description() ==
          "2 interactions of 2 items by 1 user: 2 to train on, 0 to validate");
}

TEST_CASE("columns name the fields, and the first line has the separator") {
  for (const char* separator : {"\t", "::", ";", ",", "|", " ", "   "}) {
    check_three(read("a", with_separator(separator), "user,item,rating,time"), "columns");
  }
  check_three(read("a", "x,y,z,t\n3.5,-,b,10\n1,-,a,10\n5,-,a,9\n", "header: rating, - ,item,user"),
              "columns", false);
  REQUIRE_FALSE(read("a", "1,2\n", "user,item").has_ratings);
  CHECK_THAT(refusal("a", "u,i,r\n1,2,3\n", "user,item,rating"),
             EndsWith("line 1: the rating is 'r', expected a number; if the line has names, put "
                      "'header:' before the columns"));
  CHECK_THAT(refusal("u.data", "user\titem\trating\ttime\n" + tabs),
             EndsWith("line 1: the rating is 'rating', expected a number; if the line has names, "
                      "name the columns, such as header:user,item,rating,time"));
  CHECK_THAT(refusal("a", "1,2\n", "user,item,rating"),
             EndsWith("a, line 1: does not have 3 fields, one for each column, separated by tabs, "
                      "'::', ';', ',', '|' or spaces: '1,2'"));
  for (const char* columns : {"user", "item,rating", "user,item,user", "user,item,", ",",
                              "header:", "user;item", "user,item,rating,rating"}) {
    CHECK_THAT(refusal("a", "1,2,3\n", columns), ContainsSubstring("columns are"));
  }
  CHECK_THAT(test::message_of<InputError>([] { data::open_rating_data({.columns = "user,item"}); }),
             ContainsSubstring("columns are given without a path"));
}

TEST_CASE("a folder of ratings that the machine cannot list is no bad input") {
  const TemporaryFolder folder;
  const std::string path = folder.path("");
  CHECK(test::failure_with_files(0, [&] { data::read_rating_file(path, ""); }) ==
        path + ": cannot be read: Too many open files");
}

TEST_CASE("a folder must have exactly one file of ratings") {
  const TemporaryFolder folder;
  const auto open = [&] {
    return data::open_rating_data({.path = folder.path(""), .split = "none"});
  };
  const auto message = [&] { return test::message_of<InputError>(open); };
  CHECK_THAT(message(), ContainsSubstring("has no ratings in a known format. Looked for: u.data"));
  folder.file("README", "not this");
  folder.file("u.data.gz", test::gzipped(tabs));
  check_three(open(), "movielens");
  folder.file("ml.inter", "");
  CHECK_THAT(message(), ContainsSubstring("has ml.inter and u.data.gz, expected one file"));
  fs::remove(folder.path("u.data.gz"));
  CHECK_THAT(message(), EndsWith("ml.inter: is empty"));
  fs::remove(folder.path("ml.inter"));
  fs::create_directory(folder.path("u.data"));
  CHECK_THAT(message(), ContainsSubstring("has no ratings in a known format"));
  folder.file("ratings.csv", "");
  CHECK_THAT(message(), EndsWith("ratings.csv: is empty"));
  fs::remove(folder.path("ratings.csv"));
  fs::remove(folder.path("u.data"));
  REQUIRE(::mkfifo(folder.path("u.data").c_str(), 0600) == 0);
  CHECK_THAT(message(), EndsWith("u.data: is not a regular file"));
  CHECK_THAT(test::message_of<InputError>([] { data::open_rating_data({.path = "/no/such"}); }),
             EndsWith("/no/such: cannot be opened: No such file or directory"));
}

TEST_CASE("numbers of users and items do not depend on the order of the lines") {
  Strings lines = {"10,b", "9,a", "-3,a", "07,B", "7,\xC3\xA9"};
  do {
    const RatingData data = read("a", fmt::format("{}", fmt::join(lines, "\n")), "user,item");
    REQUIRE(data.user_ids == Strings{"-3", "07", "7", "9", "10"});
    REQUIRE(data.item_ids == Strings{"B", "a", "b", "\xC3\xA9"});
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto user = static_cast<size_t>(data.train.users[i]);
      const auto item = static_cast<size_t>(data.train.items[i]);
      REQUIRE(lines[i] == data.user_ids[user] + "," + data.item_ids[item]);
    }
  } while (std::next_permutation(lines.begin(), lines.end()));
  // If one id is not a whole number that fits int64_t, all ids are sorted by their bytes.
  REQUIRE(read("a", "10,1\n9,1\nx,1\n", "user,item").user_ids == Strings{"10", "9", "x"});
  REQUIRE(read("a", "10,1\n9,1\n9223372036854775808,1\n", "user,item").user_ids ==
          Strings{"10", "9", "9223372036854775808"});
}

TEST_CASE("many ids get the right numbers") {
  std::string text;
  for (int i = 0; i < 20'000; ++i) {
    text += fmt::format("{},item {}\n", (i * 7919) % 20'000, i * 31 % 5000);
  }
  const RatingData data = read("a", text, "user,item");
  REQUIRE(data.users() == 20'000);
  REQUIRE(data.items() == 5000);
  for (int i = 0; i < 20'000; ++i) {
    const auto at = static_cast<size_t>(i);
    REQUIRE(data.train.users[at] == i * 7919 % 20'000);
    REQUIRE(data.item_ids[static_cast<size_t>(data.train.items[at])] ==
            fmt::format("item {}", i * 31 % 5000));
  }
}

TEST_CASE("of several ratings of one user and item, the latest is kept, in its place") {
  const RatingData data =
      read("u.data", "1\t1\t1\t20\n2\t1\t2\t1\n1\t1\t3\t10\n1\t2\t4\t1\n2\t1\t5\t1\n");
  REQUIRE(data.dropped == 2);
  REQUIRE(data.train.users == Numbers{0, 0, 1});
  REQUIRE(data.train.items == Numbers{0, 1, 0});
  REQUIRE(data.train.values == std::vector<float>{1, 4, 5});  // of equal times, the last is kept
  REQUIRE(data.train.times == std::vector<double>{20, 1, 1});
  REQUIRE(data.description() ==
          "3 ratings of 2 items by 2 users: 3 to train on, 0 to validate; 2 more dropped, because "
          "a later one has the same user and item");
  const RatingData without_times = read("a", "1,1,3\n1,1,1\n1,1,2\n", "user,item,rating");
  REQUIRE(without_times.train.values == std::vector<float>{2});
}

TEST_CASE("a number may begin with a plus") {
  const RatingData data = read("u.data", "1\t2\t+3.5\t+4\n1\t3\t+2\t+0.5\n");
  REQUIRE(data.train.values == std::vector<float>{3.5f, 2});
  REQUIRE(data.train.times == std::vector<double>{4, 0.5});
}

TEST_CASE("invalid lines are refused, with file and line") {
  const std::string good = "1\t2\t3\t4\n";
  const auto second = [&](const std::string& line) {
    return refusal("u.data", good + line + "\n");
  };
  CHECK_THAT(second("1\t2\t3"), EndsWith("u.data, line 2: has 3 fields separated by tabs, "
                                         "expected 4: user, item, rating, time"));
  CHECK_THAT(second("1\t2\t3\t4\t5"), ContainsSubstring("line 2: has 5 fields"));
  CHECK_THAT(second("\t2\t3\t4"), EndsWith("line 2: has an empty user"));
  CHECK_THAT(second("1\t \t3\t4"), EndsWith("line 2: has an empty item"));
  for (const char* rating :
       {"nan", "inf", "-inf", "NAN", "", "x", "3x", "0x3", "+", "+-3", "++3", "3 4", "3,5"}) {
    CHECK_THAT(second("1\t2\t"s + rating + "\t4"), ContainsSubstring("line 2: the rating is '"));
  }
  CHECK_THAT(second("1\t2\t1e99\t4"),
             EndsWith("line 2: the rating '1e99' is too large or too small"));
  CHECK_THAT(second("1\t2\t3\tnan"), EndsWith("line 2: the time is 'nan', expected a number"));
  CHECK_THAT(second("1\t2\t3\t1e999"), ContainsSubstring("the time '1e999' is too large"));
  CHECK_THAT(second("1\t2\t3\t9223372036854775808"),
             ContainsSubstring("the time '9223372036854775808' is too large"));
  CHECK_THAT(second("1\t2\0\t3\t4"s), EndsWith("line 2: has a NUL byte, expected text"));
  CHECK_THAT(second("1\t\xff\t3\t4"), ContainsSubstring("line 2: is not UTF-8"));
  CHECK_THAT(second("\n" + good), EndsWith("line 2: is empty"));
  CHECK_THAT(second("a\x1b[1m\t2\t3\t4"),
             EndsWith("line 2: has a user with a control character: 'a\\x1b[1m'"));
  const auto long_id = [](size_t bytes) {
    return fmt::format("{}\t2\t3\t4", std::string(bytes, 'u'));
  };
  CHECK_THAT(second(long_id(257)),
             ContainsSubstring("line 2: has a user of 257 bytes, expected at most 256"));
  REQUIRE(read("u.data", long_id(256)).users() == 1);
  CHECK_THAT(refusal("u.data", ""), EndsWith("u.data: is empty"));
  CHECK_THAT(refusal("u.data", "\n\n"), EndsWith("u.data: is empty"));
  CHECK_THAT(refusal("u.data", "hello\n"),
             ContainsSubstring("line 1: begins with 'hello', expected"));
}

TEST_CASE("invalid headers are refused") {
  const auto csv = [](const std::string& header) { return refusal("a.csv", header + "\n1,2,3\n"); };
  CHECK_THAT(
      csv("userId,movieId,score"),
      ContainsSubstring("a.csv, line 1: the header has the column 'score', expected userId"));
  for (const char* first : {"1,2,3", "u1,i5,4.5,881250949", "uid,iid,stars"}) {
    CHECK_THAT(csv(first), ContainsSubstring("a.csv, line 1: is not a header such as userId,") &&
                               ContainsSubstring(first) &&
                               ContainsSubstring("name the columns, such as user,"));
  }
  CHECK_THAT(csv("userId,rating,time"), EndsWith("line 1: the header has no column item"));
  CHECK_THAT(csv("userId,user_id,movieId"), EndsWith("the header has the column user 2 times"));
  CHECK_THAT(refusal("a.csv", "userId,movieId\n"), EndsWith("a.csv: has a header and no ratings"));
  const auto inter = [](const std::string& header) {
    return refusal("a.inter", header + "\n1\t2\n");
  };
  CHECK_THAT(inter("1\t2"),
             ContainsSubstring("line 1: the header has the field '1', expected NAME"));
  CHECK_THAT(inter("user_id:token\titem_id:float"),
             EndsWith("'item_id:float', expected the type token"));
  CHECK_THAT(inter("user_id:token\tstars:float"), ContainsSubstring("has the field 'stars:float'"));
  CHECK_THAT(inter("user_id:token\trating:float"), EndsWith("the header has no column item"));
}

TEST_CASE("different ratings have different digests, and equal ratings the same") {
  const auto digest = [](const std::string& text, const std::string& split = "none") {
    return data::digest_of_ratings(read("u.data", text, "", split));
  };
  const std::set<uint64_t> digests = {
      digest(tabs),
      digest(tabs, "last"),
      digest(tabs + "9\tb\t5\t5\n"),
      digest("10\ta\t1\t881250950.25\n10\tb\t3.5\t881250949\n9\ta\t5\t5\n"),
      digest("10\tb\t3.5\t881250949\n10\ta\t1\t881250950.25\n9\ta\t5\t6\n"),
      digest("10\tb\t3.5\t881250949\n10\ta\t2\t881250950.25\n9\ta\t5\t5\n"),
      digest("10\tb\t3.5\t881250949\n10\tc\t1\t881250950.25\n9\tc\t5\t5\n")};
  REQUIRE(digests.size() == 7);
  // A double holds only the first of these two times.
  REQUIRE(digest("1\t2\t3\t9007199254740992\n") != digest("1\t2\t3\t9007199254740993\n"));
  REQUIRE(digest(tabs) == data::digest_of_ratings(read("x.gz", test::gzipped(tabs))));
}

TEST_CASE("MovieLens 100K, if it is there") {
  const auto root = fs::path(__FILE__).parent_path().parent_path().parent_path();
  const std::string path = root.parent_path() / "shared" / "data" / "ml-100k";
  if (!fs::exists(path + "/u.data")) TESSERA_SKIP("no " + path + "/u.data");
  const RatingData data = data::open_rating_data({.path = path, .split = "fold:2/5", .seed = 1});
  REQUIRE(data.description() ==
          "100,000 ratings of 1,682 items by 943 users: 80,000 to train on, 20,000 to validate");
  REQUIRE(data.user_ids[195] == "196");
  double sum = 0.0;
  for (const auto* part : {&data.train, &data.validation}) {
    for (const float value : part->values) sum += value;
  }
  REQUIRE(sum == 352986.0);  // the mean is 3.52986
  const RatingData last = data::open_rating_data({.path = path, .split = "last"});
  REQUIRE(last.validation.size() == 943);
}
