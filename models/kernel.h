/* The kernels: the only arithmetic the program knows. A plan's compute operation names one of them with a shape;
 * models/hardware says what it costs, real/host and real/cuda do it, and one table of cases tests them all.
 *
 * All tensors are row-major and contiguous. "tokens" is micro batch x sequence length. `w` stands for tws_work.
 * Gradient outputs marked (+) are overwritten, or added to when the flag TWS_ACCUMULATE (first marked output) is set.
 * Arithmetic is float32 or better whatever the storage type; reductions run in an order that depends on the shape
 * and the number of threads only, so the same work gives the same bits twice.
 *
 *   kernel               d[]                                         operands, in order
 *   EMBEDDING            tokens, width, vocabulary, positions, seq   R ids(i32), R wte[vocabulary,width], [R wpe[positions,width]], W x[tokens,width]
 *                        (positions 0: no wpe operand)        f[0] = id of the table's first row; an id outside the table adds nothing (its x is 0 + position)
 *   EMBEDDING_GRAD       tokens, width, vocabulary                   R ids, R dx, (+) dwte        rows without a token become 0 when not accumulating; f[0] as EMBEDDING: ids outside are left out
 *   POSITION_GRAD        tokens, width, positions, seq               R dx, (+) dwpe               rows from seq on become 0 when not accumulating
 *   NORM                 tokens, width                               R x, R weight, [R bias], W y, W stats(f32), [R r, W sum]
 *                        flag RMS: RMSNorm, no bias operand, stats[tokens] = 1/rms; else LayerNorm, stats[tokens,2] = mean, 1/std;  f[0] = epsilon
 *                        flag RESIDUAL: sum = x + r, rounded to its type, is what is normalised; sum may be x or r
 *   NORM_GRAD            tokens, width                               R dy, R x, R weight, R stats, (+) dx, W|RW dweight, [W|RW dbias]
 *                        flag ACCUMULATE for dx, ACCUMULATE_PARAM for dweight and dbias
 *   LINEAR               m=tokens, n=out, k=in                       R x[m,k], R weight[n,k], [R bias[n]], W y[m,n], [W z[m,n]]       flag BIAS
 *                        flag GELU: z = x weight^T + bias, y = gelu(z) as GELU; y may be made of z before or after it is rounded to its type
 *   LINEAR_GRAD_INPUT    m, n, k                                     R dy[m,n], R weight[n,k], (+) dx[m,k], [R z[m,k]]
 *                        flag GELU: dx = (dy weight) * gelu'(z), z as LINEAR of the layer before left it; the product may be rounded to its type first. Not with ACCUMULATE
 *   LINEAR_GRAD_WEIGHT   m, n, k                                     R dy[m,n], R x[m,k], (+) dweight[n,k], [(+) dbias[n]]   flag BIAS; one flag ACCUMULATE for both
 *   ROPE                 tokens, q heads, kv heads, head size, seq   RW qkv[tokens,(q+2kv) head size]   f[0] = theta, f[1..4] = llama3 scaling factor (0: none), low, high, original length; rotate-half convention
 *   ROPE_GRAD            as ROPE                                     RW dqkv
 *   ATTENTION            batch, seq, q heads, kv heads, head size    R qkv[batch,seq,(q+2kv) head size], W o[batch,seq,q head size], W lse(f32)[batch,q,seq], RW workspace
 *                        causal, scale 1/sqrt(head size); row layout is all q heads, then all k heads, then all v heads
 *   ATTENTION_GRAD       as ATTENTION                                R do, R qkv, R o, R lse, W dqkv, RW workspace
 *   GELU                 count                                       R x, W y          tanh approximation ("gelu_new")
 *   GELU_GRAD            count                                       R dy, R x, W dx   dx may be dy
 *   SWIGLU               tokens, width                               R gate_up[tokens,2 width], W y[tokens,width]   y = silu(gate) up; gate is the first half of a row
 *   SWIGLU_GRAD          tokens, width                               R dy, R gate_up, W dgate_up
 *   ADD                  count                                       R x, R y, W z     z may be x or y
 *   CROSS_ENTROPY        tokens, vocabulary, padded vocabulary       RW logits, R targets(i32), RW metrics(f64)[2], [R hyper(f32)]
 *                        logits become dlogits = f[0] (softmax - onehot), padding columns 0; metrics[0] += f[1] sum of -log p. A target of -1 is ignored: loss 0, dlogits 0, metrics[1] += f[1]
 *                        flag SCALED: dlogits are multiplied by hyper[SCALE]
 *   VOCABULARY_STATS     tokens, vocabulary, padded vocabulary       R logits, R targets(i32), W stats(f32)[tokens,3]
 *                        one rank's columns of the logits, the first of them is id f[0]: per token the maximum, the sum of exp(logit - maximum), and the target's logit, 0 when it is not
 *                        among the columns. vocabulary may be 0 (all padding): maximum -infinity, sum 0
 *   VOCABULARY_LOSS      tokens, vocabulary, padded, ranks           RW logits, R targets, R stats(f32)[ranks,tokens,3], RW metrics(f64)[2], [R hyper(f32)]
 *                        CROSS_ENTROPY on one rank's columns, given all ranks' stats: f[0], f[1] as there, f[2] = first id (every rank counts the whole loss: f[1] has the division)
 *   ADAMW                count, first                                RW p(f32), RW m(f32), RW v(f32), R grad, R hyper(f32), R metrics(f64), [W p16]   nothing changes when metrics[CLIP] is 0
 *                        f = epsilon, weight decay, seed; flag L2: decay is added to the gradient. The betas are hyper's
 *                        flag HALF_WEIGHTS: p and grad are bf16, and there is no p16; flag HALF_MOMENTS, only with it: m and v are bf16 too, and change p before they are rounded
 *                        flag STOCHASTIC, only with HALF_WEIGHTS: what is stored in bf16 is rounded at random, of element first + i with the bits of base/philox.h for the seed and
 *                        hyper[STEP]; else to nearest. NaN stays NaN
 *   SQUARED_NORM         count                                       R x, RW metrics(f64)[1]   adds f[0] x sum of squares
 *   CLIP                 (none)                                      RW metrics(f64), [R hyper(f32)]   f[0] = max norm (0: no clipping); sets metrics[NORM] and metrics[CLIP], and
 *                        turns means over all tokens into means over those that count: with kept = 1 - metrics[IGNORED], metrics[LOSS] /= kept, NORM = sqrt(SQUARES) / kept, and CLIP, which
 *                        multiplies gradients in ADAMW, = min(1, max norm / NORM) / kept. kept below 1e-9 (nothing counts): all three 0.
 *                        CLIP is 0 when NORM is not finite. flag SCALED: NORM and CLIP are divided by hyper[SCALE], and metrics[OVERFLOW] = 1 and CLIP = 0 when LOSS or SQUARES is not finite
 *   FILL                 count                                       W x                       f[0] = value
 *   ACCUMULATE           count                                       R x, RW y                 y += x
 *   CAST                 count                                       R x, W y                  types are those of the operands
 *   TRANSPOSE            a, b, width                                 R x[a,b,width], W y[b,a,width]
 *   HEADS_PACK           tokens, ranks, q heads, kv heads, head size R x[tokens,(q+2kv) head size], W y[ranks,tokens,(q/ranks + 2 share) head size]
 *                        columns of x dealt to ranks: rank r gets query heads [r q/ranks, +q/ranks), then its share of key heads, then of value heads. share = kv/ranks heads from
 *                        r kv/ranks on; when kv < ranks one head, r kv/ranks rounded down (ranks / kv ranks have the same). kv = 0: no keys and values.
 *                        ranks must divide q, and ranks and kv one the other
 *   HEADS_UNPACK         as HEADS_PACK                               R y, W x                  the transpose of HEADS_PACK: x[...] = sum of all y[...] that were copied from it
 */
