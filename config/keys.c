#include "config/keys.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Reasons why a key has no effect here. */
#define LATER "Twinspeed does not have this technique yet: results are those without it"
#define UPSTREAM "it has no effect in DeepSpeed either"
#define PRECISION "precision follows from fp16, bf16 and data_types.grad_accum_dtype"
#define TOKENS "the inputs are token ids, and embeddings are in half precision anyway"
#define MASTERS "updates are computed in float32, and not applied where a gradient is not finite"
#define ADAM "there is one implementation of Adam"
#define GRADIENTS "every step overwrites gradients, which have their place in the plan"
#define RESUME "twinspeed train --resume continues the schedule at the step of its checkpoint"
#define BUFFERS "there are as many as pipeline_read and pipeline_write take"
#define FAST "swap files are made in full, and zero, at once"
#define CARRIER "the ranks choose themselves: NCCL on GPUs, shared memory and MPI on hosts"
#define GRANULARITY "parameters are gathered by the modules of the plan"
#define SPECULATIVE                                                                                                \
  "SuperOffload updates on the host during backward and takes updates back where the norm or an overflow demands " \
  "it, with equal results: here the host updates after the last gradient, or as twinspeed.delayed_update and "     \
  "zero_optimization.zenflow say"
#define CORES "twinspeed.threads and twinspeed.bind_threads say which cores the host uses"
#define SAVE "twinspeed train --save and --resume have checkpoints of their own, whose options say how they are written"
#define UNIVERSAL                                                                                                  \
  "twinspeed train --resume continues its own checkpoints at any number of ranks; of DeepSpeed's, universal ones " \
  "too, "                                                                                                          \
  "twinspeed convert checkpoint makes a file of weights for --init-from"
#define RESHAPED "twinspeed train --resume continues a checkpoint at any number of ranks, stage and division anyway"
#define WHOLE                                                                                                       \
  "twinspeed convert checkpoint writes the whole weights of a checkpoint, of which each rank saves a part, as one " \
  "file"
#define MASTERED "twinspeed train --resume reads the masters that its checkpoint holds"
#define OWN_PARTS "twinspeed train --resume lets each rank read its own parts of a checkpoint"
#define DIRECT "predictions are those of transfers through host memory, and train refuses it"
#define ONE_FOLDER "twinspeed train --save writes one folder, which the ranks of all nodes fill"
#define PYTHON "it concerns DeepSpeed's Python engine, and the plan is static"
#define PLAN "the plan is verified before it runs"
#define CONTIGUOUS "the plan lays all buffers out in one block ahead of time: nothing is fragmented"
#define RECOMPUTE "recomputation is set by twinspeed.recompute"
#define MEMORY_USE "the verb estimate says what holds memory when: --ledger-csv has it for each operation"
#define EXPERTS "ranks that share experts are set by twinspeed.expert_parallel_size (--ep)"
#define EXPERT_TENSOR "twinspeed.expert_tensor_parallel lets tensor-parallel ranks (--tp) split each expert"
#define ROUTERS "experts and their routers are as the model's file has them"
#define LAYER_SEEDS "initial weights follow from twinspeed.seed and do not depend on stages"
#define REENTRANT \
  "twinspeed.recompute_whole says whether recomputed layers run to their end, as reentrant checkpoints do"
#define MOQ "quantize_training (MoQ) is not there yet: results are those without it"
#define PROFILE "use the verb profile, or the timeline that simulate and train write"
#define COUNTED "what is computed again is counted as the plan has it"
#define OFFLINE "nothing is sent from here: comet upload sends the archive, with the key that it is given"
#define TUNE "the verb tune has options of its own for it, or does not need it"
#define TUNES "the verb tune is the search, and reads this section whatever enabled says"
#define TUNE_RESULTS "the verb tune writes to the folder that --results names"
#define TUNE_MODEL "the verb tune reads the model itself (-m)"
#define TUNE_RANKS "the verb tune takes model-parallel ranks from --pp, --tp and --sp"
#define TUNE_BATCH "the verb tune takes batches from --global-batch, or from micro batches"
#define TUNED "the verb tune reads it, and no other"
#define GENERATE "the verb generate makes text from a checkpoint or a model's file, after training and not in between"
#define INFERENCE "the verb generate takes weights as they are stored, and quantizes none"
#define COMPILE "nothing is compiled at run time: the plan is static"
#define PRINT "what is printed is the program's choice"
#define VOCABULARY "the vocabulary is the model's, padded by twinspeed.vocabulary_multiple"
#define DATA "batches are always whole"
#define SHARDING "how weights are split follows from the model's modules"
#define SEED "DeepSpeed does not read it either; set twinspeed.seed"
#define SLICES "a rank makes its own part of the parameters, never the whole"

