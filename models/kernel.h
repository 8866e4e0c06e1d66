/* The kernels: the only arithmetic the program knows. A plan's compute operation names one of them with a shape;
 * models/hardware says what it costs, real/host and real/cuda do it, and one table of cases tests them all. What each
 * of them computes, its sizes, parameters and operands stand in models/operators.def, for readers in docs/operators.md.
 *
 * All tensors are row-major and contiguous. "tokens" is micro batch x sequence length. Arithmetic is float32 or better
 * whatever the storage type; reductions run in an order that depends on the shape and the number of threads only, so
 * the same work gives the same bits twice. */
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
  TWS_ACCUMULATE = 1,       /* add to the gradient output */
  TWS_ACCUMULATE_PARAM = 2, /* NORM_GRAD: add to dweight, dbias and sums; LINEAR_GRAD_INPUT: to sums */
  TWS_BIAS = 4,             /* LINEAR, LINEAR_GRAD_WEIGHT, NORM, NORM_GRAD: the bias operand is there; ROUTER: of
                               experts */
  TWS_RMS = 8,
  TWS_L2 = 16,
  TWS_SCALED = 32, /* CROSS_ENTROPY, VOCABULARY_LOSS, CLIP: the hyperparameters are one more operand, for the loss scale
                      in them */
  TWS_NARROW = 32, /* LINEAR: what enters is also kept in 8 bits; LINEAR_GRAD_WEIGHT: and read so */
  TWS_GELU = 64,   /* LINEAR, LINEAR_GRAD_INPUT: the activation after a layer, or its gradient, is fused */
  TWS_RESIDUAL = 128,     /* NORM: of a sum, which is kept */
  TWS_HALF_WEIGHTS = 256, /* updates of weights: the 16-bit parameters are the only weights */
  TWS_HALF_MOMENTS = 512, /* and their states */
  TWS_STOCHASTIC = 1024,  /* updates: 16-bit results are rounded at random */
  /* ATTENTION and ATTENTION_GRAD: */
  TWS_BIDIRECTIONAL = 2048, /* queries see later keys too */
  TWS_ALIBI = 4096,         /* linear biases */
  TWS_DROPOUT = 8192,       /* of probabilities */
  TWS_LENGTHS = 16384,      /* an operand says how many keys each sequence has */
  TWS_Q_KV = 32768,         /* queries are one operand, keys and values another */
  TWS_Q_K_V = 65536,        /* queries, keys and values are three */
  TWS_RUNNING = 131072,     /* BATCH_NORM: running statistics follow; ROPE, ROPE_GRAD: factors of the frequencies */
  TWS_SIGMOID = 262144,     /* ROUTER, ROUTER_GRAD: scores are sigmoids of the logits, not their softmax */
  TWS_INTERLEAVED = 524288, /* ROPE and ROPE_GRAD: pairs are adjacent elements */
  TWS_TOGETHER = 1048576,   /* HEADS_NORM and HEADS_NORM_GRAD: all heads as one */
  TWS_RELATIVE = 2097152,   /* ATTENTION and ATTENTION_GRAD: biases of a table, by head and distance */
  TWS_PLAIN = 8388608,      /* NORM, NORM_GRAD: no weight, no bias */
  TWS_Z_LOSS = 4194304,     /* ROUTER, ROUTER_GRAD: an operand has the logarithms of the softmax's sums */
  TWS_COUNTED = TWS_Z_LOSS, /* CROSS_ENTROPY, VOCABULARY_LOSS: how many targets are ignored is known before */
  TWS_FP8 = 16777216,       /* LINEAR and its gradients: what enters has 8 bits, with a scale for each operand */
  /* QUANTIZE, with bits that ATTENTION has otherwise: */
  TWS_ROWS = TWS_Q_KV,     /* what comes out lies as what enters, */
  TWS_COLUMNS = TWS_Q_K_V, /* and transposed */
  TWS_SUMS = 33554432, /* LINEAR_GRAD_INPUT, NORM_GRAD: the sums of dx over the tokens, a bias' gradient, go with it */
  TWS_DOCUMENTS =
      67108864, /* ATTENTION, ROPE, LATENT and their gradients: an operand says where documents begin and end
                             */
};

/* The flags' names in profiles, by bit, TWS_KERNEL_FLAGS of them; NULL: costs do not depend on it. */
enum { TWS_KERNEL_FLAGS = 27 };
const char *tws_kernel_flag_name(int bit);

enum { TWS_WORK_DIMS = 8, TWS_WORK_PARAMETERS = 6 };

/* The work of one operation, without the locations of its operands. Plans store equal works once, and each is costed
 * once. */
