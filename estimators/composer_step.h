/* A step under composition, and what a composer keeps of others. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_COMPOSER_STEP_H
#define TWS_ESTIMATORS_COMPOSER_STEP_H

#include "estimators/beside.h"
#include "estimators/composer.h"
#include "estimators/composer_beside.h"
#include "estimators/ends.h"
#include "estimators/overlap.h"
#include "estimators/rank_kinds.h"
#include "estimators/rhythm.h"

typedef struct tws_kept_programs {
  tws_pipeline_shape shape;
  tws_pipeline_program *stage;
  struct tws_kept_programs *next;
} tws_kept_programs;

typedef struct tws_kept_fewer { /* of a network */
  const tws_network *network;
  int alike_first, alike_end;
  tws_fewer_layers layers;
  struct tws_kept_fewer *next;
} tws_kept_fewer;

typedef struct tws_leg { /* a message from a stage to one of its peers, and what it takes */
  int peer;
  uint64_t bytes;
  double seconds;
} tws_leg;
enum { TWS_LEGS = 16 };

typedef struct tws_chunk_set { /* of a line of ranks (tws_rank_kind) */
  int rank;                    /* of the first stage */
  tws_composed_chunk *chunks;  /* those that differ */
  int chunk_count;
  tws_body **body_of; /* per chunk */
  int *chunk_at;      /* [stage][virtual]: which */
  int exact, closed, in_order;
} tws_chunk_set;

typedef struct tws_ended_line {                    /* of ranks, without a pipeline: its passes have ended */
  double behind_s;                                 /* for so long something goes on beside then */
  double reduced_s, copied_s, brought_s, hosted_s; /* see tws_end_start */
  tws_timed_op *reduced;                           /* beside the last backward pass, in their order; NULL: none is */
  tws_timed_op *gathered;                          /* beside the update: room for as many as are */
  double *complete_s;                              /* of each reduction: when its gradients were complete */
  /* In the account: what it waited for when its passes had computed, by what ended last, or by what the host did then.
   * One that goes on waiting for the host waits for that all the time. */
  tws_composed_account gap[2];
  double passed_s; /* to work with: what its end has computed, and how many reductions it has waited for */
  int waited;
} tws_ended_line;

/* The last step: those that differ in their ends alone go on from it. */
typedef struct tws_composed_step {
  struct tws_composer *c;
  const tws_plan_request *request;
  const tws_step_ends *tails;
  tws_body *body;
  tws_pipeline_shape shape;
  tws_topology topology;
  int bounded;
  tws_chunk_set *lines; /* of all that pass apart; else the first */
  int line_count;
  /* longest: the line that takes nowhere less than others, or -1; known where longest_of is not NULL, at the stretch
   * that was found last. busiest: that which does most, of which ends. */
  const tws_step_ends *longest_of, *busiest_of;
  int longest, busiest;
  int line, rank; /* the others wait for its ranks, of which this is of the first stage; its chunks: */
  tws_composed_chunk *chunks;
  int chunk_count;
  int *chunk_at;
  tws_body *body_of_chunks;    /* of the first */
  const tws_step_ends *joined; /* tails, of all lines */
  double *stretch, *stretched; /* per stage: of this step, and of the times that were made */
  tws_rhythm_stage *stages;
  double *end_s[2];    /* per (line and) stage: when its streams are done before its tail */
  double *passed_s[2]; /* likewise, of times_of micro-batches */
  int *at, *met;
  tws_arena *arena;
  int chunks_exact, chunks_closed, chunks_in_order;
  int64_t bytes_of; /* micro-batches that stages' peaks are of; 0: not known */
  int64_t times_of; /* those that stages' times are of, after which they repeat themselves; 0: not known */
  int repeats;      /* likewise: each so many micro-batches, in so many seconds */
  double repeats_s;
  int has_times, ran, exact;
  tws_end_run *run;             /* of all ranks' ends; NULL: there is none, or nobody asks (tws_compose_limits) */
  int passes_known, line_known; /* what its line does alone: there, in all of the step */
  const tws_rank_kind *ranks;
  int together;                /* lines of these that go through the step at once, and meet; 0: one stands for all */
  tws_rhythm_stage *of_lines;  /* then: [line][stage], as `stages`; so are end_s and passed_s */
  double *stretched_lines;     /* likewise: of the times that were made */
  int *line_at, *line_joined;  /* [line][stage]: to work with */
  tws_end_start *end_starts;   /* likewise */
  double *line_ended_s;        /* likewise */
  tws_ended_line *ended_lines; /* without a pipeline, per line */
  tws_arena *ends_arena;       /* of these */
  const tws_step_ends *walked; /* that these are of */
  tws_line_groups groups;
  const tws_step_ends *together_of; /* of which ends it is known whether lines can */
  int can_together;
  tws_body_overlap *overlap; /* of these, too; NULL: there are no reductions beside, or they are not known */
  tws_body_beside *beside;   /* stages 2 and 3: what runs beside the layers; NULL: nothing, or it is not known */
  int moves_exact;           /* of the ends that are looked at: what ZeRO does is known, and done one after another */
} tws_composed_step;

struct tws_composer {
  const tws_machine *machine;
  tws_costs costs;
  tws_arena *arena;
  tws_piece_table bodies, repeats, between; /* repeats: of bodies, without the size of micro-batches */
  tws_ends ends;
  tws_kept_programs *programs;
  size_t program_bytes;
  tws_arena *program_arena;
  tws_rank_kind *ranks;
  tws_kept_fewer *fewer;
  tws_sample_memory *memory;
  tws_rhythm_orders *orders; /* of pipelines */
  tws_beside_memory *beside;
  tws_leg *legs; /* [stage][TWS_LEGS] of the last step's topology: that were asked for */
  size_t leg_capacity;
  int legs_of; /* tws_composed_step.rank */
  tws_composed_step last;
  double *ended, *met_s; /* room for times of reductions, and of meetings of stages */
  size_t ended_capacity, met_capacity;
  tws_step_ends joined; /* of the last step, with room for stages, their steps, and the stretch of each line's */
  tws_tail_step *joined_steps;
  double *line_stretch;
  size_t joined_capacity, joined_step_capacity, line_stretch_capacity;
  tws_composer_counts counts;
};

