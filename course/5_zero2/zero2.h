// Lesson 5: ZeRO stage 2. No rank holds a whole gradient: a bucket's memory is free again as soon
// as the bucket has been sent.
#pragma once

#include "course/4_zero1/zero1.h"

namespace course {

class Zero2 : public Zero1 {
 public:
  using Zero1::Zero1;

 protected:
  void allocate_gradients() override;
  Tensor open(int bucket) override;

 private:
  /// Memory for one bucket at a time.
  struct Slot {
    Tensor memory;
    int bucket = -1;  // the last bucket that used the memory
  };
  int slot_of(int bucket) const;

  std::vector<Slot> slots_;
};

}  // namespace course
