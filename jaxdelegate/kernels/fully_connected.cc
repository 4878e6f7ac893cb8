#include "fully_connected.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <type_traits>

#include "cpu.h"
#include "dynamic_range.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr double kTaskProducts = 4e5;  // that justify waking a thread
constexpr long kTaskValues = 20'000;    // to quantize, that do, too
constexpr long kRowsOfRead = 4;        // multiplied in the time of reading a weight from memory
constexpr long kTasks = 4;             // per thread, since threads do not run equally fast
constexpr long kRowsOfTask = 64;       // the fewest for which a task prepares weights again
// Of weights. With more, the first task of a call, whose weights are not prefetched, would be a large
// part of it.
constexpr long kPreparedBytes = 32 << 10;
constexpr long kPage = 4096;  // rows at this distance evict each other from the first-level cache
constexpr uint8_t kZero = 128;  // what is added to quantized values, which makes them unsigned
constexpr long kMostWidth = kMostPanels * kPanel;
constexpr long kMostVector = 64;       // bytes
constexpr long kPassColumns = 1024;  // whose sums stay in a cache until they are finished

// The quantized rows, as unsigned bytes, which are greater by kZero; after them a row of ones.
struct Rows {
  const FullyConnected& f;
  const Int8Functions& functions;
  const WidenedFunctions* widened;  // null: the bytes are all that is needed
  uint8_t* bytes;
  int16_t* wide;
  long stride;
  QuantizedRow* quantized;
  long rows_of_task;
};

void quantize_row(const Rows& r, long row) {
  const long depth = r.f.depth;
  const float* const x = r.f.x + row * depth;
  uint8_t* const y = r.bytes + row * r.stride;
  memset(y + depth, 0, r.stride - depth);
  if (row == r.f.rows) {
    memset(y, 1, depth);
    return;
  }
  Extent extent;
  r.functions.measure(x, depth, extent);
  const Parameters p = parameters_of(extent, r.f.is_asymmetric);
  r.functions.quantize({.x = x,
                        .count = depth,
                        .inverse = p.inverse,
                        .zero = p.zero,
                        .low = least(r.f.is_asymmetric),
                        .y = y});
  r.quantized[row] = {p.scale, p.zero};
}

void quantize_rows(const void* data, long index) {
  const Rows& r = *static_cast<const Rows*>(data);
  const long first = index * r.rows_of_task, end = std::min(r.f.rows + 1, first + r.rows_of_task);
  for (long row = first; row < end; ++row) {
    quantize_row(r, row);
    const long at = row * r.stride;
    if (r.widened != nullptr) r.widened->widen_factors(r.bytes + at, r.stride, 0, r.wide + at);
  }
}

bool are_few(const FullyConnected& f, const Int8Functions& functions) {
  const bool is_int8 = f.bits == 8 && f.block_scales == nullptr;
  return f.rows <= functions.most_rows_by_few[is_int8 ? 0 : 1];
}

// Valid in this thread until the next call.
Rows quantized(const FullyConnected& f, const InstructionSet& set, const ThreadPool& pool) {
  static thread_local Scratch<uint8_t> byte_scratch;
  static thread_local Scratch<int16_t> wide_scratch;
  static thread_local Scratch<QuantizedRow> row_scratch;
  long stride = round_up(f.depth, kFileStep);
  if (stride % kPage == 0) stride += 64;
  const long values = (f.rows + 1) * stride;
  const bool is_wide = f.bits == 8 && !are_few(f, *set.int8) && set.widened != nullptr;
  const long tasks = std::clamp(f.rows * f.depth / kTaskValues, 1L, pool.size() * kTasks);
  const Rows rows{
      .f = f,
      .functions = *set.int8,
      .widened = is_wide ? set.widened : nullptr,
      .bytes = byte_scratch.of(values),
      .wide = is_wide ? wide_scratch.of(values) : nullptr,
      .stride = stride,
      .quantized = row_scratch.of(f.rows),
      .rows_of_task = ceil_div(f.rows + 1, tasks),
  };
  pool.loop(ceil_div(f.rows + 1, rows.rows_of_task), quantize_rows, &rows);
  return rows;
}

