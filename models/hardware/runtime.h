/* Runtimes: the training software that is assumed to run a plan. The same plan takes a different time and different
 * memory in software that launches every kernel from Python, stores attention's scores in memory, or lets streams
 * contend. Each runtime is a row of figures (models/hardware/runtime.c) that are applied to a hardware profile; no
 * other code distinguishes runtimes. The figures are those of a version of the software, and have a source or a stated
 * fit (docs/accuracy.md). */
#ifndef TWS_MODELS_RUNTIME_H
#define TWS_MODELS_RUNTIME_H

#include "config/ds_config.h"
#include "models/hardware/host_buffers.h"
#include "models/hardware/launches.h"
#include "models/hardware/profile.h"
#include "models/hardware/step_buffers.h"

typedef enum tws_generation {
  TWS_GENERATION_NONE, /* a host, or a profile that states no generation */
  TWS_GENERATION_VOLTA,
  TWS_GENERATION_AMPERE,
  TWS_GENERATION_HOPPER,
  TWS_GENERATION_BLACKWELL,
  TWS_GENERATION_COUNT
} tws_generation;
const char *tws_generation_name(int generation); /* "none", "volta", ... */

typedef enum tws_runtime_attention {
  TWS_ATTENTION_AS_PROFILE,
  TWS_ATTENTION_UNFUSED, /* scores are stored in memory: batched matrix products, with separate kernels between them */
  TWS_ATTENTION_FLASH
} tws_runtime_attention;

typedef enum tws_passes {
  TWS_PASSES_OURS,
  TWS_PASSES_MEGATRON = 1, /* passes over memory of Megatron-LM of April 2021 */
  TWS_PASSES_EAGER = 2,    /* passes over memory of PyTorch's unfused modules, except those of norms */
  TWS_PASSES_NORMS = 4,    /* passes over memory of unfused norms */
  TWS_PASSES_LOSS = 8,     /* logits are cast to float32; their softmax and its gradient are separate kernels */
  /* the passes of Hugging Face's modules and optimizer of 2021 that Megatron-LM does not have */
  TWS_PASSES_TRANSFORMERS = 16,
  /* the passes of experts that have biases and a clamped gate (GPT-OSS) in Megatron-Core: operations of PyTorch */
  TWS_PASSES_BIASED_EXPERTS = 32
} tws_passes;

/* Activation memory that software without fused operations keeps for backward in addition to a plan's, in bytes per
 * element of the tensor that each member names. */
typedef struct tws_runtime_keeps {
  double norm_input;     /* the input of an RMSNorm, which is cast to float32 */
  double normalized;     /* the normalized input that an RMSNorm multiplies by its weight, if the weight is trained */
  double rotated;        /* queries and keys after the rotation, if values are a view of the projection's output */
  double gate_output;    /* output of the activation of a gated MLP's gate */
  double adapter_output; /* the output of an adapter (LoRA) */
  double dropout_mask;   /* the mask of a dropout layer */
  double cast_input;     /* each linear layer's own copy of a norm's output; 0: layers share that output */
  double adapter_input;  /* each adapter's own copy of its input; 0: adapters share the input of their layer */
  /* not bytes: 1: projections that a plan joins (queries, keys and values; gate and up) have an adapter each, with a
   * dropout layer of its own */
  int adapters_apart;
  double quantized_input; /* the input of a product whose weight is quantized */
  /* keys and values repeated for all heads of queries, which attention keeps instead of the keys and values of the
   * heads that share them (grouped queries) */
  double repeated_keys;
  double gelu_tensors[2]; /* not bytes: number of tensors that a GELU keeps in addition, [0] by tanh, [1] by erf */
} tws_runtime_keeps;

/* The software from whose measured memory peaks the interval of a prediction for a runtime is computed
 * (runtime_intervals.def). */
typedef enum tws_measured_line {
  TWS_MEASURED_ALL, /* all software together */
  TWS_MEASURED_OWN, /* this program's own engine */
  TWS_MEASURED_MEGATRON_LM,
  TWS_MEASURED_MEGATRON_CORE,
  TWS_MEASURED_FSDP
} tws_measured_line;

