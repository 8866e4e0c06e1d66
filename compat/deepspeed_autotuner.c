#include "compat/deepspeed_autotuner.h"

double tws_ds_instantiation_bytes(double params, int gpus_per_node, int nodes, int model_parallel, int fp16,
                                  int stage) {
  double gpus = (double)gpus_per_node * nodes;
  double parameters = params * (fp16 ? 2 : 4), gradients = parameters, optimizer = params * (fp16 ? 16 : 8);
  if (stage >= 1) optimizer /= gpus;
  if (stage >= 2) gradients /= gpus;
  if (stage >= 3) parameters /= gpus;
  return (parameters + gradients + optimizer) / model_parallel;
}

int tws_ds_micro_batches(int64_t min, int64_t max, int num, int64_t max_train_batch_size, int64_t accumulation,
                         int gpus, int model_parallel, int64_t *list, int capacity) {
  if (min <= 0 || max < min || gpus < 1 || model_parallel < 1 || num < 1) return 0;
  int64_t batch =
      max_train_batch_size > 0 ? max_train_batch_size * model_parallel / gpus : max * accumulation / model_parallel;
  if (min < max / 2) min = max / 2;
  int64_t stride = (max - min) / num;
  if (stride < 1) stride = 1;
  int count = 0;
  for (int64_t micro = min; micro < max; micro += stride) {
    if (batch / micro == batch / max) continue;
    if (count < capacity) list[count] = micro;
    count++;
  }
  if (count < capacity) list[count] = max;
  return count + 1;
}

/* ---- the fast mode ---- */

enum { MOST_RUNS = 256 };
#define GAIN 0.05

typedef struct search {
  const tws_ds_tuning *t;
  tws_ds_experiment run;
  void *user;
  int stage, ended;
  int64_t cap; /* largest micro batch that the user allows */
  int64_t ran[MOST_RUNS];
  int count;
  double best;
  int64_t best_micro;
} search;

static double try_one(search *s, int64_t micro, int64_t accumulation) {
  const double speed = s->ended ? 0 : s->run(s->user, s->stage, micro, accumulation);
  s->ended |= speed < 0;
  if (speed > s->best) {
    s->best = speed;
    s->best_micro = micro;
  }
  return speed > 0 ? speed : 0;
}

static double try_limit(search *s, int64_t micro) {
  const double speed = try_one(s, micro, s->t->accumulation);
  if (speed > 0 && s->count < MOST_RUNS) s->ran[s->count++] = micro;
  return speed;
}

static int has_run(const search *s, int64_t micro) {
  for (int i = 0; i < s->count; i++)
    if (s->ran[i] == micro) return 1;
  return 0;
}

/* Returns the smallest micro-batch that runs at the stage, and sets *speed to its samples per second; 0: none runs. */
static int64_t smallest(search *s, int64_t previous, double *speed) {
  const int64_t first = previous > 0 ? previous : s->t->start, least = s->t->min_micro;
  *speed = try_limit(s, first);
  if (*speed > 0) return first;
  if (previous > 0 || first == least) return 0;
  *speed = try_limit(s, least);
  return *speed > 0 ? least : 0;
}

/* Returns the largest micro-batch size of a stage. The search first tries 105 %, 100 % and 95 % of the size that fits
 * by the estimate of memory, and then bisects until a larger size is less than 5 % faster. */
static int64_t largest(search *s, int64_t low, double before, int64_t promised) {
  int64_t high = promised < s->cap ? promised : s->cap;
  const int64_t near[] = {(105 * high + 99) / 100, high, 95 * high / 100};
  for (int i = 0; i < 3; i++) {
    if (near[i] > s->cap) continue;
    if (has_run(s, near[i]) || try_limit(s, near[i]) > 0) return near[i];
  }
  while (low <= high && !s->ended) {
    const int64_t middle = (low + high) / 2;
    const double speed = has_run(s, middle) ? -1 : try_limit(s, middle);
    if (speed == 0) {
      high = middle - 1;
      continue;
    }
    low = middle + 1;
    if (speed > 0 && before > 0 && (speed - before) / before < GAIN) break;
    if (speed > 0) before = speed;
  }
  return low - 1;
}

static void try_list(search *s, int64_t min, int64_t max) {
  const tws_ds_tuning *t = s->t;
  const int gpus = t->gpus_per_node * t->nodes;
  const int64_t batch = t->max_train_batch > 0 ? t->max_train_batch * t->model_parallel / gpus
                                               : max * t->accumulation / t->model_parallel;
  int64_t list[MOST_RUNS];
  const int all = tws_ds_micro_batches(min, max, t->num, t->max_train_batch, t->accumulation, gpus, t->model_parallel,
                                       list, MOST_RUNS);
  const int count = all < MOST_RUNS ? all : MOST_RUNS;
  double best = 0;
  for (int i = 0; i < count; i++) best = try_one(s, list[i], batch / list[i]);
  const int64_t low = count > 1 ? list[count - 2] + 1 : min;
  const int64_t stride = (max - low) / 3 > 0 ? (max - low) / 3 : 1;
  for (int64_t micro = low + (max - low - 1) / stride * stride; micro >= low && low < max; micro -= stride) {
    const double speed = try_one(s, micro, batch / micro);
    if (!(speed > best * (1 + GAIN))) break;
    best = speed;
  }
}

