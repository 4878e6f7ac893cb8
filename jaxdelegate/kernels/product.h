// Convolutions without groups, and products of matrices, which are convolutions of one pixel.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct Product {
  Geometry geometry;
  const float* x;        // [images, height, width, channels]
  const float* weights;  // panels of [window_height * window_width * channels, units]
  const float* bias;     // [units]
  float* y;              // [images, out_height, out_width, units]
  Range range;
};

void run(const Product&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
