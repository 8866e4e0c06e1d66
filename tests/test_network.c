/* Networks: exact parameter counts, invariants of the graph, refusals with a place, safetensors headers. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/random.h"
#include "models/kernel.h"
#include "models/network/network.h"
#include "tests/folder.h"
#include "tests/failing_allocator.h"
#include "tests/suite.h"

static tws_network *load(const char *spec, int64_t multiple) {
  tws_network *network = NULL;
  tws_error err;
  ck_assert_msg(tws_network_load(spec, multiple, &network, &err) == TWS_OK, "%s: %s", spec, err.message);
  return network;
}

static tws_code parse(const char *text, tws_network **network, tws_error *err) {
  tws_json *json = NULL;
  *network = NULL;
  tws_code code = tws_json_parse(text, strlen(text), "config.json", &json, err);
  if (code == TWS_OK) code = tws_network_from_json(json, 0, network, err);
  tws_json_destroy(json);
  return code;
}

/* Parameter counts equal Hugging Face's num_parameters(), which papers round. */
START_TEST(public_counts) {
  static const struct {
    const char *name;
    int64_t params, largest;
  } models[] = {
      {"gpt2", 124439808, 50257L * 768},
      {"gpt2-medium", 354823168, 50257L * 1024},
      {"gpt2-large", 774030080, 50257L * 1280},
      {"gpt2-xl", 1557611200, 50257L * 1600},
      {"llama-2-7b", 6738415616, 32000L * 4096},
      {"llama-2-13b", 13015864320, 32000L * 5120},
      {"llama-2-70b", 68976648192, 32000L * 8192},
      {"llama-3-8b", 8030261248, 128256L * 4096},
      {"llama-3-70b", 70553706496, 128256L * 8192},
      {"llama-3.1-405b", 405853388800, 128256L * 16384},
      {"llama-3-405b", 405853388800, 128256L * 16384},
      {"llama-3.2-1b", 1235814400, 128256L * 2048},
      {"mixtral-8x7b", 46702792704, 32000L * 4096},
      {"mixtral-8x22b", 140620634112, 32000L * 6144},
  };
  for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
    tws_network *network = load(models[i].name, 0);
    ck_assert_int_eq(tws_network_params(network, 0), models[i].params);
    ck_assert_int_eq(tws_network_largest_layer(network), models[i].largest);
    tws_network_destroy(network);
    network = load(models[i].name, 128);
    ck_assert_int_eq(tws_network_params(network, 1), models[i].params);
    ck_assert_int_eq(network->padded_vocabulary % 128, 0);
    tws_network_destroy(network);
  }
}
END_TEST

/* Built-in models whose counts tests/golden/parameter_counts.json does not have: the numbers of their cards on the
 * Hugging Face hub; DeepSeek-V3's without the 58 biases of 256 experts, which are not trained by gradients. */
START_TEST(counts_of_cards) {
  static const struct {
    const char *name;
    int64_t params;
  } models[] = {
      {"qwen2.5-1.5b", 1543714304},         {"qwen2.5-3b", 3085938688},        {"qwen2.5-32b", 32763876352},
      {"qwen2.5-7b", 7615616512},           {"mistral-7b", 7248023552},        {"mistral-small-24b", 23572403200},
      {"mistral-large-123b", 122610069504}, {"tinyllama-1.1b", 1100048384},    {"smollm2-1.7b", 1711376384},
      {"qwen3-30b-a3b", 30532122624},       {"qwen3-235b-a22b", 235093634560}, {"deepseek-v3", 671026419200 - 58 * 256},
      {"llama-3.1-8b", 8030261248},         {"llama-3.3-70b", 70553706496}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    tws_network *network = load(models[i].name, 0);
    ck_assert_msg(tws_network_params(network, 0) == models[i].params, "%s: %lld", models[i].name,
                  (long long)tws_network_params(network, 0));
    tws_network_destroy(network);
  }
}
END_TEST

/* Names of the Hugging Face hub mean the built-in model with their sizes, unless a file has that name. */
START_TEST(names_of_the_hub) {
  static const struct {
    const char *id, *name;
  } ids[] = {{"meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"},
             {"meta-llama/Meta-Llama-3-8B", "llama-3-8b"},
             {"Qwen/Qwen3-8B-Base", "qwen3-8b"},
             {"Qwen3-30B-A3B", "qwen3-30b-a3b"},
             {"mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"},
             {"google/gemma-3-1b-it", "gemma-3-1b"},
             {"google-bert/bert-base-uncased", "bert-base"},
             {"microsoft/Phi-3-mini-4k-instruct", "phi-3-mini-4k"},
             {"deepseek-ai/DeepSeek-V3", "deepseek-v3"}};
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
    tws_network *network = load(ids[i].id, 0);
    ck_assert_str_eq(network->name, ids[i].name);
    tws_network_destroy(network);
  }
  static const char *const others[] = {"someone/unknown-7b", "a/b/gpt2", "mistralai/Mistral-7B-v0.1",
                                       "Qwen/Qwen3-8B.json"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    tws_network *network;
    tws_error err;
    ck_assert_msg(tws_network_load(others[i], 0, &network, &err) != TWS_OK, "%s", others[i]);
  }
}
END_TEST

/* Models of experts by their own files, cut down to the keys that matter: counts of all parameters are num_parameters()
 * of Transformers 5.23.0; the active parameters leave out the experts that a token does not choose. */