#define LARGE 1099511627776.0       /* 2^40: more than any real batch or step; products do not overflow */
#define SCALE 1.2676506002282294e30 /* 2^100: float32 represents this number and its inverse */
#define RANGE(low_, high_) .bounded = 1, .low = low_, .high = high_
#define FROM(low_) RANGE(low_, 9223372036854775807.0)
#define MEMORY TWS_KEY_MEMORY
#define TIME TWS_KEY_TIME
#define TRAIN TWS_KEY_TRAIN
#define REPORT TWS_KEY_REPORT
#define FOR(parts_) .parts = parts_
#define NONE(reason_) .reason = reason_
#define IN(kind, field) .store = TWS_STORE_##kind, .offset = offsetof(tws_config, field)
#define ONE_OF(values_) .values = values_
#define ALIAS(name) .alias = name
#define MOVED(path_) .moved_to = path_
#define OF(owners_) .owners = owners_
#define AUTOMATIC .automatic = 1
#define STRICT .strict = 1
#define ROUNDED .rounded = 1
#define ANY_CASE .any_case = 1
#define KEY(path_, type_, fallback_, doc_, ...) \
  {.path = path_, .type = TWS_KEY_##type_, .fallback = fallback_, .doc = doc_ __VA_OPT__(, ) __VA_ARGS__},

/* Columns: path, type, default, documentation; then further members of tws_key (range, alias, owners, ...) that are not
 * 0. */
const tws_key tws_keys[] = {
/* clang-format off */
#include "config/keys_core.inc"
#include "config/keys_zero.inc"
#include "config/keys_engine.inc"
#include "config/keys_data.inc"
    /* clang-format on */
};
const size_t tws_key_count = sizeof tws_keys / sizeof *tws_keys;

/* ---- matching ---- */

/* Returns the length of the path segment at p. */
static size_t segment_length(const char *p) {
  return strcspn(p, ".");
}

/* Returns 1 if the segment p of a row's path matches the key; sets *exact to 0 if the segment is a placeholder. */
static int segment_matches(const char *p, size_t length, const char *key, int *exact) {
  if (p[0] == '<') {
    *exact = 0;
    return 1;
  }
  /* the suffix [] of an array of objects is not part of the name */
  if (length > 2 && p[length - 1] == ']') length -= 2;
  return strncmp(p, key, length) == 0 && !key[length];
}

typedef enum match { NO_MATCH, PREFIX, PLACEHOLDER, EXACT } match;

static match match_row(const char *path, const char *const *segments, int n) {
  int exact = 1;
  /* fast exit for most rows: the first letters differ, and no row starts with a placeholder */
  if (n > 0 && path[0] != segments[0][0]) return NO_MATCH;
  for (int i = 0; i < n; i++) {
    if (path[0] != segments[i][0] && path[0] != '<') return NO_MATCH;
    size_t length = segment_length(path);
    if (!length || !segment_matches(path, length, segments[i], &exact)) return NO_MATCH;
    path += length;
    if (!*path) return i + 1 < n ? NO_MATCH : exact ? EXACT : PLACEHOLDER;
    path++;
  }
  return PREFIX;
}

/* Returns 1 if the n-th segment of a row's path denotes an array of objects. */
static int in_array(const char *path, int n) {
  for (int i = 1; i < n; i++) path += segment_length(path) + 1;
  return n > 0 && path[segment_length(path) - 1] == ']';
}

const tws_key *tws_key_find(const char *const *segments, int n, int *below) {
  const tws_key *found = NULL;
  match best = PREFIX;
  *below = 0;
  for (size_t i = 0; i < tws_key_count; i++) {
    match m = match_row(tws_keys[i].path, segments, n);
    if (m == PREFIX && *below < 2) *below = in_array(tws_keys[i].path, n) ? 2 : 1;
    if (m <= best) continue;
    best = m;
    found = &tws_keys[i];
  }
  return found;
}

const tws_key *tws_key_at(const char *path) {
  for (size_t i = 0; i < tws_key_count; i++)
    if (strcmp(tws_keys[i].path, path) == 0) return &tws_keys[i];
  return NULL;
}

int tws_key_word(const char *list, const char *word, int any_case) {
  size_t wanted = strlen(word);
  for (int index = 0; list && *list; index++) {
    size_t length = strcspn(list, "|");
    if (length == wanted && (any_case ? strncasecmp(list, word, length) : strncmp(list, word, length)) == 0)
      return index;
    list += length;
    if (*list) list++;
  }
  return -1;
}

int tws_key_lax_section(const char *section) {
  return tws_key_word(
             "fp16|bf16|zero_optimization|tensorboard|wandb|csv_monitor|comet|comms_logger|compile|"
             "hybrid_engine|tensor_parallel|timers|weight_quantization",
             section, 0) >= 0;
}

const char *tws_key_optimizer_argument(const char *path) {
  static const char section[] = "optimizer.params.";
  return strncmp(path, section, sizeof section - 1) == 0 ? path + sizeof section - 1 : NULL;
}

int tws_key_checked_section(const char *section) {
  return tws_key_lax_section(section) && strcmp(section, "timers") != 0;
}

/* Returns the remainder of a row's path after its first n - 1 segments, if these match the first n - 1 of `segments`,
 * else NULL. */
static const char *same_section_rest(const char *path, const char *const *segments, int n) {
  int exact = 1;
  for (int i = 0; i + 1 < n; i++) {
    size_t length = segment_length(path);
    if (!segment_matches(path, length, segments[i], &exact) || !path[length]) return NULL;
    path += length + 1;
  }
  return path;
}

const char *tws_key_canonical(const char *const *segments, int n) {
  const char *last = segments[n - 1];
  if (n == 1) return strcmp(last, "bfloat16") == 0 ? "bf16" : last;
  if (n == 2 && strcmp(segments[0], "tensor_parallel") == 0 && strcmp(last, "tp") == 0) return "tensor_parallel";
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    if (!key->alias || strcmp(key->alias, last) != 0) continue;
    const char *rest = same_section_rest(key->path, segments, n);
    if (rest && !rest[segment_length(rest)]) return rest;
  }
  return last;
}

