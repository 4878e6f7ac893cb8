#include "mean.h"

#include <algorithm>

#include "scratch.h"

namespace kernels {

namespace {

constexpr long kPartValues = 16384;  // that justify waking a thread
constexpr long kMostParts = 16;      // of an image

// Parts do not depend on the number of threads, so sums do not, either.
struct Tiling {
  const Mean& mean;
  const InstructionSet& set;
  long parts;
  float* sums;  // [batch, parts, channels]
};

void run_task(const void* tiling, long index) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const Mean& m = p.mean;
  const long image = index / p.parts, part = index % p.parts;
  const long begin = m.pixels * part / p.parts, end = m.pixels * (part + 1) / p.parts;
  const float* x = m.x + (image * m.pixels + begin) * m.channels;
  p.set.float32->add_rows(x, end - begin, m.channels, 1.0f, p.sums + index * m.channels);
}

}  // namespace

void run(const Mean& m, const InstructionSet& set, const ThreadPool& pool) {
  static thread_local Scratch<float> scratch;
  const long most = std::min(m.pixels, kMostParts);
  const long parts = std::clamp(m.pixels * m.channels / kPartValues, 1L, most);
  const Tiling tiling{
      .mean = m,
      .set = set,
      .parts = parts,
      .sums = scratch.of(m.batch * parts * m.channels),
  };
  pool.loop(m.batch * parts, run_task, &tiling);
  for (long i = 0; i < m.batch; ++i)
    set.float32->add_rows(tiling.sums + i * parts * m.channels, parts, m.channels, 1.0f / m.pixels,
                 m.y + i * m.channels);
}

}  // namespace kernels
