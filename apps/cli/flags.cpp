#include "apps/cli/flags.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <CLI/CLI.hpp>

#include "core/error.h"

namespace tessera::apps {

FlagOption FlagOption::group(const std::string& name) {
  option_->group(name);
  return *this;
}

FlagOption FlagOption::capture_default_str() {
  option_->capture_default_str();
  return *this;
}

FlagOption FlagOption::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

FlagOption FlagOption::list(char delimiter) {
  option_->delimiter(delimiter)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}

Flags::Flags(const std::string& description, const std::string& name)
    : app_(std::make_unique<CLI::App>(description, name)) {}

Flags::~Flags() = default;

void Flags::last_wins() {
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void Flags::add_config(const std::string& help) {
  app_->set_config("--config", "", help);
  app_->allow_config_extras(CLI::config_extras_mode::error);
}

template <class T>
FlagOption Flags::add_option(const std::string& names, T& value, const std::string& help) {
  return FlagOption(app_->add_option(names, value, help));
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
  return FlagOption(app_->add_flag(names, value, help));
}

std::string Flags::config_file() const {
  const CLI::Option* const config = app_->get_config_ptr();
  return config == nullptr || config->count() == 0 ? "" : config->results().back();
}

std::string Flags::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return app_->help();
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw InputError(text);
  }
  return "";
}

}  // namespace tessera::apps