static int64_t tune_stage(search *s, int64_t previous) {
  const tws_ds_tuning *t = s->t;
  const double left = t->device_bytes - tws_ds_instantiation_bytes(t->params, t->gpus_per_node, t->nodes,
                                                                   t->model_parallel, t->fp16, s->stage);
  double speed;
  if (!(t->activation_bytes > 0) || !(left > t->activation_bytes)) return 0;
  const int64_t promised = (int64_t)(left / t->activation_bytes);
  s->count = 0;
  s->best = 0;
  s->best_micro = 0;
  if (promised < previous) return 0;
  const int64_t min = smallest(s, previous, &speed);
  const int64_t max = min > 0 ? largest(s, min, speed, promised) : 0;
  if (max < 1 || max < previous) return 0;
  try_list(s, min, max);
  return max;
}

int tws_ds_tune(const tws_ds_tuning *tuning, tws_ds_experiment run, void *user) {
  tws_ds_tuning t = *tuning;
  if (t.min_micro < 1) t.min_micro = 1;
  if (t.max_micro < 1) t.max_micro = 1024;
  if (t.accumulation < 1) t.accumulation = 1;
  if (t.start < 1) t.start = 1;
  if (t.num < 1) t.num = 3;
  search s = {.t = &t, .run = run, .user = user, .cap = t.max_micro};
  const int64_t of_batch =
      t.max_train_batch > 0 ? t.max_train_batch * t.model_parallel / (t.gpus_per_node * t.nodes) : s.cap;
  if (of_batch < s.cap) s.cap = of_batch;
  int64_t previous = 0, best_micro = 0;
  for (s.stage = 0; s.stage < 4 && !s.ended; s.stage++) {
    if (!(t.stages >> s.stage & 1)) continue;
    const int64_t max = tune_stage(&s, previous);
    if (max < 1 || s.best_micro <= best_micro) continue;
    best_micro = s.best_micro;
    previous = max;
  }
  return s.ended ? -1 : 0;
}

static void add_initials(const char *key, tws_text *out) {
  for (const char *c = key; *c; c++)
    if (*c != '_' && (c == key || c[-1] == '_')) tws_text_add_bytes(out, c, 1);
}

void tws_ds_experiment_name(int stage, const tws_ds_setting *settings, int count, tws_text *out) {
  tws_text_add(out, "z%d", stage);
  for (int i = 0; i < count; i++) {
    const tws_ds_setting *setting = &settings[i];
    tws_text_add(out, "_");
    add_initials(setting->key, out);
    if (setting->kind == TWS_DS_WORD) {
      tws_text_add(out, "%s", setting->text);
    } else if (setting->kind == TWS_DS_BOOL) {
      tws_text_add(out, "%s", setting->number != 0 ? "T" : "F");
    } else {
      tws_text_add(out, setting->number > 9000 ? "%.1e" : "%.15g", setting->number);
    }
  }
}

void tws_ds_space_name(int stage, const char *const *keys, int count, tws_text *out) {
  tws_text_add(out, "z%d", stage);
  for (int i = 0; i < count; i++) {
    tws_text_add(out, "_");
    add_initials(keys[i], out);
  }
}

#define BUCKET(name)          \
  {                           \
    name, TWS_DS_NUMBER, 3, { \
      5e7, 5e8, 1e9           \
    }                         \
  }
#define SWITCH(name, first) \
  {                         \
    name, TWS_DS_BOOL, 2, { \
      first, !(first), 0    \
    }                       \
  }

int tws_ds_default_space(int stage, const tws_ds_dimension **dimensions) {
  static const tws_ds_dimension stage1[] = {BUCKET("reduce_bucket_size"), BUCKET("allgather_bucket_size")};
  static const tws_ds_dimension stage2[] = {SWITCH("overlap_comm", 1), SWITCH("reduce_scatter", 0),
                                            BUCKET("reduce_bucket_size"), BUCKET("allgather_bucket_size"),
                                            SWITCH("contiguous_gradients", 0)};
  static const tws_ds_dimension stage3[] = {SWITCH("overlap_comm", 1),       SWITCH("reduce_scatter", 0),
                                            BUCKET("reduce_bucket_size"),    SWITCH("allgather_partitions", 1),
                                            BUCKET("allgather_bucket_size"), SWITCH("contiguous_gradients", 0)};
  switch (stage) {
    case 1:
      *dimensions = stage1;
      return 2;
    case 2:
      *dimensions = stage2;
      return 5;
    case 3:
      *dimensions = stage3;
      return 6;
    default:
      *dimensions = 0;
      return 0;
  }
}

int64_t tws_ds_enumerate(const tws_ds_dimension *dimensions, int count, int64_t index, tws_ds_setting *settings) {
  int64_t size = 1;
  for (int i = count - 1; i >= 0; i--) {
    const tws_ds_dimension *dimension = &dimensions[i];
    settings[i] = (tws_ds_setting){
        .key = dimension->key, .kind = dimension->kind, .number = dimension->value[index / size % dimension->count]};
    size *= dimension->count;
  }
  return size;
}
