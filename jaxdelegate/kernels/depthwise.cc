#include "depthwise.h"

#include <algorithm>
#include <vector>

namespace kernels {

namespace {

constexpr long kTaskProducts = 100000;  // what a thread is worth waking for
constexpr long kTasks = 4;              // for each thread

struct Rows {
  const Depthwise& depthwise;
  DepthwiseKernel kernel;
  const float* zeros;
  long count, of_task;  // of all images
};

void run_task(const void* data, long index) {
  const Rows& rows = *static_cast<const Rows*>(data);
  const Depthwise& d = rows.depthwise;
  const Geometry& g = d.geometry;
  const long end = std::min(rows.count, (index + 1) * rows.of_task);
  for (long row = index * rows.of_task; row < end; ++row) {
    const long image = row / g.out_height;
    const float* x = d.x + image * g.height * g.width * g.channels;
    float* y = d.y + image * g.out_height * g.out_width * g.channels;
    rows.kernel({g, x, d.weights, d.bias, rows.zeros, y, d.range}, row % g.out_height);
  }
}

}  // namespace

void run(const Depthwise& d, const InstructionSet& set, const ThreadPool& pool) {
  static thread_local std::vector<float> zeros;
  const Geometry& g = d.geometry;
  if (static_cast<long>(zeros.size()) < g.channels) zeros.resize(g.channels);
  const long count = g.images * g.out_height, threads = pool.size();
  const double products =
      1.0 * count * g.out_width * g.channels * g.window_height * g.window_width;
  const long most = threads < 2 ? 1 : std::min(count, threads * kTasks);
  const long tasks = std::clamp(static_cast<long>(products / kTaskProducts), 1L, most);
  const long of_task = (count + tasks - 1) / tasks;
  const Rows rows{d, set.depthwise(g), zeros.data(), count, of_task};
  pool.loop((count + of_task - 1) / of_task, run_task, &rows);
}

}  // namespace kernels
