#include "depthwise.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "scratch.h"

namespace kernels {

namespace {

constexpr long kTaskProducts = 50000;   // that justify waking a thread
constexpr long kTasks = 8;              // per thread

template <class E>
struct Rows {
  const Depthwise<E>& depthwise;
  typename Functions<E>::Depthwise kernel;
  FinishKernel finish;
  const typename E::Value* padding;
  long count, of_task;  // of the whole batch
};

template <class E>
void run_task(const void* data, long index) {
  const Rows<E>& rows = *static_cast<const Rows<E>*>(data);
  const Depthwise<E>& d = rows.depthwise;
  const Geometry& g = d.geometry;
  const long end = std::min(rows.count, (index + 1) * rows.of_task);
  const long values = g.out_width * g.channels;
  for (long row = index * rows.of_task; row < end; ++row) {
    const long image = row / g.out_height;
    const auto* x = d.x + image * g.height * g.width * g.channels;
    auto* y = d.y + image * g.out_height * g.out_width * g.channels;
    rows.kernel({.geometry = g,
                 .x = x,
                 .weights = d.weights,
                 .bias = d.bias,
                 .padding = rows.padding,
                 .y = y,
                 .epilogue = d.epilogue},
                row % g.out_height);
    if constexpr (std::is_same_v<E, Float32>) {
      if (d.finish.is_any()) rows.finish(d.finish, d.y, row * values, 1, values, values);
    }
  }
}

}  // namespace

template <class E>
void run(const Depthwise<E>& d, const InstructionSet& set, const ThreadPool& pool) {
  using Value = typename E::Value;
  static thread_local Scratch<Value> scratch;
  const Geometry& g = d.geometry;
  Value* const pixel = scratch.of(g.channels);
  memset(pixel, padding(d.epilogue), g.channels * sizeof(Value));
  const long count = g.batch * g.out_height, threads = pool.size();
  const double products =
      1.0 * count * g.out_width * g.channels * g.window_height * g.window_width;
  const long most = threads < 2 ? 1 : std::min(count, threads * kTasks);
  const long tasks = std::clamp(static_cast<long>(products / kTaskProducts), 1L, most);
  const long of_task = ceil_div(count, tasks);
  const Rows<E> rows{
      .depthwise = d,
      .kernel = set.of<E>().depthwise(g),
      .finish = set.float32->finish,
      .padding = pixel,
      .count = count,
      .of_task = of_task,
  };
  pool.loop(ceil_div(count, of_task), run_task<E>, &rows);
}

template void run(const Depthwise<Float32>&, const InstructionSet&, const ThreadPool&);
template void run(const Depthwise<Int8>&, const InstructionSet&, const ThreadPool&);
template void run(const Depthwise<Int16>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
