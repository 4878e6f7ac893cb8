// Kernels for float32 with AVX-512: vectors of 16 lanes, in 32 registers.

#include <utility>

#include "kernels.h"
#include "target.h"

#define LANES 16

BEGIN_TARGET("avx512f,fma")
namespace kernels::avx512f {
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

// 28 sums, two vectors of weights and an operand. Tiles of few rows read more panels at a time.
static constexpr Float32Functions float32() {
  Float32Functions f{{depthwise<Float32Depthwise>}, winograd_points, winograd_results,
                     finish, softmax, softmax_of, normalize, add_rows,
                     multiply_in_place, multiply_transposed_in_place};
  list_products<Float32Steps, 1>(f, std::make_integer_sequence<int, 14>());
  list_products<Float32Steps, 2>(f, std::make_integer_sequence<int, 14>());
  list_products<Float32Steps, 4>(f, std::make_integer_sequence<int, 6>());
  list_products<OrderedSteps, 1>(f.ordered, std::make_integer_sequence<int, 14>());
  list_products<OrderedSteps, 2>(f.ordered, std::make_integer_sequence<int, 14>());
  list_products<OrderedSteps, 4>(f.ordered, std::make_integer_sequence<int, 6>());
  list_broadcast<Float32BroadcastSteps>(f, std::make_integer_sequence<int, 14>());
  return f;
}
}  // namespace
}  // namespace kernels::avx512f
END_TARGET

constexpr kernels::Float32Functions kernels::kAvx512fFloat32 = avx512f::float32();
