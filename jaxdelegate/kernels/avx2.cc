// Kernels for AVX2 and FMA: vectors of 8 lanes, in 16 registers.

#include <type_traits>
#include <utility>

#include "kernels.h"
#include "target.h"

#define LANES 8
#define HAS_VNNI 0

BEGIN_TARGET("avx2,fma,f16c")
namespace kernels::avx2 {
namespace {
#include "products.inc"
#include "depthwise.inc"
#include "float32.inc"
#include "finish.inc"
#include "mean.inc"
#include "softmax.inc"
#include "layer_norm.inc"
#include "in_place.inc"
#include "winograd.inc"
#include "int8.inc"
#include "int16.inc"
#include "fully_connected.inc"
#include "narrow.inc"
#include "widened.inc"
#include "broadcast.inc"

// 12 sums, two vectors of weights and an operand.
static constexpr Float32Functions float32() {
  Float32Functions f{{depthwise<Float32Depthwise>}, winograd_points, winograd_results,
                     finish, softmax, softmax_of, normalize, add_rows,
                     multiply_in_place, multiply_transposed_in_place};
  list_products<Float32Steps, 1>(f, std::make_integer_sequence<int, 6>());
  list_products<OrderedSteps, 1>(f.ordered, std::make_integer_sequence<int, 6>());
  list_broadcast<Float32BroadcastSteps>(f, std::make_integer_sequence<int, 6>());
  return f;
}

// 8 sums: weights and operands take two registers each, but one each in products of many rows. Up to 20
// rows of int8, and 8 of the others, were faster in passes of few rows, on an EPYC.
static constexpr Int8Functions int8() {
  Int8Functions f{{depthwise<IntegerDepthwise<Int8>>}, requantize, measure, quantize, broadcast_operands};
  list_fully_connected<3, 20, 8>(f);
  list_many_rows<NarrowSteps, 1>(f.many_rows, std::make_integer_sequence<int, 6>());
  list_blocks<NarrowSteps, 1>(f.many_rows, std::make_integer_sequence<int, 6>());
  list_products<Int8Steps, 1>(f, std::make_integer_sequence<int, 4>());
  list_broadcast<Int8BroadcastSteps>(f, std::make_integer_sequence<int, 4>());
  return f;
}

// 12 sums, two vectors of weights, an operand and products.
static constexpr Int16Functions int16() {
  Int16Functions f{{depthwise<IntegerDepthwise<Int16>>}, requantize};
  list_products<Int16Steps<Int16>, 1>(f, std::make_integer_sequence<int, 6>());
  list_broadcast<Int16BroadcastSteps>(f, std::make_integer_sequence<int, 6>());
  return f;
}

static constexpr WidenedFunctions widened() {
  WidenedFunctions f{{}, widen_factors, widen_weights, fill_panel<8, AsInt16>};
  list_many_rows<Int16Steps<WidenedInt8>, 1>(f.many_rows, std::make_integer_sequence<int, 6>());
  list_blocks<Int16Steps<WidenedInt8>, 1>(f.many_rows, std::make_integer_sequence<int, 6>());
  list_products<Int16Steps<WidenedInt8>, 1>(f, std::make_integer_sequence<int, 6>());
  return f;
}
}  // namespace
}  // namespace kernels::avx2
END_TARGET

constexpr kernels::Float32Functions kernels::kAvx2Float32 = avx2::float32();
constexpr kernels::Int8Functions kernels::kAvx2Int8 = avx2::int8();
constexpr kernels::Int16Functions kernels::kAvx2Int16 = avx2::int16();
constexpr kernels::WidenedFunctions kernels::kAvx2Widened = avx2::widened();
