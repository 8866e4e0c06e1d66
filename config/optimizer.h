/* The table of optimizers (optimizers.def) as a program sees it. */
#ifndef TWS_CONFIG_OPTIMIZER_H
#define TWS_CONFIG_OPTIMIZER_H

#include <stddef.h>

/* Words for optimizer.type; several may stand for one rule. */
typedef enum tws_optimizer {
#define OPTIMIZER(id, ...) TWS_OPTIMIZER_##id,
#include "config/optimizers.def"
  TWS_OPTIMIZER_COUNT
} tws_optimizer;

/* Update rules of weights: each is a kernel of the same name. */
typedef enum tws_update_rule {
#define UPDATE_RULE(id, ...) TWS_UPDATE_##id,
#include "config/optimizers.def"
  TWS_UPDATE_COUNT
} tws_update_rule;

enum { TWS_OPTIMIZER_STATES = 4 }; /* the most that an optimizer keeps for each parameter */

typedef struct tws_optimizer_row {
  int optimizer;              /* tws_optimizer; -1: DeepSpeed has it and Twinspeed has not */
  const char *type, *aliases; /* lists are parted by | */
  const char *takes;          /* arguments in optimizer.params, in addition to lr and weight_decay */
  tws_update_rule rule;
  const char *const *state; /* what is kept for each parameter: names */
  int states;
  double beta1, beta2, epsilon;               /* where optimizer.params does not give them */
  int by_tensor;                              /* updates need whole parameters */
  int decoupled, without_zero, adapted_scale; /* traits */
} tws_optimizer_row;

const tws_optimizer_row *tws_optimizer_of(tws_optimizer optimizer);
/* The row of a word in optimizer.type, in upper or lower case; NULL: DeepSpeed takes such a class from PyTorch. */
const tws_optimizer_row *tws_optimizer_find(const char *type);
int tws_optimizer_takes(const tws_optimizer_row *row, const char *argument);
/* Types that take the argument, parted by |. */
void tws_optimizer_takers(const char *argument, char *text, size_t size);
/* Types that Twinspeed has, as a sentence has them: "A, B or C". */
void tws_optimizer_list(char *text, size_t size);

#endif
