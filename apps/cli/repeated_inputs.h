// Warns of inputs that a command line names several times. A flag's last value is used, so that
// flags at the end of a command override those of a script. But `--data a.txt --data b.txt` may be
// meant to train on both files.
#pragma once

#include "apps/console/flags.h"

namespace tessera::apps {

/// Warns if the arguments give --data, --val-data or --init several times with different values.
/// Call it after the arguments have been parsed, unless --help is given. A value in the file of
/// --config does not count, because the command line is meant to override it.
void warn_of_repeated_inputs(const Flags& flags);

}  // namespace tessera::apps
