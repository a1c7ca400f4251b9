// Lesson 4: ZeRO stage 1. Each rank keeps the optimizer's state of its own shards only. The rank
// updates these shards, and gathers the new values of the other shards.
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
