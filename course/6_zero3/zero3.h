// Lesson 6: ZeRO stage 3. A rank holds its shards of the parameters. A block of the model is
// gathered before an operation reads it, and let go when the next block is reached.
//
// A unit is what is gathered together: the buckets of one block of the model.
#pragma once

#include "course/5_zero2/zero2.h"

namespace course {

class Zero3 : public Zero2 {
 public:
  Zero3(nn::Module& model, const optim::AdamW& rule, dist::Communicator& communicator,
        int64_t bucket_bytes);

 protected:
  void allocate_values() override;
  void place() override;
  void update() override;
  void begin_backward() override;
  void end_backward() override;

 private:
  struct Unit {
    std::vector<int> buckets;
    bool tied = false;              // stays gathered from its first use to the end of backward
    int readers = 0;                // parameters of it that operations read now, once for each use
    std::vector<dist::Work> works;  // of its gather; empty: not gathered
  };
  /// The units that a forward, or a backward, reads, in order: learned in the first micro-step,
  /// then used to gather ahead.
  struct Order {
    std::vector<int> units;
    size_t next = 0;
  };
  void use(int unit);
  int following(int unit);
  void gather(int unit);
  void release(int unit);
  void release_all();

  std::vector<Unit> units_;
  std::vector<int> unit_of_;  // by bucket
  Order forward_;
  Order backward_;
  Order* order_ = &forward_;
  int last_ = -1;  // the unit that was read last
};

}  // namespace course