#ifndef TWS_MODELS_KERNEL_H
#define TWS_MODELS_KERNEL_H

#include <stdint.h>
#include <stddef.h>
#include "base/dtype.h"

#define TWS_KERNELS(X)                                                                                             \
  X(EMBEDDING, "embedding") X(EMBEDDING_GRAD, "embedding_grad") X(POSITION_GRAD, "position_grad")                  \
  X(NORM, "norm") X(NORM_GRAD, "norm_grad")                                                                        \
  X(LINEAR, "linear") X(LINEAR_GRAD_INPUT, "linear_grad_input") X(LINEAR_GRAD_WEIGHT, "linear_grad_weight")        \
  X(ROPE, "rope") X(ROPE_GRAD, "rope_grad")                                                                        \
  X(ATTENTION, "attention") X(ATTENTION_GRAD, "attention_grad")                                                    \
  X(GELU, "gelu") X(GELU_GRAD, "gelu_grad") X(SWIGLU, "swiglu") X(SWIGLU_GRAD, "swiglu_grad")                      \
  X(ADD, "add") X(CROSS_ENTROPY, "cross_entropy")                                                                  \
  X(VOCABULARY_STATS, "vocabulary_stats") X(VOCABULARY_LOSS, "vocabulary_loss")                                    \
  X(ADAMW, "adamw") X(SQUARED_NORM, "squared_norm") X(CLIP, "clip")                                                \
  X(FILL, "fill") X(ACCUMULATE, "accumulate") X(CAST, "cast")                                                      \
  X(TRANSPOSE, "transpose") X(HEADS_PACK, "heads_pack") X(HEADS_UNPACK, "heads_unpack")

