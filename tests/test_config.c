/* ctest: sampled */
/* ds_config.json: the table of keys, golden batch triples and schedules, "auto", combinations, overrides, print-out,
 * schema, exhausted memory. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "config/autotuning.h"
#include "config/ds_config.h"
#include "config/keys.h"
#include "plan/pipeline_grid.h"
#include "plan/plan.h"
#include "tests/sanitized.h"
#include "tests/configs.h"
#include "tests/failing_allocator.h"
#include "tests/members.h"
#include "tests/suite.h"

/* ---- the table ---- */

START_TEST(every_key_of_the_format_is_known) {
  char *text, *rest, *path;
  size_t length;
  int count = 0;
  ck_assert_int_eq(tws_read_file(TWS_TEST_DIR "/golden/config_keys.txt", 0, &text, &length, &err), TWS_OK);
  for (rest = text; (path = strsep(&rest, "\n")) && *path; count++) {
    ck_assert_msg(tws_key_at(path) != NULL, "%s is not in the table", path);
    ck_assert_str_ne(tws_key_at(path)->doc, "");
  }
  ck_assert_int_ge(count, 456);
  tws_free(text);
}
END_TEST

/* Returns 1 for a key whose value is not checked: DeepSpeed takes 1 for true, and anything for a key that it does not
 * check and that has no effect here. */
static int taken_as_it_is(const tws_key *key) {
  char section[64];
  snprintf(section, sizeof section, "%.*s", (int)strcspn(key->path, "."), key->path);
  if (key->type == TWS_KEY_BOOL) return strcmp(section, "twinspeed") != 0;
  return key->reason && !tws_key_checked_section(section);
}

/* Writes a key's path with a name in place of <m>. The name has no dot, because paths given on the command line are
 * split at dots. */
static void concrete(const tws_key *key, char *path, size_t size) {
  size_t used = 0;
  for (const char *p = key->path; *p && used + 1 < size; p++) {
    if (*p == '<') {
      path[used++] = 'x';
      p = strchr(p, '>');
    } else {
      path[used++] = *p;
    }
  }
  path[used] = 0;
}

START_TEST(rows_hold_together) {
  static const char *const wrong[] = {[TWS_KEY_ANY] = NULL,
                                      [TWS_KEY_BOOL] = "1",
                                      [TWS_KEY_INT] = "1.5",
                                      [TWS_KEY_NUMBER] = "true",
                                      [TWS_KEY_STRING] = "3",
                                      [TWS_KEY_INT_OR_STRING] = "1.5",
                                      [TWS_KEY_NUMBER_OR_LIST] = "[1,true]",
                                      [TWS_KEY_NUMBER_OR_PAIR] = "[1]",
                                      [TWS_KEY_PAIR] = "[0.9]",
                                      [TWS_KEY_LIST] = "{}",
                                      [TWS_KEY_STRING_LIST] = "[3]",
                                      [TWS_KEY_INT_LIST] = "[\"a\"]",
                                      [TWS_KEY_OBJECT] = "[]",
                                      [TWS_KEY_BOOL_OR_OBJECT] = "3",
                                      [TWS_KEY_AXES] = "\"pipe,data,model\""};
  tws_config *config;
  ck_assert_int_eq(tws_config_default(&config, &err), TWS_OK);
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    char path[256];
    concrete(key, path, sizeof path);
    ck_assert_msg(tws_key_at(key->path) == key, "%s is there twice", key->path);
    ck_assert_msg((key->parts == 0) == (key->store == TWS_STORE_NOWHERE), "%s: effect without field or the reverse",
                  key->path);
    ck_assert_msg((key->parts == 0) == (key->reason != NULL), "%s: no reason", key->path);
    if (key->moved_to && !strchr(key->moved_to, '/')) {
      const char *segments[16];
      char copy[256];
      int below;
      snprintf(copy, sizeof copy, "%s", key->moved_to);
      int n = tws_key_split(copy, segments, 16);
      ck_assert_msg(tws_key_find(segments, n, &below) || below, "%s: not moved", key->path);
    }
    if (strchr(key->path, '[')) continue; /* inside an array */
    if (key->fallback)
      ck_assert_msg(tws_config_set(config, path, key->fallback, &err) == TWS_OK, "%s = %s: %s", path, key->fallback,
                    err.message);
    const char *bad = key->rounded ? "\"many\"" : wrong[key->type]; /* counts may be fractions */
    if (bad)
      ck_assert_msg(tws_config_set(config, path, bad, &err) == TWS_INVALID || taken_as_it_is(key), "%s = %s was taken",
                    path, bad);
    if (taken_as_it_is(key)) tws_config_set(config, path, key->fallback ? key->fallback : "null", &err);
    if (key->bounded && key->low > -1e9 && !taken_as_it_is(key)) {
      char low[64];
      snprintf(low, sizeof low, "%.0f", floor(key->low) - 1);
      ck_assert_msg(tws_config_set(config, path, low, &err) == TWS_INVALID, "%s = %s was taken", path, low);
    }
    if (key->values)
      ck_assert_msg(tws_config_set(config, path, "\"no such word\"", &err) == TWS_INVALID, "%s took a word", path);
  }
  ck_assert_int_eq(config->zenflow.on, 1); /* any key of its section switches zenflow on */
  config->zenflow.on = 0;
  tws_config *fresh;
  ck_assert_int_eq(tws_config_default(&fresh, &err), TWS_OK);
  ck_assert_int_eq(memcmp(config, fresh, offsetof(tws_config, store)), 0); /* defaults were set to defaults */
  tws_config_destroy(fresh);
  tws_config_destroy(config);
}
END_TEST

