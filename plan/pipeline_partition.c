#include "plan/pipeline_partition.h"

#include <ctype.h>
#include <regex.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

/* The best division found of the first i weights into a given number of parts: largest and smallest sum of a part, and
 * their difference (spread). */
typedef struct cut_state {
  int64_t largest, smallest, spread;
} cut_state;

static tws_code prefix_sums(const int64_t *weights, int count, int64_t *sum, tws_error *err) {
  sum[0] = 0;
  for (int i = 0; i < count; i++) {
    if (weights[i] < 0) {
      return tws_fail(err, TWS_INVALID, "weights of layers count something and cannot be below zero",
                      "layer %d of the pipeline has weight %lld", i, (long long)weights[i]);
    }
    if (__builtin_add_overflow(sum[i], weights[i], &sum[i + 1])) {
      return tws_fail(err, TWS_INVALID, "use smaller weights", "the weights of layers 0 to %d add up beyond 63 bits",
                      i);
    }
  }
  return TWS_OK;
}

/* Returns the best position of the last boundary; among positions with equal spreads the last. The search moves the
 * boundary from `end` downwards: the last part grows, and the mean of the other parts, which is an upper bound of the
 * smallest part, shrinks. Once the difference of the two exceeds the best spread so far, it exceeds it for all further
 * positions. */
static cut_state best_cut(const cut_state *shorter, const int64_t *sum, int parts, int end, int *position) {
  cut_state best = {.largest = -1, .spread = INT64_MAX};
  /* If there are fewer weights than parts, no division exists; a single part starts at the first weight. */
  for (int cut = parts == 1 ? 0 : end - 1; cut >= parts - 1; cut--) {
    const int64_t part = sum[end] - sum[cut];
    if (parts > 1 && part - best.spread > sum[cut] / (parts - 1)) break;
    const int64_t largest = part > shorter[cut].largest ? part : shorter[cut].largest;
    const int64_t smallest = part < shorter[cut].smallest ? part : shorter[cut].smallest;
    if (best.largest >= 0 && largest - smallest >= best.spread) continue;
    best = (cut_state){.largest = largest, .smallest = smallest, .spread = largest - smallest};
    *position = cut;
  }
  return best;
}

tws_code tws_partition_balanced(const int64_t *weights, int count, int parts, int *bounds, tws_error *err) {
  if (count < 0 || parts < 1) {
    return tws_fail(err, TWS_INVALID, NULL, "%d layers cannot be cut into %d parts", count, parts);
  }
  if (count <= parts) {
    for (int i = 0; i <= parts; i++) bounds[i] = (int)tws_partition_uniform(count, parts, i);
    return TWS_OK;
  }
  size_t width = (size_t)count + 1;
  int64_t *sum = tws_calloc(width, sizeof *sum);
  cut_state *states = tws_calloc(2 * width, sizeof *states);
  int *position = tws_calloc(width * (size_t)parts, sizeof *position); /* [parts - 1][end] */
  tws_code code = TWS_OK;
  if (!sum || !states || !position) {
    code = tws_fail(err, TWS_MEMORY, NULL, "out of memory while cutting %d layers into %d stages", count, parts);
  } else {
    code = prefix_sums(weights, count, sum, err);
  }
  if (code == TWS_OK) {
    cut_state *shorter = states, *longer = states + width;
    shorter[0].smallest = INT64_MAX;
    for (int j = 1; j <= parts; j++) {
      int *row = position + (size_t)(j - 1) * width;
      /* with the full number of parts, only the division of all weights is needed */
      for (int end = j < parts ? j : count; end <= count; end++)
        longer[end] = best_cut(shorter, sum, j, end, &row[end]);
      cut_state *swap = shorter;
      shorter = longer;
      longer = swap;
    }
    bounds[parts] = count;
    for (int j = parts; j > 0; j--) bounds[j - 1] = position[(size_t)(j - 1) * width + (size_t)bounds[j]];
  }
  tws_free(position);
  tws_free(states);
  tws_free(sum);
  return code;
}

enum { LONGEST_PATTERN = 255 };

static tws_code compile_pattern(const char *method, regex_t *regex, char pattern[LONGEST_PATTERN + 1], tws_error *err) {
  const char *text = strchr(method, ':') + 1;
  size_t length = strcspn(text, ":");
  if (length > LONGEST_PATTERN) {
    return tws_fail(err, TWS_INVALID, "use a shorter regular expression",
                    "the regular expression of the partition method has %zu characters, more than %d", length,
                    LONGEST_PATTERN);
  }
  for (size_t i = 0; i < length; i++) pattern[i] = (char)tolower((unsigned char)text[i]);
  pattern[length] = 0;
  int failed = regcomp(regex, pattern, REG_EXTENDED | REG_ICASE | REG_NOSUB);
  if (!failed) return TWS_OK;
  char reason[128];
  regerror(failed, regex, reason, sizeof reason);
  return tws_fail(err, TWS_INVALID, "partition methods of the form type:REGEX take a POSIX extended regular expression",
                  "partition method \"%s\": %s", method, reason);
}

static tws_code match_types(const char *method, const tws_pipeline_layer *layers, int count, int64_t *weights,
                            tws_error *err) {
  regex_t regex;
  char pattern[LONGEST_PATTERN + 1];
  TWS_TRY(compile_pattern(method, &regex, pattern, err));
  int matches = 0;
  for (int i = 0; i < count; i++) {
    weights[i] = layers[i].type && regexec(&regex, layers[i].type, 0, NULL, 0) == 0;
    matches += weights[i] != 0;
  }
  regfree(&regex);
  if (matches) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "name a type that the model has, for example of its repeated blocks",
                  "partition method \"%s\": no layer's type matches \"%s\"%s%s", method, pattern,
                  count && layers[0].type ? "; the first layer is " : "",
                  count && layers[0].type ? layers[0].type : "");
}

tws_code tws_pipeline_partition(const char *method, const tws_pipeline_layer *layers, int count, int parts, int *bounds,
                                tws_error *err) {
  if (!method) method = "parameters";
  int by_type = strncasecmp(method, "type:", 5) == 0;
  if (count < 0 || parts < 1) {
    return tws_fail(err, TWS_INVALID, NULL, "%d layers cannot be cut into %d parts", count, parts);
  }
  if (strcasecmp(method, "uniform") == 0) {
    for (int i = 0; i <= parts; i++) bounds[i] = (int)tws_partition_uniform(count, parts, i);
    return TWS_OK;
  }
  if (!by_type && strcasecmp(method, "parameters") != 0) {
    int profile = strcasecmp(method, "profile") == 0;
    return tws_fail(err, profile ? TWS_UNSUPPORTED : TWS_INVALID, "use uniform, parameters or type:REGEX",
                    profile ? "partition method \"%s\" is not supported" : "unknown partition method \"%s\"", method);
  }
  int64_t *weights = tws_calloc((size_t)count + 1, sizeof *weights);
  if (!weights) return tws_fail(err, TWS_MEMORY, NULL, "out of memory while weighing %d layers", count);
  tws_code code = TWS_OK;
  if (by_type) {
    code = match_types(method, layers, count, weights, err);
  } else {
    for (int i = 0; i < count; i++) weights[i] = layers[i].params;
  }
  if (code == TWS_OK) code = tws_partition_balanced(weights, count, parts, bounds, err);
  tws_free(weights);
  return code;
}
