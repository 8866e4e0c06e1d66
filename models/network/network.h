/* A network: modules in forward order, the values that flow between them, and their parameters. It does not depend on
 * ranks, sharding or hardware. Sizes are per token unless stated otherwise. */
#ifndef TWS_MODELS_NETWORK_H
#define TWS_MODELS_NETWORK_H

#include <stdint.h>
#include "base/dtype.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/axes.h"

#define TWS_NONE UINT32_MAX

/* Types of modules; models/network/modules.def defines what each computes. An output "in place" is a separate value
 * (each value has one producer) that overwrites the memory of an input; the module has to be the last reader of this
 * input. */
typedef enum tws_module_type {
#define MODULE(id, ...) TWS_MODULE_##id,
#include "models/network/modules.def"
  TWS_MODULE_TYPE_COUNT
} tws_module_type;
enum { TWS_ROPE_PARAMETERS = 6 };
enum { TWS_MODULE_INS = 4, TWS_MODULE_OUTS = 5, TWS_MODULE_PARAMS = 4, TWS_MODULE_KERNELS = 4 };

/* The kinds of dimensions of a value or of an input; the length of a dimension may depend on the job. */
typedef enum tws_dim_kind {
  TWS_DIM_FIXED,    /* `size` */
  TWS_DIM_SAMPLES,  /* samples of a micro-batch */
  TWS_DIM_SEQUENCE, /* `size`; 0: tokens of the job's sequences */
  TWS_DIM_TARGET,   /* `size`; 0: tokens of a decoder's targets (twinspeed.target_length) */
  TWS_DIM_PIXELS,   /* `size`: height or width of a picture whose rows are pixels */
  TWS_DIM_CAPACITY  /* slots of an expert: `factor` x tokens / `parts`, at least `size`; factor 0: all tokens;
                      * < 0: -factor x the configuration's */
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
  TWS_OBJECTIVE_NEXT_TOKEN, /* predicts each token from the tokens before it */
  TWS_OBJECTIVE_MASKED,     /* predicts masked tokens from all others */
  TWS_OBJECTIVE_SENTENCES,  /* predicts masked tokens of two texts, and whether the second text follows the first */
  TWS_OBJECTIVE_PAIRS,      /* predicts each target token from those before it and a source text */
  TWS_OBJECTIVE_PICTURES,   /* predicts the class of a picture */
  TWS_OBJECTIVE_CLASSES,    /* predicts the class of a text */
  TWS_OBJECTIVE_TAGS,       /* predicts the class of each token */
  TWS_OBJECTIVE_SPANS,      /* predicts the first and last token of an answer in a text */
} tws_objective;

/* Routing of tokens to experts: the parameters of ROUTER (models/operators.def), and the slots of an expert. */
typedef struct tws_routing {
  int32_t experts, choices;                        /* experts of a layer; experts chosen per token */
  int32_t keeps, by_choice, renormalizes, sampled; /* keeps: routes that a full expert keeps (TWS_KEEPS_*) */
  int32_t sigmoid, groups, kept_groups;            /* sigmoid: 1: scores are sigmoids; groups of experts: all, used */
  double auxiliary;                                /* coefficient of the load-balancing loss */
  double z;                                        /* coefficient of the loss that keeps logits small; 0: none */
  int32_t biased;                                  /* 1: biases added to the scores balance the choice of experts */
  double scale;                                    /* factor of the routing weights */
  tws_dim slots;
} tws_routing;
/* Returns the routing of DeepSpeed's gating (deepspeed/moe/sharded_moe.py): top1gating and top2gating for up to two
 * choices, topkgating for more. `random`: 1: the kept routes (top-1) and the second expert (top-2) are chosen at
 * random. An expert has ceil(tokens / experts x factor x choices) slots, at least least_slots; factor 0: as many as
 * tokens, so that none is dropped. */
tws_routing tws_routing_like_deepspeed(int32_t experts, int32_t choices, double factor, int64_t least_slots,
                                       int random);

/* Losses of scores: the mean cross-entropy of their softmax, or of the sigmoid of each score, or the mean squared
 * error. */
typedef enum tws_loss_kind { TWS_LOSS_SOFTMAX, TWS_LOSS_SIGMOIDS, TWS_LOSS_SQUARES } tws_loss_kind;

typedef enum tws_value_kind {
  TWS_VALUE_ACTIVATION /* has the model's dtype */,
  TWS_VALUE_STATISTIC /* float32 */,
  TWS_VALUE_INDEX /* int32; has no gradient */
} tws_value_kind;

