// Tests the behaviour that the flags of all programs share.
#include "apps/console/flags.h"

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "apps/checkpoint_options.h"
#include "apps/comm_bench_options.h"
#include "apps/console/shell_word.h"
#include "apps/generate_options.h"
#include "apps/predict_options.h"
#include "apps/recommend_options.h"
#include "apps/relaunch_options.h"
#include "apps/report_options.h"
#include "apps/train_gpt_options.h"
#include "apps/train_recommender_options.h"
#include "apps/train_resnet_options.h"
#include "apps/tune_options.h"
#include "apps/zero_plan_options.h"
#include "core/version.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/report/run_log.h"

using namespace tessera;
using namespace tessera::apps;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Equals;
using namespace std::string_literals;

namespace {

// A program with a flag of each kind.
struct Program {
  std::string text = "before";
  int64_t integer = 7;
  float small = 0.5f;
  double large = 0.5;
  bool flag = false;
  std::optional<int64_t> bytes;
  std::vector<int32_t> list = {1};
  std::vector<std::string> files;
  std::string first;

  std::string parse(const std::vector<const char*>& arguments) {
    Flags flags("What it does", "program");
    flags.add_config("A file of flags");
    flags.add_option("--text,--label", text, "Any text");
    flags.add_option("--integer", integer, "A whole number")->capture_default_str();
    flags.add_option("--small", small, "A float")->group("Numbers");
    flags.add_option("--large", large, "A double")->group("Numbers");
    flags.add_flag("--flag", flag, "Yes or no");
    flags.add_bytes("--bytes", bytes, "A size");
    flags.add_option("--list", list, "Several")->list(',');
    flags.add_option("first,--first", first, "An argument");
    flags.add_option("files,--files", files, "Others");
    std::vector<const char*> all = {"program"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return flags.parse(static_cast<int>(all.size()), all.data());
  }
};

std::string refusal(const std::vector<const char*>& arguments) {
  return test::message_of<InputError>([&] { Program().parse(arguments); });
}

using Parser = std::function<std::string(std::vector<const char*>)>;

// `words` are the first words of the command line: the program's name and, for some, a command.
template <class Function>
Parser parser(const std::vector<const char*>& words, Function function) {
  return [=](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), words.begin(), words.end());
    return function(static_cast<int>(arguments.size()), arguments.data()).help;
  };
}

// All programs, and the commands of checkpoint.
const std::map<std::string, Parser>& programs() {
  static const std::map<std::string, Parser> all = {
      {"checkpoint", parser({"checkpoint"}, parse_checkpoint_command_line)},
      {"checkpoint diff", parser({"checkpoint", "diff"}, parse_checkpoint_command_line)},
      {"checkpoint export", parser({"checkpoint", "export"}, parse_checkpoint_command_line)},
      {"checkpoint import", parser({"checkpoint", "import"}, parse_checkpoint_command_line)},
      {"checkpoint inspect", parser({"checkpoint", "inspect"}, parse_checkpoint_command_line)},
      {"checkpoint verify", parser({"checkpoint", "verify"}, parse_checkpoint_command_line)},
      {"comm_bench", parser({"comm_bench"}, parse_comm_command_line)},
      {"generate", parser({"generate"}, parse_generate_command_line)},
      {"predict", parser({"predict"}, parse_predict_command_line)},
      {"recommend", parser({"recommend"}, parse_recommend_command_line)},
      {"relaunch", parser({"relaunch"}, parse_relaunch_command_line)},
      {"report", parser({"report"}, parse_report_command_line)},
      {"train_gpt", parser({"train_gpt"}, parse_command_line)},
      {"train_recommender", parser({"train_recommender"}, parse_recommender_command_line)},
      {"train_resnet", parser({"train_resnet"}, parse_image_command_line)},
      {"tune", parser({"tune"}, parse_tune_command_line)},
      {"zero_plan", parser({"zero_plan"}, parse_plan_command_line)},
  };
  return all;
}

}  // namespace

