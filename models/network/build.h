/* Building blocks shared by the architectures; private to models/network. */
#ifndef TWS_MODELS_NETWORK_BUILD_H
#define TWS_MODELS_NETWORK_BUILD_H

#include "models/network/network.h"

/* Bounds of one dimension, so that products of two dimensions fit an int64_t, and rows of activations fit a
 * uint32_t. */
enum { TWS_MAX_LAYERS = 16384, TWS_MAX_HEADS = 65536, TWS_MAX_WIDTH = 1 << 26, TWS_MAX_VOCABULARY = 1 << 28 };
enum { TWS_MAX_EXPERTS = 4096, TWS_MAX_CHOICES = 64 };
#define TWS_MAX_PARAMS ((int64_t)1 << 50)

typedef struct tws_network_builder {
  tws_network *net;
  const tws_json *json;
  tws_text notes;
  int64_t vocabulary_multiple; /* the vocabulary is padded to a multiple of it; 0 or 1: no padding */
  int64_t params;            /* number of parameter elements added until now */
  int failed;                /* 1: memory is exhausted */
  int again; /* 1: parameters and running statistics of new modules are those that exist under the same names */
  int too_large;             /* 1: more than TWS_MAX_PARAMS elements */
  const cJSON *unknown;      /* the first key of the file that no builder reads, which is refused when the graph is
                              *                                 complete; NULL: there is none */
  const char *spellings[24]; /* keys given to tws_build_known_keys() */
  int spelling_count;
} tws_network_builder;

typedef struct tws_init {
  float std, value;
} tws_init;

/* Reserves arrays for this number of modules; the numbers of values and parameters follow from it. */
tws_code tws_build_reserve(tws_network_builder *b, int64_t modules, tws_error *err);

/* Primitives that the other builders use. A new module has neither values nor parameters; `slot` is the index of a
 * value or parameter in its module. Names are not copied; `row` is. */
uint32_t tws_build_module(tws_network_builder *b, tws_module_type type, int layer, const char *name);
uint32_t tws_build_value(tws_network_builder *b, uint32_t module, int slot, const char *suffix, const tws_dim *row,
                         int row_dims, int64_t per_row, tws_value_kind kind);
uint32_t tws_build_param(tws_network_builder *b, uint32_t module, int slot, const char *name, int64_t rows,
                         int64_t columns, tws_init init);
uint32_t tws_build_input(tws_network_builder *b, const char *name, tws_input_content content, const tws_dim *dim,
                         int dims);
/* Adds a module whose output is x, through which no gradient passes. */
uint32_t tws_build_detach(tws_network_builder *b, int layer, const char *name, uint32_t x);

/* Each of the following adds one module and returns its (first) output value; `x` is its input value. Names are
 * copied. */
uint32_t tws_build_embedding(tws_network_builder *b, const char *name, const char *wte, const char *wpe, float std);
/* Adds an embedding with a single table, whose rows may have any width, selected by TWS_INPUT_TOKENS or
 * TWS_INPUT_POSITIONS. */
uint32_t tws_build_rows(tws_network_builder *b, const char *name, const char *table, tws_input_content content,
                        int64_t rows, int64_t width, float std);
/* Adds a table of segments, whose rows a separate input selects, to the embedding that was added last. */
void tws_build_segments(tws_network_builder *b, const char *table, int64_t rows, float std);
uint32_t tws_build_norm(tws_network_builder *b, int layer, const char *name, uint32_t x, int rms, double epsilon);
typedef struct tws_norm_kind {
  int rms, bias, plain;   /* plain: 1: no parameters */
  double epsilon, offset; /* offset: added to the weights, whose initial value is 1 - offset */
} tws_norm_kind;
uint32_t tws_build_norm_of(tws_network_builder *b, int layer, const char *name, uint32_t x, const tws_norm_kind *kind);
/* Adds a norm of queries and keys, of each head separately or over all heads; parameters are named "<name>.<part>",
 * the weight of the queries' norm first. */
uint32_t tws_build_heads_norm(tws_network_builder *b, int layer, const char *name, const char *const part[2],
                              uint32_t qkv, const tws_norm_kind *kind, int together);
/* Adds a linear layer. fused: NULL, or the numbers of rows of up to three fused parts; tied: TWS_NONE, or the parameter
 * used as weight. */
uint32_t tws_build_linear(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t in, int64_t out,
                          float std, int bias, const int64_t *fused, uint32_t tied);
/* Sets the file layout (tws_param.groups) of the fused rows of the linear module that was added last. */
void tws_build_group(tws_network_builder *b, int64_t groups);
/* Sets the number of unused rows at the start of the position table of the embedding that was added last; the table has
 * these rows in addition to those of the positions. */
void tws_build_first_position(tws_network_builder *b, int64_t rows);
/* Adds a table of constants, and returns its index for tws_module.running. Tables with the same values are added only
 * once. */
uint32_t tws_build_constants(tws_network_builder *b, const float *values, int64_t rows, int64_t columns);
uint32_t tws_build_rope(tws_network_builder *b, int layer, const char *name, uint32_t qkv,
                        const double rope[TWS_ROPE_PARAMETERS]);
