#include "course/lib/grade.h"

#include <cstdio>
#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/number_text.h"

namespace course {
namespace {

// Thrown on every rank to end a check after a requirement was not met. It is not a program error.
struct NotMet {};

// Reads lines `key = value`. A # begins a comment. The value ? means that the prediction is
// missing. Commas in a value are dropped: 1,024 is 1024.
std::map<std::string, std::string> read_predictions(const std::string& path) {
  std::map<std::string, std::string> result;
  std::ifstream file(path);
  if (!file) fail_input("{}: cannot be read", path);
  const auto trimmed = [](const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t,");
    return begin == std::string::npos
               ? std::string()
               : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
  };
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    const size_t equals = line.find('=');
    if (equals == std::string::npos) {
      if (!trimmed(line).empty()) fail_input("{}: expected 'key = value' in: {}", path, line);
      continue;
    }
    std::string value = trimmed(line.substr(equals + 1));
    std::erase(value, ',');
    result[trimmed(line.substr(0, equals))] = value;
  }
  return result;
}

}  // namespace

void Grade::print(const std::string& line) const {
  if (world_.rank != 0) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Grade::require(const std::string& requirement, const std::string& wrong) {
  const std::vector<std::string> all = dist::gather_text(communicator(), wrong);
  std::string found;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    found = fmt::format("  NO  {}\n      rank {}: {}", requirement, rank, all[rank]);
    break;  // one message is enough: usually all ranks have the same message
  }
  found = dist::broadcast_text(communicator(), found);
  if (found.empty()) {
    print("  ok  " + requirement);
    return;
  }
  print(found);
  throw NotMet{};
}

void Grade::predicted(const std::string& key, int64_t measured) {
  if (!predictions_) {
    print(fmt::format("      measured: {} = {}", key, grouped(measured)));
    return;
  }
  const auto found = predictions_->find(key);
  std::string wrong;
  if (found == predictions_->end()) {
    wrong = fmt::format("there is no line '{} = ...' in the predictions", key);
  } else if (found->second == "?") {
    wrong = fmt::format("predict '{}' before you measure: replace the ?", key);
  } else if (found->second.find_first_not_of("-0123456789") != std::string::npos) {
    wrong =
        fmt::format("'{} = {}': expected a number, without unit or formula", key, found->second);
  } else if (found->second != std::to_string(measured)) {
    wrong = fmt::format(
        "you predicted {} = {}, but another number was measured. If `--predict` says that your "
        "prediction is right, your program does something else; otherwise read the lesson again, "
        "and then answers.md, which derives the number",
        key, found->second);
  }
  require("prediction: " + key, world_.rank == 0 ? wrong : "");
}

int grade(int argc, char** argv, const std::string& title,
          const std::function<void(Grade&)>& check) {
  return dist::run(argc, argv, [&](dist::World& world) {
    // If a rank is missing in a collective, the collective fails after 30 s, and the error names
    // the rank. Without this timeout, course/check would stop the job later, and no error would
    // name the rank.
    world.communicator->set_timeout(30);
    Grade::Predictions predictions;
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      if (argument != "--predictions") {
        fail_input("unknown argument '{}', expected --predictions FILE", argument);
      }
      if (i + 1 == argc) fail_input("--predictions needs a file");
      predictions = read_predictions(argv[++i]);
    }
    Grade grade(world, std::move(predictions));
    if (world.rank == 0) {
      std::printf("%s, on %d rank%s\n", title.c_str(), world.size, world.size == 1 ? "" : "s");
    }
    try {
      check(grade);
    } catch (const NotMet&) {
      // Every rank throws NotMet, so the job ends without an abort.
      return 1;
    } catch (const std::exception&) {
      // dist::run prints the error after the line "  at  ...". course/check turns the line and the
      // error into a requirement that is not met.
      if (!grade.at().empty()) std::printf("  at  %s\n", grade.at().c_str());
      std::fflush(stdout);
      throw;
    }
    return 0;
  });
}

std::string grouped(int64_t number) { return tessera::grouped(number); }

}  // namespace course
