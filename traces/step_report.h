/* Report of one step of a training, real or emulated: one struct, filled by real/step_report.c and the driver of the
 * step, and read by all outputs: the printed table, --csv, and the sinks of traces/monitor.h. */
#ifndef TWS_TRACES_STEP_REPORT_H
#define TWS_TRACES_STEP_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "models/kernel.h"

/* Seconds in which at least one operation of a phase ran on one rank, computed from the times of the plan's
 * operations. */
typedef struct tws_phase_seconds {
  double forward, backward; /* backward includes recomputation and gradient reductions */
  double backward_inner;    /* backward without gradient reductions */
  double reduction;         /* gradient reductions over the data-parallel ranks */
  double step;              /* the optimizer step */
} tws_phase_seconds;

/* A number that a caller of the library names itself. */
typedef struct tws_custom_value {
  const char *tag; /* printable ASCII without quotes and backslashes */
  double value;
} tws_custom_value;

typedef struct tws_step_report {
  int64_t step;    /* 1-based optimizer step */
  int64_t samples; /* samples that all ranks have consumed since the beginning of the training */
  double at_s;     /* time at which the step ended, seconds since 1970; in an emulation, the start of the program plus
                    * virtual seconds */
  double loss, lr, gradient_norm;
  double head_loss[TWS_LOSS_HEADS];     /* losses of a network with several losses, in the network's order */
  int losses;                           /* number of elements of head_loss; 0: the network has one loss */
  double auxiliary_loss, dropped_share; /* metrics of the routers (TWS_METRIC_AUXILIARY, TWS_METRIC_DROPPED); 0 without
                                         * experts */
  double hottest_share;                 /* number of routes to a layer's most loaded expert, divided by the mean of its
                                         * experts; 0 without experts */
  int has_experts;
  double seconds, tokens_per_s, samples_per_s;
  double model_flops_per_s;      /* model FLOP/s of all ranks together; recomputation is not counted */
  double mfu;                    /* model_flops_per_s divided by the peak FLOP/s of all devices; 0: the peak is not
                                  * known */
  double loss_scale, next_scale; /* loss scale of this step and of the next; 1 without fp16 */
  int has_scale;                 /* 1: the training uses fp16, and thus a loss scale */
  int skipped;                   /* 1: the loss or a gradient overflowed, and no weight was changed */
  int evaluated;                 /* 1: an evaluation followed this step, and the next two values are set */
  double eval_loss, eval_seconds;
  double data_wait_s; /* seconds until the inputs were ready */
  double save_wait_s; /* seconds for which training waited for checkpoints since the previous step */
  int is_timed;       /* 1 with wall_clock_breakdown: `phase` is set, to the values of rank 0 */
  tws_phase_seconds phase;
  uint64_t memory_bytes[TWS_TIER_COUNT]; /* bytes of rank 0's arenas, by tier */
  const tws_custom_value *custom;        /* not NULL: the report has only this number, which is written by the monitors
                                          * that the configuration enables; step_values.def is not used */
} tws_step_report;

/* Indices of the numbers that sinks write, in the order of traces/step_values.def. */
enum tws_step_value_index {
#define X(identifier, tag, name, value, known, help) TWS_STEP_##identifier,
#include "traces/step_values.def"
#undef X
  TWS_STEP_VALUE_COUNT
};

typedef struct tws_step_value_row {
  const char *tag;  /* tag in TensorBoard: DeepSpeed's tag if its monitors write this number: "Train/Samples/lr" */
  const char *name; /* name in JSON lines, and after "twinspeed_" in Prometheus */
  const char *help;
} tws_step_value_row;
const tws_step_value_row *tws_step_value_of(int index);

/* Returns 1 and sets *value, or returns 0 if the number is unknown for this step. */
int tws_step_value(const tws_step_report *report, int index, double *value);

/* Formats a number with at most 9 digits, or with all digits if it is whole; not-a-number and infinity are written as
 * "nan", "inf" and "-inf". Returns the length of the text. */
enum { TWS_STEP_TEXT_SIZE = 32 };
/* Formats a number as the function above, but with the spelling of Python's JSON: NaN, Infinity and -Infinity.
 * Returns `text` or a constant. */
const char *tws_step_value_python(double value, char text[TWS_STEP_TEXT_SIZE]);
int tws_step_value_text(double value, char text[TWS_STEP_TEXT_SIZE]);

/* Writes the known values of a step as a line with one JSON object; numbers that JSON does not have are null. Returns
 * its length. */
enum { TWS_STEP_LINE = 128 + TWS_STEP_VALUE_COUNT * 64 };
int tws_step_line(const tws_step_report *report, char line[TWS_STEP_LINE]);

#endif
