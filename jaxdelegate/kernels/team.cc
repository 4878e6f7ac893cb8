#include "team.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "floating_point.h"

namespace kernels {

namespace {

// Waking a thread took about 50 microseconds on a Zen 4, as long as a small layer. Mostly the next loop
// begins sooner than this; to wait longer only takes time from others.
constexpr int64_t kMostNanoseconds = 200'000;
constexpr int kPauses = 64;  // between two looks at the clock
constexpr long kMostThreads = 63;  // a loop has at most 64 shares (thread_pool.cc)

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

void pause_thread() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A thread and its next task: while it runs one, it can be given another.
class alignas(64) Worker {
 public:
  // Any thread may call it; false: it has a next task.
  bool give(void (*run)(void*), void* data) {
    int expected = kFree;
    if (!state_.compare_exchange_strong(expected, kTaken)) return false;
    run_ = run, data_ = data;
    state_ = kReady;
    if (sleeps_) {
      const std::lock_guard<std::mutex> guard(lock_);
      woken_.notify_one();
    }
    return true;
  }

  [[noreturn]] void serve() {
    pthread_setname_np(pthread_self(), "jaxdelegate");
    const FloatingPointState state;
    while (true) {
      if (!waited_busily()) sleep();
      const auto run = run_;
      const auto data = data_;
      state_ = kFree;
      run(data);
    }
  }

 private:
  enum { kFree, kTaken, kReady };

  bool is_ready() const { return state_ == kReady; }

  bool waited_busily() const {
    const int64_t end = now() + kMostNanoseconds;
    do {
      for (int i = 0; i < kPauses; ++i) {
        if (is_ready()) return true;
        pause_thread();
      }
    } while (now() < end);
    return false;
  }

  void sleep() {
    std::unique_lock<std::mutex> guard(lock_);
    sleeps_ = true;
    woken_.wait(guard, [this] { return is_ready(); });
    sleeps_ = false;
  }

  std::atomic<int> state_{kFree};
  std::atomic<bool> sleeps_{false};
  void (*run_)(void*) = nullptr;
  void* data_ = nullptr;
  std::mutex lock_;
  std::condition_variable woken_;
};

class Team {
 public:
  explicit Team(long size) {
    workers_.reserve(size);  // a thread that has started keeps its worker
    // Signals are for the threads of the program that we are part of.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (long i = 0; i < size; ++i) {
        auto worker = std::make_unique<Worker>();
        std::thread([worker = worker.get()] { worker->serve(); }).detach();
        workers_.push_back(std::move(worker));
      }
    } catch (const std::system_error&) {  // the system has no more threads
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool start(long& next, void (*run)(void*), void* data) {
    while (next < static_cast<long>(workers_.size()))
      if (workers_[next++]->give(run, data)) return true;
    return false;
  }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace

bool start_in_team(long size, long& next, void (*run)(void*), void* data) {
  // Never deleted: its threads never end.
  static Team* const kTeam = new Team(std::min(size, kMostThreads));
  return kTeam->start(next, run, data);
}

}  // namespace kernels