START_TEST(expert_counts) {
  static const struct {
    const char *text;
    int64_t params, active;
  } models[] = {
      {"{\"model_type\":\"qwen2_moe\",\"vocab_size\":151936,\"hidden_size\":2048,\"num_hidden_layers\":24,"
       "\"num_attention_heads\":16,\"num_key_value_heads\":16,\"intermediate_size\":5632,"
       "\"moe_intermediate_size\":1408,\"shared_expert_intermediate_size\":5632,\"num_experts\":60,"
       "\"num_experts_per_tok\":4}",
       14315784192, 2689173504},
      {"{\"model_type\":\"qwen2_moe\",\"vocab_size\":151936,\"hidden_size\":3584,\"num_hidden_layers\":28,"
       "\"num_attention_heads\":28,\"num_key_value_heads\":4,\"intermediate_size\":18944,"
       "\"moe_intermediate_size\":2560,\"shared_expert_intermediate_size\":20480,\"num_experts\":64,"
       "\"num_experts_per_tok\":8}",
       57408658944, 14249270784},
      {"{\"model_type\":\"qwen3_moe\",\"vocab_size\":151936,\"hidden_size\":2048,\"num_hidden_layers\":48,"
       "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":6144,"
       "\"moe_intermediate_size\":768,\"num_experts\":128,\"num_experts_per_tok\":8,\"norm_topk_prob\":true}",
       30532122624, 3353032704},
      {"{\"model_type\":\"qwen3_moe\",\"vocab_size\":151936,\"hidden_size\":4096,\"num_hidden_layers\":94,"
       "\"num_attention_heads\":64,\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":12288,"
       "\"moe_intermediate_size\":1536,\"num_experts\":128,\"num_experts_per_tok\":8,\"norm_topk_prob\":true}",
       235093634560, 22190763520},
      {"{\"model_type\":\"deepseek_v2\",\"vocab_size\":102400,\"hidden_size\":2048,\"num_hidden_layers\":27,"
       "\"num_attention_heads\":16,\"intermediate_size\":10944,\"moe_intermediate_size\":1408,"
       "\"n_routed_experts\":64,\"n_shared_experts\":2,\"num_experts_per_tok\":6,\"first_k_dense_replace\":1,"
       "\"q_lora_rank\":null,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":0.707,"
       "\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096}}",
       15706484224, 2661150208},
      {"{\"model_type\":\"deepseek_v2\",\"vocab_size\":102400,\"hidden_size\":5120,\"num_hidden_layers\":60,"
       "\"num_attention_heads\":128,\"intermediate_size\":12288,\"moe_intermediate_size\":1536,"
       "\"n_routed_experts\":160,\"n_shared_experts\":2,\"num_experts_per_tok\":6,\"first_k_dense_replace\":1,"
       "\"topk_method\":\"group_limited_greedy\",\"n_group\":8,\"topk_group\":3,\"routed_scaling_factor\":16}",
       235741434880, 21375800320},
      {"{\"model_type\":\"deepseek_v3\",\"vocab_size\":129280,\"hidden_size\":7168,\"num_hidden_layers\":61,"
       "\"num_attention_heads\":128,\"intermediate_size\":18432}",
       671026404352, 37552282624},
  };
  for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
    tws_network *network = NULL;
    tws_error err;
    ck_assert_msg(parse(models[i].text, &network, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(tws_network_params(network, 0), models[i].params);
    ck_assert_int_eq(tws_network_active_params(network, 0), models[i].active);
    tws_network_destroy(network);
  }
}
END_TEST

/* The parameters that a token uses ("active") equal the papers' numbers, which are rounded (Jiang et al. 2024: 13B and
 * 39B of 47B and 141B). */
START_TEST(active_counts) {
  static const struct {
    const char *name;
    int64_t active;
  } models[] = {{"mixtral-8x7b", 12879925248}, {"mixtral-8x22b", 39152031744}, {"llama-3-8b", 8030261248}};
  for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
    tws_network *network = load(models[i].name, 0);
    ck_assert_int_eq(tws_network_active_params(network, 0), models[i].active);
    ck_assert_int_eq(tws_network_has_experts(network), i < 2);
    tws_network_destroy(network);
  }
}
END_TEST

START_TEST(padded_gpt2) { /* llm.c's parameter count, with the vocabulary padded to 50304 */
  tws_network *network = load("gpt2", 128);
  ck_assert_int_eq(network->padded_vocabulary, 50304);
  ck_assert_int_eq(tws_network_params(network, 0), 124475904);
  tws_network_destroy(network);
}
END_TEST

/* FLOPs follow PaLM, appendix B: 6 N + 12 L H Q T per token, N without the embedding tables that are only looked up. */
START_TEST(flops_follow_palm) {
  tws_network *network = load("llama-2-7b", 0);
  double products = 6738415616.0 - 32000.0 * 4096 - 65.0 * 4096; /* without lookup and norms */
  double expected = 2 * products + 4 * 32.0 * 32 * 128 * 2048;
  ck_assert_double_eq_tol(tws_network_flops_per_token(network, 2048, 0, 0) / expected, 1, 1e-12);
  double halved = 2 * products + 2 * 32.0 * 32 * 128 * 2048;
  ck_assert_double_eq_tol(tws_network_flops_per_token(network, 2048, 0, 1) / halved, 1, 1e-12);
  tws_network_destroy(network);
  network = load("llama-2-7b", 1 << 20); /* padding is no useful work */
  ck_assert_double_eq_tol(tws_network_flops_per_token(network, 2048, 0, 0) / expected, 1, 1e-12);
  tws_network_destroy(network);
}
END_TEST

