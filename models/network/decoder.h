/* Decoders as a table of features: a family's file reads its keys, sets what it has, and the builder makes the graph.
 * Zero is what Llama has (Touvron et al., 2023): rotary positions, grouped-query attention, RMSNorm, SwiGLU, norms
 * before both branches, which follow each other. Private to models/network. */
#ifndef TWS_MODELS_NETWORK_DECODER_H
#define TWS_MODELS_NETWORK_DECODER_H

#include "models/network/build.h"

typedef enum tws_decoder_positions {
  TWS_POSITIONS_ROTARY,
  TWS_POSITIONS_LEARNED, /* a table that is added to the embedding */
  TWS_POSITIONS_LINEAR   /* ALiBi: biases of scores */
} tws_decoder_positions;

/* The positions of a layer's norms, and whether its branches are sequential or parallel. */
typedef enum tws_decoder_order {
  TWS_ORDER_BEFORE,      /* x + branch(norm(x)) */
  TWS_ORDER_BEHIND,      /* x + norm(branch(x)) */
  TWS_ORDER_AFTER,       /* norm(x + branch(x)) */
  TWS_ORDER_BOTH,        /* x + norm(branch(norm(x))) */
  TWS_ORDER_SIDE_BY_SIDE /* x + attention(norm(x)) + mlp(norm(x)), of one norm, or with `two_norms` of two */
} tws_decoder_order;

/* Names of tensors in Hugging Face's files, inside a layer without their last word. A joined projection of queries,
 * keys and values, or of gate and up, is called "...qkv_proj" or "...gate_up_proj" where files have its parts: see
 * models/network/huggingface.h. */
typedef struct tws_decoder_names {
  const char *embedding, *positions, *embedding_norm;
  const char *project_in, *project_out; /* between the embedding's width and that of the layers */
  const char *layer;                    /* "model.layers." */
  const char *norm[4];                  /* before and after attention, before and after the MLP */
  const char *qkv, *rope, *attention, *output, *up, *act, *down;
  const char *head_norm[2]; /* of queries and keys; NULL: "q_norm" and "k_norm" of the attention */
  const char *final_norm, *head;
} tws_decoder_names;
extern const tws_decoder_names tws_llama_names;

/* Keys of sizes; NULL: the family has no such key. Those with a "|" may be spelled in two ways. */
typedef struct tws_decoder_keys {
  const char *layers, *hidden, *heads, *kv_heads, *inner, *positions, *epsilon, *activation;
} tws_decoder_keys;
extern const tws_decoder_keys tws_llama_keys;
extern const tws_decoder_keys tws_gpt2_keys;

typedef struct tws_decoder_rope {
  double parameters[TWS_ROPE_PARAMETERS]; /* of ROPE (models/operators.def) */
  double share;                           /* of a head that is turned; 0: `rotary` elements of it, or with 0 all */
  int64_t rotary;
  int interleaved;
  int dynamic;      /* theta follows the length of the job's sequences */
  int alpha;        /* the family's `dynamic` with an `alpha` is a larger theta, whatever the length */
  int64_t original; /* length of sequences before the context was stretched, where the configuration does not say; 0:
                       its positions */
  const float *factors; /* of pairs of short sequences, then of long ones; NULL: there are none */
} tws_decoder_rope;

/* Keys of what training drops: shares of attention's probabilities, of what attention and the inner part add to the
 * residual stream, of the embedding; NULL: nothing. `together`: what both parts of a layer side by side add is one sum,
 * of which the inner part's share is dropped. */
typedef struct tws_decoder_drops {
  const char *attention, *attended, *inner, *embedding;
  int together;
} tws_decoder_drops;

