#include "instruction_sets.h"

#include <atomic>
#include <cstring>
#include <iterator>

#include "cpu.h"
#include "target.h"

namespace kernels {

namespace {

constexpr uint32_t kHasAvx2 = kAvx2 | kFma | kF16c, kHasAvx512f = kHasAvx2 | kAvx512f;
constexpr uint32_t kHasAvx512vnni = kHasAvx512f | kAvx512bw | kAvx512dq | kAvx512vl | kAvx512vnni;
// Features of sets whose instructions the compiler does not know: no processor has all of these.
[[maybe_unused]] constexpr uint32_t kUnknown = ~0u;

// The best first. These are only addresses: no code of a set runs before it is chosen.
constexpr InstructionSet kSets[] = {
#if KNOWS_AVX512BF16
    {.name = "avx512bf16",
     .needs = kHasAvx512vnni | kAvx512bf16,
     .float32 = &kAvx512fFloat32,
     .bfloat16 = &kAvx512bf16Bfloat16,
     .int8 = &kAvx512vnniInt8,
     .int16 = &kAvx512vnniInt16,
     .widened = nullptr},
#else
    {.name = "avx512bf16", .needs = kUnknown},
#endif
    {.name = "avx512vnni",
     .needs = kHasAvx512vnni,
     .float32 = &kAvx512fFloat32,
     .bfloat16 = nullptr,
     .int8 = &kAvx512vnniInt8,
     .int16 = &kAvx512vnniInt16,
     .widened = nullptr},
    {.name = "avx512f",
     .needs = kHasAvx512f,
     .float32 = &kAvx512fFloat32,
     .bfloat16 = nullptr,
     .int8 = &kAvx2Int8,
     .int16 = &kAvx2Int16,
     .widened = &kAvx2Widened},
#if KNOWS_AVXVNNI
    {.name = "avxvnni",
     .needs = kHasAvx2 | kAvxVnni,
     .float32 = &kAvx2Float32,
     .bfloat16 = nullptr,
     .int8 = &kAvxvnniInt8,
     .int16 = &kAvxvnniInt16,
     .widened = nullptr},
#else
    {.name = "avxvnni", .needs = kUnknown},
#endif
    {.name = "avx2",
     .needs = kHasAvx2,
     .float32 = &kAvx2Float32,
     .bfloat16 = nullptr,
     .int8 = &kAvx2Int8,
     .int16 = &kAvx2Int16,
     .widened = &kAvx2Widened},
};

bool is_known(const char* name) {
  if (name == nullptr || !strcmp(name, "none")) return true;
  for (const InstructionSet& set : kSets)
    if (!strcmp(name, set.name)) return true;
  return false;
}

// Null if `limit` was not called, or if it allows no set; `is_limited` distinguishes these.
std::atomic<const InstructionSet*> limited{nullptr};
std::atomic<bool> is_limited{false};

}  // namespace

const InstructionSet* instruction_set(long number) {
  return number >= 0 && number < static_cast<long>(std::size(kSets)) ? &kSets[number] : nullptr;
}

const InstructionSet* select(uint32_t features, const char* most) {
  bool is_allowed = most == nullptr;
  for (const InstructionSet& set : kSets) {
    is_allowed = is_allowed || !strcmp(most, set.name);
    if (is_allowed && (features & set.needs) == set.needs) return &set;
  }
  return nullptr;
}

const InstructionSet* instruction_set() {
  static const InstructionSet* const kBest = select(cpu_features(), nullptr);
  return is_limited.load(std::memory_order_acquire) ? limited.load(std::memory_order_relaxed)
                                                    : kBest;
}

bool limit(const char* most) {
  if (!is_known(most)) return false;
  limited.store(select(cpu_features(), most), std::memory_order_relaxed);
  is_limited.store(true, std::memory_order_release);
  return true;
}

}  // namespace kernels
