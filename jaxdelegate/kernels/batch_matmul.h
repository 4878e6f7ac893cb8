// Products of matrices in pairs. Few rows read the right matrices where they are.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

constexpr long kMostRowsInPlace = 8, kMostRowsTransposed = 16;  // of w; for more it is packed

struct BatchMatMul {
  long batch, rows, depth, columns;
  bool is_transposed;
  const float* x;  // [batch, rows, depth]
  const float* w;  // [batch, depth, columns], or transposed [batch, columns, depth]
  float* y;        // [batch, rows, columns]
};

void run(const BatchMatMul&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