/* Asserts that a graph is consistent: each value has one producer, which precedes its readers; parameters belong to the
 * first module that uses them; features match along the edges; all layers are equal blocks. */
static void check_graph(const tws_network *net) {
  ck_assert_uint_eq(net->layer_first + net->layer_stride * (uint32_t)net->layers + 3, net->module_count);
  uint32_t *produced = calloc(net->value_count + 1, sizeof *produced);
  uint32_t *used = calloc(net->param_count + 1, sizeof *used);
  for (uint32_t i = 0; i < net->module_count; i++) {
    const tws_module *m = &net->modules[i];
    int64_t in_layer = (int64_t)i - net->layer_first;
    int inside = in_layer >= 0 && in_layer < (int64_t)net->layer_stride * net->layers;
    ck_assert_int_eq(m->layer, inside ? (int)(in_layer / net->layer_stride) : in_layer < 0 ? -1 : -2);
    if (inside && in_layer >= net->layer_stride) ck_assert_int_eq(m->type, net->modules[i - net->layer_stride].type);
    ck_assert_int_eq(m->in[0] == TWS_NONE, m->type == TWS_MODULE_EMBEDDING);
    ck_assert_int_eq(m->in[1] != TWS_NONE,
                     m->type == TWS_MODULE_ADD || (m->routing != NULL && m->type != TWS_MODULE_ROUTER));
    for (int k = 0; k < TWS_MODULE_INS; k++) {
      if (m->in[k] != TWS_NONE) {
        ck_assert_uint_lt(m->in[k], net->value_count);
        ck_assert_uint_eq(produced[m->in[k]], 1);
        ck_assert_int_eq(net->values[m->in[k]].kind == TWS_VALUE_ACTIVATION, k == 0 || m->routing == NULL);
      }
    }
    for (int k = 0; k < TWS_MODULE_PARAMS; k++) {
      if (m->param[k] != TWS_NONE) {
        ck_assert_uint_lt(m->param[k], net->param_count);
        if (used[m->param[k]]++ == 0) ck_assert_uint_eq(net->params[m->param[k]].module, i);
      }
    }
    for (int k = 0; k < TWS_MODULE_OUTS; k++) {
      if (m->out[k] == TWS_NONE) continue;
      ck_assert_uint_eq(produced[m->out[k]]++, 0);
      ck_assert_uint_eq(net->values[m->out[k]].producer, i);
    }
    const tws_value *x = m->in[0] != TWS_NONE ? &net->values[m->in[0]] : NULL, *y = &net->values[m->out[0]];
    ck_assert_uint_ge(m->out_features, 1);
    ck_assert_int_eq(y->per_row, m->out_features);
    switch (m->type) {
      case TWS_MODULE_LINEAR:
        ck_assert_int_eq(x->per_row, m->in_features);
        ck_assert_int_eq(net->params[m->param[0]].rows, m->out_features);
        ck_assert_int_eq(net->params[m->param[0]].columns, m->in_features);
        break;
      case TWS_MODULE_EXPERT_LINEAR:
        ck_assert_int_eq(x->per_row, m->in_features);
        ck_assert_int_eq(net->params[m->param[0]].rows, m->routing->experts * m->out_features);
        ck_assert_int_eq(net->params[m->param[0]].columns, m->in_features);
        ck_assert_int_eq(net->params[m->param[0]].experts, m->routing->experts);
        break;
      case TWS_MODULE_NORM:
        ck_assert_int_eq(net->values[m->out[1]].per_row, m->rms ? 1 : 2);
        ck_assert_int_eq(m->param[1] == TWS_NONE, m->rms);
        ck_assert_double_gt(m->epsilon, 0);
        break;
      case TWS_MODULE_ROPE:
      case TWS_MODULE_ATTENTION:
        ck_assert_int_eq(x->per_row, (m->heads + 2 * m->kv_heads) * m->head_size);
        ck_assert_int_eq(m->heads % m->kv_heads, 0);
        break;
      case TWS_MODULE_SWIGLU:
        ck_assert_int_eq(x->per_row, 2 * m->out_features);
        break;
      case TWS_MODULE_ADD:
        ck_assert_int_eq(net->values[m->in[1]].per_row, m->out_features);
        break;
      case TWS_MODULE_LOSS:
        ck_assert_uint_eq(m->in[0], net->logits);
        break;
      default:
        break;
    }
  }
  for (uint32_t v = 0; v < net->value_count; v++) ck_assert_uint_eq(produced[v], 1);
  int64_t total = 0;
  for (uint32_t p = 0; p < net->param_count; p++) {
    ck_assert_uint_eq(used[p], p == 0 && net->tied ? 2 : 1);
    int64_t parts = net->params[p].fused[0] + net->params[p].fused[1] + net->params[p].fused[2];
    if (net->params[p].experts > 0) parts *= net->params[p].experts;
    if (parts != 0) ck_assert_int_eq(parts, net->params[p].rows > 1 ? net->params[p].rows : net->params[p].columns);
    total += tws_param_numel(&net->params[p]);
  }
  ck_assert_int_eq(total, tws_network_params(net, 0));
  free(produced);
  free(used);
}

/* All built-in models are read without a note; those of the families whose layers are alike, and which end with norm,
 * head and loss, have consistent graphs. */
