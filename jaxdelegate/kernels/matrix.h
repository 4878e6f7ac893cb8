// Products of matrices, a block of rows at a time.

#pragma once

#include "kernels.h"

namespace kernels {

// The right matrix, in panels of [depth, columns], and the destination of a product with it.
template <class E>
struct Matrix {
  const typename E::Weight* weights;
  long depth, columns;
  const typename E::Sum* bias;  // [columns]; of integers, padded to whole panels
  typename E::Value* y;         // [rows, stride]
  typename E::Epilogue epilogue;
  const Finish* finish = nullptr;  // after the epilogue, or null
  long stride = columns;           // between rows of y
  long offset = 0;                 // of the first column in a row of y
  long panel_stride = depth * kPanel;  // between panels
};

// A part of the left matrix: `count` rows from `row`, columns [from, to) of the depth. A row is
// stored in `runs`, each a part of the depth: `length` values, then padding whose weights are zero.
template <class E>
struct Block {
  long row, count, from, to;
  const typename E::Operand* a;
  long stride;  // between rows
  long runs = 1, run_stride = 0, length = to - from;
  bool is_broadcast = false;  // an operand for each column of the only panel
};

// Adds the product of a block and panels [first, last). Blocks of the same rows are processed from
// the first part of the depth, which starts with the bias, to the last, which ends with the matrix's
// epilogue. Blocks of integers contain the whole depth.
template <class E>
void multiply(const InstructionSet&, const Matrix<E>&, const Block<E>&, long first, long last);

// Panels of [depth, columns] from values[row][column]; rows of `values` are `stride` floats apart.
void pack_rows(const float* values, long stride, long depth, long columns, float* panels);

// Panels of [depth, columns] from values[column][row]; columns of `values` are `stride` floats apart.
// Up to kPackedRows rows of kPanel floats after them are overwritten.
constexpr long kPackedRows = 8;
void pack_columns(const InstructionSet&, const float* values, long stride, long depth, long columns,
                  float* panels);

// The tasks of threads: some rows times some panels. Adjacent tasks share the larger of panels and
// rows, so that a thread that runs them in order reads it once.
struct Tasks {
  long rows, panels, rows_of_task, panels_of_task, row_tasks, panel_tasks;
  bool shares_panels;

  struct Task {
    long begin, end, first, last;  // rows [begin, end), panels [first, last)
  };

  long count() const { return row_tasks * panel_tasks; }
  Task at(long index) const;
};

// For a product of [rows, depth] x [depth, columns] with at least `task_products` per task.
// copies_rows: a task copies its rows first, so few tasks should have the same ones.
Tasks divide(long rows, long depth, long columns, long threads, double task_products,
             bool copies_rows);

}  // namespace kernels
