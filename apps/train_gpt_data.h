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

/// Returns the settings of the data that define the run, which a resume compares: the digest of
/// --data, and the part of it that is for training. --val-data may name another file after a
/// resume, but whether it is given decides which tokens are for training.
dist::Settings training_settings(const TrainOptions& options, const data::TokenData& data);

/// Says what evaluations measure, with the digest of --val-data. Without --val-data, evaluations
/// use a part of --data, whose digest is among the settings that a resume compares.
std::string measure(const TrainOptions& options, const data::TokenData& data);

/// Returns a warning if evaluations read a text and training reads a .bin file, or the reverse.
/// Otherwise returns an empty text.
std::string warning_of_formats(const TrainOptions& options, const data::TokenData& data);

}  // namespace tessera::apps
