/* A network: modules in forward order, the values that flow between them and the parameters they own.
 * Nothing here knows about ranks, sharding or hardware. Sizes are per token unless said otherwise. */
#ifndef TWS_MODELS_NETWORK_H
#define TWS_MODELS_NETWORK_H

#include <stdint.h>
#include "base/dtype.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/axes.h"

#define TWS_NONE UINT32_MAX

/* Types of modules; models/network/modules.def defines what each computes. An output "in place" is a value of its own
 * (each value has one producer) that takes over the memory of its input, whose last reader is that module. */
typedef enum tws_module_type {
#define MODULE(id, ...) TWS_MODULE_##id,
#include "models/network/modules.def"
  TWS_MODULE_TYPE_COUNT
} tws_module_type;
enum { TWS_ROPE_PARAMETERS = 6 };
enum { TWS_MODULE_INS = 4, TWS_MODULE_OUTS = 5, TWS_MODULE_PARAMS = 4, TWS_MODULE_KERNELS = 4 };

/* A dimension of a value or of an input, whose length follows from the job. */
typedef enum tws_dim_kind {
  TWS_DIM_FIXED,    /* `size` */
  TWS_DIM_SAMPLES,  /* of a micro-batch */
  TWS_DIM_SEQUENCE, /* `size`, or with 0 the length of the job's sequences */
  TWS_DIM_TARGET,   /* the same of what a decoder writes of them: twinspeed.target_length, or as long */
  TWS_DIM_PIXELS,   /* `size`: of the height or the width of a picture, whose rows are pixels */
  TWS_DIM_CAPACITY  /* slots of an expert: `factor` x the tokens of a micro-batch for each of `parts` experts, at least
                       `size`; 0: as many as tokens; less than 0: -factor x what the configuration says */
} tws_dim_kind;
typedef struct tws_dim {
  tws_dim_kind kind;
  int32_t parts;
  int64_t size;
  double factor;
} tws_dim;
enum { TWS_DIMS = 4 };

/* Training objectives, which determine how inputs are built (real/objective.h). */
typedef enum tws_objective {
  TWS_OBJECTIVE_NEXT_TOKEN, /* each token from those before it */
  TWS_OBJECTIVE_MASKED,     /* tokens that were masked, from all others */
  TWS_OBJECTIVE_SENTENCES,  /* the same of two texts in one, and whether the second follows the first */
  TWS_OBJECTIVE_PAIRS,      /* each token of a target from those before it and a source */
  TWS_OBJECTIVE_PICTURES,   /* the class of a picture */
  TWS_OBJECTIVE_CLASSES,    /* the class of a text */
  TWS_OBJECTIVE_TAGS,       /* the class of each token */
  TWS_OBJECTIVE_SPANS,      /* where in a text an answer begins and ends */
} tws_objective;

/* Routing of tokens to experts: the parameters of ROUTER (models/operators.def), and the slots of an expert. */
typedef struct tws_routing {
  int32_t experts, choices;                        /* of the layer; of a token */
  int32_t keeps, by_choice, renormalizes, sampled; /* keeps: TWS_KEEPS_* of models/routing.h */
  int32_t sigmoid, groups, kept_groups;            /* scores are sigmoids; only experts of some groups are chosen */
  double auxiliary;                                /* weight of the loss that balances experts */
  double z;                                        /* weight of the loss that keeps logits small; 0: none */
  int32_t biased;                                  /* experts are chosen with biases, which balance them */
  double scale;                                    /* of weights */
  tws_dim slots;
} tws_routing;
/* DeepSpeed's gating (deepspeed/moe/sharded_moe.py): top1gating and top2gating for up to two choices, topkgating for
 * more; random choice of what is kept (top-1) and of the second expert (top-2) where `random`. An expert's slots are
 * ceil(tokens / experts x factor x choices), at least least_slots; factor 0: as many as tokens, so that none is
 * dropped. */
tws_routing tws_routing_like_deepspeed(int32_t experts, int32_t choices, double factor, int64_t least_slots,
                                       int random);

typedef enum tws_value_kind {
  TWS_VALUE_ACTIVATION /* model dtype */,
  TWS_VALUE_STATISTIC /* float32 */,
  TWS_VALUE_INDEX /* int32; without a gradient */
} tws_value_kind;

/* Rows are the dimensions that depend on the job (samples, tokens of sequences, slots of experts), and come first; each
 * row has per_row elements, the product of the fixed dimensions that follow. */
