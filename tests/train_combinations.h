/* Jobs that divide one training over ranks in every way: each must lose what one rank loses. */
#ifndef TWS_TESTS_TRAIN_COMBINATIONS_H
#define TWS_TESTS_TRAIN_COMBINATIONS_H

#include "sample.h"
#include "sanitized.h"
#include "train.h"

/* Models of four or five layers, with a vocabulary that no number of ranks divides; LLAMA's inner width is not a
 * multiple of four per rank, and it has half as many heads of keys as of queries. */
enum { GPT2, GPT2_UNTIED, LLAMA, LLAMA_TIED, MODELS };
static const char *const model_names[MODELS] = {"gpt2", "gpt2-untied", "llama", "llama-tied"};
static const char *const model_texts[MODELS] = {
    "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_layer\":5,\"n_embd\":64,\"n_head\":8}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_layer\":5,\"n_embd\":64,\"n_head\":8,"
    "\"tie_word_embeddings\":false}",
    "{\"model_type\":\"llama\",\"vocab_size\":259,\"max_position_embeddings\":64,\"num_hidden_layers\":4,"
    "\"hidden_size\":64,\"intermediate_size\":88,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":12}",
    "{\"model_type\":\"llama\",\"vocab_size\":259,\"max_position_embeddings\":64,\"num_hidden_layers\":4,"
    "\"hidden_size\":64,\"intermediate_size\":88,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":12,"
    "\"tie_word_embeddings\":true}"};

/* A division of a training; 0 stands for one rank, stage 0, no recomputation and so on. */
typedef struct combination {
  int model, ranks, pipe, tensor, sequence, zero, micro;
  const char *schedule; /* NULL: 1f1b */
  int virtual_stages, sequence_parallel, chunks;
  const char *recompute;
  int loss_tiles, mlp_tiles;
  int ignored;          /* 1: targets that are spaces are ignored, about every sixth, a different number in each part of
                         * a sample */
  const char *order;    /* of axes */
  const char *more;     /* members of zero_optimization */
  int by_block;         /* ZeRO moves a layer at a time */
  int ring;             /* attention along "sequence" */
  const char *products; /* type of the products; NULL: that of the layers */
  int parts;            /* number of chunks of attention in a sample, with keys and values on the host */
} combination;