int table_of(long bits) { return bits == 2 ? 0 : bits == 4 ? 1 : 2; }

// ---- a few rows: dot products with rows of weights, which are read once

struct FewRowsWork {
  const FullyConnected& f;
  const Int8Functions& functions;
  FewRows rows;
  const QuantizedRow* quantized;
  Int8Functions::FewRowsKernel kernel;
  long columns_of_task;
};

// Orders the values of a row by their weights' places in bytes.
void arrange(const uint8_t* x, long depth, long parts, long vector, int8_t* y) {
  for (long first = 0; first < depth; first += parts * vector) {
    for (long part = 0; part < parts; ++part, y += vector) {
      const long left = ceil_div(std::max(depth - first - part, 0L), parts);
      const long count = std::min(vector, left);
      const uint8_t* const from = x + first + part;
      for (long i = 0; i < count; ++i) y[i] = static_cast<int8_t>(from[i * parts] ^ kZero);
      memset(y + count, 0, vector - count);
    }
  }
}

// As int16: of each vector the even ones, then the odd ones.
void arrange_wide(const uint8_t* x, long depth, long vector, int8_t* y) {
  for (long first = 0; first < depth; first += vector, y += 2 * vector) {
    int16_t wide[2][kMostVector / 2] = {};
    const long count = std::min(vector, depth - first);
    for (long i = 0; i < count; ++i) wide[i % 2][i / 2] = x[first + i] - kZero;
    memcpy(y, wide[0], vector);
    memcpy(y + vector, wide[1], vector);
  }
}

int32_t sum_of(const uint8_t* x, long count) {
  int32_t sum = 0;
  for (long k = 0; k < count; ++k) sum += x[k];
  return sum - static_cast<int32_t>(count) * kZero;
}

// Products of some columns, with sums in a scratch buffer.
void run_pass(const FewRowsWork& work, long column, long count, int32_t* sums) {
  const FullyConnected& f = work.f;
  const bool is_in_blocks = f.block_scales != nullptr;
  FewRows rows = work.rows;
  rows.columns = count, rows.stride = round_up(count, kPanel);
  rows.w += column * rows.bytes;
  rows.block_scales = is_in_blocks ? f.block_scales + column * rows.blocks : nullptr;
  rows.sums = sums, rows.reals = reinterpret_cast<float*>(sums);
  work.kernel(rows);
  work.functions.finish_products({
      .sums = is_in_blocks ? nullptr : rows.sums,
      .ones = f.sums + (is_in_blocks ? 0 : column),
      .reals = is_in_blocks ? rows.reals : nullptr,
      .real_ones = f.block_sums + (is_in_blocks ? column : 0),
      .stride = rows.stride,
      .rows = f.rows,
      .columns = count,
      .quantized = work.quantized,
      .scales = is_in_blocks ? nullptr : f.scales + column,
      .bias = f.bias + column,
      .range = f.range,
      .y = f.y + column,
      .y_stride = f.columns,
  });
}

void run_few(const void* data, long index) {
  static thread_local Scratch<int32_t> scratch;
  const FewRowsWork& work = *static_cast<const FewRowsWork*>(data);
  const long first = index * work.columns_of_task;
  const long end = std::min(work.f.columns, first + work.columns_of_task);
  const long pass = std::min(kPassColumns, work.columns_of_task);
  int32_t* const sums = scratch.of(work.f.rows * pass);
  for (long column = first; column < end; column += pass)
    run_pass(work, column, std::min(pass, end - column), sums);
}

Int8Functions::FewRowsKernel kernel_of(const FullyConnected& f, const Int8Functions& functions) {
  const int table = table_of(f.bits);
  if (f.block_scales == nullptr) return functions.few_rows[table];
  const long bytes = std::min(f.block * f.bits / 8, functions.vector);
  int groups = 0;  // the logarithm of their number
  while (kLeastBlock << groups < bytes) ++groups;
  return functions.few_rows_in_blocks[table][groups];
}

