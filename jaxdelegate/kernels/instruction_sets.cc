#include "instruction_sets.h"

#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 finds its own intrinsics guilty
#endif
#include <cpuid.h>
#include <immintrin.h>
#endif

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

#if defined(__clang__)
#define KNOWS_AVXVNNI (__clang_major__ >= 12)
#define KNOWS_AVX512BF16 (__clang_major__ >= 9)
#else
#define KNOWS_AVXVNNI (__GNUC__ >= 11)
#define KNOWS_AVX512BF16 (__GNUC__ >= 10)
#endif

namespace kernels {

#if defined(__x86_64__)

BEGIN_TARGET("avx512f,fma")
namespace avx512f {
#define LANES 16
#include "products.inc"
#include "depthwise.inc"
#include "float32.inc"
#include "finish.inc"
#include "mean.inc"
#include "softmax.inc"
#include "winograd.inc"
#undef LANES
}  // namespace avx512f
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")
namespace avx512vnni {
#define LANES 16
#include "products.inc"
#include "depthwise.inc"
#include "int8.inc"
#include "spread.inc"
#undef LANES
}  // namespace avx512vnni
END_TARGET

#if KNOWS_AVX512BF16
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512bf16,fma")
namespace avx512bf16 {
#define LANES 16
#include "products.inc"
#include "depthwise.inc"
#include "float32.inc"
#include "bfloat16.inc"
#undef LANES
}  // namespace avx512bf16
END_TARGET
#endif

BEGIN_TARGET("avx2,fma")
namespace avx2 {
#define LANES 8
#include "products.inc"
#include "depthwise.inc"
#include "float32.inc"
#include "finish.inc"
#include "mean.inc"
#include "softmax.inc"
#include "winograd.inc"
#define HAS_VNNI 0
#include "int8.inc"
#include "spread.inc"
#undef HAS_VNNI
#undef LANES
}  // namespace avx2
END_TARGET

#if KNOWS_AVXVNNI
BEGIN_TARGET("avx2,avxvnni,fma")
namespace avxvnni {
#define LANES 8
#include "products.inc"
#include "depthwise.inc"
#define HAS_VNNI 1
#include "int8.inc"
#undef HAS_VNNI
#undef LANES
}  // namespace avxvnni
END_TARGET
#endif

// 32 registers: 28 sums, two vectors of weights and a factor (of integers, and what flips them).
// Few rows read more panels at a time.
static Functions<Float32> avx512f_floats() {
  Functions<Float32> f{avx512f::depthwise<avx512f::Float32Depthwise>};
  avx512f::list_products<avx512f::Float32Steps, 1>(f, std::make_integer_sequence<int, 14>());
  avx512f::list_products<avx512f::Float32Steps, 2>(f, std::make_integer_sequence<int, 14>());
  avx512f::list_products<avx512f::Float32Steps, 4>(f, std::make_integer_sequence<int, 6>());
  avx512f::list_spread<avx512f::Float32SpreadSteps>(f, std::make_integer_sequence<int, 14>());
  return f;
}

#if KNOWS_AVX512BF16

static Functions<Bfloat16> avx512bf16_products() {
  Functions<Bfloat16> f{};
  avx512bf16::list_products<avx512bf16::Bfloat16Steps, 1>(f, std::make_integer_sequence<int, 14>());
  avx512bf16::list_products<avx512bf16::Bfloat16Steps, 2>(f, std::make_integer_sequence<int, 14>());
  avx512bf16::list_products<avx512bf16::Bfloat16Steps, 4>(f, std::make_integer_sequence<int, 6>());
  return f;
}

#endif

static Functions<Int8> avx512vnni_integers() {
  Functions<Int8> f{avx512vnni::depthwise<avx512vnni::Int8Depthwise>};
  avx512vnni::list_products<avx512vnni::Int8Steps, 1>(f, std::make_integer_sequence<int, 14>());
  avx512vnni::list_products<avx512vnni::Int8Steps, 2>(f, std::make_integer_sequence<int, 14>());
  avx512vnni::list_products<avx512vnni::Int8Steps, 4>(f, std::make_integer_sequence<int, 6>());
  avx512vnni::list_spread<avx512vnni::Int8SpreadSteps>(f, std::make_integer_sequence<int, 14>());
  return f;
}

// 16 registers: 12 sums, two vectors of weights and a factor.
static Functions<Float32> avx2_floats() {
  Functions<Float32> f{avx2::depthwise<avx2::Float32Depthwise>};
  avx2::list_products<avx2::Float32Steps, 1>(f, std::make_integer_sequence<int, 6>());
  avx2::list_spread<avx2::Float32SpreadSteps>(f, std::make_integer_sequence<int, 6>());
  return f;
}

// 8 sums: weights and factors take two registers each.
static Functions<Int8> avx2_integers() {
  Functions<Int8> f{avx2::depthwise<avx2::Int8Depthwise>};
  avx2::list_products<avx2::Int8Steps, 1>(f, std::make_integer_sequence<int, 4>());
  avx2::list_spread<avx2::Int8SpreadSteps>(f, std::make_integer_sequence<int, 4>());
  return f;
}

#if KNOWS_AVXVNNI

static Functions<Int8> avxvnni_integers() {
  Functions<Int8> f{avxvnni::depthwise<avxvnni::Int8Depthwise>};
  avxvnni::list_products<avxvnni::Int8Steps, 1>(f, std::make_integer_sequence<int, 6>());
  avxvnni::list_spread<avxvnni::Int8SpreadSteps>(f, std::make_integer_sequence<int, 6>());
  return f;
}

static bool has_avxvnni() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1 << 4);
}