typedef struct tws_value {
  const char *name;  /* "h.3.ln_1.y" */
  uint32_t producer; /* module */
  uint32_t per_row;
  tws_value_kind kind;
  uint8_t row_dims;
  uint8_t constant; /* depends on no trained parameter, so that no gradient of it is needed (tws_network_adapt()) */
  tws_dim row[3];   /* samples and sequence: tokens */
} tws_value;

/* Inputs of a network for each micro-batch, in addition to its parameters. */
typedef enum tws_input_content {
  TWS_INPUT_TOKENS,    /* ids of a text, int32 */
  TWS_INPUT_SOURCE,    /* ids of the text that an encoder reads for a decoder, int32 */
  TWS_INPUT_TARGETS,   /* the id that is to be predicted of each row of the logits, or one that does not count; int32 */
  TWS_INPUT_CLASSES,   /* of a second loss: the class of each sample, or one that does not count; int32 */
  TWS_INPUT_LENGTHS,   /* how many keys of each sample count, int32 */
  TWS_INPUT_TYPES,     /* of each token the segment that it belongs to, int32 */
  TWS_INPUT_DOCUMENTS, /* of each token of whole samples, the positions in the sample where its document begins and
                          after which it ends, int32 */
  TWS_INPUT_POSITIONS, /* of each token its place in its document, int32 */
  TWS_INPUT_ROWS,      /* numbers of rows of a value that are picked out, of the micro-batch, or -1: none; int32 */
  TWS_INPUT_NUMBERS    /* activations: pictures */
} tws_input_content;
typedef struct tws_network_input {
  const char *name;
  tws_input_content content;
  tws_dim dim[TWS_DIMS]; /* rows first */
  uint8_t dims;
} tws_network_input;
enum { TWS_NETWORK_INPUTS = 8 };

typedef struct tws_param {
  const char *name;      /* Hugging Face's name where one exists: "transformer.h.0.attn.c_attn.weight" */
  int64_t rows, columns; /* [rows, columns]; vectors have rows = 1 */
  float init_std;        /* normal(0, init_std); 0 with init_value */
  float init_value;
  float first_std;  /* of the first part of a joined one where that is another; 0: it is not */
  int64_t fused[3]; /* rows of each Hugging Face tensor joined in this one: q, k, v or gate, up; 0: not fused */
  int64_t groups;   /* number of groups of rows in the file, if the parts of a fused parameter are one tensor there too;
                       each group has rows of every part; 0: the parts are separate tensors */
  int64_t shape[4]; /* of its tensor in files where that has other dimensions than rows and columns; 0: it has not */
  uint32_t module;  /* first module that uses it; a tied parameter appears in the module list of others too */
  int32_t experts;  /* number of experts whose rows it holds, one after the other; 0: it is not of experts */
  uint8_t frozen;   /* training leaves it as it is: it has no gradient and no optimizer states */
  uint8_t bits;     /* of an element of a frozen one that is kept in few (models/quantized.h): 4 or 8; 0: it is not */
  tws_axes own_along; /* axes along which every rank has one of its own, of this shape (experts); most have none */
} tws_param;

/* Running statistics: state of a module that no gradient changes, namely means and variances that follow those of
 * batches, or a constant table, which modules may share. Every rank of the module has all of it, in float32. */
typedef struct tws_running {
  const char *name; /* "layer1.0.bn1.running" */
  int64_t rows, columns;
  float init_value[2]; /* of each row, at most two */
  const float *fixed;  /* in place of them: all of a table that stays as it is; NULL: it follows batches */
} tws_running;

/* Windows over the pictures that a convolution or a pooling module reads: models/windows.h. */
typedef struct tws_module_windows {
  int64_t height, width;
  int64_t side, stride, padding, groups; /* side 0: the whole picture */
} tws_module_windows;

/* Heads of latent attention: elements of keys without and with rotary positions, of values, and of the compressed row
 * without its rotary part; the other parameters of LATENT (models/operators.def). */
typedef struct tws_latent {
  int64_t nope, rope, value, rank;
  double theta, factor, low, high, gain;
} tws_latent;

/* Low-rank adapters of a linear layer (LoRA, Hu et al. 2021): y += scale B A x, for each of the up to three parts of y
 * that has one. */
typedef struct tws_low_rank {
  int64_t rank, out; /* out: widths together */
  int64_t width[3];  /* of the parts of y; 0: there is none */
  int64_t skip[3];   /* 1: that part has no adapter */
} tws_low_rank;

