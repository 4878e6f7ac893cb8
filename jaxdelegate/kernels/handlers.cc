// The functions that XLA calls. Convolutions have the attribute `geometry` (int64, the fields of
// Geometry in order):
//
// float32: x, weights (float32 or bfloat16), bias and an optional residual -> y, with the attributes
// `range` (float32, low and high), `then` (int64, a Nonlinearity) and optionally `to_grid` (float32,
// the fields of Grid in order);
// integers: x, weights, bias, scales -> y, with `integers` (int64: padding, the zero points of the
// weights and of y, low and high; for int16 also whether sums are scaled as TFLite scales int64). x
// and y are int8, uint8 or int16; scales are float64 [columns], or multipliers and shifts, int32 [2,
// columns]. The columns are the output channels, padded to whole panels for products;
// dynamic range (float32 images, int8 filters): x, weights, bias, scales (float32) and the weights'
// sums (int32) -> y, with `modes` (int64: is_asymmetric and scales_twice of DynamicRange) and
// `range`. Columns as for integers.
//
// FULLY_CONNECTED (float32 rows, weights of a file as bytes): x, weights, bias, scales (float32
// [columns], or of blocks, float16 [columns, blocks]), the weights' sums (int32, or scaled
// ones of blocks, float32) -> y, with `modes` (int64: bits of a
// weight, values of a block or 0, is_asymmetric), `range` and `shape` (int64: columns, depth). x may
// have any number of rows.
//
// Attention: q, k, v and an optional mask -> y, with `are_last` (int64, for k and v: their keys are
// the last dimension) and `scale` (float32). Means: x -> y. Batches of matrix products: x, w -> y,
// with `is_transposed` (int64). Normalization of rows: x [rows, count], perhaps a scale and an offset
// [count] -> y, with `epsilon` (float32) and `has` (int64: is_centered, whether there is a scale, an
// offset). All float32.

#include <cstdio>
#include <cstring>

#include "attention.h"
#include "batch_matmul.h"
#include "calls.h"
#include "cpu.h"
#include "depthwise.h"
#include "dynamic_range.h"
#include "fully_connected.h"
#include "instruction_sets.h"
#include "layer_norm.h"
#include "mean.h"
#include "product.h"
#include "scratch.h"
#include "softmax.h"
#include "transposed.h"
#include "winograd.h"

