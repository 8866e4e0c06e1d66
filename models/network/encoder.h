/* Shared parts of encoders: layers with bidirectional attention over all unmasked tokens, norms before or after each
 * half, and heads after the last layer. Private to models/network. */
#ifndef TWS_MODELS_NETWORK_ENCODER_H
#define TWS_MODELS_NETWORK_ENCODER_H

#include "models/network/build.h"

/* Names that a family gives to the parts of layer %d: "bert.encoder.layer.%d". In `qkv` "qkv" stands for the three
 * projections. */
typedef struct tws_encoder_names {
  const char *layer, *qkv, *out, *norm_1, *up, *down, *norm_2;
} tws_encoder_names;

typedef struct tws_encoder tws_encoder;
struct tws_encoder {
  const tws_encoder_names *names;
  double epsilon, range, dropout, attention_dropout;
  tws_module_type activation;
  int keeps_attended; /* nothing is dropped of what attention adds (DistilBERT) */
  uint32_t lengths;   /* input: how many tokens of each sample count */
  /* Builds the attention of a layer with input x; `prefix` names the layer. NULL: BERT's self-attention. */
  uint32_t (*attend)(tws_network_builder *b, const tws_encoder *e, int layer, const char *prefix, uint32_t x);
  uint32_t attention_modules; /* of it */
  /* Adds modules to x, the output of layer `layer` with input `before`, before the next layer. NULL: none. */
  uint32_t (*joins)(tws_network_builder *b, const tws_encoder *e, int layer, uint32_t before, uint32_t x);
};

/* Names that a family gives to the parts that score the vocabulary; the last has only the bias if weights are tied. */
typedef struct tws_masked_head_names {
  const char *dense, *activation, *norm, *scores, *tied_scores;
} tws_masked_head_names;

/* The module that was built last attends in both directions to the tokens that count, and drops what `e` says. */
void tws_encoder_set_attention(tws_network_builder *b, const tws_encoder *e);
/* Modules of a layer. */
uint32_t tws_encoder_stride(const tws_encoder *e);
/* hidden_act and what means the same; sizes and the rest of the keys that BERT's family shares. */
tws_code tws_encoder_read_activation(tws_network_builder *b, const char *key, const char *fallback,
                                     tws_module_type *activation, tws_error *err);
/* All of the network's layers; what comes out of the last. Sets net->layer_first and layer_stride. */
uint32_t tws_encoder_add_layers(tws_network_builder *b, const tws_encoder *e, uint32_t x);
/* Shared by BERT and RoBERTa: their keys; reading them omits positions and the mask, which differ. segments: rows of
 * their table. */
extern const char *const tws_encoder_shared_keys[];
tws_code tws_encoder_read_shared(tws_network_builder *b, tws_encoder *e, int64_t *segments, tws_error *err);
/* The names of a layer's parts; layer: "bert.encoder.layer". */
tws_encoder_names tws_encoder_shared_names(const char *layer);
/* Tokens, positions from row `first` of their table on (-1: there is none), segments (0: none); their norm and dropout,
 * below "bert" or so. Sets e->lengths. */
uint32_t tws_encoder_add_embeddings(tws_network_builder *b, tws_encoder *e, const char *prefix, int64_t first,
                                    int64_t segments);
/* The head that the file's class has after the last layer. A text is classified by its first token, of which `dense`
 * and `activation` make what `scores` reads; tokens are by `tags`. Shares that are dropped before `dense`, before the
 * scores of a text, before those of tokens and before those of answers. */
typedef struct tws_class_head {
  const char *dense, *scores, *tags;
  const char *next;           /* what scores whether a text follows another, with objective SENTENCES */
  tws_module_type activation; /* TWS_MODULE_SOFTCAP: tanh */
  double before, behind, tokens, spans;
} tws_class_head;
void tws_encoder_add_head(tws_network_builder *b, const tws_encoder *e, const tws_masked_head_names *masked,
                          tws_module_type masked_activation, const tws_class_head *head, uint32_t x);
/* classifier_dropout, which is hidden_dropout_prob where the file has none. */
tws_code tws_encoder_read_classifier_dropout(tws_network_builder *b, const tws_encoder *e, double *share,
                                             tws_error *err);
/* The id of the mask: what the file says; else that of all vocabularies of Google, or the last of a small one. */
tws_code tws_encoder_read_mask_token(tws_network_builder *b, tws_error *err);
/* Heads, and their size, of those that the file says. */
tws_code tws_encoder_read_heads(tws_network_builder *b, const char *key, tws_error *err);
/* An input: how many tokens of each sample count. */
uint32_t tws_encoder_add_lengths(tws_network_builder *b);

#endif