void run_few_rows(const Rows& rows, const ThreadPool& pool) {
  static thread_local Scratch<int8_t> value_scratch;
  static thread_local Scratch<int32_t> less_scratch;
  const FullyConnected& f = rows.f;
  const long vector = rows.functions.vector, parts = 8 / f.bits, blocks = f.blocks();
  const bool is_wide = rows.functions.has_wide_values && f.bits == 8;
  const long of_row = round_up(f.row_bytes(), vector) * (is_wide ? 2 : parts);
  int8_t* const x = value_scratch.of(f.rows * of_row);
  int32_t* const less = less_scratch.of(f.rows * blocks);
  for (long i = 0; i < f.rows; ++i) {
    const uint8_t* const bytes = rows.bytes + i * rows.stride;
    if (is_wide) {
      arrange_wide(bytes, f.depth, vector, x + i * of_row);
    } else {
      arrange(bytes, f.depth, parts, vector, x + i * of_row);
    }
    for (long b = 0; b < blocks; ++b)
      less[i * blocks + b] =
          rows.functions.less[table_of(f.bits)] * sum_of(bytes + b * f.block, f.block);
  }
  const double products = 1.0 * std::max(f.rows, kRowsOfRead) * f.depth * f.columns;
  const long most = pool.size() < 2 ? 1 : pool.size() * kTasks;
  const long tasks = std::clamp(static_cast<long>(products / kTaskProducts), 1L, most);
  const FewRowsWork work{
      .f = f,
      .functions = rows.functions,
      .rows = {.x = x,
               .x_stride = of_row,
               .less = less,
               .w = f.w,
               .rows = f.rows,
               .bytes = f.row_bytes(),
               .columns = 0,
               .blocks = blocks,
               .block_vectors = std::max(f.block * f.bits / 8 / vector, 1L),
               .block_scales = nullptr,
               .sums = nullptr,
               .reals = nullptr,
               .stride = 0,
               .fetches_ahead = fetches_ahead()},
      .quantized = rows.quantized,
      .kernel = kernel_of(f, rows.functions),
      .columns_of_task = round_up(ceil_div(f.columns, tasks), kPanel),
  };
  pool.loop(ceil_div(f.columns, work.columns_of_task), run_few, &work);
}

// ---- many rows: products with panels of weights, which each task prepares for all its rows

template <class E>
struct ManyRowsWork {
  const FullyConnected& f;
  const InstructionSet& set;
  const typename E::Operand* rows;  // and a row of ones
  long stride;
  const QuantizedRow* quantized;
  const ManyRowsFunctions<E>& functions;
  int panels, most_rows;  // of a unit, and of a tile of it
  long units_of_task, rows_of_task, row_tasks;

  bool is_in_blocks() const { return f.block_scales != nullptr; }
  long width() const { return panels * kPanel; }
  long units() const { return ceil_div(f.columns, width()); }
  long depth() const { return round_up(f.depth, kFileStep); }
};

// Memory to prefetch.
struct Ahead {
  const char* first;
  long bytes;
};

// Columns of weights that are ready for products.
template <class E>
struct Unit {
  const ManyRowsWork<E>& work;
  long column;                  // the first one
  typename E::Weight* weights;  // [panels, depth, kPanel]
  int32_t* less;                // [blocks, width], what kZero adds to sums, negative
  float* scales;                // [blocks, width]

  // Some rows times a block.
  ProductTile<E> tile(const typename E::Operand* rows, long block, const Ahead& ahead) const {
    const long depth = round_up(work.f.block, Int8::kDeep);
    return {
        .tiles = 1,
        .a = rows + block * depth,
        .a_stride = work.stride,
        .runs = 1,
        .run_stride = depth,
        .b = weights + block * depth * kPanel,
        .b_stride = work.depth() * kPanel,
        .next = ahead.first,
        .next_stride = ahead.bytes / (depth / E::kDeep),
        .bias = less,
        .y = nullptr,
        .y_stride = work.width(),
        .depth = depth,
        .is_last = true,
        .epilogue = {},
    };
  }

