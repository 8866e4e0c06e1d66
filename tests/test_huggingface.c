/* ctest: mpi sampled */
/* Weights from and for Hugging Face: tests/golden/huggingface_tensors.json has the names and shapes of the library's
 * tensors, and its losses with weights that a formula gives. */
#include "answers.h"
#include "base/memory.h"
#include "members.h"
#include "models/network/safetensors.h"
#include "torch_writer.h"
#include "train.h"

static float formula(uint64_t element, uint64_t tensor, int is_weight_vector) {
  const uint64_t u = (element * UINT64_C(2654435761) + tensor * 40503 + 12345) & 0xffffffff;
  return (float)(((double)(u >> 8) / 0x1p24 - 0.5) / 5 + (is_weight_vector ? 1 : 0));
}

static uint64_t elements_of(const cJSON *shape) {
  uint64_t count = 1;
  const cJSON *size;
  cJSON_ArrayForEach(size, shape) count *= (uint64_t)size->valueint;
  return count;
}

static int ends_with(const char *text, const char *end) {
  const size_t a = strlen(text), b = strlen(end);
  return a >= b && strcmp(text + a - b, end) == 0;
}

static float golden_value(const cJSON *tensor, uint64_t index, uint64_t element) {
  return formula(element, index, cJSON_GetArraySize(tensor) == 1 && ends_with(tensor->string, "weight"));
}

/* Writes a safetensors file of the tensors number `first` to `end` - 1. bf16 1: only the upper halves of float32.
 * `without`: number of letters to omit at the beginning of names. */
static void write_file(const char *path, const cJSON *tensors, int first, int end, int bf16, int without) {
  tws_text header = {0}, data = {0};
  const cJSON *tensor;
  int index = 0;
  tws_text_add(&header, "{");
  cJSON_ArrayForEach(tensor, tensors) {
    const uint64_t count = elements_of(tensor);
    if (index >= first && index < end) {
      char *shape = cJSON_PrintUnformatted(tensor);
      const int cut = without && strncmp(tensor->string, "lm_head", 7) != 0 ? without : 0;
      tws_text_add(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,", index > first ? "," : "",
                   tensor->string + cut, bf16 ? "BF16" : "F32", shape, data.length);
      cJSON_free(shape);
      for (uint64_t i = 0; i < count; i++) {
        const float value = golden_value(tensor, (uint64_t)index, i);
        const unsigned short half = tws_to_bf16(value);
        if (bf16)
          tws_text_add_bytes(&data, (const char *)&half, sizeof half);
        else
          tws_text_add_bytes(&data, (const char *)&value, sizeof value);
      }
      tws_text_add(&header, "%zu]}", data.length);
    }
    index++;
  }
  tws_text_add(&header, "}");
  const uint64_t length = header.length;
  FILE *file = fopen(path, "wb");
  ck_assert(fwrite(&length, 8, 1, file) == 1 && fwrite(header.data, header.length, 1, file) == 1 &&
            fwrite(data.data, data.length, 1, file) == 1);
  fclose(file);
  tws_text_free(&header);
  tws_text_free(&data);
}

/* Writes the tensors number `first` to `end` - 1 in float32 as torch.save would write them. */
static void write_torch_file(const char *path, const cJSON *tensors, int first, int end) {
  torch_archive archive = {.count = 0};
  tws_text pickle = {0};
  const cJSON *tensor;
  int index = 0;
  tws_text_add_bytes(&pickle, "\x80\x02}", 3);
  cJSON_ArrayForEach(tensor, tensors) {
    const uint64_t count = elements_of(tensor);
    char key[32], name[32];
    int64_t shape[4];
    snprintf(key, sizeof key, "%d", index);
    snprintf(name, sizeof name, "data/%d", index);
    for (int i = 0; i < cJSON_GetArraySize(tensor); i++) shape[i] = cJSON_GetArrayItem(tensor, i)->valueint;
    if (index >= first && index < end) {
      float *values = malloc(count * sizeof *values);
      for (uint64_t i = 0; i < count; i++) values[i] = golden_value(tensor, (uint64_t)index, i);
      archive_add(&archive, name, values, count * sizeof *values);
      free(values);
      pickle_text(&pickle, tensor->string);
      pickle_tensor(&pickle, "FloatStorage", key, shape, cJSON_GetArraySize(tensor));
      tws_text_add(&pickle, "s");
    }
    index++;
  }
  tws_text_add(&pickle, ".");
  archive_add(&archive, "data.pkl", pickle.data, pickle.length);
  archive_write(&archive, path);
  tws_text_free(&pickle);
}

