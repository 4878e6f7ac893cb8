// Shared by the kernels of all instruction sets: operands, and the tables of a set's functions.

#pragma once

#include "elements.h"

namespace kernels {

inline long ceil_div(long a, long b) { return (a + b - 1) / b; }

// `count` rounded up to a multiple of `to`.
inline long round_up(long count, long to) { return ceil_div(count, to) * to; }

// Calls f(row, count) for groups of at most `most` rows, all about as large.
template <class F>
inline void for_groups(long rows, long most, F f) {
  if (rows <= most) return f(0, rows);  // without divisions
  const long groups = ceil_div(rows, most);
  for (long i = 0, row = 0; i < groups; ++i) {
    const long count = rows / groups + (i < rows % groups);
    f(row, count);
    row += count;
  }
}

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

// Quantizes values: x * inverse, rounded with ties away from zero, plus `zero`, clamped to `low` and
// 127; NaN becomes 0. Stored as bytes with 128 added.
struct QuantizedRun {
  const float* x;
  long count;
  float inverse;
  int32_t zero, low;
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

// Bytes of weights in the smallest block of FULLY_CONNECTED, whose blocks are multiples of it.
constexpr long kLeastBlock = 16;

// Values of a row of weights that are prepared at once for a panel.
constexpr long kFileStep = 32;

// A row that was quantized on the fly.
struct QuantizedRow {
  float scale;
  int32_t zero;
};

// A few rows of integers times rows of weights as a file stores them. A vector of weights has the
// values of `x` in as many vectors as a byte has weights: of the first weight of each byte, of the
// second one, and so on; those after the row's last weight are zero.
struct FewRows {
  const int8_t* x;
  long x_stride;
  const int32_t* less;  // [rows, blocks], subtracted from the sums
  const uint8_t* w;     // [columns, bytes]
  long rows, bytes, columns;
  long blocks;                   // 1: results are sums, otherwise reals
  long block_vectors;            // 1 if a block is smaller than a vector
  const uint16_t* block_scales;  // float16 [columns, blocks]
  int32_t* sums;                 // [rows, stride]; the stride is a multiple of 4
  float* reals;                  // the scaled sums of blocks, added up
  long stride;
  bool fetches_ahead;  // whether the processor reads ahead well enough without being told
};

// Rows of weights as a file stores them -> a panel of Int8, or of WidenedInt8 or float32. `depth` is
// filled up to a multiple of 32 with zeros, that of float32 to a multiple of 8, and columns up to kPanel.
struct PanelOfFile {
  const uint8_t* w;
  long stride, columns, depth;
  int8_t* y;
};

// Rows times panels of weights whose blocks have scales: y [rows, columns of the panels] = the scaled
// sums of blocks, added up in their order.
template <class E>
struct BlockTile {
  ProductTile<E> first;  // of the first block; without its y, and its bias is [blocks, columns]
  long blocks;
  const float* scales;  // [blocks, columns]
  float* y;
};

// Products of quantized rows, scaled back to float32: the sums of integers, or the scaled sums of
// blocks. `ones` are those of a row of ones, which zero points multiply.
struct FinishedRows {
  const int32_t *sums, *ones;  // [rows, stride] and [columns], or null:
  const float *reals, *real_ones;
  long stride, rows, columns;
  const QuantizedRow* quantized;  // [rows]
  const float* scales;            // [columns] of sums
  const float* bias;              // [columns]
  Range range;
  float* y;
  long y_stride;
};

// A few rows of float32 times a matrix that is read in place: y [rows, columns].
struct InPlaceProduct {
  const float* x;  // [rows, depth]
  const float* w;  // [depth, columns] or [columns, depth]
  float* y;
  long x_stride, w_stride, y_stride;  // between rows
  long rows, depth, columns;
};

// What normalizes a row of `count` values; scale and offset [count] may be null.
struct NormalizedRow {
  long count;
  bool is_centered;  // else the mean square is the variance
  float epsilon;
  const float *scale, *offset;
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
  void (*softmax_of)(const float* x, long count, float* y);
  void (*normalize)(const NormalizedRow&, const float* x, float* y);
  // y [channels] = scale * the sum of the rows of x [rows, channels].
  void (*add_rows)(const float* x, long rows, long channels, float scale, float* y);
  // y = x w, w [depth, columns]; y = x w^T, w [columns, depth].
  void (*multiply_in_place)(const InPlaceProduct&);
  void (*multiply_transposed_in_place)(const InPlaceProduct&);
  Functions<OrderedFloat32> ordered;
};

struct Bfloat16Functions : Functions<Bfloat16> {
  void (*round)(const float* x, long count, uint16_t* y);  // to bfloat16; an even count
};

// Products of many rows with panels of weights, by rows - 1. Bytes have no flip.
template <class E>
struct ManyRowsFunctions {
  using Product = typename Functions<E>::Product;

  int panels = 0, rows = 0, block_panels = 0, block_rows = 0;  // of a tile
  Product product[kMostRows] = {};
  void (*block_product[kMostRows])(const BlockTile<E>&) = {};
  Product block_sums = nullptr;  // of one row
};

struct Int8Functions : Functions<Int8> {
  using FewRowsKernel = void (*)(const FewRows&);

  void (*requantize)(const RequantizedTile<uint8_t>&);
  void (*measure)(const float* x, long count, Extent& extent);
  void (*quantize)(const QuantizedRun&);
  void (*broadcast_operands)(const Broadcast&);  // for any values of 4 bytes
  // FULLY_CONNECTED; tables are for weights of 2, 4 and 8 bits.
  long vector = 0;    // bytes
  // Rows for which `few_rows` is faster than panels of weights: of int8; of fewer bits, or blocks.
  long most_rows_by_few[2] = {};
  bool has_wide_values = false;  // int16 for weights of 8 bits: the even ones of a vector, the odd ones
  int32_t less[3] = {};  // than they are: x is multiplied by weights + less
  FewRowsKernel few_rows[3] = {};
  // Not of 2 bits. By the logarithm of a block's groups of kLeastBlock bytes in a vector.
  FewRowsKernel few_rows_in_blocks[3][3] = {};
  void (*fill_panel[4])(const PanelOfFile&) = {};  // also of float32
  int32_t multiples[3] = {};                       // of weights, in panels
  ManyRowsFunctions<Int8> many_rows;
  // float16 [columns, blocks] -> float32 [blocks, kPanel], the blocks at a distance of `stride`.
  void (*widen_scales)(const uint16_t* x, long blocks, long columns, float* y, long stride) = nullptr;
  void (*finish_products)(const FinishedRows&) = nullptr;
};

struct Int16Functions : Functions<Int16> {
  void (*requantize)(const RequantizedTile<int16_t>&);
};

struct WidenedFunctions : Functions<WidenedInt8> {
  // y = x ^ flip, unsigned; the count must be a multiple of 4.
  void (*widen_factors)(const uint8_t* x, long count, uint8_t flip, int16_t* y);
  void (*widen_weights)(const int8_t* x, long depth, int16_t* y);  // a panel
  void (*fill_panel)(const PanelOfFile&);                          // of 8 bits
  ManyRowsFunctions<WidenedInt8> many_rows;
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
inline const Functions<OrderedFloat32>& InstructionSet::of() const {
  return float32->ordered;
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
