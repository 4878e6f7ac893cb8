// What XLA calls, with the attribute `geometry` (int64, the fields of Geometry in their order):
//
// float32: x, weights, bias -> y, with the attribute `range` (float32, low and high);
// integers: x, weights, bias, scales -> y, with `integers` (int64: padding, the zero points of the
// weights and of y, low and high). x and y are int8 or uint8; scales are float64 [columns], or
// multipliers and shifts, int32 [2, columns]. The columns are the units, of a product whole panels.

#include <algorithm>
#include <cstring>

#include "depthwise.h"
#include "instruction_sets.h"
#include "product.h"
#include "winograd.h"
#include "xla_ffi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace kernels {

namespace {

using xla_ffi::Buffer;
using xla_ffi::CallFrame;
using xla_ffi::Error;

Error* refused(const CallFrame& frame, const char* why) {
  xla_ffi::ErrorArgs args{sizeof args, nullptr, why, xla_ffi::kInvalidArgument};
  return frame.api->create_error(&args);
}

// XLA asks for the version once, when the handler is registered.
bool answers_metadata(const CallFrame& frame) {
  const xla_ffi::Extension* extension = frame.extensions;
  if (extension == nullptr || extension->type != xla_ffi::kMetadata) return false;
  auto* metadata = reinterpret_cast<const xla_ffi::MetadataExtension*>(extension)->metadata;
  metadata->version.major = xla_ffi::kMajor;
  metadata->version.minor = std::min(xla_ffi::kMinor, frame.api->version.minor);
  metadata->traits = 0;
  return true;
}

// An attribute; null: it is another one. They come sorted by name.
const void* attribute(const CallFrame& frame, int i, xla_ffi::DataType dtype, size_t size) {
  const xla_ffi::Attributes& attributes = frame.attributes;
  if (attributes.size != 2 || attributes.types[i] != xla_ffi::kArrayAttribute) return nullptr;
  const auto& array = *static_cast<const xla_ffi::Array*>(attributes.values[i]);
  return array.dtype == dtype && array.size == size ? array.data : nullptr;
}

bool read_geometry(const CallFrame& frame, Geometry& geometry) {
  const void* fields = attribute(frame, 0, xla_ffi::kS64, kGeometryFields);
  if (fields != nullptr) memcpy(&geometry, fields, sizeof geometry);
  return fields != nullptr;
}

const Buffer& argument(const CallFrame& frame, int i) { return *frame.arguments.buffers[i]; }

xla_ffi::DataType type_of(const float*) { return xla_ffi::kF32; }
xla_ffi::DataType type_of(const double*) { return xla_ffi::kF64; }
xla_ffi::DataType type_of(const int8_t*) { return xla_ffi::kS8; }
xla_ffi::DataType type_of(const int16_t*) { return xla_ffi::kS16; }
xla_ffi::DataType type_of(const int32_t*) { return xla_ffi::kS32; }

// The data of a buffer; null: it holds something else.
template <class T>
bool read_data(const Buffer& buffer, xla_ffi::DataType dtype, long count, T*& data) {
  long elements = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) elements *= buffer.dims[i];
  data = static_cast<T*>(buffer.data);
  return buffer.dtype == dtype && elements == count;
}

template <class T>
bool read_data(const Buffer& buffer, long count, const T*& data) {
  return read_data(buffer, type_of(data), count, data);
}

long whole_panels(long units) { return (units + kPanel - 1) / kPanel * kPanel; }

// How many weights an operator has; -1, which no buffer holds: the kernels do not take it.
template <class E>
long weights_of(const Product<E>& work) {
  const Geometry& g = work.geometry;
  return whole_panels(g.units) * g.window_height * run_depth<E>(g);
}

template <class E>
long weights_of(const Depthwise<E>& work) {
  const Geometry& g = work.geometry;
  const long rows = (g.window_height + E::kRows - 1) / E::kRows * E::kRows;
  const bool fits = g.units == g.channels && g.channels >= kLeastChannels;
  return fits ? rows * g.window_width * g.channels : -1;
}

long weights_of(const Winograd& work) {
  const Geometry& g = work.geometry;
  const bool is_3x3 = g.window_height == 3 && g.window_width == 3 && g.stride_height == 1 &&
                      g.stride_width == 1 && g.dilation_height == 1 && g.dilation_width == 1;
  const bool fits = is_3x3 && g.channels >= kLeastChannels;
  return fits ? kPoints * g.channels * whole_panels(g.units) : -1;
}

// How many columns the bias has.
long columns_of(const Product<Int8>& work) { return whole_panels(work.geometry.units); }

