// Products of matrices, a block of rows at a time.

#pragma once

#include "kernels.h"

namespace kernels {

inline long ceil_div(long a, long b) { return (a + b - 1) / b; }

// The right matrix, in panels of [depth, columns], and what becomes of a product with it.
struct Matrix {
  const float* weights;
  long depth, columns;
  const float* bias;  // [columns]
  float* y;           // [rows, columns]
  Range range;
};

// A part of the left matrix: `count` rows from `row` on, columns [from, to) of the depth. Values of
// a row lie in so many runs, each a part of the depth.
struct Block {
  long row, count, from, to;
  const float* a;
  long stride;
  long runs = 1, run_stride = 0;
};

// Adds up a block times panels [first, last). Blocks of the same rows follow each other from the
// first part of the depth, which begins with the bias, to the last, which clamps.
void multiply(const InstructionSet&, const Matrix&, const Block&, long first, long last);

// The work of threads: tasks of some rows times some panels, the panels of the same rows in order.
struct Tasks {
  long rows_of_task, panels_of_task, row_tasks, panel_tasks;

  long count() const { return row_tasks * panel_tasks; }
};

// For a product of [rows, depth] x [depth, columns].
Tasks divide(long rows, long depth, long columns, long threads);

}  // namespace kernels