namespace kernels {

namespace {

// The data of attribute `i`, in the order of names; null: it has another type or size.
const void* attribute(const XLA_FFI_CallFrame& frame, int i, XLA_FFI_DataType dtype,
                      size_t size) {
  const XLA_FFI_Attrs& attributes = frame.attrs;
  if (i >= attributes.size || attributes.types[i] != XLA_FFI_AttrType_ARRAY) return nullptr;
  const auto& array = *static_cast<const XLA_FFI_Array*>(attributes.attrs[i]);
  return array.dtype == dtype && array.size == size ? array.data : nullptr;
}

// Reads the geometry; false: it is missing, or a size is not positive. So no divisor is zero.
bool read_geometry(const XLA_FFI_CallFrame& frame, Geometry& geometry) {
  const void* fields = attribute(frame, 0, XLA_FFI_DataType_S64, kGeometryFields);
  if (fields == nullptr) return false;
  memcpy(&geometry, fields, sizeof geometry);
  const auto* sizes = static_cast<const int64_t*>(fields);
  const auto* pads = sizes + offsetof(Geometry, pad_top) / sizeof(long);
  return std::all_of(sizes, pads, [](int64_t size) { return size > 0; });
}

XLA_FFI_DataType type_of(const float*) { return XLA_FFI_DataType_F32; }
XLA_FFI_DataType type_of(const double*) { return XLA_FFI_DataType_F64; }
XLA_FFI_DataType type_of(const int8_t*) { return XLA_FFI_DataType_S8; }
XLA_FFI_DataType type_of(const int16_t*) { return XLA_FFI_DataType_S16; }
XLA_FFI_DataType type_of(const uint16_t*) { return XLA_FFI_DataType_BF16; }
XLA_FFI_DataType type_of(const int32_t*) { return XLA_FFI_DataType_S32; }

// Reads the data of a buffer; false: another type or number of elements.
template <class T>
bool read_data(const XLA_FFI_Buffer& buffer, XLA_FFI_DataType dtype, long count, T*& data) {
  data = static_cast<T*>(buffer.data);
  return buffer.dtype == dtype && elements_of(buffer) == count;
}

template <class T>
bool read_data(const XLA_FFI_Buffer& buffer, long count, const T*& data) {
  return read_data(buffer, type_of(data), count, data);
}

template <class E>
bool has_groups(const Geometry& g) {
  const bool divides = g.groups > 0 && g.packed_groups > 0 && g.groups % g.packed_groups == 0 &&
                       g.channels % g.groups == 0 && g.out_channels % g.groups == 0;
  return divides && (g.packed_groups == 1 || can_pack<E>(g));
}

// The number of weights; -1, which no buffer has: the kernels do not support the geometry.
template <class E>
long weights_of(const Product<E>& work) {
  const Geometry& g = work.geometry;
  if (!has_groups<E>(g)) return -1;
  return matrices(g) * panels_of_matrix(g) * kPanel * g.window_height * run_depth<E>(g);
}

template <class E>
long weights_of(const Transposed<E>& work) {
  const Geometry& g = work.geometry;
  const bool fits = g.groups == 1 && g.packed_groups == 1 && g.dilation_height == 1 &&
                    g.dilation_width == 1 && g.stride_height <= g.window_height &&
                    g.stride_width <= g.window_width && g.pad_top >= 0 && g.pad_left >= 0;
  if (!fits) return -1;
  long depth = 0;
  for (long i = 0; i < phases(g); ++i) depth += depth_of_phase<E>(g, i);
  return panels_of_matrix(g) * kPanel * depth;
}

long weights_of(const Product<Bfloat16>& work) {
  const Geometry& g = work.geometry;
  const bool fits = g.groups == 1 && g.packed_groups == 1 && g.channels % Bfloat16::kDeep == 0;
  return fits ? panels_of_matrix(g) * kPanel * g.window_height * run_length(g) : -1;
}

template <class E>
long weights_of(const Depthwise<E>& work) {
  const Geometry& g = work.geometry;
  const long rows = round_up(g.window_height, E::kRows);
  const bool fits = g.groups == g.channels && g.out_channels == g.channels;
  return fits && g.channels >= kLeastChannels ? rows * g.window_width * g.channels : -1;
}

long weights_of(const Winograd& work) {
  const Geometry& g = work.geometry;
  const bool is_3x3 = g.window_height == 3 && g.window_width == 3 && g.stride_height == 1 &&
                      g.stride_width == 1 && g.dilation_height == 1 && g.dilation_width == 1;
  const bool is_whole = g.groups == 1 && g.packed_groups == 1;
  const bool fits = is_3x3 && is_whole && g.channels >= kLeastChannels;
  return fits ? kPoints * g.channels * panels_of_matrix(g) * kPanel : -1;
}

// The number of columns of the bias.
template <class E>
long columns_of(const Product<E>& work) {
  const Geometry& g = work.geometry;
  return has_groups<E>(g) ? matrices(g) * columns_of_matrix<E>(g) : -1;
}

template <class E>
long columns_of(const Transposed<E>& work) {
  const Geometry& g = work.geometry;
  const bool fits = g.groups == 1 && g.packed_groups == 1;
  return fits ? (E::kFillsBias ? phases(g) : 1) * columns_of_matrix<E>(g) : -1;
}

template <class Work>
long columns_of(const Work& work) {
  return work.geometry.out_channels;
}

const char* read_epilogue(const XLA_FFI_CallFrame& frame, long, Range& range) {
  const void* limits = attribute(frame, 1, XLA_FFI_DataType_F32, 2);
  if (frame.args.size > 4 || limits == nullptr)
    return "expected x, weights, bias, an optional residual, and range";
  memcpy(&range, limits, sizeof range);
  return nullptr;
}

const char* read_epilogue(const XLA_FFI_CallFrame& frame, long columns,
                          Requantization& epilogue) {
  const bool is_int16 = argument(frame, 0).dtype == XLA_FFI_DataType_S16;
  const void* integers = attribute(frame, 1, XLA_FFI_DataType_S64, is_int16 ? 6 : 5);
  const auto* values = static_cast<const int64_t*>(integers);
  if (frame.args.size != 4 || values == nullptr)
    return "expected x, weights, bias, scales and integers";
  const XLA_FFI_Buffer& scales = argument(frame, 3);
  epilogue.padding = static_cast<uint8_t>(values[0]);
  epilogue.flip = argument(frame, 0).dtype == XLA_FFI_DataType_S8 ? 0x80 : 0;
  epilogue.w_zero = static_cast<int32_t>(values[1]);
  epilogue.y_zero = static_cast<int32_t>(values[2]);
  epilogue.low = static_cast<int32_t>(values[3]), epilogue.high = static_cast<int32_t>(values[4]);
  epilogue.is_wide = is_int16 && values[5] != 0;
  if (!read_data(scales, columns, epilogue.scales)) epilogue.scales = nullptr;
  if (!read_data(scales, 2 * columns, epilogue.multipliers)) epilogue.multipliers = nullptr;
  if (epilogue.multipliers != nullptr) epilogue.shifts = epilogue.multipliers + columns;
  const bool fits = epilogue.scales != nullptr || epilogue.multipliers != nullptr;
  return fits ? nullptr : "scales do not fit geometry";
}

// Reads the attributes after the range, and the residual.
const char* read_finish(const XLA_FFI_CallFrame& frame, long count, Range& range,
                        Finish& finish) {
  const void* nonlinearity = attribute(frame, 2, XLA_FFI_DataType_S64, 1);
  long value = kNonlinearities;
  if (nonlinearity != nullptr) memcpy(&value, nonlinearity, sizeof value);
  if (value < kClamp || value >= kNonlinearities) return "then is not a nonlinearity";
  finish.nonlinearity = static_cast<Nonlinearity>(value), finish.range = range;
  const bool adds = frame.args.size == 4;
  if (adds && !read_data(argument(frame, 3), count, finish.residual))
    return "the residual does not fit y";
  if (frame.attrs.size > 3) {
    finish.grid = static_cast<const Grid*>(attribute(frame, 3, XLA_FFI_DataType_F32, kGridFields));
    if (finish.grid == nullptr) return "to_grid is not a grid";
  }
  if (finish.is_any()) range = kFinite;
  return nullptr;
}

const char* read_finish(const XLA_FFI_CallFrame&, long, Requantization&, Finish&) {
  return nullptr;
}

// Whether x and y may have a type.
bool is_type(const float*, XLA_FFI_DataType dtype) { return dtype == XLA_FFI_DataType_F32; }

bool is_type(const int16_t*, XLA_FFI_DataType dtype) { return dtype == XLA_FFI_DataType_S16; }

bool is_type(const uint8_t*, XLA_FFI_DataType dtype) {
  return dtype == XLA_FFI_DataType_S8 || dtype == XLA_FFI_DataType_U8;
}

// Reads a call into `work`: a Product, Transposed, Depthwise or Winograd. Returns null, or an error
// message.
template <class Work>
const char* read(const XLA_FFI_CallFrame& frame, Work& work) {
  if (!read_geometry(frame, work.geometry) || frame.args.size < 3 || frame.rets.size != 1)
    return "expected geometry without zeros, x, weights, bias and y";
  const Geometry& g = work.geometry;
  const XLA_FFI_Buffer& y = result(frame);
  const XLA_FFI_DataType dtype = argument(frame, 0).dtype;
  if (!is_type(work.x, dtype)) return "x is of the wrong type";
  const char* why = read_epilogue(frame, columns_of(work), work.epilogue);
  if (why != nullptr) return why;
  if (!read_data(argument(frame, 0), dtype, g.batch * g.height * g.width * g.channels, work.x))
    return "x does not fit geometry";
  if (!read_data(argument(frame, 1), weights_of(work), work.weights))
    return "weights do not fit geometry";
  if (!read_data(argument(frame, 2), columns_of(work), work.bias))
    return "bias does not fit geometry";
  const long results = g.batch * g.out_height * g.out_width * g.out_channels;
  if (!read_data(y, dtype, results, work.y)) return "y does not fit geometry";
  return read_finish(frame, results, work.epilogue, work.finish);
}

// Images are processed one by one; geometry has the whole batch.
template <class Work>
const char* read(const XLA_FFI_CallFrame& frame, DynamicRange<Work>& convolution) {
  Work& work = convolution.work;
  const Geometry& g = work.geometry;
  if (!read_geometry(frame, work.geometry) || frame.args.size != 5 || frame.rets.size != 1)
    return "expected geometry without zeros, x, weights, bias, scales, sums and y";
  const void* modes = attribute(frame, 1, XLA_FFI_DataType_S64, 2);
  const void* range = attribute(frame, 2, XLA_FFI_DataType_F32, 2);
  if (modes == nullptr || range == nullptr) return "expected modes and range";
  convolution.is_asymmetric = static_cast<const int64_t*>(modes)[0] != 0;
  convolution.scales_twice = static_cast<const int64_t*>(modes)[1] != 0;
  memcpy(&convolution.range, range, sizeof convolution.range);
  const long columns = convolution.columns = columns_of(work);
  const long values = g.batch * g.height * g.width * g.channels;
  const long results = g.batch * g.out_height * g.out_width * g.out_channels;
  if (!read_data(argument(frame, 0), values, convolution.x)) return "x does not fit geometry";
  if (!read_data(argument(frame, 1), weights_of(work), work.weights))
    return "weights do not fit geometry";
  const bool fits = read_data(argument(frame, 2), columns, convolution.bias) &&
                    read_data(argument(frame, 3), columns, convolution.scales) &&
                    read_data(argument(frame, 4), columns, convolution.sums);
  if (!fits) return "bias, scales or sums do not fit geometry";
  if (!read_data(result(frame), XLA_FFI_DataType_F32, results, convolution.y))
    return "y does not fit geometry";
  return nullptr;
}

// Whether blocks of weights may have this number of bytes: a power of two.
bool is_block(long bytes) { return bytes >= kLeastBlock && (bytes & (bytes - 1)) == 0; }

const char* read(const XLA_FFI_CallFrame& frame, FullyConnected& f) {
  const auto* modes = static_cast<const int64_t*>(attribute(frame, 0, XLA_FFI_DataType_S64, 3));
  const void* range = attribute(frame, 1, XLA_FFI_DataType_F32, 2);
  const auto* shape = static_cast<const int64_t*>(attribute(frame, 2, XLA_FFI_DataType_S64, 2));
  if (modes == nullptr || range == nullptr || shape == nullptr || frame.args.size != 5 ||
      frame.rets.size != 1)
    return "expected x, weights, bias, scales, sums, y, modes, range and shape";
  memcpy(&f.range, range, sizeof f.range);
  f.columns = shape[0], f.depth = shape[1];
  f.bits = modes[0], f.block = modes[1] == 0 ? f.depth : modes[1], f.is_asymmetric = modes[2] != 0;
  const bool has_blocks = modes[1] != 0;
  if (f.columns < 1 || f.depth < 1 || (f.bits != 2 && f.bits != 4 && f.bits != 8) ||
      f.block < 1 || f.depth % f.block != 0 ||
      (has_blocks && (f.bits == 2 || !is_block(f.block * f.bits / 8))))
    return "the kernel does not support these modes";
  const XLA_FFI_Buffer &x = argument(frame, 0), &w = argument(frame, 1), &s = argument(frame, 3);
  f.rows = elements_of(x) / f.depth;
  if (!read_data(x, f.rows * f.depth, f.x)) return "x does not have whole rows";
  const bool are_bytes = w.dtype == XLA_FFI_DataType_S8 || w.dtype == XLA_FFI_DataType_U8;
  if (!are_bytes || !read_data(w, w.dtype, f.columns * f.row_bytes(), f.w))
    return "weights do not fit the shape";
  const long scales = f.columns * f.blocks();
  const XLA_FFI_Buffer& sums = argument(frame, 4);
  const bool fits = has_blocks ? read_data(s, XLA_FFI_DataType_F16, scales, f.block_scales) &&
                                     read_data(sums, f.columns, f.block_sums)
                               : read_data(s, f.columns, f.scales) &&
                                     read_data(sums, f.columns, f.sums);
  if (!fits || !read_data(argument(frame, 2), f.columns, f.bias))
    return "bias, scales or sums do not fit the shape";
  return read_data(result(frame), XLA_FFI_DataType_F32, f.rows * f.columns, f.y)
             ? nullptr
             : "y does not fit x";
}

// [images, heads, queries, keys]: images divide those of q, heads and queries are 1 or as many.
const char* read_mask(const XLA_FFI_Buffer& mask, Attention& a) {
  const bool has_rank = mask.rank == 4 && mask.dims[3] == a.keys;
  a.mask_images = has_rank ? mask.dims[0] : 0;
  if (a.mask_images > 0) a.mask_heads = mask.dims[1], a.mask_queries = mask.dims[2];
  const long rows = a.mask_images * a.mask_heads * a.mask_queries;
  const bool fits = a.mask_images > 0 && a.images % a.mask_images == 0 &&
                    (a.mask_heads == 1 || a.mask_heads == a.heads) &&
                    (a.mask_queries == 1 || a.mask_queries == a.queries) &&
                    read_data(mask, rows * a.keys, a.mask);
  return fits ? nullptr : "the mask does not fit";
}

// Reads k or v, [images, heads, keys, size], or keys last; false: it does not fit q.
bool read_keys(const XLA_FFI_Buffer& buffer, bool are_last, const Attention& a, const float*& data) {
  return buffer.rank == 4 && buffer.dims[0] == a.images && buffer.dims[1] == a.heads &&
         buffer.dims[are_last ? 3 : 2] == a.keys && buffer.dims[are_last ? 2 : 3] == a.size &&
         read_data(buffer, a.images * a.heads * a.keys * a.size, data);
}

// q [images, heads, queries, size], k, v and an optional mask.
const char* read(const XLA_FFI_CallFrame& frame, Attention& a) {
  const int64_t count = frame.args.size;
  const auto* const are_last =
      static_cast<const int64_t*>(attribute(frame, 0, XLA_FFI_DataType_S64, 2));
  const void* const scale = attribute(frame, 1, XLA_FFI_DataType_F32, 1);
  if ((count != 3 && count != 4) || frame.rets.size != 1 || are_last == nullptr || scale == nullptr)
    return "expected q, k, v, an optional mask, y, are_last and scale";
  const XLA_FFI_Buffer &q = argument(frame, 0), &k = argument(frame, 1);
  if (q.rank != 4 || k.rank != 4) return "expected four dimensions";
  a = {.images = q.dims[0],
       .heads = q.dims[1],
       .queries = q.dims[2],
       .keys = k.dims[are_last[0] != 0 ? 3 : 2],
       .size = q.dims[3],
       .keys_last = are_last[0] != 0,
       .values_last = are_last[1] != 0,
       .mask_images = 1,
       .mask_heads = 1,
       .mask_queries = 1};
  memcpy(&a.scale, scale, sizeof a.scale);
  const long all = a.images * a.heads * a.queries * a.size;
  const bool fits = read_data(q, all, a.q) && read_keys(k, a.keys_last, a, a.k) &&
                    read_keys(argument(frame, 2), a.values_last, a, a.v) &&
                    read_data(result(frame), XLA_FFI_DataType_F32, all, a.y);
  if (!fits || all * a.keys == 0) return "q, k, v and y do not fit each other";
  return count == 4 ? read_mask(argument(frame, 3), a) : nullptr;
}

// x [batch, pixels, channels].
const char* read(const XLA_FFI_CallFrame& frame, Mean& m) {
  if (frame.args.size != 1 || frame.rets.size != 1) return "expected x and y";
  const XLA_FFI_Buffer &x = argument(frame, 0), &y = result(frame);
  if (x.rank != 3 || x.dims[2] < kLeastChannels) return "expected [batch, pixels, channels]";
  m = {.batch = x.dims[0], .pixels = x.dims[1], .channels = x.dims[2]};
  const bool fits = read_data(x, m.batch * m.pixels * m.channels, m.x) &&
                    read_data(y, XLA_FFI_DataType_F32, m.batch * m.channels, m.y);
  return fits && m.pixels > 0 ? nullptr : "y does not fit x";
}

// x [batch, rows, depth]; w [batch, depth, columns], or with `is_transposed` [batch, columns, depth].
const char* read(const XLA_FFI_CallFrame& frame, BatchMatMul& m) {
  const void* mode = attribute(frame, 0, XLA_FFI_DataType_S64, 1);
  if (mode == nullptr || frame.args.size != 2 || frame.rets.size != 1)
    return "expected x, w, y and is_transposed";
  const XLA_FFI_Buffer &x = argument(frame, 0), &w = argument(frame, 1);
  if (x.rank != 3 || w.rank != 3) return "expected three dimensions";
  m.is_transposed = *static_cast<const int64_t*>(mode) != 0;
  m.batch = x.dims[0], m.rows = x.dims[1], m.depth = x.dims[2];
  m.columns = w.dims[m.is_transposed ? 1 : 2];
  const long matrix = m.depth * m.columns;
  const bool fits = w.dims[m.is_transposed ? 2 : 1] == m.depth &&
                    read_data(x, m.batch * m.rows * m.depth, m.x) &&
                    read_data(w, m.batch * matrix, m.w) &&
                    read_data(result(frame), XLA_FFI_DataType_F32, m.batch * m.rows * m.columns, m.y);
  return fits && m.batch * m.rows * matrix > 0 ? nullptr : "x, w and y do not fit each other";
}

const char* read(const XLA_FFI_CallFrame& frame, Softmax& s) {
  if (frame.args.size != 1 || frame.rets.size != 1) return "expected x and y";
  const XLA_FFI_Buffer& x = argument(frame, 0);
  if (x.rank != 2) return "expected rows";
  s = {.rows = x.dims[0], .count = x.dims[1]};
  const bool fits = read_data(x, s.rows * s.count, s.x) &&
                    read_data(result(frame), XLA_FFI_DataType_F32, s.rows * s.count, s.y);
  return fits && s.count > 0 ? nullptr : "y does not fit x";
}

const char* read(const XLA_FFI_CallFrame& frame, LayerNorm& n) {
  const void* const epsilon = attribute(frame, 0, XLA_FFI_DataType_F32, 1);
  const auto* const has = static_cast<const int64_t*>(attribute(frame, 1, XLA_FFI_DataType_S64, 3));
  if (epsilon == nullptr || has == nullptr || frame.rets.size != 1 ||
      frame.args.size != 1 + (has[1] != 0) + (has[2] != 0))
    return "expected x, a scale and an offset if there are any, y, epsilon and has";
  const XLA_FFI_Buffer& x = argument(frame, 0);
  if (x.rank != 2) return "expected rows";
  n = {.rows = x.dims[0], .row = {.count = x.dims[1], .is_centered = has[0] != 0}};
  memcpy(&n.row.epsilon, epsilon, sizeof n.row.epsilon);
  const long count = n.row.count, all = n.rows * count;
  int next = 1;
  const bool fits = read_data(x, all, n.x) &&
                    read_data(result(frame), XLA_FFI_DataType_F32, all, n.y) &&
                    (has[1] == 0 || read_data(argument(frame, next++), count, n.row.scale)) &&
                    (has[2] == 0 || read_data(argument(frame, next++), count, n.row.offset));
  return fits && all > 0 ? nullptr : "x, scale, offset and y do not fit each other";
}

// Whether an instruction set has the kernel.
bool has(const InstructionSet& set, const Product<Bfloat16>&) { return set.bfloat16 != nullptr; }

template <class Work>
bool has(const InstructionSet&, const Work&) {
  return true;
}

XLA_FFI_Error* exhausted(const XLA_FFI_CallFrame& frame, long bytes) {
  char why[80];
  snprintf(why, sizeof why, "jaxdelegate's kernels: no memory for %ld bytes", bytes);
  return make_error(frame, why, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
}

template <class Work>
XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) {
  if (fill_metadata(*frame)) return nullptr;
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  const InstructionSet* set = instruction_set();
  if (set == nullptr) return make_error(*frame, "jaxdelegate's native kernels need AVX2 and FMA");
  Work work{};
  if (!has(*set, work)) return make_error(*frame, "this processor lacks the kernel's instructions");
  const char* why = read(*frame, work);
  if (why != nullptr) return make_error(*frame, why);
  try {
    run(work, *set, ThreadPool(*frame));
  } catch (const OutOfMemory& error) {
    return exhausted(*frame, error.bytes);
  }
  return nullptr;
}

}  // namespace

// The kernels in the order of library.py, which checks it.
#define KERNELS(ROW)                                                      \
  ROW(jaxdelegate_product, Product<Float32>)                              \
  ROW(jaxdelegate_depthwise, Depthwise<Float32>)                          \
  ROW(jaxdelegate_winograd, Winograd)                                     \
  ROW(jaxdelegate_attention, Attention)                                   \
  ROW(jaxdelegate_mean, Mean)                                             \
  ROW(jaxdelegate_product_bfloat16, Product<Bfloat16>)                    \
  ROW(jaxdelegate_product_int8, Product<Int8>)                            \
  ROW(jaxdelegate_depthwise_int8, Depthwise<Int8>)                        \
  ROW(jaxdelegate_product_dynamic_range, DynamicRange<Product<Int8>>)     \
  ROW(jaxdelegate_depthwise_dynamic_range, DynamicRange<Depthwise<Int8>>) \
  ROW(jaxdelegate_product_int16, Product<Int16>)                          \
  ROW(jaxdelegate_depthwise_int16, Depthwise<Int16>)                      \
  ROW(jaxdelegate_fully_connected, FullyConnected)                        \
  ROW(jaxdelegate_batch_matmul, BatchMatMul)                              \
  ROW(jaxdelegate_layer_norm, LayerNorm)                                  \
  ROW(jaxdelegate_softmax, Softmax)                                       \
  ROW(jaxdelegate_transposed, Transposed<Float32>)                        \
  ROW(jaxdelegate_transposed_int8, Transposed<Int8>)                      \
  ROW(jaxdelegate_product_ordered, Product<OrderedFloat32>)

#define DEFINE(name, Work) \
  EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) { return handle<Work>(frame); }