typedef enum tws_kernel {
#define X(name, text) TWS_KERNEL_##name,
  TWS_KERNELS(X)
#undef X
  TWS_KERNEL_COUNT
} tws_kernel;
const char *tws_kernel_name(tws_kernel kernel);

#define TWS_COLLECTIVES(X)                                                                                         \
  X(ALL_REDUCE, "all_reduce") X(REDUCE, "reduce") X(ALL_GATHER, "all_gather")                                      \
  X(REDUCE_SCATTER, "reduce_scatter") X(BROADCAST, "broadcast") X(ALL_TO_ALL, "all_to_all") X(BARRIER, "barrier")
typedef enum tws_collective {
#define X(name, text) TWS_COLLECTIVE_##name,
  TWS_COLLECTIVES(X)
#undef X
  TWS_COLLECTIVE_COUNT
} tws_collective;
const char *tws_collective_name(tws_collective collective);

enum {
  TWS_ACCUMULATE = 1,       /* add to the gradient output */
  TWS_ACCUMULATE_PARAM = 2, /* NORM_GRAD: add to dweight and dbias */
  TWS_BIAS = 4,             /* LINEAR, LINEAR_GRAD_WEIGHT, NORM, NORM_GRAD: the bias operand is there */
  TWS_RMS = 8,
  TWS_L2 = 16,
  TWS_SCALED = 32, /* CROSS_ENTROPY, VOCABULARY_LOSS, CLIP: the hyperparameters are one more operand, for the loss scale in them */
  TWS_GELU = 64,      /* LINEAR, LINEAR_GRAD_INPUT: the activation behind a layer, or its gradient, is part of the product */
  TWS_RESIDUAL = 128, /* NORM: of a sum, which is kept */
  TWS_HALF_WEIGHTS = 256, /* ADAMW: the 16-bit parameters are the only weights */
  TWS_HALF_MOMENTS = 512, /* ADAMW: of 16 bits too */
  TWS_STOCHASTIC = 1024,  /* ADAMW: 16-bit results are rounded at random */
};

/* The flags' words in profiles, by bit, TWS_KERNEL_FLAGS of them; NULL: costs do not depend on it. */
enum { TWS_KERNEL_FLAGS = 11 };
const char *tws_kernel_flag_word(int bit);

/* What one operation does, apart from where its operands are. Plans intern these: equal work is costed once. */
typedef struct tws_work {
  uint8_t kind;   /* tws_op_kind of plan/plan.h */
  uint8_t code;   /* tws_kernel, or tws_collective */
  uint8_t dtype;  /* storage type of activations and parameters (ADAMW etc.: of the gradient) */
  uint8_t dtype2; /* storage type of gradient accumulation, or of the other side (CAST, ADAMW: 16-bit p or F32) */
  uint32_t flags;
  uint16_t group; /* collectives: index into the plan's groups; else 0 */
  uint8_t place;  /* tws_place of plan/plan.h: where it runs is part of what it costs */
  uint8_t tiers;  /* COPY: from tier x TWS_TIER_COUNT + to tier; else 0 */
  uint32_t segments; /* collectives: pieces coalesced into one call */
  int64_t d[5];   /* collectives: d[0] = bytes of the whole (the full tensor a ring would reduce or gather) */
  double f[5];
} tws_work;

/* Counts of one execution, by formula (multiply-add = 2 flops). bytes: compulsory reads and writes of operands. */
double tws_work_flops(const tws_work *work);
double tws_work_bytes(const tws_work *work);

/* Scratch memory that the backend needs for this kernel; part of the plan's arena. */
typedef enum tws_backend_kind { TWS_BACKEND_HOST, TWS_BACKEND_CUDA } tws_backend_kind;
size_t tws_work_workspace(const tws_work *work, tws_backend_kind backend, int threads);

/* The host's share of it: ATTENTION and ATTENTION_GRAD, for a backend of at most `threads` threads; the floats of one. */
enum { TWS_HOST_ATTENTION_TILE = 64 };
size_t tws_host_attention_workspace(const tws_work *work, int threads);
size_t tws_host_attention_thread_floats(const tws_work *work);

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
enum {
  TWS_METRIC_LOSS,
  TWS_METRIC_IGNORED, /* share of the step's tokens whose target is ignored */
  TWS_METRIC_SQUARES,
  TWS_METRIC_NORM,
  TWS_METRIC_CLIP,
  TWS_METRIC_OVERFLOW, /* with TWS_SCALED: 1 when the loss or a gradient is not finite, and ADAMW does nothing */
  TWS_METRIC_COUNT = 8
};

#endif
