// Threads of our own for direct calls (direct.cc).

#pragma once

namespace kernels {

// Runs a task on one of `size` threads, which are created with the first task, sleep when they have
// had none for a while, and live as long as the process. Returns false if none is free.
bool start_in_team(long size, void (*run)(void*), void* data);

}  // namespace kernels