TEST_CASE("the help says the default of each number and size") {
  // These flags have no default. Without --save-every, --save writes weights only at the end. The
  // flag --table requires --lookups, and --lookups is refused without --table.
  const std::set<std::string> without = {"--save-every", "--lookups"};
  for (const auto& [name, parse] : programs()) {
    INFO(name);
    const std::string help = parse({"--help"});
    for (size_t at = help.find("\n  --"); at != std::string::npos;) {
      const size_t end = help.find("\n  --", at + 1);
      const std::string entry = help.substr(at, end - at);
      at = end;
      std::istringstream words(entry);
      std::string flag, type, next;
      words >> flag >> type >> next;
      const bool number = type.starts_with("INT") || type.starts_with("FLOAT") || type == "BYTES";
      if (!number || without.contains(flag)) continue;
      INFO(entry);
      const bool captured = type.find('=') != std::string::npos || next.starts_with("[");
      CHECK((captured || entry.find("(default:") != std::string::npos));
    }
  }
}

TEST_CASE("the help has the defaults of each preset") {
  std::string help;
  for (const char c : programs().at("train_gpt")({"--help"})) {
    if (c != ' ' && c != '\n') help += c;  // the help may be broken into lines anywhere
  }
  for (const char* text :
       {"(default:2000fornano;5000formicro;20000forgpt2,gpt2-medium,gpt2-large,gpt2-xl)",
        "(default:0.001fornano,micro;0.0006forgpt2;0.0003forgpt2-medium;0.00025forgpt2-large;"
        "0.0002forgpt2-xl;withsgd100timesasmuch)",
        "(default:512KiBfornano;4096KiBformicro,gpt2,", "(default:250)"}) {
    CHECK_THAT(help, ContainsSubstring(text));
  }
}

TEST_CASE("flags of every kind are read, with and without =") {
  Program program;
  CHECK(program.parse({"--label=a b", "--integer", "-9223372036854775808", "--small", ".5e-3",
                       "--large=+1e300", "--flag", "--bytes", "1MiB", "--list", "3,-4", "one",
                       "--list=5", "two", "--files=--three"}) == "");
  CHECK(program.text == "a b");
  CHECK(program.integer == INT64_MIN);
  CHECK(program.small == 0.5e-3f);
  CHECK(program.large == 1e300);
  CHECK(program.flag);
  CHECK(program.bytes == int64_t{1} << 20);
  CHECK(program.list == std::vector<int32_t>{5});
  CHECK(program.first == "one");
  CHECK(program.files == std::vector<std::string>{"two", "--three"});
  CHECK(Program().parse({"--integer", "8", "--integer", "9"}) == "");

  Program named;
  CHECK(named.parse({"b", "c", "--files", "d", "e", "--flag"}) == "");
  CHECK(named.first == "b");
  CHECK(named.files == std::vector<std::string>{"c", "d", "e"});
}

TEST_CASE("all texts that were given for a repeated flag can be asked for") {
  Flags flags("What it does", "program");
  std::string data;
  flags.add_option("--data", data, "Any text");
  const char* const arguments[] = {"program", "--data", "a", "--data=b"};
  CHECK(flags.parse(4, arguments) == "");
  CHECK(data == "b");
  CHECK(flags.texts_of("--data") == std::vector<std::string>{"a", "b"});
  CHECK(flags.texts_of("--init").empty());
}

