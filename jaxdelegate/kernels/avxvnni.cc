// Kernels for integers with AVX-VNNI, which sums products of bytes and of int16 in vectors of 8 lanes.

#include <type_traits>
#include <utility>

#include "kernels.h"
#include "target.h"

#if KNOWS_AVXVNNI
#define LANES 8
#define HAS_VNNI 1

BEGIN_TARGET("avx2,avxvnni,fma,f16c")
namespace kernels::avxvnni {
namespace {
#include "products.inc"
#include "depthwise.inc"
#include "int8.inc"
#include "int16.inc"
#include "fully_connected.inc"
#include "broadcast.inc"

// 12 sums, two vectors of weights and an operand.
static constexpr Int8Functions int8() {
  Int8Functions f{{depthwise<IntegerDepthwise<Int8>>}, requantize, measure, quantize, broadcast_operands};
  list_fully_connected<3>(f);
  list_many_rows<UnsignedSteps, 1>(f.many_rows, std::make_integer_sequence<int, 6>());
  list_blocks<UnsignedSteps, 1>(f.many_rows, std::make_integer_sequence<int, 3>());
  list_products<Int8Steps, 1>(f, std::make_integer_sequence<int, 6>());
  list_broadcast<Int8BroadcastSteps>(f, std::make_integer_sequence<int, 6>());
  return f;
}

static constexpr Int16Functions int16() {
  Int16Functions f{{depthwise<IntegerDepthwise<Int16>>}, requantize};
  list_products<Int16Steps<Int16>, 1>(f, std::make_integer_sequence<int, 6>());
  list_broadcast<Int16BroadcastSteps>(f, std::make_integer_sequence<int, 6>());
  return f;
}
}  // namespace
}  // namespace kernels::avxvnni
END_TARGET

constexpr kernels::Int8Functions kernels::kAvxvnniInt8 = avxvnni::int8();
constexpr kernels::Int16Functions kernels::kAvxvnniInt16 = avxvnni::int16();
#endif