typedef struct tws_decoder {
  const tws_decoder_names *names; /* NULL: Llama's */
  const tws_decoder_keys *keys;   /* NULL: Llama's */
  int64_t positions, kv_heads;    /* where the file gives none; kv_heads 0: as many as query heads */
  int64_t head_size;              /* where the file gives none; 0: hidden_size by heads */
  int64_t inner;                  /* where the file gives none: this multiple of hidden_size; 0: the file has to give
                                     it */
  const char *activation;         /* what the file means when it does not say; NULL: silu */
  int ungated;                    /* the inner part has no gate */
  int layer_norm, norm_bias;      /* LayerNorm, not RMSNorm */
  int plain_norms;                /* which have no parameters */
  double norm_offset;             /* added to the weights of norms */
  tws_decoder_order order;
  const tws_decoder_drops *drops;                                               /* NULL: attention_dropout alone */
  double attention_dropout, attended_dropout, inner_dropout, embedding_dropout; /* read by them */
  int two_norms;
  tws_decoder_positions position;
  int64_t first_position; /* rows of the table before the first that is used */
  int64_t
      embedding_width; /* where it is not that of the layers, with learned positions of the layers' width; 0: it is */
  int qkv_bias, output_bias, mlp_bias, head_bias;
  int64_t qkv_groups; /* how files lay the joined projection out: tws_param.groups; 0: its parts are tensors, -1: by
                         key heads */
  int gate_up_whole;  /* files have gate and up joined */
  int head_norms;     /* of queries and keys: of each head; TWS_HEADS_TOGETHER: of all heads as one */
  int norms_turned;   /* these norms are applied after rotary positions */
  int64_t window, window_layer; /* sliding window of attention, from this layer on; 0: none */
  uint8_t *slides;              /* of each layer, whether it has the window; NULL: as window_layer says */
  const uint8_t *turned;        /* of each layer, whether it has rotary positions; NULL: all have */
  double attention_scale;       /* 0: 1 / sqrt(head size) */
  int scaled_biases;            /* linear biases are scaled as scores are */
  double score_cap, logit_cap;
  double embedding_scale, residual_scale, logit_scale; /* 0: 1 */
  double epsilon, range, output_range;                 /* output_range: of what joins the residual stream; 0: range */
  tws_decoder_rope rope, sliding_rope; /* sliding_rope: of layers with the window, where its theta is not 0 */
  int tied;                            /* where the file does not say */
  tws_routing routing;                 /* of layers of experts in place of the inner part; experts 0: there are none */
  double expert_jitter;                /* of what a layer of experts reads */
  int64_t expert_inner;                /* width of an expert's inner part */
  const char *expert_block;            /* what the layer is called */
  const uint8_t *dense;                /* per layer: it has an inner part and no experts; NULL: all have experts */
  int64_t shared_inner;                /* width of the shared expert, an MLP that all tokens pass in addition to their
                                          experts; 0: none */
  const char *shared_name;             /* what that is called */
  int shared_gate;                     /* and it has a gate of its own */
} tws_decoder;
enum { TWS_HEADS_APART = 1, TWS_HEADS_TOGETHER = 2 };

/* The keys that all of them have. Those that are neither these nor in `also_known` are refused (build.h). */
tws_code tws_decoder_read(tws_network_builder *b, const char *const *also_known, tws_decoder *d, tws_error *err);
/* rope.c: rope_theta and rope_scaling, or newer files' rope_parameters with both inside. */
tws_code tws_decoder_read_rope(tws_network_builder *b, tws_decoder *d, tws_error *err);
/* Which layers have the window, by `layer_types`, or where there are none all but every `period`-th. */
tws_code tws_decoder_read_layer_types(tws_network_builder *b, int64_t period, tws_decoder *d, tws_error *err);
/* Which layers have rotary positions, by `no_rope_layers`, where 1 is one that has, or all but every
 * `no_rope_layer_interval`-th. */
tws_code tws_decoder_read_turned(tws_network_builder *b, int64_t interval, tws_decoder *d, tws_error *err);
/* Reads the keys of a router like Mixtral's: `count` is the key of the number of experts, and the other arguments are
 * the values of missing keys. */
tws_code tws_decoder_read_routing(tws_network_builder *b, const char *count, int64_t experts, int64_t choices,
                                  double auxiliary, tws_decoder *d, tws_error *err);
/* Experts as in DeepSeek-V3, in one group: a sigmoid router chooses them, the first layers have none, and all tokens
 * pass a shared expert too. The keys of their numbers, and the values of missing keys. */
typedef struct tws_decoder_scored {
  const char *experts_key, *shared_key;
  int64_t experts, choices, inner, shared, dense_layers;
  int renormalizes;
  double scale;
} tws_decoder_scored;
#define TWS_SCORED_KEYS                                                                                    \
  "moe_intermediate_size", "num_local_experts", "num_experts_per_tok", "first_k_dense_replace", "n_group", \
      "topk_group", "norm_topk_prob", "routed_scaling_factor", "output_router_logits", "num_nextn_predict_layers"
tws_code tws_decoder_read_scored(tws_network_builder *b, const tws_decoder_scored *usual, tws_decoder *d,
                                 tws_error *err);
/* The layer of experts: what is added to the residual stream. At most TWS_EXPERT_MODULES modules. */
enum { TWS_EXPERT_MODULES = 14 };
uint32_t tws_decoder_add_experts(tws_network_builder *b, const tws_decoder *d, int layer, uint32_t x);
tws_code tws_decoder_build(tws_network_builder *b, const tws_decoder *d, tws_error *err);

#endif
