// Runs several calls of kernels in one call by XLA, to save the overhead of the others.
//
// Arguments: the call list (uint8), then the inputs of the batch. Results: the outputs of the batch,
// then scratch memory for all other results (uint8). The call list consists of int64 words: the
// number of calls; the offset of small constants in it, in bytes; the batch's number, for profiles;
// for each call the kernel, its arguments, its result and its attributes. Lists follow their lengths.
//   tensor: location, index or offset in bytes, type, rank, dimensions
//   attribute: type, number of elements, data padded to whole words

#include <time.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "calls.h"

namespace kernels {

namespace {

enum Location : int64_t { kArgument, kResult, kScratch, kConstant };

constexpr int64_t kMostArguments = 5, kMostAttributes = 4, kMostDimensions = 8;

long bytes_of(int64_t type) {
  switch (type) {
    case XLA_FFI_DataType_S8:
    case XLA_FFI_DataType_U8:
      return 1;
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16:
      return 2;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_F32:
      return 4;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_F64:
      return 8;
    default:
      return 0;
  }
}

// The memory of tensors.
struct Memory {
  const XLA_FFI_CallFrame& frame;
  int64_t constants;  // their offset in the call list

  // The address of a tensor, and the bytes available from there; null: an invalid location.
  char* find(int64_t location, int64_t at, long& bytes) const {
    if (at < 0) return nullptr;
    switch (location) {
      case kArgument:
        return at < frame.args.size ? after(argument(frame, at), 0, bytes) : nullptr;
      case kResult:
        return at < frame.rets.size ? after(result(frame, at), 0, bytes) : nullptr;
      case kScratch:
        if (frame.rets.size < 1) return nullptr;
        return after(result(frame, frame.rets.size - 1), at, bytes);
      case kConstant:
        return after(argument(frame, 0), constants + at, bytes);
      default:
        return nullptr;
    }
  }

 private:
  static char* after(const XLA_FFI_Buffer& buffer, int64_t offset, long& bytes) {
    if (offset < 0) return nullptr;
    bytes = elements_of(buffer) * bytes_of(buffer.dtype) - offset;
    return static_cast<char*>(buffer.data) + offset;
  }
};

// Reads the call list. After its end it returns zeros, and `fits` becomes false.
class Words {
 public:
  explicit Words(const XLA_FFI_Buffer& call_list)
      : next_(static_cast<int64_t*>(call_list.data)),
        left_(elements_of(call_list) / sizeof(int64_t)) {}

  bool fits = true;

  int64_t* take(int64_t count) {
    fits = fits && count >= 0 && count <= left_;
    if (!fits) return zeros_;
    left_ -= count, next_ += count;
    return next_ - count;
  }

  int64_t take() { return *take(1); }

  // The length of a list.
  int64_t length(int64_t most) {
    const int64_t count = take();
    fits = fits && count >= 0 && count <= most;
    return fits ? count : 0;
  }

 private:
  int64_t* next_;
  int64_t left_;
  int64_t zeros_[kMostDimensions] = {};
};

// Times of calls for profiles, in the order in which the calls end.
struct Times {
  // In a row: batch, index in the batch, nanoseconds, bytes of all tensors and of the result.
  static constexpr long kFields = 5;

  std::atomic<long> capacity{0};  // in calls; 0: not profiling
  std::mutex lock;
  std::vector<int64_t> rows;

  void begin(long calls) {
    const std::lock_guard<std::mutex> guard(lock);
    if (calls > 0) rows.clear();
    capacity = calls;
  }

  void add(std::initializer_list<int64_t> row) {
    const std::lock_guard<std::mutex> guard(lock);
    if (static_cast<long>(rows.size()) >= capacity * kFields) return;
    rows.insert(rows.end(), row);
  }
};

Times& times() {
  static Times* const kTimes = new Times;  // never deleted: threads may run at the process's exit
  return *kTimes;
}

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}

// One call, with the structures that XLA would pass.
struct Call {
  int64_t kernel;
  XLA_FFI_Buffer tensors[kMostArguments + 1];
  void* buffers[kMostArguments + 1];  // the result is the last one
  XLA_FFI_Array arrays[kMostAttributes];
  void* values[kMostAttributes];
  XLA_FFI_AttrType types[kMostAttributes];
  int64_t argument_count, attribute_count;

