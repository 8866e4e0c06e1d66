/* ctest: mpi slow */
/* Offloading on the emulated device: the optimizer, parameters and activation checkpoints on the host and on a disk,
 * for a rank whose kernels run on a device. Host functions run in a random order of those that streams and events
 * allow, and cannot touch device memory. Losses are compared with the host engine's, recorded steps with eager ones to
 * the last bit, and the arenas of every tier with the ledger. */
#include "emulated.h"
#include "draw.h"
#include "members.h"
#include "sample.h"

#define SIZES "\"vocab_size\":259,\"hidden_size\":16,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
static const struct {
  const char *name, *text;
} models[] = {
    {"small-gpt",
     "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":32,\"n_embd\":16,\"n_layer\":2,\"n_head\":2}"},
    {"small-llama", "{\"model_type\":\"llama\"," SIZES
                    "\"intermediate_size\":40,\"num_key_value_heads\":2,\"max_position_embeddings\":32}"},
    {"small-mixtral",
     "{\"model_type\":\"mixtral\"," SIZES "\"intermediate_size\":24,\"num_key_value_heads\":2,\"num_local_experts\":4,"
     "\"num_experts_per_tok\":2,\"max_position_embeddings\":32}"}};

static void write_more_files(void) {
  char path[96];
  write_files();
  for (int i = 0; i < 3; i++)
    snprintf(path, sizeof path, "%s/%s.json", folder, models[i].name), write_text(path, models[i].text);
  snprintf(path, sizeof path, "%s/disk", folder), mkdir(path, 0700);
}

static void write_config(const char *text) {
  char path[96];
  snprintf(path, sizeof path, "%s/config.json", folder), write_text(path, text);
}

/* Asserts that every tier of every rank has the ledger's bytes, that the disk's traffic is the planned one, and that
 * steps were recorded as graphs. recorded 0: some memory may be pageable, so steps need not be recorded. */