typedef struct tws_module {
  tws_module_type type;
  const char *name;                                  /* "transformer.h.0.attn.c_attn" */
  int32_t layer;                                     /* transformer layer, or -1 before the first, -2 after the last */
  uint32_t in[TWS_MODULE_INS], out[TWS_MODULE_OUTS]; /* values, TWS_NONE where absent */
  uint32_t param[TWS_MODULE_PARAMS];                 /* weight (wte), bias (wpe), segments; TWS_NONE where absent */
  uint32_t input[3];                                 /* of the network, TWS_NONE where absent */
  uint32_t running;                                  /* of the network, or TWS_NONE */
  int64_t in_features, out_features;                 /* LINEAR, CONVOLUTION; others: width in out_features */
  int64_t window;                     /* ATTENTION: how far back a token sees, itself included; 0: to the beginning */
  int64_t document;                   /* ATTENTION: of packed documents, how long they are expected to be; 0: unknown */
  uint32_t flags;                     /* of its kernels: TWS_BIDIRECTIONAL */
  int32_t heads, kv_heads, head_size; /* ROPE, ATTENTION */
  const tws_routing *routing;         /* ROUTER, DISPATCH, EXPERT_LINEAR, COMBINE */
  const tws_latent *latent;           /* LATENT */
  const tws_low_rank *low_rank;       /* LOW_RANK */
  int32_t rms;                        /* NORM: RMSNorm */
  int32_t second_gate;                /* GATE: of two gates, the second's share */
  double epsilon;                     /* NORM, HEADS_NORM, BATCH_NORM */
  double offset;                      /* NORM, HEADS_NORM: added to the weights */
  double slope;                       /* ATTENTION: factor of linear biases; 0: 1 */
  double scale, cap;                  /* ATTENTION: of scores; 0: 1 / sqrt(head_size), none. MULTIPLY, SOFTCAP: of x */
  int64_t first_position;             /* EMBEDDING: row of the table of positions, or of the one that it has, for the
                                         first token */
  double momentum;                    /* BATCH_NORM: share of a batch in the running statistics */
  double dropout;                     /* ATTENTION, DROPOUT: share of what is dropped in training */
  double jitter;                      /* DROPOUT: how far from 1 numbers are multiplied instead */
  const tws_module_windows *windows;  /* CONVOLUTION, MAX_POOL, AVERAGE_POOL */
  int32_t buckets, max_distance;      /* ATTENTION: rows of its table of relative biases; 0: it has none. DISENTANGLED:
                                         rows of positions */
  int32_t parts, kinds;               /* DISENTANGLED, PART_BIAS: of a row (of positions). DISENTANGLED: which scores,
                                         models/operators.def */
  double rope[TWS_ROPE_PARAMETERS];   /* parameters of ROPE */
  int32_t rotary, dynamic_rope;       /* ROPE: elements of a head that are turned, 0: all; theta follows the sequence */
} tws_module;

/* Without values, parameters, inputs and running statistics. */
void tws_module_clear(tws_module *module, tws_module_type type, const char *name, int layer);

/* PICTURES: height and width of one, and of its patches, in pixels. */
typedef struct tws_picture {
  int64_t side, patch, channels;
} tws_picture;

typedef struct tws_network {
  tws_arena *arena;
  const char *name;                                    /* "gpt2" or the path it was read from */
  const char *architecture;                            /* "gpt2", "llama" */
  const char *class_name, *class_prefix, *class_block; /* "LlamaForCausalLM", "Llama", "DecoderLayer"; NULL: by hand */
  const char *notes; /* keys that were read but change nothing here, one remark a line; "" when there are none */
  int64_t layers, hidden, heads, kv_heads, head_size, intermediate, vocabulary, padded_vocabulary, positions;
  int open_positions; /* rotary positions without scaling: no table ends at `positions` */
  tws_dtype dtype;    /* torch_dtype or dtype of the file; F32 where it says nothing */
  int tied;           /* head shares the embedding's weight */
  tws_objective objective;
  int64_t mask_token; /* MASKED, SENTENCES: the id that stands for a masked token; PAIRS: for the first span that is
                         left out */
  int64_t class_token, separator_token; /* SENTENCES: before the first text; after each one */
  int64_t pad_token, start_token,
      end_token;   /* PAIRS, CLASSES, TAGS, SPANS: after the text; PAIRS: before a target; the last of both */
  int64_t classes; /* CLASSES, TAGS: what the loss is over; SPANS: scores of a token, and the loss is over tokens; 0:
                      the vocabulary */
  int64_t predictions; /* MASKED: the most tokens of a sample that are predicted; 0: any number */
  tws_picture picture;
  tws_module *modules;
  tws_value *values;
  tws_param *params;
  tws_running *running;
  tws_network_input input[TWS_NETWORK_INPUTS];
  uint32_t module_count, value_count, param_count, input_count, running_count;
  uint32_t layer_first, layer_stride; /* modules of layer l: [layer_first + l stride, + stride) */
  uint32_t logits;                    /* value; of several losses the last one's */
} tws_network;

