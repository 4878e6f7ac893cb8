// Convolutions of float32 images with int8 filters, computed like TFLite's dynamic range kernels:
// each image is quantized on the fly, and sums of integers are scaled back.

#pragma once

#include "depthwise.h"
#include "product.h"

namespace kernels {

// x ~ scale * (q - zero). The defaults are for zeros; with NaN, scales are NaN.
struct Parameters {
  float scale = 1, inverse = 1;
  int32_t zero = 0;
};

// For values of an extent.
Parameters parameters_of(const Extent&, bool is_asymmetric);

// The least integer of their quantized values.
inline int32_t least(bool is_asymmetric) { return is_asymmetric ? -128 : -127; }

// Work is a Product or Depthwise of Int8; its x, bias, y and epilogue are filled in for each image.
template <class Work>
struct DynamicRange {
  Work work;
  const float* x;  // with the shape of the work's
  float* y;
  const float* bias;    // [columns]
  const float* scales;  // [columns], of the filter
  const int32_t* sums;  // [columns], of the weights
  long columns;
  Range range;
  bool is_asymmetric;  // images have zero points
  bool scales_twice;   // sums are scaled by the filter's scale, then by the image's; not by both
};

template <class Work>
void run(const DynamicRange<Work>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