template <class Work>
long columns_of(const Work& work) {
  return work.geometry.units;
}

const char* read_ending(const CallFrame& frame, long, Range& range) {
  const void* limits = attribute(frame, 1, xla_ffi::kF32, 2);
  if (frame.arguments.size != 3 || limits == nullptr) return "want x, weights, bias and range";
  memcpy(&range, limits, sizeof range);
  return nullptr;
}

const char* read_ending(const CallFrame& frame, long columns, Requantization& ending) {
  const auto* values = static_cast<const int64_t*>(attribute(frame, 1, xla_ffi::kS64, 5));
  if (frame.arguments.size != 4 || values == nullptr)
    return "want x, weights, bias, scales and integers";
  const Buffer& scales = argument(frame, 3);
  ending.padding = static_cast<uint8_t>(values[0]);
  ending.flip = argument(frame, 0).dtype == xla_ffi::kS8 ? 0x80 : 0;
  ending.w_zero = static_cast<int32_t>(values[1]), ending.y_zero = static_cast<int32_t>(values[2]);
  ending.low = static_cast<int32_t>(values[3]), ending.high = static_cast<int32_t>(values[4]);
  if (!read_data(scales, columns, ending.scales)) ending.scales = nullptr;
  if (!read_data(scales, 2 * columns, ending.multipliers)) ending.multipliers = nullptr;
  ending.shifts = ending.multipliers + columns;
  const bool fits = ending.scales != nullptr || ending.multipliers != nullptr;
  return fits ? nullptr : "scales do not fit geometry";
}

// Of x and y.
bool is_type(const float*, xla_ffi::DataType dtype) { return dtype == xla_ffi::kF32; }

bool is_type(const uint8_t*, xla_ffi::DataType dtype) {
  return dtype == xla_ffi::kS8 || dtype == xla_ffi::kU8;
}

// Reads a call into `work`, a Product, a Depthwise or a Winograd. Answers a sentence if it is none.
template <class Work>
const char* read(const CallFrame& frame, Work& work) {
  if (!read_geometry(frame, work.geometry) || frame.arguments.size < 3 || frame.results.size != 1)
    return "want geometry, x, weights, bias and y";
  const char* why = read_ending(frame, columns_of(work), work.ending);
  if (why != nullptr) return why;
  const Geometry& g = work.geometry;
  const Buffer& y = *frame.results.buffers[0];
  const xla_ffi::DataType dtype = argument(frame, 0).dtype;
  if (!is_type(work.x, dtype)) return "x is of another type";
  if (!read_data(argument(frame, 0), dtype, g.images * g.height * g.width * g.channels, work.x))
    return "x does not fit geometry";
  if (!read_data(argument(frame, 1), weights_of(work), work.weights))
    return "weights do not fit geometry";
  if (!read_data(argument(frame, 2), columns_of(work), work.bias))
    return "bias does not fit geometry";
  if (!read_data(y, dtype, g.images * g.out_height * g.out_width * g.units, work.y))
    return "y does not fit geometry";
  return nullptr;
}

template <class Work>
Error* handle(CallFrame* frame) {
  if (answers_metadata(*frame)) return nullptr;
  if (frame->stage != xla_ffi::kExecute) return nullptr;
  const InstructionSet* set = instruction_set();
  if (set == nullptr) return refused(*frame, "jaxdelegate's kernels need AVX2 and FMA");
  Work work;
  const char* why = read(*frame, work);
  if (why != nullptr) return refused(*frame, why);
  run(work, *set, ThreadPool(*frame));
  return nullptr;
}

}  // namespace

}  // namespace kernels

EXPORT xla_ffi::Error* jaxdelegate_product(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Product<kernels::Float32>>(frame);
}

EXPORT xla_ffi::Error* jaxdelegate_depthwise(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Depthwise<kernels::Float32>>(frame);
}

EXPORT xla_ffi::Error* jaxdelegate_winograd(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Winograd>(frame);
}

EXPORT xla_ffi::Error* jaxdelegate_product_int8(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Product<kernels::Int8>>(frame);
}

EXPORT xla_ffi::Error* jaxdelegate_depthwise_int8(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Depthwise<kernels::Int8>>(frame);
}

// The name of the instruction set in use; null: the processor has none that the kernels know.
EXPORT const char* jaxdelegate_instruction_set() {
  const kernels::InstructionSet* set = kernels::instruction_set();
  return set == nullptr ? nullptr : set->name;
}

// 1: the set of this name (null: the best one) is used from now on; 0: the processor lacks it.
EXPORT int jaxdelegate_use_instruction_set(const char* name) {
  return kernels::use_instruction_set(name);
}