START_TEST(builtin_graphs) {
  static const char *const alike[] = {"gpt2", "llama", "mixtral"};
  int checked = 0;
  for (const char *const *name = tws_network_builtin_names(); *name != NULL; name++) {
    tws_network *network = load(*name, 64);
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) {
      if (strcmp(network->architecture, alike[i]) != 0) continue;
      check_graph(network);
      checked++;
    }
    ck_assert_str_eq(network->notes, "");
    ck_assert_str_eq(network->name, *name);
    tws_network_destroy(network);
  }
  ck_assert_int_ge(checked, 24);
}
END_TEST

START_TEST(initial_values) {
  tws_network *network = load("tiny-gpt2", 0);
  int residual = 0;
  for (uint32_t i = 0; i < network->param_count; i++) {
    const tws_param *p = &network->params[i];
    const char *suffix = strrchr(p->name, '.');
    if (p->rows == 1) {
      ck_assert_float_eq(p->init_std, 0);
      ck_assert_float_eq(p->init_value, strcmp(suffix, ".bias") == 0 ? 0 : 1);
    } else if (strstr(p->name, "c_proj") != NULL) {
      ck_assert_float_eq_tol(p->init_std, 0.01f, 1e-9f); /* 0.02 / sqrt(2 x 2 layers) */
      residual++;
    } else {
      ck_assert_float_eq(p->init_std, 0.02f);
    }
  }
  ck_assert_int_eq(residual, 4);
  tws_network_destroy(network);
}
END_TEST

/* Random legal configurations give a consistent graph, and their parameter count is that of the textbook formula. */
START_TEST(random_configurations) {
  for (uint64_t c = 0; c < 300; c++) {
    uint32_t r[4], s[4];
    tws_philox(7, 1, c, r);
    tws_philox(7, 2, c, s);
    int64_t layers = 1 + r[0] % 5, kv = 1 + r[1] % 4, heads = kv * (1 + r[2] % 4), head = 2 * (1 + r[3] % 40);
    int64_t hidden = heads * (1 + s[0] % 30), inner = 1 + s[1] % 500, vocabulary = 1 + s[2] % 3000, positions = 77;
    int tied = s[3] & 1, attention_bias = s[3] >> 1 & 1, mlp_bias = s[3] >> 2 & 1, gpt2 = s[3] >> 3 & 1;
    char text[800];
    int64_t expected;
    if (gpt2) {
      snprintf(text, sizeof text,
               "{\"architectures\":[\"GPT2LMHeadModel\"],\"n_layer\":%ld,\"n_embd\":%ld,\"n_head\":%ld,\"n_inner\":%ld,"
               "\"vocab_size\":%ld,\"n_positions\":%ld,\"tie_word_embeddings\":%s}",
               layers, hidden, heads, inner, vocabulary, positions, tied ? "true" : "false");
      expected = hidden * (vocabulary * (tied ? 1 : 2) + positions + 2) +
                 layers * (4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden);
    } else {
      snprintf(text, sizeof text,
               "{\"model_type\":\"llama\",\"num_hidden_layers\":%ld,\"hidden_size\":%ld,\"num_attention_heads\":%ld,"
               "\"num_key_value_heads\":%ld,\"head_dim\":%ld,\"intermediate_size\":%ld,\"vocab_size\":%ld,"
               "\"tie_word_embeddings\":%s,\"attention_bias\":%s,\"mlp_bias\":%s}",
               layers, hidden, heads, kv, head, inner, vocabulary, tied ? "true" : "false",
               attention_bias ? "true" : "false", mlp_bias ? "true" : "false");
      int64_t qkv = (heads + 2 * kv) * head;
      expected = hidden * (vocabulary * (tied ? 1 : 2) + 1) +
                 layers * (qkv * hidden + heads * head * hidden + 3 * hidden * inner + 2 * hidden +
                           attention_bias * (qkv + hidden) + mlp_bias * (2 * inner + hidden));
    }
    tws_network *network = NULL;
    tws_error err;
    ck_assert_msg(parse(text, &network, &err) == TWS_OK, "%s: %s", text, err.message);
    check_graph(network);
    ck_assert_int_eq(tws_network_params(network, 0), expected);
    ck_assert_int_le(tws_network_largest_layer(network), expected);
    tws_network_destroy(network);
  }
}
END_TEST

/* These are config.json files as published on the Hugging Face hub, cut down to the keys that matter. */
START_TEST(counts_of_published_files) {
  static const struct {
    const char *text;
    int64_t params;
  } models[] = {
      {"{\"model_type\":\"qwen2\",\"hidden_size\":896,\"num_hidden_layers\":24,\"num_attention_heads\":14,"
       "\"num_key_value_heads\":2,\"intermediate_size\":4864,\"vocab_size\":151936,\"tie_word_embeddings\":true,"
       "\"max_position_embeddings\":32768,\"sliding_window\":32768,\"use_sliding_window\":false}",
       494032768}, /* Qwen2.5-0.5B */
      {"{\"model_type\":\"qwen2\",\"hidden_size\":3584,\"num_hidden_layers\":28,\"num_attention_heads\":28,"
       "\"num_key_value_heads\":4,\"intermediate_size\":18944,\"vocab_size\":152064}",
       7615616512}, /* Qwen2.5-7B */
      {"{\"model_type\":\"mistral\",\"hidden_size\":4096,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
       "\"num_key_value_heads\":8,\"intermediate_size\":14336,\"vocab_size\":32000,\"sliding_window\":4096,"
       "\"tie_word_embeddings\":false}",
       7241732096}, /* Mistral-7B-v0.1 */
  };
  for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
    tws_network *network = NULL;
    tws_error err;
    ck_assert_msg(parse(models[i].text, &network, &err) == TWS_OK, "%s", err.message);
    check_graph(network);
    ck_assert_int_eq(tws_network_params(network, 0), models[i].params);
    ck_assert_str_eq(network->notes, "");
    tws_network_destroy(network);
  }
}
END_TEST

