// A program's flags: --name VALUE or --name=VALUE, --name alone for flags without a value, and
// positional arguments. If a flag is given several times, its last value is used, so that flags at
// the end of a command override those of a script. Two cases differ:
//   - A flag whose value is a std::vector collects the values of all its occurrences, unless list()
//     was called for it.
//   - A single value that may be given by position or by name must not be given both ways.
// apps/cli/repeated_inputs.h warns if an input such as --data is given several times. CLI11 splits
// the arguments and writes the help. In apps, only flags.cpp includes CLI11, because CLI11 takes
// seconds to compile.
//
//   Flags app("What the program does", "name");
//   app.add_option("--steps", options.steps, "Optimizer steps")->group("Training");
//   app.add_option("--device", device, "cpu or cuda")->one_of({"cpu", "cuda"});
//   const std::string text = app.parse(argc, argv);       // if not empty: print it and exit
//   dist::check_agreement(world, app.settings());         // in programs with ranks
//
// Values are never clamped: a text that is not a valid value is refused
// (apps/console/flag_value.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/console/quantity.h"
#include "dist/agreement.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera::apps {

struct Flag;  // flags.cpp

/// How ranks compare a flag:
///
///   value     all ranks must have the same value
///   presence  all ranks or none must have the flag; for paths, which may differ between hosts
///   nothing   the value may differ between ranks
enum class Compared { value, presence, nothing };

/// A flag that was added to Flags. Each function returns the flag, so that calls can be chained.
class FlagOption {
 public:
  explicit FlagOption(Flag* flag) : flag_(flag) {}
  FlagOption* operator->() { return this; }

  FlagOption group(const std::string& name);   // heading in the help
  FlagOption capture_default_str();            // the help shows the value as the default
  FlagOption one_of(const std::vector<std::string>& values);
  FlagOption list(char delimiter);             // several values in one text
  FlagOption compare(Compared what);           // default: Compared::value

 private:
  Flag* flag_;
};

class Flags {
 public:
  Flags(const std::string& description, const std::string& name);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Adds --config FILE, which reads flags from a file (apps/console/config_file.h). An unknown
  /// flag in the file, or a flag that the file has twice, is an error. The command line overrides
  /// the file.
  void add_config(const std::string& help);

  /// `names`: "--global-batch,--batch", or "model,--model" for a positional argument that may also
  /// be given by name.
  /// T: std::string, int, int64_t, float, double, std::optional of one of these except int, or
  /// std::vector of std::string or int32_t.
  template <class T>
  FlagOption add_option(const std::string& names, T& value, const std::string& help = "");
  FlagOption add_flag(const std::string& names, bool& value, const std::string& help);
  /// A size in bytes, with or without a unit (apps/console/quantity.h).
  FlagOption add_bytes(const std::string& names, std::optional<int64_t>& value,
                       const std::string& help, Zero zero = Zero::refused);

  /// The text that the help ends with: example command lines and what they do.
  void add_examples(const std::string& text) { examples_ = text; }

  /// The file that --config named; empty if there is none.
  const std::string& config_file() const { return config_file_; }

  /// Reads the arguments. Returns the text of the help or of the version if it was asked for, else
  /// an empty text. Throws InputError with a one-line message.
  std::string parse(int argc, const char* const* argv);

  /// Returns all texts that the arguments gave for the flag, in their order: more than one if the
  /// flag was repeated, none if it was not given or if no flag has this name. Call it after parse.
  std::vector<std::string> texts_of(const std::string& name) const;

  /// Returns the settings that must be equal on all ranks. Call it after parse. The first two
  /// settings say if the help or the version was asked for. The flags follow in the order in which
  /// they were added. FlagOption::compare decides how each flag is compared.
  dist::Settings settings() const;

 private:
  Flag& add(const std::string& names, CLI::Option* option, const char* type);
  Flag* find(const std::string& name) const;
  std::string nearest(const std::string& name) const;
  void check_names(const std::vector<std::string>& arguments) const;
  void check_given_once(const Flag& flag, const std::vector<std::string>& arguments) const;
  void assign_config();
  void assign(Flag& flag, const std::string& what, const std::vector<std::string>& texts);

  std::unique_ptr<CLI::App> app_;
  std::vector<std::unique_ptr<Flag>> flags_;
  std::string config_file_;
  std::string examples_;
  std::string flag_text_;
  enum class Asked : uint8_t { run, help, version } asked_ = Asked::run;
};

}  // namespace tessera::apps
