// What kernels compute with: float32, its products with operands of bfloat16, and quantized
// integers of 8 bits.

#pragma once

#include <cstdint>

namespace kernels {

// How float32 ends: clamped. NaN stays NaN.
struct Range {
  float low, high;
};
constexpr Range kAll{-__builtin_inff(), __builtin_inff()};
// What a convolution without an activation yields in TFLite: infinity is the largest number.
constexpr Range kFinite{-__FLT_MAX__, __FLT_MAX__};

// The reals of a quantized tensor: (n + low) * scale, from `first` to `last`, for n = 0, 1, ...
struct Grid {
  float first, last;
  float inverse;  // of the scale
  float low, scale;
};
constexpr long kGridFields = sizeof(Grid) / sizeof(float);

// What finished sums become that are not only clamped: nonlinearity(sum + residual), where kClamp
// is the range, and the grid's real next to that. Of float32 alone.
enum Nonlinearity : long { kClamp, kHardSwish, kSwish, kNonlinearities };

struct Finish {
  Nonlinearity nonlinearity = kClamp;
  Range range = kFinite;
  const float* residual = nullptr;  // laid out as y; null: there is none
  const Grid* grid = nullptr;       // null: there is none

  bool is_any() const { return nonlinearity != kClamp || residual != nullptr || grid != nullptr; }
};

// The bytes of what stands around an image.
inline uint8_t padding(const Range&) { return 0; }

struct Float32 {
  using Value = float;   // of x and y
  using Operand = float;  // of the left matrix
  using Weight = float;
  using DepthwiseWeight = float;
  using Sum = float;  // of bias, too
  using Epilogue = Range;
  static constexpr long kDeep = 1;    // values of the depth that one step of a product takes
  static constexpr long kRows = 1;    // window rows that one step of a depthwise sum takes
  static constexpr bool kSplits = true;  // sums may go back to memory before they are whole
  static constexpr bool kFillsBias = false;  // bias and scales are there for whole panels
};

// float32, rounded to bfloat16 where it is multiplied. The channels are even in number.
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

// How sums of integers become float32, as TFLite's dynamic range kernels round them:
// range(sum * by * then + bias).
struct Rescaling {
  const float* by;    // [columns]
  const float* bias;  // [columns]
  float then;
  Range range;
  float* y;  // elements lie here as the bytes would lie from the same address on
};

// How sums of integers become bytes. x and y are int8 or uint8; the kernels compute with
// `x ^ flip`, which is unsigned: x, or x + 128. What that, and the zero point of x, adds to the
// sums is in the bias.
struct Requantization {
  const int32_t* multipliers;  // [columns], with as many shifts: as TFLite's
  const int32_t* shifts;       // MultiplyByQuantizedMultiplier, to the left; or
  const double* scales;        // real numbers instead, whose products are rounded once
  int32_t y_zero, low, high;
  int32_t w_zero;  // of the weights of a product: taken off the sums with what a row of x sums to
  uint8_t padding, flip;
  const Rescaling* floats;  // what sums become instead, if it is there
  long column;              // of its arrays: that of the first sum
};

inline uint8_t padding(const Requantization& epilogue) { return epilogue.padding; }

// Goes on to the columns after the first `count`.
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
  using DepthwiseWeight = int16_t;  // less their zero point
  using Sum = int32_t;              // wraps around
  using Epilogue = Requantization;
  static constexpr long kDeep = 4;
  static constexpr long kRows = 2;
  static constexpr bool kSplits = false;
  static constexpr bool kFillsBias = true;
};

// Int8, as int16 where it is multiplied: for processors that add up no products of bytes. Of four
// values of the depth the even ones lie before the odd ones.
struct Int16 {
  using Value = uint8_t;
  using Operand = int16_t;
  using Weight = int16_t;
  using Sum = int32_t;
  using Epilogue = Requantization;
  static constexpr long kDeep = 2;
  static constexpr bool kSplits = false;
  static constexpr bool kFillsBias = true;
};

}  // namespace kernels