START_TEST(defaults_that_surprise) {
  tws_config *c;
  ck_assert_int_eq(tws_config_default(&c, &err), TWS_OK);
  ck_assert_double_eq(c->gradient_clipping, 1.0);
  ck_assert(c->dtype == TWS_F32 && c->zero.stage == 0 && c->zero.overlap_comm == -1);
  ck_assert(c->zero.reduce_bucket_size == 500000000 && c->zero.prefetch_bucket_size == 50000000);
  ck_assert(c->zero.model_persistence_threshold == INT64_MAX && c->zero.param_persistence_threshold == 100000);
  ck_assert(c->zero.max_live_parameters == 1000000000 && c->zero.sub_group_size == 1000000000);
  ck_assert(c->zero.multi_rank_bucket_allreduce == 1 && c->zero.reduce_scatter == 1);
  ck_assert(c->optimizer == TWS_OPTIMIZER_ADAMW && c->lr == 1e-3 && c->beta2 == 0.999 && c->epsilon == 1e-8);
  ck_assert(c->weight_decay == 0 && c->adam_w_mode == 1 && c->bias_correction == 1);
  ck_assert(c->tensor_ranks == 0 && c->sequence_ranks == 0 && !c->tensor_overlap && !c->tensor_sequence_parallel);
  ck_assert(!c->bf16_masters && !c->bf16_moments && c->stochastic_rounding);
  ck_assert(c->tensor_chunks == 2 && c->loss_tiles == 1 && c->mlp_tiles == 1 && c->attention_chunks == 1);
  char order[TWS_AXIS_ORDER_TEXT];
  ck_assert_str_eq(tws_axis_order_text(&c->axis_order, order), "pipe,data,sequence,model");
  ck_assert(c->ignored_token == -1 && tws_config_model_ranks(c) == 1 && tws_config_vocabulary_multiple(c) == 1);
  ck_assert(c->recompute == TWS_RECOMPUTE_NONE && c->vocabulary_multiple == 1 && c->seed == 1234);
  ck_assert(c->train_batch_size == 0 && c->steps_per_print == 0 && c->scheduler == TWS_SCHEDULER_NONE);
  ck_assert_int_eq(tws_config_set(c, "train_batch_size", "8", &err), TWS_OK);
  ck_assert_int_eq(tws_config_resolve(c, 2, NULL, &err), TWS_OK);
  ck_assert_int_eq(c->zero.overlap_comm, 0);
  ck_assert_int_eq(tws_config_set(c, "zero_optimization.stage", "3", &err), TWS_OK);
  ck_assert_int_eq(tws_config_resolve(c, 2, NULL, &err), TWS_OK);
  ck_assert_int_eq(c->zero.overlap_comm, 1);
  tws_config_destroy(c);
}
END_TEST

/* ---- golden cases ---- */

START_TEST(golden_batch_triples) {
  static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                     "gradient_accumulation_steps"};
  static const char *const words[] = {"train", "micro", "accumulation"};
  tws_json *json = golden_file("batch_resolution.json");
  const cJSON *item, *cases = member(json->root, "cases");
  int good = 0, bad = 0;
  cJSON_ArrayForEach(item, cases) {
    tws_text text = {0};
    for (int i = 0; i < 3; i++) {
      char *value = cJSON_PrintUnformatted(cJSON_GetObjectItem(item, keys[i]));
      tws_text_add(&text, "%s\"%s\": %s", i ? ", " : "{", keys[i], value);
      cJSON_free(value);
    }
    tws_text_add(&text, "}");
    int64_t world = (int64_t)cJSON_GetObjectItem(item, "world_size")->valuedouble;
    const cJSON *result = cJSON_GetObjectItem(item, "result");
    tws_config *c;
    tws_code code = resolve(text.data, world, 0, &c);
    if (result) {
      ck_assert_msg(code == TWS_OK, "%s on %d: %s", text.data, (int)world, err.message);
      ck_assert_int_eq(c->train_batch_size, cJSON_GetObjectItem(result, "train_batch_size")->valueint);
      ck_assert_int_eq(c->micro_batch_size, cJSON_GetObjectItem(result, "micro")->valueint);
      ck_assert_int_eq(c->accumulation_steps, cJSON_GetObjectItem(result, "gas")->valueint);
      tws_config_destroy(c);
      good++;
    } else { /* the error message names the same cause, with the same numbers */
      const char *said = cJSON_GetObjectItem(item, "message")->valuestring;
      ck_assert_msg(code == TWS_INVALID, "%s on %d was taken", text.data, (int)world);
      ck_assert_msg(strncmp(err.message, "ds.json", 7) == 0, "%s", err.message);
      const cJSON *after = cJSON_GetObjectItem(item, "after");
      char product[64];
      snprintf(product, sizeof product, "%d x %d x %d", cJSON_GetArrayItem(after, 1)->valueint,
               cJSON_GetArrayItem(after, 2)->valueint, (int)world);
      if (strstr(said, "!=")) ck_assert_msg(strstr(err.message, product) != NULL, "%s: %s", text.data, err.message);
      for (int i = 0; i < 3 && strstr(said, "greater than 0"); i++)
        if (strncasecmp(said, words[i], 5) == 0 || strstr(said, i == 2 ? "ccumulation" : "\1"))
          ck_assert_msg(strstr(err.message, words[i]) != NULL, "%s: %s", text.data, err.message);
      bad++;
    }
    tws_text_free(&text);
  }
  ck_assert(good >= 10 && bad >= 14);
  tws_json_destroy(json);
}
END_TEST