#endif

struct Candidate {
  InstructionSet set;
  bool is_there;
};

// The best one first.
static const InstructionSet* find(const char* name) {
  __builtin_cpu_init();
  static const bool kHasAvx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool kHasAvx512f = kHasAvx2 && __builtin_cpu_supports("avx512f");
  static const bool kHasAvx512vnni =
      kHasAvx512f && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  static const Candidate kCandidates[] = {
#if KNOWS_AVX512BF16
      {{"avx512bf16", avx512f_floats(), avx512bf16_products(), avx512vnni_integers(),
        avx512f::winograd_points, avx512f::winograd_results, avx512f::finish,
        avx512f::softmax, avx512f::add_rows, avx512vnni::requantize, avx512vnni::spread,
        avx512bf16::round_to_bfloat16},
       kHasAvx512vnni && __builtin_cpu_supports("avx512bf16")},
#endif
      {{"avx512vnni", avx512f_floats(), {}, avx512vnni_integers(), avx512f::winograd_points,
        avx512f::winograd_results, avx512f::finish,
        avx512f::softmax, avx512f::add_rows, avx512vnni::requantize, avx512vnni::spread, nullptr},
       kHasAvx512vnni},
      {{"avx512f", avx512f_floats(), {}, avx2_integers(), avx512f::winograd_points,
        avx512f::winograd_results, avx512f::finish,
        avx512f::softmax, avx512f::add_rows, avx2::requantize, avx2::spread, nullptr},
       kHasAvx512f},
#if KNOWS_AVXVNNI
      {{"avxvnni", avx2_floats(), {}, avxvnni_integers(), avx2::winograd_points,
        avx2::winograd_results, avx2::finish, avx2::softmax,
        avx2::add_rows, avxvnni::requantize, avx2::spread, nullptr},
       kHasAvx2 && has_avxvnni()},
#endif
      {{"avx2", avx2_floats(), {}, avx2_integers(), avx2::winograd_points, avx2::winograd_results,
        avx2::finish, avx2::softmax, avx2::add_rows, avx2::requantize, avx2::spread, nullptr},
       kHasAvx2},
  };
  for (const Candidate& candidate : kCandidates) {
    const bool is_asked = name == nullptr || !strcmp(name, candidate.set.name);
    if (candidate.is_there && is_asked) return &candidate.set;
  }
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
