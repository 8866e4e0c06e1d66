/* Reproduces those functions of DeepSpeed's autotuner that depend only on their arguments, so that names, lists and
 * memory bounds can be compared with DeepSpeed's result directories (the expected values of tests come from DeepSpeed
 * 0.19.6). */
#ifndef TWS_COMPAT_DEEPSPEED_AUTOTUNER_H
#define TWS_COMPAT_DEEPSPEED_AUTOTUNER_H

#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

/* Returns the bytes of model states that one GPU must hold before any activation: parameters 2P (fp16) or 4P, gradients
 * 2P or 4P, optimizer 16P or 8P, with P parameters. The optimizer is divided by the number of GPUs from stage 1 on, the
 * gradients from stage 2, the parameters at stage 3; all are divided by the model-parallel size. DeepSpeed counts bf16
 * as fp32 here. */
double tws_ds_instantiation_bytes(double params, int gpus_per_node, int nodes, int model_parallel, int fp16, int stage);

/* Writes the micro-batch sizes that DeepSpeed tries between `min` and `max`, the smallest and largest that run: at most
 * about `num`, equally spaced in the upper half, and only sizes whose accumulation steps differ from those of `max`.
 * max_train_batch_size 0: not limited. At most `capacity` sizes are written. Returns their number. */
int tws_ds_micro_batches(int64_t min, int64_t max, int num, int64_t max_train_batch_size, int64_t accumulation,
                         int gpus, int model_parallel, int64_t *list, int capacity);

/* Limits and inputs of the fast mode of DeepSpeed's autotuner (tune(), tune_space()). At each stage it runs the
 * smallest and the largest micro-batch, a list of sizes between them, and then sizes below the largest as long as each
 * is 5 % faster than the previous one. A stage is skipped if its largest micro-batch is not larger than that of an
 * earlier stage. A limit of 0 means DeepSpeed's default (1, 1024, none). */
typedef struct tws_ds_tuning {
  double params, activation_bytes, device_bytes; /* bytes of one sequence's activations; bytes of a GPU */
  int gpus_per_node, nodes, model_parallel, fp16;
  unsigned stages;             /* bit set: bit s is set if stage s is searched */
  int64_t accumulation, start; /* accumulation steps; first micro-batch size to try */
  int64_t min_micro, max_micro, max_train_batch;
  int num; /* approximate number of micro batches of a list */
} tws_ds_tuning;
/* Runs one experiment. Returns its samples per second; 0: it cannot run; below 0: the search is to end. */
typedef double (*tws_ds_experiment)(void *user, int stage, int64_t micro, int64_t accumulation);
/* Calls `run` with the experiments of the fast mode in order. Returns 0, or -1 if an experiment ended the search. */
int tws_ds_tune(const tws_ds_tuning *tuning, tws_ds_experiment run, void *user);

/* One tuned key of an experiment, with its value. */
typedef enum tws_ds_kind { TWS_DS_NUMBER, TWS_DS_BOOL, TWS_DS_WORD } tws_ds_kind;
typedef struct tws_ds_setting {
  const char *key; /* such as "reduce_bucket_size", abbreviated in names as "rbs" */
  tws_ds_kind kind;
  double number; /* value of a NUMBER, or of a BOOL (0 or 1) */
  const char *text;
} tws_ds_setting;

/* Appends the name of an experiment, such as "z1_rbs5.0e+07_abs5.0e+07_tmbspg4_gas2": numbers above 9000 are printed
 * with %.1e, booleans as T and F. */
void tws_ds_experiment_name(int stage, const tws_ds_setting *settings, int count, tws_text *out);
/* Appends the name of a search space, "z1_rbs_abs_tmbspg", which has the abbreviated keys without values. */
void tws_ds_space_name(int stage, const char *const *keys, int count, tws_text *out);

/* A key of DeepSpeed's default search space for a ZeRO stage, with the `count` values to try. tws_ds_default_space()
 * sets *dimensions to the keys in order, without the micro-batch size, and returns their number, from 0 (stage 0) to
 * 6. */
enum { TWS_DS_SPACE_KEYS = 6 };
typedef struct tws_ds_dimension {
  const char *key;
  tws_ds_kind kind;
  int count;
  double value[3];
} tws_ds_dimension;
int tws_ds_default_space(int stage, const tws_ds_dimension **dimensions);
/* Fills `settings`, which has room for `count`, with configuration number `index` of the cartesian product of `count`
 * dimensions, where the last dimension varies fastest. Returns the size of the product. */
int64_t tws_ds_enumerate(const tws_ds_dimension *dimensions, int count, int64_t index, tws_ds_setting *settings);

#endif