#define OVERLAP ",\"overlap_comm\":true"
static const combination combinations[] = {
    {GPT2, 2, .tensor = 2},
    {GPT2_UNTIED, 2, .tensor = 2, .sequence_parallel = 1, .recompute = "full"},
    {LLAMA, 2, .tensor = 2, .chunks = 2, .ignored = 1},
    {LLAMA_TIED, 2, .tensor = 2, .sequence_parallel = 1, .chunks = 2, .micro = 2},
    {LLAMA, 2, .tensor = 2, .loss_tiles = 4, .mlp_tiles = 2, .micro = 2, .recompute = "operations", .ignored = 1},
    {GPT2, 2, .sequence = 2, .ignored = 1},
    {LLAMA, 2, .sequence = 2, .zero = 1, .recompute = "operations", .ignored = 1},
    {LLAMA_TIED, 2, .sequence = 2, .zero = 3, .ignored = 1},
    {GPT2, 2, .sequence = 2, .zero = 2, .loss_tiles = 2, .mlp_tiles = 2, .micro = 2, .ignored = 1, .more = OVERLAP},
    {GPT2, 2, .pipe = 2, .schedule = "zb-h1", .ignored = 1},
    {GPT2, 2, .sequence = 2, .ring = 1, .micro = 2, .ignored = 1},
    {LLAMA, 2, .sequence = 2, .ring = 1, .zero = 3, .recompute = "full"},
    {GPT2, 1, .parts = 2, .micro = 2, .ignored = 1},
    {LLAMA, 1, .parts = 8, .recompute = "full", .loss_tiles = 2, .mlp_tiles = 4},
    {GPT2, 2, .sequence = 2, .parts = 4, .micro = 2, .zero = 2, .recompute = "full", .ignored = 1, .more = OVERLAP},

    {GPT2, 4, .tensor = 4, .sequence_parallel = 1, .ignored = 1},
    {LLAMA, 4, .tensor = 4, .chunks = 2, .micro = 2, .mlp_tiles = 2},
    {LLAMA_TIED, 4, .tensor = 2, .zero = 1, .ignored = 1},
    {GPT2, 4, .tensor = 2, .zero = 2, .chunks = 2, .more = OVERLAP},
    {LLAMA, 4, .tensor = 2, .zero = 3, .sequence_parallel = 1, .recompute = "full", .by_block = 1,
     .order = "model,pipe,data,sequence"},
    {GPT2_UNTIED, 4, .sequence = 4, .zero = 3, .recompute = "selective", .loss_tiles = 2, .ignored = 1},
    {LLAMA, 4, .sequence = 2, .zero = 1, .micro = 2, .mlp_tiles = 4, .ignored = 1, .order = "pipe,sequence,data,model"},
    {LLAMA_TIED, 4, .tensor = 2, .sequence = 2, .sequence_parallel = 1, .ignored = 1},
    {GPT2, 4, .tensor = 2, .sequence = 2, .zero = 2, .chunks = 2, .ignored = 1},
    {GPT2, 4, .pipe = 2, .tensor = 2, .ignored = 1},
    {LLAMA, 4, .pipe = 2, .tensor = 2, .schedule = "zb-h1", .sequence_parallel = 1},
    {GPT2, 4, .pipe = 2, .tensor = 2, .schedule = "interleaved", .virtual_stages = 2, .recompute = "full"},
    {GPT2_UNTIED, 4, .pipe = 2, .sequence = 2, .schedule = "gpipe", .zero = 1, .ignored = 1},
    {LLAMA_TIED, 4, .sequence = 4, .ring = 1, .micro = 2, .ignored = 1},
    {GPT2_UNTIED, 4, .sequence = 4, .ring = 1, .zero = 1, .recompute = "operations", .mlp_tiles = 2},
    {LLAMA, 4, .sequence = 2, .ring = 1, .zero = 2, .ignored = 1, .more = OVERLAP},
    {LLAMA, 4, .tensor = 2, .sequence = 2, .ring = 1, .sequence_parallel = 1, .chunks = 2, .zero = 3},
    {GPT2, 4, .pipe = 2, .sequence = 2, .ring = 1, .schedule = "zb-h1", .ignored = 1},

    {LLAMA, 4, .sequence = 4, .parts = 2, .micro = 2, .zero = 3, .recompute = "selective", .ignored = 1},
    {LLAMA_TIED, 4, .tensor = 2, .sequence = 2, .parts = 4, .zero = 1, .recompute = "operations"},

    {GPT2, 8, .pipe = 2, .tensor = 2, .zero = 1, .sequence_parallel = 1, .ignored = 1},
    {LLAMA, 8, .pipe = 2, .tensor = 2, .sequence = 2, .schedule = "zb-h1", .sequence_parallel = 1, .chunks = 2,
     .ignored = 1},
    {GPT2, 8, .tensor = 8, .micro = 2},
    {LLAMA, 8, .sequence = 8, .zero = 2, .ignored = 1},
    {LLAMA_TIED, 8, .pipe = 2, .tensor = 2, .sequence = 2, .ring = 1, .schedule = "interleaved", .virtual_stages = 2,
     .zero = 1, .ignored = 1},
    {LLAMA_TIED, 8, .pipe = 4, .tensor = 2, .recompute = "full", .order = "data,sequence,model,pipe"},
    {GPT2, 8, .pipe = 4, .schedule = "interleaved", .virtual_stages = 2, .zero = 1, .ignored = 1},
    {LLAMA_TIED, 8, .tensor = 2, .sequence = 2, .zero = 3, .sequence_parallel = 1, .loss_tiles = 2, .ignored = 1,
     .more = OVERLAP},
    {GPT2_UNTIED, 8, .pipe = 2, .sequence = 2, .schedule = "zb-h1", .zero = 1, .ignored = 1},
    {LLAMA, 8, .pipe = 2, .tensor = 4, .schedule = "interleaved", .virtual_stages = 2, .sequence_parallel = 1,
     .chunks = 2},
    {LLAMA, 8, .tensor = 4, .zero = 2, .chunks = 4, .recompute = "operations", .ignored = 1},
    {GPT2, 8, .sequence = 4, .zero = 3, .recompute = "full", .ignored = 1},
    {GPT2, 8, .zero = 3, .ignored = 1, .more = ",\"mics_shard_size\":4"},
    {LLAMA_TIED, 8, .tensor = 2, .zero = 3, .sequence_parallel = 1, .more = ",\"mics_shard_size\":2"},
    {LLAMA, 8, .sequence = 2, .zero = 3, .by_block = 1, .ignored = 1, .more = ",\"mics_shard_size\":2"},
    {LLAMA_TIED, 8, .pipe = 2, .tensor = 2, .schedule = "gpipe", .mlp_tiles = 2, .order = "model,data,pipe,sequence"},
    {GPT2_UNTIED, 8, .pipe = 2, .tensor = 2, .sequence = 2, .schedule = "interleaved", .virtual_stages = 2,
     .ignored = 1},
};
/* Under the sanitizers every fourth combination runs, because sanitizers look for memory errors rather than wrong
 * losses. */
