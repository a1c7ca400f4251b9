// Lesson 4: ZeRO stage 1. Each rank keeps the optimizer's state of its own shards only, updates
// them, and gathers the others' new values.
#pragma once

#include "course/3_data_parallel/data_parallel.h"

namespace course {

class Zero1 : public DataParallel {
 public:
  using DataParallel::DataParallel;

 protected:
  void allocate_state() override;
  void update() override;
};

}  // namespace course
