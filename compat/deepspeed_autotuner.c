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