/* The number of tokens for which a software's loss function computes logits at a time; used if twinspeed.loss_tiles is
 * not set. */
typedef enum tws_loss_chunks {
  TWS_LOSS_WHOLE,        /* logits of all tokens */
  TWS_LOSS_BY_WIDTH,     /* as many logits at a time as the hidden states have elements */
  TWS_LOSS_BY_256_TOKENS /* logits of 256 tokens */
} tws_loss_chunks;

typedef struct tws_runtime {
  const char *name, *about;
  tws_measured_line measured;
  const char *masked; /* name of the runtime of the same software for masked language models; NULL: this runtime */
  /* time */
  double launch_s; /* seconds added to each kernel of a plan on the device; 0: the profile's launch time */
  tws_issues issues; /* the operations that the host issues for a kernel of a plan */
  /* seconds in which the host issues one of these operations; 0: the host is never the limit */
  double host_op_s;
  /* seconds in which the host issues the matrix product of one expert, if a grouped product is a loop over experts; 0:
   * it is one launch */
  double expert_op_s;
  /* seconds in which the host issues the cast of one expert's input, if a grouped product is a loop over experts */
  double expert_cast_s;
  /* seconds that the device waits, in each pass of an expert layer, for the host, which reads the counts of tokens */
  double route_s;
  /* bytes that software reads and writes in addition to a plan for each element that is sent to experts and back: [0]
   * with 16-bit products, [1] with 8-bit products */
  double routed_bytes[2];
  /* 1: tokens are moved to slots and back by matrix products with one-hot matrices of tokens x slots */
  int one_hot_experts;
  /* seconds in which the host slices and copies one tensor, if gathers and reduce-scatters take a list of one tensor
   * per rank; 0: they take one tensor */
  double part_s;
  /* bytes per parameter, in addition to the plan's, that separate kernels read and write to add bf16 gradients to
   * float32 gradients after each micro-batch */
  double accumulates_bytes;
  /* 1: pipeline.grad_partitioned is off, so each tensor rank sends the whole gradient of a stage boundary */
  int whole_gradients;
  int float_reductions; /* 1: gradients that a plan reduces in 16 bits are reduced in float32 */
  /* 1: a token is sent once to each rank and node, however many of its experts are there; empty slots are not sent, and
   * the host does not post messages */
  int sends_once;
  /* if sends_once: fraction of the bandwidth that is reached, [0] at a device's port and [1] at its share of the
   * NICs */
  double dispatch_reached[2];
  /* share of the host memory's bandwidth that kernels on the host (optimizers) reach; 0: all of it */
  double host_reached;
  /* seconds added to a collective or message that kernels wait for: events between streams, and waiting for the last
   * rank */
  double hand_over_s;
  int contends;          /* 1: concurrent streams contend, so that their overlap saves no time */
  int unfused;           /* 1: GELU and residual sums are separate kernels */
  unsigned added_passes; /* bit mask of tws_passes: passes over memory that this program's kernels do not need */
  tws_runtime_attention attention;
  /* unfused attention: bytes per score that the kernels between its two products move, in [0] the forward and [1] the
   * backward pass */
  double score_bytes[2];
  /* unfused attention: bytes per score that [0] each layer keeps for backward and that [1] exist in addition while the
   * softmax of one layer is differentiated; 0: two copies of the softmax's output and a dropout mask, and none */
  double kept_score_bytes[2];
  double flash[TWS_GENERATION_COUNT]; /* flash attention: share of the peak flop/s that it reaches; 0: the profile's */
  /* bytes that casts before fp8 products read and write, per element of [0] the input and [1] the weight, in each use;
   * 0: Transformer Engine's 4 (read, written in both layouts) and 0 (weights are cast once a step) */
  double cast_bytes[2];
  double products[TWS_GENERATION_COUNT]; /* share of the peak flop/s that matrix products reach; 0: the profile's */
  /* if `products` is 0: factor of the profile's share of the peak for 16-bit products; 0: the factor is 1 */
  double product_factor[TWS_GENERATION_COUNT];
  /* factor of the profile's share of the peak for 8-bit products; 0: the factor is 1 */
  double narrow_factor[TWS_GENERATION_COUNT];
  int by_block;         /* 1: ZeRO gathers and reduces whole transformer layers (twinspeed.shard_by_block) */
  int recomputes_whole; /* 1: a recomputed layer is recomputed completely (twinspeed.recompute_whole) */
  int overlaps_data;    /* 1: gradient reductions overlap with backward, also in pipelines */
  /* 1: tensor ranks overlap the reduction of an input's gradient with the computation of the weight's gradient; above
   * 1: they overlap exchanges of tokens with products, in this number of segments */
  int overlaps_tensor;
  /* memory */
  double context_bytes;      /* bytes outside of the caching allocator, as nvidia-smi counts them; 0: the profile's */
  double communicator_bytes; /* bytes outside of the allocator that NCCL needs for each axis of more than one rank */
  tws_allocator_kind allocator; /* what places buffers: PyTorch's allocator unless a row says another one */
  double reserved_share;  /* bytes that a caching allocator reserves in addition, as a share of the allocated bytes */
  double logit_bytes;     /* bytes per logit of additional copies of the logits that exist at the same time */
  double all_logit_bytes; /* bytes per logit of a copy of all tokens' logits, even if the loss takes some at a time */
  double scored_share;    /* share of a masked language model's tokens whose logits have such copies; 0: all tokens */
  /* number of micro-batches whose float32 logits the last stage keeps, with ZeRO stages 0 and 1 and more micro-batches
   * than that in a step; the micro-batch whose loss is computed is one of them. 0: logit_bytes says all */
  int kept_outputs;
  tws_loss_chunks loss_chunks;
  tws_runtime_keeps keeps;
  /* 1: weights that have a float32 copy are float32 and cast in each use (torch.autocast), so that backward keeps
   * keeps_cast, gradients are float32, and recomputed layers keep no casts between passes */
  int casts_weights;
  tws_runtime_keeps keeps_cast;
  int bucket_copies; /* 1: buckets in which replicas reduce gradients are copies of all gradients (DDP) */
  /* 1: if adapters train over quantized weights, the other frozen parameters (embedding, norms, head) are float32, and
   * so is the input of each layer, which a recomputed layer keeps (PEFT's prepare_model_for_kbit_training()) */
  int widens_frozen;
  int root_stays;    /* 1: with ZeRO-3 parameters outside of layers stay gathered from forward to backward (FSDP) */
  int gather_copies; /* number of 16-bit copies of a layer that gathering it has in addition to the plan's (FSDP2) */
  int keeps_wide;    /* 1: inputs of 8-bit products are kept in 16 bits and cast again in backward */
  double workspace_bytes[TWS_GENERATION_COUNT]; /* bytes of libraries' workspaces that come from PyTorch's allocator */
  int float_gradients;                          /* 1: gradients are accumulated in float32 */
  int keeps_gradients; /* 1: without ZeRO 2 or 3 gradients have one buffer, which stays allocated between steps */
  int gradient_copies; /* 1: the optimizer copies gradients to a flat 16-bit tensor, then to float32 */
  /* 1: recomputation by operation keeps the output of the down projection, although no operation reads it */
  int unread_outputs;
  /* 1: ZeRO-3 reduces an interleaved 16-bit copy of each bucket of gradients, ZeRO-2 a flattened one, and ZeRO-2 fills
   * a second bucket if reductions overlap */
  int copies_buckets;
  /* ZeRO-3 without zero.Init: each device holds the whole model before it is partitioned (1), or the whole model and
   * its partition (2); 0: neither */
  int loads_whole;
  /* 1: gradients are allocated in backward and freed after the optimizer step, so none exists at the same time as the
   * logits */
  int late_gradients;
  /* 1: with ZeRO-3 each layer is one flat parameter (FSDP), whose gradient, that of frozen parts included, is whole on
   * each rank while micro-batches accumulate */
  int flat_gradients;
  /* 1: routing weights are applied before the experts' last product, so backward does not read its output */
  int weighs_early;
  /* 1: inputs of products in 8 and 4 bits, and weights for them, are kept as Transformer Engine keeps them
   * (job/software_narrow.c) */
  int narrow_inputs, narrow_weights;
  /* number of stage boundary tensors that a pipeline keeps for each micro-batch in flight in addition to the plan's */
  int boundary_tensors;
  tws_step_software step;    /* the software whose buffers are on a device around the optimizer step */
  tws_host_software host;    /* the software whose buffers are in a node's memory if states are offloaded */
  double host_process_bytes; /* bytes of a rank's process in the node's memory: interpreter, libraries, data loaders */
} tws_runtime;

