/* Muon (Jordan et al. 2024): the update of a matrix is its momentum, orthogonalized by Newton-Schulz iterations. */
#ifndef TWS_PLAN_MUON_H
#define TWS_PLAN_MUON_H

#include "plan/lower.h"

/* Buffers of an orthogonalization, all float32: X, the matrix; Y, a second one of its size; from SQUARE on, four square
 * matrices with the matrix's smaller side. */
enum { TWS_MUON_X, TWS_MUON_Y, TWS_MUON_SQUARE, TWS_MUON_BUFFERS = TWS_MUON_SQUARE + 4 };
enum { TWS_MUON_MOST_OPERATIONS = 48 };

typedef struct tws_muon_operation {
  tws_work work;
  int operand[3], operands; /* buffers in the order of the kernel's operands */
} tws_muon_operation;

/* Lists the operations of five iterations that orthogonalize a matrix of rows x columns and multiply it by sqrt(max(1,
 * rows / columns)), as DeepSpeed does. Matrix and result are in TWS_MUON_X. Returns the number of operations. */
int tws_muon_orthogonalize(int64_t rows, int64_t columns, tws_muon_method method,
                           tws_muon_operation list[TWS_MUON_MOST_OPERATIONS]);

/* Emits the momentum and the orthogonalization of all matrices of a ZeRO class, and calls `update` with each part of a
 * matrix that this rank updates. at: index of the part's first element in the flat order. Every rank of the ZeRO class
 * calls this function, since a matrix that is partitioned is gathered on the ranks that orthogonalize it. */
typedef void (*tws_muon_update)(tws_lower *l, const tws_zero_class *c, uint64_t at, tws_operand change);
void tws_muon_lower(tws_lower *l, const tws_zero_class *c, tws_muon_update update);

#endif
