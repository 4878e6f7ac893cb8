#include "matrix.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <type_traits>

#include "copy.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr long kTasks = 8;       // per thread, since threads do not run equally fast
constexpr long kRowsOfRead = 4;  // multiplied in the time of reading a weight from memory
constexpr long kFetchingTiles = 8;  // the last ones, each of which prefetches a part of what follows
constexpr long kMostColumns = kMostPanels * kPanel;
constexpr long kWidenedRows = 8;  // of integers: blocks with more rows are widened first

// Many rows that start in the same set of the first-level cache evict each other.
template <class E>
bool collides(const Block<E>& block) {
  return block.stride * sizeof(typename E::Operand) % 4096 == 0;
}

template <class E>
int panels_at_once(const InstructionSet& set, const Block<E>& block, long left) {
  const int* most = set.of<E>().rows;
  const bool takes_few_rows = block.count <= most[4] || collides(block);
  for (int n : {4, 2}) {
    if (left >= n && most[n] > 0 && (n == 2 || takes_few_rows)) return n;
  }
  return 1;
}

// The rows and columns of a tile's results.
struct TileRange {
  long row, rows, column, columns;
};

// Runs a tile without its last columns: it writes to a buffer, from which columns are copied.
template <class E>
void run_narrow(void (*kernel)(const ProductTile<E>&), ProductTile<E> t, const TileRange& at) {
  alignas(64) float sums[kMostSums], bias[kMostColumns] = {};
  float* y = t.y;
  const long y_stride = t.y_stride;
  if (t.bias != nullptr) {
    copy(bias, t.bias, at.columns);
    t.bias = bias;
  } else {
    for (long i = 0; i < at.rows; ++i)
      copy(sums + i * kMostColumns, y + i * y_stride, at.columns);
  }
  t.y = sums, t.y_stride = kMostColumns;
  kernel(t);
  for (long i = 0; i < at.rows; ++i)
    copy(y + i * y_stride, sums + i * kMostColumns, at.columns);
}

// Prefetches the residual of a tile while its sums are computed.
void fetch_residual(const float* residual, long stride, const TileRange& at) {
  for (long i = 0; i < at.rows; ++i)
    for (long j = 0; j < at.columns; j += kPanel) __builtin_prefetch(residual + i * stride + j);
}

void requantize(const InstructionSet& set, const RequantizedTile<uint8_t>& tile) {
  set.int8->requantize(tile);
}

void requantize(const InstructionSet& set, const RequantizedTile<int16_t>& tile) {
  set.int16->requantize(tile);
}

// Computes sums of integers in a buffer, and converts them to integers or float32.
template <class E>
void run_integers(const InstructionSet& set, void (*kernel)(const ProductTile<E>&), int panels,
                  const Matrix<E>& matrix, ProductTile<E>& t, const TileRange& at,
                  const int32_t* row_bias) {
  alignas(64) int32_t sums[kMostSums];
  t.y = sums, t.y_stride = panels * kPanel;
  kernel(t);
  RequantizedTile<typename E::Value> requantized{
      .sums = sums,
      .stride = t.y_stride,
      .rows = at.rows,
      .columns = at.columns,
      .row_bias = row_bias,
      .to = matrix.epilogue,
      .y = matrix.y + at.row * matrix.stride + matrix.offset + at.column,
      .y_stride = matrix.stride,
  };
  skip(requantized.to, at.column);
  requantize(set, requantized);
}

template <class E>
void run_floats(const InstructionSet& set, void (*kernel)(const ProductTile<E>&), int panels,
                const Matrix<E>& matrix, ProductTile<E>& t, const TileRange& at) {
  const long offset = at.row * matrix.stride + matrix.offset + at.column;
  t.y = matrix.y + offset, t.y_stride = matrix.stride;
  const Finish* finish = t.is_last ? matrix.finish : nullptr;
  if (finish != nullptr && finish->residual != nullptr)
    fetch_residual(finish->residual + offset, t.y_stride, at);
  if (at.columns == panels * kPanel) {
    kernel(t);
  } else {
    run_narrow(kernel, t, at);
  }
  if (finish != nullptr)
    set.float32->finish(*finish, matrix.y, offset, at.rows, t.y_stride, at.columns);
}

