/* A variant: one combination of values of the settings that searches and sweeps vary. */
#ifndef TWS_JOB_VARIANT_H
#define TWS_JOB_VARIANT_H

#include <cjson/cJSON.h>
#include "job/spec.h"
#include "models/network/network.h"
#include "plan/pipeline_schedule.h"

enum { TWS_VARIANT_NAME = 192 };

typedef struct tws_variant_schedule {
  tws_pipeline_kind kind;
  int virtual_stages; /* number of chunks of layers per stage; 1 except for INTERLEAVED */
} tws_variant_schedule;

/* Limits of ZeRO stage 3 that searches vary: X(key of zero_optimization, field of tws_zero_config, word, flag of
 * tune). */
#define TWS_ZERO3_LIMITS(X)                                                                                      \
  X("stage3_prefetch_bucket_size", prefetch_bucket_size, "prefetch", "--prefetch-buckets")                       \
  X("stage3_param_persistence_threshold", param_persistence_threshold, "persistent", "--persistence-thresholds") \
  X("stage3_max_live_parameters", max_live_parameters, "live", "--max-live")
enum { TWS_ZERO3_LIMIT_COUNT = 3 };

/* Keys that form groups of nearby ranks, and keys of data types in collectives, which change the results of training:
 * X(key, word, flag of tune, largest value, meaning). A value of 0 switches the key off. */
#define TWS_EXCHANGE_KEYS(X)                                                                                           \
  X("zero_optimization.zero_hpz_partition_size", "hpz", "--hpz", 1048576, "ranks that keep gathered parameters")       \
  X("zero_optimization.mics_shard_size", "mics", "--mics", 1048576, "ranks that partition the model")                  \
  X("twinspeed.expert_node_ranks", "epn", "--expert-nodes", 65536, "ranks of a node that exchange tokens first")       \
  X("zero_optimization.zero_quantized_weights", "qwz", "--quantized-weights", 1, "parameters gathered as 8-bit codes") \
  X("zero_optimization.zero_quantized_gradients", "qgz", "--quantized-gradients", 1, "gradients reduced as 4-bit codes")
typedef enum tws_exchange_key {
  TWS_EXCHANGE_HPZ,
  TWS_EXCHANGE_MICS,
  TWS_EXCHANGE_EXPERT_NODES,
  TWS_EXCHANGE_WEIGHTS,
  TWS_EXCHANGE_GRADIENTS,
  TWS_EXCHANGE_COUNT
} tws_exchange_key;
const char *tws_exchange_flag(tws_exchange_key key);
const char *tws_exchange_name(tws_exchange_key key); /* returns the meaning of the key */
int tws_exchange_most(tws_exchange_key key);

typedef struct tws_variant {
  int stage; /* ZeRO stage */
  tws_recompute recompute;
  int ranks, threads; /* number of ranks, and of threads of a host rank; threads is 0 on GPUs */
  int64_t micro, accumulation;
  int elastic; /* the configuration's elasticity chooses micro and accumulation for the ranks; no key states them */
  int pipeline, tensor, sequence; /* ranks along these axes; 0: the configuration's */
  tws_variant_schedule schedule;  /* the pipeline schedule */
  int sequence_parallel;          /* 1: tensor ranks use Megatron's sequence parallelism */
  int expert;                     /* number of replicas among which experts are divided; 0: the configuration's */
  double capacity;                /* twinspeed.expert_capacity_factor; 0: the configuration's */
  /* the members below are 0 for the configuration's value */
  int overlap;                          /* zero_optimization.overlap_comm: 1 off, 2 on */
  int offload;                          /* 1 + index of a row of TWS_OFFLOAD_PLACES */
  int64_t reduce_bucket;                /* zero_optimization.reduce_bucket_size */
  int exchange[TWS_EXCHANGE_COUNT];     /* 1 + the value of each key of TWS_EXCHANGE_KEYS */
  int64_t zero3[TWS_ZERO3_LIMIT_COUNT]; /* 1 + each limit of TWS_ZERO3_LIMITS, in elements */
} tws_variant;

/* Offload targets of the optimizer and, at stage 3, of parameters: X(word, offload_optimizer's device, offload_param's,
 * text in labels). */
#define TWS_OFFLOAD_PLACES(X)                                                 \
  X("none", "none", "none", "")                                               \
  X("cpu", "cpu", "none", ", optimizer on the host")                          \
  X("nvme", "nvme", "none", ", optimizer on the disk")                        \
  X("cpu+parameters", "cpu", "cpu", ", optimizer and parameters on the host") \
  X("nvme+parameters", "nvme", "nvme", ", optimizer and parameters on the disk")
enum { TWS_OFFLOAD_WORDS = 5 };
extern const char *const tws_offload_words[TWS_OFFLOAD_WORDS];
/* Returns 1 if the variant offloads the optimizer or, with `parameters`, parameters too. */
static inline int tws_variant_offloads(const tws_variant *variant, int parameters) {
  return variant->offload > (parameters ? 3 : 1);
}

/* Returns a variant with the axes, the schedule and sequence_parallel of a configuration; all other members are 0. */
tws_variant tws_variant_given(const tws_config *config);
/* Returns the number of replicas of the model among the variant's ranks. */
int tws_variant_replicas(const tws_variant *variant);
/* Writes the variant's name as DeepSpeed names experiments, followed by our own keys: "z2_gas4_tmbspg8_rnone_n4_t1". */
void tws_variant_name(const tws_variant *variant, char *buffer, int size);
/* Writes a label for reports: "ZeRO-2, 4 x 8, recompute full, tp 2, pp 4 (1f1b)", where 4 x 8 is micro-batch x
 * accumulation; settings that are 1 or none are omitted. */
void tws_variant_label(const tws_variant *variant, char *buffer, int size);
/* Writes the variant's values of TWS_EXCHANGE_KEYS: "mics 8, qwz". */
void tws_variant_exchanges(const tws_variant *variant, char *buffer, int size);
/* Writes the bucket size and the limits of stage 3 that the variant sets: "5e+08, prefetch 5e+07". */
void tws_variant_buckets(const tws_variant *variant, char *buffer, int size);
/* Clones `base`, sets the variant's keys and resolves it. */
tws_code tws_variant_config(const tws_config *base, const tws_network *network, const tws_variant *variant,
                            tws_config **out, tws_error *err);
/* Returns the specification with which another process of this program runs the variant. Texts that it needs are
 * written to `text`, which must outlive the specification. */
typedef struct tws_variant_text {
  char batch[64], capacity[64], overlap[48], offload[64], parameters[64], bucket[64];
  char zero3[TWS_ZERO3_LIMIT_COUNT][80], exchange[TWS_EXCHANGE_COUNT][64];
} tws_variant_text;
tws_job_spec tws_variant_spec(const tws_job_spec *base, const tws_variant *variant, tws_variant_text *text);
/* Adds the members "axes", schedule and sequence_parallel to a JSON object, as in the results of a job. */
void tws_variant_axes_json(const tws_variant *variant, cJSON *json);

#endif
