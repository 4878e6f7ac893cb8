#include "attention.h"

#include <algorithm>
#include <cstring>

#include "batch_matmul.h"
#include "matrix.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr long kRows = 56;              // of a block, whose logits stay in the cache
constexpr long kMaskRows = 64;          // of a task
constexpr long kTaskBytes = 128 << 10;  // of keys or values, that justify waking a thread
constexpr long kTasks = 2, kTasksOfFew = 4;  // per thread, since threads do not run equally fast

// Keys [first, last): the first one is a multiple of kPanel. None: a query whose keys have equal
// shares.
struct Keys {
  long first = 0, last = 0;

  long count() const { return last - first; }

  void add(const Keys& other) {
    if (other.count() == 0) return;
    if (count() == 0) *this = other;
    first = std::min(first, other.first), last = std::max(last, other.last);
  }
};

// What a call computes; `head` counts those of all images.
struct Tiling {
  const Attention& work;
  const InstructionSet& set;
  long heads;
  Keys* shown = nullptr;             // by each row of the mask
  const float* equal = nullptr;      // [keys], equal shares
  long rows_of_task = 0, tasks = 1;  // of a head
  const float* zeros = nullptr;      // for many queries
  float* logits = nullptr;           // of few queries, [heads, queries, keys]

  const float* q(long head) const { return work.q + head * work.queries * work.size; }
  const float* k(long head) const { return work.k + head * work.keys * work.size; }
  const float* v(long head) const { return work.v + head * work.keys * work.size; }
  float* y(long head) const { return work.y + head * work.queries * work.size; }

  long mask_row(long head, long query) const {
    const Attention& a = work;
    const long image = head / a.heads * a.mask_images / a.images;
    const long row = image * a.mask_heads + (a.mask_heads == 1 ? 0 : head % a.heads);
    return row * a.mask_queries + (a.mask_queries == 1 ? 0 : query);
  }

  Keys keys_of(long head, long query) const {
    return shown == nullptr ? Keys{0, work.keys} : shown[mask_row(head, query)];
  }

  // The keys that queries [begin, end) see.
  Keys keys_of(long head, long begin, long end) const {
    if (work.mask_queries == 1) return keys_of(head, begin);
    Keys all;
    for (long i = begin; i < end; ++i) all.add(keys_of(head, i));
    return all;
  }
};

// ---- the mask

// NaN hides nothing.
bool shows_any(const float* mask, long count) {
  bool any = false;
  for (long i = 0; i < count; ++i) any |= !(mask[i] <= kHides);
  return any;
}

// Of a row that hides all keys. Logits get lost in the sums with numbers of this size.
bool has_equal_shares(const float* mask, long keys) {
  bool all = true;
  for (long i = 0; i < keys; ++i) all &= mask[i] <= -1e30f && mask[i] == mask[0];
  return all;
}

Keys shown_by(const float* mask, long keys) {
  const auto shows = [&](long first) {
    return keys - first < kPanel ? shows_any(mask + first, keys - first)
                                 : shows_any(mask + first, kPanel);
  };
  const long end = round_up(keys, kPanel);
  long first = 0, last = end;
  while (first < end && !shows(first)) first += kPanel;
  if (first == end) return has_equal_shares(mask, keys) ? Keys{} : Keys{0, keys};
  while (!shows(last - kPanel)) last -= kPanel;
  return {first, std::min(last, keys)};
}

void read_mask(const void* tiling, long index) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const Attention& a = p.work;
  const long rows = a.mask_images * a.mask_heads * a.mask_queries, first = index * kMaskRows;
  for (long i = first; i < std::min(rows, first + kMaskRows); ++i)
    p.shown[i] = shown_by(a.mask + i * a.keys, a.keys);
}

void read_mask(Tiling& p, const ThreadPool& pool) {
  static thread_local Scratch<Keys> scratch;
  static thread_local Scratch<float> shares;
  const Attention& a = p.work;
  const long rows = a.mask_images * a.mask_heads * a.mask_queries;
  p.shown = scratch.of(rows);
  pool.loop(ceil_div(rows, kMaskRows), read_mask, &p);
  if (std::none_of(p.shown, p.shown + rows, [](const Keys& k) { return k.count() == 0; })) return;
  float* const equal = shares.of(a.keys);
  std::fill(equal, equal + a.keys, 1.0f / a.keys);
  p.equal = equal;
}