/* tws_plan_host_stretch(), of a stage. */
double tws_step_stretch(const tws_composed_step *s, const tws_chunk_set *of, const tws_tail_pieces *t, int stage);

/* ---- bytes (composer_bytes.c) ---- */

/* Of the fullest stage, with what its passes are known to have alive. */
void tws_step_bytes_of(const tws_composed_step *s, tws_composed *out);
/* Finds what passes have alive, unless a bound of that is more than `limit` (0: there is none). */
tws_code tws_step_find_bytes(tws_composed_step *s, double limit, tws_composed *out, tws_error *err);

/* ---- ranks that differ (composer_ranks.c) ---- */

/* The chunks of a line of ranks become the step's. */
void tws_step_take_line(tws_composed_step *s, const tws_rank_kind *ranks, int line);
/* How much the kernels of each line's stages are stretched; whether that is as it was. */
int tws_step_find_stretch(tws_composed_step *s, const tws_rank_kind *ranks);
/* Finds the line that the others wait for in the passes, where something may be known of it; *met: there is one. */
tws_code tws_step_meet(tws_composed_step *s, const tws_rank_kind *ranks, int known, int *met, tws_error *err);
/* Its ends become the step's, with those of the others; 0: who waits for whom there is not known. */
int tws_step_join(tws_composed_step *s, const tws_rank_kind *ranks);
/* The step becomes that of the line that has most to do, without the others: a bound. */
tws_code tws_step_bound(tws_composed_step *s, const tws_rank_kind *ranks, tws_error *err);

/* Of a line: its chunks, a stage's end, how much each of its stages' kernels are stretched. */
const tws_chunk_set *tws_step_line_chunks(const tws_composed_step *s, const tws_rank_kind *ranks, int line);
const tws_tail_pieces *tws_step_line_tail(const tws_composed_step *s, int stage, int line);
const double *tws_step_line_stretch(const tws_composed_step *s, int line);

/* ---- lines of ranks that wait for each other (composer_lines.c, composer_ends.c) ---- */

/* Lines that go through the passes apart; 0: all pass alike, as one does. */
static inline int tws_step_passing(const tws_composed_step *s) {
  return s->together && (s->ranks->pass_apart || s->shape.stages == 1) ? s->together : 0;
}
/* Which lines meet along these axes joins the step's groups; 0: they may be of several stages, or there are too many
 * kinds. */
int tws_step_add_groups(tws_composed_step *s, const tws_rank_kind *ranks, tws_axes axes);
/* Whether all are known well enough to go through the step together; their stretch has been found. */
int tws_step_can_go_together(tws_composed_step *s, const tws_rank_kind *ranks);
/* What they take, at their stretch, of a step whose lines go together. */
tws_code tws_step_make_lines(tws_composed_step *s, const tws_rank_kind *ranks, tws_error *err);
/* Updated parameters that are gathered beside the update, and not between the last steps of the end. */
static inline int tws_gathers_beside(const tws_tail_pieces *t) {
  return (t->in_step || t->overlaps) && !t->between ? t->gather_count : 0;
}
/* The ends of all, behind their passes: when the last is done; -1: they wait for each other. account: of the stages of
 * the step's line, added to; NULL: nobody asks. */
tws_code tws_step_end_lines(tws_composed_step *s, tws_composed_account *account, double *ended_s, tws_error *err);

/* ---- the same without a pipeline (composer_beside.c) ---- */

/* Whether it is known what each comes to in its passes, and whom it meets there. */
int tws_step_knows_lines(tws_composed_step *s, const tws_rank_kind *ranks);
/* Their passes: when each has ended, and what goes on beside then. account: of the step's line, added to; NULL: nobody
 * asks. They cannot go together any more (can_together) where each waits for another. */
tws_code tws_step_walk_lines(tws_composed_step *s, tws_composed_account *account, tws_error *err);

/* ---- passes of pipelines (composer_passes.c) ---- */

/* What the chunks of a set take at these stages' stretch; apart: see tws_chunk_times_of(). */
tws_code tws_step_make_stages(tws_composed_step *s, const tws_chunk_set *set, const double *stretch, int apart,
                              tws_rhythm_stage *stages, tws_error *err);

/* What chunks take at each stage's stretch. */
tws_code tws_step_make_times(tws_composed_step *s, tws_error *err);
/* The rhythm of so many of its micro-batches, of all lines where they go together; `shape` is of these, and outlives
 * it. */
tws_code tws_step_rhythm(tws_composed_step *s, int64_t micro_batches, tws_pipeline_shape *shape, tws_rhythm *r,
                         tws_error *err);
/* Alive in the forward and backward passes of a job without a pipeline, and when they end. */
void tws_step_run_alone(tws_composed_step *s);
/* As many micro-batches as show what all others do: until all that are in flight have been followed by as many. */
int64_t tws_step_few(const tws_pipeline_shape *shape);
/* Where the rhythm ended is where the passes of all micro-batches do. */
void tws_step_passed(tws_composed_step *s);
/* All micro-batches, or as many as say what the others add. */
tws_code tws_step_run_passes(tws_composed_step *s, tws_error *err);

#endif