  void prepare() const {
    static constexpr int32_t kZeros[kMostWidth] = {};
    const FullyConnected& f = work.f;
    const long width = work.width(), blocks = f.blocks();
    fill();
    if (f.block_scales == nullptr) {
      const long left = std::min(width, f.columns - column);
      const int32_t unit = kZero * work.set.int8->multiples[table_of(f.bits)];
      for (long c = 0; c < width; ++c) less[c] = c < left ? -unit * f.sums[column + c] : 0;
      return;
    }
    for (long b = 0; b < blocks; ++b) {
      int32_t* const sums = less + b * width;
      ProductTile<E> t = tile(work.rows + f.rows * work.stride, b, {ahead_of(0).first, 0});
      t.bias = kZeros, t.y = sums;
      work.functions.block_sums(t);
      for (long c = 0; c < width; ++c) sums[c] *= -kZero;
    }
  }

  void fill() const {
    const FullyConnected& f = work.f;
    const Int8Functions& functions = *work.set.int8;
    void (*fill_panel)(const PanelOfFile&) = functions.fill_panel[table_of(f.bits)];
    if constexpr (std::is_same_v<E, WidenedInt8>) fill_panel = work.set.widened->fill_panel;
    for (int i = 0; i < work.panels; ++i) {
      const long first = column + i * kPanel, left = std::clamp(f.columns - first, 0L, kPanel);
      const long safe = std::min(first, f.columns - 1);
      fill_panel({.w = f.w + safe * f.row_bytes(),
                  .stride = f.row_bytes(),
                  .columns = left,
                  .depth = f.depth,
                  .y = reinterpret_cast<int8_t*>(weights + i * work.depth() * kPanel)});
      if (f.block_scales != nullptr)
        functions.widen_scales(f.block_scales + safe * f.blocks(), f.blocks(), left,
                               scales + i * kPanel, work.width());
    }
  }

  // The weights in the file from the column of another unit; at the end, the last ones.
  Ahead ahead_of(long units) const {
    const FullyConnected& f = work.f;
    const long bytes = work.width() * f.row_bytes();
    const long at = std::min(column + units * work.width(), f.columns - 1);
    return {reinterpret_cast<const char*>(f.w) + at * f.row_bytes(), bytes};
  }

  void multiply_rows(long row, int count, const Ahead& ahead) const {
    alignas(64) int32_t sums[kMostRows * kMostWidth];
    alignas(64) float reals[kMostRows * kMostWidth];
    const FullyConnected& f = work.f;
    const bool is_in_blocks = work.is_in_blocks();
    const long blocks = f.blocks();
    ProductTile<E> t = tile(work.rows + row * work.stride, 0, {ahead.first, ahead.bytes / blocks});
    if (is_in_blocks) {
      work.functions.block_product[count - 1](
          {.first = t, .blocks = blocks, .scales = scales, .y = reals});
    } else {
      t.y = sums;
      work.functions.product[count - 1](t);
    }
    work.set.int8->finish_products({
        .sums = is_in_blocks ? nullptr : sums,
        .ones = f.sums + (is_in_blocks ? 0 : column),
        .reals = is_in_blocks ? reals : nullptr,
        .real_ones = f.block_sums + (is_in_blocks ? column : 0),
        .stride = work.width(),
        .rows = count,
        .columns = std::min(work.width(), f.columns - column),
        .quantized = work.quantized + row,
        .scales = is_in_blocks ? nullptr : f.scales + column,
        .bias = f.bias + column,
        .range = f.range,
        .y = f.y + row * f.columns + column,
        .y_stride = f.columns,
    });
  }
};