static void check_result(const char *name, int recorded) {
  tws_error err = {0};
  tws_json *json;
  char path[96];
  snprintf(path, sizeof path, "%s/result", folder);
  ck_assert_msg(tws_json_read(path, &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *rank, *tier;
  cJSON_ArrayForEach(rank, member(json->root, "memory")) {
    cJSON_ArrayForEach(tier, rank) {
      if (!cJSON_GetObjectItem(tier, "allocated_bytes")) continue;
      ck_assert_msg(number(tier, "allocated_bytes") == number(tier, "predicted_bytes"), "%s: the arena of %s", name,
                    tier->string);
    }
    const cJSON *why = cJSON_GetObjectItem(member(rank, "gpu"), "not_recorded");
    ck_assert_msg(!recorded || !why, "%s: %s", name, why ? why->valuestring : "recorded");
    ck_assert_msg(!why || strstr(why->valuestring, "pin_memory"), "%s: %s", name, why ? why->valuestring : "");
  }
  const cJSON *disk = cJSON_GetObjectItem(json->root, "disk");
  if (disk) {
    ck_assert_msg(number(disk, "read_bytes") == number(disk, "planned_read_bytes"), "%s", name);
    ck_assert_msg(number(disk, "written_bytes") == number(disk, "planned_written_bytes"), "%s", name);
  }
  tws_json_destroy(json);
}

/* ---- chosen jobs ---- */

#define HOST "\"offload_optimizer\":{\"device\":\"cpu\"},\"sub_group_size\":9000,\"reduce_bucket_size\":8000"
#define ON_DISK(more) "{\"device\":\"nvme\",\"nvme_path\":\"%s/disk\"" more "}"

static const struct {
  const char *name;
  int ranks, steps;
  const char *model, *config, *flags;
  double limit;
  int pageable; /* 1: some memory is not pinned, so that steps are not recorded */
} jobs[] = {
    {"accumulated on the host, clipped", 2, 4, "small-gpt",
     "\"gradient_accumulation_steps\":2,\"gradient_clipping\":0.5,\"zero_optimization\":{\"stage\":2," HOST
     ",\"overlap_comm\":true}",
     "--dtype fp32", 1e-6, 0},
    {"steps are skipped, accumulated on the device, evaluated", 1, 4, "small-llama",
     "\"gradient_accumulation_steps\":2,\"fp16\":{\"enabled\":true,\"initial_scale_power\":30,\"hysteresis\":1},"
     "\"zero_optimization\":{\"stage\":1," HOST "}",
     "--eval-data %s/text --eval-every 2 --eval-steps 1", 1e-4, 0},
    {"a part, on four ranks", 4, 3, "small-gpt",
     "\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100,\"sub_group_size\":4000,"
     "\"offload_optimizer\":{\"device\":\"cpu\",\"ratio\":0.5}}",
     "--dtype fp32", 1e-6, 0},
    {"delayed, with parameters on the host", 2, 4, "small-gpt",
     "\"zero_optimization\":{\"stage\":3," HOST
     ",\"offload_param\":{\"device\":\"cpu\"}},\"twinspeed\":{\"delayed_update\":true,\"delayed_update_warm_up\":1}",
     "--dtype fp32", 1e-6, 0},
    {"all on a disk", 2, 3, "small-llama",
     "\"zero_optimization\":{\"stage\":3,\"sub_group_size\":6000,\"offload_optimizer\":" ON_DISK(
         ",\"pipeline_read\":true,\"pipeline_write\":true") ",\"offload_param\":" ON_DISK(",\"max_in_cpu\":3000,"
                                                                                          "\"buffer_count\":3,\"buffer_"
                                                                                          "size\":5000") "}",
     "--dtype fp32", 1e-6, 0},
    {"a part on the device, the rest on a disk", 2, 3, "small-gpt",
     "\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100,\"sub_group_size\":4000,"
     "\"offload_optimizer\":" ON_DISK(",\"ratio\":0.5,\"pipeline_read\":true") "}",
     "--dtype fp32", 1e-6, 0},
    {"columns on the device", 2, 6, "small-gpt",
     "\"zero_optimization\":{\"stage\":2," HOST
     ",\"zenflow\":{\"topk_ratio\":0.2,\"update_interval\":2,\"select_interval\":2,\"full_warm_up_rounds\":1,"
     "\"select_strategy\":\"step\",\"overlap_step\":false}}",
     "--dtype fp32", 1e-6, 0},
    {"columns on the device, the host one step late", 2, 8, "small-llama",
     "\"zero_optimization\":{\"stage\":2," HOST
     ",\"zenflow\":{\"topk_ratio\":0.3,\"update_interval\":2,\"select_interval\":4,\"select_strategy\":\"step\","
     "\"overlap_step\":true}}",
     "--dtype fp32", 1e-6, 0},
    {"columns on the device, intervals of measured length", 2, 8, "small-gpt",
     "\"zero_optimization\":{\"stage\":2," HOST
     ",\"zenflow\":{\"topk_ratio\":0.3,\"update_interval\":\"auto\",\"auto_ratio\":0.5,\"select_interval\":5,"
     "\"select_strategy\":\"step\",\"overlap_step\":true}}",
     "--dtype fp32", 1e-6, 0},
    {"columns of tensor-parallel ranks", 4, 6, "small-llama",
     "\"zero_optimization\":{\"stage\":3," HOST
     ",\"zenflow\":{\"topk_ratio\":0.2,\"update_interval\":2,\"select_interval\":2,\"select_strategy\":\"step\"}}",
     "--dtype fp32 --tp 2", 1e-6, 0},
    {"columns of experts, intervals of measured length", 2, 6, "small-mixtral",
     "\"zero_optimization\":{\"stage\":2," HOST ",\"zenflow\":{\"topk_ratio\":0.3,\"auto_ratio\":0.5}}",
     "--dtype fp32 --ep 2", 1e-6, 0},
    {"activation checkpoints and pageable memory", 2, 3, "small-llama",
     "\"zero_optimization\":{\"stage\":1,\"offload_optimizer\":{\"device\":\"cpu\",\"pin_memory\":false}},"
     "\"activation_checkpointing\":{\"cpu_checkpointing\":true}",
     "--dtype fp32 --recompute full --tp 2", 1e-6, 1},
    {"experts", 2, 3, "small-mixtral", "\"zero_optimization\":{\"stage\":2," HOST "}", "--dtype fp32 --ep 2", 1e-6, 0},
    {"adapters", 2, 3, "small-llama",
     "\"zero_optimization\":{\"stage\":3," HOST
     ",\"offload_param\":{\"device\":\"cpu\"}},\"twinspeed\":{\"lora\":{\"r\":4,\"target_modules\":\"all-linear\"}}",
     "--dtype fp32", 1e-6, 0},
    {"attention in two chunks", 1, 3, "small-gpt", "\"twinspeed\":{\"attention_chunks\":2}",
     "--dtype fp32 --recompute selective", 1e-6, 0},
    {"attention in eight chunks, recomputed", 2, 3, "small-llama",
     "\"zero_optimization\":{\"stage\":3," HOST "},\"activation_checkpointing\":{\"cpu_checkpointing\":true},"
     "\"twinspeed\":{\"attention_chunks\":8}",
     "--dtype fp32 --recompute full --sp 2", 1e-6, 0},
    {"attention in four chunks on four ranks", 4, 3, "small-gpt",
     "\"zero_optimization\":{\"stage\":2," HOST ",\"overlap_comm\":true},\"twinspeed\":{\"attention_chunks\":4}",
     "--dtype fp32 --sp 2", 1e-6, 0}};

/* Replaces every "%s" by the suite's folder. */
static void put_folder(char *out, size_t size, const char *text) {
  size_t n = 0;
  for (; *text; text++) {
    if (strncmp(text, "%s", 2) == 0)
      n += (size_t)snprintf(out + n, size - n, "%s", folder), text++;
    else
      out[n++] = *text;
    ck_assert(n < size);
  }
  out[n] = '\0';
}

/* Trains the jobs of the table on the host and on the emulated device; every second job also runs operation by
 * operation. */
START_TEST(chosen_jobs) {
  if (!takes((uint64_t)_i, 3)) return;
  char config[1024], flags[512], more[256], text[1100];
  double host[MOST_STEPS], eager[MOST_STEPS], whole[MOST_STEPS];
  put_folder(config, sizeof config, jobs[_i].config);
  put_folder(more, sizeof more, jobs[_i].flags);
  snprintf(text, sizeof text, "{\"train_micro_batch_size_per_gpu\":1,%s}", config);
  write_config(text);
  snprintf(flags, sizeof flags,
           "-m %s/%s.json -c %s/config.json --steps %d --result %s/result --data %s/text --seq 16 %s", folder,
           jobs[_i].model, folder, jobs[_i].steps, folder, folder, more);
  const int count = train(0, jobs[_i].ranks, flags, host);
  ck_assert_int_eq(train(1, jobs[_i].ranks, flags, whole), count);
  check_result(jobs[_i].name, !jobs[_i].pageable);
  compare(jobs[_i].name, count, host, whole, jobs[_i].limit);
  if (_i % 2 || jobs[_i].pageable) return;
  setenv("TWINSPEED_CUDA_EAGER", "1", 1);
  ck_assert_int_eq(train(1, jobs[_i].ranks, flags, eager), count);
  unsetenv("TWINSPEED_CUDA_EAGER");
  compare(jobs[_i].name, count, eager, whole, 0);
}
END_TEST

/* An error in a function of the host ends the step with a message that names the file; no rank hangs. */
START_TEST(failed_transfers) {
  char text[512];
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\":1,\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{"
           "\"device\":\"nvme\",\"nvme_path\":\"%s/disk\"}}%s}",
           folder, _i ? ",\"aio\":{\"use_gds\":true}" : "");
  write_config(text);
  setenv("TWINSPEED_MODULES", modules, 1);
  if (!_i) setenv("EMULATED_CUT_FILES", in_folder("disk/twinspeed-swap"), 1);
  command_result r = twinspeed(
      "train --quiet --data %s/text --seq 16 -n 2 --cluster dgx-h200 -m %s/small-gpt.json -c %s/config.json --steps 3 "
      "--dtype fp32",
      folder, folder, folder);
  unsetenv("EMULATED_CUT_FILES");
  ck_assert_msg(r.status != 0 && r.status != 124, "%d: %s", r.status, r.err);
  ck_assert_msg(strstr(r.err, _i ? "GPUDirect Storage needs NVIDIA's library cuFile" : "was the file cut?") &&
                    strstr(r.err, _i ? "aio.use_gds to false" : "swap file"),
                "%s", r.err);
  command_free(&r);
}
END_TEST

/* ---- jobs at random ---- */

static const char *pick(uint64_t seed, uint64_t index, const char *const *list, int count) {
  return list[draw(seed, index, 0, count - 1)];
}
#define PICK(index, ...)                                \
  pick(seed, index, (const char *const[]){__VA_ARGS__}, \
       (int)(sizeof(const char *const[]){__VA_ARGS__} / sizeof(const char *)))

/* Draws a legal configuration that offloads the optimizer, the parameters or both. Returns the number of ranks. */
static int draw_config(uint64_t seed, char *text, size_t size, char *flags, size_t flag_size) {
  const int ranks = 1 << (draw(seed, 1, 0, 9) < 4 ? 0 : draw(seed, 1, 0, 9) < 8 ? 1 : 2), stage = draw(seed, 2, 1, 3);
  const int zenflow = draw(seed, 3, 0, 5) == 0, late = !zenflow && draw(seed, 4, 0, 5) == 0;
  const int disk = !zenflow && !late && draw(seed, 5, 0, 3) == 0, away = draw(seed, 8, 0, 5) == 0;
  const int parameters = stage == 3 && !zenflow && draw(seed, 7, 0, 1);
  const int optimizer = zenflow || late || !parameters || draw(seed, 6, 0, 4) > 0; /* 0: the parameters alone */
  char optimizer_text[256], parameter_text[256] = "";
  snprintf(optimizer_text, sizeof optimizer_text,
           "\"offload_optimizer\":{\"device\":\"%s\",\"nvme_path\":\"%s/disk\",\"pin_memory\":%s,\"ratio\":%s,"
           "\"pipeline_read\":%s,\"pipeline_write\":%s}",
           !optimizer ? "none"
           : disk     ? "nvme"
                      : "cpu",
           folder, PICK(10, "true", "true", "true", "false"),
           stage == 3 && !zenflow && !late ? PICK(11, "1", "0.6", "0.3") : "1", PICK(12, "true", "false"),
           PICK(13, "true", "false"));
  if (parameters)
    snprintf(parameter_text, sizeof parameter_text,
             ",\"offload_param\":{\"device\":\"%s\",\"nvme_path\":\"%s/disk\",\"pin_memory\":%s,\"max_in_cpu\":%d,"
             "\"buffer_count\":%d,\"buffer_size\":5000}",
             late ? "cpu" : PICK(14, "cpu", "nvme"), folder, PICK(15, "true", "true", "false"), draw(seed, 16, 0, 9000),
             draw(seed, 17, 2, 5));
  snprintf(
      text, size,
      "{\"train_micro_batch_size_per_gpu\":1,\"gradient_accumulation_steps\":%d%s%s,\"optimizer\":{\"type\":\"%s\","
      "\"params\":{\"lr\":1e-3}},\"zero_optimization\":{\"stage\":%d,\"overlap_comm\":%s,"
      "\"reduce_bucket_size\":%d,\"sub_group_size\":%d,\"stage3_param_persistence_threshold\":%d,%s%s%s}%s%s%s}",
      draw(seed, 20, 1, 3), PICK(21, "", ",\"gradient_clipping\":0.3"),
      PICK(22, "", "", ",\"bf16\":{\"enabled\":true}",
           ",\"fp16\":{\"enabled\":true,\"initial_scale_power\":26,\"hysteresis\":1}",
           ",\"bf16\":{\"enabled\":true},\"data_types\":{\"grad_accum_dtype\":\"fp32\"}"),
      PICK(23, "AdamW", "AdamW", "Lion", "Adagrad"), stage, PICK(24, "true", "false"), draw(seed, 25, 2000, 30000),
      draw(seed, 26, 3000, 40000), draw(seed, 27, 0, 300), optimizer_text, parameter_text,
      !zenflow               ? ""
      : draw(seed, 19, 0, 1) ? ",\"zenflow\":{\"topk_ratio\":0.3,\"update_interval\":2,\"select_interval\":2,"
                               "\"full_warm_up_rounds\":1,\"select_strategy\":\"step\",\"overlap_step\":true}"
                             : ",\"zenflow\":{\"topk_ratio\":0.3,\"update_interval\":2,\"select_interval\":2,"
                               "\"full_warm_up_rounds\":1,\"select_strategy\":\"step\",\"overlap_step\":false}",
      away ? ",\"activation_checkpointing\":{\"cpu_checkpointing\":true}" : "",
      late ? ",\"twinspeed\":{\"delayed_update\":true,\"delayed_update_warm_up\":1}" : "", "");
  const char *model = PICK(30, "small-gpt", "small-llama", "small-mixtral");
  snprintf(flags, flag_size, "-m %s/%s.json -c %s/config.json%s%s", folder, model, folder,
           away ? " --recompute full" : "",
           ranks == 1 ? "" : PICK(31, "", "", "", " --tp 2", late || zenflow || stage > 1 ? "" : " --pp 2"));
  return ranks;
}

START_TEST(random_jobs) {
  enum { CASES = 200, SAMPLE = 100 };
  int trained = 0;
  double worst = 0;
  for (uint64_t seed = 0; seed < CASES; seed++) {
    char text[2048], flags[512], all[700], name[1600];
    double host[MOST_STEPS], device[MOST_STEPS];
    if (!takes(seed, SAMPLE)) continue;
    const int ranks = draw_config(seed, text, sizeof text, flags, sizeof flags);
    write_config(text);
    snprintf(name, sizeof name, "case %d on %d ranks, %.900s %s", (int)seed, ranks, text, flags);
    snprintf(all, sizeof all, "%s --data %s/text --seq 16 --steps 4 --result %s/result", flags, folder, folder);
    const int count = train(0, ranks, all, host);
    ck_assert_int_eq(train(1, ranks, all, device), count);
    check_result(name, !strstr(text, "\"pin_memory\":false"));
    const int half = strstr(text, "16\":{") != NULL;
    compare(name, count, host, device, half ? 3e-4 : 2e-6);
    for (int i = 0; i < count && !half; i++) worst = fmax(worst, fabs(device[i] / host[i] - 1));
    trained++;
  }
  printf("%d jobs at random: largest relative difference of a loss in float32: %.2g\n", trained, worst);
}
END_TEST

int main(void) {
  if (access(TWS_BUILD_DIR "/emulated/twinspeed_cuda.so", R_OK) != 0) {
    fprintf(stderr, "the emulated device was not built: nothing to test\n");
    return 0;
  }
  make_folder();
  write_more_files();
  Suite *suite = suite_create("emulated_offload");
  TCase *tests = tcase_create("training");
  tcase_set_timeout(tests, 1200);
  tcase_add_loop_test(tests, chosen_jobs, 0, (int)(sizeof jobs / sizeof *jobs));
  tcase_add_loop_test(tests, failed_transfers, 0, 2);
  tcase_add_test(tests, random_jobs);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  remove_folder();
  return failed != 0;
}
