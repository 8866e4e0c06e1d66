/* The kernels, which do all arithmetic of the program. A plan's compute operation names a kernel with a shape;
 * models/hardware predicts its time, real/host and real/cuda execute it, and one table of cases tests all of them.
 * models/operators.def defines what each kernel computes, its sizes, parameters and operands; docs/operators.md is
 * generated from it. All tensors are row-major and contiguous. "tokens" is micro batch x sequence length. Arithmetic
 * is float32 or better for all storage types; reductions run in an order that depends only on the shape and the number
 * of threads, so that equal work gives equal bits. */
#ifndef TWS_MODELS_KERNEL_H
#define TWS_MODELS_KERNEL_H

#include <stdint.h>
#include <stddef.h>
#include "base/dtype.h"

typedef enum tws_kernel {
#define OPERATOR(id, ...) TWS_KERNEL_##id,
#include "models/operators.def"
  TWS_KERNEL_COUNT
} tws_kernel;
const char *tws_kernel_name(tws_kernel kernel);

typedef enum tws_collective {
#define COLLECTIVE(id, ...) TWS_COLLECTIVE_##id,
#include "models/collectives.def"
  TWS_COLLECTIVE_COUNT
} tws_collective;
const char *tws_collective_name(tws_collective collective);

enum {
  TWS_ACCUMULATE = 1,       /* the kernel adds to the gradient output instead of writing it */
  TWS_ACCUMULATE_PARAM = 2, /* NORM_GRAD adds to dweight, dbias and sums; LINEAR_GRAD_INPUT adds to sums */
  TWS_BIAS = 4,             /* LINEAR, LINEAR_GRAD_WEIGHT, NORM, NORM_GRAD: there is a bias; ROUTER: experts have one */
  TWS_RMS = 8,
  TWS_L2 = 16,
  TWS_SCALED = 32, /* losses, CLIP: an operand has the hyperparameters (loss scale) */
  TWS_NARROW = 32, /* LINEAR: also saves the input in 8 bits; LINEAR_GRAD_WEIGHT: reads it so */
  TWS_GELU = 64,   /* LINEAR, LINEAR_GRAD_INPUT: the activation after a layer, or its gradient, is fused */
  TWS_RESIDUAL = 128,     /* NORM: the norm of the sum of two inputs; the sum is an output too */
  TWS_HALF_WEIGHTS = 256, /* weight updates: there is no float32 copy of the weights */
  TWS_HALF_MOMENTS = 512, /* weight updates: the optimizer states have 16 bits */
  TWS_STOCHASTIC = 1024,  /* weight updates: stochastic rounding of 16-bit results */
  /* ATTENTION and ATTENTION_GRAD: */
  TWS_BIDIRECTIONAL = 2048, /* queries see later keys too */
  TWS_ALIBI = 4096,         /* linear biases are added to scores */
  TWS_DROPOUT = 8192,       /* attention probabilities have dropout */
  TWS_LENGTHS = 16384,      /* an operand has the number of keys of each sequence */
  TWS_Q_KV = 32768,         /* queries are one operand, keys and values a second one */
  TWS_Q_K_V = 65536,        /* queries, keys and values are three operands */
  TWS_RUNNING = 131072,     /* BATCH_NORM: updates running statistics; ROPE, ROPE_GRAD: frequencies have divisors */
  TWS_SIGMOID = 262144,     /* ROUTER, ROUTER_GRAD: scores are sigmoids of the logits, not their softmax */
  TWS_INTERLEAVED = 524288, /* ROPE and ROPE_GRAD: pairs are adjacent elements */
  TWS_TOGETHER = 1048576,   /* HEADS_NORM and HEADS_NORM_GRAD: there is one norm over all heads */
  TWS_RELATIVE = 2097152,   /* ATTENTION and ATTENTION_GRAD: an operand is a table of biases by head and distance */
  TWS_PLAIN = 8388608,      /* NORM, NORM_GRAD: there is no weight and no bias */
  TWS_Z_LOSS = 4194304,     /* ROUTER, ROUTER_GRAD: an operand has the log-sum-exp of the logits */
  TWS_PAGED = TWS_Z_LOSS,   /* CACHE_WRITE, CACHED_ATTENTION: an operand says in which blocks a sequence's rows are */
  TWS_COUNTED = TWS_Z_LOSS, /* losses: an operand has the number of ignored targets */
  /* LINEAR and its gradients: operands have 8 bits and a scale each; NORM, SWIGLU, GEGLU, GELU, GELU_EXACT, RELU,
   * SQUARED_RELU, and gradients of these except NORM's and GELU's: the kernel writes its result as 8-bit codes */
  TWS_FP8 = 16777216,
  /* The layouts of 8-bit codes that QUANTIZE and QUANTIZE_SUM write, and with TWS_FP8 activations and their gradients
   * (NORM writes row-major codes, without a flag). These flags reuse bits of flags of ATTENTION: */
  TWS_ROWS = TWS_Q_KV,     /* row-major codes, in the layout of the tensor that is cast */
  TWS_COLUMNS = TWS_Q_K_V, /* codes of the transposed tensor */
  TWS_SUMS = 33554432, /* LINEAR_GRAD_INPUT, NORM_GRAD: the kernel also sums dx over the tokens (a bias gradient) */
  TWS_DOCUMENTS =
      67108864, /* ATTENTION, ROPE, LATENT and their gradients: an operand says where documents begin and end
                             */
  TWS_SPLIT_WEIGHTS = 134217728, /* weight updates: p has the lower halves of float32 weights (LOW16 of base/dtype.h) */
  /* NORM, SWIGLU: an operand gets the largest |y|, with y as it is stored; QUANTIZE, QUANTIZE_SUM: the larger of itself
   * and |x| */
  TWS_LARGEST = 268435456,
};

