/* The end of a step where streams run beside the one that computes and ranks differ, as with the optimizer on the host:
 * operation by operation, of all ranks at once, along the run order (plan/run_order.h). What the passes leave stands
 * before it as operations of each rank: what has computed, the messages, what was reduced, copied to the host and
 * from there, and added up there, the gradients of each reduction that runs beside the last pass. Internal to
 * estimators/. */
#ifndef TWS_ESTIMATORS_END_RUN_H
#define TWS_ESTIMATORS_END_RUN_H

#include "estimators/composer.h"
#include "estimators/rhythm.h"
#include "plan/run_order.h"

typedef struct tws_end_rank { /* the end of one rank's step */
  tws_plan *plan;
  tws_piece_time *times; /* per work; of what stands before the end's own: nothing */
  uint32_t first;        /* of the sample's operations: those before it are not the end's own, */
  uint32_t updated;      /* and those then before this one are done by the host when the step begins, */
  double updating_s;     /* for so long */
  uint32_t reductions;   /* that run beside the last pass */
} tws_end_rank;
/* Takes the sample's plan, an ordered tail's, in the place of the one that *out has. plan NULL there: other operations
 * of the step decide, so that it is not known. */
tws_code tws_end_rank_take(tws_plan_sample *sample, const tws_costs *costs, tws_end_rank *out, tws_error *err);
void tws_end_rank_free(tws_end_rank *rank);
/* Of such a sample: how long copies to the host, and what is done with them there, take behind each of `count`
 * reductions, which they wait for. 0: other operations come between. */
int tws_end_copies(const tws_plan_sample *sample, const tws_costs *costs, uint32_t count, double *seconds);

typedef struct tws_end_start { /* of a rank: when its passes have computed, and sent */
  double computed_s, messages_s, stretch;
  /* of stages 2 and 3: when all was reduced, copied to the host, and from there, and added up there */
  double reduced_s, copied_s, brought_s, hosted_s;
  /* of each reduction's gradients: none before that of the one before; NULL: there are none */
  const double *complete_s;
} tws_end_start;

typedef struct tws_end_run {
  tws_end_rank *ranks; /* [line][stage] */
  int count;
  tws_run *run; /* NULL: it is not known */
  double **seconds;
  size_t bytes; /* of memory, about */
  struct tws_end_run *next;
} tws_end_run;
/* Takes the ranks, whose array is its own. */
tws_code tws_end_run_create(tws_end_rank *ranks, int count, tws_end_run **out, tws_error *err);
void tws_end_run_destroy(tws_end_run *run); /* NULL is allowed */
/* When each rank has done all, but for its messages: ended_s. */
void tws_end_run_go(tws_end_run *run, const tws_end_start *starts, double *ended_s);
/* Whether what a rank computes first waits for what the host added up of the passes, once it has gone. */
int tws_end_run_waits_for_host(const tws_end_run *run, int rank);
/* Of a rank, once it has gone; stage: what of its messages it waited for goes there. */
tws_code tws_end_run_account(const tws_end_run *run, int rank, tws_rhythm_stage *stage, tws_composed_account *account,
                             tws_error *err);

#endif
