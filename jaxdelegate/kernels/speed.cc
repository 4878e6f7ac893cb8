// How much faster the processor multiplies bfloat16 than float32. AVX512-BF16 does not tell: some
// processors sum two products in each lane as quickly as they sum one, others take twice as long.

#include <algorithm>
#include <chrono>

#include "calls.h"
#include "instruction_sets.h"
#include "kernels.h"

namespace kernels {

namespace {

constexpr int kPanels = 2, kCalls = 8, kRounds = 24;
constexpr long kDepth = 128;  // operands and weights stay in the first cache

// A product of zeros by the kernel of a set.
template <class E>
class Sample {
 public:
  explicit Sample(const Functions<E>& f) : rows_(f.rows[kPanels]), run_(f.product[kPanels][rows_ - 1]) {}

  // Seconds for each row, at the quickest.
  double seconds() const { return seconds_ / rows_; }

  void measure() {
    using Clock = std::chrono::steady_clock;
    const ProductTile<E> tile{.tiles = 1,
                              .a = a_,
                              .a_stride = kDepth,
                              .runs = 1,
                              .run_stride = kDepth,
                              .b = b_,
                              .b_stride = kDepth * kPanel,
                              .next = reinterpret_cast<const char*>(b_),
                              .next_stride = 0,
                              .bias = nullptr,
                              .y = y_,
                              .y_stride = kPanels * kPanel,
                              .depth = kDepth,
                              .is_last = true,
                              .epilogue = kFinite};
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) run_(tile);
    seconds_ = std::min(seconds_, std::chrono::duration<double>(Clock::now() - begin).count());
  }

 private:
  long rows_;
  typename Functions<E>::Product run_;
  double seconds_ = 1e9;
  alignas(64) typename E::Operand a_[kMostRows * kDepth] = {};
  alignas(64) typename E::Weight b_[kPanels * kPanel * kDepth] = {};
  alignas(64) typename E::Sum y_[kMostRows * kPanels * kPanel] = {};
};

// In turns: another process, or a change of the clock, concerns both.
double measured_bfloat16_gain(const InstructionSet& set) {
  Sample<Float32> wide(set.of<Float32>());
  Sample<Bfloat16> reduced(set.of<Bfloat16>());
  for (int i = 0; i < kRounds; ++i) wide.measure(), reduced.measure();
  return wide.seconds() / reduced.seconds();
}

}  // namespace

}  // namespace kernels

// How many times the speed of float32 products bfloat16 has with the set in use; 0: it has none.
EXPORT double jaxdelegate_bfloat16_gain() {
  const kernels::InstructionSet* set = kernels::instruction_set();
  return set == nullptr || set->bfloat16 == nullptr ? 0 : kernels::measured_bfloat16_gain(*set);
}