START_TEST(golden_schedules) {
  tws_json *json = golden_file("lr.json");
  const cJSON *item, *point, *cases = member(json->root, "cases");
  int points = 0, refused = 0;
  cJSON_ArrayForEach(item, cases) {
    char *params = cJSON_PrintUnformatted(cJSON_GetObjectItem(item, "kw"));
    char *value = strstr(params, "\"warmup_num_steps\":10}");
    if (value && cJSON_GetObjectItem(item, "error")) { /* the golden file's 10.0, which cJSON prints as 10 */
      cJSON_free(params);
      params = cJSON_malloc(64);
      strcpy(params, "{\"warmup_num_steps\": 10.0}");
    }
    const char *cls = cJSON_GetObjectItem(item, "cls")->valuestring;
    tws_text text = {0};
    tws_text_add(&text,
                 "{\"train_batch_size\": 1, \"optimizer\": {\"params\": {\"lr\": %.17g}}, "
                 "\"scheduler\": {\"type\": \"%s\", \"params\": %s}}",
                 cJSON_GetObjectItem(item, "base_lr")->valuedouble, cls, params);
    cJSON_free(params);
    tws_config *c;
    tws_code code = resolve(text.data, 1, 0, &c);
    if (cJSON_GetObjectItem(item, "error")) {
      ck_assert_msg(code == TWS_INVALID, "%s was taken", text.data);
      refused++;
    } else {
      ck_assert_msg(code == TWS_OK, "%s: %s", text.data, err.message);
      cJSON_ArrayForEach(point, cJSON_GetObjectItem(item, "points")) {
        int64_t k = (int64_t)point->child->valuedouble;
        double lr = point->child->next->valuedouble, got = tws_config_lr(c, k), beta1, beta2;
        ck_assert_msg(fabs(got - lr) <= 1e-12 * fabs(lr) + 1e-18, "%s at %d: %.17g, golden %.17g", text.data, (int)k,
                      got, lr);
        tws_config_betas(c, k, &beta1, &beta2);
        const cJSON *momentum = point->child->next->next;
        double first = momentum ? momentum->valuedouble : c->beta1;
        ck_assert_msg(fabs(beta1 - first) <= 1e-12, "%s at %d: beta %.17g, golden %.17g", text.data, (int)k, beta1,
                      first);
        points++;
      }
      tws_config_destroy(c);
    }
    tws_text_free(&text);
  }
  ck_assert(points >= 1456 && refused >= 4);
  tws_json_destroy(json);
}
END_TEST

/* ---- "auto", overrides, clones ---- */

START_TEST(auto_follows_the_model) {
  static const char text[] =
      "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 3, \"gradient_clipping\": \"auto\","
      " \"bf16\": {\"enabled\": \"auto\", \"check_grad_overflow\": \"auto\"},"
      " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\"}},"
      " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\", \"warmup_max_lr\": "
      "\"auto\"}},"
      " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": "
      "\"auto\","
      " \"param_persistence_threshold\": \"auto\", \"overlap_comm\": \"auto\"}}";
  tws_config *c;
  ck_assert_msg(resolve(text, 4, 1600, &c) == TWS_OK, "%s", err.message);
  ck_assert(c->train_batch_size == 12 && c->accumulation_steps == 1);
  ck_assert(c->zero.reduce_bucket_size == 2560000 && c->zero.prefetch_bucket_size == 2304000);
  ck_assert(c->zero.param_persistence_threshold == 16000 && c->zero.overlap_comm == 1);
  ck_assert(c->lr == 1e-3 && c->beta1 == 0.9 && c->gradient_clipping == 1 && c->dtype == TWS_F32);
  ck_assert(c->schedule.total_steps == 0 && c->schedule.max_lr < 0);
  ck_assert_double_eq(tws_config_lr(c, 100000), 1e-3); /* until the length is known the learning rate is constant */
  c->schedule.total_steps = 2000;
  ck_assert_double_eq(tws_config_lr(c, 1501), 0.5e-3);
  tws_config_destroy(c);
  ck_assert_int_eq(resolve(text, 4, 0, &c), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "reduce_bucket_size"));
  ck_assert_int_eq(from_text("{\"steps_per_print\": \"auto\"}", &c), TWS_INVALID);
}
END_TEST

START_TEST(autotuning_is_read_where_it_is_given) {
  tws_config *c;
  ck_assert_int_eq(from_text("{\"autotuning\": {\"fast\": false, \"metric\": \"latency\", \"tuner_num_trials\": 7, "
                             "\"max_train_micro_batch_size_per_gpu\": 4}}",
                             &c),
                   TWS_OK);
  const tws_autotuning a = tws_config_autotuning(c);
  ck_assert(a.fast == 0 && a.trials == 7 && a.max_micro == 4 && a.first_step == 0 && !a.tuner);
  ck_assert_str_eq(a.metric, "latency");
  tws_config_destroy(c);
}
END_TEST

