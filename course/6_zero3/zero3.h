// Lesson 6: ZeRO stage 3. A rank stores only its shards of the parameters. A block of the model is
// gathered before an operation reads the block, and released when the next block is reached.
//
// A unit is the set of buckets of one block of the model. These buckets are gathered together.
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
    bool tied = false;  // has a tied parameter: stays gathered from first use to end of backward
    int readers = 0;    // number of reads of its parameters that have begun and not ended
    std::vector<dist::Work> works;  // the calls that gather the unit; empty if it is not gathered
  };
  /// The units that a forward or a backward reads, in order. The first micro-step records the
  /// order. Later micro-steps use the order to gather the next unit before it is read.
  struct Order {
    std::vector<int> units;
    size_t next = 0;  // position in `units` of the next unit to be read
  };
  void use(int unit);
  int following(int unit);
  void gather(int unit);
  void release(int unit);
  void release_all();

  std::vector<Unit> units_;
  std::vector<int> unit_of_;  // [bucket]: the bucket's unit
  Order forward_;
  Order backward_;
  Order* order_ = &forward_;
  int last_ = -1;  // the unit that was read last
};

}  // namespace course
