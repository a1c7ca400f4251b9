#include "data/ratings/item_titles.h"

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/image_files.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;

namespace {

using Titles = std::map<std::string, std::string>;

Titles read(const std::string& name, const std::string& bytes) {
  const test::TemporaryFolder folder;
  return data::read_item_titles(folder.file(name, bytes));
}

std::string refusal(const std::string& name, const std::string& bytes) {
  return test::message_of<InputError>([&] { read(name, bytes); });
}

}  // namespace

TEST_CASE("titles of items are read from MovieLens' and RecBole's files") {
  const Titles expected = {{"1", "Toy Story (1995)"}, {"2", "Les Mis\xC3\xA9rables, \"1998\""}};
  const std::string latin1 =
      "1|Toy Story (1995)|01-Jan-1995||http://x/|0\n"
      "2|Les Mis\xE9rables, \"1998\"|||http://x/|1\n";
  REQUIRE(read("u.item", latin1) == expected);
  REQUIRE(read("u.item.gz", test::gzipped(latin1)) == expected);
  const std::string dat = "1::Toy Story (1995)::Animation|Comedy\r\n2::Les Mis";
  REQUIRE(read("movies.dat", dat + "\xE9rables, \"1998\"::Drama") == expected);
  REQUIRE(read("movies.dat", dat + "\xC3\xA9rables, \"1998\"::Drama") == expected);
  REQUIRE(read("movies.csv",
               "movieId,title,genres\n1,Toy Story (1995),A|B\n"
               "2,\"Les Mis\xC3\xA9rables, \"\"1998\"\"\",C\n") == expected);
  REQUIRE(read("ml.item",
               "item_id:token\tmovie_title:token_seq\tyear:token\n"
               "1\tToy Story (1995)\t1995\n"
               "2\tLes Mis\xC3\xA9rables, \"1998\"\t1998\n") == expected);
}

TEST_CASE("invalid files of titles are refused, with the line") {
  CHECK_THAT(refusal("movies.csv", "movieId,title\n1,a\n2,b\xE9\n"),
             EndsWith("movies.csv, line 3: is not UTF-8: '2,b\\xe9'"));
  CHECK_THAT(refusal("u.item", "1|a|x\n2|b\n"),
             EndsWith("u.item, line 2: has 2 fields separated by '|', expected 3"));
  CHECK_THAT(refusal("u.item", "1|a\n2|b\x1b[2J\n"),
             EndsWith("u.item, line 2: has a control character: 'b\\x1b[2J'"));
  CHECK_THAT(refusal("u.item", "1|a\n1|b\n"), EndsWith("line 2: has the item '1' a second time"));
  CHECK_THAT(refusal("u.item", "1|a\n|b\n"), EndsWith("line 2: has an empty item"));
  CHECK_THAT(refusal("movies.csv", "movieId,name\n1,a\n"),
             EndsWith("line 1: the header has no field for titles: 'movieId,name'"));
  CHECK_THAT(refusal("a.item", "id:token\ttitle:token\n"),
             ContainsSubstring("line 1: the header has no field for ids"));
  CHECK_THAT(refusal("movies.csv", "movieId,title\n"), EndsWith("has a header and no titles"));
  CHECK_THAT(refusal("u.item", ""), EndsWith("u.item: is empty"));
  CHECK_THAT(refusal("u.item", "hello\n"), ContainsSubstring("line 1: begins with 'hello'"));
}
