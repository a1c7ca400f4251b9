// Grading. A check is a list of requirements, in the order in which a student's code is expected to
// fulfil them. The check stops at the first requirement that is not met, and prints a message with
// the values that were found, the rank, and the likely mistake.
//
//   int main(int argc, char** argv) {
//     return course::grade(argc, argv, "lesson 4: ZeRO-1", [](course::Grade& grade) {
//       grade.require("the state is sharded", state == expected ? "" : "state of ... bytes");
//     });
//   }
//
// The program has one option, --predictions FILE. The file has the student's predictions, in lines
// `key = value`.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "dist/bootstrap.h"

namespace course {

using namespace tessera;

class Grade {
 public:
  using Predictions = std::optional<std::map<std::string, std::string>>;
  Grade(dist::World& world, Predictions predictions)
      : world_(world), predictions_(std::move(predictions)) {}

  dist::World& world() { return world_; }
  dist::Communicator& communicator() { return *world_.communicator; }

  /// `wrong` is this rank's error message, or an empty text. Collective. Ends the check if any rank
  /// has a message.
  void require(const std::string& requirement, const std::string& wrong);
  /// Requires that the student's prediction with the name `key` equals rank 0's `measured`. Without
  /// a file of predictions, only prints `measured`. Collective.
  void predicted(const std::string& key, int64_t measured);
  /// Sets the name of the next test. If an error ends the program, the output names this test.
  void at(const std::string& what) { at_ = what; }
  const std::string& at() const { return at_; }
  /// Prints information that is not graded.
  void note(const std::string& text) const { print("      " + text); }

 private:
  void print(const std::string& line) const;

  dist::World& world_;
  Predictions predictions_;  // nullopt if there is no file of predictions
  std::string at_;
};

/// Runs a check. Returns the exit code: 0 passed, 1 a requirement was not met.
int grade(int argc, char** argv, const std::string& title,
          const std::function<void(Grade&)>& check);

/// Returns the number with commas between thousands, such as "12,345".
std::string grouped(int64_t number);

}  // namespace course
