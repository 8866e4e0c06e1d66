/* The verb inspect: statistics and histograms against sums over the exported weights, comparisons of two checkpoints,
 * damage. */
/* ctest: mpi */
#include <cjson/cJSON.h>

#include "tests/answers.h"
#include "tests/train.h"

static void train(const char *model, int ranks, int stage, const char *name) {
  command_result r = twinspeed(
      "train --quiet -m %s -n %d --threads 1 --stage %d --micro-batch %d --seq 32 --data %s "
      "--steps 4 --save-every 2 --save %s/%s",
      model, ranks, stage, 4 / ranks, text_path, folder, name);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
}

static cJSON *inspect(int status, const char *arguments) {
  command_result r = twinspeed("inspect --json --quiet %s", arguments);
  ck_assert_msg(r.status == status, "inspect %s: %d: %s%s", arguments, r.status, r.out, r.err);
  cJSON *root = cJSON_Parse(r.out);
  ck_assert_msg(root != NULL, "inspect %s: %s", arguments, r.out);
  command_free(&r);
  return root;
}

static double number(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItem(object, key);
  ck_assert_msg(cJSON_IsNumber(item), "no %s", key);
  return item->valuedouble;
}

/* Reads a file of weights into memory; *values receives the first tensor whose name contains the text `tensor`. */
static unsigned char *read_weights(const char *path, const char *tensor, const float **values, uint64_t *count) {
  FILE *file = fopen(path, "rb");
  ck_assert_ptr_nonnull(file);
  unsigned char *bytes = malloc(1 << 20);
  const size_t size = fread(bytes, 1, 1 << 20, file);
  fclose(file);
  uint64_t header;
  memcpy(&header, bytes, 8);
  ck_assert(size > header + 8);
  cJSON *root = cJSON_ParseWithLength((const char *)bytes + 8, header), *item = root->child;
  while (item && !strstr(item->string, tensor)) item = item->next;
  ck_assert_msg(item != NULL, "no %s in %s", tensor, path);
  const cJSON *offsets = cJSON_GetObjectItem(item, "data_offsets");
  *values = (const float *)(const void *)(bytes + 8 + header + (size_t)offsets->child->valuedouble);
  *count = (uint64_t)(offsets->child->next->valuedouble - offsets->child->valuedouble) / sizeof(float);
  cJSON_Delete(root);
  return bytes;
}

START_TEST(statistics_are_those_of_the_weights) {
  char line[512];
  const float *values;
  uint64_t count, counted = 0;
  snprintf(line, sizeof line, "convert checkpoint %s/two %s/weights.safetensors", folder, folder);
  command_result r = twinspeed("%s", line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  unsigned char *bytes = read_weights(in_folder("weights.safetensors"), "h.1.attn.c_attn.weight", &values, &count);
  double sum = 0, squares = 0, least = INFINITY, largest = -INFINITY;
  for (uint64_t i = 0; i < count; i++) {
    sum += values[i];
    squares += (double)values[i] * values[i];
    least = fmin(least, values[i]);
    largest = fmax(largest, values[i]);
  }
  snprintf(line, sizeof line, "%s/two --tensor h.1.attn.c_attn.weight --state parameters --statistics --histogram 16",
           folder);
  cJSON *root = inspect(0, line), *item = cJSON_GetObjectItem(root, "tensors")->child, *bin;
  ck_assert_str_eq(cJSON_GetObjectItem(root, "schema")->valuestring, "twinspeed-inspect-1");
  ck_assert_double_eq(number(root, "steps"), 4);
  ck_assert_double_eq(number(root, "ranks"), 2);
  ck_assert_double_eq(number(root, "zero_stage"), 2);
  ck_assert_ptr_null(item->next);
  ck_assert_double_eq(number(item, "elements"), (double)count);
  ck_assert_double_eq(number(item, "least"), least);
  ck_assert_double_eq(number(item, "largest"), largest);
  ck_assert_double_eq_tol(number(item, "mean"), sum / (double)count, 1e-9);
  ck_assert_double_eq_tol(number(item, "norm"), sqrt(squares), 1e-9 * sqrt(squares));
  ck_assert_double_eq_tol(number(item, "deviation"), sqrt(squares / (double)count - pow(sum / (double)count, 2)), 1e-9);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(item, "histogram")), 16);
  int b = 0;
  cJSON_ArrayForEach(bin, cJSON_GetObjectItem(item, "histogram")) {
    uint64_t here = 0;
    for (uint64_t i = 0; i < count; i++) here += (int)fmin((values[i] - least) / (largest - least) * 16, 15) == b;
    ck_assert_double_eq(bin->valuedouble, (double)here);
    counted += here;
    b++;
  }
  ck_assert_uint_eq(counted, count);
  cJSON_Delete(root);
  free(bytes);
}
END_TEST