/* A value. Its rows are the dimensions that depend on the job (samples, tokens of sequences, slots of experts), which
 * come first; each row has per_row elements, the product of the fixed dimensions after them. */
typedef struct tws_value {
  const char *name;  /* such as "h.3.ln_1.y" */
  uint32_t producer; /* index of the module that computes the value */
  uint32_t per_row;
  tws_value_kind kind;
  uint8_t row_dims;
  uint8_t constant; /* 1: the value depends on no trained parameter and needs no gradient (tws_network_adapt()) */
  tws_dim row[3];   /* dimensions of the rows; samples and sequence for tokens */
} tws_value;

/* The contents of a network's inputs, which are given for each micro-batch. */
typedef enum tws_input_content {
  TWS_INPUT_TOKENS,    /* token ids of a text, int32 */
  TWS_INPUT_SOURCE,    /* token ids of the text that the encoder of an encoder-decoder reads, int32 */
  TWS_INPUT_TARGETS,   /* for each row of the logits the id to predict, or an ignored id; int32 */
  TWS_INPUT_CLASSES,   /* for a second loss the class of each sample, or an ignored one; int32 */
  TWS_INPUT_LENGTHS,   /* number of keys of each sample that are no padding, int32 */
  TWS_INPUT_STARTS,    /* inference: position of each sample's first token, int32 */
  TWS_INPUT_COUNTS,    /* inference of an encoder-decoder: number of each sample's tokens for the decoder, int32 */
  TWS_INPUT_ENDS,      /* inference of an encoder-decoder: position of the last token of each source, int32 */
  TWS_INPUT_BLOCKS,    /* inference: the blocks of the cache that each sample's rows are in, int32 */
  TWS_INPUT_TYPES,     /* the segment of each token, int32 */
  TWS_INPUT_DOCUMENTS, /* for each token positions of the first token of its document and after its last token, int32 */
  TWS_INPUT_POSITIONS, /* the position of each token in its document, int32 */
  TWS_INPUT_ROWS,      /* numbers of rows of a value to select in the micro-batch, or -1; int32 */
  TWS_INPUT_NUMBERS,   /* pictures, in the type of activations */
  TWS_INPUT_NOISE,     /* normal random numbers, drawn for each sample, in the type of activations */
  TWS_INPUT_CONSTANT   /* `value` of the input, everywhere; int32 */
} tws_input_content;
typedef struct tws_network_input {
  const char *name;
  tws_input_content content;
  tws_dim dim[TWS_DIMS]; /* the dimensions of rows come first */
  uint8_t dims;
  int32_t value; /* CONSTANT: the value of all elements; TARGETS of pictures: the label's index in a record */
} tws_network_input;
enum { TWS_NETWORK_INPUTS = 8 };

typedef struct tws_param {
  const char *name;      /* Hugging Face's name if there is one: "transformer.h.0.attn.c_attn.weight" */
  int64_t rows, columns; /* vectors have one row */
  float init_std;        /* initial values: normal(0, init_std) or, if init_std is 0, the constant init_value */
  float init_value;
  float first_std;     /* initial deviation of the first fused part, if it differs from init_std; 0: equal */
  int64_t fused[3];    /* rows of each Hugging Face tensor that is joined here: q, k, v or gate, up; 0: none */
  int64_t groups;      /* fused parts that are one tensor in files: number of groups, with rows of each part; 0: parts
                   * are separate tensors */
  int64_t shape[4];    /* dimensions of its tensor in files if they are not rows and columns; 0: they are */
  const float *given;  /* initial values in the model's file, row by row; NULL: init_std and init_value say them */
  uint32_t module;     /* first module that uses it; if it is tied, other modules list it too */
  int32_t experts;     /* number of experts whose rows it has in succession; 0: it is not of experts */
  uint8_t shared;      /* 1: several linear modules use it, so that tensor ranks do not split it */
  uint8_t frozen;      /* 1: not trained: it has no gradient and no optimizer states */
  uint8_t param_group; /* its parameter group (config/ds_config.h) */
  uint8_t turn;        /* the turn of a step that updates it (tws_network.turns) */
  uint8_t code_type;   /* type of codes (tws_code_type) of a quantized frozen parameter; 0: not quantized */
  tws_axes own_along;  /* axes along which each rank has a different parameter of this shape (experts) */
} tws_param;

/* Running statistics: state of a module without gradients, namely moving averages of batches' means and variances, or
 * a constant table, which several modules may share. Every rank that has the module has the complete state, in
 * float32. */
