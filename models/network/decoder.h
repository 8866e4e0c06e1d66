/* Describes decoders by a table of features: the file of a model family reads its keys and sets the features, and one
 * builder makes the graph from them. With all features at 0, the graph is Llama's (Touvron et al., 2023): rotary
 * positions, grouped-query attention, RMSNorm, SwiGLU, and a norm before each of two sequential branches. Private to
 * models/network. */
#ifndef TWS_MODELS_NETWORK_DECODER_H
#define TWS_MODELS_NETWORK_DECODER_H

#include "models/network/build.h"

typedef enum tws_decoder_positions {
  TWS_POSITIONS_ROTARY,
  TWS_POSITIONS_LEARNED, /* a table that is added to the embedding */
  TWS_POSITIONS_LINEAR   /* ALiBi: linear biases of scores */
} tws_decoder_positions;

/* The positions of a layer's norms, and whether its branches are sequential or parallel. */
typedef enum tws_decoder_order {
  TWS_ORDER_BEFORE,      /* x + branch(norm(x)) */
  TWS_ORDER_BEHIND,      /* x + norm(branch(x)) */
  TWS_ORDER_AFTER,       /* norm(x + branch(x)) */
  TWS_ORDER_BOTH,        /* x + norm(branch(norm(x))) */
  TWS_ORDER_SIDE_BY_SIDE /* x + attention(norm(x)) + mlp(norm(x)); with `two_norms`, two norms */
} tws_decoder_order;

/* Names of tensors in Hugging Face's files, relative to the layer and without their last word (".weight"). A joined
 * projection of queries, keys and values, or of gate and up, is called "...qkv_proj" or "...gate_up_proj" if files have
 * its parts as separate tensors: see models/network/huggingface.h. */
typedef struct tws_decoder_names {
  const char *embedding, *positions, *embedding_norm;
  const char *project_in, *project_out; /* projections from the embedding's width to that of the layers, and back */
  const char *layer;                    /* prefix such as "model.layers." */
  const char *norm[4];                  /* norms before and after attention, before and after the MLP */
  const char *qkv, *rope, *attention, *output, *up, *act, *down;
  const char *head_norm[2]; /* norms of queries and keys; NULL: "q_norm" and "k_norm" below the attention's name */
  const char *final_norm, *head;
} tws_decoder_names;
extern const tws_decoder_names tws_llama_names;

/* Names of the keys that give sizes; NULL: the family has no such key. A "|" separates two spellings of a key. */
typedef struct tws_decoder_keys {
  const char *layers, *hidden, *heads, *kv_heads, *inner, *positions, *epsilon, *activation;
} tws_decoder_keys;
extern const tws_decoder_keys tws_llama_keys;
extern const tws_decoder_keys tws_gpt2_keys;

typedef struct tws_decoder_rope {
  double parameters[TWS_ROPE_PARAMETERS]; /* parameters of the operator ROPE (models/operators.def) */
  double share;                           /* share of a head that is rotated; 0: `rotary` elements, or all */
  int64_t rotary;
  int interleaved;
  int dynamic;      /* 1: theta depends on the length of the job's sequences */
  int alpha;        /* 1: "dynamic" scaling with a key `alpha` increases theta for all lengths */
  int64_t original; /* default of the sequence length before the context was extended; 0: `positions` */
  const float *factors; /* frequency divisors of pairs for short, then for long sequences; NULL: none */
} tws_decoder_rope;

/* Names of the dropout keys: for attention probabilities, for the outputs of attention and of the MLP before they are
 * added to the residual stream, and for the embedding; NULL: no dropout there. `together`: 1: if attention and MLP are
 * parallel, the MLP's dropout applies to the sum of their outputs. */
typedef struct tws_decoder_drops {
  const char *attention, *attended, *inner, *embedding;
  int together;
} tws_decoder_drops;

