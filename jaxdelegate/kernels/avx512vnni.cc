// Kernels for integers with AVX-512 VNNI, which sums products of bytes and of int16 in vectors of 16 lanes.

#include <type_traits>
#include <utility>

#include "kernels.h"
#include "target.h"

#define LANES 16

BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")
namespace kernels::avx512vnni {
namespace {
#include "products.inc"
#include "depthwise.inc"
#include "int8.inc"
#include "int16.inc"
#include "fully_connected.inc"
#include "broadcast.inc"

// 24 or 28 sums, up to four vectors of weights, an operand and its flip mask. Four panels of
// FULLY_CONNECTED read fewer operands for each product than two: on a Zen 4 up to 9 percent faster.
static constexpr Int8Functions int8() {
  Int8Functions f{{depthwise<IntegerDepthwise<Int8>>}, requantize, measure, quantize, broadcast_operands};
  list_fully_connected<4>(f);
  list_many_rows<UnsignedSteps, 4>(f.many_rows, std::make_integer_sequence<int, 6>());
  list_blocks<UnsignedSteps, 2>(f.many_rows, std::make_integer_sequence<int, 6>());
  list_products<Int8Steps, 1>(f, std::make_integer_sequence<int, 14>());
  list_products<Int8Steps, 2>(f, std::make_integer_sequence<int, 14>());
  list_products<Int8Steps, 4>(f, std::make_integer_sequence<int, 6>());
  list_broadcast<Int8BroadcastSteps>(f, std::make_integer_sequence<int, 14>());
  return f;
}

// 28 sums, two vectors of weights and an operand.
static constexpr Int16Functions int16() {
  Int16Functions f{{depthwise<IntegerDepthwise<Int16>>}, requantize};
  list_products<Int16Steps<Int16>, 1>(f, std::make_integer_sequence<int, 14>());
  list_products<Int16Steps<Int16>, 2>(f, std::make_integer_sequence<int, 14>());
  list_products<Int16Steps<Int16>, 4>(f, std::make_integer_sequence<int, 6>());
  list_broadcast<Int16BroadcastSteps>(f, std::make_integer_sequence<int, 14>());
  return f;
}
}  // namespace
}  // namespace kernels::avx512vnni
END_TARGET

constexpr kernels::Int8Functions kernels::kAvx512vnniInt8 = avx512vnni::int8();
constexpr kernels::Int16Functions kernels::kAvx512vnniInt16 = avx512vnni::int16();
