// Convolutions of float32 images by filters of int8, as TFLite's dynamic range kernels compute
// them: each image is quantized on the fly, and sums of integers are scaled back.

#pragma once

#include "depthwise.h"
#include "product.h"

namespace kernels {

// Work is a Product or a Depthwise of Int8, whose x, bias, y and epilogue are filled in for each
// image.
template <class Work>
struct DynamicRange {
  Work work;
  const float* x;  // as the work's
  float* y;
  const float* bias;    // [columns]
  const float* scales;  // [columns], of the filter
  const int32_t* sums;  // [columns], what the weights of a column add up to
  long columns;
  Range range;
  bool is_asymmetric;  // images have zero points
  bool in_turn;        // sums are scaled by the filter, then by the image; not by both at once
};

template <class Work>
void run(const DynamicRange<Work>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