template <class E>
void run_many(const void* data, long index) {
  static thread_local Scratch<typename E::Weight> weight_scratch;
  static thread_local Scratch<int32_t> less_scratch;
  static thread_local Scratch<float> scale_scratch;
  const auto& work = *static_cast<const ManyRowsWork<E>*>(data);
  const FullyConnected& f = work.f;
  const long width = work.width(), of_unit = work.depth() * width, blocks = f.blocks();
  const long begin = index / work.row_tasks * work.units_of_task;
  const long count = std::min(work.units_of_task, work.units() - begin);
  const long first_row = index % work.row_tasks * work.rows_of_task;
  const long end_row = std::min(f.rows, first_row + work.rows_of_task);
  auto* const weights = weight_scratch.of(count * of_unit);
  int32_t* const less = less_scratch.of(count * blocks * width);
  float* const scales = scale_scratch.of(count * blocks * width);
  const auto unit = [&](long i) -> Unit<E> {
    const long block = i * blocks * width;
    return {
        .work = work,
        .column = (begin + i) * width,
        .weights = weights + i * of_unit,
        .less = less + block,
        .scales = scales + block,
    };
  };
  for (long i = 0; i < count; ++i) unit(i).prepare();
  const long rows = end_row - first_row, most = work.most_rows;
  const long tiles = ceil_div(rows, most), larger = rows % tiles;
  for (long tile = 0, row = first_row; tile < tiles; ++tile) {
    const int of_tile = static_cast<int>(rows / tiles + (tile < larger));
    for (long i = 0; i < count; ++i) {
      // Each tile fetches a part of the next task's weights.
      const Ahead next = unit(i).ahead_of(count);
      const long part = next.bytes / tiles;
      unit(i).multiply_rows(row, of_tile, {next.first + tile * part, part});
    }
    row += of_tile;
  }
}

template <class E>
void run_many_rows(const Rows& rows, const InstructionSet& set, const typename E::Operand* a,
                   const ManyRowsFunctions<E>& functions, const ThreadPool& pool) {
  const FullyConnected& f = rows.f;
  const int32_t multiple = set.int8->multiples[table_of(f.bits)];  // a power of two: rounds nothing
  for (long row = 0; row < f.rows; ++row)
    rows.quantized[row].scale /= multiple, rows.quantized[row].zero *= multiple;
  const bool is_in_blocks = f.block_scales != nullptr;
  ManyRowsWork<E> work{
      .f = f,
      .set = set,
      .rows = a,
      .stride = rows.stride,
      .quantized = rows.quantized,
      .functions = functions,
      .panels = is_in_blocks ? functions.block_panels : functions.panels,
      .most_rows = is_in_blocks ? functions.block_rows : functions.rows,
      .units_of_task = 1,
      .rows_of_task = f.rows,
      .row_tasks = 1,
  };
  const long unit_bytes = work.depth() * work.width() * sizeof(typename E::Weight);
  const long threads = pool.size(), units = work.units();
  const long goal = threads < 2 ? 1 : threads * kTasks;
  work.units_of_task = std::clamp(kPreparedBytes / unit_bytes, 1L, ceil_div(units, goal));
  const long tasks = ceil_div(units, work.units_of_task);
  const long parts = std::clamp(f.rows / kRowsOfTask, 1L, ceil_div(goal, tasks));
  work.rows_of_task = ceil_div(f.rows, parts);
  work.row_tasks = ceil_div(f.rows, work.rows_of_task);
  pool.loop(tasks * work.row_tasks, run_many<E>, &work);
}

}  // namespace

void run(const FullyConnected& f, const InstructionSet& set, const ThreadPool& pool) {
  const Rows rows = quantized(f, set, pool);
  if (are_few(f, *set.int8)) {
    run_few_rows(rows, pool);
  } else if (rows.widened != nullptr) {
    run_many_rows(rows, set, rows.wide, set.widened->many_rows, pool);
  } else {
    run_many_rows(rows, set, rows.bytes, set.int8->many_rows, pool);
  }
}

}  // namespace kernels
