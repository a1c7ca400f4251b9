#include "apps/cli/agreement.h"

#include "train/agreement.h"

namespace tessera::apps {

void check_command_lines(dist::World& world, const std::string& program,
                         const dist::Settings& flags, const dist::DeviceOptions& devices) {
  dist::check_device_options(devices);  // checks timeout_s before it is used
  world.comm_timeout_s = devices.timeout_s;
  world.communicator->set_timeout(devices.timeout_s);
  dist::Settings own = train::program_settings(program);
  own.insert(own.end(), flags.begin(), flags.end());
  dist::check_agreement(world, own);
}

void check_inputs(const dist::World& world, const RunOptions& options, const Resumed& resumed,
                  const dist::Settings& data) {
  if (world.size == 1) return;  // no other rank to compare with
  dist::Settings own = data;
  // A resumed run takes its weights from the checkpoint, so those of --init do not matter. The file
  // of --init may even be gone, except in train_gpt, which reads the model's sizes from it.
  if (!resumed.found()) {
    own.push_back(train::file_setting("--init", options.init, options.verify_data));
  }
  const dist::Settings processor = train::processor_settings(world);
  own.insert(own.end(), processor.begin(), processor.end());
  dist::check_agreement(world, own);
}

}  // namespace tessera::apps
