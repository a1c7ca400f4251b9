#include "apps/console/flags.h"

#include <algorithm>
#include <functional>
#include <map>
#include <type_traits>

#include <CLI/CLI.hpp>

#include "apps/console/config_file.h"
#include "apps/console/edit_distance.h"
#include "apps/console/flag_value.h"
#include "core/error.h"
#include "core/version.h"

namespace tessera::apps {

struct Flag {
  CLI::Option* option;
  std::vector<std::string> names;  // "--steps"
  std::string positional_name;             // name as a positional argument; empty: none
  std::string type;                // as shown in the help; empty: the flag takes no value
  std::vector<std::string> allowed;  // empty: any
  char delimiter = 0;
  bool many = false;   // a list; takes several arguments, unless it has a delimiter
  bool takes_several() const { return many && delimiter == 0; }
  bool given = false;  // by an argument, or in the file of --config
  Compared compared = Compared::value;
  std::function<void(const std::string& what, const std::string& text)> assign;
  std::function<void()> clear = [] {};
  std::function<std::string()> value_text;

  const std::string& name() const { return names.empty() ? positional_name : names.front(); }
};

namespace {

template <class T>
struct Inner {
  using Type = T;
};
template <class T>
struct Inner<std::optional<T>> {
  using Type = T;
};
template <class T>
struct Inner<std::vector<T>> {
  using Type = T;
};
template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;

template <class T>
T parse_value(const std::string& what, const std::string& text) {
  if constexpr (std::is_same_v<T, std::string>) {
    return parse_text(what, text);
  } else if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    return static_cast<T>(parse_integer(what, text, Limits::min(), Limits::max()));
  } else {
    return parse_float<T>(what, text);
  }
}

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<T, std::string>) return "TEXT";
  return std::is_integral_v<T> ? "INT" : "FLOAT";
}

// Splits a text, keeping empty parts: "a,,b" at ',' gives "a", "", "b".
std::vector<std::string> split(const std::string& text, char delimiter) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == delimiter) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string in_words(const std::string& value) { return value.empty() ? "nothing" : value; }
std::string in_words(bool value) { return value ? "on" : "off"; }
template <class T>
std::string in_words(const T& value) {
  return fmt::format("{}", value);
}
template <class T>
std::string in_words(const std::optional<T>& value) {
  return value ? in_words(*value) : "its default";
}
template <class T>
std::string in_words(const std::vector<T>& values) {
  return in_words(fmt::format("{}", fmt::join(values, ",")));
}

// Does nothing, because CLI11 keeps the texts, and Flags converts them after parsing.
bool keep_texts(const CLI::results_t&) { return true; }

// Refuses [a,b], because CLI11 would split this text into two values if the flag takes several.
void refuse_brackets(const std::string& value) {
  if (!value.starts_with('[') || !value.ends_with(']')) return;
  fail_input("{} is in brackets; give a file of this name as ./{}", quoted(value), value);
}

}  // namespace

FlagOption FlagOption::group(const std::string& name) {
  flag_->option->group(name);
  return *this;
}

FlagOption FlagOption::capture_default_str() {
  flag_->option->default_str(flag_->value_text());
  return *this;
}

FlagOption FlagOption::one_of(const std::vector<std::string>& values) {
  flag_->allowed = values;
  flag_->option->type_name(fmt::format("{}:{{{}}}", flag_->type, fmt::join(values, ",")));
  return *this;
}

FlagOption FlagOption::list(char delimiter) {
  flag_->delimiter = delimiter;
  flag_->option->expected(1)->allow_extra_args(false);
  return *this;
}

FlagOption FlagOption::compare(Compared what) {
  flag_->compared = what;
  return *this;
}

Flags::Flags(const std::string& description, const std::string& name)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_help_flag("-h,--help", "Print this help and end");
  app_->set_version_flag("--version", fmt::format("{} {}\n", name, version()),
                         "Print the version and end");
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

Flags::~Flags() = default;

Flag& Flags::add(const std::string& names, CLI::Option* option, const char* type) {
  auto flag = std::make_unique<Flag>();
  flag->option = option;
  for (const std::string& name : split(names, ',')) {
    if (name.starts_with("-")) {
      flag->names.push_back(name);
    } else {
      flag->positional_name = name;
    }
  }
  flag->type = type;
  flags_.push_back(std::move(flag));
  return *flags_.back();
}

void Flags::add_config(const std::string& help) {
  add_option("--config", config_file_, help)->compare(Compared::nothing);
}

