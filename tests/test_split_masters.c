/* ctest: engine mpi sampled */
/* Float32 master weights in two halves (twinspeed.split_master_weights): losses and checkpoints are those of whole
 * ones, to the last bit, and the state is smaller. Kernels are tested in tests/kernel_split.h, the emulated device in
 * test_emulated.c. */
#include "members.h"
#include "train.h"

#define SPLIT "--set twinspeed.split_master_weights=true"

typedef struct trained {
  double loss[16];
  int count;
  double bytes; /* arena of rank 0's device tier, whose size is the predicted one */
} trained;

static trained train_with(const char *flags, const char *more) {
  trained t = {.count = 0};
  command_result r = twinspeed(
      "train --json --quiet --dtype bf16 --seq 16 --threads 1 --steps 10 --data %s --set train_batch_size=8 "
      "--set gradient_clipping=1 %s %s",
      text_path, flags, more);
  ck_assert_msg(r.status == 0, "%s %s: %s", flags, more, r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *item, *device = member(cJSON_GetArrayItem(member(json, "memory"), 0), "device");
  cJSON_ArrayForEach(item, member(json, "losses")) t.loss[t.count++] = item->valuedouble;
  t.bytes = number(device, "allocated_bytes");
  ck_assert_double_eq(t.bytes, number(device, "predicted_bytes"));
  cJSON_Delete(json);
  command_free(&r);
  return t;
}

static void same_losses(const char *what, const trained *a, int from, const trained *b) {
  ck_assert_int_eq(b->count, a->count - from);
  for (int i = 0; i < b->count; i++)
    ck_assert_msg(memcmp(&a->loss[from + i], &b->loss[i], sizeof *b->loss) == 0, "%s, step %d: loss %.17g, not %.17g",
                  what, from + i + 1, b->loss[i], a->loss[from + i]);
}

/* Every rule that updates elements in one pass, at every stage and with gradients added up in float32, has the bits of
 * whole masters; the arena has 2 bytes less for each element that the rank updates. */
START_TEST(losses_are_those_of_whole_masters) {
  static const char *const jobs[] = {
      "-m tiny-gpt2 -n 1 --stage 0",
      "-m tiny-llama -n 1 --stage 1 --set data_types.grad_accum_dtype=fp32",
      "-m tiny-llama -n 2 --stage 2 --set optimizer.params.weight_decay=0.1",
      "-m tiny-gpt2 -n 2 --stage 3 --set zero_optimization.sub_group_size=20000",
      "-m tiny-mixtral -n 2 --ep 2 --stage 2",
      "-m tiny-gpt2 -n 2 --tp 2 --stage 1",
      "-m tiny-llama -n 2 --pp 2 --accumulation 4 --stage 1",
      "-m tiny-gpt2 -n 1 --set optimizer.type=Lion --set optimizer.params.lr=0.0003",
      "-m tiny-gpt2 -n 1 --stage 1 --set optimizer.type=Adagrad --set optimizer.params.lr=0.01",
      "-m tiny-llama -n 2 --stage 3 --set optimizer.type=SGD --set optimizer.params.momentum=0.9",
      "-m tiny-llama -n 1 --set twinspeed.lora.r=4 --set 'twinspeed.lora.target_modules=\"all-linear\"'"};
  const trained whole = train_with(jobs[_i], ""), halves = train_with(jobs[_i], SPLIT);
  same_losses(jobs[_i], &whole, 0, &halves);
  ck_assert_msg(halves.bytes < whole.bytes, "%s: %g bytes, %g with whole masters", jobs[_i], halves.bytes, whole.bytes);
}
END_TEST

static char *bytes_of_file(const char *path, size_t *count) {
  FILE *file = fopen(path, "rb");
  ck_assert_msg(file != NULL, "no %s", path);
  char *bytes = malloc(1 << 24);
  *count = fread(bytes, 1, 1 << 24, file);
  fclose(file);
  return bytes;
}

/* Compares two files of checkpoints. Their bytes are equal except for a few float32 numbers: each result of an update that
 * has no code (base/dtype.h), one in 131072, is nearer to 0 by one unit in the last place. The number may have crossed
 * 0 or become smaller since, by at most MOVED, so units are those of a number that is larger by MOVED. */
static void same_files(const char *path, const char *other, int updates) {
  static const float MOVED = 0.05F, LEAST = 1e-20F;
  size_t count[2], apart = 0;
  char *bytes[2] = {bytes_of_file(path, &count[0]), bytes_of_file(other, &count[1])};
  ck_assert_uint_gt(count[0], 100000);
  ck_assert_msg(count[0] == count[1], "%s has %zu bytes, and %s %zu", path, count[0], other, count[1]);
  for (size_t i = 0; i < count[0] / 4; i++) {
    float number[2];
    for (int k = 0; k < 2; k++) memcpy(&number[k], bytes[k] + 4 * i, sizeof number[k]);
    if (memcmp(&number[0], &number[1], sizeof *number) == 0) continue;
    apart++;
    const float limit = (float)updates * 0x1p-23F * (fabsf(number[0]) + MOVED);
    ck_assert_msg(fabsf(number[0]) > LEAST && fabsf(number[0] - number[1]) <= limit, "%s, word %zu: %.9g and %.9g",
                  path, i, (double)number[0], (double)number[1]);
  }
  ck_assert_msg(apart <= 4 + count[0] / 4 * (size_t)updates / 50000, "%s: %zu numbers differ", path, apart);
  free(bytes[0]), free(bytes[1]);
}

/* A checkpoint holds float32 masters: its files are those of whole masters, after steps that overlap
 * with a save and at the end; either kind of job continues either checkpoint with the bits of a training that was
 * not interrupted, also on another number of ranks. */
START_TEST(checkpoints_hold_whole_masters) {
  static const char *const kinds[] = {"", SPLIT};
  char flags[256];
  trained whole[2];
  snprintf(flags, sizeof flags, "-m tiny-llama -n 2 --stage 2");
  for (int k = 0; k < 2; k++) {
    char more[256];
    snprintf(more, sizeof more, "%s --save %s/run-%d --save-every 5 --keep 9", kinds[k], folder, k);
    whole[k] = train_with(flags, more);
  }
  same_losses("saved", &whole[0], 0, &whole[1]);
  for (int step = 5; step <= 10; step += 5)
    for (int rank = 0; rank < 2; rank++) {
      char path[2][160];
      for (int k = 0; k < 2; k++)
        snprintf(path[k], sizeof path[k], "%s/run-%d/global_step%d/rank-%05d.safetensors", folder, k, step, rank);
      same_files(path[0], path[1], step);
    }
  for (int from = 0; from < 2; from++)
    for (int to = 0; to < 2; to++) {
      char more[256];
      snprintf(more, sizeof more, "%s --resume %s/run-%d --tag global_step5", kinds[to], folder, from);
      const trained rest = train_with(flags, more);
      same_losses(more, &whole[0], 5, &rest);
    }
  char more[256];
  snprintf(more, sizeof more, "%s --resume %s/run-1 --tag global_step5", kinds[1], folder);
  const trained other = train_with("-m tiny-llama -n 1 --stage 0", more);
  for (int i = 0; i < 5; i++) ck_assert_double_eq_tol(other.loss[i] / whole[0].loss[5 + i], 1, 1e-3);
}
END_TEST

/* Optimizers that update weights in another way, and offloading, are refused with the key; without bfloat16 a warning
 * says that the key has no effect. */
START_TEST(refusals) {
  static const struct {
    const char *flags, *said;
  } cases[] = {{"--dtype bf16 --set optimizer.type=Lamb", "does not go with Lamb"},
               {"--dtype bf16 --set optimizer.type=Muon", "does not go with Muon"},
               {"--dtype bf16 --set optimizer.type=Adafactor", "does not go with Adafactor"},
               {"--dtype bf16 --set optimizer.type=AdamW8bit", "does not go with AdamW8bit"},
               {"--dtype bf16 --set optimizer.type=OneBitAdam", "does not go with OneBitAdam"},
               {"--dtype bf16 --stage 2 --set zero_optimization.offload_optimizer.device=cpu", "offloading"},
               {"--dtype fp32", "it needs bf16.enabled"}};
  command_result r = twinspeed("check -m tiny-gpt2 -n 2 " SPLIT " %s", cases[_i].flags);
  ck_assert_int_eq(r.status != 0, _i < 6);
  ck_assert_msg(strstr(r.err, "twinspeed.split_master_weights") && strstr(r.err, cases[_i].said), "%s: %s",
                cases[_i].flags, r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("split_masters");
  TCase *tests = tcase_create("split_masters");
  tcase_add_loop_test(tests, losses_are_those_of_whole_masters, 0, 11);
  tcase_add_test(tests, checkpoints_hold_whole_masters);
  tcase_add_loop_test(tests, refusals, 0, 7);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
