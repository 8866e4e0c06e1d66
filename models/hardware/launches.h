/* The operations that the host issues for one kernel of a plan, by the kind of software that trains: launches.def. A
 * module of PyTorch is slow on the host if it is made of many small calls, however short its kernels are, so steps of
 * small models and small batches take as long as these calls (docs/accuracy.md). */
#ifndef TWS_MODELS_LAUNCHES_H
#define TWS_MODELS_LAUNCHES_H

#include "models/kernel.h"

typedef enum tws_issues {
  TWS_ISSUES_KERNELS,  /* one call for each kernel of a plan: a compiled program, and this program's own engine */
  TWS_ISSUES_MEGATRON, /* Megatron-LM's modules of 2019 to 2023, and eager modules of that time */
  TWS_ISSUES_ENGINE,   /* Megatron-Core's modules, whose layers are Transformer Engine's or its own */
  TWS_ISSUES_MODULES,  /* eager PyTorch: modules of a model's source, operation by operation */
  TWS_ISSUES_COUNT
} tws_issues;

/* Returns the number of operations that the host issues for a kernel; stores_scores: 1 if attention is not a single
 * kernel but matrix products with a softmax in between. */
double tws_issued_for_kernel(tws_issues issues, const tws_work *work, int stores_scores);
/* Returns the number of operations that the host issues to send or to receive one message between pipeline stages. */
double tws_issued_for_message(tws_issues issues);

#endif