/* `spec`: a built-in name, or the path of a Hugging Face config.json (or of a folder that has one).
 * vocabulary_multiple pads the vocabulary (0 or 1: no padding). TWS_INVALID: unknown architecture (the hint lists
 * those known), missing or contradictory keys, with file, line and key. The caller destroys *out. */
tws_code tws_network_load(const char *spec, int64_t vocabulary_multiple, tws_network **out, tws_error *err);
tws_code tws_network_from_json(const tws_json *json, int64_t vocabulary_multiple, tws_network **out, tws_error *err);
/* A network without modules, for models/network/build.h. */
tws_code tws_network_create(const char *name, tws_network **out, tws_error *err);
void tws_network_destroy(tws_network *network);
const char *const *tws_network_builtin_names(void); /* NULL-terminated */

/* Counts. Parameters are exact, tied ones counted once; without_padding leaves out padded vocabulary rows. */
static inline int64_t tws_param_numel(const tws_param *param) {
  return param->rows * param->columns;
}
int64_t tws_network_params(const tws_network *network, int without_padding);
int tws_network_has_experts(const tws_network *network);
/* Those that one token meets: of experts the share that it chooses. */
int64_t tws_network_active_params(const tws_network *network, int without_padding);
/* DeepSpeed's L: largest sum of a module's own parameters, over the modules that Hugging Face's model has (fused
 * projections and the two embedding tables are taken apart). */
int64_t tws_network_largest_layer(const tws_network *network);
const char *tws_module_type_name(tws_module_type type); /* "Linear" */
/* The first input with this content, or TWS_NONE. */
uint32_t tws_network_input_of(const tws_network *network, tws_input_content content);
/* Return the number of losses; the index of a loss's mean and of its share of ignored targets among metrics, if there
 * are several losses (TWS_METRIC_HEADS); 1 if the classes of loss module m are the vocabulary's tokens. */
uint32_t tws_network_losses(const tws_network *network);
uint64_t tws_loss_slot(const tws_network *network, const tws_module *loss);
int tws_module_scores_words(const tws_network *network, uint32_t m);
/* Scores of the vocabulary, by a product of their own or with the table of the embedding. */
int tws_linear_scores_words(const tws_network *network, const tws_module *m);
/* Rows and elements of dimensions, for a micro-batch of `samples` sequences of `sequence` tokens. */
int64_t tws_dims_count(const tws_dim *dim, int dims, int64_t samples, int64_t sequence);

/* Model flops of one token at sequence length `seq` (1: of a picture), with `target` tokens that a decoder writes for
 * them (0: as many), forward only: matrix products 2 per multiply-add
 * (padded vocabulary left out), attention over the full (not halved) causal square as PaLM appendix B (Chowdhery et
 * al., 2022) does; with causal_halved the half. */
double tws_network_flops_per_token(const tws_network *network, int64_t seq, int64_t target, int causal_halved);
/* The same of training without recomputation: the forward pass, and of each product those gradients that are needed.
 * Where everything is trained these are two products for each of the forward pass, so three times the above; a frozen
 * weight has no gradient, and neither has an input that depends on no trained parameter, such as pictures. */
double tws_network_training_flops_per_token(const tws_network *network, int64_t seq, int64_t target, int causal_halved);
/* Says of each value (needed[value_count]) whether it depends on a trained parameter, so that its gradient is needed.
 */
void tws_network_find_needed(const tws_network *network, uint8_t *needed);
/* Returns the tokens of a sample by default: the model's positions, or 512 if it has no limit. */
int64_t tws_network_usual_sequence(const tws_network *network);

/* Exact parameter count from .safetensors headers alone, without reading weights. `path`: one file, an index .json (its
 * shards are in the same folder), or a folder with model.safetensors or model.safetensors.index.json. Every header is
 * checked: known types, shapes that match their byte ranges, ranges that cover the data without holes or overlaps.
 * Format: https://github.com/huggingface/safetensors#format. TWS_INVALID with the file and tensor. */
typedef struct tws_safetensors_counts {
  int64_t tensors, parameters, bytes;
} tws_safetensors_counts;
tws_code tws_safetensors_count(const char *path, tws_safetensors_counts *counts, tws_error *err);

#endif
