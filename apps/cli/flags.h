// A program's flags: CLI11, which takes seconds to compile wherever it is included, so that it is
// included in flags.cpp alone.
//
//   Flags app("What the program does", "name");
//   app.add_option("--steps", options.steps, "Optimizer steps")->group("Training");
//   app.add_option("--device", device, "cpu or cuda")->one_of({"cpu", "cuda"});
//   const std::string help = app.parse(argc, argv);       // not empty: only to be printed
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera::apps {

/// An option that was added; each call returns the option again.
class FlagOption {
 public:
  explicit FlagOption(CLI::Option* option) : option_(option) {}
  FlagOption* operator->() { return this; }

  FlagOption group(const std::string& name);   // its heading in the help
  FlagOption capture_default_str();            // shows the variable's value as the default
  FlagOption one_of(const std::vector<std::string>& values);
  FlagOption list(char delimiter);             // several values, also of several flags

 private:
  CLI::Option* option_;
};

class Flags {
 public:
  explicit Flags(const std::string& description, const std::string& name = "");
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Lets an option that is given twice have its last value, so that a script's flags can be
  /// overridden by those that follow them. Holds for options that are added from now on.
  void last_wins();
  /// --config FILE reads flags from a file; what it does not know is an error.
  void add_config(const std::string& help);

  /// T: std::string, int, int64_t, float, double, std::optional of these, std::vector of
  /// std::string or int32_t.
  template <class T>
  FlagOption add_option(const std::string& names, T& value, const std::string& help = "");
  FlagOption add_flag(const std::string& names, bool& value, const std::string& help);

  /// The file that --config has named; empty where there is none.
  std::string config_file() const;

  /// Reads the arguments. Returns the text of help where it was asked for, else an empty one.
  /// Throws InputError, one line.
  std::string parse(int argc, const char* const* argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace tessera::apps
