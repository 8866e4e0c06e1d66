/* Report of one step of a training, real or emulated: one struct, filled by real/step_report.c and the driver of the
 * step, and read by all outputs: the printed table, --csv, and the sinks of traces/monitor.h. */
#ifndef TWS_TRACES_STEP_REPORT_H
#define TWS_TRACES_STEP_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "models/kernel.h"

/* Seconds in which at least one operation of a phase ran, on one rank, by the times of the plan's operations. */
typedef struct tws_phase_seconds {
  double forward, backward; /* backward: with recomputation and gradient reductions */
  double backward_inner;    /* backward without gradient reductions */
  double reduction;         /* gradient reductions over the data-parallel ranks */
  double step;              /* the optimizer */
} tws_phase_seconds;

typedef struct tws_step_report {
  int64_t step;    /* 1-based optimizer step */
  int64_t samples; /* of all ranks, since the beginning of the training */
  double at_s;     /* when the step ended, in seconds since 1970; in an emulation, the start of the program plus
                      virtual seconds */
  double loss, lr, gradient_norm;
  double head_loss[TWS_LOSS_HEADS];     /* of a network with several losses: each of them, in the network's order */
  int losses;                           /* their number; 0: there is one loss */
  double auxiliary_loss, dropped_share; /* of routers (TWS_METRIC_AUXILIARY, TWS_METRIC_DROPPED); 0 without experts */
  double hottest_share;                 /* routes of a layer's most loaded expert over the mean; 0 without experts */
  int has_experts;
  double seconds, tokens_per_s, samples_per_s;
  double model_flops_per_s;      /* of the whole job: without recomputation */
  double mfu;                    /* that over the peak of all devices; 0: the peak is not known */
  double loss_scale, next_scale; /* of this step and the next; 1 without fp16 */
  int has_scale;                 /* fp16 */
  int skipped;                   /* the loss or a gradient overflowed: no weight changed */
  int evaluated;                 /* 1: an evaluation followed this step, with the next two values */
  double eval_loss, eval_seconds;
  double data_wait_s; /* until the inputs were ready */
  double save_wait_s; /* that training waited for checkpoints since the previous step */
  int is_timed;       /* 1 with wall_clock_breakdown: then `phase` is that of rank 0 */
  tws_phase_seconds phase;
  uint64_t memory_bytes[TWS_TIER_COUNT]; /* of rank 0's arenas */
} tws_step_report;

/* Indices of the numbers that sinks write, in the order of traces/step_values.def. */
enum tws_step_value_index {
#define X(identifier, tag, name, value, known, help) TWS_STEP_##identifier,
#include "traces/step_values.def"
#undef X
  TWS_STEP_VALUE_COUNT
};

typedef struct tws_step_value_row {
  const char *tag;  /* tag of TensorBoard; DeepSpeed's where its monitors have it: "Train/Samples/lr" */
  const char *name; /* name in JSON, and in Prometheus after "twinspeed_" */
  const char *help;
} tws_step_value_row;
const tws_step_value_row *tws_step_value_of(int index);

/* Returns 1 and the value, or 0 where it is unknown for this step. */
int tws_step_value(const tws_step_report *report, int index, double *value);

/* Formats a number with at most 9 digits unless it is whole: "nan", "inf" and "-inf" as they are. Returns its
 * length. */
enum { TWS_STEP_TEXT_SIZE = 32 };
/* The same in the spelling of Python's JSON: NaN, Infinity and -Infinity. Returns the text or a constant. */
const char *tws_step_value_python(double value, char text[TWS_STEP_TEXT_SIZE]);
int tws_step_value_text(double value, char text[TWS_STEP_TEXT_SIZE]);

#endif