START_TEST(overrides_win_and_resolving_again_starts_afresh) {
  tws_config *c = config_of(
                 "{\"train_micro_batch_size_per_gpu\": 2, \"bfloat16\": {\"enabled\": true},"
                 " \"zero_optimization\": {\"stage\": 2, \"prefetch_bucket_size\": 7}}"),
             *copy;
  ck_assert_int_eq(tws_config_resolve(c, 4, NULL, &err), TWS_OK);
  ck_assert(c->train_batch_size == 8 && c->dtype == TWS_BF16 && c->zero.prefetch_bucket_size == 7);
  ck_assert_int_eq(tws_config_clone(c, &copy, &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(copy, "gradient_accumulation_steps", "3", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(copy, "zero_optimization.stage", "3", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(copy, "zero_optimization", "{\"prefetch_bucket_size\": 9}", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(copy, "bfloat16.enabled", "false", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(copy, "twinspeed.recompute", "full", &err), TWS_OK); /* no quotes needed */
  ck_assert_int_eq(tws_config_resolve(copy, 5, NULL, &err), TWS_OK);
  ck_assert(copy->train_batch_size == 30 && copy->zero.stage == 3 && copy->zero.overlap_comm == 1);
  ck_assert(copy->zero.prefetch_bucket_size == 9 && copy->dtype == TWS_F32 && copy->recompute == TWS_RECOMPUTE_FULL);
  ck_assert(c->train_batch_size == 8 && c->zero.stage == 2 && c->recompute == TWS_RECOMPUTE_NONE);
  ck_assert_int_eq(tws_config_set(copy, "zero_optimization.stage", "null", &err), TWS_OK); /* back to the default */
  ck_assert_int_eq(copy->zero.stage, 0);
  tws_config_destroy(c); /* what the clone shares stays */
  ck_assert_int_eq(tws_config_set(copy, "zero_optimization.stage", "1", &err), TWS_OK);

  static const struct {
    const char *key, *value, *message;
  } bad[] = {{"zero_optimization.stge", "1", "unknown key \"zero_optimization.stge\""},
             {"zero_optimization.stage", "7", "\"zero_optimization.stage\" must be"},
             {"zero_optimization.stage", "{", "not a value of JSON"},
             {"zero_optimization.stage", "[1", "not a value of JSON"},
             {"zero_optimization", "null", "is a section"},
             {"zero_optimization", "{\"stage\": 2, \"nope\": 1}", "unknown key"},
             {"", "1", "is no key"},
             {"a..b", "1", "is no key"},
             {".stage", "1", "is no key"},
             {"amp.enabled\xff", "1", "is not valid UTF-8"},
             {"train_batch_size", "abc", "not the string \"abc\""}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_int_eq(tws_config_set(copy, bad[i].key, bad[i].value, &err), TWS_INVALID);
    ck_assert_msg(strstr(err.message, "command line") && strstr(err.message, bad[i].message), "%s=%s: %s", bad[i].key,
                  bad[i].value, err.message);
  }
  ck_assert_int_eq(copy->zero.stage, 1); /* a refused value changes nothing */
  tws_config_destroy(copy);
}
END_TEST

START_TEST(old_forms_are_read) {
  tws_config *c;
  tws_text text = {0};
  int count;
  ck_assert_int_eq(resolve("{\"train_batch_size\": 4, \"zero_optimization\": true, \"allgather_size\": 1e6}", 1, 0, &c),
                   TWS_OK);
  ck_assert_int_eq(c->zero.stage, 1);
  ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
  ck_assert(count == 1 && strstr(text.data, "allgather_size") && strstr(text.data, "gathered in one call"));
  tws_text_free(&text);
  tws_config_destroy(c);
  c = config_of("{\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}}");
  ck_assert_int_eq(c->zero.offload_optimizer, 1);
  tws_config_destroy(c);
}
END_TEST

START_TEST(keys_without_effect_say_so) {
  tws_config *c = config_of(
      "{\"train_batch_size\": 1,\n \"dump_state\": true,\n \"zero_optimization\": {\"stage\": 1,\n"
      "  \"allgather_partitions\": false},\n"
      " \"scheduler\": {\"params\": {\"warmup_num_steps\": 5}},\n \"memory_breakdown\": false, "
      "\"wall_clock_breakdown\": null,\n"
      " \"tensorboard\": {\"enabled\": false, \"output_path\": \"there\", \"job_name\": \"one\"},\n"
      " \"log\": {\"any\": 1},\n \"seed\": 3}");
  tws_text text = {0};
  int count;
  ck_assert_int_eq(tws_config_set(c, "memory_breakdown", "true", &err), TWS_OK);
  ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
  ck_assert_msg(count == 6, "%s", text.data);
  ck_assert_ptr_nonnull(strstr(text.data, "ds.json:2:2: \"dump_state\" has no effect: "));
  ck_assert_ptr_nonnull(strstr(text.data, "ds.json:4:3: \"zero_optimization.allgather_partitions\" has no effect: "));
  ck_assert_ptr_nonnull(strstr(text.data, "ds.json:8:2: unknown key \"log\" has no effect"));
  ck_assert_ptr_nonnull(strstr(text.data, "ds.json:9:2: \"seed\" has no effect: "));
  ck_assert_ptr_nonnull(strstr(text.data, "\"scheduler.params.warmup_num_steps\" has no effect: scheduler.type"));
  ck_assert_ptr_nonnull(strstr(text.data, "command line: \"memory_breakdown\" has no effect: "));
  tws_text_free(&text);
  tws_config_destroy(c);
}
END_TEST

/* A key that needs another one is reported with the other's name, unless it has its default. */
START_TEST(keys_that_need_another_say_so) {
  static const struct {
    const char *text, *path, *reason; /* path NULL: nothing to say */
  } cases[] = {
      {"{\"tensor_parallel\": {\"tp_overlap_comm\": true}}", "tensor_parallel.tp_overlap_comm", "autotp_size above 1"},
      {"{\"tensor_parallel\": {\"tp_overlap_comm\": true, \"autotp_size\": 1}}", "tensor_parallel.tp_overlap_comm",
       "autotp_size above 1"},
      {"{\"tensor_parallel\": {\"tp_overlap_comm\": true, \"autotp_size\": 2}}", NULL, NULL},
      {"{\"tensor_parallel\": {\"tp_overlap_comm\": true, \"tp\": {\"tp_size\": 2}}}", NULL, NULL},
      {"{\"tensor_parallel\": {\"tp_overlap_comm\": false, \"autotp_size\": 0}}", NULL, NULL},
      {"{\"twinspeed\": {\"tensor_sequence_parallel\": true}}", "twinspeed.tensor_sequence_parallel",
       "autotp_size above 1"},
      {"{\"twinspeed\": {\"tensor_sequence_parallel\": true}, \"tensor_parallel\": {\"autotp_size\": 2}}", NULL, NULL},
      {"{\"twinspeed\": {\"tensor_overlap_chunks\": 4}, \"tensor_parallel\": {\"autotp_size\": 2}}",
       "twinspeed.tensor_overlap_chunks", "tp_overlap_comm"},
      {"{\"twinspeed\": {\"tensor_overlap_chunks\": 2}}", NULL, NULL},
      {"{\"zero_optimization\": {\"stage\": 2, \"zero_hpz_partition_size\": 8}}",
       "zero_optimization.zero_hpz_partition_size", "it needs ZeRO stage 3"},
      {"{\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 8}}", NULL, NULL},
      {"{\"zero_optimization\": {\"stage\": 3, \"zero_quantized_nontrainable_weights\": true}}",
       "zero_optimization.zero_quantized_nontrainable_weights", "it needs twinspeed.lora"},
      {"{\"zero_optimization\": {\"stage\": 3, \"zero_quantized_nontrainable_weights\": true}, "
       "\"twinspeed\": {\"frozen_parameters\": [\"h.*\"]}}",
       NULL, NULL},
      {"{\"zero_optimization\": {\"stage\": 2, \"mics_shard_size\": 8}}", "zero_optimization.mics_shard_size",
       "it needs ZeRO stage 3"},
      {"{\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 8, \"mics_hierarchical_params_gather\": true}}",
       "zero_optimization.mics_hierarchical_params_gather", "twinspeed.zero_node_ranks"},
      {"{\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 8, \"mics_hierarchical_params_gather\": true}, "
       "\"twinspeed\": {\"zero_node_ranks\": 4}}",
       NULL, NULL},
      {"{\"twinspeed\": {\"expert_node_ranks\": 4, \"expert_parallel_size\": 4}}", "twinspeed.expert_node_ranks",
       "less than twinspeed.expert_parallel_size"},
      {"{\"twinspeed\": {\"expert_node_ranks\": 2, \"expert_parallel_size\": 4}}", NULL, NULL},
      {"{\"twinspeed\": {\"expert_dispatch_fp8\": true}}", "twinspeed.expert_dispatch_fp8",
       "expert_parallel_size above 1"},
      {"{\"twinspeed\": {\"expert_dispatch_fp8\": true, \"expert_parallel_size\": 2}}", NULL, NULL},
      {"{\"twinspeed\": {\"axis_order\": \"data,pipe,sequence,model\"}}", "twinspeed.axis_order", "data-parallel"},
      {"{\"twinspeed\": {\"axis_order\": \"data,pipe,sequence,model\"}, \"sequence_parallel_size\": 2}", NULL, NULL},
      {"{\"twinspeed\": {\"pipeline_schedule\": \"gpipe\"}}", "twinspeed.pipeline_schedule", "pipeline.stages above 1"},
      {"{\"twinspeed\": {\"pipeline_schedule\": \"1f1b\", \"virtual_stages\": 1}, \"pipeline\": {\"partition\": "
       "\"best\"}}",
       NULL, NULL},
      {"{\"twinspeed\": {\"pipeline_schedule\": \"gpipe\"}, \"pipeline\": {\"stages\": 2, \"partition\": \"uniform\"}}",
       NULL, NULL},
      {"{\"pipeline\": {\"partition\": \"uniform\"}}", "pipeline.partition", "pipeline.stages above 1"},
      {"{\"twinspeed\": {\"stochastic_rounding\": false}}", "twinspeed.stochastic_rounding",
       "bf16_master_weights_and_grads"},
      {"{\"twinspeed\": {\"stochastic_rounding\": true}, \"bf16\": {\"enabled\": true}}", NULL, NULL},
      {"{\"twinspeed\": {\"stochastic_rounding\": false}, \"bf16\": {\"enabled\": true, "
       "\"bf16_master_weights_and_grads\": true}}",
       NULL, NULL},
#define CYCLE(more) \
  "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, \"cycle_max_lr\": 2" more "}}"
#define BETAS(betas) "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [" betas "]}}"
      {BETAS("0.9, 0.95") ", " CYCLE("") "}", "optimizer.params.betas", "cycle_momentum"},
      {BETAS("0.9, 0.95") ", " CYCLE(", \"cycle_momentum\": false") "}", NULL, NULL},
      {BETAS("0.9, 0.999") ", " CYCLE("") "}", NULL, NULL},
      {BETAS("0.9, 0.95") "}", NULL, NULL},
      {"{\"bf16\": {\"bf16_master_weights_and_grads\": true}}", "bf16.bf16_master_weights_and_grads", "bf16.enabled"},
      {"{\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}}", "bf16.bf16_optimizer_states",
       "bf16_master_weights_and_grads"},
      {"{\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true}}",
       NULL, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_config *c = config_of(cases[i].text);
    tws_text text = {0};
    int count;
    char says[96];
    ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
    ck_assert_msg(count == (cases[i].path != NULL), "%s: %s", cases[i].text, text.data ? text.data : "");
    snprintf(says, sizeof says, "\"%s\" has no effect: ", cases[i].path ? cases[i].path : "");
    if (cases[i].path)
      ck_assert_msg(strstr(text.data, says) && strstr(text.data, cases[i].reason), "%s: %s", cases[i].text, text.data);
    tws_text_free(&text);
    tws_config_destroy(c);
  }
}
END_TEST

/* ---- axes of ranks ---- */

START_TEST(tensor_ranks_have_two_places) {
  tws_config *c = config_of("{\"tensor_parallel\": {\"tp\": {\"tp_size\": 4}}}"), *again;
  tws_text text = {0};
  ck_assert_int_eq(c->tensor_ranks, 4);
  ck_assert_int_eq(tws_config_print(c, 0, &text, &err), TWS_OK); /* one of them is printed */
  ck_assert(strstr(text.data, "\"autotp_size\": 4") && !strstr(text.data, "tp_size\": 4,") &&
            !strstr(text.data, "\"tp_size"));
  again = config_of(text.data);
  ck_assert(again->tensor_ranks == 4 && tws_config_check(again, &err) == TWS_OK);
  tws_config_destroy(again);
  tws_text_free(&text);
  ck_assert_int_eq(tws_config_set(c, "tensor_parallel.autotp_size", "2", &err), TWS_OK);
  ck_assert_int_eq(tws_config_check(c, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "ds.json:1:29: "));
  ck_assert_int_eq(tws_config_set(c, "tensor_parallel.tp.tp_size", "null", &err), TWS_OK);
  ck_assert(tws_config_check(c, &err) == TWS_OK && c->tensor_ranks == 2);
  ck_assert_int_eq(tws_config_set(c, "tensor_parallel.autotp_size", "null", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(c, "tensor_parallel.tensor_parallel", "{\"tp_size\": 8}", &err), TWS_OK);
  ck_assert(tws_config_check(c, &err) == TWS_OK && c->tensor_ranks == 8);
  tws_config_destroy(c);
}
END_TEST

static const char *const axis_words[] = {"pipe", "data", "sequence", "model"};

/* Compares the topology with coordinates computed by hand: the rank is a number whose digits are coordinates, the last
 * varying fastest. */
static void check_topology(const tws_config *c, const char *order, const int64_t *size, int64_t ranks) {
  tws_topology topology;
  ck_assert_msg(tws_plan_topology(c, (int)ranks, &topology, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_topology_world(&topology), (int)ranks);
  int axis = 0;
  char copy[64], *rest = copy, *word;
  snprintf(copy, sizeof copy, "%s", order);
  while ((word = strsep(&rest, ","))) {
    int k = 0;
    while (strcmp(axis_words[k], word) != 0) k++;
    ck_assert_int_eq(tws_topology_size(&topology, 1u << tws_axis_find(word, strlen(word))), (int)size[k]);
    if (size[k] < 2 && k != 1) continue;
    ck_assert_str_eq(tws_axis_name(topology.axis[axis++]), word);
  }
  ck_assert_int_eq(topology.axes, axis);
  for (int stage = 0; stage < size[0];
       stage++) { /* a stage is represented by the first rank with its coordinate */
    int rank = tws_pipeline_grid_stage(&topology, 0, stage), coordinates[TWS_MAX_AXES];
    tws_topology_coordinates(&topology, rank, coordinates);
    for (int a = 0; a < topology.axes; a++)
      ck_assert_int_eq(coordinates[a], topology.axis[a] == TWS_AXIS_PIPE ? stage : 0);
  }
}

/* For any sizes and any order of axes, checks replicas and batch, the topology and the print-out; numbers of ranks that
 * the axes do not divide are refused. */
START_TEST(axes_divide_the_ranks) {
  enum { ROUNDS = TWS_SANITIZED ? 200 : 2000 };
  int refused = 0;
  uint64_t index = 0;
  for (int round = 0; round < ROUNDS; round++) {
    int p[12];
    for (int i = 0; i < 12; i++) p[i] = (int)(tws_random_uniform(8, 9, index++) * 12e6);
    const int64_t size[] = {1 + p[0] % 4, 1 + p[1] % 5, 1 + p[2] % 4, 1 + p[3] % 6}, micro = 1 + p[4] % 3,
                  steps = 1 + p[5] % 3;
    int64_t model = size[0] * size[2] * size[3], ranks = model * size[1];
    int order[] = {0, 1, 2, 3};
    for (int i = 3; i > 0; i--) {
      int j = p[5 + i] % (i + 1), swap = order[i];
      order[i] = order[j];
      order[j] = swap;
    }
    char axes[64];
    snprintf(axes, sizeof axes, "%s,%s,%s,%s", axis_words[order[0]], axis_words[order[1]], axis_words[order[2]],
             axis_words[order[3]]);
    tws_text text = {0}, once = {0}, twice = {0};
    tws_text_add(
        &text,
        "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, \"pipeline\": {\"stages\": %d},"
        " \"sequence_parallel_size\": %d, \"tensor_parallel\": {\"%s\": %d%s, \"tp_overlap_comm\": %s},"
        " \"twinspeed\": {\"axis_order\": \"%s\", \"tensor_sequence_parallel\": %s, \"loss_tiles\": %d, \"mlp_tiles\": "
        "%d,"
        " \"tensor_overlap_chunks\": %d, \"ignored_token\": %d, \"vocabulary_multiple\": %d}}",
        (int)micro, (int)steps, (int)size[0], (int)size[2], p[9] % 3 ? "autotp_size" : "tp\": {\"tp_size", (int)size[3],
        p[9] % 3 ? "" : "}", p[10] % 2 ? "true" : "false", axes, p[11] % 2 ? "true" : "false", 1 + p[6] % 9,
        1 + p[7] % 9, 1 + p[8] % 64, p[9] % 50 - 1, 1 + p[10] % 8);
    tws_config *c = config_of(text.data), *again;
    ck_assert(c->pipeline_stages == size[0] && c->sequence_ranks == size[2] && c->tensor_ranks == size[3]);
    ck_assert(c->tensor_overlap == p[10] % 2 && c->tensor_sequence_parallel == p[11] % 2 &&
              c->tensor_chunks == 1 + p[8] % 64);
    ck_assert(c->loss_tiles == 1 + p[6] % 9 && c->mlp_tiles == 1 + p[7] % 9 && c->ignored_token == p[9] % 50 - 1);
    char given[TWS_AXIS_ORDER_TEXT];
    ck_assert_str_eq(tws_axis_order_text(&c->axis_order, given), axes);
    ck_assert_int_eq(tws_config_model_ranks(c), model);
    int64_t multiple = tws_config_vocabulary_multiple(c);
    ck_assert(multiple % size[3] == 0 && multiple % (1 + p[10] % 8) == 0 && multiple <= size[3] * (1 + p[10] % 8));
    for (int64_t smaller = 1; smaller < multiple; smaller++) ck_assert(smaller % size[3] || smaller % (1 + p[10] % 8));
    ck_assert_msg(tws_config_resolve(c, ranks, NULL, &err) == TWS_OK, "%s on %d: %s", text.data, (int)ranks,
                  err.message);
    ck_assert_int_eq(c->train_batch_size, micro * steps * size[1]);
    check_topology(c, axes, size, ranks);
    ck_assert_int_eq(tws_config_print(c, round % 2, &once, &err), TWS_OK);
    ck_assert_msg(resolve(once.data, ranks, 0, &again) == TWS_OK, "%s", err.message);
    ck_assert_msg(memcmp(c, again, offsetof(tws_config, store)) == 0, "%s", text.data);
    ck_assert_int_eq(tws_config_print(again, round % 2, &twice, &err), TWS_OK);
    ck_assert_str_eq(once.data, twice.data);
    tws_config_destroy(again);
    for (int64_t bad = ranks - 1; model > 1 && bad <= ranks + 1; bad += 2) {
      char product[32], nearest[64];
      tws_topology topology;
      ck_assert_int_eq(tws_config_resolve(c, bad, NULL, &err), TWS_INVALID);
      snprintf(product, sizeof product, " %d ", (int)model);
      snprintf(nearest, sizeof nearest, bad < ranks ? "%d ranks" : "use %d or ", (int)ranks);
      ck_assert_msg(strstr(err.message, product) && strstr(err.hint, nearest), "%s\n%s", err.message, err.hint);
      ck_assert_msg(strncmp(err.message, "ds.json:1:", 10) == 0, "%s", err.message);
      ck_assert_int_eq(tws_plan_topology(c, (int)bad, &topology, &err), TWS_INVALID);
      refused++;
    }
    tws_config_destroy(c);
    tws_text_free(&text);
    tws_text_free(&once);
    tws_text_free(&twice);
  }
  ck_assert_int_gt(refused, ROUNDS);
}
END_TEST

/* ---- print-out and schema ---- */

static void random_config(uint64_t *index, tws_text *text) {
  int p[24];
  for (int i = 0; i < 24; i++) p[i] = (int)(tws_random_uniform(5, 5, (*index)++) * 12e6);
  static const char *const schedules[] = {
      "\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 7, \"warmup_type\": \"linear\"}",
      ("\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4, \"cycle_max_lr\": [1e-3], "
       "\"cycle_first_step_size\": 9.5}"),
      "\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 100}",
      "\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 100, \"warmup_max_lr\": null}",
      "\"type\": \"LRRangeTest\", \"params\": {}",
      "\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": 0.25}"};
  static const char *const dtypes[] = {"\"bf16\"", "\"bfloat16\"", "\"fp16\""};
  int stage = p[0] % 4, m = 1 + p[1] % 4, g = 1 + p[2] % 4;
  tws_text_add(text, "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d", m, g);
  if (p[3] % 2) tws_text_add(text, ", \"train_batch_size\": %d", 2 * m * g);
  const int masters = p[4] % 2 && p[5] % 3 < 2 && stage && p[18] % 2; /* none in float32 */
  static const char *const copies[] = {"", ", \"bf16_master_weights_and_grads\": true",
                                       ", \"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true"};
  if (p[4] % 2) tws_text_add(text, ", %s: {\"enabled\": true%s}", dtypes[p[5] % 3], copies[masters * (1 + p[19] % 2)]);
  if (p[6] % 2 && stage && !masters) tws_text_add(text, ", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}");
  static const char *const types[] = {"fp32", "BF16", "bfp16", "fp16"};
  if (p[21] % 2) tws_text_add(text, ", \"communication_data_type\": \"%s\"", types[p[21] / 2 % 4]);
  if (p[22] % 2) tws_text_add(text, ", \"seq_parallel_communication_data_type\": \"%s\"", types[p[22] / 2 % 4]);
  if (p[7] % 2) tws_text_add(text, ", \"scheduler\": {%s}", schedules[p[8] % 6]);
  tws_text_add(text, ", \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": %.17g, \"weight_decay\": 0.1%s}}",
               p[9] % 2 ? "Adam" : "adamw", p[23] * 1e-9, p[10] % 2 ? ", \"adam_w_mode\": false" : "");
  tws_text_add(
      text, ", \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": %d, \"%smax_live_parameters\": 5e8%s%s}",
      stage, 2 + 2 * p[11] % 1000000, p[12] % 2 ? "stage3_" : "", p[13] % 2 ? ", \"overlap_comm\": false" : "",
      p[14] % 2 ? ", \"stage3_model_persistence_threshold\": 9223372036854775806" : "");
  if (p[15] % 2)
    tws_text_add(text, ", \"twinspeed\": {\"recompute\": \"%s\", \"seed\": %d%s}", p[16] % 2 ? "full" : "selective",
                 p[17] % 100, p[20] % 2 ? ", \"stochastic_rounding\": false" : "");
  tws_text_add(text, "}");
}

START_TEST(printed_configurations_read_back_the_same) {
  uint64_t index = 0;
  for (int round = 0; round < 200; round++) {
    tws_text text = {0}, once = {0}, twice = {0};
    tws_config *a, *b;
    random_config(&index, &text);
    ck_assert_msg(resolve(text.data, 2, 64, &a) == TWS_OK, "%s: %s", text.data, err.message);
    int all = round % 2;
    ck_assert_int_eq(tws_config_print(a, all, &once, &err), TWS_OK);
    ck_assert_msg(resolve(once.data, 2, 64, &b) == TWS_OK, "%s: printed, then %s", text.data, err.message);
    ck_assert_int_eq(tws_config_print(b, all, &twice, &err), TWS_OK);
    size_t same = 0;
    while (once.data[same] && once.data[same] == twice.data[same]) same++;
    ck_assert_msg(!once.data[same] && !twice.data[same], "%s:\n%.60s\nagainst\n%.60s", text.data, once.data + same,
                  twice.data + same);
    ck_assert_msg(memcmp(a, b, offsetof(tws_config, store)) == 0, "%s", text.data);
    tws_config_destroy(a);
    tws_config_destroy(b);
    tws_text_free(&text);
    tws_text_free(&once);
    tws_text_free(&twice);
  }
}
END_TEST

static int count_described(const cJSON *schema) {
  int count = cJSON_HasObjectItem(schema, "description");
  if (cJSON_IsObject(cJSON_GetObjectItem(schema, "properties")))
    for (const cJSON *p = cJSON_GetObjectItem(schema, "properties")->child; p; p = p->next) count += count_described(p);
  if (cJSON_IsObject(cJSON_GetObjectItem(schema, "additionalProperties")))
    count += count_described(cJSON_GetObjectItem(schema, "additionalProperties"));
  if (cJSON_IsObject(cJSON_GetObjectItem(schema, "items")))
    count += count_described(cJSON_GetObjectItem(schema, "items"));
  return count;
}

START_TEST(schema_describes_every_key) {
  tws_text text = {0};
  tws_json *json;
  ck_assert_int_eq(tws_config_print_schema(&text, &err), TWS_OK);
  ck_assert_msg(tws_json_parse(text.data, text.length, "schema", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_str_eq(cJSON_GetObjectItem(json->root, "$schema")->valuestring,
                   "https://json-schema.org/draft/2020-12/schema");
  const cJSON *properties = cJSON_GetObjectItem(json->root, "properties");
  ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(json->root, "additionalProperties")));
  size_t aliases = 0;
  for (size_t i = 0; i < tws_key_count; i++) aliases += tws_keys[i].alias != NULL;
  const size_t twins = 5 + 2 + 7 * 2; /* keys that occur twice: those of bfloat16, of tensor_parallel.tp, and of the
                                       * groups of seven compression techniques */
  ck_assert_int_eq((size_t)count_described(json->root), tws_key_count + aliases + twins);
  const cJSON *stage = cJSON_GetObjectItem(
      cJSON_GetObjectItem(cJSON_GetObjectItem(properties, "zero_optimization"), "properties"), "stage");
  const cJSON *first = cJSON_GetObjectItem(stage, "anyOf")->child;
  ck_assert_str_eq(cJSON_GetObjectItem(first, "type")->valuestring, "integer");
  ck_assert_int_eq(cJSON_GetObjectItem(first, "maximum")->valueint, 3);
  const cJSON *order = cJSON_GetObjectItem(
      cJSON_GetObjectItem(cJSON_GetObjectItem(properties, "twinspeed"), "properties"), "axis_order");
  const cJSON *orders = cJSON_GetObjectItem(cJSON_GetObjectItem(order, "anyOf")->child, "enum");
  ck_assert_int_eq(cJSON_GetArraySize(orders), 24);
  for (const cJSON *a = orders->child; a; a = a->next)
    for (const cJSON *b = a->next; b; b = b->next) ck_assert_str_ne(a->valuestring, b->valuestring);
  tws_json_destroy(json);
  tws_text_free(&text);
}
END_TEST

/* ---- without memory ---- */

static tws_code use_everything(tws_config *c, tws_error *why) {
  tws_config *copy = NULL;
  tws_text text = {0};
  int count;
  tws_code code = tws_config_set(c, "zero_optimization", "{\"stage\": 3, \"prefetch_bucket_size\": 9}", why);
  if (code == TWS_OK) code = tws_config_clone(c, &copy, why);
  if (code == TWS_OK) code = tws_config_set(copy, "optimizer.type", "Adam", why);
  if (code == TWS_OK) code = tws_config_resolve(copy, 2, &(tws_auto_context){64}, why);
  if (code == TWS_OK) code = tws_config_print(copy, 1, &text, why);
  if (code == TWS_OK) code = tws_config_no_effect(copy, &text, &count, why);
  tws_text_free(&text);
  tws_config_destroy(copy);
  return code;
}

static tws_code load_and_use(void *user) {
  tws_json *json;
  tws_config *c;
  tws_error why = {0};
  TWS_TRY(tws_json_parse(user, strlen(user), "f", &json, &why));
  tws_code code = tws_config_from_json(json, &c, &why);
  tws_json_destroy(json);
  if (code == TWS_OK) code = use_everything(c, &why);
  tws_config_destroy(c);
  return code;
}

static tws_code print_schema(void *user) {
  (void)user;
  tws_text text = {0};
  tws_error why = {0};
  tws_code code = tws_config_print_schema(&text, &why);
  tws_text_free(&text);
  return code;
}

START_TEST(every_allocation_may_fail) {
  long bad, tried = fail_every_allocation(
                load_and_use,
                "{\"train_batch_size\": 8, \"bfloat16\": {\"enabled\": true}, \"dump_state\": true,"
                " \"zero_optimization\": {\"reduce_bucket_size\": \"auto\", \"cpu_offload\": false},"
                " \"tensor_parallel\": {\"tp\": {\"tp_size\": 2}, \"tp_overlap_comm\": true},"
                " \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, \"cycle_max_lr\": 2}}}",
                &bad);
  ck_assert_int_eq(bad, 0);
  ck_assert_int_gt(tried, 100);
}
END_TEST

START_TEST(schema_without_memory) {
  for (long n = 0; n < 400; n++) { /* the schema has too many allocations to let each of them fail */
    failing_allocator f = {.countdown = n < 200 ? n : n * 37};
    tws_set_allocator(&(tws_allocator){failing_resize, &f});
    tws_code code = print_schema(NULL);
    tws_set_allocator(NULL);
    ck_assert(f.held == 0 && (code == TWS_MEMORY || code == TWS_OK));
    if (n < 200) ck_assert_int_eq(code, TWS_MEMORY);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("config");
  TCase *all = tcase_create("all");
  tcase_set_timeout(all, 60);
  tcase_add_test(all, every_key_of_the_format_is_known);
  tcase_add_test(all, rows_hold_together);
  tcase_add_test(all, defaults_that_surprise);
  tcase_add_test(all, golden_batch_triples);
  tcase_add_test(all, golden_schedules);
  tcase_add_test(all, auto_follows_the_model);
  tcase_add_test(all, overrides_win_and_resolving_again_starts_afresh);
  tcase_add_test(all, old_forms_are_read);
  tcase_add_test(all, keys_without_effect_say_so);
  tcase_add_test(all, keys_that_need_another_say_so);
  tcase_add_test(all, tensor_ranks_have_two_places);
  tcase_add_test(all, axes_divide_the_ranks);
  tcase_add_test(all, printed_configurations_read_back_the_same);
  tcase_add_test(all, autotuning_is_read_where_it_is_given);
  tcase_add_test(all, schema_describes_every_key);
  tcase_add_test(all, every_allocation_may_fail);
  tcase_add_test(all, schema_without_memory);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
