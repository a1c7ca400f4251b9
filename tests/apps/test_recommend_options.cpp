#include "apps/recommend_options.h"

#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"

namespace tessera::apps {
namespace {

using Catch::Matchers::ContainsSubstring;

RecommendCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "recommend");
  return parse_recommend_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST_CASE("recommend takes the model and the users as arguments or as flags") {
  const RecommendOptions options = parse({"m.safetensors", "--user", "196"}).options;
  CHECK(options.model == "m.safetensors");
  CHECK(options.users == std::vector<std::string>{"196"});
  CHECK(options.items.empty());
  CHECK(options.top == 10);
  CHECK_FALSE(options.all);
  CHECK(options.device == "auto");
  CHECK(options.threads == 0);
  CHECK(parse({"m", "a", "b c"}).options.users == std::vector<std::string>{"a", "b c"});
  const RecommendOptions all =
      parse({"--user", "a", "--model", "m", "--user=b", "--top", "3", "--items", "u.item", "--all",
             "--device", "cpu", "--threads", "2"})
          .options;
  CHECK(all.model == "m");
  CHECK(all.users == std::vector<std::string>{"a", "b"});
  CHECK(all.top == 3);
  CHECK(all.items == "u.item");
  CHECK(all.all);
  CHECK(all.device == "cpu");
  CHECK(all.threads == 2);
  CHECK_FALSE(parse({"--help"}).help.empty());
}

TEST_CASE("recommend refuses invalid arguments") {
  CHECK_THROWS_WITH(parse({}), ContainsSubstring("a model and users are required"));
  CHECK_THROWS_WITH(parse({"m"}), ContainsSubstring("--user ID"));
  CHECK_THROWS_WITH(parse({"--user", "a"}), ContainsSubstring("are required"));
  CHECK_THROWS_WITH(parse({"m", "a", "--top", "0"}), ContainsSubstring("--top"));
  CHECK_THROWS_WITH(parse({"m", "a", "--threads", "-1"}), ContainsSubstring("--threads"));
  for (const std::vector<const char*>& arguments :
       std::vector<std::vector<const char*>>{{"m", "a", "--foo"},
                                             {"m", "a", ""},
                                             {"m", "a", "--user", ""},
                                             {"m", "a", "--model", "n"},
                                             {"m", "a", "--top", "1.5"},
                                             {"m", "a", "--top"},
                                             {"m", "a", "--top", "9223372036854775808"},
                                             {"m", "a", "--threads", "4097"},
                                             {"m", "a", "--device", "tpu"},
                                             {"m", "a", "--all=7"},
                                             {"m", "--user"}}) {
    CAPTURE(arguments.back());
    CHECK_THROWS_AS(parse(arguments), InputError);
  }
}

}  // namespace
}  // namespace tessera::apps
