/* Shared parts of encoders: layers with bidirectional attention over all tokens that are no padding, norms before or
 * after each branch, and heads after the last layer. Private to models/network. */
#ifndef TWS_MODELS_NETWORK_ENCODER_H
#define TWS_MODELS_NETWORK_ENCODER_H

#include "models/network/build.h"

/* Names that a family gives to the parts of layer %d, such as "bert.encoder.layer.%d". The text "qkv" in the member
 * `qkv` stands for the three projections. */
typedef struct tws_encoder_names {
  const char *layer, *qkv, *out, *norm_1, *up, *down, *norm_2;
} tws_encoder_names;

typedef struct tws_encoder tws_encoder;
struct tws_encoder {
  const tws_encoder_names *names;
  double epsilon, range, dropout, attention_dropout;
  tws_module_type activation;
  int keeps_attended; /* 1: no dropout of the attention's output (DistilBERT) */
  uint32_t lengths;   /* input of the network: number of tokens of each sample that are no padding */
  /* Builds the attention of a layer with input x; `prefix` names the layer. NULL: BERT's self-attention. */
  uint32_t (*attend)(tws_network_builder *b, const tws_encoder *e, int layer, const char *prefix, uint32_t x);
  uint32_t attention_modules; /* number of modules that `attend` adds */
  /* Adds modules to x, the output of layer `layer` with input `before`, and returns the next layer's input. NULL:
   * none. */
  uint32_t (*joins)(tws_network_builder *b, const tws_encoder *e, int layer, uint32_t before, uint32_t x);
};

/* Names that a family gives to the parts that score the vocabulary; tied_scores: name of the scores' bias, used instead
 * of `scores` if weights are tied to the embedding. */
typedef struct tws_masked_head_names {
  const char *dense, *activation, *norm, *scores, *tied_scores;
} tws_masked_head_names;

/* Makes the attention module that was added last bidirectional over the tokens that are no padding, with the
 * dropout of `e`. */
void tws_encoder_set_attention(tws_network_builder *b, const tws_encoder *e);
/* Returns the number of modules of a layer. */
uint32_t tws_encoder_stride(const tws_encoder *e);
/* Read the activation function (hidden_act or its synonyms), and the sizes and other keys that BERT's family shares. */
tws_code tws_encoder_read_activation(tws_network_builder *b, const char *key, const char *fallback,
                                     tws_module_type *activation, tws_error *err);
/* Adds all layers of the network and returns the output of the last. Sets net->layer_first and layer_stride. */
uint32_t tws_encoder_add_layers(tws_network_builder *b, const tws_encoder *e, uint32_t x);
/* The keys that BERT and RoBERTa share, and a function that reads them. It does not read the keys of positions and of
 * the mask token, which differ between the two. segments: number of rows of the table of segments. */
extern const char *const tws_encoder_shared_keys[];
tws_code tws_encoder_read_shared(tws_network_builder *b, tws_encoder *e, int64_t *segments, tws_error *err);
/* Returns the names of a layer's parts; layer: prefix such as "bert.encoder.layer". */
tws_encoder_names tws_encoder_shared_names(const char *layer);
/* Adds the embedding of tokens, of positions from row `first` of their table on (-1: no positions) and of segments (0:
 * none), then norm and dropout, named below `prefix` ("bert"). Sets e->lengths. */
uint32_t tws_encoder_add_embeddings(tws_network_builder *b, tws_encoder *e, const char *prefix, int64_t first,
                                    int64_t segments);
/* The head after the last layer, which the class named in the file determines. A text is classified by its first token,
 * which `dense`, `activation` and `scores` process; tokens are scored by `tags`. The dropout probabilities are those
 * before `dense`, before a text's scores, before tokens' scores, and before answers' scores. */
typedef struct tws_class_head {
  const char *dense, *scores, *tags;
  const char *next;           /* objective SENTENCES: name of the scores of "the second text follows the first" */
  tws_module_type activation; /* TWS_MODULE_SOFTCAP means tanh */
  double before, behind, tokens, spans;
} tws_class_head;
void tws_encoder_add_head(tws_network_builder *b, const tws_encoder *e, const tws_masked_head_names *masked,
                          tws_module_type masked_activation, const tws_class_head *head, uint32_t x);
/* Reads classifier_dropout, whose default is hidden_dropout_prob. */
tws_code tws_encoder_read_classifier_dropout(tws_network_builder *b, const tws_encoder *e, double *share,
                                             tws_error *err);
/* Determines the id of the mask token: the file's, or that of Google's vocabularies, or the last id of a small
 * vocabulary. */
tws_code tws_encoder_read_mask_token(tws_network_builder *b, tws_error *err);
/* Reads the number of heads and computes their size. */
tws_code tws_encoder_read_heads(tws_network_builder *b, const char *key, tws_error *err);
/* Adds the input that has the number of tokens of each sample that are no padding. */
uint32_t tws_encoder_add_lengths(tws_network_builder *b);

#endif
