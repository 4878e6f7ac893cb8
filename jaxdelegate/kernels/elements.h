// The kernels' element types: float32, float32 with operands of bfloat16, and quantized integers of
// 8 and 16 bits.

#pragma once

#include <cstdint>

namespace kernels {

// The epilogue of float32: sums are clamped. NaN stays NaN.
struct Range {
  float low, high;
};
constexpr Range kAll{-__builtin_inff(), __builtin_inff()};
// The range of a convolution without an activation in TFLite: infinity becomes the largest number.
constexpr Range kFinite{-__FLT_MAX__, __FLT_MAX__};

// The real values of a quantized tensor: (n + low) * scale, from `first` to `last`, n = 0, 1, ...
struct Grid {
  float first, last;
  float inverse;  // of the scale
  float low, scale;
};
constexpr long kGridFields = sizeof(Grid) / sizeof(float);

// Operations on finished sums of float32, if they are not only clamped: nonlinearity(sum +
// residual), where kClamp clamps to the range; then the nearest real value of the grid.
enum Nonlinearity : long { kClamp, kHardSwish, kSwish, kNonlinearities };

struct Finish {
  Nonlinearity nonlinearity = kClamp;
  Range range = kFinite;
  const float* residual = nullptr;  // in the layout of y, or null
  const Grid* grid = nullptr;       // or null

  bool is_any() const { return nonlinearity != kClamp || residual != nullptr || grid != nullptr; }
};

// Each byte of the pixels around an image.
inline uint8_t padding(const Range&) { return 0; }

struct Float32 {
  using Value = float;   // of x and y
  using Operand = float;  // of the left matrix
  using Weight = float;
  using DepthwiseWeight = float;
  using Sum = float;  // of bias, too
  using Epilogue = Range;
  static constexpr long kDeep = 1;    // values of the depth per step of a product
  static constexpr long kRows = 1;    // window rows per step of a depthwise sum
  static constexpr bool kSplits = true;  // partial sums may be stored to memory
  static constexpr bool kFillsBias = false;  // bias and scales are padded to whole panels
};

// float32 whose products are rounded before they are added, one after the other, as TFLite's
// reference kernels do.
struct OrderedFloat32 : Float32 {};

// float32, rounded to bfloat16 for products. The number of channels is even.
struct Bfloat16 {
  using Value = float;
  using Operand = uint16_t;
  using Weight = uint16_t;
  using Sum = float;
  using Epilogue = Range;
  static constexpr long kDeep = 2;
  static constexpr bool kSplits = true;
  static constexpr bool kFillsBias = false;
};

// Converts sums of integers to float32, rounded like TFLite's dynamic range kernels:
// range(sum * column_scales * scale + bias).
struct Rescaling {
  const float* column_scales;  // [columns]
  const float* bias;           // [columns]
  float scale;
  Range range;
  float* y;  // elements have the index that bytes at the same address would have
};

// Converts sums of integers to bytes or int16. If x and y are int8 or uint8, the kernels compute with
// `x ^ flip`, which is unsigned: x, or x + 128. The bias includes what this and the zero point of x
// add to the sums.
struct Requantization {
  const int32_t* multipliers;  // [columns], with shifts to the left: see TFLite's
  const int32_t* shifts;       // MultiplyByQuantizedMultiplier; or null, and
  const double* scales;        // real numbers instead, whose products are rounded once
  int32_t y_zero, low, high;
  int32_t w_zero;  // of a product's weights: its multiple by the sum of a row of x is subtracted
  uint8_t padding, flip;
  bool is_wide;  // multipliers and shifts are those of TFLite's int64 sums
  const Rescaling* floats;  // if not null, sums are converted to float32 instead
  long column;              // index of the first sum in the arrays of `floats`
};

inline uint8_t padding(const Requantization& epilogue) { return epilogue.padding; }

// Advances to the columns after the first `count`.
inline void skip(Range&, long) {}

inline void skip(Requantization& epilogue, long count) {
  epilogue.column += count;
  if (epilogue.floats != nullptr) return;
  if (epilogue.scales != nullptr) {
    epilogue.scales += count;
  } else {
    epilogue.multipliers += count, epilogue.shifts += count;
  }
}

struct Int8 {
  using Value = uint8_t;  // or int8_t
  using Operand = uint8_t;
  using Weight = int8_t;
  using DepthwiseWeight = int16_t;  // after subtracting the zero point
  using Sum = int32_t;              // wraps around
  using Epilogue = Requantization;
  static constexpr long kDeep = 4;
  static constexpr long kRows = 2;
  static constexpr bool kSplits = false;
  static constexpr bool kFillsBias = true;
};

// The zero points of x and y are 0; that of the weights is subtracted before.
struct Int16 {
  using Value = int16_t;
  using Operand = int16_t;
  using Weight = int16_t;
  using DepthwiseWeight = int16_t;
  using Sum = int32_t;
  using Epilogue = Requantization;
  static constexpr long kDeep = 2;
  static constexpr long kRows = 2;
  static constexpr bool kSplits = false;
  static constexpr bool kFillsBias = true;
};

// Int8, widened to int16 for products: for processors that cannot sum products of bytes. Of four
// values of the depth, the even ones precede the odd ones.
struct WidenedInt8 : Int16 {
  using Value = uint8_t;
};

}  // namespace kernels