/* Names of the flags in profiles, by bit; NULL: costs do not depend on the flag. */
enum { TWS_KERNEL_FLAGS = 29 };
const char *tws_kernel_flag_name(int bit);

enum { TWS_WORK_DIMS = 8, TWS_WORK_PARAMETERS = 6 };

/* The work of one operation, without the locations of its operands. Plans store equal works once, and each work is
 * costed once. */
typedef struct tws_work {
  uint8_t kind;   /* tws_op_kind of plan/plan.h */
  uint8_t code;   /* tws_kernel, or tws_collective */
  uint8_t dtype;  /* storage type of activations and parameters (weight updates: of the gradient) */
  uint8_t dtype2; /* storage type of gradient accumulation, or of the other operand (CAST, weight updates) */
  uint32_t flags;
  uint16_t group;           /* collectives: index into the plan's groups; else 0 */
  uint8_t place;            /* tws_place of plan/plan.h: the place of execution affects the cost */
  uint8_t tiers;            /* COPY: from tier x TWS_TIER_COUNT + to tier; else 0 */
  uint32_t segments;        /* collectives: number of segments coalesced into one call */
  /* sizes; collectives: d[0] = bytes of the whole tensor that a ring reduces or gathers; all-gathers: d[7] = bytes of
   * the rank's own part that are copied into the output, 0 if it lies there already */
  int64_t d[TWS_WORK_DIMS];
  double f[TWS_WORK_PARAMETERS];
} tws_work;

/* Constants of one operation. Arguments change the results of an operation, but neither its operands' sizes nor its
 * cost, so that ranks and layers that differ only in arguments have equal works. models/operators.def lists them;
 * integers up to 2^53 are exact. */
enum { TWS_ARGUMENTS = 6 };
typedef struct tws_arguments {
  double a[TWS_ARGUMENTS];
} tws_arguments;
extern const tws_arguments tws_no_arguments; /* all 0 */

/* Returns 1 for a kernel that turns scores into their gradient and adds the loss to its operand 2, the metrics:
 * CROSS_ENTROPY and the losses with its operands. */
