#include "train/report/program_header.h"

#include "train/report/layout_line.h"
#include "train/report/run_log.h"

namespace tessera::train {

JsonObject program_header(const std::string& program, const TrainingRun& run,
                          const dist::World& world, const optim::ZeroOptimizer& optimizer) {
  JsonObject header = header_begin(program);
  add_job(header, world);
  return header.add("stage", run.zero.stage)
      .add("reduction", reduction_name(run.zero.reduction))
      .add("steps", run.loop.steps)
      .add("global_batch", run.loop.batch.global)
      .add("micro_batch", run.loop.batch.micro)
      .add("seed", run.zero.seed)
      .add("layout", layout_json(optimizer.ownership()));
}

}  // namespace tessera::train