TEST_CASE("a number that its type cannot hold is refused, not changed") {
  CHECK_THAT(refusal({"--integer", "9223372036854775808"}),
             Equals("--integer is 9223372036854775808, which is too large"));
  CHECK_THAT(refusal({"--integer", "-9223372036854775809"}),
             Equals("--integer is -9223372036854775809, which is too small"));
  CHECK_THAT(refusal({"--list", "1,2147483648"}),
             Equals("--list is 2147483648, expected at most 2147483647"));
  for (const char* text : {"ten", "1.5", "1e3", "0x10", "1 ", " 1", "--1", "++1", "+-1", "nan"}) {
    INFO(text);
    const std::string flag = std::string("--integer=") + text;
    CHECK_THAT(refusal({flag.c_str()}), ContainsSubstring("expected a whole number"));
  }
  CHECK_THAT(refusal({"--small", "1e39"}), Equals("--small is '1e39', which a float cannot hold"));
  CHECK_THAT(refusal({"--small", "1e-60"}), ContainsSubstring("which a float cannot hold"));
  CHECK_THAT(refusal({"--large", "1e999"}), ContainsSubstring("which a double cannot hold"));
  for (const char* text : {"nan", "inf", "-inf", "infinity", "NAN"}) {
    CHECK_THAT(refusal({"--small", text}), ContainsSubstring("expected a finite number"));
    CHECK_THAT(refusal({"--large", text}), ContainsSubstring("expected a finite number"));
  }
  CHECK_THAT(refusal({"--small", "1,5"}), Equals("--small is '1,5', expected a number"));
  Program leading_zero;
  leading_zero.parse({"--integer", "010"});
  CHECK(leading_zero.integer == 10);
}

TEST_CASE("sizes in bytes take units, and are exact") {
  const auto bytes = [](const char* text) {
    Program program;
    program.parse({"--bytes", text});
    return *program.bytes;
  };
  CHECK(bytes("512KiB") == 512 * 1024);
  CHECK(bytes("1.5kB") == 1500);
  CHECK(bytes("9007199254740993") == 9007199254740993);  // 2^53 + 1, which no double can represent
  CHECK_THAT(refusal({"--bytes", "9223372036854775808"}), ContainsSubstring("1 byte to 4 EB"));
  for (const char* text : {"0", "-1", "1e400", "nan", "inf", "1XB", "MiB", "1iB", "0x10"}) {
    INFO(text);
    CHECK_THAT(refusal({"--bytes", text}), ContainsSubstring("--bytes is '"));
  }
}

TEST_CASE("text becomes one word of a shell's command line, in quotes only where needed") {
  CHECK(shell_word("runs/a-1_b.json") == "runs/a-1_b.json");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("-x") == "./-x");
  CHECK(shell_word("my runs") == "'my runs'");
  CHECK(shell_word("~/$HOME `a` \\") == "'~/$HOME `a` \\'");
  CHECK(shell_word("Ann's") == "'Ann'\\''s'");
  CHECK(shell_word("\xc3\xa9") == "'\xc3\xa9'");
  CHECK(shell_word("a\n'\\\x7f") == "$'a\\012\\047\\134\\177'");
}

TEST_CASE("every flag of every program refuses an empty value and an unknown flag") {
  int64_t tried = 0;
  for (const auto& [name, parse] : programs()) {
    std::istringstream help(parse({"--help"}));
    for (std::string line; std::getline(help, line);) {
      const size_t begin = line.find("--");
      const size_t end = line.find_first_of(" ,", begin);
      if (!line.starts_with("  -")) continue;  // this line does not begin a flag
      const std::string flag = line.substr(begin, end - begin);
      if (flag == "--help" || flag == "--version") continue;
      INFO(name << " " << flag);
      const std::string glued = flag + "=";
      CHECK_THAT(test::message_of<InputError>([&] { parse({glued.c_str()}); }),
                 ContainsSubstring(flag + " is "));
      ++tried;
    }
    CHECK_THAT(test::message_of<InputError>([&] {
                 parse({"--no-such", "3"});
               }),
               ContainsSubstring("unknown flag --no-such"));
  }
  CHECK(tried > 100);
  CHECK_THAT(refusal({"--integer", ""}), Equals("--integer is empty, expected a whole number"));
  CHECK_THAT(refusal({"--small", ""}), Equals("--small is empty, expected a number"));
  CHECK_THAT(refusal({"--text", ""}), Equals("--text is empty, expected a value"));
  CHECK_THAT(refusal({"--list", "1,,2"}),
             Equals("--list is '1,,2', and one of its values is empty"));
  CHECK_THAT(refusal({""}), Equals("an argument is empty, expected a value"));
}

