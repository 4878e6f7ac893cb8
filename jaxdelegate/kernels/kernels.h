// What the kernels of every instruction set share: operands, and the table of one set's functions.

#pragma once

namespace kernels {

// Weights of a product lie in panels of so many columns, [columns / 16, depth, 16], the last one
// filled up with zeros: a row of a panel is a cache line, one vector or two.
constexpr long kPanel = 16;

// The least that what is computed channel by channel must have: the widest vector.
constexpr long kLeastChannels = 16;

struct Range {
  float low, high;
};

// y [rows, panels * 16] = clamp(bias + a [rows, runs * depth] b), or a part of that sum.
struct ProductTile {
  const float* a;
  long a_stride;      // from one row to the next, in floats, as all strides
  long runs;          // of values that follow each other in a row of a
  long run_stride;    // from one to the next
  const float* b;     // the first panel
  long b_stride;      // from one panel to the next
  long b_ahead;       // from the first panel to what is fetched into the cache meanwhile
  const float* bias;  // null: go on from the sums in y
  float* y;
  long y_stride;
  long depth;         // of one run
  bool is_last;  // clamp the sums
  Range range;
};

using ProductKernel = void (*)(const ProductTile&);

// The image, windows and results of a convolution, as the attribute `geometry` lists them.
struct Geometry {
  long images, height, width, channels;
  long out_height, out_width, units;
  long window_height, window_width;
  long stride_height, stride_width;
  long dilation_height, dilation_width;
  long pad_top, pad_left;
};
constexpr long kGeometryFields = sizeof(Geometry) / sizeof(long);
static_assert(sizeof(long) == 8, "the attribute holds 64-bit integers");

// One image: x [height, width, channels], weights [window_height, window_width, channels].
struct DepthwiseImage {
  Geometry geometry;
  const float *x, *weights, *bias;
  const float* zeros;  // [channels], what padding holds
  float* y;
  Range range;
};

using DepthwiseKernel = void (*)(const DepthwiseImage&, long out_row);

// The results of one Winograd tile, units [first, last): 16 sums of a unit, `stride` floats apart.
// Results that are not in the image are null.
struct WinogradTile {
  const float* sums;
  long stride;
  const float* bias;
  float* results[4];
  long first, last;
  Range range;
};

constexpr int kMostRows = 14;
constexpr int kMostPanels = 4;

struct InstructionSet {
  const char* name;
  int rows[kMostPanels + 1];  // the most that a tile of so many panels has; 0: there is none
  ProductKernel product[kMostPanels + 1][kMostRows];  // by panels, and rows - 1
  DepthwiseKernel (*depthwise)(const Geometry&);
  void (*winograd_points)(const float* const* pixels, long channels, float* points, long stride);
  void (*winograd_results)(const WinogradTile&);
};

}  // namespace kernels
