/* Defines the table of optimizers (optimizers.def) and functions that search it. */
#ifndef TWS_CONFIG_OPTIMIZER_H
#define TWS_CONFIG_OPTIMIZER_H

#include <stddef.h>

/* Optimizers, by the word in optimizer.type; several may use one update rule. */
typedef enum tws_optimizer {
#define OPTIMIZER(id, ...) TWS_OPTIMIZER_##id,
#include "config/optimizers.def"
  TWS_OPTIMIZER_COUNT
} tws_optimizer;

/* Update rules of weights; each is a kernel of the same name. */
typedef enum tws_update_rule {
#define UPDATE_RULE(id, ...) TWS_UPDATE_##id,
#define FACTORED_RULE(id) TWS_UPDATE_##id,
#include "config/optimizers.def"
  TWS_UPDATE_COUNT
} tws_update_rule;

/* The kinds of training steps that an optimizer has (plan/phases.h). */
typedef enum tws_optimizer_phases {
  TWS_PHASES_ONE,      /* all steps are equal */
  TWS_PHASES_FROZEN,   /* after freeze_step the second moments are fixed, and signs of the momentum are communicated */
  /* as FROZEN, but the signs of all parameters share one scale, for which a program between the phases computes
   * factors */
  TWS_PHASES_SCALED,
  /* second moments change at growing intervals; from a later step on weights are also averaged at growing intervals */
  TWS_PHASES_INTERVALS
} tws_optimizer_phases;

enum { TWS_OPTIMIZER_STATES = 4 }; /* largest number of state tensors per parameter */

typedef struct tws_optimizer_row {
  int optimizer;              /* tws_optimizer; -1: DeepSpeed has this optimizer, but Twinspeed does not */
  const char *type, *aliases; /* aliases: other names, with | between them */
  const char *takes;          /* arguments in optimizer.params, separated by |, in addition to lr and weight_decay */
  tws_update_rule rule;
  const char *const *state; /* names of the state tensors of each parameter */
  int states;
  double beta1, beta2, epsilon, momentum;     /* defaults if optimizer.params does not give them */
  int matrices;                               /* 1: matrices of layers are updated by the rule MUON (plan/muon.c) */
  int factored;                               /* 1: second moments of rows and columns (plan/adafactor.c) */
  int eight_bits; /* 1: states of large tensors are codes of 8 bits (plan/eight_bit.c) */
  int paged;      /* 1: states of tensors are in memory that the device and the host share, as in bitsandbytes */
  int by_tensor;                              /* 1: an update needs the norms of complete parameters */
  int decoupled, without_zero, adapted_scale; /* traits */
  tws_optimizer_phases phases;                /* trait */
} tws_optimizer_row;

const tws_optimizer_row *tws_optimizer_of(tws_optimizer optimizer);
/* Returns the row of an optimizer.type, ignoring case, or NULL if the type is unknown (DeepSpeed then looks for it in
 * PyTorch). */
const tws_optimizer_row *tws_optimizer_find(const char *type);
int tws_optimizer_has_argument(const tws_optimizer_row *row, const char *argument);
/* Writes the types that take the argument, separated by |, into `text`. */
void tws_optimizer_types_with_argument(const char *argument, char *text, size_t size);
/* Writes the types that Twinspeed supports into `text`, as in "A, B or C". */
void tws_optimizer_list(char *text, size_t size);

#endif
