#include "thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "scratch.h"

namespace kernels {

namespace {

constexpr long kMostShares = 64;

// A thread's range of indices: the thread takes them from the front, helpers from the end. In a
// separate cache line.
struct alignas(64) Share {
  std::atomic<bool> is_claimed{false};
  std::atomic<long> left{0}, end{0};
  long begin = 0;

  bool take() { return left.fetch_sub(1, std::memory_order_relaxed) > 0; }
};

// Shared by the caller and scheduled helpers, some of which may start after the last call.
struct Loop {
  long count, shares;
  void (*body)(const void*, long);
  const void* task;
  std::atomic<long> done{0}, users;
  std::atomic<long> missing{0};  // bytes that a call failed to allocate
  Share share[kMostShares];

  Loop(long n, void (*f)(const void*, long), const void* t, long threads)
      : count(n), shares(threads), body(f), task(t), users(threads) {
    for (long i = 0; i < shares; ++i) {
      const long begin = n * i / shares, end = n * (i + 1) / shares;
      share[i].begin = begin, share[i].left = end - begin, share[i].end = end;
    }
  }

  void call(long index) {
    try {
      body(task, index);
    } catch (const OutOfMemory& error) {
      missing.store(error.bytes, std::memory_order_relaxed);
    }
    done.fetch_add(1, std::memory_order_release);
  }

  void run(long own) {
    Share& mine = share[own];
    while (mine.take()) call(mine.begin++);
    for (long i = 1; i < shares; ++i) {
      Share& other = share[(own + i) % shares];
      while (other.take()) call(other.end.fetch_sub(1, std::memory_order_relaxed) - 1);
    }
  }

  // A free share: if possible the one that this processor had in the loop before, whose data is in
  // its cache.
  long claim() {
    const long wanted = std::max(sched_getcpu(), 0);
    for (long i = 0; i < shares; ++i) {
      const long own = (wanted + i) % shares;
      if (!share[own].is_claimed.exchange(true, std::memory_order_relaxed)) return own;
    }
    return 0;  // not reached: each thread has a share
  }

  void leave() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

void run_and_leave(void* data) {
  Loop* loop = static_cast<Loop*>(data);
  loop->run(loop->claim());
  loop->leave();
}

void pause_thread(long turn) {
  constexpr long kSpins = 2000;  // about 50 microseconds
  if (turn > kSpins) {
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
  XLA_FFI_ThreadPool_NumThreads_Args args{
      .struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE,
      .ctx = context_,
      .num_threads = &count,
  };
  XLA_FFI_Error* error = api_->XLA_FFI_ThreadPool_NumThreads(&args);
  if (error == nullptr) return std::min<long>(count, kMostShares);
  discard(error);
  return 1;
}

void ThreadPool::loop(long count, void (*body)(const void*, long), const void* task) const {
  const long helpers = std::min(size(), count) - 1;
  Loop* loop = helpers < 1 ? nullptr : new (std::nothrow) Loop(count, body, task, helpers + 1);
  if (loop == nullptr) {
    for (long i = 0; i < count; ++i) body(task, i);
    return;
  }
  const long own = loop->claim();
  for (long i = 0; i < helpers; ++i) {
    if (!schedule(run_and_leave, loop)) loop->leave();
  }
  // The caller may be a thread of the pool: it runs calls, and does not wait for helpers to start.
  loop->run(own);
  for (long turn = 0; loop->done.load(std::memory_order_acquire) < count; ++turn)
    pause_thread(turn);
  const long missing = loop->missing.load(std::memory_order_relaxed);
  loop->leave();
  if (missing > 0) throw OutOfMemory{missing};
}

bool ThreadPool::schedule(void (*run)(void*), void* data) const {
  XLA_FFI_ThreadPool_Schedule_Args args{
      .struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE,
      .ctx = context_,
      .task = run,
      .data = data,
  };
  XLA_FFI_Error* error = api_->XLA_FFI_ThreadPool_Schedule(&args);
  if (error != nullptr) discard(error);
  return error == nullptr;
}

void ThreadPool::discard(XLA_FFI_Error* error) const {
  XLA_FFI_Error_Destroy_Args args{
      .struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE,
      .error = error,
  };
  api_->XLA_FFI_Error_Destroy(&args);
}

}  // namespace kernels