uint32_t tws_build_attention(tws_network_builder *b, int layer, const char *name, uint32_t qkv);
/* Returns the rows of a table of parameters as a value whose number of rows does not depend on the job. */
uint32_t tws_build_table(tws_network_builder *b, int layer, const char *name, int64_t rows, float std);
/* Applies dropout to x and returns the result as a new value, so that other modules can read x too; share: probability;
 * if it is 0, returns x. */
uint32_t tws_build_dropped(tws_network_builder *b, int layer, const char *name, uint32_t x, double share);
/* Adds disentangled attention of contents to contents and to positions. Each row of `positions` has `parts` parts
 * (queries, keys); kinds: set of scores (models/operators.def). */
uint32_t tws_build_disentangled(tws_network_builder *b, int layer, const char *name, uint32_t qkv, uint32_t positions,
                                int parts, int kinds);
/* Adds a bias to the first and the third of the `parts` (up to three) parts of x; `bias`: name of the parameter. */
uint32_t tws_build_part_bias(tws_network_builder *b, int layer, const char *name, const char *bias, uint32_t x,
                             int parts);
/* Concatenates each token with adjacent tokens, `side` tokens in all; a linear layer of the result is a convolution.
 * lengths: an input of the network. */
uint32_t tws_build_token_convolution(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t side,
                                     uint32_t lengths);
/* Adds attention of the queries q to another sequence; each row of `kv` has the keys and the values of one of its
 * tokens. */
uint32_t tws_build_cross_attention(tws_network_builder *b, int layer, const char *name, uint32_t q, uint32_t kv);
uint32_t tws_build_pointwise(tws_network_builder *b, int layer, const char *name, tws_module_type type, uint32_t x,
                             int64_t width);
/* Multiplies x by `factor`. The product replaces x in memory, so no other module may read x. */
uint32_t tws_build_scale(tws_network_builder *b, int layer, const char *name, uint32_t x, double factor);
/* Adds a module that computes cap * tanh(x / cap), the soft cap of Gemma's logits and attention scores. */
uint32_t tws_build_softcap(tws_network_builder *b, int layer, const char *name, uint32_t x, double cap);
uint32_t tws_build_add(tws_network_builder *b, int layer, const char *name, uint32_t residual, uint32_t branch);
/* Builders of mixture-of-experts layers. A router computes three values from its logits (tws_routes): the expert slots
 * that each token is routed to, their weights, and the number of tokens of each expert; the other modules of the layer
 * read them. tws_build_router() copies `routing`. The argument `fused` of an expert's linear layer is that of
 * tws_build_linear(), for one expert. */
typedef struct tws_routes {
  const tws_routing *routing;
  uint32_t routes, weights, counts;
} tws_routes;
tws_routes tws_build_router(tws_network_builder *b, int layer, const char *name, uint32_t logits,
                            const tws_routing *routing);
uint32_t tws_build_dispatch(tws_network_builder *b, int layer, const char *name, uint32_t x, const tws_routes *to);
uint32_t tws_build_expert_linear(tws_network_builder *b, int layer, const char *name, uint32_t slots,
                                 const tws_routes *of, int64_t out, float std, int bias, const int64_t *fused);
uint32_t tws_build_combine(tws_network_builder *b, int layer, const char *name, uint32_t slots, const tws_routes *from);
/* Multiplies each row of x by its gate. second 1: `gates` has two gates per row, and the factor is the second one's
 * share (softmax). */
uint32_t tws_build_gate(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t gates, int second);
/* Returns the rows of x whose numbers are in an input of the network. */
uint32_t tws_build_gather(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t input);
/* Returns a value with the first `kept` elements of each of the `blocks` blocks of each row of x. */
uint32_t tws_build_part(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t blocks, int64_t kept);
/* Returns rows of queries, keys and values for the network's heads in latent attention; `latent` is copied. */
uint32_t tws_build_latent(tws_network_builder *b, int layer, const char *name, uint32_t q, uint32_t compressed,
                          uint32_t kv, const tws_latent *latent);
void tws_build_loss(tws_network_builder *b, uint32_t logits);
/* Adds one of a network's several losses, called `name`; targets: an input of the network. */
void tws_build_loss_of(tws_network_builder *b, const char *name, uint32_t logits, uint32_t targets, int64_t classes);
/* Sets what the loss that was added last computes. Its scores are not exclusive classes, so that it is not split by
 * columns among tensor ranks as that of a vocabulary is: the network's `classes` says so. */
void tws_build_loss_kind(tws_network_builder *b, tws_loss_kind kind);
/* Returns 1 if the class named in the file ends with `ending`, such as "ForMaskedLM"; a file without a class means the
 * family's first one. */
int tws_build_is_class(const tws_network_builder *b, const char *ending);
/* Reads the head of a network that classifies texts or tokens (heads.c), only for objectives with classes: num_labels,
 * or the number of entries of id2label, into net->classes, and the padding token of texts. Fails with TWS_UNSUPPORTED
 * for a loss that is not cross-entropy. */