#define LLAMA_HEAD                                                                                                  \
  "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64,\"intermediate_size\":96,\"vocab_size\":9," \
  "\"num_attention_heads\":4"
#define GPT2_HEAD "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,\"vocab_size\":9,\"n_positions\":8"

START_TEST(remarks) {
  tws_network *network = NULL;
  tws_error err;
  ck_assert_int_eq(parse(GPT2_HEAD ",\"n_head\":4,\"resid_pdrop\":0.1,\"attn_pdrop\":0.0,\"summary_type\":\"x\","
                                   "\"use_cache\":true,\"frobnicate\":[]}",
                         &network, &err),
                   TWS_OK);
  ck_assert_str_eq(network->notes, "frobnicate is not modelled and has no effect\n");
  tws_network_destroy(network);
  ck_assert_int_eq(parse(LLAMA_HEAD ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                                    "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192},"
                                    "\"rope_theta\":500000.0,\"architectures\":[\"LlamaModel\"]}",
                         &network, &err),
                   TWS_OK);
  ck_assert_ptr_nonnull(strstr(network->notes, "LlamaModel"));
  const tws_module *rope = &network->modules[network->layer_first + 2];
  ck_assert_int_eq(rope->type, TWS_MODULE_ROPE);
  const double expected[5] = {500000, 8, 1, 4, 8192};
  for (int i = 0; i < 5; i++) ck_assert_double_eq(rope->rope[i], expected[i]);
  tws_network_destroy(network);
}
END_TEST

#define TINY(type)                                                                          \
  "{\"model_type\":\"" type                                                                 \
  "\",\"num_hidden_layers\":2,\"hidden_size\":16,\"intermediate_size\":8,\"vocab_size\":9," \
  "\"num_attention_heads\":2,\"num_key_value_heads\":2"
