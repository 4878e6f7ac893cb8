#include "thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <new>

namespace kernels {

namespace {

// Shared by the caller and what it scheduled, some of which may begin when all is done.
struct Loop {
  long count;
  void (*body)(const void*, long);
  const void* task;
  std::atomic<long> next{0}, done{0}, users;

  Loop(long n, void (*f)(const void*, long), const void* t, long u)
      : count(n), body(f), task(t), users(u) {}

  void run() {
    for (long i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      body(task, i);
      done.fetch_add(1, std::memory_order_release);
    }
  }

  void leave() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

void run_and_leave(void* data) {
  Loop* loop = static_cast<Loop*>(data);
  loop->run();
  loop->leave();
}

void pause_thread(long turn) {
  constexpr long kPatience = 2000;  // about 50 microseconds
  if (turn > kPatience) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

long ThreadPool::size() const {
  int64_t count = 1;
  xla_ffi::ThreadCountArgs args{sizeof args, nullptr, context_, &count};
  xla_ffi::Error* error = api_->thread_count(&args);
  if (error == nullptr) return count;
  forget(error);
  return 1;
}

void ThreadPool::loop(long count, void (*body)(const void*, long), const void* task) const {
  const long helpers = std::min(size(), count) - 1;
  Loop* loop = helpers < 1 ? nullptr : new (std::nothrow) Loop(count, body, task, helpers + 1);
  if (loop == nullptr) {
    for (long i = 0; i < count; ++i) body(task, i);
    return;
  }
  for (long i = 0; i < helpers; ++i) {
    if (!schedule(run_and_leave, loop)) loop->leave();
  }
  // The caller may be a thread of the pool: it takes part, and waits for none that has not begun.
  loop->run();
  for (long turn = 0; loop->done.load(std::memory_order_acquire) < count; ++turn)
    pause_thread(turn);
  loop->leave();
}

bool ThreadPool::schedule(void (*run)(void*), void* data) const {
  xla_ffi::ScheduleArgs args{sizeof args, nullptr, context_, run, data};
  xla_ffi::Error* error = api_->schedule(&args);
  if (error != nullptr) forget(error);
  return error == nullptr;
}

void ThreadPool::forget(xla_ffi::Error* error) const {
  xla_ffi::ErrorHandle handle{sizeof handle, nullptr, error};
  api_->destroy_error(&handle);
}

}  // namespace kernels
