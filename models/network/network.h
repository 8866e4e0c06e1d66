/* A network: modules in forward order, the values that flow between them and the parameters they own.
 * Nothing here knows about ranks, sharding or hardware. Sizes are per token unless said otherwise. */
#ifndef TWS_MODELS_NETWORK_H
#define TWS_MODELS_NETWORK_H

#include <stdint.h>
#include "base/dtype.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"

#define TWS_NONE UINT32_MAX

/*   type        inputs           outputs            parameters            saved for backward
 *   EMBEDDING   (ids)            x                  wte [, wpe]           ids
 *   NORM        x                y, stats           weight [, bias]       x, stats
 *   LINEAR      x                y                  weight [, bias]       x
 *   ROPE        qkv              qkv (in place)                           nothing
 *   ATTENTION   qkv              o, lse                                   qkv, o, lse
 *   GELU        x                y                                        x
 *   SWIGLU      gate_up          y                                        gate_up
 *   ADD         x, y             z (in place of y)                        nothing
 *   LOSS        logits           dlogits (in place)                       nothing; targets are read in forward
 *   EXCHANGE    x                y                                        nothing; only in the part of a network that one
 *                                                                         rank runs (plan/shard.h), never in a network
 * An output "in place" is a value of its own (each value has one producer) that takes over the memory of its input,
 * whose last reader that module is. ADD: x is the residual stream, y the branch that joins it.
 * Weights of LINEAR are [out, in] (the transpose of GPT-2's Conv1D in Hugging Face checkpoints). */
#define TWS_MODULES(X)                                                                                             \
  X(EMBEDDING, "Embedding") X(NORM, "Norm") X(LINEAR, "Linear") X(ROPE, "Rope") X(ATTENTION, "Attention")          \
  X(GELU, "GELU") X(SWIGLU, "SwiGLU") X(ADD, "Add") X(LOSS, "CrossEntropyLoss") X(EXCHANGE, "Exchange")
typedef enum tws_module_type {
#define X(name, text) TWS_MODULE_##name,
  TWS_MODULES(X)
#undef X
  TWS_MODULE_TYPE_COUNT
} tws_module_type;

typedef enum tws_value_kind { TWS_VALUE_ACTIVATION /* model dtype */, TWS_VALUE_STATISTIC /* float32 */ } tws_value_kind;

typedef struct tws_value {
  const char *name;      /* "h.3.ln_1.y" */
  uint32_t producer;     /* module */
  uint32_t per_token;    /* elements per token (lse: heads) */
  tws_value_kind kind;
} tws_value;

typedef struct tws_param {
  const char *name;      /* Hugging Face's name where one exists: "transformer.h.0.attn.c_attn.weight" */
  int64_t rows, columns; /* [rows, columns]; vectors have rows = 1 */
  float init_std;        /* normal(0, init_std); 0 with init_value */
  float init_value;
  int64_t fused[3];      /* rows of each Hugging Face tensor joined in this one: q, k, v or gate, up; 0: not fused */
  uint32_t module;       /* first module that uses it; a tied parameter appears in the module list of others too */
} tws_param;

typedef struct tws_module {
  tws_module_type type;
  const char *name;       /* "transformer.h.0.attn.c_attn" */
  int32_t layer;          /* transformer layer, or -1 before the first, -2 after the last */
  uint32_t in[2], out[2]; /* values, TWS_NONE where absent */
  uint32_t param[2];      /* weight (wte), bias (wpe); TWS_NONE where absent */
  int64_t in_features, out_features; /* LINEAR; NORM, EMBEDDING, SWIGLU, GELU, ADD: width in out_features */
  int32_t heads, kv_heads, head_size; /* ROPE, ATTENTION */
  int32_t rms;            /* NORM: RMSNorm */
  double epsilon;         /* NORM */
  double rope[5];         /* theta; llama3 scaling factor (0: none), low, high frequency factor, original length */
} tws_module;

typedef struct tws_network {
  tws_arena *arena;
  const char *name;         /* "gpt2" or the path it was read from */
  const char *architecture; /* "gpt2", "llama" */
  const char *notes;        /* keys that were read but change nothing here, one remark a line; "" when there are none */
  int64_t layers, hidden, heads, kv_heads, head_size, intermediate, vocabulary, padded_vocabulary, positions;
  tws_dtype dtype;          /* torch_dtype or dtype of the file; F32 where it says nothing */
  int tied;                 /* head shares the embedding's weight */
  tws_module *modules;
  tws_value *values;
  tws_param *params;
  uint32_t module_count, value_count, param_count;
  uint32_t layer_first, layer_stride; /* modules of layer l: [layer_first + l stride, + stride) */
  uint32_t logits;          /* value */
} tws_network;

/* `spec`: a built-in name, or the path of a Hugging Face config.json (or of a folder that has one).
 * vocabulary_multiple pads the vocabulary (0 or 1: no padding). TWS_INVALID: unknown architecture (the hint lists
 * those known), missing or contradictory keys, with file, line and key. The caller destroys *out. */
tws_code tws_network_load(const char *spec, int64_t vocabulary_multiple, tws_network **out, tws_error *err);
tws_code tws_network_from_json(const tws_json *json, int64_t vocabulary_multiple, tws_network **out, tws_error *err);
void tws_network_destroy(tws_network *network);
const char *const *tws_network_builtin_names(void); /* NULL-terminated */

/* Counts. Parameters are exact, tied ones counted once; without_padding leaves out padded vocabulary rows. */
int64_t tws_param_numel(const tws_param *param);
int64_t tws_network_params(const tws_network *network, int without_padding);
/* DeepSpeed's L: largest sum of a module's own parameters, over the modules that Hugging Face's model has (fused
 * projections and the two embedding tables are taken apart). */
int64_t tws_network_largest_layer(const tws_network *network);
const char *tws_module_type_name(tws_module_type type); /* "Linear" */

/* Model flops of one token at sequence length `seq`, forward only: matrix products 2 per multiply-add (padded
 * vocabulary left out), attention over the full (not halved) causal square as PaLM appendix B (Chowdhery et al., 2022)
 * does; with causal_halved the half. Backward is twice forward: training without recomputation is three times this. */
double tws_network_flops_per_token(const tws_network *network, int64_t seq, int causal_halved);

/* Exact parameter count from .safetensors headers alone, without reading weights. `path`: one file, an index .json
 * (its shards lie beside it), or a folder with model.safetensors or model.safetensors.index.json. Every header is
 * checked: known types, shapes that match their byte ranges, ranges that cover the data without holes or overlaps.
 * Format: https://github.com/huggingface/safetensors#format. TWS_INVALID with the file and tensor. */
typedef struct tws_safetensors_counts { int64_t tensors, parameters, bytes; } tws_safetensors_counts;
tws_code tws_safetensors_count(const char *path, tws_safetensors_counts *counts, tws_error *err);

#endif