TEST_CASE("a flag without its value, and a value without its flag, are refused by name") {
  CHECK_THAT(refusal({"--integer"}), Equals("--integer has no value"));
  CHECK_THAT(refusal({"--text", "--integer", "3"}),
             Equals("--text has no value; a value that begins with -- is given as --text=VALUE"));
  CHECK_THAT(refusal({"--flag=7"}), Equals("--flag is '7', expected true or false"));
  CHECK_THAT(refusal({"--help=7"}), Equals("--help takes no value"));
  Program no;
  no.parse({"--flag", "--flag=false"});
  CHECK_FALSE(no.flag);
  CHECK_THAT(test::message_of<InputError>([] { programs().at("train_gpt")({"2"}); }),
             Equals("unexpected argument '2'; flags begin with --"));
}

TEST_CASE("an argument is never dropped or split") {
  CHECK_THAT(refusal({"a", "--first", "b"}),
             Equals("first is given both by position and as --first, expected one of them"));
  CHECK(Program().parse({"--first", "a", "--first=b"}) == "");
  CHECK_THAT(refusal({"a", "[b,c]"}),
             Equals("'[b,c]' is in brackets; give a file of this name as ./[b,c]"));
  CHECK_THAT(refusal({"--files=[b]"}), ContainsSubstring("'[b]' is in brackets"));
  CHECK_THAT(refusal({"--files", "[b]"}), ContainsSubstring("'[b]' is in brackets"));
  CHECK_THAT(refusal({"--flag={}"}), Equals("--flag is '{}', expected true or false"));
  CHECK_THAT(refusal({"--files", "a", "--", "--text"}),
             Equals("-- is not accepted alone; give a value that begins with - as --NAME=VALUE"));
}

TEST_CASE("every program prints its version and its flags") {
  for (const auto& [name, parse] : programs()) {
    CHECK(parse({"--version"}) == name + " " + version() + "\n");
    CHECK_THAT(parse({"--foo", "-h"}), ContainsSubstring("Usage: " + name + " [OPTIONS]"));
  }
  const std::string help = Program().parse({"--help"});
  CHECK_THAT(help,
             ContainsSubstring("What it does\nUsage: program [OPTIONS] [first] [files...]\n"));
  CHECK_THAT(help, ContainsSubstring("\n  --integer INT=7             A whole number\n"));
  CHECK_THAT(help, ContainsSubstring("\nNumbers:\n  --small FLOAT               A float\n"));
}

TEST_CASE("a file of flags is read line by line, and the command line overrides it") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("run.cfg",
                                       "# a comment\n"
                                       "\n"
                                       "  integer = 3   # behind a value\r\n"
                                       "small=.25\n"
                                       "text = \"a # b\" # quotes keep it\n"
                                       "flag = true\n"
                                       "bytes = 2KiB\n"
                                       "list = 5,6");
  Program program;
  program.parse({"--config", path.c_str(), "--small", "0.5", "--list", "7"});
  CHECK(program.integer == 3);
  CHECK(program.small == 0.5f);
  CHECK(program.text == "a # b");
  CHECK(program.flag);
  CHECK(program.bytes == 2048);
  CHECK(program.list == std::vector<int32_t>{7});
  Program path_with_hash;
  path_with_hash.parse({("--config=" + folder.file("b.cfg", "text = a#b")).c_str()});
  CHECK(path_with_hash.text == "a#b");
}

