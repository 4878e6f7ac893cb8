// Softmax of rows.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct Softmax {
  long rows, count;
  const float* x;  // [rows, count]
  float* y;
};

void run(const Softmax&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