typedef struct tws_running {
  const char *name; /* such as "layer1.0.bn1.running" */
  int64_t rows, columns;
  float init_value[2]; /* initial value of each of the at most two rows */
  const float *given;  /* initial values that the model's file has, row by row; NULL: init_value */
  const float *fixed;  /* the constant table; NULL: moving averages, initially init_value */
} tws_running;

/* Windows of a convolution or pooling module over pictures: models/windows.h. */
typedef struct tws_module_windows {
  int64_t height, width;
  int64_t side, stride, padding, groups; /* in pixels; side 0: the whole picture */
} tws_module_windows;

/* Sizes of heads of latent attention: elements of keys without and with rotary positions, of values, and of the
 * compressed row without its rotary part; and the other parameters of the operator LATENT (models/operators.def). */
typedef struct tws_latent {
  int64_t nope, rope, value, rank;
  double theta, factor, low, high, gain;
} tws_latent;

/* Low-rank adapters of a linear layer (LoRA, Hu et al. 2021): y += scale B A x, for each part of y (up to three) that
 * has an adapter. */
typedef struct tws_low_rank {
  int64_t rank, out; /* rank of the adapter; sum of the widths */
  int64_t width[3];  /* elements of each part of y; 0: there is no such part */
  int64_t skip[3];   /* 1: the part has no adapter */
} tws_low_rank;

typedef struct tws_module {
  tws_module_type type;
  const char *name;                                  /* such as "transformer.h.0.attn.c_attn" */
  int32_t layer;                                     /* transformer layer; -1: before the first, -2: after the last */
  uint32_t in[TWS_MODULE_INS], out[TWS_MODULE_OUTS]; /* indices of values; TWS_NONE if absent */
  uint32_t param[TWS_MODULE_PARAMS];                 /* indices: weight, bias (or wpe), segments; or TWS_NONE */
  uint32_t input[3];                                 /* indices of inputs of the network; TWS_NONE if absent */
  uint32_t running;                                  /* index of a tws_running of the network, or TWS_NONE */
  int64_t in_features, out_features;                 /* LINEAR, CONVOLUTION; other types: out_features is the width */
  int64_t window;                     /* ATTENTION: number of keys that a token sees, its own included; 0: all */
  int64_t document;                   /* ATTENTION: expected tokens of a packed document; 0: unknown */
  uint32_t flags;                     /* flags of its kernels, such as TWS_BIDIRECTIONAL */
  int32_t heads, kv_heads, head_size; /* ROPE, ATTENTION */
  const tws_routing *routing;         /* ROUTER, DISPATCH, EXPERT_LINEAR, COMBINE */
  const tws_latent *latent;           /* LATENT */
  const tws_low_rank *low_rank;       /* LOW_RANK */
  int32_t rms;                        /* NORM: 1: RMSNorm, 0: LayerNorm */
  tws_loss_kind loss;                 /* LOSS */
  int32_t second_gate;                /* GATE: 1: factor is the second of two gates, after their softmax */
  double epsilon;                     /* NORM, HEADS_NORM, BATCH_NORM */
  double offset;                      /* NORM, HEADS_NORM: constant added to the weights */
  double slope;                       /* ATTENTION: factor of linear biases; 0: 1. LEAKY_RELU: of x < 0 */
  double low, high;                   /* CLAMP: the limits */
  /* ATTENTION: of scores; 0: 1 / sqrt(head_size), none. LOSS: its weight in the sum of losses; 0: 1. Others: of x */
  double scale, cap;
  int64_t first_position;              /* EMBEDDING: row of the table of positions for the first token */
  double momentum;                     /* BATCH_NORM: weight of a batch in the running statistics */
  double dropout;                      /* ATTENTION, DROPOUT: probability of dropout */
  double jitter;                       /* DROPOUT: multiply by random factors from 1 - jitter to 1 + jitter instead */
  const tws_module_windows *windows;   /* CONVOLUTION, TRANSPOSED_CONVOLUTION, MAX_POOL, AVERAGE_POOL */
  int32_t buckets, max_distance;       /* rows of the table of relative biases (0: none) or positions */
  int32_t parts, kinds;                /* parts of a row; DISENTANGLED: set of scores (models/operators.def) */
  double rope[TWS_ROPE_PARAMETERS];    /* parameters of ROPE */
  int32_t rotary, dynamic_rope;        /* ROPE: rotated elements per head, 0: all; 1: dynamic theta */
  uint8_t forward_turn, backward_turn; /* turns of a step in which its forward and its backward pass run */
  uint8_t held; /* 1: its parameters get no gradient from it; the gradient of its output still reaches its inputs */
} tws_module;

