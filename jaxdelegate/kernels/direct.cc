// Runs programs that XLA has compiled without XLA's runtime, whose call alone takes longer than a small
// program, and which wakes threads for each kernel.
// thunks/instructions.py translates XLA's steps to the words that are read here, and checks that
// every slice is within its allocation.
//
// Steps, in int64 words, which begin with a Step and the number of the words that follow:
//   kernel: address, work groups (x, y, z), slices
//   copy: target, source (slices)
//   transpose: target, source, bytes of an element, for each dimension of the target, from the slowest
//     to the fastest, its size and the bytes between its elements in the source
//   repeat: number of times, steps
//   loop: slice of the condition (bool), number of words of the condition's steps, these, steps
//   branch: slice of the index, branches: each the number of its words and its steps
//   call: address of a handler, number of arguments, of results, their tensors, of attributes, these
// slice: allocation, offset, bytes. tensor: slice, type, rank, dimensions.
// attribute: type, number of elements, data padded to whole words.

#include <cstdio>
#include <cstring>

#include <atomic>

#include "calls.h"
#include "floating_point.h"
#include "team.h"
#include "thread_pool.h"

namespace kernels {

namespace {

enum Step : int64_t { kKernel, kCopy, kTranspose, kRepeat, kLoop, kBranch, kCall };

constexpr int64_t kMostBuffers = 256, kMostAttributes = 8, kMostDimensions = 8;  // instructions.py has them, too

// What Python fills in for each run; all fields are words.
struct DirectCall {
  const int64_t* words;
  int64_t count;
  int64_t threads;    // including the caller's
  char message[256];  // of an error
  char* allocations[];
};

// XLA's calling convention of compiled kernels (xla/backends/cpu/runtime/kernel_c_api.h).
struct Dimensions {
  uint64_t x, y, z;
};
struct KernelArgument {
  void* data;
  size_t size;
};
struct KernelFrame {
  const Dimensions* count;
  const Dimensions* index;
  size_t argument_count;
  const KernelArgument* arguments;
};
using CompiledKernel = void* (*)(const KernelFrame*);  // returns null, or an error

struct KernelCall {
  CompiledKernel kernel;
  Dimensions count;
  size_t argument_count;
  const KernelArgument* arguments;
  mutable std::atomic<bool> is_right{true};

  static void run_group(const void* task, long group) {
    const auto& self = *static_cast<const KernelCall*>(task);
    const uint64_t x = self.count.x, y = self.count.y, number = group;
    const Dimensions index{number % x, number / x % y, number / x / y};
    const KernelFrame frame{&self.count, &index, self.argument_count, self.arguments};
    if (self.kernel(&frame) != nullptr) self.is_right.store(false, std::memory_order_relaxed);
  }
};

}  // namespace

}  // namespace kernels

// XLA declares it for its own definition; this is what handlers get here.
struct XLA_FFI_Error {
  char message[256];
};

namespace kernels {

namespace {

// What handlers get as their opaque context, whose type jaxlib 0.11 renamed.
struct Context {
  DirectCall* call;
  long next = 0;  // of the team's threads, for the loop that runs

  ThreadPool::Context handle() { return reinterpret_cast<ThreadPool::Context>(this); }
  static Context& of(ThreadPool::Context handle) { return *reinterpret_cast<Context*>(handle); }
};

XLA_FFI_Error kNoThread{"no thread is free"};

XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) {
  auto* const error = new XLA_FFI_Error;
  snprintf(error->message, sizeof error->message, "%s", args->message);
  return error;
}

void destroy_error(XLA_FFI_Error_Destroy_Args* args) {
  if (args->error != &kNoThread) delete args->error;
}

// Each loop asks for it before it schedules tasks.
XLA_FFI_Error* count_threads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  Context& context = Context::of(args->ctx);
  *args->num_threads = context.call->threads;
  context.next = 0;
  return nullptr;
}

XLA_FFI_Error* schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  Context& context = Context::of(args->ctx);
  const bool is_started =
      start_in_team(context.call->threads - 1, context.next, args->task, args->data);
  return is_started ? nullptr : &kNoThread;
}

const XLA_FFI_Api& api() {
  static const XLA_FFI_Api kApi = [] {
    XLA_FFI_Api api{};
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.api_version = {.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE,
                       .major_version = XLA_FFI_API_MAJOR,
                       .minor_version = XLA_FFI_API_MINOR};
    api.XLA_FFI_Error_Create = create_error;
    api.XLA_FFI_Error_Destroy = destroy_error;
    api.XLA_FFI_ThreadPool_NumThreads = count_threads;
    api.XLA_FFI_ThreadPool_Schedule = schedule;
    return api;
  }();
  return kApi;
}

class Runner {
 public:
  explicit Runner(DirectCall& call) : call_(call), context_{&call} {}

  // Runs the steps; false: one failed, and the message says why.
  bool run(const int64_t* word, const int64_t* end) {
    while (word < end) {
      const int64_t step = word[0];
      const int64_t* const next = word + 2 + word[1];
      if (!run_step(step, word + 2, next)) return false;
      word = next;
    }
    return true;
  }

 private:
  char* address(const int64_t* slice) const { return call_.allocations[slice[0]] + slice[1]; }

  bool run_step(int64_t step, const int64_t* word, const int64_t* end) {
    switch (step) {
      case kKernel:
        return run_kernel(word, end);
      case kCopy:
        memcpy(address(word), address(word + 3), word[2]);
        return true;
      case kTranspose:
        transpose(word, end);
        return true;
      case kRepeat:
        for (int64_t i = 0; i < word[0]; ++i)
          if (!run(word + 1, end)) return false;
        return true;
      case kLoop:
        return run_loop(word, end);
      case kBranch:
        return run_branch(word, end);
      case kCall:
        return run_call(word);
      default:
        return failed("an unknown step");
    }
  }

