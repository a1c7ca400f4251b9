#include "apps/relaunch_options.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>

#include "apps/console/config_file.h"
#include "apps/console/console.h"
#include "apps/console/flag_value.h"
#include "apps/console/flags.h"
#include "core/error.h"
#include "core/text/number_text.h"

namespace tessera::apps {
namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

// `own` has the words before the --, or all words if there is no --. Refuses a word that is neither
// a flag nor a flag's value, such as a program. Otherwise relaunch would take the program's flags
// for its own. A flag's value is the next word, unless the flag's own word has the value, as in
// --ranks=4. A word such as -n4 has its value too, but Flags::parse refuses it later.
void check_program_place(std::span<const char* const> own) {
  bool is_value = true;  // accepts the first word, which is the name of relaunch
  for (const std::string_view word : own) {
    const bool is_flag = word.starts_with("-");
    if (!is_flag && !is_value) {
      fail_input("{}: write -- before the program to run: relaunch -n 4 -- train_gpt ...",
                 quoted(std::string(word)));
    }
    const bool has_own_value =
        word.starts_with("--") ? word.find('=') != word.npos : word.size() > 2;
    is_value = is_flag && !has_own_value;
  }
}

void check_hosts(RelaunchOptions& options, const std::string& hosts, bool ranks_given) {
  if (hosts.empty()) return;
  options.hosts = parse_hosts(hosts);
  const auto slots = static_cast<int>(slots_of(options.hosts));
  if (!ranks_given) options.ranks = slots;
  if (options.ranks != slots) {
    fail_input("--ranks is {}, but --hosts {} has places for {}", options.ranks, hosts, slots);
  }
}

// Returns the value of a flag in the program's arguments; if the flag occurs twice, the last value.
std::optional<std::string> value_in(const std::vector<std::string>& command,
                                    std::string_view flag) {
  std::optional<std::string> value;
  for (size_t i = 0; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == flag && i + 1 < command.size()) value = command[i + 1];
    if (word.starts_with(flag) && word.substr(flag.size(), 1) == "=") {
      value = word.substr(flag.size() + 1);
    }
  }
  return value;
}

// Returns the value of `resume` in the program's file of --config, if there is one.
std::optional<std::string> resume_in_file(const std::vector<std::string>& command) {
  const std::optional<std::string> path = value_in(command, "--config");
  if (!path) return std::nullopt;
  std::optional<std::string> value;
  try {
    for (const ConfigLine& line : read_config(*path)) {
      if (line.name != "resume") continue;
      // The setting `resume` of another program may mean something else, as in `resume = true`. So
      // only `never` and existing paths count.
      std::error_code error;
      if (line.value == "never" || std::filesystem::exists(line.value, error)) value = line.value;
    }
  } catch (const InputError&) {
    // This is no error, because a program that is not Tessera's may have config files of another
    // format. A program of Tessera's will report what is wrong with its config file.
    return std::nullopt;
  }
  return value;
}

// Refuses --resume with any value but latest. With a checkpoint as the value, each restart would go
// back to this checkpoint. With --resume never, each restart would go back to the first step.
void check_resume(const std::vector<std::string>& command) {
  std::optional<std::string> value = value_in(command, "--resume");
  if (!value) value = resume_in_file(command);
  if (!value || value->empty() || value == "latest") return;
  fail_input(
      "--resume {}: every restart would go back to this start, expected latest; to begin with a "
      "checkpoint, copy it to the folder of --checkpoint",
      *value);
}

// Adds the program to the usage line of the help, because Flags gets only the words before the --.
std::string with_program(std::string help) {
  constexpr std::string_view usage = "Usage: relaunch [OPTIONS]";
  const size_t at = help.find(usage);
  if (at != help.npos) help.insert(at + usage.size(), " -- PROGRAM [ARGUMENTS]");
  return help;
}

}  // namespace

RelaunchCommandLine parse_relaunch_command_line(int argc, const char* const* argv) {
  const std::span<const char* const> arguments(argv, static_cast<size_t>(argc));
  const auto dashes = std::ranges::find(arguments, std::string_view("--"));
  RelaunchCommandLine result;
  RelaunchOptions& options = result.options;
  std::string hosts;
  std::string mpirun = "mpirun";
  std::optional<int64_t> ranks;
  int64_t min_ranks = options.min_ranks;
  int64_t restarts = options.restarts;
  Flags app(
      "Starts a program under mpirun, and starts it again without the ranks that were lost:\n"
      "  relaunch -n 4 --min-ranks 2 -- train_gpt --data text.txt --checkpoint runs/a "
      "--checkpoint-every 100",
      "relaunch");
  app.add_option("-n,--ranks", ranks,
                 "Number of ranks to begin with (default: all places of --hosts)");
  app.add_option(
      "--hosts", hosts,
      "Hosts on which ranks run, with the places for ranks on each: NAME:RANKS,NAME:RANKS");
  app.add_option("--min-ranks", min_ranks,
                 "Smallest number of ranks to go on with; if fewer are left, the run ends")
      ->capture_default_str();
  app.add_option("--restarts", restarts, "How often the program may be started again")
      ->capture_default_str();
  app.add_option("--mpirun", mpirun, "Launcher of the ranks, with its own arguments")
      ->capture_default_str();
  const auto own = static_cast<size_t>(dashes - arguments.begin());
  check_program_place(arguments.first(own));
  result.help = with_program(app.parse(static_cast<int>(own), argv));
  if (!result.help.empty()) return result;

  constexpr int64_t most = 1 << 20;
  for (const auto& [flag, value, least] : {std::tuple("--ranks", ranks.value_or(1), int64_t{1}),
                                           {"--min-ranks", min_ranks, 1},
                                           {"--restarts", restarts, 0}}) {
    at_least(flag, value, least);
    at_most(flag, value, most);
  }
  options.ranks = static_cast<int>(ranks.value_or(0));
  options.min_ranks = static_cast<int>(min_ranks);
  options.restarts = static_cast<int>(restarts);
  check_hosts(options, hosts, ranks.has_value());
  if (options.ranks == 0) fail_input("--ranks: give the number of ranks, or --hosts");
  if (options.min_ranks > options.ranks) {
    fail_input("--min-ranks is {}, expected at most the {} to begin with", min_ranks,
               counted(options.ranks, "rank"));
  }
  options.mpirun = words(mpirun);
  if (options.mpirun.empty()) fail_input("--mpirun is empty");
  if (dashes != arguments.end()) options.command.assign(dashes + 1, arguments.end());
  check_resume(options.command);
  if (options.command.empty()) {
    fail_input("the program to run is missing: relaunch -n 4 -- train_gpt ...");
  }
  return result;
}

}  // namespace tessera::apps