template <class T>
FlagOption Flags::add_option(const std::string& names, T& value, const std::string& help) {
  using Value = typename Inner<T>::Type;
  CLI::Option* const option = app_->add_option(names, CLI::callback_t(keep_texts), help);
  option->type_name(type_name<Value>());
  Flag& flag = add(names, option, type_name<Value>());
  flag.value_text = [&value] { return in_words(value); };
  if constexpr (is_list<T>) {
    flag.many = true;
    option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
    flag.clear = [&value] { value.clear(); };
    flag.assign = [&value](const std::string& what, const std::string& text) {
      value.push_back(parse_value<Value>(what, text));
    };
  } else {
    flag.assign = [&value](const std::string& what, const std::string& text) {
      value = parse_value<Value>(what, text);
    };
  }
  return FlagOption(&flag);
}

template FlagOption Flags::add_option(const std::string&, std::string&, const std::string&);
template FlagOption Flags::add_option(const std::string&, int&, const std::string&);
template FlagOption Flags::add_option(const std::string&, int64_t&, const std::string&);
template FlagOption Flags::add_option(const std::string&, float&, const std::string&);
template FlagOption Flags::add_option(const std::string&, double&, const std::string&);
template FlagOption Flags::add_option(const std::string&, std::optional<std::string>&,
                                      const std::string&);
template FlagOption Flags::add_option(const std::string&, std::optional<int64_t>&,
                                      const std::string&);
template FlagOption Flags::add_option(const std::string&, std::optional<float>&,
                                      const std::string&);
template FlagOption Flags::add_option(const std::string&, std::optional<double>&,
                                      const std::string&);
template FlagOption Flags::add_option(const std::string&, std::vector<std::string>&,
                                      const std::string&);
template FlagOption Flags::add_option(const std::string&, std::vector<int32_t>&,
                                      const std::string&);

FlagOption Flags::add_flag(const std::string& names, bool& value, const std::string& help) {
  // CLI11 writes to flag_text_. Nothing reads it, because parse() takes the text from the option.
  Flag& flag = add(names, app_->add_flag(names, flag_text_, help), "");
  flag.value_text = [&value] { return in_words(value); };
  flag.assign = [&value](const std::string& what, const std::string& text) {
    value = parse_bool(what, text);
  };
  return FlagOption(&flag);
}

FlagOption Flags::add_bytes(const std::string& names, std::optional<int64_t>& value,
                            const std::string& help, Zero zero) {
  CLI::Option* const option = app_->add_option(names, CLI::callback_t(keep_texts), help);
  option->type_name("BYTES");
  Flag& flag = add(names, option, "BYTES");
  flag.value_text = [&value] { return in_words(value); };
  flag.assign = [&value, zero](const std::string& what, const std::string& text) {
    value = parse_bytes(what.c_str(), text, zero);
  };
  return FlagOption(&flag);
}

Flag* Flags::find(const std::string& name) const {
  for (const auto& flag : flags_) {
    if (std::ranges::find(flag->names, name) != flag->names.end()) return flag.get();
  }
  return nullptr;
}

// Returns the known flag that is nearest to the unknown flag `name`; "" if none is near. `name` and
// the result begin with dashes.
std::string Flags::nearest(const std::string& name) const {
  constexpr size_t longest = 40;  // longer than every flag's name
  std::string best;
  if (name.size() > longest) return best;
  auto least = static_cast<int64_t>(1 + name.size() / 6);  // most edits of a misspelling
  for (const auto& flag : flags_) {
    for (const std::string& other : flag->names) {
      if (!other.starts_with("--")) continue;
      const int64_t distance = edit_distance(name, other);
      if (distance > least || (distance == least && !best.empty())) continue;
      least = distance;
      best = other;
    }
  }
  return best;
}

// Refuses arguments that CLI11 would misread: `--data --steps` as data named "--steps", `--data= x`
// as `--data x`, `-steps` as -s, [a,b] as a list, and -- as the end of a list. Refuses unknown
// flags too, because CLI11's message would include the arguments after them.
void Flags::check_names(const std::vector<std::string>& arguments) const {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.empty()) fail_input("an argument is empty, expected a value");
    const size_t equals = argument.find('=');
    const std::string value = argument.substr(argument[0] == '-' ? equals + 1 : 0);
    if (argument[0] != '-' || argument == "-") {
      refuse_brackets(value);
      continue;
    }
    if (argument == "--") {
      fail_input("-- is not accepted alone; give a value that begins with - as --NAME=VALUE");
    }
    const std::string name = argument.substr(0, equals);
    if (name == "--help" || name == "-h" || name == "--version") {
      fail_input("{} takes no value", name);
    }
    const Flag* const flag = find(name);
    if (flag == nullptr) {
      const std::string near = nearest(name);
      fail_input("unknown flag {}; {}", one_line(name),
                 near.empty() ? "--help lists all flags" : "did you mean " + near + "?");
    }
    if (equals != std::string::npos && flag->takes_several()) refuse_brackets(value);
    if (equals == argument.size() - 1) flag->assign(name, "");  // throws: no type accepts ""
    if (equals != std::string::npos && flag->type.empty()) parse_bool(name, value);
    if (equals != std::string::npos || flag->type.empty()) continue;
    ++i;
    if (i == arguments.size()) fail_input("{} has no value", name);
    if (arguments[i].starts_with("--")) {
      fail_input("{} has no value; a value that begins with -- is given as {}=VALUE", name, name);
    }
    if (arguments[i].empty()) flag->assign(name, "");
    if (flag->takes_several()) refuse_brackets(arguments[i]);
  }
}

