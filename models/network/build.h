/* Building blocks shared by the architectures; private to models/network. */
#ifndef TWS_MODELS_NETWORK_BUILD_H
#define TWS_MODELS_NETWORK_BUILD_H

#include "models/network/network.h"

/* Bounds of one dimension: products of two fit an int64_t with room to spare, rows of activations fit a uint32_t. */
enum { TWS_MAX_LAYERS = 16384, TWS_MAX_HEADS = 65536, TWS_MAX_WIDTH = 1 << 26, TWS_MAX_VOCABULARY = 1 << 28 };
enum { TWS_MAX_EXPERTS = 4096, TWS_MAX_CHOICES = 64 };
#define TWS_MAX_PARAMS ((int64_t)1 << 50)

typedef struct tws_network_builder {
  tws_network *net;
  const tws_json *json;
  tws_text notes;
  int64_t params;            /* elements so far */
  int failed;                /* out of memory */
  int too_large;             /* more than TWS_MAX_PARAMS elements */
  const cJSON *unknown;      /* the first key of the file that no builder reads; it is refused when the graph is
                                complete */
  const char *spellings[24]; /* of keys that tws_build_known_keys() was given */
  int spelling_count;
} tws_network_builder;

typedef struct tws_init {
  float std, value;
} tws_init;

/* Reserve arrays for this many modules; values and parameters follow from it. */
tws_code tws_build_reserve(tws_network_builder *b, int64_t modules, tws_error *err);

/* Primitives that the other builders use. A module has neither values nor parameters at first; `slot` is the index of a
 * value or parameter in its module. Names are not copied; `row` is. */
uint32_t tws_build_module(tws_network_builder *b, tws_module_type type, int layer, const char *name);
uint32_t tws_build_value(tws_network_builder *b, uint32_t module, int slot, const char *suffix, const tws_dim *row,
                         int row_dims, int64_t per_row, tws_value_kind kind);
uint32_t tws_build_param(tws_network_builder *b, uint32_t module, int slot, const char *name, int64_t rows,
                         int64_t columns, tws_init init);
uint32_t tws_build_input(tws_network_builder *b, const char *name, tws_input_content content, const tws_dim *dim,
                         int dims);

/* Each adds one module and returns its (first) output value; `x` is the input. Names are copied. */
uint32_t tws_build_embedding(tws_network_builder *b, const char *name, const char *wte, const char *wpe, float std);
/* The same of a table alone: rows of any width, by TWS_INPUT_TOKENS or TWS_INPUT_POSITIONS. */
uint32_t tws_build_rows(tws_network_builder *b, const char *name, const char *table, tws_input_content content,
                        int64_t rows, int64_t width, float std);
/* Adds to the embedding that was built last a table of segments, by an input of its own. */
void tws_build_segments(tws_network_builder *b, const char *table, int64_t rows, float std);
uint32_t tws_build_norm(tws_network_builder *b, int layer, const char *name, uint32_t x, int rms, double epsilon);
typedef struct tws_norm_kind {
  int rms, bias, plain;   /* plain: no parameters */
  double epsilon, offset; /* offset: added to weights, which begin at 1 - offset */
} tws_norm_kind;
uint32_t tws_build_norm_of(tws_network_builder *b, int layer, const char *name, uint32_t x, const tws_norm_kind *kind);
/* Adds a norm of queries and keys, of each head separately or of all heads together; parameters are "<name>.<part>",
 * those of queries first. */
uint32_t tws_build_heads_norm(tws_network_builder *b, int layer, const char *name, const char *const part[2],
                              uint32_t qkv, const tws_norm_kind *kind, int together);
/* fused: NULL, or rows of up to three parts; tied: TWS_NONE, or the parameter used as weight */
uint32_t tws_build_linear(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t in, int64_t out,
                          float std, int bias, const int64_t *fused, uint32_t tied);