  bool read(Words& words, const Memory& memory) {
    kernel = words.take();
    argument_count = words.length(kMostArguments);
    for (int64_t i = 0; i <= argument_count; ++i) {
      buffers[i] = &tensors[i];
      if (!read_tensor(words, memory, tensors[i])) return false;
    }
    attribute_count = words.length(kMostAttributes);
    for (int64_t i = 0; i < attribute_count; ++i) read_attribute(words, i);
    return words.fits && kernel >= 0 && kernel < kKernelCount;
  }

  long result_bytes() const { return tensor_bytes(argument_count); }

  long bytes() const {
    long sum = 0;
    for (int64_t i = 0; i <= argument_count; ++i) sum += tensor_bytes(i);
    return sum;
  }

  XLA_FFI_Error* run(const XLA_FFI_CallFrame& outer) {
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = outer.api, frame.ctx = outer.ctx, frame.stage = outer.stage;
    frame.args = {
        .struct_size = XLA_FFI_Args_STRUCT_SIZE, .size = argument_count, .args = buffers};
    frame.rets = {
        .struct_size = XLA_FFI_Rets_STRUCT_SIZE, .size = 1, .rets = buffers + argument_count};
    frame.attrs = {.struct_size = XLA_FFI_Attrs_STRUCT_SIZE,
                   .size = attribute_count,
                   .types = types,
                   .attrs = values};
    return kKernels[kernel].run(&frame);
  }

 private:
  long tensor_bytes(int64_t i) const {
    return elements_of(tensors[i]) * bytes_of(tensors[i].dtype);
  }

  static bool read_tensor(Words& words, const Memory& memory, XLA_FFI_Buffer& tensor) {
    const int64_t location = words.take(), at = words.take(), type = words.take();
    const int64_t rank = words.length(kMostDimensions);
    long bytes = 0, needed = bytes_of(type);
    void* const data = memory.find(location, at, bytes);
    tensor = {.struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
              .dtype = static_cast<XLA_FFI_DataType>(type),
              .data = data,
              .rank = rank,
              .dims = words.take(rank)};
    bool fits = tensor.data != nullptr && needed > 0;
    for (int64_t i = 0; i < rank && fits; ++i)
      fits = tensor.dims[i] >= 0 && !__builtin_mul_overflow(needed, tensor.dims[i], &needed);
    return fits && needed <= bytes;
  }

  void read_attribute(Words& words, int64_t i) {
    const int64_t type = words.take(), size = words.take();
    arrays[i] = {static_cast<XLA_FFI_DataType>(type), static_cast<size_t>(size),
                 words.take((size * bytes_of(type) + 7) / 8)};
    values[i] = &arrays[i], types[i] = XLA_FFI_AttrType_ARRAY;
  }
};

XLA_FFI_Error* run(const XLA_FFI_CallFrame& frame) {
  if (frame.args.size < 1) return make_error(frame, "expected a call list");
  const XLA_FFI_Buffer& call_list = argument(frame, 0);
  const bool is_aligned = reinterpret_cast<uintptr_t>(call_list.data) % alignof(int64_t) == 0;
  if (call_list.dtype != XLA_FFI_DataType_U8 || !is_aligned)
    return make_error(frame, "expected a call list of words");
  Words words(call_list);
  const int64_t count = words.take();
  const Memory memory{frame, words.take()};
  const int64_t number = words.take();
  if (!words.fits) return make_error(frame, "the call list is too short");
  const bool is_timed = times().capacity.load(std::memory_order_relaxed) > 0;
  for (int64_t i = 0; i < count; ++i) {
    Call call;
    if (!call.read(words, memory))
      return make_error(frame, "the call list does not fit its tensors");
    const int64_t begin = is_timed ? now() : 0;
    if (XLA_FFI_Error* error = call.run(frame)) return error;
    if (is_timed) times().add({number, i, now() - begin, call.bytes(), call.result_bytes()});
  }
  return nullptr;
}

}  // namespace

}  // namespace kernels

EXPORT XLA_FFI_Error* jaxdelegate_call_batch(XLA_FFI_CallFrame* frame) {
  if (kernels::fill_metadata(*frame)) return nullptr;
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  return kernels::run(*frame);
}

// Starts timing up to `count` calls of all call batches; 0: stops.
EXPORT void jaxdelegate_time_calls(long count) { kernels::times().begin(count); }

// Returns the number of timed calls, and copies up to `count` of them to `rows`.
EXPORT long jaxdelegate_call_times(int64_t* rows, long count) {
  kernels::Times& times = kernels::times();
  const std::lock_guard<std::mutex> guard(times.lock);
  const long found = times.rows.size() / kernels::Times::kFields;
  std::copy_n(times.rows.begin(), std::min(found, count) * kernels::Times::kFields, rows);
  return found;
}