void Flags::assign_config() {
  std::map<const Flag*, std::string> first;  // file and line where each flag was given first
  for (const ConfigLine& line : read_config(config_file_)) {
    Flag* const flag = find("--" + line.name);
    if (flag == nullptr || flag == find("--config")) {
      const bool has_dashes = line.name.starts_with("--");
      const std::string near =
          flag == nullptr ? nearest(has_dashes ? line.name : "--" + line.name) : "";
      fail_input("{}: {} is not a flag that a file can set{}", line.where, quoted(line.name),
                 near.size() > 2 ? "; did you mean " + near.substr(2) + "?" : "");
    }
    const auto [before, is_new] = first.emplace(flag, line.where);
    if (!is_new) fail_input("{}: {} is given in {} too", line.where, line.name, before->second);
    assign(*flag, line.where + ": " + line.name, {line.value});
  }
}

void Flags::assign(Flag& flag, const std::string& what, const std::vector<std::string>& texts) {
  flag.given = true;
  flag.clear();
  for (const std::string& text : texts) {
    const auto parts = flag.delimiter == 0 ? std::vector{text} : split(text, flag.delimiter);
    for (const std::string& part : parts) {
      if (part.empty() && parts.size() > 1) {
        fail_input("{} is {}, and one of its values is empty", what, quoted(text));
      }
      const auto& allowed = flag.allowed;
      if (!allowed.empty() && std::ranges::find(allowed, part) == allowed.end()) {
        fail_input("{} is {}, expected one of {}", what, quoted(part), fmt::join(allowed, ", "));
      }
      flag.assign(what, part);
    }
  }
}

// Refuses a flag given both by position and by name, because parse() uses only the last value.
void Flags::check_given_once(const Flag& flag, const std::vector<std::string>& arguments) const {
  const auto named = std::ranges::count_if(arguments, [&](const std::string& argument) {
    return find(argument.substr(0, argument.find('='))) == &flag;
  });
  const auto texts = std::ssize(flag.option->results());
  if (named == 0 || named == texts) return;
  fail_input("{} is given both by position and as {}, expected one of them", flag.positional_name,
             flag.name());
}

std::string Flags::parse(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  for (const std::string& argument : arguments) {
    if (argument != "--help" && argument != "-h" && argument != "--version") continue;
    asked_ = argument == "--version" ? Asked::version : Asked::help;
    return asked_ == Asked::help ? app_->help() + examples_ : app_->version();
  }
  check_names(arguments);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    const std::string first = app_->remaining().front();
    fail_input("unexpected argument {}; flags begin with --", quoted(first));
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw InputError(text);
  }
  Flag* const config = find("--config");
  if (config != nullptr && config->option->count() > 0) {
    assign(*config, config->name(), {config->option->results().back()});
    assign_config();
  }
  for (const auto& flag : flags_) {
    if (flag->option->count() == 0) continue;
    const std::vector<std::string>& texts = flag->option->results();
    const bool all = flag->takes_several();
    if (!all && !flag->positional_name.empty()) check_given_once(*flag, arguments);
    assign(*flag, flag->name(), all ? texts : std::vector{texts.back()});
  }
  return "";
}

std::vector<std::string> Flags::texts_of(const std::string& name) const {
  const Flag* const flag = find(name);
  return flag == nullptr ? std::vector<std::string>() : flag->option->results();
}

dist::Settings Flags::settings() const {
  const auto presence = [](bool given) { return given ? "a value" : "none"; };
  dist::Settings settings{{"--help", asked_ == Asked::help ? "on" : "off"},
                          {"--version", asked_ == Asked::version ? "on" : "off"}};
  for (const auto& flag : flags_) {
    if (flag->compared == Compared::nothing) continue;
    const bool value = flag->compared == Compared::value;
    settings.push_back({flag->name(), value ? flag->value_text() : presence(flag->given)});
  }
  return settings;
}

}  // namespace tessera::apps