/* configuration, error code, a part of the message, and the line:column that the message has to name */
static const struct refusal {
  const char *text;
  tws_code code;
  const char *says, *place;
} refusals[] = {
    {"[]", TWS_INVALID, "not an object", ":1:1"},
    {"{}", TWS_INVALID, "model_type", ":1:1"},
    {"{\"model_type\":\"clip\"}", TWS_UNSUPPORTED, "clip", ":1:2"},
    {"{\"architectures\":[\"MambaForCausalLM\"]}", TWS_UNSUPPORTED, "MambaForCausalLM", ":1:2"},
    {"{\"architectures\":[]}", TWS_INVALID, "list of class names", ":1:2"},
    {"{\"architectures\":\"GPT2LMHeadModel\"}", TWS_INVALID, "list of class names", ":1:2"},
    {"{\"model_type\":7}", TWS_INVALID, "model_type", ":1:2"},
    {GPT2_HEAD "}", TWS_INVALID, "n_head", ":1:1"},
    {GPT2_HEAD ",\n\"n_head\":5}", TWS_INVALID, "5 heads do not divide", ":2:1"},
    {GPT2_HEAD ",\n \"n_head\":0}", TWS_INVALID, "n_head", ":2:2"},
    {GPT2_HEAD ",\n \"n_head\":-4}", TWS_INVALID, "n_head", ":2:2"},
    {GPT2_HEAD ",\n \"n_head\":4.5}", TWS_INVALID, "n_head", ":2:2"},
    {GPT2_HEAD ",\n \"n_head\":\"4\"}", TWS_INVALID, "n_head", ":2:2"},
    {GPT2_HEAD ",\n \"n_head\":1e300}", TWS_INVALID, "n_head", ":2:2"},
    {GPT2_HEAD ",\"n_head\":4,\n\"n_inner\":9223372036854775807}", TWS_INVALID, "n_inner", ":2:1"},
    {GPT2_HEAD ",\"n_head\":4,\n\"hidden_size\":32}", TWS_INVALID, "means the same", ":2:1"},
    {GPT2_HEAD ",\"n_head\":4,\n\"activation_function\":\"mish\"}", TWS_UNSUPPORTED, "mish", ":2:1"},
    {GPT2_HEAD ",\"n_head\":4,\n\"frobnicate\":1}", TWS_UNSUPPORTED, "frobnicate", ":2:1"},
    {LLAMA_HEAD ",\n\"num_local_experts\":8}", TWS_UNSUPPORTED, "num_local_experts", ":2:1"},
    {LLAMA_HEAD ",\n\"sliding_window\":4096}", TWS_UNSUPPORTED, "sliding_window", ":2:1"},
    {LLAMA_HEAD ",\n\"partial_rotary_factor\":0.5}", TWS_UNSUPPORTED, "partial_rotary_factor", ":2:1"},
    {LLAMA_HEAD ",\n\"architectures\":[\"LlamaForQuestionAnswering\"]}", TWS_UNSUPPORTED, "LlamaForQuestion", ":2:1"},
    {GPT2_HEAD ",\"n_head\":4,\n\"resid_pdrop\":1.5}", TWS_INVALID, "resid_pdrop", ":2:1"},
    {GPT2_HEAD ",\"n_head\":4,\n\"layer_norm_epsilon\":0}", TWS_INVALID, "layer_norm_epsilon", ":2:1"},
    {GPT2_HEAD ",\"n_head\":4,\n\"tie_word_embeddings\":1}", TWS_INVALID, "tie_word_embeddings", ":2:1"},
    {LLAMA_HEAD ",\n\"num_key_value_heads\":3}", TWS_INVALID, "3 key-value heads do not divide", ":2:1"},
    {LLAMA_HEAD ",\n\"head_dim\":0}", TWS_INVALID, "head_dim", ":2:1"},
    {LLAMA_HEAD ",\n\"head_dim\":7}", TWS_INVALID, "7 elements of a head", ":2:1"},
    {LLAMA_HEAD ",\n\"hidden_act\":\"gelu\"}", TWS_UNSUPPORTED, "gelu", ":2:1"},
    {LLAMA_HEAD ",\n\"rope_scaling\":\"yarn\"}", TWS_INVALID, "rope_scaling", ":2:1"},
    {LLAMA_HEAD ",\n\"rope_scaling\":{\"rope_type\":\"ntk\"}}", TWS_UNSUPPORTED, "ntk", ":2:1"},
    {LLAMA_HEAD ",\n\"rope_scaling\":{\"rope_type\":\"longrope\"}}", TWS_INVALID, "short_factor", ":2:"},
    {LLAMA_HEAD
     ",\n\"head_dim\":4,\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[1,0]}}",
     TWS_INVALID, "long_factor", ":2:"},
    {LLAMA_HEAD ",\n\"rope_scaling\":{\"rope_type\":\"llama3\"}}", TWS_INVALID, "factor", ":2:"},
    {LLAMA_HEAD ",\n\"rope_theta\":0}", TWS_INVALID, "rope_theta", ":2:1"},
    {LLAMA_HEAD ",\n\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1,\"alpha\":1000}}", TWS_INVALID, "alpha", ":2:"},
    {LLAMA_HEAD ",\n\"no_rope_layers\":[1,0]}", TWS_UNSUPPORTED, "no_rope_layers", ":2:1"},
    {TINY("smollm3") ",\n\"no_rope_layers\":[1]}", TWS_INVALID, "list of 2", ":2:1"},
    {TINY("smollm3") ",\n\"no_rope_layers\":[1,2]}", TWS_INVALID, "layer 1 of", ":2:"},
    {TINY("smollm3") ",\n\"no_rope_layer_interval\":0}", TWS_INVALID, "no_rope_layer_interval", ":2:1"},
    {TINY("exaone4") ",\n\"sliding_window_pattern\":\"LLLG\"}", TWS_INVALID, "sliding_window_pattern", ":2:1"},
    {TINY("cohere2") ",\n\"use_qk_norm\":true}", TWS_UNSUPPORTED, "use_qk_norm", ":2:1"},
    {TINY("cohere2") ",\n\"rotary_pct\":0.5}", TWS_INVALID, "rotary_pct", ":2:1"},
    {TINY("cohere2") ",\n\"position_embedding_type\":\"alibi\"}", TWS_INVALID, "alibi", ":2:1"},
    {TINY("phi3") ",\n\"full_attn_mod\":2}", TWS_INVALID, "full_attn_mod", ":2:1"},
    {TINY("electra") ",\"max_position_embeddings\":8,\n\"embedding_size\":8}", TWS_UNSUPPORTED, "embeddings of 8",
     ":2:1"},
    {TINY("electra") ",\n\"architectures\":[\"ElectraForPreTraining\"]}", TWS_UNSUPPORTED, "ElectraForPreTraining",
     ":2:1"},
    {TINY("glm4_moe") ",\n\"n_group\":2}", TWS_INVALID, "n_group", ":2:1"},
    {TINY("solar_open") ",\n\"first_k_dense_replace\":1}", TWS_INVALID, "first_k_dense_replace", ":2:1"},
    {TINY("granitemoehybrid") ",\n\"layer_types\":[\"mamba\",\"attention\"]}", TWS_INVALID, "\"mamba\"", ":2:16"},
    {TINY("granitemoehybrid") ",\"layer_types\":[\"attention\"],\n\"num_local_experts\":8}", TWS_INVALID, "8 experts",
     ":2:1"},
    {TINY("olmoe") ",\n\"clip_qkv\":8}", TWS_UNSUPPORTED, "clip_qkv", ":2:1"},
    {TINY("hunyuan_v1_dense") ",\n\"use_qk_norm\":false}", TWS_UNSUPPORTED, "use_qk_norm", ":2:1"},
    {TINY("hunyuan_v1_dense") ",\n\"use_cla\":true}", TWS_UNSUPPORTED, "use_cla", ":2:1"},
    {"{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":60,\"intermediate_size\":9,\"vocab_size\":9,"
     "\n\"num_attention_heads\":7}",
     TWS_INVALID, "7 attention heads do not divide", ":2:1"},
    {"{\"model_type\":\"llama\",\"num_hidden_layers\":16384,\"hidden_size\":67108864,\"intermediate_size\":33554432,"
     "\"vocab_size\":268435456,\"num_attention_heads\":1024,\"head_dim\":2}",
     TWS_INVALID, "2^50", ":1:1"},
};