/* Writes the tensors as two files and an index, in safetensors or in torch.save's format. */
static void write_shards(const cJSON *tensors, int torch) {
  const int count = cJSON_GetArraySize(tensors), half = count / 2;
  const char *ending = torch ? "bin" : "safetensors";
  const cJSON *tensor;
  tws_text index = {0};
  if (torch) {
    write_torch_file(in_folder("one.bin"), tensors, 0, half);
    write_torch_file(in_folder("two.bin"), tensors, half, count);
  } else {
    write_file(in_folder("one.safetensors"), tensors, 0, half, 0, 0);
    write_file(in_folder("two.safetensors"), tensors, half, count, 0, 0);
  }
  tws_text_add(&index, "{\"weight_map\":{");
  int i = 0;
  cJSON_ArrayForEach(tensor, tensors) {
    tws_text_add(&index, "%s\"%s\":\"%s.%s\"", i ? "," : "", tensor->string, i < half ? "one" : "two", ending);
    i++;
  }
  tws_text_add(&index, "}}");
  unlink(in_folder("model.safetensors.index.json"));
  write_text(in_folder(torch ? "pytorch_model.bin.index.json" : "model.safetensors.index.json"), index.data);
  tws_text_free(&index);
}

static double first_loss(const char *model, const char *from, const char *how) {
  command_result r = twinspeed(
      "train --quiet -m %s --data %s --seq 32 --accumulation 1 --steps 1 --threads 1 --json --init-from %s %s "
      "--set optimizer.type=AdamW --set optimizer.params.lr=0 --set optimizer.params.weight_decay=0 --force",
      model, in_folder("text"), from, how);
  ck_assert_msg(r.status == 0, "%s: %s", how, r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  const double loss = cJSON_GetArrayItem(member(json, "losses"), 0)->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
  return loss;
}

static void check_loss(double got, const cJSON *golden, double limit, const char *how) {
  const double want = member(golden, "loss")->valuedouble;
  ck_assert_msg(fabs(got / want - 1) < limit, "%s %s: loss %.9g, not %.9g", member(golden, "name")->valuestring, how,
                got, want);
}

/* Asserts that a training without learning saves the tensors that it began with. */
static void check_export(const char *save, const cJSON *tensors) {
  char path[96];
  tws_safetensors *list = NULL;
  tws_error err = {0};
  snprintf(path, sizeof path, "%s", in_folder("exported.safetensors"));
  command_result r = twinspeed("convert checkpoint %s %s --force", save, path);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  ck_assert_msg(tws_safetensors_open(path, &list, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq((int)list->count, cJSON_GetArraySize(tensors));
  FILE *file = fopen(path, "rb");
  const cJSON *tensor;
  uint64_t index = 0;
  cJSON_ArrayForEach(tensor, tensors) {
    const tws_safetensor *found = tws_safetensors_find(list, tensor->string);
    ck_assert_msg(found != NULL, "%s is not there", tensor->string);
    ck_assert_int_eq(found->dims, cJSON_GetArraySize(tensor));
    for (int i = 0; i < found->dims; i++) ck_assert_int_eq(found->shape[i], cJSON_GetArrayItem(tensor, i)->valueint);
    ck_assert_int_eq(fseek(file, (long)found->begin, SEEK_SET), 0);
    for (uint64_t i = 0; i < elements_of(tensor); i++) {
      float value = 0;
      ck_assert(fread(&value, sizeof value, 1, file) == 1);
      ck_assert_msg(value == golden_value(tensor, index, i), "%s, element %d: %.9g", tensor->string, (int)i, value);
    }
    index++;
  }
  fclose(file);
  tws_safetensors_close(list);
}

/* Asserts that generating greedily gives the library's tokens and log probabilities. */
static void check_greedy(const char *config, const char *from, const char *text, const cJSON *golden) {
  const cJSON *greedy = member(golden, "greedy"), *likely = member(golden, "log_probabilities");
  command_result r = twinspeed(
      "generate -m %s --init-from %s --prompt '%.9s' --seq 32 --tokens %d --temperature 0 --json "
      "--quiet --threads 1",
      config, from, text, cJSON_GetArraySize(greedy));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-generation-1");
  for (int i = 0; i < cJSON_GetArraySize(greedy); i++) {
    const double got = cJSON_GetArrayItem(member(json, "log_probabilities"), i)->valuedouble;
    ck_assert_int_eq(cJSON_GetArrayItem(member(json, "tokens"), i)->valueint, cJSON_GetArrayItem(greedy, i)->valueint);
    ck_assert_msg(fabs(got - cJSON_GetArrayItem(likely, i)->valuedouble) < 5e-6, "token %d: %.9g", i, got);
  }
  cJSON_Delete(json);
  command_free(&r);
}

/* Imports weights and compares losses with the library's: one file on one rank; two files with an index, divided by
 * tensor parallelism and the pipeline; bfloat16 masters; a file whose names lack their first word. */
START_TEST(weights_in_and_out) {
  tws_json *golden = golden_file("huggingface_tensors.json");
  const cJSON *model;
  write_text(in_folder("text"), member(golden->root, "text")->valuestring);
  cJSON_ArrayForEach(model, member(golden->root, "models")) {
    if (TWS_SANITIZED && strcmp(member(model, "name")->valuestring, "gpt2") != 0 && model->next)
      continue; /* first and last */
    const cJSON *tensors = member(model, "tensors");
    const int first = !model->prev || !model->prev->next;
    char config[96], file[96], save[96], how[256];
    char *text = cJSON_PrintUnformatted(member(model, "config"));
    snprintf(config, sizeof config, "%s", in_folder("config.json"));
    snprintf(file, sizeof file, "%s", in_folder("given.safetensors"));
    snprintf(save, sizeof save, "%s", in_folder("save"));
    write_text(config, text);
    cJSON_free(text);
    write_file(file, tensors, 0, 1000, 0, 0);
    check_loss(first_loss(config, file, "-n 1 --micro-batch 1"), model, 2e-6, "one rank");
    check_greedy(config, file, member(golden->root, "text")->valuestring, model);
    write_shards(tensors, first);
    snprintf(how, sizeof how, "%s --tp 2 --micro-batch 1 --save %s", first ? "-n 4 --pp 2" : "-n 2", save);
    check_loss(first_loss(config, folder, how), model, 2e-6, "two files on several ranks");
    check_export(save, tensors);
    snprintf(how, sizeof how, "-n 2 --sp 2 --stage 3 --dtype bf16 --micro-batch 1 --save %s", save);
    const double bf16 = first_loss(config, file, how);
    check_loss(bf16, model, 0.02, "bfloat16");
    check_export(save, tensors); /* its masters */
    write_file(file, tensors, 0, 1000, 1, (int)strcspn(tensors->child->next->string, ".") + 1);
    check_loss(first_loss(config, file, "-n 1 --micro-batch 1"), model, 0.02, "bfloat16 without the first word");
  }
  tws_json_destroy(golden);
}
END_TEST

static void refused(const char *config, const char *from, const char *words) {
  command_result r = twinspeed(
      "train --quiet -m %s --data %s --seq 32 --micro-batch 1 --accumulation 1 -n 1 --steps 1 "
      "--init-from %s",
      config, text_path, from);
  assert_one_error(&r, 3, words);
  ck_assert_msg(strstr(r.err, words) != NULL, "not \"%s\" but %s", words, r.err);
  command_free(&r);
}

START_TEST(other_files) {
  tws_json *golden = golden_file("huggingface_tensors.json");
  const cJSON *first = member(golden->root, "models")->child, *tensors = member(first, "tensors");
  char config[96], file[96];
  snprintf(config, sizeof config, "%s", in_folder("config.json"));
  snprintf(file, sizeof file, "%s", in_folder("given.safetensors"));
  write_text(
      config,
      "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_layer\":4,\"n_embd\":64,\"n_head\":8}");
  write_file(file, tensors, 0, 1000, 0, 0);
  refused(config, file, "there is no tensor \"transformer.h.3.ln_1.weight\"");
  write_text(
      config,
      "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_layer\":3,\"n_embd\":32,\"n_head\":8}");
  refused(config, file, "transformer.wte.weight has 259 x 64 elements, and the model's 259 x 32");
  ck_assert_int_eq(mkdir(in_folder("empty"), 0777), 0);
  command_result r = twinspeed("convert checkpoint %s %s", in_folder("empty"), in_folder("out"));
  assert_one_error(&r, 4, "no checkpoint");
  command_free(&r);
  tws_json_destroy(golden);
}
END_TEST

/* ---- adapters ---- */

static command_result train_adapters(const char *config, const char *how) {
  return twinspeed(
      "train --quiet -m %s --data %s --seq 32 --accumulation 1 --threads 1 --json --force --eval-data %s --eval-steps "
      "2 "
      "--set optimizer.type=AdamW --set optimizer.params.lr=0.01 %s",
      config, text_path, text_path, how);
}

/* Reads the losses of all steps from an answer and returns that of the last evaluation. */
static double losses_of(command_result *r, double *losses, int steps) {
  ck_assert_msg(r->status == 0, "%s", r->err);
  cJSON *json = assert_json(r, "twinspeed-train-1");
  const cJSON *list = member(json, "losses"), *evaluations = member(json, "evaluations");
  ck_assert_int_eq(cJSON_GetArraySize(list), steps);
  for (int i = 0; i < steps; i++) losses[i] = cJSON_GetArrayItem(list, i)->valuedouble;
  const double last = number(cJSON_GetArrayItem(evaluations, cJSON_GetArraySize(evaluations) - 1), "loss");
  cJSON_Delete(json);
  command_free(r);
  return last;
}

/* A checkpoint has only the adapters: a training resumes from it and the base model, on other ranks, too; merged with
 * the base, the file that is written for PEFT gives the same loss as base and adapters. */
START_TEST(adapters) {
#define LORA "--set twinspeed.lora.r=4 --set twinspeed.lora.lora_alpha=6 --set twinspeed.lora.target_modules=all-linear"
#define QUANTIZED(key) " --set twinspeed.frozen_quantization." key "="
#define BLOCKS(type, block) QUANTIZED("type") type QUANTIZED("block_size") block
#define BITS(type) BLOCKS(type, "4")
#define SCALES(group) QUANTIZED("scale_block_size") group
  static const char *const loras[] = {LORA, LORA BITS("int8"), LORA BITS("nf4"), LORA BLOCKS("nf4", "2") SCALES("2")};
  enum { ALL = 6, HALF = 3 };
  const char *lora = loras[_i];
  tws_json *golden = golden_file("huggingface_tensors.json");
  const cJSON *model;
  cJSON_ArrayForEach(model, member(golden->root, "models")) {
    if (model->prev && model->prev->next && model->next) continue; /* the first and the last */
    char config[96], file[96], save[96], adapter[96], merged[96], how[512];
    double whole[ALL], parts[ALL];
    char *text = cJSON_PrintUnformatted(member(model, "config"));
    snprintf(config, sizeof config, "%s", in_folder("config.json"));
    snprintf(file, sizeof file, "%s", in_folder("given.safetensors"));
    snprintf(save, sizeof save, "%s", in_folder("adapted"));
    snprintf(adapter, sizeof adapter, "%s", in_folder("adapter_model.safetensors"));
    snprintf(merged, sizeof merged, "%s", in_folder("merged.safetensors"));
    write_text(config, text);
    cJSON_free(text);
    write_file(file, member(model, "tensors"), 0, 1000, 0, 0);
    snprintf(how, sizeof how, "-n 1 --micro-batch 2 --steps %d %s --init-from %s", ALL, lora, file);
    command_result r = train_adapters(config, how);
    const double at_end = losses_of(&r, whole, ALL);
    snprintf(how, sizeof how, "-n 2 --stage 3 --micro-batch 1 --steps %d %s --init-from %s --save %s", HALF, lora, file,
             save);
    r = train_adapters(config, how);
    losses_of(&r, parts, HALF);
    snprintf(how, sizeof how, "-n 1 --micro-batch 2 --steps %d %s --resume %s", ALL, lora, save);
    r = train_adapters(config, how);
    ck_assert_msg(r.status != 0 && strstr(r.err, "--init-from"), "%s", r.err);
    command_free(&r);
    snprintf(how, sizeof how, "-n 2 --tp 2 --micro-batch 2 --steps %d %s --init-from %s --resume %s --save %s", ALL,
             lora, file, save, save);
    r = train_adapters(config, how);
    losses_of(&r, parts + HALF, ALL - HALF);
    for (int i = 0; i < ALL; i++)
      ck_assert_msg(fabs(parts[i] / whole[i] - 1) < 1e-5, "step %d: %.9g, not %.9g", i + 1, parts[i], whole[i]);
    r = twinspeed("convert checkpoint %s %s --force", save, adapter);
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
    r = twinspeed("convert merge %s %s %s --force", file, folder, merged);
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
    snprintf(how, sizeof how, "-n 1 --micro-batch 2 --steps 1 --set optimizer.params.lr=0 --init-from %s", merged);
    r = train_adapters(config, how);
    const double with_merged = losses_of(&r, parts, 1);
    ck_assert_msg(fabs(with_merged / at_end - 1) < 1e-5, "%.9g, not %.9g", with_merged, at_end);
  }
  tws_json_destroy(golden);
}
END_TEST

/* With base weights in few bits, losses equal those of the same weights rounded beforehand and stored in float32, in
 * every division of ranks. Adapters that have learnt nothing are 0: merging them only rounds the base. */
START_TEST(rounded_base) {
  static const char all[] = QUANTIZED("skip_modules") "[]";
  static const char *const types[] = {BITS("int8"), BITS("nf4"), BITS("nf4") SCALES("2"), BITS("nf4") SCALES("96")};
  const int over_rows = _i == 3; /* a group of blocks spans several rows, which is not possible for the head and for
                                  * tensor ranks */
  static const struct {
    const char *ranks;
    double within;
  } divisions[] = {{"-n 1 --micro-batch 4", 1e-6},
                   {"-n 2 --stage 0 --micro-batch 2", 1e-5},
                   {"-n 2 --stage 1 --micro-batch 2", 1e-5},
                   {"-n 2 --stage 2 --micro-batch 2", 1e-5},
                   {"-n 2 --stage 3 --micro-batch 2", 1e-5},
                   {"-n 2 --stage 3 --micro-batch 2 --set twinspeed.linear_tile_size=2000", 1e-5},
                   {"-n 2 --tp 2 --micro-batch 4", 1e-5},
                   {"-n 2 --pp 2 --micro-batch 4", 1e-5}};
  enum { MANY = 6 };
  char config[96], file[96], save[96], adapter[96], rounded[96], bits[256], how[640];
  double plain[MANY], want[MANY], got[MANY];
  snprintf(config, sizeof config, "%s", in_folder("few.json"));
  snprintf(file, sizeof file, "%s", in_folder("few.safetensors"));
  snprintf(save, sizeof save, "%s", in_folder("few"));
  snprintf(adapter, sizeof adapter, "%s", in_folder("few_bits/adapter_model.safetensors"));
  snprintf(rounded, sizeof rounded, "%s", in_folder("rounded.safetensors"));
  mkdir(in_folder("few_bits"), 0777);
  write_text(
      config,
      "{\"model_type\":\"llama\",\"vocab_size\":259,\"hidden_size\":48,\"intermediate_size\":64,"
      "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"tie_word_embeddings\":false}");
  snprintf(bits, sizeof bits, "%s%s", types[_i], over_rows ? "" : all);
  command_result r =
      train_adapters(config, (snprintf(how, sizeof how, "-n 1 --micro-batch 4 --steps 1 --save %s", save), how));
  losses_of(&r, plain, 1);
  r = twinspeed("convert checkpoint %s %s --force", save, file);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  snprintf(how, sizeof how,
           "-n 1 --micro-batch 4 --steps 1 --set optimizer.params.lr=0 " LORA " %s --init-from %s --save %s", bits,
           file, save);
  r = train_adapters(config, how);
  losses_of(&r, plain, 1);
  r = twinspeed("convert checkpoint %s %s --force", save, adapter);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed("convert merge %s %s %s --force", file, adapter, rounded);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  snprintf(how, sizeof how, "-n 1 --micro-batch 4 --steps %d " LORA " --init-from %s", MANY, file);
  r = train_adapters(config, how);
  losses_of(&r, plain, MANY);
  snprintf(how, sizeof how, "-n 1 --micro-batch 4 --steps %d " LORA " --init-from %s", MANY, rounded);
  r = train_adapters(config, how);
  losses_of(&r, want, MANY);
  ck_assert(fabs(plain[0] / want[0] - 1) > 1e-6);
  for (size_t d = 0; d < sizeof divisions / sizeof *divisions; d++) {
    snprintf(how, sizeof how, "%s --steps %d " LORA " %s --init-from %s", divisions[d].ranks, MANY, bits, file);
    r = train_adapters(config, how);
    if (over_rows && strstr(divisions[d].ranks, "--tp")) {
      ck_assert_msg(r.status != 0 && strstr(r.err, "the nearest scale_block_size that divides all weights' is 2"), "%s",
                    r.err);
      command_free(&r);
      continue;
    }
    losses_of(&r, got, MANY);
    for (int i = 0; i < MANY; i++)
      ck_assert_msg(fabs(got[i] / want[i] - 1) < divisions[d].within, "%s, %s, step %d: %.9g, not %.9g", types[_i],
                    divisions[d].ranks, i + 1, got[i], want[i]);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("huggingface");
  TCase *tests = tcase_create("huggingface");
  tcase_add_test(tests, weights_in_and_out);
  tcase_add_test(tests, other_files);
  tcase_add_loop_test(tests, adapters, 0, 4);
  tcase_add_loop_test(tests, rounded_base, 0, 4);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
