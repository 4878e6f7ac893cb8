// Kernels for bfloat16 with AVX512-BF16: products are summed in 16 lanes of float32.

#include <utility>

#include "kernels.h"
#include "target.h"

#if KNOWS_AVX512BF16
#define LANES 16

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512bf16,fma")
namespace kernels::avx512bf16 {
namespace {
#include "products.inc"
#include "float32.inc"
#include "bfloat16.inc"

// 28 sums, two vectors of weights and an operand.
static constexpr Bfloat16Functions bfloat16() {
  Bfloat16Functions f{{}, round_to_bfloat16};
  list_products<Bfloat16Steps, 1>(f, std::make_integer_sequence<int, 14>());
  list_products<Bfloat16Steps, 2>(f, std::make_integer_sequence<int, 14>());
  list_products<Bfloat16Steps, 4>(f, std::make_integer_sequence<int, 6>());
  return f;
}
}  // namespace
}  // namespace kernels::avx512bf16
END_TARGET

constexpr kernels::Bfloat16Functions kernels::kAvx512bf16Bfloat16 = avx512bf16::bfloat16();
#endif
