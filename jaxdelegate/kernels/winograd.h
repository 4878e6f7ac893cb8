// Convolutions of 3x3 windows, without strides and dilation, by Winograd's F(2x2, 3x3): 16 matrix
// products with a ninth of the depth each, which is 2.25 times less work.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

constexpr long kPoints = 16;

struct Winograd {
  Geometry geometry;
  const float* x;        // [batch, height, width, channels]
  // For each point of the transformed filters, panels of [channels, out_channels].
  const float* weights;
  const float* bias;     // [out_channels]
  float* y;              // [batch, out_height, out_width, out_channels]
  Range epilogue;
  Finish finish;  // after the epilogue
};

void run(const Winograd&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