/* Sets the layout in files of the fused rows of the last linear module: tws_param.groups. */
void tws_build_group(tws_network_builder *b, int64_t groups);
/* Rows of the last embedding's table of positions before that of the first token; they are more than the positions. */
void tws_build_first_position(tws_network_builder *b, int64_t rows);
/* A table of constants for modules' `running`, in the network's arena; those who give the same one share it. */
uint32_t tws_build_constants(tws_network_builder *b, const float *values, int64_t rows, int64_t columns);
uint32_t tws_build_rope(tws_network_builder *b, int layer, const char *name, uint32_t qkv,
                        const double rope[TWS_ROPE_PARAMETERS]);
uint32_t tws_build_attention(tws_network_builder *b, int layer, const char *name, uint32_t qkv);
/* Rows of a table of parameters, as many whatever the job. */
uint32_t tws_build_table(tws_network_builder *b, int layer, const char *name, int64_t rows, float std);
/* Returns x with dropout; x itself stays, since other modules read it too. share 0: returns x. */
uint32_t tws_build_dropped(tws_network_builder *b, int layer, const char *name, uint32_t x, double share);
/* Builds attention of contents to contents and to positions, which are rows of `parts` parts. kinds:
 * models/operators.def. */
uint32_t tws_build_disentangled(tws_network_builder *b, int layer, const char *name, uint32_t qkv, uint32_t positions,
                                int parts, int kinds);
/* x, to the first and the third of whose up to three parts a bias is added; `bias` names the parameter. */
uint32_t tws_build_part_bias(tws_network_builder *b, int layer, const char *name, const char *bias, uint32_t x,
                             int parts);
/* Concatenates each token with its adjacent ones, `side` in all, for a linear layer that is a convolution. lengths: an
 * input. */
uint32_t tws_build_neighbours(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t side,
                              uint32_t lengths);
/* Adds attention of queries to the keys and values of another sequence, which are in one row. */
uint32_t tws_build_cross_attention(tws_network_builder *b, int layer, const char *name, uint32_t q, uint32_t kv);
uint32_t tws_build_pointwise(tws_network_builder *b, int layer, const char *name, tws_module_type type, uint32_t x,
                             int64_t width);
/* factor x, in place, so x has no other reader; cap tanh(x / cap) */
uint32_t tws_build_scale(tws_network_builder *b, int layer, const char *name, uint32_t x, double factor);
uint32_t tws_build_softcap(tws_network_builder *b, int layer, const char *name, uint32_t x, double cap);
uint32_t tws_build_add(tws_network_builder *b, int layer, const char *name, uint32_t residual, uint32_t branch);
/* Experts. A router makes three values of logits, one for each token and expert; the others take them. `routing` is
 * copied. fused: as of a linear layer, rows of one expert. */
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
/* x by one gate of each of its rows, or by the share of one of two. */
uint32_t tws_build_gate(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t gates, int second);
/* Rows of x by the numbers in an input of the network. */
uint32_t tws_build_gather(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t input);
/* The first `kept` elements of each of a row's blocks. */
uint32_t tws_build_part(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t blocks, int64_t kept);
/* Rows for an attention of the network's heads; `latent` is copied. */
uint32_t tws_build_latent(tws_network_builder *b, int layer, const char *name, uint32_t q, uint32_t compressed,
                          uint32_t kv, const tws_latent *latent);
void tws_build_loss(tws_network_builder *b, uint32_t logits);
/* One of several losses, by what it is called; targets: an input. */
void tws_build_loss_of(tws_network_builder *b, const char *name, uint32_t logits, uint32_t targets, int64_t classes);
/* Returns 1 if the class in the file ends with `ending`, such as "ForMaskedLM"; a file without one means the family's
 * first class. */
int tws_build_is_class(const tws_network_builder *b, const char *ending);
/* Heads of texts and of tokens (heads.c). num_labels, or how many id2label has: into net->classes; and the padding of
 * texts. TWS_UNSUPPORTED: a loss that is not cross-entropy. Only where tws_build_objective() is one of classes. */
