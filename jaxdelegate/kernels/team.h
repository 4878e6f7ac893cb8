// Threads of our own for direct calls (direct.cc).

#pragma once

namespace kernels {

// Runs a task on one of `size` threads, which are created with the first task, sleep when they have
// had none for a while, and live as long as the process. `next` is zero for the first task of a loop:
// each thread gets one, and the first ones, which are awake, get theirs first. Returns false if none
// is left.
bool start_in_team(long size, long& next, void (*run)(void*), void* data);

}  // namespace kernels
