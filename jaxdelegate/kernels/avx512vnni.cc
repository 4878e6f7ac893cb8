// Kernels for integers with AVX-512 VNNI, which sums products of bytes in vectors of 16 lanes.

#include <type_traits>
#include <utility>

#include "kernels.h"
#include "target.h"

#define LANES 16

BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")
namespace kernels::avx512vnni {
namespace {
#include "products.inc"
#include "depthwise.inc"
#include "int8.inc"
#include "broadcast.inc"

// 28 sums, two vectors of weights, an operand and its flip mask.
static constexpr Int8Functions int8() {
  Int8Functions f{{depthwise<Int8Depthwise>}, requantize, measure, quantize, broadcast_operands};
  list_products<Int8Steps, 1>(f, std::make_integer_sequence<int, 14>());
  list_products<Int8Steps, 2>(f, std::make_integer_sequence<int, 14>());
  list_products<Int8Steps, 4>(f, std::make_integer_sequence<int, 6>());
  list_broadcast<Int8BroadcastSteps>(f, std::make_integer_sequence<int, 14>());
  return f;
}
}  // namespace
}  // namespace kernels::avx512vnni
END_TARGET

constexpr kernels::Int8Functions kernels::kAvx512vnniInt8 = avx512vnni::int8();
