// Runs the native kernels' loops from several threads at once, on a thread pool like XLA:CPU's, and
// on the team of direct calls:
// `make sanitize-threads` builds it with ThreadSanitizer. Exits with 1 if a result is wrong.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "attention.h"
#include "batch_matmul.h"
#include "instruction_sets.h"
#include "layer_norm.h"
#include "mean.h"
#include "product.h"
#include "scratch.h"
#include "team.h"
#include "thread_pool.h"

struct XLA_FFI_Error {};

using kernels::ThreadPool;

// What handlers get as their opaque context: a queue of tasks, and threads that run them.
struct Context {
  explicit Context(int count, int refused = 0) : refuses(refused) {
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
  }

  ~Context() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      is_over = true;
    }
    more.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  ThreadPool::Context handle() { return reinterpret_cast<ThreadPool::Context>(this); }
  static Context& of(ThreadPool::Context handle) { return *reinterpret_cast<Context*>(handle); }

  bool schedule(void (*run)(void*), void* data) {
    if (is_team) return kernels::start_in_team(long(threads.size()) - 1, next, run, data);
    std::lock_guard<std::mutex> lock(mutex);
    if (refuses > 0 && ++asked % refuses == 0) return false;
    tasks.push_back({run, data});
    more.notify_one();
    return true;
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      more.wait(lock, [this] { return is_over || !tasks.empty(); });
      if (tasks.empty()) return;
      const Task task = tasks.front();
      tasks.pop_front();
      lock.unlock();
      task.run(task.data);
      lock.lock();
    }
  }

  struct Task {
    void (*run)(void*);
    void* data;
  };

  std::mutex mutex;
  std::condition_variable more;
  std::deque<Task> tasks;
  std::vector<std::thread> threads;
  long asked = 0;
  int refuses;  // every n-th task; 0: none
  bool is_over = false, is_team = false;
  static thread_local long next;  // see start_in_team
};

thread_local long Context::next = 0;

namespace {

XLA_FFI_Error* schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  return Context::of(args->ctx).schedule(args->task, args->data) ? nullptr : new XLA_FFI_Error;
}

XLA_FFI_Error* count_threads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  Context& context = Context::of(args->ctx);
  *args->num_threads = static_cast<int64_t>(context.threads.size());
  context.next = 0;
  return nullptr;
}

