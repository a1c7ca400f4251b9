// The data of a run of train_gpt, and how the run describes it: to other ranks, to later resumes,
// and to the user.
#pragma once

#include <string>

#include "apps/train_gpt_options.h"
#include "data/tokens/token_data.h"
#include "dist/agreement.h"

namespace tessera::apps {

data::TokenData open_data(const TrainOptions& options);

/// Returns the settings by which ranks compare the files of --data and --val-data.
dist::Settings data_settings(const TrainOptions& options, const data::TokenData& data);

/// Returns the settings of the data that a resume compares: the digest of --data, and the part of
/// --data that is for training (all of --data if --val-data is given, else 90 %). So a run with
/// --val-data can be resumed with another file as --val-data.
dist::Settings training_settings(const TrainOptions& options, const data::TokenData& data);

/// Returns a text that says what evaluations measure: the loss on --val-data, with the digest of
/// this file, or on --data if there is no --val-data. The digest of --data is not in the text,
/// because a resume compares this digest anyway (training_settings).
std::string measure(const TrainOptions& options, const data::TokenData& data);

/// Returns a warning if evaluations read a text and training reads a .bin file, or the reverse.
/// Otherwise returns an empty text.
std::string warning_of_formats(const TrainOptions& options, const data::TokenData& data);

}  // namespace tessera::apps