  void transpose(const int64_t* word, const int64_t* end) {
    char* target = address(word);
    const char *source = address(word + 3), *const target_end = target + word[2];
    const int64_t size = word[6], *const dimensions = word + 7;
    const int64_t rank = (end - dimensions) / 2;
    int64_t index[kMostDimensions] = {};
    while (true) {
      memcpy(target, source, size);
      target += size;
      if (target >= target_end) return;
      for (int64_t d = rank - 1;; --d) {
        const int64_t count = dimensions[2 * d], stride = dimensions[2 * d + 1];
        source += stride;
        if (++index[d] < count) break;
        source -= count * stride, index[d] = 0;
      }
    }
  }

  bool run_kernel(const int64_t* word, const int64_t* end) {
    const auto kernel = reinterpret_cast<CompiledKernel>(word[0]);
    const Dimensions count{static_cast<uint64_t>(word[1]), static_cast<uint64_t>(word[2]),
                           static_cast<uint64_t>(word[3])};
    KernelArgument arguments[kMostBuffers];
    size_t arguments_count = 0;
    for (const int64_t* slice = word + 4; slice < end; slice += 3)
      arguments[arguments_count++] = {address(slice), static_cast<size_t>(slice[2])};
    const KernelCall task{kernel, count, arguments_count, arguments};
    XLA_FFI_CallFrame frame{};
    frame.api = &api(), frame.ctx = context_.handle();
    ThreadPool(frame).loop(count.x * count.y * count.z, KernelCall::run_group, &task);
    return task.is_right || failed("a kernel of XLA failed");
  }

  bool run_loop(const int64_t* word, const int64_t* end) {
    const int64_t *const condition = word + 4, *const body = condition + word[3];
    while (true) {
      if (!run(condition, body)) return false;
      if (*address(word) == 0) return true;
      if (!run(body, end)) return false;
    }
  }

  // As XLA: a bool selects the first branch if it is true, an index that is out of range the last.
  bool run_branch(const int64_t* word, const int64_t* end) {
    int32_t index = 0;
    if (word[2] == 1) {
      index = *address(word) == 0;
    } else {
      memcpy(&index, address(word), sizeof index);
    }
    const int64_t* branch = word + 3;
    for (int32_t i = 0; i != index && branch + 1 + branch[0] < end; ++i) branch += 1 + branch[0];
    return run(branch + 1, branch + 1 + branch[0]);
  }

  bool run_call(const int64_t* word) {
    const auto handler = reinterpret_cast<XLA_FFI_Error* (*)(XLA_FFI_CallFrame*)>(word[0]);
    const int64_t argument_count = word[1], result_count = word[2];
    word += 3;
    XLA_FFI_Buffer buffers[kMostBuffers];
    void* pointers[kMostBuffers];
    XLA_FFI_ArgType argument_types[kMostBuffers];
    XLA_FFI_RetType result_types[kMostBuffers];
    for (int64_t i = 0; i < argument_count + result_count; ++i) {
      buffers[i] = {.struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
                    .dtype = static_cast<XLA_FFI_DataType>(word[3]),
                    .data = address(word),
                    .rank = word[4],
                    .dims = const_cast<int64_t*>(word + 5)};
      pointers[i] = &buffers[i];
      argument_types[i] = XLA_FFI_ArgType_BUFFER, result_types[i] = XLA_FFI_RetType_BUFFER;
      word += 5 + word[4];
    }
    XLA_FFI_Array arrays[kMostAttributes];
    void* values[kMostAttributes];
    XLA_FFI_AttrType attribute_types[kMostAttributes];
    const int64_t attribute_count = *word++;
    for (int64_t i = 0; i < attribute_count; ++i) {
      arrays[i] = {static_cast<XLA_FFI_DataType>(word[0]), static_cast<size_t>(word[1]),
                   const_cast<int64_t*>(word + 3)};
      values[i] = &arrays[i], attribute_types[i] = XLA_FFI_AttrType_ARRAY;
      word += 3 + word[2];
    }
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api(), frame.ctx = context_.handle(), frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args = {.struct_size = XLA_FFI_Args_STRUCT_SIZE,
                  .size = argument_count,
                  .types = argument_types,
                  .args = pointers};
    frame.rets = {.struct_size = XLA_FFI_Rets_STRUCT_SIZE,
                  .size = result_count,
                  .types = result_types,
                  .rets = pointers + argument_count};
    frame.attrs = {.struct_size = XLA_FFI_Attrs_STRUCT_SIZE,
                   .size = attribute_count,
                   .types = attribute_types,
                   .attrs = values};
    XLA_FFI_Error* const error = handler(&frame);
    if (error == nullptr) return true;
    failed(error->message);
    delete error;
    return false;
  }

  bool failed(const char* why) {
    snprintf(call_.message, sizeof call_.message, "%s", why);
    return false;
  }

  DirectCall& call_;
  Context context_;
};

}  // namespace

}  // namespace kernels

// 0: it ran; 1: it failed, and the call's message says why.
EXPORT int jaxdelegate_call_directly(void* data) {
  auto& call = *static_cast<kernels::DirectCall*>(data);
  const kernels::FloatingPointState state;
  return kernels::Runner(call).run(call.words, call.words + call.count) ? 0 : 1;
}