/* Returns the runtime with that name, or NULL. "twinspeed" is this program's own engine, which changes only the rates
 * of matrix products and attention on Hopper. */
const tws_runtime *tws_runtime_find(const char *name);
/* Finds a runtime as tws_runtime_find() does. Fails with TWS_INVALID for an unknown name; the hint lists the names. */
tws_code tws_runtime_parse(const char *name, const tws_runtime **out, tws_error *err);
const char *const *tws_runtime_names(void); /* NULL-terminated */

/* Applies a runtime to a GPU's profile; values that the profile measured are not changed. To be called once for a
 * profile. Fails with TWS_INVALID for the profile of a host, unless the runtime is "twinspeed". */
tws_code tws_profile_set_runtime(tws_profile *profile, const tws_runtime *runtime, tws_error *err);
const tws_runtime *tws_profile_runtime(const tws_profile *profile); /* never NULL */
/* Replaces the allocator of the profile's runtime: "fixed" segments are PyTorch's default, "expandable" ones those of
 * PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. To be called after tws_profile_set_runtime(). Fails with TWS_USAGE
 * for another word, and with TWS_INVALID for hosts and this program's own engine, which have no allocator. */
tws_code tws_profile_set_allocator(tws_profile *profile, const char *word, tws_error *err);
/* Returns the word of the profile's allocator, "fixed" or "expandable"; NULL: buffers are placed without one. */
const char *tws_profile_allocator_name(const tws_profile *profile);
/* Makes the exchange of tokens between experts overlap with the matrix products of another micro-batch (Megatron-Core's
 * overlap_moe_expert_parallel_comm) if the software sends each token once; the exchange is then assumed to take no
 * longer than those products. */
