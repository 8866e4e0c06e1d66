/* Derives sizes from a measured run's row, which the rules about its source use. */
#include <math.h>
#include <string.h>

#include "models/hardware/runtime.h"
#include "validation/case_fields.h"
#include "validation/case_rules.h"

/* Returns 1 if the row states a gated feed-forward layer, has a feed-forward width other than 4h, or has fewer key
 * heads than query heads, as Llama models have. */
static int is_llama(const cJSON *row) {
  const double h = tws_case_number(row, "model", "hidden"), ffn = tws_case_number(row, "model", "ffn");
  const double kv = tws_case_number(row, "model", "kv_heads");
  return tws_case_flag(row, "model", "swiglu") || (kv > 0 && kv < tws_case_number(row, "model", "heads")) ||
         (ffn > 0 && ffn != 4 * h && strstr(tws_case_text(row, "model", "name"), "GPT") == NULL);
}

/* Returns the rank of low-rank adapters of queries and values, which follows from the number of trained parameters; 0
 * if that number is no multiple of one rank's parameters. */
static double trained_rank(const cJSON *row, int llama) {
  const double trained = tws_case_number(row, "parallel", "trainable"), h = tws_case_number(row, "model", "hidden");
  const double heads = tws_case_number(row, "model", "heads"), kv = tws_case_number(row, "model", "kv_heads");
  const double values = kv > 0 && llama ? h * kv / heads : h;
  const double each = tws_case_number(row, "model", "layers") * (3 * h + values), rank = trained / each;
  return rank >= 1 && fabs(rank - round(rank)) < 1e-9 ? round(rank) : 0;
}

static int add_sizes(const cJSON *row, cJSON *facts) {
  const long long hidden = (long long)tws_case_number(row, "model", "hidden");
  const long long stated = (long long)tws_case_number(row, "model", "ffn");
  const double kv = tws_case_number(row, "model", "kv_heads"), heads = tws_case_number(row, "model", "heads");
  const double expert = tws_case_number(row, "all_args", "moe-ffn-hidden-size");
  const cJSON *gated = tws_case_member(row, "model", "swiglu");
  const int llama = is_llama(row);
  const long long ffn = stated ? stated : (hidden * 8 / 3 + 255) / 256 * 256; /* the formula of Touvron et al., 2023 */
  const int plain = gated ? cJSON_IsFalse(gated) : ffn >= 4 * hidden;
  const struct {
    const char *name;
    double size;
  } sizes[] = {{"kv_heads", kv > 0 ? kv : heads},
               {"ffn_of_gpt", (double)(stated ? stated : 4 * hidden)},
               {"ffn_of_llama", (double)ffn},
               {"ffn_of_experts", expert > 0 ? expert : (double)(stated > 0 ? stated : 4 * hidden)},
               {"trained_rank", trained_rank(row, llama)}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (!cJSON_AddNumberToObject(facts, sizes[i].name, sizes[i].size)) return 0;
  return cJSON_AddBoolToObject(facts, "llama", llama) && cJSON_AddBoolToObject(facts, "plain", plain);
}

/* Adds the property "named_runtime" if the row's framework is the name of a runtime of Twinspeed. Returns 0 if memory
 * is exhausted. */
static int add_runtime(const cJSON *row, cJSON *facts) {
  const tws_runtime *runtime = tws_runtime_find(tws_case_text(row, "hardware", "framework"));
  return !runtime || cJSON_AddStringToObject(facts, "named_runtime", runtime->name) != NULL;
}

tws_code tws_case_find_facts(const tws_json *rules, const cJSON *row, cJSON **facts, tws_error *err) {
  *facts = cJSON_CreateObject();
  if (!*facts || !add_sizes(row, *facts) || !add_runtime(row, *facts))
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  return tws_case_rules_apply(rules, row, *facts, err);
}

const cJSON *tws_case_fact(const tws_case *one, const char *name) {
  return tws_case_member(one->facts, NULL, name);
}

double tws_case_fact_number(const tws_case *one, const char *name) {
  return tws_case_number(one->facts, NULL, name);
}

const char *tws_case_fact_text(const tws_case *one, const char *name) {
  return tws_case_text(one->facts, NULL, name);
}

int tws_case_fact_flag(const tws_case *one, const char *name) {
  return tws_case_flag(one->facts, NULL, name);
}