START_TEST(refuses) {
  const struct refusal *r = &refusals[_i];
  tws_network *network = NULL;
  tws_error err = {0};
  tws_code code = parse(r->text, &network, &err);
  ck_assert_ptr_null(network);
  ck_assert_msg(code == r->code && err.code == r->code, "%s: %s (%s)", r->text, tws_code_name(code), err.message);
  ck_assert_msg(strstr(err.message, r->says) != NULL, "%s: %s", r->text, err.message);
  ck_assert_msg(strstr(err.message, r->place) != NULL, "%s: %s", r->text, err.message);
}
END_TEST

START_TEST(refuses_names) {
  tws_network *network = NULL;
  tws_error err;
  ck_assert_int_eq(tws_network_load("gpt2-medum", 0, &network, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.hint, "did you mean gpt2-medium?"));
  ck_assert_int_eq(tws_network_load("gpt2", -1, &network, &err), TWS_INVALID);
  ck_assert_int_eq(tws_network_load("gpt2", INT64_MAX, &network, &err), TWS_INVALID);
  ck_assert_int_ne(tws_network_load(TWS_TEST_DIR, 0, &network, &err), TWS_OK); /* a folder without config.json */
  ck_assert_ptr_nonnull(strstr(err.message, "config.json"));
  ck_assert_ptr_null(network);
}
END_TEST

/* ---- every allocation fails once ---- */

START_TEST(memory_runs_out) {
  static const char text[] = GPT2_HEAD ",\"n_head\":4,\"resid_pdrop\":0.1,\"frobnicate\":null}";
  int failures = 0;
  for (long allowed = 0;; allowed++) {
    tws_network *network = NULL;
    tws_error err;
    failing_allocator limited = {.countdown = allowed};
    tws_set_allocator(&(tws_allocator){failing_resize, &limited});
    tws_code code = parse(text, &network, &err);
    if (code == TWS_OK) check_graph(network);
    tws_network_destroy(network);
    tws_set_allocator(NULL);
    if (code == TWS_OK) break;
    ck_assert_msg(code == TWS_MEMORY, "allocation %ld: %s %s", allowed, tws_code_name(code), err.message);
    ck_assert_ptr_null(network);
    failures++;
  }
  ck_assert_int_gt(failures, 5);
}
END_TEST

/* ---- safetensors ---- */

/* Writes a safetensors file with this header and `data` bytes after it; stated: the length that the file states (-1:
 * the true one). Returns its path. */
static const char *put(const char *name, const char *header, int data, int64_t stated) {
  const char *path = in_folder(name);
  FILE *file = fopen(path, "wb");
  uint64_t length = stated < 0 ? strlen(header) : (uint64_t)stated;
  for (int i = 0; i < 8; i++) fputc((int)(length >> 8 * i & 255), file);
  fputs(header, file);
  for (int i = 0; i < data; i++) fputc(0, file);
  fclose(file);
  return path;
}

#define TENSOR(name, type, shape, begin, end) \
  "\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