void destroy(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

ThreadPool pool_of(Context& context) {
  static XLA_FFI_Api api{};
  static const bool kIsFilled = [] {
    api.XLA_FFI_ThreadPool_Schedule = schedule;
    api.XLA_FFI_ThreadPool_NumThreads = count_threads;
    api.XLA_FFI_Error_Destroy = destroy;
    return true;
  }();
  (void)kIsFilled;
  XLA_FFI_CallFrame frame{};
  frame.api = &api, frame.ctx = context.handle();
  return ThreadPool(frame);
}

// Loops whose tasks write a cell each; in every seventh loop, a task is out of memory.
bool runs_loops(const ThreadPool& pool, unsigned seed) {
  struct Cells {
    std::vector<long> values;
    long failing;
  };
  std::mt19937 random(seed);
  for (int turn = 0; turn < 300; ++turn) {
    const long count = 1 + random() % 400;
    Cells cells{std::vector<long>(count, 0), turn % 7 == 0 ? long(random() % count) : -1};
    const auto body = [](const void* task, long index) {
      auto& own = *static_cast<Cells*>(const_cast<void*>(task));
      own.values[index] += index + 1;
      if (index == own.failing) throw kernels::OutOfMemory{4096};
    };
    bool has_thrown = false;
    try {
      pool.loop(count, body, &cells);
    } catch (const kernels::OutOfMemory&) {
      has_thrown = true;
    }
    if (has_thrown != (cells.failing >= 0)) return false;
    // Without helpers a loop ends when a task fails.
    const long whole = has_thrown && pool.size() == 1 ? cells.failing : count;
    for (long i = 0; i < whole; ++i)
      if (cells.values[i] != i + 1) return false;
  }
  return true;
}

std::vector<float> numbers(long count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// The results of a product, a mean, an attention and a product of few rows.
std::vector<float> computed(const ThreadPool& pool, unsigned seed) {
  const kernels::InstructionSet& set = *kernels::instruction_set();
  const long rows = 900, depth = 64, columns = 96, heads = 4, size = 16, queries = 80;
  const auto x = numbers(rows * depth, seed), weights = numbers(depth * columns, seed + 1);
  const auto bias = numbers(columns, seed + 2);
  std::vector<float> y(rows * columns), mean(columns), attended(queries * heads * size);
  const kernels::Product<kernels::Float32> product{
      .geometry =
          {
              .batch = 1,
              .height = rows,
              .width = 1,
              .channels = depth,
              .out_height = rows,
              .out_width = 1,
              .out_channels = columns,
              .groups = 1,
              .packed_groups = 1,
              .window_height = 1,
              .window_width = 1,
              .stride_height = 1,
              .stride_width = 1,
              .dilation_height = 1,
              .dilation_width = 1,
              .pad_top = 0,
              .pad_left = 0,
          },
      .x = x.data(),
      .weights = weights.data(),
      .bias = bias.data(),
      .y = y.data(),
      .epilogue = kernels::kFinite,
      .finish = {},
  };
  const kernels::Mean means{
      .batch = 1, .pixels = rows, .channels = columns, .x = y.data(), .y = mean.data()};
  const kernels::Attention attention{
      .images = 1,
      .heads = heads,
      .queries = queries,
      .keys = queries,
      .size = size,
      .keys_last = false,
      .values_last = true,
      .q = x.data(),
      .k = x.data() + 100,
      .v = x.data() + 200,
      .mask = x.data() + 300,
      .mask_images = 1,
      .mask_heads = 1,
      .mask_queries = queries,
      .scale = 0.25f,
      .y = attended.data(),
  };
  kernels::run(product, set, pool);
  kernels::run(means, set, pool);
  std::vector<float> multiplied(2 * rows);
  const kernels::BatchMatMul few{
      .batch = 1,
      .rows = 2,
      .depth = depth,
      .columns = rows,
      .is_transposed = true,
      .x = weights.data(),
      .w = x.data(),
      .y = multiplied.data(),
  };
  std::vector<float> answered(2 * depth), normalized(rows * depth);
  const kernels::Attention asked{
      .images = 1,
      .heads = 1,
      .queries = 2,
      .keys = rows,
      .size = depth,
      .keys_last = false,
      .values_last = false,
      .q = weights.data(),
      .k = x.data(),
      .v = x.data(),
      .mask = weights.data(),
      .mask_images = 1,
      .mask_heads = 1,
      .mask_queries = 1,
      .scale = 0.125f,
      .y = answered.data(),
  };
  const kernels::LayerNorm norm{
      .rows = rows,
      .row = {.count = depth, .is_centered = true, .epsilon = 1e-6f},
      .x = x.data(),
      .y = normalized.data(),
  };
  kernels::run(attention, set, pool);
  kernels::run(few, set, pool);
  kernels::run(asked, set, pool);
  kernels::run(norm, set, pool);
  y.insert(y.end(), mean.begin(), mean.end());
  y.insert(y.end(), attended.begin(), attended.end());
  y.insert(y.end(), multiplied.begin(), multiplied.end());
  y.insert(y.end(), answered.begin(), answered.end());
  y.insert(y.end(), normalized.begin(), normalized.end());
  return y;
}

}  // namespace

int main() {
  if (kernels::instruction_set() == nullptr) {
    std::puts("this processor has none of the instruction sets");
    return 0;
  }
  constexpr int kCallers = 4;
  Context one(1), many(4), refusing(4, 3), team(4);
  team.is_team = true;
  std::vector<std::vector<float>> wanted;
  for (int i = 0; i < kCallers; ++i) wanted.push_back(computed(pool_of(one), i));
  std::atomic<int> wrong{0};
  for (Context* context : {&many, &refusing, &team}) {
    std::vector<std::thread> callers;
    for (int i = 0; i < kCallers; ++i) {
      callers.emplace_back([&, i] {
        const ThreadPool pool = pool_of(*context);
        if (!runs_loops(pool, i)) ++wrong;
        // Until the threads of the team sleep.
        std::this_thread::sleep_for(std::chrono::milliseconds(1 + i));
        for (int turn = 0; turn < 10; ++turn) {
          const auto got = computed(pool, i);
          if (memcmp(got.data(), wanted[i].data(), got.size() * sizeof(float)) != 0) ++wrong;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  std::printf("%d callers, %d wrong\n", 3 * kCallers, wrong.load());
  return wrong == 0 ? 0 : 1;
}