template <class E>
void run_tile(const InstructionSet& set, void (*kernel)(const ProductTile<E>&), int panels,
              const Matrix<E>& matrix, ProductTile<E>& t, const TileRange& at,
              const int32_t* row_bias) {
  if constexpr (E::kSplits) {
    run_floats(set, kernel, panels, matrix, t, at);
  } else {
    run_integers(set, kernel, panels, matrix, t, at, row_bias);
  }
}

// The most tiles of `rows` rows per call of a kernel: all, if sums are stored directly as results;
// as many as fit the buffer of integers; otherwise one.
template <class E>
long most_tiles(const Matrix<E>& matrix, long rows, long columns, int panels) {
  if (!E::kSplits) return kMostSums / (rows * panels * kPanel);
  return matrix.finish == nullptr && columns == panels * kPanel ? LONG_MAX : 1;
}

// The memory to prefetch.
struct Ahead {
  const char* first;
  long bytes;
};

// The rows of a block times `count` panels from `panel`.
template <class E>
void multiply_panels(const InstructionSet& set, const Matrix<E>& matrix, const Block<E>& block,
                     long panel, int count, const Ahead& ahead, const int32_t* row_bias) {
  const Functions<E>& functions = set.of<E>();
  const long column = panel * kPanel;
  const long columns = std::min(count * kPanel, matrix.columns - column);
  const auto* kernels = block.is_broadcast ? functions.broadcast : functions.product[count];
  const int most_rows = block.is_broadcast ? functions.broadcast_rows : functions.rows[count];
  const long tiles = ceil_div(block.count, most_rows);
  const long rows_of_tile = block.count / tiles, larger = block.count % tiles;
  ProductTile<E> t;
  t.a_stride = block.stride, t.runs = block.runs, t.run_stride = block.run_stride;
  t.b_stride = matrix.panel_stride;
  t.b = matrix.weights + panel * t.b_stride + block.from * kPanel;
  t.bias = block.from == 0 ? matrix.bias + column : nullptr;
  t.depth = (block.to - block.from) / block.runs;
  t.is_last = block.to == matrix.depth;
  t.epilogue = matrix.epilogue;
  // The last tiles prefetch the next panels, line by line.
  const long fetching = std::min(tiles, kFetchingTiles);
  const long steps = (block.to - block.from) / E::kDeep, line = ahead.bytes / steps;
  t.next = ahead.first;
  for (long tile = 0, row = 0; tile < tiles; tile += t.tiles) {
    const bool is_larger = tile < larger, fetches = tile >= tiles - fetching;
    const long rows = rows_of_tile + is_larger;
    const long alike = std::min(is_larger ? larger : tiles, fetches ? tiles : tiles - fetching);
    t.tiles = std::min(alike - tile, most_tiles(matrix, rows, columns, count));
    t.a = block.a + row * block.stride;
    t.next_stride = fetches ? line / fetching : 0;
    run_tile(set, kernels[rows - 1], count, matrix, t,
             {.row = block.row + row,
              .rows = rows * t.tiles,
              .column = column,
              .columns = columns},
             row_bias == nullptr ? nullptr : row_bias + row);
    row += rows * t.tiles;
    t.next += t.tiles * steps * t.next_stride;
  }
}

// What the zero point of the weights subtracts from the sums of each row; null: nothing.
template <class E>
const int32_t* row_bias_of(const Matrix<E>&, const Block<E>&) {
  return nullptr;
}