// Logits of a query and `keys` -> their shares.
void normalize(const Tiling& p, long head, long query, const Keys& keys, float* logits) {
  const Attention& a = p.work;
  const float* const mask =
      a.mask == nullptr ? nullptr : a.mask + p.mask_row(head, query) * a.keys + keys.first;
  p.set.float32->softmax(logits, keys.count(), a.scale, mask);
}

void multiply_in_place(const Tiling& p, bool is_transposed, const InPlaceProduct& product) {
  const Float32Functions& f = *p.set.float32;
  (is_transposed ? f.multiply_transposed_in_place : f.multiply_in_place)(product);
}

InPlaceProduct shares_by_values(const Tiling& p, long head, const float* shares, const Keys& keys) {
  const Attention& a = p.work;
  return {
      .x = shares,
      .w = p.v(head) + keys.first * (a.values_last ? 1 : a.size),
      .y = p.y(head),
      .x_stride = a.keys,
      .w_stride = a.values_last ? a.keys : a.size,
      .y_stride = a.size,
      .rows = a.queries,
      .depth = keys.count(),
      .columns = a.size,
  };
}

// The results of those of the queries [begin, end) whose keys have equal shares: all the same.
void average_values(const Tiling& p, long head, long begin, long end) {
  const Attention& a = p.work;
  const float* average = nullptr;
  for (long i = begin; i < end && p.equal != nullptr; ++i) {
    if (p.keys_of(head, i).count() > 0) continue;
    float* const y = p.y(head) + i * a.size;
    if (average == nullptr) {
      InPlaceProduct product = shares_by_values(p, head, p.equal, {0, a.keys});
      product.rows = 1, product.y = y;
      multiply_in_place(p, a.values_last, product);
      average = y;
    } else {
      memcpy(y, average, a.size * sizeof(float));
    }
  }
}

// ---- few queries: keys and values are read where they are

void multiply_by_keys(const void* tiling, long index) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const Attention& a = p.work;
  const long head = index / p.tasks;
  const Keys keys = p.keys_of(head, 0, a.queries);
  const long most = round_up(ceil_div(keys.count(), p.tasks), kPanel);
  const long column = index % p.tasks * most;
  if (column >= keys.count()) return;
  multiply_in_place(p, !a.keys_last,
                    {
                        .x = p.q(head),
                        .w = p.k(head) + (keys.first + column) * (a.keys_last ? 1 : a.size),
                        .y = p.logits + head * a.queries * a.keys + column,
                        .x_stride = a.size,
                        .w_stride = a.keys_last ? a.keys : a.size,
                        .y_stride = a.keys,
                        .rows = a.queries,
                        .depth = a.size,
                        .columns = std::min(most, keys.count() - column),
                    });
}

void normalize_head(const void* tiling, long head) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const Attention& a = p.work;
  const Keys keys = p.keys_of(head, 0, a.queries);
  for (long i = 0; i < a.queries && keys.count() > 0; ++i)
    normalize(p, head, i, keys, p.logits + (head * a.queries + i) * a.keys);
}

void multiply_by_values(const void* tiling, long index) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const Attention& a = p.work;
  const long head = index / p.tasks;
  const Keys keys = p.keys_of(head, 0, a.queries);
  const long most = round_up(ceil_div(a.size, p.tasks), kPanel);
  const long column = index % p.tasks * most;
  if (column >= a.size || keys.count() == 0) return;
  InPlaceProduct part = shares_by_values(p, head, p.logits + head * a.queries * a.keys, keys);
  part.w += column * (a.values_last ? a.keys : 1), part.y += column;
  part.columns = std::min(most, a.size - column);
  multiply_in_place(p, a.values_last, part);
}

void average_values(const void* tiling, long head) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  average_values(p, head, 0, p.work.queries);
}

bool are_few(const Attention& a) {
  return a.queries <= (a.keys_last ? kMostRowsInPlace : kMostRowsTransposed) &&
         a.queries <= (a.values_last ? kMostRowsTransposed : kMostRowsInPlace);
}

void run_few(Tiling& p, const ThreadPool& pool) {
  static thread_local Scratch<float> scratch;
  const Attention& a = p.work;
  const long bytes = p.heads * a.keys * a.size * static_cast<long>(sizeof(float));
  const long most = pool.size() < 2 ? 1 : pool.size() * kTasksOfFew;
  p.tasks = ceil_div(std::clamp(bytes / kTaskBytes, 1L, most), p.heads);
  p.logits = scratch.of(p.heads * a.queries * a.keys);
  pool.loop(p.heads * p.tasks, multiply_by_keys, &p);
  pool.loop(p.heads, normalize_head, &p);
  pool.loop(p.heads * p.tasks, multiply_by_values, &p);
  if (p.equal != nullptr) pool.loop(p.heads, average_values, &p);
}

