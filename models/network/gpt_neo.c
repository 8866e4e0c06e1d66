/* GPT-Neo (Black et al., 2021; keys as in Hugging Face's GPTNeoConfig): GPT-2 with local attention in every other
 * layer, and scores without a scale. */
#include <string.h>

#include "models/network/decoder.h"

/* Reads which layers have local attention: attention_layers lists it for each layer; attention_types is a list of
 * [words, repetitions]. */
static tws_code read_layers(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(json->root, "attention_types"), *type, *word;
  int64_t layers = 0, layer = 0;
  TWS_TRY(tws_build_size(b, "num_layers", "num_hidden_layers", 1, TWS_MAX_LAYERS, 0, &layers, err));
  TWS_TRY(tws_build_size(b, "window_size", NULL, 0, TWS_MAX_WIDTH, 256, &d->window, err));
  d->slides = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (d->slides == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  for (int64_t i = 0; i < layers; i++) d->slides[i] = i % 2 == 1;
  if (types == NULL || cJSON_IsNull(types)) return TWS_OK;
  cJSON_ArrayForEach(type, types) {
    const cJSON *words = cJSON_GetArrayItem(type, 0), *times = cJSON_GetArrayItem(type, 1);
    const double repetitions = cJSON_IsNumber(times) ? times->valuedouble : 0;
    for (int64_t i = 0; (double)i < repetitions && layer < layers; i++) cJSON_ArrayForEach(word, words) {
        const int local = cJSON_IsString(word) && strcmp(word->valuestring, "local") == 0;
        if (!local && (!cJSON_IsString(word) || strcmp(word->valuestring, "global") != 0))
          return tws_json_fail(json, word, err, "known: global and local", "a layer's attention is not supported");
        if (layer < layers) d->slides[layer] = (uint8_t)local;
        layer++;
      }
  }
  return layer == layers
             ? TWS_OK
             : tws_json_fail(json, types, err, NULL, "\"attention_types\" is not of %lld layers", (long long)layers);
}

tws_code tws_build_gpt_neo(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_types", "attention_layers", "window_size", "classifier_dropout", NULL};
  static const tws_decoder_names names = {.embedding = "transformer.wte",
                                          .positions = "transformer.wpe",
                                          .layer = "transformer.h.",
                                          .norm = {"ln_1", NULL, "ln_2"},
                                          .qkv = "attn.attention.qkv_proj",
                                          .attention = "attn.attention",
                                          .output = "attn.attention.out_proj",
                                          .up = "mlp.c_fc",
                                          .act = "mlp.act",
                                          .down = "mlp.c_proj",
                                          .final_norm = "transformer.ln_f",
                                          .head = "lm_head"};
  static const tws_decoder_keys keys = {.layers = "num_layers|num_hidden_layers",
                                        .hidden = "hidden_size",
                                        .heads = "num_heads|num_attention_heads",
                                        .inner = "intermediate_size",
                                        .positions = "max_position_embeddings",
                                        .epsilon = "layer_norm_epsilon",
                                        .activation = "activation_function"};
  static const tws_decoder_drops drops = {.attention = "attention_dropout",
                                          .attended = "resid_dropout",
                                          .inner = "resid_dropout",
                                          .embedding = "embed_dropout"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = 2048,
                   .inner = 4,
                   .activation = "gelu_new",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .position = TWS_POSITIONS_LEARNED,
                   .output_bias = 1,
                   .mlp_bias = 1,
                   .attention_scale = 1,
                   .epsilon = 1e-5,
                   .tied = 1};
  TWS_TRY(read_layers(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
