/* The software that is assumed to run inference. Each one is a row of figures (models/hardware/serving.def) that are
 * applied to a GPU's profile, as those of tws_runtime are for training; no other code distinguishes such software. */
#ifndef TWS_MODELS_HARDWARE_SERVING_H
#define TWS_MODELS_HARDWARE_SERVING_H

#include "models/hardware/profile.h"

/* Differences between the memory of software and that of a plan, which are what its sources allocate, for models whose
 * inner size is four times the hidden size. A member that is 0 leaves the plan's bytes. */
typedef struct tws_server_memory {
  double tables;    /* copies of the embedding table that each tensor rank has whole */
  int whole_tables; /* 1: each tensor rank has the embedding table and the head whole, as many as the model has */
  /* buffers of the pass over prompts, none of which shares memory with another: rows of the hidden size for each token,
   * whole on each tensor rank and divided among them; bytes for each head and pair of tokens of a prompt */
  double whole_rows, divided_rows, score_bytes;
  int own_scales; /* 1: weights in 8 bits have one scale for a row or a tensor, and those in 4 bits one for 128 */
  /* texts for which memory is reserved at the start to choose their tokens, TWS_SAMPLING_BYTES for each entry of the
   * vocabulary */
  double sampled_texts;
  int64_t batched_tokens; /* most tokens of one pass over prompts, into which larger ones are divided */
} tws_server_memory;
/* vLLM's peak at its start divided by texts and vocabulary: 41 of Llama 3 8B (0.6.5, 256 texts), 40 of Llama 3.3 70B
 * and 38 of gpt-oss (0.11, 1024 texts): scores in 16 and 32 bits, probabilities, and sorted ones with their indices. */
enum { TWS_SAMPLING_BYTES = 40 };

typedef struct tws_server {
  const char *name, *about;
  double launch_s;  /* seconds from the end of one kernel to the start of the next one; 0: the profile's */
  double host_op_s; /* seconds in which the host issues one kernel; 0: passes are replayed as a CUDA graph */
  /* seconds of a forward pass in which the device is idle, because of scheduling, sampling and detokenization: pass_s
   * once for the pass, text_s for each of its texts */
  double pass_s, text_s;
  double memory_reached; /* share of the memory's bandwidth that kernels reach; 0: the profile's */
  double products;       /* factor on the profile's share of the peak that matrix products reach; 0: 1 */
  double coded;          /* factor on the seconds of products with weights in codes of 4 or 8 bits; 0: 1 */
  double exchange;       /* factor on the seconds of collectives and messages; 0: 1 */
  double context_bytes;  /* bytes of a device outside of the plan's arenas; 0: the profile's */
  double device_share;   /* share of a device's memory that the software uses; 0: all */
  int fills_device;      /* 1: what the share leaves holds keys and values, whatever the texts need */
  tws_server_memory memory;
} tws_server;

/* tws_server_find() returns the row called `name`, or NULL; tws_server_names() returns all names, NULL-terminated. The
 * first one, "twinspeed", is this program's own engine. */
const tws_server *tws_server_find(const char *name);
const char *const *tws_server_names(void);
/* Finds a row; NULL: the first one. Fails with TWS_USAGE for an unknown name; the hint lists the names. */
tws_code tws_server_parse(const char *name, const tws_server **out, tws_error *err);
/* Sets the figures of a profile that depend on the serving software to those of a row; rates that were measured are not
 * changed. To be called once for a profile. Fails with TWS_INVALID for the profile of a host, unless the row is that of
 * this program's own engine. */
tws_code tws_profile_set_server(tws_profile *profile, const tws_server *server, tws_error *err);

#endif