int tws_is_whole_loss(tws_kernel kernel);

/* Return the flops (multiply-add = 2) and the bytes (compulsory reads and writes of operands) of one execution, by
 * formula. */
double tws_work_flops(const tws_work *work);
double tws_work_bytes(const tws_work *work);

/* Returns the bytes of scratch memory, part of the plan's arena, that the kernel needs with this backend. */
typedef enum tws_backend_kind { TWS_BACKEND_HOST, TWS_BACKEND_CUDA } tws_backend_kind;
size_t tws_work_workspace(const tws_work *work, tws_backend_kind backend, int threads);

/* Workspace of ATTENTION and ATTENTION_GRAD on the host: tws_host_attention_workspace() returns the bytes for at most
 * `threads` threads, tws_host_attention_thread_floats() the floats for one thread. */
enum { TWS_HOST_ATTENTION_TILE = 64 };
size_t tws_host_attention_workspace(const tws_work *work, int threads);
size_t tws_host_attention_thread_floats(const tws_work *work);
/* tws_host_attention_distances() returns the number of floats of one head's relative biases by distance, beginning with
 * the largest distance of a key before its query; tws_attention_bias_parts() the number of gradient tables of all
 * heads, which precede the threads' scratch memory. */
enum { TWS_HOST_ATTENTION_LEAD = 16 };
size_t tws_host_attention_distances(const tws_work *work);
size_t tws_attention_bias_parts(const tws_work *work, tws_backend_kind backend);
/* Scratch memory of DISENTANGLED and DISENTANGLED_GRAD: tws_host_disentangled_thread_floats() returns the floats per
 * thread of the host, tws_disentangled_workspace() the bytes for either backend (on a device, the backward pass needs
 * one float32 sum per query). */
size_t tws_host_disentangled_thread_floats(const tws_work *work);
size_t tws_disentangled_workspace(const tws_work *work, tws_backend_kind backend, int threads);

/* Indices in the two small buffers that every plan has: hyper (float32, written by the executor before each step) and
 * metrics (float64, zeroed by the executor before each step, read after it). */
enum {
  TWS_HYPER_LR,
  TWS_HYPER_BIAS1, /* 1 - beta1^t, or 1 */
  TWS_HYPER_BIAS2,
  TWS_HYPER_SCALE, /* factor of the loss */
  TWS_HYPER_STEP,  /* number of the update modulo 2^24, from which random bits are generated */
  TWS_HYPER_BETA1, /* Adam's betas of this step, which schedules may change */
  TWS_HYPER_BETA2,
  TWS_HYPER_REST1, /* 1 - beta1, computed from the float64 beta1 */
  TWS_HYPER_REST2,
  TWS_HYPER_SUMMED_LR, /* sum of the learning rates since ranks last agreed on the weights (local steps), or 0 */
  TWS_HYPER_COUNT
};
enum { TWS_LOSS_HEADS = 4 }; /* most losses of a network */
enum {
  TWS_METRIC_LOSS,
  TWS_METRIC_IGNORED, /* fraction (0 to 1) of the step's tokens whose target is ignored */
  TWS_METRIC_SQUARES,
  TWS_METRIC_NORM,
  TWS_METRIC_CLIP,
  TWS_METRIC_OVERFLOW, /* TWS_SCALED: 1: the loss or a gradient is not finite, and updates do nothing */
  TWS_METRIC_HEADS,    /* networks with several losses: for each, the mean loss and the fraction of ignored targets */
  TWS_METRIC_AUXILIARY = TWS_METRIC_HEADS + 2 * TWS_LOSS_HEADS, /* weighted balancing losses of routers, not in LOSS */
  TWS_METRIC_DROPPED,                                           /* fraction of the routers' routes that were dropped */
  /* The number of these metrics. In the buffer, the numbers of routes to each expert follow, router by router of the
   * whole network. Ranks reduce all metrics of routers at once, from TWS_METRIC_AUXILIARY on. */
  TWS_METRIC_COUNT
};

#endif