void tws_profile_overlap_experts(tws_profile *profile);
/* States that one host thread issues segments of a micro-batch's forward pass and of another's backward pass
 * alternately and waits for the device between them (Megatron-Core's overlap_moe_expert_parallel_comm in interleaved
 * pipelines): launches never run ahead, so the host's time and the device's are added. */
void tws_profile_issue_in_turns(tws_profile *profile);
int tws_profile_issues_in_turns(const tws_profile *profile);
/* States that experts have biases and a clamped gate, which Megatron-Core applies in separate operations of PyTorch:
 * these read and write the bytes of TWS_PASSES_BIASED_EXPERTS, and each forward of the gate waits for the host as
 * routing does (route_s). To be called after tws_profile_set_runtime(). */
void tws_profile_bias_experts(tws_profile *profile);
/* States that backward recomputes the scores of unfused attention (selective recomputation of Korthikanti et al.,
 * 2022). */
void tws_profile_recompute_scores(tws_profile *profile);
int tws_profile_recomputes_scores(const tws_profile *profile);
/* States that the job uses dropout and that the software keeps a mask of one byte for each element of a dropout layer,
 * as unfused layers always do. */
void tws_profile_keep_masks(tws_profile *profile);
int tws_profile_keeps_masks(const tws_profile *profile);
/* Returns the bytes that a kernel on the host reads and writes, divided by the share of the memory's bandwidth that the
 * runtime reaches there (host_reached). */
double tws_profile_host_bytes(const tws_profile *profile, const tws_work *work);
/* Returns the bytes of libraries' workspaces in PyTorch's allocator on this GPU. */
double tws_profile_library_bytes(const tws_profile *profile);
/* Sets the input type of the matrix products of 16-bit layers, except attention. Fails with TWS_INVALID if the GPU has
 * no rate for this type. */
tws_code tws_profile_set_matmul(tws_profile *profile, tws_matmul_dtype dtype, tws_error *err);
/* Returns 1 if plans contain the casts before fp8 products as operations, as for this program's own engine. */
int tws_profile_plans_casts(const tws_profile *profile);

#endif
