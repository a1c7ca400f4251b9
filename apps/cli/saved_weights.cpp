#include "apps/cli/saved_weights.h"

namespace tessera::apps {

SavedWeights saved_weights(const RunOptions& options, const Resumed& resumed) {
  if (resumed.found()) return {resumed.folder(), resumed.manifest().weights};
  return {options.init, nn::SafetensorsReader(options.init).metadata()};
}

}  // namespace tessera::apps
