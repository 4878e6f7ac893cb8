// Products of matrices, a block of rows at a time.

#pragma once

#include "kernels.h"

namespace kernels {

// The right matrix, in panels of [depth, columns], and what becomes of a product with it.
template <class E>
struct Matrix {
  const typename E::Weight* weights;
  long depth, columns;
  const typename E::Sum* bias;  // [columns], of integers as many as the panels have
  typename E::Value* y;         // [rows, stride]
  typename E::Epilogue epilogue;
  const Finish* finish = nullptr;  // after the epilogue; null: there is none
  long stride = columns;           // of y, from one row to the next
  long offset = 0;                 // of the first column in a row of y
};

// A part of the left matrix: `count` rows from `row` on, columns [from, to) of the depth. Values of
// a row lie in so many runs, each a part of the depth: `length` of them, then what meets zeros.
template <class E>
struct Block {
  long row, count, from, to;
  const typename E::Operand* a;
  long stride;
  long runs, run_stride, length;
  bool is_broadcast =
      false;  // there is an operand for each column of a panel, of which there is one
};

// Adds up a block times panels [first, last). Blocks of the same rows follow each other from the
// first part of the depth, which begins with the bias, to the last, which ends as the matrix says.
// Those of integers hold the whole depth.
template <class E>
void multiply(const InstructionSet&, const Matrix<E>&, const Block<E>&, long first, long last);

// The work of threads: tasks of some rows times some panels. Tasks that follow each other share
// what is larger, their panels or their rows: a thread that takes them in order reads it once.
struct Tasks {
  long rows, panels, rows_of_task, panels_of_task, row_tasks, panel_tasks;
  bool shares_panels;

  struct Task {
    long begin, end, first, last;  // rows [begin, end), panels [first, last)
  };

  long count() const { return row_tasks * panel_tasks; }
  Task at(long index) const;
};

// For a product of [rows, depth] x [depth, columns], of which a thread takes `task_products` at
// least. copies_rows: a task lays out its rows first, so that few are to have the same ones.
Tasks divide(long rows, long depth, long columns, long threads, double task_products,
             bool copies_rows);

}  // namespace kernels