/* ---- suggestions ---- */

enum { NEIGHBOURS = 96, WORD = 64 };

typedef struct words {
  char text[NEIGHBOURS][WORD];
  const char *item[NEIGHBOURS];
  size_t count;
} words;

static void add_word(words *w, const char *text, size_t length) {
  if (length > 2 && text[length - 1] == ']') length -= 2;
  if (!length || length >= WORD || text[0] == '<' || w->count == NEIGHBOURS) return;
  for (size_t i = 0; i < w->count; i++)
    if (strncmp(w->item[i], text, length) == 0 && !w->item[i][length]) return;
  memcpy(w->text[w->count], text, length);
  w->text[w->count][length] = 0;
  w->item[w->count] = w->text[w->count];
  w->count++;
}

tws_key_guess tws_key_suggest(const char *const *segments, int n, char *hint, size_t size) {
  const char *last = segments[n - 1];
  words w;
  w.count = 0;
  for (size_t i = 0; i < tws_key_count; i++) {
    const char *next = same_section_rest(tws_keys[i].path, segments, n);
    if (!next) continue;
    add_word(&w, next, segment_length(next));
    if (tws_keys[i].alias && !next[segment_length(next)]) add_word(&w, tws_keys[i].alias, strlen(tws_keys[i].alias));
  }
  const char *dot = strchr(last, '.');
  if (dot && tws_key_at(last)) {
    snprintf(hint, size, "write it as an object inside an object: {\"%.*s\": {...}}", (int)(dot - last), last);
    return TWS_GUESS_SLIP;
  }
  const char *close = tws_closest(last, w.item, w.count);
  const int slip = close && tws_is_similar_word(last, close);
  /* looks for a key with the same last segment in another section */
  for (size_t i = 0; i < tws_key_count && !slip && *last; i++) {
    if (strchr(tws_keys[i].path, '<') || tws_key_word("enabled|type|params", last, 0) >= 0) continue;
    size_t length = strlen(last);
    for (const char *at = tws_keys[i].path; (at = strstr(at, last)); at++) {
      if ((at != tws_keys[i].path && at[-1] != '.') || (at[length] && at[length] != '.')) continue;
      const int whole = (int)(at + length - tws_keys[i].path);
      snprintf(hint, size,
               at == tws_keys[i].path ? "\"%.*s\" belongs to the top level of the file" : "did you mean \"%.*s\"?",
               whole, tws_keys[i].path);
      return TWS_GUESS_ELSEWHERE;
    }
  }
  if (close) {
    char where[256] = "";
    if (n > 1) tws_key_join(segments, n - 1, where, sizeof where);
    snprintf(hint, size, "did you mean \"%s%s%s\"?", where, n > 1 ? "." : "", close);
    return slip ? TWS_GUESS_SLIP : TWS_GUESS_NONE;
  }
  hint[0] = '\0';
  int used = w.count ? snprintf(hint, size, "known here:") : 0;
  for (size_t i = 0; i < w.count && used < 160; i++)
    used += snprintf(hint + used, size - (size_t)used, "%s %s", i ? "," : "", w.item[i]);
  return TWS_GUESS_NONE;
}

void tws_key_join(const char *const *segments, int n, char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < n && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%.100s", i ? "." : "", segments[i]);
}

int tws_key_split(char *path, const char **segments, int capacity) {
  int n = 0;
  for (;;) {
    size_t length = segment_length(path);
    if (!length || n == capacity) return -1;
    segments[n++] = path;
    if (!path[length]) return n;
    path[length] = 0;
    path += length + 1;
  }
}