tws_objective tws_build_objective(const tws_network_builder *b);
tws_code tws_build_read_classes(tws_network_builder *b, tws_error *err);
/* One row of each sample, which the input says. */
uint32_t tws_build_sample_rows(tws_network_builder *b, const char *name, uint32_t x);
/* Scores of each token as the start and as the end of an answer, and their loss: the mean over samples and ends of
 * cross-entropies over the tokens of a sample that count. */
void tws_build_spans(tws_network_builder *b, const char *name, uint32_t x, double range, uint32_t lengths);
/* Scores of net->classes, and their loss. */
void tws_build_class_scores(tws_network_builder *b, const char *name, uint32_t x, double range, int bias);

/* Text in the network's arena for a name; "" (and b->failed) without memory. */
const char *tws_build_name(tws_network_builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* In-place dropout: x has no other reader; probability 0: returns x. */
/* x times numbers from 1 - jitter to 1 + jitter, drawn like dropout, in training; x itself with 0. */
uint32_t tws_build_jitter(tws_network_builder *b, int layer, const char *name, uint32_t x, double jitter);
uint32_t tws_build_dropout(tws_network_builder *b, int layer, const char *name, uint32_t x, double probability);
/* Pictures: `x` has pixels as rows (TWS_DIM_PIXELS). Those of the network are an input, and x TWS_NONE. */
typedef struct tws_convolution {
  int64_t out, side, stride, padding, groups;
  float std;
  int bias;
} tws_convolution;
uint32_t tws_build_pictures(tws_network_builder *b, const char *name, int64_t height, int64_t width, int64_t channels);
uint32_t tws_build_convolution(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t input,
                               const tws_convolution *convolution);
uint32_t tws_build_batch_norm(tws_network_builder *b, int layer, const char *name, uint32_t x, double epsilon,
                              double momentum);
/* side 0: over the whole picture, whose rows then are samples */
uint32_t tws_build_pool(tws_network_builder *b, int layer, const char *name, tws_module_type type, uint32_t x,
                        int64_t side, int64_t stride, int64_t padding);

/* Configuration helpers. */
/* Notes that a key has no effect, and why, where it is there and asks for something: null, false and 0 do not. */
void tws_build_note_unused(tws_network_builder *b, const char *key, const char *why);
/* A size may be spelled with either key; both with different values contradict each other. */
tws_code tws_build_size(tws_network_builder *b, const char *key, const char *alias, int required, int64_t high,
                        int64_t fallback, int64_t *value, tws_error *err);
/* A number above 0; null, where the key is there, is 0. */
tws_code tws_build_optional_number(tws_network_builder *b, const char *key, double fallback, double *value,
                                   tws_error *err);
/* A key whose value is modelled only when it equals `expected`. */
tws_code tws_build_expect_bool(tws_network_builder *b, const char *key, int expected, const char *hint, tws_error *err);
/* Dropout probabilities are read and remarked upon: nothing is dropped there. */
tws_code tws_build_dropouts(tws_network_builder *b, const char *const *keys, tws_error *err);
/* A share of what is dropped in training; a file that does not have the key drops nothing. */
tws_code tws_build_dropout_share(tws_network_builder *b, const char *key, double *share, tws_error *err);
/* Registers keys that typing errors are compared with, "|" between two spellings of one; they are not copied. */
void tws_build_known_keys(tws_network_builder *b, const char *spellings);
/* Members that are in neither list (the second may be NULL), nor known otherwise, nor plain metadata, are refused: they
 * may change the arithmetic. Those that are null, false or empty ask for nothing, and are remarked upon. */
void tws_build_unknown_keys(tws_network_builder *b, const char *const *known, const char *const *also);

/* Keys that any configuration may have and that change nothing here, those of its parts too; ends with NULL. */
const char *const *tws_build_metadata(void);
#define ARCHITECTURE(name, ...) tws_code tws_build_##name(tws_network_builder *b, tws_error *err);
#include "models/network/architectures.def"

/* JSON text of a built-in model, or NULL. */
const char *tws_network_builtin(const char *name);

#endif
