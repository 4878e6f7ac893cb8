// FULLY_CONNECTED of float32 rows by integer weights as a file stores them, computed like TFLite's
// dynamic range kernels: each row is quantized on the fly, and sums of integers are scaled back.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct FullyConnected {
  const float* x;    // [rows, depth]
  const uint8_t* w;  // [columns, row_bytes], signed integers, the first one lowest in a byte
  const float* bias;             // [columns]
  const float* scales;           // [columns], or null:
  const uint16_t* block_scales;  // float16 [columns, blocks]
  const int32_t* sums;           // of the weights, [columns], or null:
  const float* block_sums;       // the scaled sums of blocks, added up
  float* y;                      // [rows, columns]
  long rows, columns, depth;
  long bits;   // 2, 4 or 8
  long block;  // values of a row of weights that share a scale; with one per column: the depth
  bool is_asymmetric;  // rows have zero points
  Range range;

  long blocks() const { return depth / block; }
  long row_bytes() const { return ceil_div(depth * bits, 8); }  // of weights
};

void run(const FullyConnected&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
