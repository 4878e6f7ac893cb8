// Depthwise convolutions, one result channel for every input channel.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct Depthwise {
  Geometry geometry;
  const float* x;        // [images, height, width, channels]
  const float* weights;  // [window_height, window_width, channels]
  const float* bias;     // [channels]
  float* y;              // [images, out_height, out_width, channels]
  Range range;
};

void run(const Depthwise&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
