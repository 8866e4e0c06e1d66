/* The prediction of inference for a job: the times of both programs (plan/serving.h), the memory of a rank, and the
 * largest batch that fits. */
#ifndef TWS_JOB_SERVING_H
#define TWS_JOB_SERVING_H

#include "job/fit.h"
#include "models/hardware/serving.h"
#include "plan/serving.h"

typedef struct tws_serve_request {
  int64_t prompt, output;   /* tokens of each prompt, and generated ones */
  int weight_codes;         /* type of codes of linear layers' weights (tws_code_type); 0: they are of the job's type */
  int cache_bits;           /* 8: keys and values are cached in 8 bits; 0: in the job's type */
  int64_t cache_block;      /* positions of a block of the cache; 0: the cache has no blocks */
  const tws_server *server; /* the software; its figures are in the job's profile already */
  double device_share;      /* share of a device's memory that the software uses; 0: that of its row */
  int assumed_server;       /* 1: the software is the default, which nothing named */
  int finds_batch;          /* 1: also search the largest batch */
} tws_serve_request;

/* Causes of a decoded token's time. */
#define TWS_SERVE_CAUSES(X)                                                                      \
  X(WEIGHTS, "reading weights")                                                                  \
  X(CACHE, "reading cached keys and values")                                                     \
  X(COMPUTE, "products of matrices") X(OTHER, "other kernels") X(COMMUNICATION, "communication") \
      X(WAITING, "waiting for other stages") X(SOFTWARE, "the software")
typedef enum tws_serve_cause {
#define X(name, text) TWS_SERVE_##name,
  TWS_SERVE_CAUSES(X)
#undef X
      TWS_SERVE_CAUSE_COUNT
} tws_serve_cause;
const char *tws_serve_cause_name(int cause);

typedef struct tws_serve_answer {
  int64_t texts; /* texts at a time, of all replicas */
  /* seconds until the first token of all texts of a batch, between two tokens of a text, and of whole texts */
  double first_token_s, token_s, text_s;
  /* rates of the whole job: generated tokens of whole texts, of decoding alone, and tokens of prompts in the prefill */
  double tokens_per_s, decoded_per_s, prompt_tokens_per_s;
  double cause_s[TWS_SERVE_CAUSE_COUNT]; /* their sum is token_s */
  /* per decoded token of one rank: bytes of weights and of the cache that kernels read, and flops */
  double weight_bytes, cache_bytes, flops;
  tws_ledger ledger; /* ledger of the rank that needs the most memory, for both programs over one state */
  tws_fit fit;
  /* tokens whose keys and values fill what a replica's devices have left, for software that takes all of it; 0: other
   * software */
  double cached_tokens;
  int64_t largest; /* most texts at a time that fit, of all replicas; 0: none; -1: not searched */
} tws_serve_answer;

/* Predicts a job with a known number of ranks, whose micro batch times accumulation steps is the batch of a replica.
 * Fails as tws_serving_make(). */
tws_code tws_job_serve(const tws_job *job, const tws_serve_request *request, tws_serve_answer *out, tws_error *err);
/* Applies the figures of the software to the profile, which the job must own. */
tws_code tws_job_set_server(tws_job *job, const tws_server *server, tws_error *err);

#endif
