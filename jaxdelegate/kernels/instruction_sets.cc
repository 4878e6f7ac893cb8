#include "instruction_sets.h"

#include <atomic>
#include <cstring>
#include <utility>

#if defined(__clang__)
#define TARGET_PRAGMA(text) _Pragma(#text)
#define BEGIN_TARGET(features) \
  TARGET_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_TARGET TARGET_PRAGMA(clang attribute pop)
#else
#define TARGET_PRAGMA(text) _Pragma(#text)
#define BEGIN_TARGET(features) \
  TARGET_PRAGMA(GCC push_options) TARGET_PRAGMA(GCC target(features))
#define END_TARGET TARGET_PRAGMA(GCC pop_options)
#endif

namespace kernels {

#if defined(__x86_64__)

BEGIN_TARGET("avx512f,fma")
namespace avx512f {
#define LANES 16
#include "tiles.inc"
#include "winograd.inc"
#undef LANES
}  // namespace avx512f
END_TARGET

BEGIN_TARGET("avx2,fma")
namespace avx2 {
#define LANES 8
#include "tiles.inc"
#include "winograd.inc"
#undef LANES
}  // namespace avx2
END_TARGET

// 32 registers: 28 sums, two vectors of weights and a factor. Few rows read more panels at a time.
static InstructionSet make_avx512f() {
  InstructionSet set{"avx512f", {}, {}, avx512f::depthwise, avx512f::winograd_points,
                     avx512f::winograd_results};
  avx512f::list_products<1>(set, std::make_integer_sequence<int, 14>());
  avx512f::list_products<2>(set, std::make_integer_sequence<int, 14>());
  avx512f::list_products<4>(set, std::make_integer_sequence<int, 6>());
  return set;
}

// 16 registers: 12 sums, two vectors of weights and a factor.
static InstructionSet make_avx2() {
  InstructionSet set{"avx2", {}, {}, avx2::depthwise, avx2::winograd_points,
                     avx2::winograd_results};
  avx2::list_products<1>(set, std::make_integer_sequence<int, 6>());
  return set;
}

static const InstructionSet* find(const char* name) {
  static const InstructionSet kAvx512f = make_avx512f(), kAvx2 = make_avx2();
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512f = has_avx2 && __builtin_cpu_supports("avx512f");
  if (has_avx512f && (name == nullptr || !strcmp(name, kAvx512f.name))) return &kAvx512f;
  if (has_avx2 && (name == nullptr || !strcmp(name, kAvx2.name))) return &kAvx2;
  return nullptr;
}

#else

static const InstructionSet* find(const char*) { return nullptr; }

#endif

static std::atomic<const InstructionSet*> chosen{nullptr};

const InstructionSet* instruction_set() {
  static const InstructionSet* const kBest = find(nullptr);
  const InstructionSet* set = chosen.load(std::memory_order_relaxed);
  return set != nullptr ? set : kBest;
}

bool use_instruction_set(const char* name) {
  const InstructionSet* set = find(name);
  if (set != nullptr) chosen.store(set, std::memory_order_relaxed);
  return set != nullptr;
}

}  // namespace kernels
