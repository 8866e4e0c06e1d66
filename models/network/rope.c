/* Reads the keys of rotary positions into parameters of ROPE (models/operators.def); keys as in Hugging Face's
 * modeling_rope_utils. */
#include <math.h>
#include <string.h>

#include "models/network/decoder.h"

enum { THETA, FACTOR, LOW, HIGH, ORIGINAL, GAIN };

static tws_code read_llama3(tws_network_builder *b, const cJSON *object, double *rope, tws_error *err) {
  const tws_json *json = b->json;
  TWS_TRY(tws_json_number(json, object, "factor", 1, 1, 1e6, 0, &rope[FACTOR], err));
  TWS_TRY(tws_json_number(json, object, "low_freq_factor", 1, 1e-6, 1e6, 0, &rope[LOW], err));
  TWS_TRY(tws_json_number(json, object, "high_freq_factor", 1, 1e-6, 1e6, 0, &rope[HIGH], err));
  TWS_TRY(tws_json_number(json, object, "original_max_position_embeddings", 1, 1, 1e9, 0, &rope[ORIGINAL], err));
  if (rope[HIGH] > rope[LOW]) return TWS_OK;
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(object, "high_freq_factor"), err, NULL,
                       "high_freq_factor %g must be larger than low_freq_factor %g", rope[HIGH], rope[LOW]);
}

/* Returns the index (a fraction) of the pair of elements whose rotary angle makes `turns` full rotations over the
 * original context length. */
static double pair_of(const double *rope, double rotary, double original, double turns) {
  return rotary * log(original / (turns * 2 * M_PI)) / (2 * log(rope[THETA]));
}

/* Returns the factor by which rotated queries and keys are multiplied if a context is extended: Peng et al. 2023,
 * equation 22. */
static double stretched(double factor, double share) {
  return factor > 1 ? 0.1 * share * log(factor) + 1 : 1;
}

/* Reads YaRN's parameters. The ramp covers the pairs from `low` to `high`, which make beta_fast and beta_slow rotations
 * over the original length. */
static tws_code read_yarn(tws_network_builder *b, const cJSON *object, double rotary, double *rope, tws_error *err) {
  const tws_json *json = b->json;
  double fast, slow, original, gain, share, share_of_all;
  int truncates = 1;
  TWS_TRY(tws_json_number(json, object, "factor", 1, 1, 1e6, 0, &rope[FACTOR], err));
  TWS_TRY(tws_json_number(json, object, "beta_fast", 0, 1e-6, 1e6, 32, &fast, err));
  TWS_TRY(tws_json_number(json, object, "beta_slow", 0, 1e-6, 1e6, 1, &slow, err));
  TWS_TRY(tws_json_number(json, object, "mscale", 0, 0, 1e6, 0, &share, err));
  TWS_TRY(tws_json_number(json, object, "mscale_all_dim", 0, 0, 1e6, 0, &share_of_all, err));
  TWS_TRY(tws_json_bool(json, object, "truncate", 0, 1, &truncates, err));
  TWS_TRY(tws_json_number(json, object, "original_max_position_embeddings", 0, 1, 1e9, (double)b->net->positions,
                          &original, err));
  gain = share > 0 && share_of_all > 0 ? stretched(rope[FACTOR], share) / stretched(rope[FACTOR], share_of_all)
                                       : stretched(rope[FACTOR], 1);
  TWS_TRY(tws_json_number(json, object, "attention_factor", 0, 1e-6, 1e6, gain, &rope[GAIN], err));
  const double low = pair_of(rope, rotary, original, fast), high = pair_of(rope, rotary, original, slow);
  rope[LOW] = fmax(truncates ? floor(low) : low, 0);
  rope[HIGH] = fmin(truncates ? ceil(high) : high, rotary - 1);
  if (rope[HIGH] <= rope[LOW]) rope[HIGH] = rope[LOW] + 0.001;
  return TWS_OK;
}

/* Reads a list with one factor for each pair. */
static tws_code read_factors(tws_network_builder *b, const cJSON *object, const char *key, int64_t pairs, float *out,
                             tws_error *err) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, key), *item;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != pairs)
    return tws_json_fail(b->json, list != NULL ? list : object, err, "half of the elements of a head that are turned",
                         "\"%s\" must be a list of %lld numbers", key, (long long)pairs);
  cJSON_ArrayForEach(item, list) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1e-6 && item->valuedouble <= 1e6))
      return tws_json_fail(b->json, item, err, NULL, "factors in \"%s\" must be numbers from 1e-6 to 1e6", key);
    *out++ = (float)item->valuedouble;
  }
  return TWS_OK;
}

/* Reads LongRoPE's divisors of frequencies: for sequences up to the original context length, and for longer ones. The
 * factor of attention follows from the ratio of context lengths (Ding et al. 2024, as in Phi-3). */
