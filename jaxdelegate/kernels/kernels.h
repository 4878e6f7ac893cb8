// Shared by the kernels of all instruction sets: operands, and the tables of a set's functions.

#pragma once

#include "elements.h"

namespace kernels {

inline long ceil_div(long a, long b) { return (a + b - 1) / b; }

// `count` rounded up to a multiple of `to`.
inline long round_up(long count, long to) { return ceil_div(count, to) * to; }

// Weights of a product are stored in panels of 16 columns, [columns / 16, depth / kDeep, 16, kDeep],
// the last one padded with zeros: a row of a panel is a cache line, one vector or two.
constexpr long kPanel = 16;

// The fewest channels that kernels which work channel by channel accept: the widest vector.
constexpr long kLeastChannels = 16;

// For elements E, y [rows, panels * 16] = bias + a [rows, runs * depth] b, or a part of that sum.
template <class E>
struct ProductTile {
  long tiles;         // adjacent ones with the same number of rows
  const typename E::Operand* a;
  long a_stride;      // between rows, in elements like all strides
  long runs;          // of contiguous values in a row of a
  long run_stride;    // between runs
  const typename E::Weight* b;  // the first panel
  long b_stride;      // between panels
  const char* next;   // prefetched into the cache,
  long next_stride;   // with this many bytes per step
  const typename E::Sum* bias;  // null: add to the sums in y
  typename E::Sum* y;
  long y_stride;
  long depth;         // of one run, a multiple of kDeep
  bool is_last;       // the last part of the depth; float32 sums are clamped after it
  typename E::Epilogue epilogue;
};

// The image, windows and results of a convolution, in the order of the attribute `geometry`.
struct Geometry {
  long batch, height, width, channels;
  long out_height, out_width, out_channels;
  long groups;  // of channels and of output channels
  long packed_groups;  // groups whose output channels share a panel; 1: each has separate panels
  long window_height, window_width;
  long stride_height, stride_width;
  long dilation_height, dilation_width;
  long pad_top, pad_left;
};
constexpr long kGeometryFields = sizeof(Geometry) / sizeof(long);
static_assert(sizeof(long) == 8, "the attribute holds 64-bit integers");

// One image: x [height, width, channels]; weights as in Depthwise.
template <class E>
struct DepthwiseImage {
  Geometry geometry;
  const typename E::Value* x;
  const typename E::DepthwiseWeight* weights;
  const typename E::Sum* bias;
  const typename E::Value* padding;  // [channels], the pixels around the image
  typename E::Value* y;
  typename E::Epilogue epilogue;
};

// The results of one Winograd tile, output channels [first, last): 16 sums per output channel,
// `stride` floats apart. Results outside the image are null.
struct WinogradTile {
  const float* sums;
  long stride;
  const float* bias;
  float* results[4];
  long first, last;
  Range range;
};

// The minimum and maximum of values and 0; NaN if a value is NaN.
struct Extent {
  float low, high;

  void add(const Extent& other) {
    if (other.low < low || other.low != other.low) low = other.low;
    if (other.high > high || other.high != other.high) high = other.high;
  }
};

// Quantizes values: x * inverse, rounded with ties away from zero, plus `offset`, clamped to `low`
// and 127; NaN becomes 0. Stored as bytes with 128 added.
struct QuantizedRun {
  const float* x;
  long count;
  float inverse, offset, low;
  uint8_t* y;
};

// Converts the sums of a product's tile, [rows, columns], to integers or float32.
template <class Value>
struct RequantizedTile {
  const int32_t* sums;
  long stride, rows, columns;
  const int32_t* row_bias;  // [rows], or null
  Requantization to;        // its arrays start at the tile's first column
  Value* y;
  long y_stride;
};

// Repeats values of 4 bytes for each column of a panel that they multiply:
// x [pixels, groups * depth] -> y [pixels, depth, kPanel].
struct Broadcast {
  const int32_t* x;
  long stride;  // between pixels of x
  long pixels, groups, depth;
  long columns;  // of a group
  int32_t* y;
};

constexpr int kMostRows = 14;
constexpr int kMostPanels = 4;
constexpr long kMostSums = kMostRows * kMostPanels * kPanel;  // of integers, in a separate buffer

// Finishes `rows` x `columns` of y, starting at `offset`; `stride` is the distance between rows.
using FinishKernel = void (*)(const Finish&, float* y, long offset, long rows, long stride,
                              long columns);

// An instruction set's functions for elements E. The tables are constants in avx2.cc to
// avx512bf16.cc.
template <class E>
struct Functions {
  using Product = void (*)(const ProductTile<E>&);
  using Depthwise = void (*)(const DepthwiseImage<E>&, long out_row);