enum { EVERY = TWS_SANITIZED ? 4 : 1 };
enum { COMBINATIONS = sizeof combinations / sizeof *combinations };

/* Returns 1 if combination i runs: `make check` takes half of the table, which half depends on the commit. */
static inline int is_taken(int i) {
  return takes_all() ? i % EVERY == 0 : takes((uint64_t)i, 2 * EVERY);
}

static inline int at_least_one(int x) {
  return x > 1 ? x : 1;
}

static inline int replicas_of(const combination *c) {
  return c->ranks / (at_least_one(c->pipe) * at_least_one(c->tensor) * at_least_one(c->sequence));
}

/* Writes a name such as "12-p2t2s1d2-z1-1f1b", in which 12 is the index in the table. */
static inline void combination_name(const combination *c, char *name, size_t size) {
  snprintf(name, size, "%d-p%dt%ds%dd%d-z%d-%s", (int)(c - combinations), at_least_one(c->pipe),
           at_least_one(c->tensor), at_least_one(c->sequence), replicas_of(c), c->zero,
           c->schedule ? c->schedule : "1f1b");
}

/* Writes a combination as a line of a file of jobs (tests/ranks_engine.c), with samples of 32 tokens in batches of
 * 8. */
static inline void write_combination(FILE *file, const combination *c, const char *name, const char *model, int steps,
                                     const char *with) {
  int tensor = at_least_one(c->tensor);
  fprintf(file,
          "%s\t%s\t%d\t{%s,\"train_micro_batch_size_per_gpu\":%d,\"sequence_parallel_size\":%d,"
          "\"pipeline\":{\"stages\":%d,\"partition\":\"uniform\"},"
          "\"tensor_parallel\":{\"autotp_size\":%d,\"tp_overlap_comm\":%s},"
          "\"zero_optimization\":{\"stage\":%d,\"reduce_bucket_size\":20000,\"stage3_prefetch_bucket_size\":30000,"
          "\"stage3_param_persistence_threshold\":100%s},",
          name, model, steps, with, at_least_one(c->micro), at_least_one(c->sequence), at_least_one(c->pipe), tensor,
          c->chunks ? "true" : "false", c->zero, c->more ? c->more : "");
  fprintf(file,
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"recompute\":\"%s\",\"virtual_stages\":%d,"
          "\"pipeline_schedule\":\"%s\",\"tensor_sequence_parallel\":%s,\"tensor_overlap_chunks\":%d,"
          "\"loss_tiles\":%d,\"mlp_tiles\":%d,\"ignored_token\":%d,\"axis_order\":\"%s\",\"shard_by_block\":%s,"
          "\"sequence_algorithm\":\"%s\",\"matmul_dtype\":\"%s\",\"attention_chunks\":%d}}\n",
          c->recompute ? c->recompute : "none", at_least_one(c->virtual_stages), c->schedule ? c->schedule : "1f1b",
          c->sequence_parallel ? "true" : "false", at_least_one(c->chunks), at_least_one(c->loss_tiles),
          at_least_one(c->mlp_tiles), c->ignored ? ' ' : -1, c->order ? c->order : "pipe,data,sequence,model",
          c->by_block ? "true" : "false", c->ring ? "ring" : "ulysses", c->products ? c->products : "auto",
          at_least_one(c->parts));
}

#endif