// ---- many queries: each task copies keys and values of a head into panels

// The memory of one task. Packing k also writes to what follows, before v is packed.
struct Memory {
  float *k, *v, *logits;  // panels of k^T and v, [kRows, keys]
};

Memory memory(long keys, long size) {
  static thread_local Scratch<float> scratch;
  const long k = round_up(keys, kPanel) * size;
  const long v = round_up(size, kPanel) * keys + kPackedRows * kPanel;
  float* const all = scratch.of(k + v + kRows * keys);
  return {.k = all, .v = all + k, .logits = all + k + v};
}

void pack(const Tiling& p, long head, const Keys& keys, const Memory& m) {
  const Attention& a = p.work;
  const long count = keys.count();
  if (a.keys_last) {
    pack_rows(p.k(head) + keys.first, a.keys, a.size, count, m.k);
  } else {
    pack_columns(p.set, p.k(head) + keys.first * a.size, a.size, a.size, count, m.k);
  }
  if (a.values_last) {
    pack_columns(p.set, p.v(head) + keys.first, a.keys, count, a.size, m.v);
  } else {
    pack_rows(p.v(head) + keys.first * a.size, a.size, count, a.size, m.v);
  }
}

// Queries [begin, end) of a head, times panels of the keys `packed`.
void run_block(const Tiling& p, const Memory& m, const Keys& packed, long head, long begin, long end) {
  const Attention& a = p.work;
  const Keys keys = p.keys_of(head, begin, end);
  const long skipped = keys.first - packed.first, count = keys.count();
  if (count == 0) return;
  const Matrix<Float32> by_keys{
      .weights = m.k + skipped * a.size,
      .depth = a.size,
      .columns = count,
      .bias = p.zeros,
      .y = m.logits,
      .epilogue = kAll,
  };
  const Block<Float32> queries{
      .row = 0,
      .count = end - begin,
      .from = 0,
      .to = a.size,
      .a = p.q(head) + begin * a.size,
      .stride = a.size,
  };
  multiply(p.set, by_keys, queries, 0, ceil_div(count, kPanel));
  for (long i = begin; i < end; ++i) normalize(p, head, i, keys, m.logits + (i - begin) * count);
  const Matrix<Float32> by_values{
      .weights = m.v + skipped * kPanel,
      .depth = count,
      .columns = a.size,
      .bias = p.zeros,
      .y = p.y(head) + begin * a.size,
      .epilogue = kAll,
      .panel_stride = packed.count() * kPanel,
  };
  const Block<Float32> shares{
      .row = 0,
      .count = end - begin,
      .from = 0,
      .to = count,
      .a = m.logits,
      .stride = count,
  };
  multiply(p.set, by_values, shares, 0, ceil_div(a.size, kPanel));
}

void run_task(const void* tiling, long index) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const long head = index / p.tasks, begin = index % p.tasks * p.rows_of_task;
  const long end = std::min(p.work.queries, begin + p.rows_of_task);
  const Keys keys = p.keys_of(head, begin, end);
  const Memory m = memory(keys.count(), p.work.size);
  pack(p, head, keys, m);
  for (long row = begin; row < end; row += kRows)
    run_block(p, m, keys, head, row, std::min(end, row + kRows));
  average_values(p, head, begin, end);
}

void run_many(Tiling& p, const ThreadPool& pool) {
  const Attention& a = p.work;
  const long parts = pool.size() < 2 ? 1 : ceil_div(pool.size() * kTasks, p.heads);
  p.zeros = zeros_of(std::max(a.keys, a.size));
  p.rows_of_task = std::max(ceil_div(a.queries, parts), kLeastChannels);
  p.tasks = ceil_div(a.queries, p.rows_of_task);
  pool.loop(p.heads * p.tasks, run_task, &p);
}

}  // namespace

void run(const Attention& a, const InstructionSet& set, const ThreadPool& pool) {
  Tiling p{.work = a, .set = set, .heads = a.images * a.heads};
  if (a.mask != nullptr) read_mask(p, pool);
  (are_few(a) ? run_few : run_many)(p, pool);
}

}  // namespace kernels
