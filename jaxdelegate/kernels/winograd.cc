#include "winograd.h"

#include <algorithm>

#include "matrix.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr long kBlockBytes = 768 << 10;  // of a block's points and sums: a second-level cache
constexpr long kLeastTiles = 56;         // of a block, since each block reads all weights
constexpr double kTaskProducts = 250000; // that justify waking a thread

struct Tiling {
  const Winograd& work;
  const InstructionSet& set;
  const float* zeros;
  long tiles_y, tiles_x, tiles;  // of an image, and of the whole batch
  long panels, tiles_of_block;
  Tasks tasks;
};

Tiling tiling_of(const Winograd& work, const InstructionSet& set, const float* zeros,
                 long threads) {
  const Geometry& g = work.geometry;
  Tiling p{
      .work = work,
      .set = set,
      .zeros = zeros,
      .tiles_y = ceil_div(g.out_height, 2),
      .tiles_x = ceil_div(g.out_width, 2),
      .tiles = 0,
      .panels = ceil_div(g.out_channels, kPanel),
  };
  p.tiles = g.batch * p.tiles_y * p.tiles_x;
  const long tile_bytes = 4 * kPoints * (g.channels + p.panels * kPanel);
  const long fitting = kBlockBytes / tile_bytes / kMostRows * kMostRows;
  p.tiles_of_block = std::max(kLeastTiles, fitting);
  p.tasks = divide(p.tiles, kPoints * g.channels, g.out_channels, threads, kTaskProducts, true);
  return p;
}

// The position of a tile: its image and first result.
struct Position {
  long image, y, x;
};

Position position_of(const Tiling& p, long tile) {
  const long row = tile / p.tiles_x;
  return {.image = row / p.tiles_y, .y = row % p.tiles_y * 2, .x = tile % p.tiles_x * 2};
}

void transform(const Tiling& p, long tile, float* points, long stride) {
  const Geometry& g = p.work.geometry;
  const Position at = position_of(p, tile);
  const float* image = p.work.x + at.image * g.height * g.width * g.channels;
  const float* pixels[kPoints];
  for (long i = 0; i < kPoints; ++i) {
    const long y = at.y - g.pad_top + i / 4, x = at.x - g.pad_left + i % 4;
    const bool is_pad = y < 0 || y >= g.height || x < 0 || x >= g.width;
    pixels[i] = is_pad ? p.zeros : image + (y * g.width + x) * g.channels;
  }
  p.set.float32->winograd_points(pixels, g.channels, points, stride);
}

void finish(const Tiling& p, long tile, const float* sums, long stride, long first, long last) {
  const Geometry& g = p.work.geometry;
  const Position at = position_of(p, tile);
  WinogradTile t{
      .sums = sums,
      .stride = stride,
      .bias = p.work.bias,
      .results = {},
      .first = first,
      .last = last,
      .range = p.work.epilogue,
  };
  for (long i = 0; i < 4; ++i) {
    const long y = at.y + i / 2, x = at.x + i % 2;
    const long pixel = (at.image * g.out_height + y) * g.out_width + x;
    const bool is_result = y < g.out_height && x < g.out_width;
    t.results[i] = is_result ? p.work.y + pixel * g.out_channels : nullptr;
  }
  p.set.float32->winograd_results(t);
  for (long i = 0; i < 4 && p.work.finish.is_any(); ++i) {
    if (t.results[i] == nullptr) continue;
    const long offset = t.results[i] + first - p.work.y;
    p.set.float32->finish(p.work.finish, p.work.y, offset, 1, g.out_channels, last - first);
  }
}

// Tiles [begin, begin + count), output channels of panels [first, last).
void run_block(const Tiling& p, long begin, long count, long first, long last) {
  static thread_local Scratch<float> scratch;
  const Geometry& g = p.work.geometry;
  const long columns = p.panels * kPanel;
  const long points_stride = count * g.channels, sums_stride = count * columns;
  float* points = scratch.of(kPoints * (points_stride + sums_stride));
  float* sums = points + kPoints * points_stride;
  for (long i = 0; i < count; ++i) transform(p, begin + i, points + i * g.channels, points_stride);
  for (long i = 0; i < kPoints; ++i) {
    const Matrix<Float32> matrix{
        .weights = p.work.weights + i * g.channels * columns,
        .depth = g.channels,
        .columns = columns,
        .bias = p.zeros,
        .y = sums + i * sums_stride,
        .epilogue = kAll,
    };
    const Block<Float32> block{
        .row = 0,
        .count = count,
        .from = 0,
        .to = g.channels,
        .a = points + i * points_stride,
        .stride = g.channels,
    };
    multiply(p.set, matrix, block, first, last);
  }
  const long end = std::min(g.out_channels, last * kPanel);
  for (long i = 0; i < count; ++i)
    finish(p, begin + i, sums + i * columns, sums_stride, first * kPanel, end);
}

void run_task(const void* tiling, long index) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const auto [begin, end, first, last] = p.tasks.at(index);
  for (long tile = begin; tile < end; tile += p.tiles_of_block)
    run_block(p, tile, std::min(p.tiles_of_block, end - tile), first, last);
}

}  // namespace

void run(const Winograd& work, const InstructionSet& set, const ThreadPool& pool) {
  const Geometry& g = work.geometry;
  const float* const zeros = zeros_of(std::max(g.channels, round_up(g.out_channels, kPanel)));
  const Tiling tiling = tiling_of(work, set, zeros, pool.size());
  pool.loop(tiling.tasks.count(), run_task, &tiling);
}

}  // namespace kernels
