/* Muon (Jordan et al. 2024): the change of a matrix is its momentum, made orthogonal by Newton-Schulz iterations. */
#ifndef TWS_PLAN_MUON_H
#define TWS_PLAN_MUON_H

#include "plan/lower.h"

/* Operands of the operations of an orthogonalization, all float32: the matrix and a second one of its size, and four
 * squares of its smaller side. */
enum { TWS_MUON_X, TWS_MUON_Y, TWS_MUON_SQUARE, TWS_MUON_BUFFERS = TWS_MUON_SQUARE + 4 };
enum { TWS_MUON_MOST_OPERATIONS = 48 };

typedef struct tws_muon_operation {
  tws_work work;
  int operand[3], operands; /* buffers in the order of the kernel's operands */
} tws_muon_operation;

/* Lists the operations that make a matrix of rows x columns orthogonal, times sqrt(max(1, rows / columns)), as
 * DeepSpeed has it; five iterations. Matrix and result are in TWS_MUON_X. Returns the number of operations. */
int tws_muon_orthogonalize(int64_t rows, int64_t columns, tws_muon_method method,
                           tws_muon_operation list[TWS_MUON_MOST_OPERATIONS]);

/* Emits the momentum and the orthogonalization of all matrices of a ZeRO class, and calls `update` with each part of a
 * matrix that this rank updates. at: index of the part's first element in the flat order. Every rank of the ZeRO class
 * calls this function, since a matrix that is partitioned is gathered on the ranks that make it orthogonal. */
typedef void (*tws_muon_update)(tws_lower *l, const tws_zero_class *c, uint64_t at, tws_operand change);
void tws_muon_lower(tws_lower *l, const tws_zero_class *c, tws_muon_update update);

#endif