  Depthwise (*depthwise)(const Geometry&) = nullptr;
  int rows[kMostPanels + 1] = {};  // the most rows of a tile by its panels; 0: no such tiles
  Product product[kMostPanels + 1][kMostRows] = {};  // by panels, and rows - 1
  int broadcast_rows = 0;
  Product broadcast[kMostRows] = {};  // for one panel, with an operand for each of its columns
};

struct Float32Functions : Functions<Float32> {
  void (*winograd_points)(const float* const* pixels, long channels, float* points, long stride);
  void (*winograd_results)(const WinogradTile&);
  FinishKernel finish;
  // x = softmax(scale * x + mask) of count values; the mask may be null.
  void (*softmax)(float* x, long count, float scale, const float* mask);
  // y [channels] = scale * the sum of the rows of x [rows, channels].
  void (*add_rows)(const float* x, long rows, long channels, float scale, float* y);
};

struct Bfloat16Functions : Functions<Bfloat16> {
  void (*round)(const float* x, long count, uint16_t* y);  // to bfloat16; an even count
};

struct Int8Functions : Functions<Int8> {
  void (*requantize)(const RequantizedTile<uint8_t>&);
  void (*measure)(const float* x, long count, Extent& extent);
  void (*quantize)(const QuantizedRun&);
  void (*broadcast_operands)(const Broadcast&);  // for any values of 4 bytes
};

struct Int16Functions : Functions<Int16> {
  void (*requantize)(const RequantizedTile<int16_t>&);
};

struct WidenedFunctions : Functions<WidenedInt8> {
  // y = x ^ flip, unsigned; the count must be a multiple of 4.
  void (*widen_factors)(const uint8_t* x, long count, uint8_t flip, int16_t* y);
  void (*widen_weights)(const int8_t* x, long depth, int16_t* y);  // a panel
};

extern const Float32Functions kAvx2Float32, kAvx512fFloat32;
extern const Bfloat16Functions kAvx512bf16Bfloat16;
extern const Int8Functions kAvx2Int8, kAvxvnniInt8, kAvx512vnniInt8;
extern const Int16Functions kAvx2Int16, kAvxvnniInt16, kAvx512vnniInt16;
extern const WidenedFunctions kAvx2Widened;

struct InstructionSet {
  const char* name;
  uint32_t needs;  // bits of Feature (cpu.h)
  const Float32Functions* float32;
  const Bfloat16Functions* bfloat16;  // null: the set cannot multiply bfloat16
  const Int8Functions* int8;
  const Int16Functions* int16;
  const WidenedFunctions* widened;  // null: products of bytes are faster

  template <class E>
  const Functions<E>& of() const;
};

template <>
inline const Functions<Float32>& InstructionSet::of() const {
  return *float32;
}

template <>
inline const Functions<Bfloat16>& InstructionSet::of() const {
  return *bfloat16;
}

template <>
inline const Functions<Int8>& InstructionSet::of() const {
  return *int8;
}

template <>
inline const Functions<Int16>& InstructionSet::of() const {
  return *int16;
}

template <>
inline const Functions<WidenedInt8>& InstructionSet::of() const {
  return *widened;
}

}  // namespace kernels
