#include "apps/train_gpt_data.h"

#include <fmt/format.h>

#include "train/agreement.h"

namespace tessera::apps {
namespace {

// Returns the setting that identifies a data file. The setting also says how the file is read,
// because the same bytes are different tokens in a .bin file and in a text file.
dist::Setting tokens_setting(const std::string& flag, const std::string& path,
                             const data::TokenFile& file, bool whole) {
  dist::Setting setting = train::file_setting(flag, path, whole);
  if (!path.empty()) setting.value += file.is_text() ? " as text" : " as uint16";
  return setting;
}

}  // namespace

data::TokenData open_data(const TrainOptions& options) {
  return data::TokenData({.path = options.data,
                          .validation_path = options.val_data,
                          .context = options.model.context,
                          .vocab = options.model.vocab,
                          .seed = options.seed,
                          .global_batch = options.batch.global,
                          .trains = !options.eval_only,
                          .evaluates = options.eval_every > 0});
}

dist::Settings data_settings(const TrainOptions& options, const data::TokenData& data) {
  const bool whole = options.verify_data;
  return {tokens_setting("--data", options.data, *data.training().file, whole),
          tokens_setting("--val-data", options.val_data, *data.validation().file, whole)};
}

dist::Settings training_settings(const TrainOptions& options, const data::TokenData& data) {
  return {tokens_setting("data", options.data, *data.training().file, false),
          {"training_part", options.val_data.empty() ? "90 % of --data (without --val-data)"
                                                     : "all of --data (with --val-data)"}};
}

std::string measure(const TrainOptions& options, const data::TokenData& data) {
  const std::string& path = options.val_data;
  const data::TokenFile& file = *data.validation().file;
  return fmt::format("the loss with --eval-batches {} on {}", options.eval_batches,
                     path.empty() ? "--data" : tokens_setting("", path, file, false).value);
}

std::string warning_of_formats(const TrainOptions& options, const data::TokenData& data) {
  const data::TokenFile& training = *data.training().file;
  const data::TokenFile& validation = *data.validation().file;
  if (training.is_text() == validation.is_text() || options.eval_every == 0) return "";
  const auto format = [](const data::TokenFile& file) {
    return file.is_text() ? "a text, whose tokens are its bytes" : "a .bin file of uint16 tokens";
  };
  return fmt::format(
      "--data {} is {}, but --val-data {} is {}: the validation loss has a meaning only if the "
      "uint16 tokens are bytes, too",
      training.path(), format(training), validation.path(), format(validation));
}

}  // namespace tessera::apps
