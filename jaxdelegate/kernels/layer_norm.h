// Normalization of rows: (x - mean) / sqrt(variance + epsilon) * scale + offset.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct LayerNorm {
  long rows;
  NormalizedRow row;
  const float* x;  // [rows, row.count]
  float* y;
};

void run(const LayerNorm&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