static tws_code read_longrope(tws_network_builder *b, const cJSON *object, double rotary, tws_decoder_rope *rope,
                              tws_error *err) {
  const tws_json *json = b->json;
  const int64_t pairs = (int64_t)rotary / 2;
  double original = (double)rope->original, factor = 0, gain = 1;
  TWS_TRY(tws_json_number(json, json->root, "original_max_position_embeddings", 0, 2, 1e9, original, &original, err));
  TWS_TRY(tws_json_number(json, object, "original_max_position_embeddings", 0, 2, 1e9, original, &original, err));
  TWS_TRY(tws_json_number(json, object, "factor", 0, 1, 1e6, 1, &factor, err));
  if (original > 0) factor = (double)b->net->positions / original;
  if (!(original > 0)) original = (double)b->net->positions;
  if (factor > 1) gain = sqrt(1 + log(factor) / log(original));
  TWS_TRY(tws_json_number(json, object, "attention_factor", 0, 1e-6, 1e6, gain, &rope->parameters[GAIN], err));
  rope->parameters[ORIGINAL] = original;
  float *factors = tws_arena_alloc_unset(b->net->arena, (size_t)(pairs > 0 ? 2 * pairs : 1), sizeof *factors);
  if (factors == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for factors of rotary positions");
  TWS_TRY(read_factors(b, object, "short_factor", pairs, factors, err));
  TWS_TRY(read_factors(b, object, "long_factor", pairs, factors + pairs, err));
  rope->factors = factors;
  return TWS_OK;
}

static tws_code read_scaling(tws_network_builder *b, const cJSON *object, double head, tws_decoder_rope *rope,
                             tws_error *err) {
  static const char *const known[] = {"alpha", /* only a few families have it */
                                      "type",
                                      "rope_type",
                                      "rope_theta",
                                      "factor",
                                      "beta_fast",
                                      "beta_slow",
                                      "mscale",
                                      "mscale_all_dim",
                                      "truncate",
                                      "attention_factor",
                                      "finetuned",
                                      "low_freq_factor",
                                      "high_freq_factor",
                                      "original_max_position_embeddings",
                                      "partial_rotary_factor",
                                      "short_factor",
                                      "long_factor",
                                      NULL};
  const tws_json *json = b->json;
  const char *type = NULL;
  double alpha = 0;
  TWS_TRY(
      tws_json_number(json, object, "rope_theta", 0, 1, 1e12, rope->parameters[THETA], &rope->parameters[THETA], err));
  TWS_TRY(tws_json_number(json, object, "partial_rotary_factor", 0, 1e-6, 1, rope->share, &rope->share, err));
  TWS_TRY(tws_json_string(json, object, "type", 0, "default", &type, err));
  TWS_TRY(tws_json_string(json, object, "rope_type", 0, type, &type, err));
  if (rope->alpha) TWS_TRY(tws_json_number(json, object, "alpha", 0, 1, 1e9, 0, &alpha, err));
  TWS_TRY(tws_json_only(json, object, rope->alpha ? known : known + 1, err));
  const double rotary = rope->share > 0 ? floor(rope->share * head) : head;
  if (alpha > 0 && rotary > 2 && strcmp(type, "dynamic") == 0) {
    rope->parameters[THETA] *= pow(alpha, rotary / (rotary - 2));
    return TWS_OK;
  }
  if (strcmp(type, "llama3") == 0) return read_llama3(b, object, rope->parameters, err);
  if (strcmp(type, "yarn") == 0) return read_yarn(b, object, rotary, rope->parameters, err);
  if (strcmp(type, "linear") == 0)
    return tws_json_number(json, object, "factor", 1, 1, 1e6, 0, &rope->parameters[FACTOR], err);
  if (strcmp(type, "dynamic") == 0) {
    rope->dynamic = 1;
    TWS_TRY(tws_json_number(json, object, "original_max_position_embeddings", 0, 1, 1e9, (double)b->net->positions,
                            &rope->parameters[ORIGINAL], err));
    TWS_TRY(tws_json_number(json, object, "factor", 1, 1, 1e6, 0, &rope->parameters[FACTOR], err));
    const double reach = rope->parameters[ORIGINAL] * rope->parameters[FACTOR];
    if (reach > (double)b->net->positions) b->net->positions = (int64_t)reach;
    return TWS_OK;
  }
  if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) return read_longrope(b, object, rotary, rope, err);
  if (strcmp(type, "default") == 0) return TWS_OK;
  tws_json_fail(json, object, err, "known: default, linear, dynamic, yarn, llama3 and longrope",
                "rope scaling type \"%.60s\" is not supported", type);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

static int is_given(const cJSON *item) {
  return item != NULL && !cJSON_IsNull(item);
}

/* Returns 1 if an object with rotary parameters scales positions: its rope_type is not "default". */
static int is_scaled(const cJSON *object) {
  const cJSON *type = cJSON_GetObjectItemCaseSensitive(object, "rope_type");
  if (!is_given(type)) type = cJSON_GetObjectItemCaseSensitive(object, "type");
  return cJSON_IsString(type) && strcmp(type->valuestring, "default") != 0;
}

tws_code tws_decoder_read_rope(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(json->root, "rope_parameters");
  const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(json->root, "rope_scaling");
  const double head = (double)b->net->head_size;
  double *theta = &d->rope.parameters[THETA];
  TWS_TRY(tws_json_number(json, json->root, "rope_theta", 0, 1, 1e12, *theta > 0 ? *theta : 10000, theta, err));
  if (is_given(parameters)) scaling = parameters;
  b->net->open_positions = !is_scaled(scaling);
  if (!is_given(scaling)) return TWS_OK;
  if (!cJSON_IsObject(scaling)) {
    return tws_json_fail(json, scaling, err, "leave it out, or give an object with rope_type",
                         "\"%s\" must be an object or null", scaling->string);
  }
  /* newer files have one object with parameters for each type of layer: with and without a sliding window */
  const cJSON *full = cJSON_GetObjectItemCaseSensitive(scaling, "full_attention");
  const cJSON *sliding = cJSON_GetObjectItemCaseSensitive(scaling, "sliding_attention");
  b->net->open_positions &= !is_scaled(full) && !is_scaled(sliding);
  if (is_given(sliding)) TWS_TRY(read_scaling(b, sliding, head, &d->sliding_rope, err));
  if (is_given(full) || is_given(sliding)) return is_given(full) ? read_scaling(b, full, head, &d->rope, err) : TWS_OK;
  return read_scaling(b, scaling, head, &d->rope, err);
}