typedef struct tws_decoder {
  const tws_decoder_names *names; /* NULL: Llama's */
  const tws_decoder_keys *keys;   /* NULL: Llama's */
  int64_t positions, kv_heads;    /* defaults for keys that the file lacks; kv_heads 0: as many as query heads */
  int64_t head_size;              /* default size of a head; 0: hidden_size / heads */
  int64_t inner;                  /* default width of the MLP, divided by hidden_size; 0: the file must have it */
  const char *activation;         /* default activation function; NULL: silu */
  int ungated;                    /* 1: the MLP has no gate */
  int layer_norm, norm_bias;      /* 1: LayerNorm instead of RMSNorm; 1: norms have a bias */
  int plain_norms;                /* 1: norms have no parameters */
  double norm_offset;             /* constant that is added to the weights of norms */
  tws_decoder_order order;
  const tws_decoder_drops *drops;                                               /* NULL: attention_dropout only */
  double attention_dropout, attended_dropout, inner_dropout, embedding_dropout; /* probabilities read from these keys */
  int two_norms;
  tws_decoder_positions position;
  int64_t first_position; /* unused rows of the table of positions before the first token's row */
  int64_t
      embedding_width; /* width of the embedding if it differs from the layers', with learned positions; 0: equal */
  int qkv_bias, output_bias, mlp_bias, head_bias;
  int64_t qkv_groups; /* groups of the joined projection (tws_param); 0: separate parts; -1: by key heads */
  int gate_up_whole;  /* 1: files have gate and up in one tensor */
  int head_norms;     /* norms of queries and keys: 1: per head; TWS_HEADS_TOGETHER: one over all heads */
  int norms_turned;   /* 1: norms of queries and keys are applied after rotary positions, not before */
  int64_t window, window_layer; /* size of the sliding window in tokens, 0: none; first layer that has it */
  uint8_t *slides;              /* [layer] 1: the layer has the window; NULL: the layers from window_layer on have it */
  const uint8_t *turned;        /* [layer] 1: the layer has rotary positions; NULL: all layers have them */
  double attention_scale;       /* 0: 1 / sqrt(head size) */
  int scaled_biases;            /* 1: linear biases are multiplied by attention_scale, as scores are */
  double score_cap, logit_cap;
  double embedding_scale, residual_scale, logit_scale; /* factors; 0: 1 */
  double epsilon, range, output_range;                 /* ranges: deviations of initial weights, output_range
                                                        * of projections to the residual stream */
  tws_decoder_rope rope, sliding_rope; /* sliding_rope: those of layers with the window; theta 0: as `rope` */
  int tied;                            /* default of tie_word_embeddings: 1: the head uses the embedding's weights */
  tws_routing routing;                 /* routing of layers of experts in place of the MLP; experts 0: none */
  double expert_jitter;                /* relative jitter of the input of a layer of experts */
  int64_t expert_inner;                /* width of an expert's MLP */
  const char *expert_block;            /* name of the layer of experts in files */
  const uint8_t *dense;                /* [layer] 1: the layer has an MLP, not experts; NULL: all have experts */
  int64_t shared_inner;                /* width of the shared expert, an MLP that all tokens pass; 0: none */
  const char *shared_name;             /* name of the shared expert in files */
  int shared_gate;                     /* 1: the shared expert's output has a gate */
} tws_decoder;
enum { TWS_HEADS_APART = 1, TWS_HEADS_TOGETHER = 2 };

/* Reads the keys that all decoders have. Refuses keys that are neither these nor in `also_known` (build.h). */
tws_code tws_decoder_read(tws_network_builder *b, const char *const *also_known, tws_decoder *d, tws_error *err);
/* Reads rope_theta and rope_scaling, or newer files' rope_parameters, which has both (rope.c). */
tws_code tws_decoder_read_rope(tws_network_builder *b, tws_decoder *d, tws_error *err);
/* Reads which layers have the window from `layer_types`; without that key, all layers except every `period`-th have
 * it. */
tws_code tws_decoder_read_layer_types(tws_network_builder *b, int64_t period, tws_decoder *d, tws_error *err);
/* Reads which layers have rotary positions from `no_rope_layers`, whose element is 1 for a layer that has them; without
 * that key, all layers except every `no_rope_layer_interval`-th have them. */
tws_code tws_decoder_read_turned(tws_network_builder *b, int64_t interval, tws_decoder *d, tws_error *err);
/* Reads the keys of a router like Mixtral's: `count` is the key of the number of experts, and the other arguments are
 * the values of missing keys. */
tws_code tws_decoder_read_routing(tws_network_builder *b, const char *count, int64_t experts, int64_t choices,
                                  double auxiliary, tws_decoder *d, tws_error *err);
/* Experts as in DeepSeek-V3, in one group: a sigmoid router chooses them, the first layers have an MLP instead, and all
 * tokens also pass a shared expert. Members are names of keys, and the defaults of missing keys. */
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
/* Adds a layer of experts and returns what it adds to the residual stream. It has at most TWS_EXPERT_MODULES
 * modules. */
enum { TWS_EXPERT_MODULES = 14 };
uint32_t tws_decoder_add_experts(tws_network_builder *b, const tws_decoder *d, int layer, uint32_t x);
tws_code tws_decoder_build(tws_network_builder *b, const tws_decoder *d, tws_error *err);

#endif
