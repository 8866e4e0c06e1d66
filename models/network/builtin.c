/* Built-in models: texts of Hugging Face's config.json, reduced to the keys that have an effect, so that the same code
 * builds built-in models and models of files. Sources: the models' own config.json files (openai-community/gpt2*,
 * meta-llama/Llama-*). */
#include <string.h>
#include "models/network/build.h"

#define GPT2(layers, width, heads)                                                                         \
  "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_positions\":1024,\"n_ctx\":1024,\"n_layer\":" #layers \
  ",\"n_embd\":" #width ",\"n_head\":" #heads ",\"layer_norm_epsilon\":1e-5,\"initializer_range\":0.02}"
#define LLAMA(layers, width, inner, heads, kv_heads, vocabulary, positions, rest)                         \
  "{\"model_type\":\"llama\",\"hidden_act\":\"silu\",\"initializer_range\":0.02,\"rms_norm_eps\":1e-5"    \
  ",\"num_hidden_layers\":" #layers ",\"hidden_size\":" #width ",\"intermediate_size\":" #inner           \
  ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv_heads ",\"vocab_size\":" #vocabulary \
  ",\"max_position_embeddings\":" #positions rest "}"
#define MIXTRAL(layers, width, inner, heads, kv_heads, experts, choices, vocabulary, positions, rest)     \
  "{\"model_type\":\"mixtral\",\"hidden_act\":\"silu\",\"initializer_range\":0.02,\"rms_norm_eps\":1e-5"  \
  ",\"num_hidden_layers\":" #layers ",\"hidden_size\":" #width ",\"intermediate_size\":" #inner           \
  ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv_heads ",\"vocab_size\":" #vocabulary \
  ",\"num_local_experts\":" #experts ",\"num_experts_per_tok\":" #choices                                 \
  ",\"router_aux_loss_coef\":0.02,\"max_position_embeddings\":" #positions rest "}"
#define HALF ",\"torch_dtype\":\"float16\""
#define BRAIN ",\"torch_dtype\":\"bfloat16\""
#define LLAMA3_ROPE(scale)                                                               \
  ",\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":" #scale \
  ",\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}"

static const struct {
  const char *name, *text;
} models[] = {
    {"gpt2", GPT2(12, 768, 12)},
    {"gpt2-medium", GPT2(24, 1024, 16)},
    {"gpt2-large", GPT2(36, 1280, 20)},
    {"gpt2-xl", GPT2(48, 1600, 25)},
    {"gpt-3-175b", /* Brown et al. 2020, table 2.1; dense attention in every layer */
     "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_positions\":2048,\"n_layer\":96,\"n_embd\":12288,\"n_head\":"
     "96}"},
    {"llama-2-7b", LLAMA(32, 4096, 11008, 32, 32, 32000, 4096, HALF)},
    {"llama-2-13b", LLAMA(40, 5120, 13824, 40, 40, 32000, 4096, HALF)},
    {"llama-2-70b", LLAMA(80, 8192, 28672, 64, 8, 32000, 4096, HALF)},
    {"llama-3-8b", LLAMA(32, 4096, 14336, 32, 8, 128256, 8192, BRAIN ",\"rope_theta\":500000")},
    {"llama-3-70b", LLAMA(80, 8192, 28672, 64, 8, 128256, 8192, BRAIN ",\"rope_theta\":500000")},
    {"llama-3.1-405b", LLAMA(126, 16384, 53248, 128, 8, 128256, 131072, BRAIN LLAMA3_ROPE(8))},
    {"llama-3-405b", LLAMA(126, 16384, 53248, 128, 8, 128256, 131072, BRAIN LLAMA3_ROPE(8))}, /* as the model above */
    {"llama-3.2-1b", LLAMA(16, 2048, 8192, 32, 8, 128256, 131072,
                           BRAIN LLAMA3_ROPE(32) ",\"head_dim\":64,\"tie_word_embeddings\":true")},
    {"mixtral-8x7b", MIXTRAL(32, 4096, 14336, 32, 8, 8, 2, 32000, 32768, BRAIN ",\"rope_theta\":1e6")},
    {"mixtral-8x22b", MIXTRAL(56, 6144, 16384, 48, 8, 8, 2, 32000, 65536, BRAIN ",\"rope_theta\":1e6")},
    {"tiny-gpt2",
     "{\"model_type\":\"gpt2\",\"vocab_size\":256,\"n_positions\":64,\"n_layer\":2,\"n_embd\":64,\"n_head\":4}"},
    {"tiny-llama", LLAMA(2, 64, 96, 4, 2, 256, 64, ",\"head_dim\":24")},
    {"tiny-mixtral", MIXTRAL(2, 64, 48, 4, 2, 4, 2, 256, 64, ",\"output_router_logits\":true")},
};
enum { MODELS = sizeof models / sizeof models[0] };

const char *tws_network_builtin(const char *name) {
  for (int i = 0; i < MODELS; i++) {
    if (strcmp(models[i].name, name) == 0) return models[i].text;
  }
  return NULL;
}

const char *const *tws_network_builtin_names(void) {
  static const char *const names[] = {"gpt2",
                                      "gpt2-medium",
                                      "gpt2-large",
                                      "gpt2-xl",
                                      "gpt-3-175b",
                                      "llama-2-7b",
                                      "llama-2-13b",
                                      "llama-2-70b",
                                      "llama-3-8b",
                                      "llama-3-70b",
                                      "llama-3.1-405b",
                                      "llama-3-405b",
                                      "llama-3.2-1b",
                                      "mixtral-8x7b",
                                      "mixtral-8x22b",
                                      "tiny-gpt2",
                                      "tiny-llama",
                                      "tiny-mixtral",
                                      NULL};
  return names;
}
