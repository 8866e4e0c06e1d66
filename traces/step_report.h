/* What is known of one step of a training, real or emulated: one struct, filled in one place (real/step_report.c and
 * who drives the step) and read by all who report it: the printed table, --csv, and the sinks of traces/monitor.h. */
#ifndef TWS_TRACES_STEP_REPORT_H
#define TWS_TRACES_STEP_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "models/kernel.h"

/* Seconds in which at least one operation of a kind ran, on one rank, by the times of the plan's operations. */
typedef struct tws_phase_seconds {
  double forward, backward; /* backward: with recomputation and with what it reduces */
  double backward_inner;    /* backward without reductions of gradients */
  double reduction;         /* reductions of gradients over the copies of the model */
  double step;              /* the optimizer */
} tws_phase_seconds;

typedef struct tws_step_report {
  int64_t step;    /* 1-based optimizer step */
  int64_t samples; /* of all ranks, since the beginning of the training */
  double at_s; /* when it ended, in seconds since 1970; of an emulation the start of the program and virtual seconds */
  double loss, lr, gradient_norm;
  double head_loss[TWS_LOSS_HEADS];     /* of several losses: each of them, as the network has them */
  int losses;                           /* how many these are; 0: there is one loss */
  double auxiliary_loss, dropped_share; /* of routers (TWS_METRIC_AUXILIARY, TWS_METRIC_DROPPED); 0 without experts */
  double hottest_share; /* routes of the expert that got most of its layer's, over an even share; 0 without experts */
  int has_experts;
  double seconds, tokens_per_s, samples_per_s;
  double model_flops_per_s;      /* of the whole job: without recomputation */
  double mfu;                    /* that over the peak of all devices; 0: the peak is not known */
  double loss_scale, next_scale; /* of this step and the next; 1 without fp16 */
  int has_scale;                 /* fp16 */
  int skipped;                   /* the loss or a gradient overflowed: no weight changed */
  int evaluated;                 /* behind this step: then the next two */
  double eval_loss, eval_seconds;
  double data_wait_s; /* until the inputs were there */
  double save_wait_s; /* that training waited for checkpoints since the step before */
  int is_timed;       /* wall_clock_breakdown: then, of rank 0 */
  tws_phase_seconds phase;
  uint64_t memory_bytes[TWS_TIER_COUNT]; /* of rank 0's arenas */
} tws_step_report;

/* The numbers that sinks write, in the order of traces/step_values.def. */
enum tws_step_value_index {
#define X(identifier, tag, name, value, known, help) TWS_STEP_##identifier,
#include "traces/step_values.def"
#undef X
  TWS_STEP_VALUE_COUNT
};

typedef struct tws_step_value_row {
  const char *tag;  /* of DeepSpeed's monitors where they have it: "Train/Samples/lr" */
  const char *name; /* of JSON and of Prometheus, behind "twinspeed_" */
  const char *help;
} tws_step_value_row;
const tws_step_value_row *tws_step_value_of(int index);

/* 0: not known of this step. */
int tws_step_value(const tws_step_report *report, int index, double *value);

/* A number as text, at most 9 digits unless it is whole: "nan", "inf" and "-inf" as they are. Returns its length. */
enum { TWS_STEP_TEXT_SIZE = 32 };
/* The same as Python's JSON has it: NaN, Infinity and -Infinity. Returns the text or a constant. */
const char *tws_step_value_python(double value, char text[TWS_STEP_TEXT_SIZE]);
int tws_step_value_text(double value, char text[TWS_STEP_TEXT_SIZE]);

#endif
