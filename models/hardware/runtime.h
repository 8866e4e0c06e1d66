/* Runtime styles: whose software runs a plan. The same plan costs and holds different amounts under an engine that
 * launches every kernel from Python, keeps attention's scores in memory or lets streams contend; a style is a row of
 * figures (models/hardware/runtime.c) laid over a hardware profile, never a branch elsewhere. Figures belong to a
 * version of software and have a source or a stated fit: docs/accuracy.md. */
#ifndef TWS_MODELS_RUNTIME_H
#define TWS_MODELS_RUNTIME_H

#include "config/ds_config.h"
#include "models/hardware/host_buffers.h"
#include "models/hardware/profile.h"
#include "models/hardware/step_buffers.h"

typedef enum tws_generation {
  TWS_GENERATION_NONE, /* a host, or a profile that does not say */
  TWS_GENERATION_VOLTA,
  TWS_GENERATION_AMPERE,
  TWS_GENERATION_HOPPER,
  TWS_GENERATION_BLACKWELL,
  TWS_GENERATION_COUNT
} tws_generation;
const char *tws_generation_name(int generation); /* "none", "volta", ... */

typedef enum tws_runtime_attention {
  TWS_ATTENTION_AS_PROFILE,
  TWS_ATTENTION_UNFUSED, /* scores in memory: batched products and kernels between them */
  TWS_ATTENTION_FLASH
} tws_runtime_attention;

typedef enum tws_passes {
  TWS_PASSES_OURS,
  TWS_PASSES_MEGATRON = 1,     /* Megatron-LM's source of April 2021 */
  TWS_PASSES_EAGER = 2,        /* PyTorch's modules, operation by operation, but for norms */
  TWS_PASSES_NORMS = 4,        /* norms too */
  TWS_PASSES_LOSS = 8,         /* logits are cast to float32, their softmax and its gradient apart */
  TWS_PASSES_TRANSFORMERS = 16 /* Hugging Face's modules and optimizer of 2021, in addition to Megatron's */
} tws_passes;

/* Bytes per element that modules of unfused operations keep for backward in addition to a plan: of what an RMSNorm
 * reads, which it casts to float32; of queries and keys once they are turned, where the values are a view of what they
 * came from; of what a gate's activation makes; of what an adapter adds; of a mask of what is dropped; of what enters a
 * product whose weight has few bits. Of a GELU by the hyperbolic tangent and one by the error function: how many more
 * numbers for each that it makes, as its operations keep what they read. */
typedef struct tws_runtime_keeps {
  double normed, turned, gated, adapted, dropped, read, curved[2];
} tws_runtime_keeps;