START_TEST(counts_headers) {
  tws_safetensors_counts counts;
  tws_error err;
  const char *path = put("model.safetensors",
                         "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "BF16", "3,4", 4, 28) "," TENSOR(
                             "a", "F32", "", 0, 4) "," TENSOR("empty", "I64", "0,7", 28, 28) "}   ",
                         28, -1);
  ck_assert_msg(tws_safetensors_count(path, &counts, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(counts.tensors, 3);
  ck_assert_int_eq(counts.parameters, 13);
  ck_assert_int_eq(counts.bytes, 28);
  ck_assert_int_eq(tws_safetensors_count(folder, &counts, &err), TWS_OK);
  ck_assert_int_eq(counts.parameters, 13);

  put("part-2.safetensors", "{" TENSOR("c", "F16", "5", 0, 10) "}", 10, -1);
  char index[128];
  snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
  FILE *file = fopen(index, "w");
  fputs(
      "{\"weight_map\":{\"a\":\"model.safetensors\",\"b\":\"model.safetensors\",\"empty\":\"model.safetensors\","
      "\"c\":\"part-2.safetensors\"}}",
      file);
  fclose(file);
  ck_assert_msg(tws_safetensors_count(folder, &counts, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(counts.tensors, 4);
  ck_assert_int_eq(counts.parameters, 18);
  file = fopen(index, "w");
  fputs("{\"weight_map\":{\"a\":\"../model.safetensors\"}}", file);
  fclose(file);
  ck_assert_int_eq(tws_safetensors_count(index, &counts, &err), TWS_INVALID);
}
END_TEST

START_TEST(refuses_headers) {
  static const struct {
    const char *header;
    int data;
    int64_t stated;
    const char *says;
  } cases[] = {
      {"", 0, 0, ""},
      {"{}", 0, 3, "header of 3 bytes"},
      {"{}", 0, INT64_MAX, "cannot be"},
      {"{}", 0, 200000000, "cannot be"},
      {"{", 0, -1, ""},
      {"[]", 0, -1, "object"},
      {"{\"a\":3}", 0, -1, "tensor a"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, -1, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, -1, "data_offsets"},
      {"{" TENSOR("a", "F33", "1", 0, 4) "}", 4, -1, "F33"},
      {"{" TENSOR("a", "F32", "-1", 0, 4) "}", 4, -1, "non-negative"},
      {"{" TENSOR("a", "F32", "1.5", 0, 6) "}", 6, -1, "non-negative"},
      {"{" TENSOR("a", "F32", "4294967296,4294967296", 0, 4) "}", 4, -1, "overflows"},
      {"{" TENSOR("a", "F32", "2", 0, 4) "}", 4, -1, "do not hold"},
      {"{" TENSOR("a", "F32", "1", 4, 0) "}", 4, -1, "do not hold"},
      {"{" TENSOR("a", "F32", "1", 0, 4) "," TENSOR("b", "F32", "1", 0, 4) "}", 4, -1, "begins at byte 0"},
      {"{" TENSOR("a", "F32", "1", 0, 4) "," TENSOR("b", "F32", "1", 8, 12) "}", 12, -1, "begins at byte 8"},
      {"{" TENSOR("a", "F32", "1", 0, 4) "}", 3, -1, "holds 3"},
      {"{" TENSOR("a", "F32", "1", 0, 4) "," TENSOR("a", "F32", "1", 4, 8) "}", 8, -1, "a"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tws_safetensors_counts counts;
    tws_error err = {0};
    const char *path = put("bad.safetensors", cases[i].header, cases[i].data, cases[i].stated);
    ck_assert_msg(tws_safetensors_count(path, &counts, &err) == TWS_INVALID, "case %zu: %s", i, err.message);
    ck_assert_msg(strstr(err.message, "bad.safetensors") != NULL, "case %zu: %s", i, err.message);
    ck_assert_msg(strstr(err.message, cases[i].says) != NULL, "case %zu: %s", i, err.message);
  }
  tws_safetensors_counts counts;
  ck_assert_int_eq(tws_safetensors_count(in_folder("none"), &counts, NULL), TWS_IO);
}
END_TEST

/* ---- counts of kernels ---- */

START_TEST(kernel_counts) {
  tws_work linear = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .d = {3, 5, 7}};
  ck_assert_double_eq(tws_work_flops(&linear), 210);
  ck_assert_double_eq(tws_work_bytes(&linear), 2 * (21 + 35 + 15));
  tws_work grad = {.code = TWS_KERNEL_LINEAR_GRAD_WEIGHT, .dtype = TWS_BF16, .dtype2 = TWS_F32, .d = {3, 5, 7}};
  ck_assert_double_eq(tws_work_bytes(&grad), 2 * (21 + 15) + 4 * 35);
  grad.flags = TWS_ACCUMULATE;
  ck_assert_double_eq(tws_work_bytes(&grad), 2 * (21 + 15) + 8 * 35);
  /* causal attention of 4 tokens: 1 + 2 + 3 + 4 pairs per head */
  tws_work attention = {.code = TWS_KERNEL_ATTENTION, .d = {2, 4, 6, 3, 8}};
  ck_assert_double_eq(tws_work_flops(&attention), 2 * 2 * 10.0 * 2 * 6 * 8);
  ck_assert_double_eq(tws_work_bytes(&attention), 8 * (12 * 8 * 4 + 6 * 8 * 4 + 6 * 4));
  attention.code = TWS_KERNEL_ATTENTION_GRAD;
  ck_assert_double_eq(tws_work_flops(&attention), 5 * 2 * 10.0 * 2 * 6 * 8);
  tws_work adam = {.code = TWS_KERNEL_ADAMW, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {10}};
  ck_assert_double_eq(tws_work_bytes(&adam), 280);
  for (int kernel = 0; kernel < TWS_KERNEL_COUNT; kernel++) {
    tws_work work = {.code = (uint8_t)kernel, .d = {4, 8, 8, 4, 4}}, more = work;
    more.d[0] *= 2;
    ck_assert_double_ge(tws_work_flops(&more), tws_work_flops(&work));
    ck_assert_double_gt(tws_work_bytes(&work), 0);
    ck_assert_double_ge(tws_work_bytes(&more), tws_work_bytes(&work));
    ck_assert_ptr_nonnull(tws_kernel_name((tws_kernel)kernel));
    ck_assert_uint_ge(tws_work_workspace(&work, TWS_BACKEND_HOST, 2), tws_work_workspace(&work, TWS_BACKEND_HOST, 1));
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("network");
  TCase *graph = tcase_create("graph");
  tcase_add_test(graph, public_counts);
  tcase_add_test(graph, counts_of_cards);
  tcase_add_test(graph, names_of_the_hub);
  tcase_add_test(graph, counts_of_published_files);
  tcase_add_test(graph, active_counts);
  tcase_add_test(graph, expert_counts);
  tcase_add_test(graph, padded_gpt2);
  tcase_add_test(graph, flops_follow_palm);
  tcase_add_test(graph, builtin_graphs);
  tcase_add_test(graph, initial_values);
  tcase_add_test(graph, random_configurations);
  tcase_add_test(graph, remarks);
  tcase_add_loop_test(graph, refuses, 0, (int)(sizeof refusals / sizeof refusals[0]));
  tcase_add_test(graph, refuses_names);
  tcase_add_test(graph, memory_runs_out);
  tcase_add_test(graph, kernel_counts);
  suite_add_tcase(suite, graph);
  TCase *safetensors = tcase_create("safetensors");
  tcase_add_checked_fixture(safetensors, make_folder, remove_folder);
  tcase_add_test(safetensors, counts_headers);
  tcase_add_test(safetensors, refuses_headers);
  suite_add_tcase(suite, safetensors);
  return run_suite(suite);
}
