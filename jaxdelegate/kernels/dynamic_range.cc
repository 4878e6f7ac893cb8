#include "dynamic_range.h"

#include <algorithm>
#include <cmath>

#include "scratch.h"

namespace kernels {

namespace {

constexpr long kTaskValues = 1 << 15;  // that justify waking a thread
constexpr long kMostTasks = 64;

// An image, in parts for several threads.
struct Image {
  const Int8Functions& functions;
  const float* x;
  long count, of_part;
  Extent* extents;  // of the parts
  QuantizedRun run;

  long begin(long part) const { return part * of_part; }
  long size(long part) const { return std::min(of_part, count - begin(part)); }
};

void measure_part(const void* data, long part) {
  const Image& image = *static_cast<const Image*>(data);
  image.functions.measure(image.x + image.begin(part), image.size(part), image.extents[part]);
}

void quantize_part(const void* data, long part) {
  const Image& image = *static_cast<const Image*>(data);
  QuantizedRun run = image.run;
  run.x = image.x + image.begin(part), run.y += image.begin(part), run.count = image.size(part);
  image.functions.quantize(run);
}

// NeonSymmetricQuantizeFloats of TFLite's optimized/neon_tensor_utils.cc.
Parameters symmetric(const Extent& extent) {
  const float largest = std::max(-extent.low, extent.high);
  if (largest == 0) return {};
  return {largest / 127, 127 / largest, 0};
}

// NeonAsymmetricQuantizeFloats of the same file.
Parameters asymmetric(const Extent& extent) {
  if (extent.low == extent.high) return {};
  const double exact = static_cast<double>(extent.high - extent.low) / 255;
  const double low = extent.low / exact, high = extent.high / exact;
  const bool lower_is_better = 128 + std::abs(low) < 127 + std::abs(high);
  double offset = lower_is_better ? -128 - low : 127 - high;
  offset = offset == offset ? std::round(std::clamp(offset, -128.0, 127.0)) : 0;
  const float scale = static_cast<float>(exact);
  return {scale, 1 / scale, static_cast<int32_t>(offset)};
}

// Quantizes an image to bytes, q + 128; valid in this thread until the next image.
Parameters quantized(const float* x, long count, bool is_asymmetric, const InstructionSet& set,
                     const ThreadPool& pool, const uint8_t*& bytes) {
  static thread_local Scratch<uint8_t> scratch;
  const long most = pool.size() < 2 ? 1 : kMostTasks;
  const long parts = std::clamp(count / kTaskValues, 1L, most);
  Extent extents[kMostTasks];
  Image image{
      .functions = *set.int8,
      .x = x,
      .count = count,
      .of_part = ceil_div(count, parts),
      .extents = extents,
      .run = {},
  };
  const long tasks = ceil_div(count, image.of_part);
  pool.loop(tasks, measure_part, &image);
  Extent extent = extents[0];
  for (long i = 1; i < tasks; ++i) extent.add(extents[i]);
  const Parameters p = parameters_of(extent, is_asymmetric);
  uint8_t* const y = scratch.of(count);
  const int32_t low = least(is_asymmetric);
  image.run = {
      .x = nullptr, .count = 0, .inverse = p.inverse, .zero = p.zero, .low = low, .y = y};
  pool.loop(tasks, quantize_part, &image);
  bytes = y;
  return p;
}

}  // namespace

Parameters parameters_of(const Extent& extent, bool is_asymmetric) {
  return is_asymmetric ? asymmetric(extent) : symmetric(extent);
}

template <class Work>
void run(const DynamicRange<Work>& convolution, const InstructionSet& set, const ThreadPool& pool) {
  static thread_local Scratch<float> float_scratch;
  static thread_local Scratch<int32_t> integer_scratch;
  Work work = convolution.work;
  Geometry& g = work.geometry;
  const long values = g.height * g.width * g.channels, columns = convolution.columns;
  const long results = g.out_height * g.out_width * g.out_channels, batch = g.batch;
  float* const both = float_scratch.of(columns);
  int32_t* const bias = integer_scratch.of(columns);
  g.batch = 1;
  for (long n = 0; n < batch; ++n) {
    const Parameters p =
        quantized(convolution.x + n * values, values, convolution.is_asymmetric, set, pool, work.x);
    // The bias subtracts what the zero point of unsigned bytes adds to the sums.
    for (long c = 0; c < columns; ++c) {
      bias[c] = -(p.zero + 128) * convolution.sums[c];
      both[c] = p.scale * convolution.scales[c];
    }
    float* const y = convolution.y + n * results;
    const Rescaling floats{
        .column_scales = convolution.scales_twice ? convolution.scales : both,
        .bias = convolution.bias,
        .scale = convolution.scales_twice ? p.scale : 1.0f,
        .range = convolution.range,
        .y = y,
    };
    work.bias = bias, work.y = reinterpret_cast<uint8_t*>(y);
    work.epilogue = {};
    work.epilogue.padding = static_cast<uint8_t>(p.zero + 128), work.epilogue.floats = &floats;
    run(work, set, pool);
  }
}

template void run(const DynamicRange<Product<Int8>>&, const InstructionSet&, const ThreadPool&);
template void run(const DynamicRange<Depthwise<Int8>>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