/* Sets the module's type, name and layer, without values, parameters, inputs and running statistics. */
void tws_module_clear(tws_module *module, tws_module_type type, const char *name, int layer);

/* The labels at the beginning of each record of a file of pictures, a byte each. */
enum { TWS_RECORD_LABELS = 4 };
typedef struct tws_record_labels {
  int count;                          /* 0: one label, of `vocabulary` classes */
  int64_t classes[TWS_RECORD_LABELS]; /* number of classes of each */
} tws_record_labels;

/* The size of square pictures: `side` of a picture and `patch` of a patch in pixels, and the number of channels. */
typedef struct tws_picture {
  int64_t side, patch, channels;
} tws_picture;

typedef struct tws_network {
  tws_arena *arena;
  const char *name;         /* a built-in name such as "gpt2", or the path of its file */
  const char *architecture; /* such as "gpt2", "llama" */
  /* class names of the file, such as "LlamaForCausalLM", "Llama", "DecoderLayer"; NULL: there is no file */
  const char *class_name, *class_prefix, *class_block;
  const char *notes; /* notes on keys of the file that have no effect, one per line; "": none */
  int64_t layers, hidden, heads, kv_heads, head_size, intermediate, vocabulary, padded_vocabulary, positions;
  int open_positions; /* 1: rotary positions without scaling, so that longer sequences than `positions` are possible */
  tws_dtype dtype;    /* type of the weights in the file (torch_dtype or dtype); F32 by default */
  int tied;           /* 1: the head uses the embedding's weights */
  tws_objective objective;
  int64_t mask_token;                   /* id of a masked token; PAIRS: of the first masked span */
  int64_t class_token, separator_token; /* SENTENCES: ids before the first text, and after each text */
  int64_t pad_token;                    /* PAIRS, CLASSES, TAGS, SPANS: id that fills a text up to its length */
  int64_t start_token;                  /* PAIRS: id that the decoder reads before the target */
  int64_t end_token;                    /* PAIRS: id at the end of a source and of a target */
  int64_t classes;          /* CLASSES, TAGS: number of classes; SPANS: of scores per token; 0: the vocabulary */
  int64_t predictions;      /* MASKED: largest number of predicted tokens per sample; 0: no limit */
  tws_picture picture;      /* PICTURES: the first of each record; the others are inputs of the content NUMBERS */
  tws_record_labels labels; /* PICTURES */
  tws_module *modules;
  tws_value *values;
  tws_param *params;
  tws_running *running;
  tws_network_input input[TWS_NETWORK_INPUTS];
  uint32_t module_count, value_count, param_count, input_count, running_count;
  uint32_t layer_first, layer_stride; /* modules of layer l: [layer_first + l stride, + stride) */
  uint32_t logits;                    /* value with the logits; if there are several losses, of the last one */
  /* Number of turns of a step; 0: one. In each turn the modules of this forward_turn run forward, then the modules of
   * this backward_turn run backward, and the optimizer updates the parameters of this turn; the next turn computes with
   * the updated parameters. Modules of one forward_turn are adjacent, those of earlier turns first. */
  uint32_t turns;
} tws_network;

/* Loads a network. `spec`: a built-in name, or the path of a Hugging Face config.json (or of a folder that has one), of
 * a network file, or of an ONNX file, whose weights are the parameters' initial values (tws_param.given); or the text
 * of a JSON file, which begins with "{" and is named "network" in messages.
 * vocabulary_multiple: the vocabulary is padded to a multiple of it (0 or 1: no padding). Fails with TWS_INVALID for an
 * unknown architecture (the hint lists the known ones) and for missing or contradictory keys, with file, line and key.
 * The caller destroys *out. */
tws_code tws_network_load(const char *spec, int64_t vocabulary_multiple, tws_network **out, tws_error *err);
tws_code tws_network_from_json(const tws_json *json, int64_t vocabulary_multiple, tws_network **out, tws_error *err);
/* Returns 1 if the file that `spec` names has weights, too: if it is an ONNX file. */
int tws_network_file_has_weights(const char *spec);
/* Creates a network without modules, for models/network/build.h. */
tws_code tws_network_create(const char *name, tws_network **out, tws_error *err);
void tws_network_destroy(tws_network *network);
const char *const *tws_network_builtin_names(void); /* NULL-terminated */
const char *tws_network_architecture_nth(int i);    /* "gpt2", ...: each model_type once; NULL after the last */

