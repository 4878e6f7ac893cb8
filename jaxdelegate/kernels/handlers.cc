// What XLA calls: three handlers, float32 x, weights and bias -> y, with the attributes `geometry`
// (int64, the fields of Geometry in their order) and `range` (float32, low and high).

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

bool read_attributes(const CallFrame& frame, Geometry& geometry, Range& range) {
  const xla_ffi::Attributes& attributes = frame.attributes;
  if (attributes.size != 2) return false;
  for (int i = 0; i < 2; ++i) {
    if (attributes.types[i] != xla_ffi::kArrayAttribute) return false;
  }
  const auto& fields = *static_cast<const xla_ffi::Array*>(attributes.values[0]);
  const auto& limits = *static_cast<const xla_ffi::Array*>(attributes.values[1]);
  const bool fits = fields.dtype == xla_ffi::kS64 && fields.size == kGeometryFields &&
                    limits.dtype == xla_ffi::kF32 && limits.size == 2;
  if (!fits) return false;
  memcpy(&geometry, fields.data, sizeof geometry);
  memcpy(&range, limits.data, sizeof range);
  return true;
}

long elements(const Buffer& buffer) {
  long count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  return count;
}

bool holds(const Buffer& buffer, long count) {
  return buffer.dtype == xla_ffi::kF32 && elements(buffer) == count;
}

// Reads a call into `work`, a Product, a Depthwise or a Winograd. Answers a sentence if it is none.
template <class Work>
const char* read(const CallFrame& frame, Work& work, long (*weights_of)(const Geometry&)) {
  if (frame.arguments.size != 3 || frame.results.size != 1) return "want x, weights, bias and y";
  if (!read_attributes(frame, work.geometry, work.range)) return "want geometry and range";
  const Geometry& g = work.geometry;
  const Buffer &x = *frame.arguments.buffers[0], &weights = *frame.arguments.buffers[1];
  const Buffer &bias = *frame.arguments.buffers[2], &y = *frame.results.buffers[0];
  if (!holds(x, g.images * g.height * g.width * g.channels)) return "x does not fit geometry";
  if (!holds(weights, weights_of(g))) return "weights do not fit geometry";
  if (!holds(bias, g.units)) return "bias does not fit geometry";
  if (!holds(y, g.images * g.out_height * g.out_width * g.units)) return "y does not fit geometry";
  work.x = static_cast<const float*>(x.data);
  work.weights = static_cast<const float*>(weights.data);
  work.bias = static_cast<const float*>(bias.data);
  work.y = static_cast<float*>(y.data);
  return nullptr;
}

long product_weights(const Geometry& g) {
  const long panels = (g.units + kPanel - 1) / kPanel;
  return panels * g.window_height * g.window_width * g.channels * kPanel;
}

// -1, which no buffer holds, for what the kernels do not take.
long depthwise_weights(const Geometry& g) {
  const bool fits = g.units == g.channels && g.channels >= kLeastChannels;
  return fits ? g.window_height * g.window_width * g.channels : -1;
}

long winograd_weights(const Geometry& g) {
  const bool is_3x3 = g.window_height == 3 && g.window_width == 3 && g.stride_height == 1 &&
                      g.stride_width == 1 && g.dilation_height == 1 && g.dilation_width == 1;
  const long panels = (g.units + kPanel - 1) / kPanel;
  return is_3x3 && g.channels >= kLeastChannels ? kPoints * panels * g.channels * kPanel : -1;
}

template <class Work>
Error* handle(CallFrame* frame, long (*weights_of)(const Geometry&)) {
  if (answers_metadata(*frame)) return nullptr;
  if (frame->stage != xla_ffi::kExecute) return nullptr;
  const InstructionSet* set = instruction_set();
  if (set == nullptr) return refused(*frame, "jaxdelegate's kernels need AVX2 and FMA");
  Work work;
  const char* why = read(*frame, work, weights_of);
  if (why != nullptr) return refused(*frame, why);
  run(work, *set, ThreadPool(*frame));
  return nullptr;
}

}  // namespace

}  // namespace kernels

EXPORT xla_ffi::Error* jaxdelegate_product(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Product>(frame, kernels::product_weights);
}

EXPORT xla_ffi::Error* jaxdelegate_depthwise(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Depthwise>(frame, kernels::depthwise_weights);
}

EXPORT xla_ffi::Error* jaxdelegate_winograd(xla_ffi::CallFrame* frame) {
  return kernels::handle<kernels::Winograd>(frame, kernels::winograd_weights);
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