START_TEST(two_checkpoints_are_compared) {
  char line[512];
  snprintf(line, sizeof line, "%s/one %s/two", folder, folder);
  cJSON *root = inspect(1, line);
  ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(root, "equal")));
  ck_assert_double_eq(number(root, "tensors"), 84); /* 28 parameters in three states */
  ck_assert_double_gt(number(root, "different_tensors"), 0);
  ck_assert_double_lt(number(root, "largest"), 1e-3);
  cJSON_Delete(root);
  snprintf(line, sizeof line, "%s/one %s/two --state parameters --tolerance 0.1", folder, folder);
  root = inspect(0, line);
  ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(root, "equal")));
  cJSON_Delete(root);
  snprintf(line, sizeof line, "%s/two %s/two", folder, folder);
  root = inspect(0, line);
  ck_assert_double_eq(number(root, "different_tensors"), 0);
  ck_assert_double_eq(number(root, "largest"), 0);
  cJSON_Delete(root);
  snprintf(line, sizeof line, "inspect %s/one %s/one --other-tag global_step2 --state parameters", folder, folder);
  assert_says(line, 1, "the checkpoints differ: 28 of 28 tensors, and 0 are in only one of them");
  snprintf(line, sizeof line, "inspect %s/one %s/other --tensor lm_head", folder, folder);
  assert_says(line, 3, "no tensor has a name with \"lm_head\"");
  snprintf(line, sizeof line, "inspect %s/one %s/other --tensor embed_tokens", folder, folder);
  assert_says(line, 3, "no tensor has a name with \"embed_tokens\"");
  snprintf(line, sizeof line, "inspect %s/one %s/other", folder, folder);
  assert_says(line, 1, "only in");
}
END_TEST

START_TEST(a_checkpoint_is_listed_and_faults_are_told) {
  char line[512], path[256];
  snprintf(line, sizeof line, "inspect %s/two", folder);
  assert_says(line, 0, "gpt2, step 4, fp32, saved by 2 ranks at ZeRO stage 2, global batch 4 x 32 tokens\n");
  assert_says(line, 0, "transformer.h.1.mlp.c_fc.weight     second moments  fp32   256       64\n");
  snprintf(line, sizeof line, "inspect %s/two --histogram 4 --tensor ln_f.bias --state parameters", folder);
  assert_says(line, 0, "transformer.ln_f.bias, parameters: 64 elements of ");
  assert_says("inspect", 2, "no folder with a checkpoint was given");
  snprintf(line, sizeof line, "inspect %s/one %s/two --statistics", folder, folder);
  assert_says(line, 2, "do not apply to a comparison");
  snprintf(line, sizeof line, "inspect %s/one --tolerance 1", folder);
  assert_says(line, 2, "--tolerance compares two checkpoints");
  snprintf(line, sizeof line, "inspect %s/one --state momentum", folder);
  assert_says(line, 3, "states: parameters, first moments, second moments");
  snprintf(line, sizeof line, "inspect %s/one --tag global_step3", folder);
  assert_says(line, 4, "global_step3");
  snprintf(path, sizeof path, "%s/other/global_step2/rank-00000.safetensors", folder);
  FILE *file = fopen(path, "r+b");
  ck_assert_ptr_nonnull(file);
  ck_assert_int_eq(fseek(file, -3, SEEK_END), 0);
  fputc(0x55, file);
  fclose(file);
  snprintf(line, sizeof line, "inspect %s/other --tag global_step2 --statistics", folder);
  assert_says(line, 3, "is damaged, in bytes");
  snprintf(line, sizeof line, "inspect %s/other --tag global_step2", folder); /* values are not read */
  assert_says(line, 0, "step 2");
}
END_TEST

static void train_all(void) {
  train("tiny-gpt2", 1, 0, "one");
  train("tiny-gpt2", 2, 2, "two");
  train("tiny-llama", 1, 0, "other");
}

int main(void) {
  Suite *suite = suite_create("inspect");
  TCase *tests = tcase_create("inspect");
  tcase_add_unchecked_fixture(tests, train_all, NULL);
  tcase_add_test(tests, statistics_are_those_of_the_weights);
  tcase_add_test(tests, two_checkpoints_are_compared);
  tcase_add_test(tests, a_checkpoint_is_listed_and_faults_are_told);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
