/* Steps composed from layers, for searches: what a plan would say, in microseconds and without the plan.
 *
 * A chunk of alike layers is its first, its last and so many of those between; each is lowered once by the passes of
 * plan/ (plan/sample.h), as are the ends of steps. Stages then meet in the order of their schedule. What changes
 * neither operations nor costs is no part of the key under which pieces are kept.
 *
 * The step's time is the plan's whatever the pipeline, the ZeRO stage and what runs beside the layers for it, what
 * tensor ranks or rings exchange, and with the optimizer, parameters or both on the host (docs/tuning.md lists what is
 * not exact). One rank stands for its stage. Where several count that differ (parts of a sequence; tensor ranks at
 * stage 3; all, where groups lie unevenly on nodes), a line of them, one of each stage, is nowhere quicker than another
 * (estimators/composer_ranks.c); or all lines go through the step together (estimators/composer_lines.c, _beside.c,
 * _ends.c, end_run.c). Elsewhere it is a lower bound, and so are bytes of rings and where gathered parameters and
 * buckets are left out. A search that ranks by bounds and plans what leads finds what plans alone would find. */
#ifndef TWS_ESTIMATORS_COMPOSER_H
#define TWS_ESTIMATORS_COMPOSER_H

#include "estimators/estimators.h"
#include "estimators/pieces.h"

typedef struct tws_composer tws_composer;

typedef struct tws_composed {
  int exact;       /* step_s is the plan's; else no more than it */
  int bytes_exact; /* live_bytes are the plan's; else no more than them */
  int too_large;   /* more than the limit; live_bytes are then a lower bound, and step_s was not looked for */
  int too_slow;    /* likewise of step_s, which is then a lower bound */
  int hasty;       /* it is a bound because limits.hasty was set, or may be */
  int rank;        /* of the first stage: of those whose steps differ the one that the others wait for */
  double step_s;
  uint64_t live_bytes; /* of the fullest stage's device */
  uint64_t host_bytes; /* of the state, pinned or not, of the stage that has most of them */
  uint64_t disk_bytes; /* likewise */
} tws_composed;

typedef struct tws_composer_counts {
  int64_t composed, bodies, tails, rhythms; /* steps; what was lowered; pipelines that were gone through */
} tws_composer_counts;

/* Costs of the machine, which outlives the composer; or others of the same machine's ranks (for tests). */
tws_code tws_composer_create(const tws_machine *machine, const tws_costs *others, tws_composer **out, tws_error *err);
void tws_composer_destroy(tws_composer *composer);
/* What is not worth an exact answer; 0: everything is. hasty: nor is what takes going through the operations of all
 * ranks one by one (estimators/end_run.h), some thirty times as long as other steps do. */
typedef struct tws_compose_limits {
  double bytes, seconds;
  int hasty;
} tws_compose_limits;
/* Of a training step with all its micro-batches. Errors: those of the plan. The request's network and partition have to
 * outlive the composer. Requests that differ in what the end of a step does alone are quickest one after another. */
tws_code tws_compose(tws_composer *composer, const tws_plan_request *request, const tws_compose_limits *limits,
                     tws_composed *out, tws_error *err);
/* Where the time of one stage's rank goes, as tws_path_result has it. */
typedef struct tws_composed_account {
  double bubble_s, axis_exposed_s[TWS_REPORT_COUNT];
} tws_composed_account;
/* Of the step that was composed last, whose request and its configuration are still there; of each stage the rank that
 * is in line with tws_composed.rank. TWS_UNSUPPORTED where its time was a bound. All its micro-batches are gone
 * through. */
tws_code tws_compose_account(tws_composer *composer, tws_composed_account *stages, tws_error *err);
tws_composer_counts tws_composer_count(const tws_composer *composer);
/* What the pieces that it keeps have of memory, which only grows. */
size_t tws_composer_bytes(const tws_composer *composer);

#endif