const int32_t* row_bias_of(const Matrix<Int8>& matrix, const Block<Int8>& block) {
  static thread_local Scratch<int32_t> scratch;
  if (matrix.epilogue.w_zero == 0) return nullptr;
  int32_t* const all = scratch.of(block.count);
  for (long i = 0; i < block.count; ++i) {
    uint32_t sum = 0;
    for (long run = 0; run < block.runs; ++run) {
      const uint8_t* a = block.a + i * block.stride + run * block.run_stride;
      for (long k = 0; k < block.length; ++k) sum += a[k] ^ matrix.epilogue.flip;
    }
    all[i] = static_cast<int32_t>(-sum * matrix.epilogue.w_zero);
  }
  return all;
}

// Whether a block is multiplied as int16.
bool is_widened(const InstructionSet& set, const Block<Int8>& block) {
  return set.widened != nullptr && !block.is_broadcast && block.count >= kWidenedRows;
}

Block<WidenedInt8> widened(const InstructionSet& set, const Matrix<Int8>& matrix,
                     const Block<Int8>& block) {
  static thread_local Scratch<int16_t> scratch;
  const long depth = matrix.depth, of_run = depth / block.runs;
  int16_t* const rows = scratch.of(block.count * depth);
  const bool is_whole = block.runs == 1 && block.stride == depth;
  const long count = is_whole ? 1 : block.count, values = is_whole ? block.count * depth : of_run;
  for (long i = 0; i < count; ++i)
    for (long run = 0; run < block.runs; ++run)
      set.widened->widen_factors(block.a + i * block.stride + run * block.run_stride, values,
                               matrix.epilogue.flip, rows + i * depth + run * of_run);
  return {
      .row = block.row,
      .count = block.count,
      .from = 0,
      .to = depth,
      .a = rows,
      .stride = depth,
  };
}

// Multiplies panel by panel, widening each panel first.
void multiply_widened(const InstructionSet& set, const Matrix<Int8>& matrix,
                      const Block<Int8>& block, long first, long last, const int32_t* row_bias) {
  static thread_local Scratch<int16_t> scratch;
  const Block<WidenedInt8> wide = widened(set, matrix, block);
  const long stride = matrix.depth * kPanel;
  int16_t* const weights = scratch.of(stride);
  for (long panel = first; panel < last; ++panel) {
    const long column = panel * kPanel;
    const int8_t* const stored = matrix.weights + panel * stride;
    const bool is_end = column + kPanel >= matrix.columns;
    set.widened->widen_weights(stored, matrix.depth, weights);
    Matrix<WidenedInt8> one{
        .weights = weights,
        .depth = matrix.depth,
        .columns = std::min(kPanel, matrix.columns - column),
        .bias = matrix.bias + column,
        .y = matrix.y,
        .epilogue = matrix.epilogue,
        .finish = nullptr,
        .stride = matrix.stride,
        .offset = matrix.offset + column,
    };
    skip(one.epilogue, column);
    const char* const next = reinterpret_cast<const char*>(stored + (is_end ? 0 : stride));
    multiply_panels(set, one, wide, 0, 1, {next, stride}, row_bias);
  }
}

}  // namespace

template <class E>
void multiply(const InstructionSet& set, const Matrix<E>& matrix, const Block<E>& block,
              long first, long last) {
  const int32_t* const row_bias = row_bias_of(matrix, block);
  if constexpr (std::is_same_v<E, Int8>) {
    if (is_widened(set, block))
      return multiply_widened(set, matrix, block, first, last, row_bias);
  }
  for (long panel = first; panel < last;) {
    const int count = panels_at_once<E>(set, block, last - panel);
    const long stride = matrix.panel_stride;
    const bool is_last = panel + count >= last, is_end = (panel + count) * kPanel >= matrix.columns;
    // After the last panels, the next part of the depth of the first ones follows, or the next task.
    const long next_depth = (block.to - block.from) * kPanel - (panel - first) * stride;
    const long next_panels = is_end ? 0 : count * stride;
    const long ahead = is_last && block.to < matrix.depth ? next_depth : next_panels;
    const auto* next = matrix.weights + panel * stride + block.from * kPanel + ahead;
    const long bytes = (block.to - block.from) * kPanel * sizeof *next;
    multiply_panels(set, matrix, block, panel, count, {reinterpret_cast<const char*>(next), bytes},
                    row_bias);
    panel += count;
  }
}

