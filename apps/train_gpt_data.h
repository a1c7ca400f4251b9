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
/// --data that is for training (all of --data if --val-data is given, else 90 %). The file of
/// --val-data is not compared, so a resume may name another file.
dist::Settings training_settings(const TrainOptions& options, const data::TokenData& data);

/// Returns a text that says what evaluations measure, such as "the loss with --eval-batches 20 on
/// --data". If --val-data is given, the digest of this file takes the place of "--data". The text
/// has no digest of --data, because a resume compares that digest anyway (training_settings).
std::string measure(const TrainOptions& options, const data::TokenData& data);

/// Returns a warning if evaluations read a text and training reads a .bin file, or the reverse.
/// Otherwise returns an empty text.
std::string warning_of_formats(const TrainOptions& options, const data::TokenData& data);

}  // namespace tessera::apps
