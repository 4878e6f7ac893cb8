#include "instruction_sets.h"

#include <atomic>
#include <cstring>
#include <iterator>

#include "cpu.h"
#include "target.h"

namespace kernels {

namespace {

constexpr uint32_t kHasAvx2 = kAvx2 | kFma, kHasAvx512f = kHasAvx2 | kAvx512f;
constexpr uint32_t kHasAvx512vnni = kHasAvx512f | kAvx512bw | kAvx512dq | kAvx512vl | kAvx512vnni;
// No processor has all of these: of a set whose instructions the compiler does not know.
[[maybe_unused]] constexpr uint32_t kUnknown = ~0u;

// The best one first. Only addresses are known here: no code of a set runs before it is chosen.
constexpr InstructionSet kSets[] = {
#if KNOWS_AVX512BF16
    {"avx512bf16", kHasAvx512vnni | kAvx512bf16, &kAvx512fFloat32, &kAvx512bf16Bfloat16,
     &kAvx512vnniInt8, nullptr},
#else
    {"avx512bf16", kUnknown, nullptr, nullptr, nullptr, nullptr},
#endif
    {"avx512vnni", kHasAvx512vnni, &kAvx512fFloat32, nullptr, &kAvx512vnniInt8, nullptr},
    {"avx512f", kHasAvx512f, &kAvx512fFloat32, nullptr, &kAvx2Int8, &kAvx2Int16},
#if KNOWS_AVXVNNI
    {"avxvnni", kHasAvx2 | kAvxVnni, &kAvx2Float32, nullptr, &kAvxvnniInt8, nullptr},
#else
    {"avxvnni", kUnknown, nullptr, nullptr, nullptr, nullptr},
#endif
    {"avx2", kHasAvx2, &kAvx2Float32, nullptr, &kAvx2Int8, &kAvx2Int16},
};

bool is_known(const char* name) {
  if (name == nullptr || !strcmp(name, "none")) return true;
  for (const InstructionSet& set : kSets)
    if (!strcmp(name, set.name)) return true;
  return false;
}

// Null where `limit` was not called, and where it left none: `is_limited` tells them apart.
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