typedef struct tws_runtime {
  const char *name, *about;
  /* time */
  double launch_s;    /* in addition to each kernel of a plan on the device; 0: the profile's */
  double host_op_s;   /* the host issues a kernel of a plan, and what it stands for, in this time; 0: never the limit */
  double expert_op_s; /* the host issues the product of one expert in this time, where a grouped product is a loop
                         over experts; 0: it is one launch */
  double expert_cast_s; /* then: and the cast of what the expert gets */
  double route_s;       /* of a layer of experts, forward and backward: the device waits for a host that reads counts */
  /* bytes that software moves in addition to a plan for each element that is sent to experts and back: with 16-bit
   * products, with 8-bit ones */
  double routed_bytes[2];
  int one_hot_experts; /* tokens go to slots and back by products with one-hot matrices of tokens x slots */
  double part_s; /* gathers and reduce-scatters take a list of tensors, one of each rank, and the host cuts out and
                    copies each in this time */
  double accumulates_bytes; /* bf16's gradients are added to float32 ones by kernels of their own, after each
                               micro-batch: bytes of a parameter that these move in addition to the plan's */
  int whole_gradients;      /* pipeline.grad_partitioned is off: each tensor rank sends all of a boundary's gradient */
  int float_reductions;     /* gradients in 16 bits of a plan are float32 ones where they are summed */
  int sends_once;           /* a token goes to a rank and to a node once, whatever experts it has there, and empty slots
                           do not; messages are not posted by the host */
  double dispatch_reached[2]; /* then: of a device's port, and of its share of the NICs */
  double host_reached;        /* of the bandwidth of the host's memory, by kernels there (optimizers); 0: all of it */
  double hand_over_s;    /* of a collective or message that kernels wait for: events between streams, the last rank */
  int contends;          /* streams side by side gain nothing */
  int unfused;           /* GELU and residual sums are kernels of their own */
  unsigned added_passes; /* tws_passes: over memory, that our kernels do not make */
  tws_runtime_attention attention;
  double score_bytes[2];              /* unfused: of kernels between the products, each score, forward, backward */
  double flash[TWS_GENERATION_COUNT]; /* flash: share of the peak; 0: the profile's */
  double cast_bytes[2]; /* before fp8 products: of an element of what enters, of a weight each time; 0: Transformer
                           Engine's 4 (read, written as it lies and transposed) and 0 (once a step) */
  double products[TWS_GENERATION_COUNT]; /* share of the peak; 0: the profile's */
  int by_block;         /* ZeRO gathers and reduces a transformer layer at a time (twinspeed.shard_by_block) */
  int recomputes_whole; /* a recomputed layer runs again to its end (twinspeed.recompute_whole) */
  int overlaps_data;    /* gradient reductions overlap with backward, also in pipelines */
  /* 1: tensor ranks overlap the reduction of an input's gradient with the weight's gradient; above: they overlap
   * exchanges of tokens with products, in this number of segments */
  int overlaps_tensor;
  /* memory */
  double context_bytes;      /* outside of the allocator, as nvidia-smi counts; 0: the profile's */
  double communicator_bytes; /* there too, of NCCL for each axis of more than one rank */
  double reserved_share;     /* that a caching allocator reserves beyond what is allocated */
  double logit_bytes;        /* of copies of a logit in addition to the plan's */
  double scored_share;       /* of the tokens that a masked language model has such copies for; 0: all */
  tws_runtime_keeps keeps;
  int keeps_wide; /* what enters products in 8 bits is kept in 16, and cast again backward */
  double workspace_bytes[TWS_GENERATION_COUNT]; /* of libraries, out of torch's allocator */
  int float_gradients;                          /* gradients are accumulated in float32 */
  int gradient_copies; /* the optimizer flattens gradients in 16 bits, then makes float32 ones of them */
  int unread_outputs;  /* recomputation by operation keeps what the down projection makes, though nothing reads it */
  int copies_buckets;  /* ZeRO-3 reduces an interleaved copy of a bucket of gradients, 16 bits each, ZeRO-2 a flattened
                           one, and fills a second bucket where reductions overlap */
  /* ZeRO-3: the whole model is on each device before it is partitioned (no zero.Init); 2: in addition to the partition
   * */
  int loads_whole;
  int late_gradients;        /* a gradient has memory from backward on, until the step: none is there with the logits */
  int flat_gradients;        /* ZeRO-3: each layer is a flat parameter, whose gradient is whole on each rank while steps
                           accumulate, with that of frozen parts */
  int boundary_tensors;      /* that a pipeline keeps of each micro-batch in flight in addition to the plan's */
  tws_step_software step;    /* whose buffers are on a device around the optimizer's step */
  tws_host_software host;    /* whose buffers are in a node's memory where states are offloaded */
  double host_process_bytes; /* of a rank's process there: interpreter, libraries, loaders */
} tws_runtime;

/* NULL: no such name. "twinspeed" is this program's own engine, which changes the rates of products and attention on
 * Hopper and nothing else. */
const tws_runtime *tws_runtime_find(const char *name);
/* The same; TWS_INVALID with a hint that lists the names. */
tws_code tws_runtime_parse(const char *name, const tws_runtime **out, tws_error *err);
const char *const *tws_runtime_names(void); /* NULL-terminated */

/* Lays a style over a GPU's profile; a profile of a host is refused for all but "twinspeed" (TWS_INVALID). What a
 * profile measured stays measured. Call it once for a profile. */
tws_code tws_profile_set_runtime(tws_profile *profile, const tws_runtime *runtime, tws_error *err);
const tws_runtime *tws_profile_runtime(const tws_profile *profile); /* never NULL */
/* Overlaps the exchange of tokens with experts with the products of another micro-batch (Megatron-Core's
 * overlap_moe_expert_parallel_comm), if software sends each token once: the exchange takes no longer than those
 * products. */
void tws_profile_overlap_experts(tws_profile *profile);
/* One host thread issues segments of a micro-batch's forward pass and of another's backward pass alternately and waits
 * for the device between them (Megatron-Core's overlap_moe_expert_parallel_comm in interleaved pipelines): launches
 * never run ahead, so that the host's time and the device's add up. */
void tws_profile_issue_in_turns(tws_profile *profile);
int tws_profile_issues_in_turns(const tws_profile *profile);
/* Scores of unfused attention are recomputed in backward (selective recomputation of Korthikanti et al., 2022). */
void tws_profile_recompute_scores(tws_profile *profile);
int tws_profile_recomputes_scores(const tws_profile *profile);
/* The job drops out, and the software keeps a mask of a byte for each number that layers drop (unfused ones: always).
 */
void tws_profile_keep_masks(tws_profile *profile);
int tws_profile_keeps_masks(const tws_profile *profile);
/* Bytes that a kernel on the host moves, as many more as this software is slower than the memory. */
double tws_profile_host_bytes(const tws_profile *profile, const tws_work *work);
/* Returns the bytes of libraries in torch's allocator on this GPU. */
double tws_profile_library_bytes(const tws_profile *profile);
/* Sets the input type of matrix products of 16-bit layers, not attention. TWS_INVALID: the GPU has no rate for it. */
tws_code tws_profile_set_matmul(tws_profile *profile, tws_matmul_dtype dtype, tws_error *err);
/* Returns 1 if plans have the casts of fp8 products as operations: those that this program runs itself. */
int tws_profile_plans_casts(const tws_profile *profile);

#endif
