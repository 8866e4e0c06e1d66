/* The parts of DeepSpeed's autotuner that are pure functions, reproduced so that names, lists and memory bounds can be
 * compared with its own result directories (golden cases were executed on DeepSpeed 0.19.6). */
#ifndef TWS_COMPAT_DEEPSPEED_AUTOTUNER_H
#define TWS_COMPAT_DEEPSPEED_AUTOTUNER_H

#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

/* Bytes of model states one GPU must hold before any activation: parameters 2P (fp16) or 4P, gradients 2P or 4P,
 * optimizer 16P or 8P; the optimizer is divided by the GPUs from stage 1 on, gradients from 2, parameters at 3; all of
 * it by the model-parallel size. DeepSpeed counts bf16 as fp32 here. */
double tws_ds_instantiation_bytes(double params, int gpus_per_node, int nodes, int model_parallel, int fp16, int stage);

/* Micro batches worth trying between the smallest and the largest that run: at most about `num` steps in the upper half
 * and only those whose accumulation steps differ from the largest's. max_train_batch_size 0: not limited. At most
 * `capacity` entries are written; returns how many there are. */
int tws_ds_micro_batches(int64_t min, int64_t max, int num, int64_t max_train_batch_size, int64_t accumulation,
                         int gpus, int model_parallel, int64_t *list, int capacity);

/* Limits and inputs of its fast mode (tune(), tune_space()), which runs, at each stage, the smallest and the largest
 * micro-batch, the list of those between, and smaller ones than the largest while each is 5 % better. Stages that hold
 * no larger micro-batch than an earlier one are left out. 0 of the limits: DeepSpeed's own (1, 1024, none). */
typedef struct tws_ds_tuning {
  double params, activation_bytes, device_bytes; /* activations of one sequence; of one GPU */
  int gpus_per_node, nodes, model_parallel, fp16;
  unsigned stages;             /* 1 << stage */
  int64_t accumulation, start; /* start: the user's micro batch, or 1 */
  int64_t min_micro, max_micro, max_train_batch;
  int num; /* micro batches of a list, about */
} tws_ds_tuning;
/* One experiment: samples a second, 0 where it does not run, less to end the search. */
typedef double (*tws_ds_experiment)(void *user, int stage, int64_t micro, int64_t accumulation);
/* -1: ended early. */
int tws_ds_tune(const tws_ds_tuning *tuning, tws_ds_experiment run, void *user);

/* One tuned key of an experiment. */
typedef enum tws_ds_kind { TWS_DS_NUMBER, TWS_DS_BOOL, TWS_DS_WORD } tws_ds_kind;
typedef struct tws_ds_setting {
  const char *key; /* "reduce_bucket_size": abbreviated by the initials of its parts */
  tws_ds_kind kind;
  double number; /* NUMBER, BOOL (0 or 1) */
  const char *text;
} tws_ds_setting;

/* "z1_rbs5.0e+07_abs5.0e+07_tmbspg4_gas2": numbers above 9000 as %.1e, booleans T and F. */
void tws_ds_experiment_name(int stage, const tws_ds_setting *settings, int count, tws_text *out);
/* "z1_rbs_abs_tmbspg": the space alone. */
void tws_ds_space_name(int stage, const char *const *keys, int count, tws_text *out);

/* DeepSpeed's default space of a stage, without the micro batch: tuned keys in order, 0 (stage 0) to 6 of them. */
enum { TWS_DS_SPACE_KEYS = 6 };
typedef struct tws_ds_dimension {
  const char *key;
  tws_ds_kind kind;
  int count;
  double value[3];
} tws_ds_dimension;
int tws_ds_default_space(int stage, const tws_ds_dimension **dimensions);
/* The index-th configuration of the cartesian product of `count` dimensions, the last varies fastest; returns the size
 * of the product. settings has room for `count`. */
int64_t tws_ds_enumerate(const tws_ds_dimension *dimensions, int count, int64_t index, tws_ds_setting *settings);

#endif