template void multiply(const InstructionSet&, const Matrix<Float32>&, const Block<Float32>&, long,
                       long);
template void multiply(const InstructionSet&, const Matrix<OrderedFloat32>&,
                       const Block<OrderedFloat32>&, long, long);
template void multiply(const InstructionSet&, const Matrix<Bfloat16>&, const Block<Bfloat16>&, long,
                       long);
template void multiply(const InstructionSet&, const Matrix<Int8>&, const Block<Int8>&, long, long);
template void multiply(const InstructionSet&, const Matrix<Int16>&, const Block<Int16>&, long,
                       long);

// Splits the larger of rows and weights, so that each thread reads only a part of it.
Tasks divide(long rows, long depth, long columns, long threads, double task_products,
             bool copies_rows) {
  const double products = 1.0 * std::max(rows, kRowsOfRead) * depth * columns;
  const long most = threads < 2 ? 1 : threads * kTasks;
  const long goal = std::clamp(static_cast<long>(products / task_products), 1L, most);
  const long panels = ceil_div(columns, kPanel), pairs = ceil_div(panels, 2);
  const long tiles = ceil_div(rows, kMostRows);
  const bool shares_panels = panels * kPanel > rows;
  const long most_panels = copies_rows ? std::min(threads, pairs) : pairs;
  const long panel_goal = shares_panels ? std::min(goal, most_panels) : 1;
  const long row_goal = std::min(ceil_div(goal, panel_goal), tiles);
  Tasks tasks;
  tasks.rows = rows, tasks.panels = panels;
  tasks.shares_panels = shares_panels;
  tasks.panels_of_task = pairs / panel_goal * 2;
  tasks.rows_of_task = tiles / row_goal * kMostRows;
  tasks.panel_tasks = ceil_div(panels, tasks.panels_of_task);
  tasks.row_tasks = ceil_div(rows, tasks.rows_of_task);
  return tasks;
}

Tasks::Task Tasks::at(long index) const {
  const long row_task = shares_panels ? index % row_tasks : index / panel_tasks;
  const long panel_task = shares_panels ? index / row_tasks : index % panel_tasks;
  const long begin = row_task * rows_of_task, first = panel_task * panels_of_task;
  return {.begin = begin,
          .end = std::min(rows, begin + rows_of_task),
          .first = first,
          .last = std::min(panels, first + panels_of_task)};
}

void pack_rows(const float* values, long stride, long depth, long columns, float* panels) {
  for (long first = 0; first < columns; first += kPanel) {
    const long count = std::min(kPanel, columns - first);
    for (long i = 0; i < depth; ++i, panels += kPanel) {
      if (count < kPanel) memset(panels, 0, kPanel * sizeof(float));
      memcpy(panels, values + i * stride + first, count * sizeof(float));
    }
  }
}

void pack_columns(const InstructionSet& set, const float* values, long stride, long depth,
                  long columns, float* panels) {
  constexpr int kFloats = 3;  // in the table of functions
  constexpr long kLine = 64 / sizeof(float);
  for (long first = 0; first < columns; first += kPanel, panels += depth * kPanel) {
    if (stride == depth)  // adjacent columns are often short, and a panel soon packed
      for (long i = 0; i < kPanel * depth; i += kLine)
        __builtin_prefetch(values + (first + kPanel) * stride + i);
    set.int8->fill_panel[kFloats]({
        .w = reinterpret_cast<const uint8_t*>(values + first * stride),
        .stride = stride * static_cast<long>(sizeof(float)),
        .columns = columns - first,
        .depth = depth,
        .y = reinterpret_cast<int8_t*>(panels),
    });
  }
}

}  // namespace kernels