/* The following functions return exact numbers of parameters (elements). Tied parameters count once; without_padding 1
 * excludes the rows that pad the vocabulary. */
static inline int64_t tws_param_numel(const tws_param *param) {
  return param->rows * param->columns;
}
int64_t tws_network_params(const tws_network *network, int without_padding);
int tws_network_has_experts(const tws_network *network);
/* Returns the number of parameters that one token uses: all parameters, but only those experts that the token
 * chooses. */
int64_t tws_network_active_params(const tws_network *network, int without_padding);
/* Returns DeepSpeed's L: the largest number of a module's own parameters, over the modules of Hugging Face's model (in
 * which the parts of fused projections and the two embedding tables are separate modules). */
int64_t tws_network_largest_layer(const tws_network *network);
const char *tws_module_type_name(tws_module_type type); /* such as "Linear" */
const char *tws_module_name(const tws_module *module);  /* the same, but "LayerNorm" and "RMSNorm", and each loss's */
/* Appends what a network file's network consists of: ", 2 Conv2d, 3 Linear, reads pictures of 32 x 32 x 3, 10 classes".
 * Modules without parameters are left out, except attention. */
void tws_network_summary(const tws_network *network, tws_text *out);
/* Returns the index of the first input with this content, or TWS_NONE. */
uint32_t tws_network_input_of(const tws_network *network, tws_input_content content);
/* Returns the number of pictures in a record of a network's training data, and the size of one of them. */
int tws_network_pictures(const tws_network *network);
tws_picture tws_network_picture(const tws_network *network, int index);
/* tws_network_losses() returns the number of losses. tws_loss_slot() returns the index of a loss's mean among the
 * metrics (TWS_METRIC_HEADS), if there are several losses; the share of ignored targets is at the next index.
 * tws_module_scores_words() returns 1 if the classes of loss module m are the vocabulary's tokens. */
uint32_t tws_network_losses(const tws_network *network);
uint64_t tws_loss_slot(const tws_network *network, const tws_module *loss);
int tws_module_scores_words(const tws_network *network, uint32_t m);
/* Returns 1 if the module computes the scores of the vocabulary, with its own weight or with the embedding's table. */
int tws_linear_scores_words(const tws_network *network, const tws_module *m);
/* Returns the product of the dimensions for a micro-batch of `samples` sequences of `sequence` tokens. */
int64_t tws_dims_count(const tws_dim *dim, int dims, int64_t samples, int64_t sequence);

/* Returns the model FLOPs of one token's forward pass at sequence length `seq` (1: of a picture's), if a decoder has
 * `target` target tokens (0: seq). Matrix products count 2 per multiply-add, without the padded vocabulary; attention
 * counts the full causal square, as in PaLM's appendix B (Chowdhery et al., 2022), or half of it with causal_halved =
 * 1. */
double tws_network_flops_per_token(const tws_network *network, int64_t seq, int64_t target, int causal_halved);
/* Returns the model flops of one token's training without recomputation: of the forward pass, and of the gradients that
 * are needed. If all parameters are trained, there are two gradient products for each product of the forward pass, so
 * the result is three times that of tws_network_flops_per_token(). A frozen weight needs no gradient, and neither does
 * an input that depends on no trained parameter, such as pictures. */
double tws_network_training_flops_per_token(const tws_network *network, int64_t seq, int64_t target, int causal_halved);
/* Sets needed[value] to 1 for each value that depends on a trained parameter and therefore needs a gradient, else to
 * 0. */
void tws_network_find_needed(const tws_network *network, uint8_t *needed);
/* Returns the default number of tokens per sample: the model's number of positions, or 512 if it has no limit. */
int64_t tws_network_usual_sequence(const tws_network *network);

/* Counts tensors, parameters and bytes from .safetensors headers, without reading weights. `path`: one file, an index
 * .json (its shards are in the same folder), or a folder with model.safetensors or model.safetensors.index.json. Every
 * header is checked: known types, shapes that match their byte ranges, ranges that cover the data without holes or
 * overlaps. Format: https://github.com/huggingface/safetensors#format. Fails with TWS_INVALID and names file and
 * tensor. */
typedef struct tws_safetensors_counts {
  int64_t tensors, parameters, bytes;
} tws_safetensors_counts;
tws_code tws_safetensors_count(const char *path, tws_safetensors_counts *counts, tws_error *err);

#endif