KERNELS(DEFINE)

#define LIST(name, Work) {#name, name},
const Kernel kKernels[] = {KERNELS(LIST)};
const long kKernelCount = sizeof kKernels / sizeof *kKernels;

}  // namespace kernels

// The name of the kernel with an index in call batches; null after the last.
EXPORT const char* jaxdelegate_kernel_name(long number) {
  return number >= 0 && number < kernels::kKernelCount ? kernels::kKernels[number].name : nullptr;
}

// The name of the instruction set in use; null: the processor supports none, or the limit is none.
EXPORT const char* jaxdelegate_instruction_set() {
  const kernels::InstructionSet* set = kernels::instruction_set();
  return set == nullptr ? nullptr : set->name;
}

// 1: the set in use can multiply bfloat16.
EXPORT int jaxdelegate_multiplies_bfloat16() {
  const kernels::InstructionSet* set = kernels::instruction_set();
  return set != nullptr && set->bfloat16 != nullptr;
}

// Limits the set in use to the one with this name or worse ("none": no set; null: no limit). 0: the
// name is unknown.
EXPORT int jaxdelegate_limit_instruction_set(const char* most) { return kernels::limit(most); }

// The following functions are for tests of the choice of a set on other processors.

// The names of sets by index, the best first; null after the last.
EXPORT const char* jaxdelegate_instruction_set_name(long number) {
  const kernels::InstructionSet* set = kernels::instruction_set(number);
  return set == nullptr ? nullptr : set->name;
}

// The features (cpu.h) in registers.
EXPORT uint32_t jaxdelegate_features_of(const kernels::CpuRegisters* registers) {
  return kernels::features_of(*registers);
}

// The name of the set that a processor with these features would use; null: none.
EXPORT const char* jaxdelegate_select_instruction_set(uint32_t features, const char* most) {
  const kernels::InstructionSet* set = kernels::select(features, most);
  return set == nullptr ? nullptr : set->name;
}