tws_code tws_build_read_classes(tws_network_builder *b, tws_error *err);
/* Returns one row of x for each sample, which an input of the network selects. */
uint32_t tws_build_sample_rows(tws_network_builder *b, const char *name, uint32_t x);
/* Adds the scores of each token as the start and as the end of an answer, and their loss: for both ends the
 * cross-entropy over the tokens of a sample that are no padding, averaged over samples and ends. */
void tws_build_spans(tws_network_builder *b, const char *name, uint32_t x, double range, uint32_t lengths);
/* Adds the scores of net->classes classes, and their loss. */
void tws_build_class_scores(tws_network_builder *b, const char *name, uint32_t x, double range, int bias);

/* Formats a name in the network's arena; returns "" and sets b->failed if memory is exhausted. */
const char *tws_build_name(tws_network_builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* tws_build_dropout() applies dropout in place, so x has no other reader; with probability 0 it returns x. */
/* Multiplies x by random numbers from 1 - jitter to 1 + jitter, generated like those of dropout, in training; with
 * jitter 0 it returns x. */
uint32_t tws_build_jitter(tws_network_builder *b, int layer, const char *name, uint32_t x, double jitter);
uint32_t tws_build_dropout(tws_network_builder *b, int layer, const char *name, uint32_t x, double probability);
/* Layers of networks on pictures: the rows of `x` are pixels (TWS_DIM_PIXELS). If a layer reads the network's input of
 * pictures, x is TWS_NONE. */
typedef struct tws_convolution {
  int64_t out, side, stride, padding, groups;
  float std;
  int bias;
} tws_convolution;
uint32_t tws_build_pictures(tws_network_builder *b, const char *name, int64_t height, int64_t width, int64_t channels);
uint32_t tws_build_convolution(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t input,
                               const tws_convolution *convolution);
/* Adds a transposed convolution: its output has (extent - 1) stride - 2 padding + side + more pixels along each side of
 * the picture, with 0 <= more < stride. A bias is a module of its own, "<name>.bias". */
uint32_t tws_build_transposed_convolution(tws_network_builder *b, int layer, const char *name, uint32_t x,
                                          uint32_t input, const tws_convolution *convolution, int64_t more);
/* Makes the pixels of a picture one row per sample, in the order of rows, columns and channels. */
uint32_t tws_build_flatten(tws_network_builder *b, int layer, const char *name, uint32_t x);
uint32_t tws_build_batch_norm(tws_network_builder *b, int layer, const char *name, uint32_t x, double epsilon,
                              double momentum);
/* Adds pooling. side 0: over the whole picture, so that the result has one row per sample. */
uint32_t tws_build_pool(tws_network_builder *b, int layer, const char *name, tws_module_type type, uint32_t x,
                        int64_t side, int64_t stride, int64_t padding);

/* Functions that read configurations. */
/* If the file has a key, with another value than null, false or 0, adds a note that the key has no effect, and the
 * reason `why`. */
void tws_build_note_unused(tws_network_builder *b, const char *key, const char *why);
/* Reads a size that either key may give; fails if both are given and differ. */
tws_code tws_build_size(tws_network_builder *b, const char *key, const char *alias, int required, int64_t high,
                        int64_t fallback, int64_t *value, tws_error *err);
/* Reads a number above 0; null is read as 0, and a missing key as `fallback`. */
tws_code tws_build_optional_number(tws_network_builder *b, const char *key, double fallback, double *value,
                                   tws_error *err);
/* Fails if the key has another value than `expected`, the only one that is modelled. */
tws_code tws_build_expect_bool(tws_network_builder *b, const char *key, int expected, const char *hint, tws_error *err);
/* Reads dropout probabilities that are not modelled, and adds a note that no dropout is applied. */
tws_code tws_build_dropouts(tws_network_builder *b, const char *const *keys, tws_error *err);
/* Reads a dropout probability; 0 if the file does not have the key. */
tws_code tws_build_dropout_share(tws_network_builder *b, const char *key, double *share, tws_error *err);
/* Registers keys for suggestions on misspelled ones, with "|" between two spellings of one key; the strings are not
 * copied. */
void tws_build_known_keys(tws_network_builder *b, const char *spellings);
/* Refuses members of the file that are in neither list (the second may be NULL), nor otherwise known, nor metadata
 * (tws_build_metadata()), because they may change the arithmetic. Members that are null, false or empty request nothing
 * and are only noted. */
void tws_build_unknown_keys(tws_network_builder *b, const char *const *known, const char *const *also);

/* Returns the keys, also of nested objects, that any configuration may have and that have no effect on the graph; NULL
 * ends the list. */
const char *const *tws_build_metadata(void);
#define ARCHITECTURE(name, ...) tws_code tws_build_##name(tws_network_builder *b, tws_error *err);
#include "models/network/architectures.def"

/* Returns the JSON text of a built-in model, or NULL. */
const char *tws_network_builtin(const char *name);
/* Returns the name of the built-in model that a model of the Hugging Face hub has the sizes of: of
 * "meta-llama/Llama-3.1-8B-Instruct" "llama-3.1-8b". The owner, upper case and words for further training are ignored.
 * NULL: there is none. */
const char *tws_network_builtin_of_hub(const char *id);

#endif