typedef struct tws_work {
  uint8_t kind;   /* tws_op_kind of plan/plan.h */
  uint8_t code;   /* tws_kernel, or tws_collective */
  uint8_t dtype;  /* storage type of activations and parameters (updates: of the gradient) */
  uint8_t dtype2; /* storage type of gradient accumulation, or of the other side (CAST, updates: 16-bit p or F32) */
  uint32_t flags;
  uint16_t group;           /* collectives: index into the plan's groups; else 0 */
  uint8_t place;            /* tws_place of plan/plan.h: where it runs is part of what it costs */
  uint8_t tiers;            /* COPY: from tier x TWS_TIER_COUNT + to tier; else 0 */
  uint32_t segments;        /* collectives: pieces coalesced into one call */
  int64_t d[TWS_WORK_DIMS]; /* collectives: d[0] = bytes of the whole (the full tensor a ring would reduce or gather) */
  double f[TWS_WORK_PARAMETERS];
} tws_work;

/* Constants of one operation: they change what it computes, and neither its operands' sizes nor what it costs, so that
 * ranks and layers which differ in nothing else have equal works. What they are stands in models/operators.def; whole
 * numbers up to 2^53 are exact. */
enum { TWS_ARGUMENTS = 6 };
typedef struct tws_arguments {
  double a[TWS_ARGUMENTS];
} tws_arguments;
extern const tws_arguments tws_no_arguments; /* all 0 */

/* Counts of one execution, by formula (multiply-add = 2 flops). bytes: compulsory reads and writes of operands. */
double tws_work_flops(const tws_work *work);
double tws_work_bytes(const tws_work *work);

/* Scratch memory that the backend needs for this kernel; part of the plan's arena. */
typedef enum tws_backend_kind { TWS_BACKEND_HOST, TWS_BACKEND_CUDA } tws_backend_kind;
size_t tws_work_workspace(const tws_work *work, tws_backend_kind backend, int threads);

/* The host's share of it: ATTENTION and ATTENTION_GRAD, for a backend of at most `threads` threads; the floats
 * of one. */
enum { TWS_HOST_ATTENTION_TILE = 64 };
size_t tws_host_attention_workspace(const tws_work *work, int threads);
size_t tws_host_attention_thread_floats(const tws_work *work);
/* Floats of a head's relative biases by distance, of which the first is that of the largest backwards; and of the
 * gradients of all heads' tables, which stand before the threads' scratch. */
enum { TWS_HOST_ATTENTION_LEAD = 16 };
size_t tws_host_attention_distances(const tws_work *work);
size_t tws_attention_bias_parts(const tws_work *work, tws_backend_kind backend);
/* DISENTANGLED and DISENTANGLED_GRAD: of a thread on the host; on a device a float32 sum for each query backward. */
size_t tws_host_disentangled_thread_floats(const tws_work *work);
size_t tws_disentangled_workspace(const tws_work *work, tws_backend_kind backend, int threads);

/* Slots of the two small buffers every plan has: hyper (float32, written by the executor before each step) and
 * metrics (float64, zeroed by the executor before each step, read after it). */
enum {
  TWS_HYPER_LR,
  TWS_HYPER_BIAS1, /* 1 - beta1^t, or 1 */
  TWS_HYPER_BIAS2,
  TWS_HYPER_SCALE, /* the loss scale */
  TWS_HYPER_STEP,  /* number of the update, modulo 2^24: random bits differ from step to step */
  TWS_HYPER_BETA1, /* of this step: schedules may move them */
  TWS_HYPER_BETA2,
  TWS_HYPER_REST1, /* 1 - beta1, from the float64 beta1 */
  TWS_HYPER_REST2,
  TWS_HYPER_COUNT
};
enum { TWS_LOSS_HEADS = 2 }; /* losses of a network, at most */
enum {
  TWS_METRIC_LOSS,
  TWS_METRIC_IGNORED, /* share of the step's tokens whose target is ignored */
  TWS_METRIC_SQUARES,
  TWS_METRIC_NORM,
  TWS_METRIC_CLIP,
  TWS_METRIC_OVERFLOW, /* with TWS_SCALED: 1 when the loss or a gradient is not finite, and updates do nothing */
  TWS_METRIC_HEADS,    /* with several losses: of each its mean, and the share of its targets that is ignored */
  TWS_METRIC_AUXILIARY = TWS_METRIC_HEADS + 2 * TWS_LOSS_HEADS, /* of routers: the weighted loss that balances experts;
                                                                   it is not part of TWS_METRIC_LOSS */
  TWS_METRIC_DROPPED,                                           /* and the share of their routes that were dropped */
  /* the number of metrics; routes to each expert follow them, router by router of the whole network. Ranks reduce all
   * counts of routers at once, from TWS_METRIC_AUXILIARY on */
  TWS_METRIC_COUNT
};

#endif