TEST_CASE("an invalid line in a file of flags is refused with its file and line") {
  const test::TemporaryFolder folder;
  const auto refused = [&](const std::string& text) {
    const std::string path = folder.file("run.cfg", text);
    const std::string message = refusal({"--config", path.c_str()});
    INFO(message);
    REQUIRE(message.starts_with(path));
    return message.substr(path.size());
  };
  CHECK(refused("\nnonsense\n") == ":2: 'nonsense' is not a flag, expected NAME = VALUE");
  CHECK(refused("[section]") == ":1: '[section]' is not a flag, expected NAME = VALUE");
  CHECK(refused("= 3") == ":1: '= 3' is not a flag, expected NAME = VALUE");
  CHECK(refused("two words = 3") == ":1: 'two words = 3' is not a flag, expected NAME = VALUE");
  CHECK(refused("\x7f"
                "ELF\x02\x01") == ":1: ' ELF  ' is not a flag, expected NAME = VALUE");
  CHECK(refused("# c\nflag = 7") == ":2: flag is '7', expected true or false");
  CHECK(refused("flag") == ":1: 'flag' is not a flag, expected NAME = VALUE");
  CHECK(refused("integer =") == ":1: integer is empty, expected a whole number");
  CHECK(refused("integer = # 3") == ":1: integer is empty, expected a whole number");
  CHECK(refused("integer = 1 2") == ":1: integer is '1 2', expected a whole number");
  CHECK(refused("text = \"a") == ":1: the closing quotation mark is missing");
  CHECK(refused("text = 'a' b") == ":1: 'b' follows a value in quotes");
  CHECK(refused("flag = true\ntext = a\0b.jsonl\n"s) == ":2: has a NUL byte, expected text");
  CHECK(refused("# a\0comment"s) == ":1: has a NUL byte, expected text");
  CHECK(refused("intger = 3") ==
        ":1: 'intger' is not a flag that a file can set; did you mean integer?");
  CHECK(refused("--integer = 3") ==
        ":1: '--integer' is not a flag that a file can set; did you mean integer?");
  CHECK(refused("wholly_other = 3") == ":1: 'wholly_other' is not a flag that a file can set");
  CHECK(refused("config = a") == ":1: 'config' is not a flag that a file can set");
  CHECK(refused("help = true") == ":1: 'help' is not a flag that a file can set");
  const std::string twice = refused("text = a\nsmall = 1\nlabel = b\n");
  CHECK(twice == ":3: label is given in " + folder.path("run.cfg") + ":1 too");
  CHECK_THAT(refused(std::string((1 << 20) + 1, '\n')), ContainsSubstring("expected at most"));
  CHECK_THAT(refusal({"--config", "/no/such"}), ContainsSubstring("/no/such: cannot be opened"));
  CHECK_THAT(refusal({"--config", "/dev/zero"}), ContainsSubstring("is not a regular file"));
}

TEST_CASE("the error for an unknown flag suggests the nearest flag, whatever follows it") {
  const auto of_train = [](const std::vector<const char*>& arguments) {
    return test::message_of<InputError>([&] { programs().at("train_gpt")(arguments); });
  };
  CHECK(of_train({"--stpes", "2"}) == "unknown flag --stpes; did you mean --steps?");
  CHECK(of_train({"--stpes=2"}) == "unknown flag --stpes; did you mean --steps?");
  CHECK(of_train({"--bucket-byte", "2"}) ==
        "unknown flag --bucket-byte; did you mean --bucket-bytes?");
  CHECK(of_train({"--global_batch", "2"}) ==
        "unknown flag --global_batch; did you mean --global-batch?");
  CHECK(of_train({"-steps", "2"}) == "unknown flag -steps; did you mean --steps?");
  CHECK(of_train({"--quantum"}) == "unknown flag --quantum; --help lists all flags");
  CHECK(of_train({"--foo"}) == "unknown flag --foo; --help lists all flags");
  const std::string hostile = of_train({("--a\nb" + std::string(100'000, 'x')).c_str()});
  CHECK(hostile.starts_with("unknown flag --a bxxx"));
  CHECK(hostile.size() < 200);
  CHECK(of_train({"-x"}) == "unknown flag -x; --help lists all flags");
}
