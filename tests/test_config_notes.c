/* Configurations as people paste them, and the notes on how they are read: words of other languages, fractions of
 * counts, "auto", arguments at their defaults. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "config/autotuning.h"
#include "tests/configs.h"
#include "tests/suite.h"

/* Reads a configuration as if from a file: as JSON, or where the text is no JSON as Hjson. */
static tws_code from_file(const char *text, tws_config **out) {
  tws_json *json;
  err = (tws_error){0};
  *out = NULL;
  TWS_TRY(tws_json_parse_hjson(text, strlen(text), "ds.json", &json, &err));
  tws_code code = tws_config_from_json(json, out, &err);
  tws_json_destroy(json);
  return code;
}

/* Returns the notes of a configuration and asserts their number; the caller frees the text. */
static tws_text notes_of(const tws_config *c, int lines) {
  tws_text text = {0};
  int count;
  ck_assert_int_eq(tws_config_notes(c, &text, &count, &err), TWS_OK);
  ck_assert_msg(count == lines, "%d notes: %s", count, text.data ? text.data : "");
  return text;
}

static tws_text printed(const tws_config *c, int given) {
  tws_text text = {0};
  ck_assert_int_eq(given ? tws_config_print_given(c, 0, &text, &err) : tws_config_print(c, 0, &text, &err), TWS_OK);
  return text;
}

START_TEST(words_of_listings_and_python) {
#define ELLIPSIS "an ellipsis stands here for what was left out"
#define PYTHON(word) "unknown word \"" word "\": it is Python's"
  static const struct {
    const char *text, *message, *hint;
  } cases[] = {
      {"{\"zero_optimization\": {\n  \"stage\": 3,\n  ...\n}}", "ds.json:3:3: " ELLIPSIS, "delete it"},
      {"{\n...\n\"train_batch_size\": 8\n}", "ds.json:2:1: " ELLIPSIS, "delete it"},
      {"{\"train_batch_size\": 8\n ...}", "ds.json:2:2: " ELLIPSIS, "delete it"},
      {"{\"train_batch_size\": ...}", "ds.json:1:22: " ELLIPSIS, "delete it"},
      {"{\"elasticity\": {\"micro_batch_sizes\": [2, ...]}}", "ds.json:1:42: " ELLIPSIS, "delete it"},
      {"{\"train_batch_size\": 8,\n \xe2\x80\xa6 }", "ds.json:2:2: " ELLIPSIS, "delete it"},
      {"{\n \"train_batch_size\": 8,\n \"...\"\n \"steps_per_print\": 1}", "ds.json:3:2: " ELLIPSIS, "delete it"},
      {"zero_optimization: {\n  stage: 3\n  ...\n}", "ds.json:3:3: " ELLIPSIS, "delete it"},
      {"{zero_optimization: {stage: 3, '...'}}", "ds.json:1:32: " ELLIPSIS, "delete it"},
      {"train_batch_size: ...\n", "ds.json:1:19: " ELLIPSIS, "delete it"},
      {"{\"zero_optimization\": {\"overlap_comm\": True}}", "ds.json:1:40: " PYTHON("True"), "JSON spells it true"},
      {"{\n\"zero_optimization\": {\"overlap_comm\": False,\n\"stage\": 2}}", "ds.json:2:39: " PYTHON("False"),
       "JSON spells it false"},
      {"{\"steps_per_print\": None,\n}",
       "ds.json:1:2: \"steps_per_print\" must be an integer of at least 1, not Python's None", "JSON spells it null"},
      {"{'fp16': {'enabled': True}, 'bf16': {'enabled': False}}", "ds.json:1:22: " PYTHON("True"), "spells it true"},
      {"{'zero_optimization': {'stage': 3,\n 'offload_param': {'nvme_path': None, 'device': 'cpu'}}}",
       "ds.json:2:20: \"zero_optimization.offload_param.nvme_path\" must be a string, not Python's None",
       "spells it null"},
      {"{\"fp16\": {\n\"enabled\": False\n},\n\"wall_clock_breakdown\": False\n}",
       "\"wall_clock_breakdown\" must be true or false, not Python's False", "JSON spells it false"},
      {"{\"dump_state\": \"None\"}", "\"dump_state\" must be true or false", "JSON spells it null"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_config *c;
    ck_assert_msg(from_file(cases[i].text, &c) == TWS_INVALID, "%s", cases[i].text);
    ck_assert_msg(strstr(err.message, cases[i].message) && strstr(err.hint, cases[i].hint), "%s:\n%s\n%s",
                  cases[i].text, err.message, err.hint);
  }
  static const char *const taken[] = {"{\"fp16\": {\n\"enabled\": True\n}}", /* as DeepSpeed reads Hjson */
                                      "{\"datasets\": {\"...\": \"...\"}}", "{datasets: ...and others\n}"};
  tws_config *c;
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
    ck_assert_msg(from_file(taken[i], &c) == TWS_OK, "%s: %s", taken[i], err.message);
    ck_assert_int_eq(c->dtype, i == 0 ? TWS_F16 : TWS_F32);
    tws_config_destroy(c);
  }
  ck_assert_int_eq(from_file("{\"sparse_attention\": {\n \"global_block_end_indices\": None,\n \"block\": 16}}", &c),
                   TWS_OK);
  tws_text notes = notes_of(c, 1);
  ck_assert_str_eq(notes.data,
                   "ds.json:2:2: \"sparse_attention.global_block_end_indices\" is None, which is Python's: "
                   "JSON spells it null\n");
  tws_text_free(&notes);
  tws_config_destroy(c);
}
END_TEST

/* Fractions of counts are rounded down, because users write this size as 0.9 x hidden^2. */
START_TEST(fractions_of_counts_are_rounded) {
  static const char text[] =
      "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3,\n \"stage3_prefetch_bucket_size\": 3774873.6,\n"
      " \"sub_group_size\": 1e9, \"stage3_max_live_parameters\": 1.5, \"allgather_bucket_size\": 2.25}}";
  tws_config *c;
  ck_assert_msg(resolve(text, 1, 0, &c) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(c->zero.prefetch_bucket_size, 3774873); /* int(0.9 * 2048 * 2048), which is also the value of
                                                            * "auto" */
  ck_assert_int_eq(c->zero.max_live_parameters, 1);
  tws_text notes = notes_of(c, 3);
  ck_assert_ptr_nonnull(
      strstr(notes.data, "ds.json:2:2: \"zero_optimization.stage3_prefetch_bucket_size\" is 3774873.6"));
  ck_assert_ptr_nonnull(strstr(notes.data, "rounded down to 3774873\n"));
  tws_text_free(&notes);
  for (int given = 0; given < 2; given++) { /* the printed configuration has no fraction, because other programs refuse
                                             * one */
    tws_text out = printed(c, given);
    ck_assert_msg(strstr(out.data, "\"stage3_prefetch_bucket_size\": 3774873,"), "%s", out.data);
    ck_assert_msg(strstr(out.data, "\"allgather_bucket_size\": 2\n") || strstr(out.data, "_size\": 2,"), "%s",
                  out.data);
    tws_text_free(&out);
  }
  tws_config_destroy(c);
  c = config_of("{}");
  ck_assert_int_eq(tws_config_set(c, "zero_optimization.reduce_bucket_size", "943718.4", &err), TWS_OK);
  ck_assert_int_eq(c->zero.reduce_bucket_size, 943718);
  notes = notes_of(c, 1);
  ck_assert_ptr_nonnull(strstr(notes.data, "command line: \"zero_optimization.reduce_bucket_size\" is 943718"));
  tws_text_free(&notes);
  tws_config_destroy(c);
  /* Fractions of other numbers are refused, and so are limits out of range. */
  static const char *const refused[] = {"{\"train_micro_batch_size_per_gpu\": 1.5}",
                                        "{\"zero_optimization\": {\"stage\": 2.5}}",
                                        "{\"zero_optimization\": {\"reduce_bucket_size\": 0.5}}",
                                        "{\"zero_optimization\": {\"stage3_max_live_parameters\": -0.5}}",
                                        "{\"zero_optimization\": {\"sub_group_size\": 1.5e300}}"};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    ck_assert_msg(from_text(refused[i], &c) == TWS_INVALID, "%s", refused[i]);
}
END_TEST

/* Arguments of optimizers that DeepSpeed's manual lists are accepted without a note where they have their documented
 * defaults. */
START_TEST(documented_arguments_at_their_defaults) {
#define PARAMS(type, params) \
  "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"" type "\", \"params\": {" params "}}}"
  static const char *const taken[] = {
      PARAMS("FusedAdam", "\"amsgrad\": false, \"set_grad_none\": true, \"adam_w_mode\": true"),
      PARAMS("DeepSpeedCPUAdam", "\"amsgrad\": false, \"adamw_mode\": true, \"fp32_optimizer_states\": true"),
      PARAMS("FusedLamb", "\"amsgrad\": false, \"eps_inside_sqrt\": false"),
      PARAMS("FusedLion", "\"set_grad_none\": true"),
      PARAMS("DeepSpeedCPUAdagrad", "\"amsgrad\": false"),
      PARAMS("Adafactor",
             "\"lr\": 0.01, \"beta2_decay\": -0.8, \"eps\": [null, 0.001], \"d\": 1.0, \"weight_decay\": 0.0")};
  tws_config *c;
  tws_text text = {0};
  int count;
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
    ck_assert_msg(resolve(taken[i], 1, 0, &c) == TWS_OK, "%s: %s", taken[i], err.message);
    ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
    ck_assert_msg(count == 0, "%s: %s", taken[i], text.data);
    tws_config_destroy(c);
  }
  /* adamw_mode is adam_w_mode: read, printed and set under that name, and not given twice. */
  c = config_of(PARAMS("Adam", "\"adamw_mode\": false"));
  ck_assert_int_eq(c->adam_w_mode, 0);
  text = printed(c, 1);
  ck_assert_msg(strstr(text.data, "\"adam_w_mode\": false") && !strstr(text.data, "adamw_mode"), "%s", text.data);
  tws_text_free(&text);
  ck_assert_int_eq(tws_config_set(c, "optimizer.params.adamw_mode", "true", &err), TWS_OK);
  ck_assert_int_eq(c->adam_w_mode, 1);
  tws_config_destroy(c);
  ck_assert_int_eq(from_text(PARAMS("Adam", "\"adamw_mode\": false, \"adam_w_mode\": false"), &c), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "given twice: \"optimizer.params.adamw_mode\""));
  /* Adafactor's two epsilons are printed, and read back as the same numbers. */
  c = config_of(PARAMS("Adafactor", "\"eps\": [null, 0.02], \"d\": 2, \"beta2_decay\": -0.5"));
  ck_assert_double_eq(c->epsilon, 1.1920928955078125e-7);
  ck_assert(c->scale_epsilon == 0.02 && c->rms_limit == 2 && c->beta2_decay == -0.5);
  text = printed(c, 0);
  tws_config_destroy(c);
  c = config_of(text.data);
  ck_assert(c->epsilon == 1.1920928955078125e-7 && c->scale_epsilon == 0.02 && c->rms_limit == 2 &&
            c->beta2_decay == -0.5);
  tws_text_free(&text);
  tws_config_destroy(c);
  ck_assert_int_eq(resolve(PARAMS("Adam", "\"amsgrad\": true"), 1, 0, &c), TWS_UNSUPPORTED);
  ck_assert_ptr_nonnull(strstr(err.message, "Adam with amsgrad is not supported"));
  ck_assert_int_eq(resolve(PARAMS("Lion", "\"amsgrad\": false"), 1, 0, &c), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "Lion takes no \"amsgrad\""));
  ck_assert_int_eq(from_text(PARAMS("Lion", "\"quite_something_else\": 1"), &c), TWS_INVALID);
  ck_assert_str_eq(err.hint, "Lion takes lr, weight_decay, betas, fp32_optimizer_states, set_grad_none");
  c = config_of(PARAMS("Adam", "\"set_grad_none\": false"));
  ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
  ck_assert_msg(count == 1 && strstr(text.data, "every step overwrites gradients"), "%s", text.data);
  tws_text_free(&text);
  tws_config_destroy(c);
  /* The manual's spelling. */
  ck_assert_msg(resolve("{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 2000, \"micro_batch_sizes\": "
                        "[2, 4, 6], \"version\": 0.1, \"prefer_large_batch\": false}}",
                        2, 0, &c) == TWS_OK,
                "%s", err.message);
  const int64_t smaller = c->train_batch_size;
  ck_assert_int_eq(tws_config_set(c, "elasticity.prefer_large_batch", "true", &err), TWS_OK);
  ck_assert_int_eq(tws_config_resolve(c, 2, NULL, &err), TWS_OK);
  ck_assert_msg(smaller <= c->train_batch_size, "%lld", (long long)smaller);
  tws_config_destroy(c);
}
END_TEST

/* Elasticity's choice is refused where model_parallel_size differs from the division of ranks, and its memory is freed
 * (LeakSanitizer). */
START_TEST(elasticity_of_other_divisions) {
  static const char text[] =
      "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 64, \"micro_batch_sizes\": [2, 4], "
      "\"num_gpus_per_node\": 4, \"model_parallel_size\": 2, \"version\": 0.2}}";
  tws_config *c;
  int64_t micro = 0, accumulation = 0;
  ck_assert_int_eq(resolve(text, 8, 0, &c), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "elasticity.model_parallel_size is 2, and 8 ranks are 8 replicas"));
  c = config_of(text);
  ck_assert_int_eq(tws_config_elastic_batch(c, 8, 8, &micro, &accumulation, &err), TWS_INVALID);
  ck_assert_msg(tws_config_elastic_batch(c, 8, 4, &micro, &accumulation, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_config_set(c, "tensor_parallel.autotp_size", "2", &err), TWS_OK);
  ck_assert_msg(tws_config_resolve(c, 8, NULL, &err) == TWS_OK, "%s", err.message);
  ck_assert(c->micro_batch_size == micro && c->accumulation_steps == accumulation && micro > 0);
  tws_text out = printed(c, 0); /* the print-out reads back and gives the same choice */
  tws_config *again = config_of(out.data);
  ck_assert_msg(tws_config_resolve(again, 8, NULL, &err) == TWS_OK, "%s", err.message);
  ck_assert(again->train_batch_size == c->train_batch_size && again->micro_batch_size == micro);
  tws_config_destroy(again);
  tws_text_free(&out);
  tws_config_destroy(c);
}
END_TEST

START_TEST(amp_auto_is_off) {
  tws_config *c;
  tws_text text = {0};
  int count;
  ck_assert_msg(resolve("{\"train_batch_size\": 8, \"amp\": {\"enabled\": \"auto\", \"opt_level\": \"auto\"}, "
                        "\"zero_optimization\": {\"stage\": 2}}",
                        1, 0, &c) == TWS_OK,
                "%s", err.message);
  ck_assert_int_eq(c->dtype, TWS_F32);
  ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
  ck_assert_msg(count == 0, "%s", text.data);
  text = notes_of(c, 1);
  ck_assert_str_eq(text.data, "\"auto\" is taken as: amp.enabled false\n");
  tws_text_free(&text);
  text = printed(c, 0);
  ck_assert_msg(strstr(text.data, "\"amp\": {\n    \"enabled\": false\n  }"), "%s", text.data);
  tws_text_free(&text);
  tws_config_destroy(c);
  ck_assert_int_eq(resolve("{\"train_batch_size\": 8, \"amp\": {\"enabled\": true}}", 1, 0, &c), TWS_UNSUPPORTED);
}
END_TEST

/* Returns the notes on keys and sections without effect, and asserts their number; the caller frees the text. */
static tws_text idle_of(const char *json, int lines) {
  tws_config *c = config_of(json);
  tws_text text = {0};
  int count;
  ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
  ck_assert_msg(count == lines, "%s: %d, not %d: %s", json, count, lines, text.data ? text.data : "");
  tws_config_destroy(c);
  return text;
}

/* DeepSpeed switches features on where their sections are present, whatever keys they have; the notes say so. */
START_TEST(sections_that_are_switches) {
  static const struct {
    const char *text;
    int lines;
    const char *says; /* NULL: nothing */
  } cases[] = {
      {"{\n \"sparse_attention\": {\"mode\": \"fixed\", \"block\": 16, \"num_local_blocks\": 4}}", 1,
       "ds.json:2:2: \"sparse_attention\" has no effect, though the section alone switches it on: Twinspeed does not"},
      {"{\"sparse_attention\": {}}", 1, "ds.json:1:2: \"sparse_attention\" has no effect"},
      {"{\"sparse_attention\": {\"block\": 32}}", 1, "\"sparse_attention.block\" has no effect: "},
      {"{\"comms_logger\": {}}", 0, NULL}, /* the section alone enables the log */
      {"{\"comms_logger\": {\"enabled\": true, \"verbose\": false, \"prof_all\": false, \"debug\": false,\n"
       " \"prof_ops\": [\"all_reduce\", \"all_gather\"]}}",
       0, NULL},
      {"{\"checkpoint\": {\"writer\": {\"type\": \"FAST\"}}}", 1, "ds.json:1:17: \"checkpoint.writer\" has no effect"},
      {"{\"checkpoint\": {\"tag_validation\": \"WARN\"}}", 0, NULL},
      {"{\"tensorboard\": {\"enabled\": false, \"output_path\": \"there\"}}", 0, NULL},
      {"{ \"train_batch_size\": 8, \"wall_clock_breakdown\": true,\n" /* of DeepSpeed's documentation */
       " \"tensorboard\": {\"enabled\": true, \"output_path\": \"\", \"job_name\": \"DeepSpeedJobName\"},\n"
       " \"wandb\": {\"enabled\": true, \"group\": null, \"team\": null, \"project\": \"deepspeed\"},\n"
       " \"csv_monitor\": {\"enabled\": true, \"output_path\": \"\", \"job_name\": \"DeepSpeedJobName\"}}",
       0, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_text text = idle_of(cases[i].text, cases[i].lines);
    if (cases[i].says) ck_assert_msg(strstr(text.data, cases[i].says) != NULL, "%s: %s", cases[i].text, text.data);
    tws_text_free(&text);
  }
  tws_config *c = config_of("{}");
  tws_text text = {0};
  int count;
  ck_assert_int_eq(tws_config_set(c, "sparse_attention.mode", "fixed", &err), TWS_OK);
  ck_assert_int_eq(tws_config_no_effect(c, &text, &count, &err), TWS_OK);
  ck_assert_msg(count == 1 && strncmp(text.data, "command line: \"sparse_attention\" has no effect", 45) == 0, "%s",
                text.data);
  tws_text_free(&text);
  tws_config_destroy(c);
}
END_TEST

/* Keys with a condition: there is a note where the condition is not met, and none where the key is "auto" or has its
 * default, or the condition is met. */
START_TEST(conditions_that_are_not_met) {
#define ZERO(stage, more) "\"zero_optimization\": {\"stage\": " stage ", " more "}"
#define WITH_OFFLOAD ", \"offload_optimizer\": {\"device\": \"cpu\"}"
#define ONE_CYCLE(more) \
  "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4, \"cycle_max_lr\": 1e-3, " more "}}"
  static const struct {
    const char *unmet, *reason, *met;
  } cases[] = {
      {ZERO("2", "\"stage3_max_live_parameters\": 1e8"), "\" has no effect: it needs ZeRO stage 3",
       ZERO("3", "\"stage3_max_live_parameters\": 1e8")},
      {ZERO("0", "\"stage3_prefetch_bucket_size\": 1000"), "it needs ZeRO stage 3",
       ZERO("2", "\"stage3_prefetch_bucket_size\": \"auto\"")},
      {ZERO("1", "\"stage3_param_persistence_threshold\": 7"), "it needs ZeRO stage 3",
       ZERO("1", "\"stage3_param_persistence_threshold\": 1e5")},
      {ZERO("2", "\"stage3_model_persistence_threshold\": 7"), "stage 3",
       ZERO("3", "\"stage3_model_persistence_threshold\": 7")},
      {ZERO("2", "\"stage3_max_reuse_distance\": 7"), "stage 3", ZERO("3", "\"stage3_max_reuse_distance\": 7")},
      {ZERO("2", "\"stage3_allgather_sequential\": true"), "stage 3",
       ZERO("3", "\"stage3_allgather_sequential\": true")},
      {ZERO("2", "\"sub_group_size\": 1e8"), "it needs ZeRO stage 3, or an optimizer that is offloaded",
       ZERO("2", "\"sub_group_size\": 1e8" WITH_OFFLOAD)},
      {ZERO("3", "\"round_robin_gradients\": true"), "it needs ZeRO stage 1 or 2",
       ZERO("1", "\"round_robin_gradients\": true")},
      {ZERO("0", "\"round_robin_gradients\": true"), "it needs ZeRO stage 1 or 2",
       ZERO("0", "\"round_robin_gradients\": false")},
      {ZERO("0", "\"reduce_bucket_size\": 1e6"), "it needs ZeRO stage 1, 2 or 3",
       ZERO("1", "\"reduce_bucket_size\": 1e6")},
      {ZERO("0", "\"overlap_comm\": true"), "it needs ZeRO stage 1, 2 or 3", ZERO("0", "\"overlap_comm\": false")},
      {ZERO("1", "\"overlap_comm\": true") ", \"pipeline\": {\"stages\": 2}", "after its micro-batches",
       ZERO("1", "\"overlap_comm\": true")},
      {ZERO("2", "\"reduce_scatter\": false"), "unless use_multi_rank_bucket_allreduce is false",
       ZERO("3", "\"reduce_scatter\": false")},
      {ZERO("3", "\"use_multi_rank_bucket_allreduce\": false"), "it needs ZeRO stage 1 or 2",
       ZERO("2", "\"use_multi_rank_bucket_allreduce\": false")},
      {"\"fp16\": {\"enabled\": false, \"loss_scale\": 128}",
       "\"fp16.loss_scale\" has no effect: it needs fp16.enabled",
       "\"fp16\": {\"enabled\": true, \"loss_scale\": 128}"},
      {"\"fp16\": {\"enabled\": \"auto\", \"initial_scale_power\": 32}", "it needs fp16.enabled",
       "\"fp16\": {\"enabled\": \"auto\", \"initial_scale_power\": 16, \"loss_scale\": \"auto\"}"},
      {"\"fp16\": {\"enabled\": true, \"loss_scale\": 128, \"hysteresis\": 4}", "fp16.loss_scale is fixed",
       "\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"hysteresis\": 4}"},
      {"\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}", "optimizer.type Adam reads it",
       "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}"},
      {ONE_CYCLE("\"decay_lr_rate\": 0.1"), "it needs scheduler.params.decay_step_size",
       ONE_CYCLE("\"decay_lr_rate\": 0.1, \"decay_step_size\": 5")},
      {ONE_CYCLE("\"cycle_momentum\": false, \"cycle_min_mom\": 0.7"), "it needs scheduler.params.cycle_momentum",
       ONE_CYCLE("\"cycle_min_mom\": 0.7")},
      {"\"pipeline\": {\"stages\": 2, \"pipe_partitioned\": false}", "pipeline.stages and tensor_parallel.autotp_size",
       "\"tensor_parallel\": {\"autotp_size\": 2}, \"pipeline\": {\"stages\": 2, \"pipe_partitioned\": false}"},
      {"\"pipeline\": {\"grad_partitioned\": false}", "above 1", "\"pipeline\": {\"grad_partitioned\": true}"},
      {"\"flops_profiler\": {\"profile_step\": 5}", "it needs flops_profiler.enabled",
       "\"flops_profiler\": {\"enabled\": true, \"profile_step\": 5}"},
      {"\"use_data_before_expert_parallelism\": true", "it needs twinspeed.expert_parallel_size above 1",
       "\"use_data_before_expert_parallelism\": true, \"twinspeed\": {\"expert_parallel_size\": 2}"},
      {"\"elasticity\": {\"max_train_batch_size\": 16}", "it needs elasticity.enabled",
       "\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 16}"},
      {"\"twinspeed\": {\"recompute\": \"full\", \"recompute_budget\": 0.25}",
       "it needs twinspeed.recompute operations",
       "\"twinspeed\": {\"recompute\": \"operations\", \"recompute_budget\": 0.25}"},
      {"\"twinspeed\": {\"recompute_every\": 2}", "it needs twinspeed.recompute",
       "\"twinspeed\": {\"recompute_every\": 2, \"recompute\": \"full\"}"},
      {"\"twinspeed\": {\"expert_bound\": 3}", "it needs twinspeed.expert_dropless",
       "\"twinspeed\": {\"expert_bound\": 3, \"expert_dropless\": true}"},
      {"\"twinspeed\": {\"expert_capacity_factor\": 2, \"expert_dropless\": true}", "drops nothing",
       "\"twinspeed\": {\"expert_capacity_factor\": 2}"},
      {"\"twinspeed\": {\"lora\": {\"lora_alpha\": 16}}", "it needs twinspeed.lora.r",
       "\"twinspeed\": {\"lora\": {\"r\": 4, \"lora_alpha\": 16}}"},
      {"\"twinspeed\": {\"frozen_quantization\": {\"block_size\": 128}}", "frozen_quantization.type",
       "\"twinspeed\": {\"frozen_quantization\": {\"type\": \"int8\", \"block_size\": 128}}"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[400];
    snprintf(text, sizeof text, "{%s}", cases[i].unmet);
    tws_text idle = idle_of(text, 1);
    ck_assert_msg(strstr(idle.data, cases[i].reason) != NULL, "%s: %s", text, idle.data);
    tws_text_free(&idle);
    snprintf(text, sizeof text, "{%s}", cases[i].met);
    idle = idle_of(text, 0);
    tws_text_free(&idle);
  }
}
END_TEST

/* The reason why a key has no effect names the verb, flag or key that has its effect here. */
START_TEST(reasons_name_what_does_it_here) {
  static const struct {
    const char *text, *path, *reason;
  } cases[] = {
      {"\"checkpoint\": {\"load_universal\": true}", "checkpoint.load_universal",
       "twinspeed train --resume continues its own checkpoints at any number of ranks; of DeepSpeed's, universal ones "
       "too, twinspeed convert checkpoint makes a file of weights for --init-from"},
      {"\"zero_optimization\": {\"stage\": 3, \"stage3_gather_16bit_weights_on_model_save\": true}",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save",
       "twinspeed convert checkpoint writes the whole weights of a checkpoint"},
      {"\"zero_optimization\": {\"elastic_checkpoint\": true}", "zero_optimization.elastic_checkpoint",
       "twinspeed train --resume continues a checkpoint at any number of ranks"},
      {"\"checkpoint\": {\"use_node_local_storage\": true}", "checkpoint.use_node_local_storage",
       "twinspeed train --save writes one folder"},
      {"\"checkpoint\": {\"tag_validation\": \"FAIL\"}", "checkpoint.tag_validation",
       "twinspeed train --save and --resume"},
      {"\"hybrid_engine\": {\"enabled\": true}", "hybrid_engine.enabled", "the verb generate makes text"},
      {"\"weight_quantization\": {}", "weight_quantization", "the verb generate takes weights as they are stored"},
      {"\"quantize_training\": {\"enabled\": true}", "quantize_training.enabled",
       "quantize_training (MoQ) is not there yet: results are those without it"},
      {"\"autotuning\": {\"enabled\": true}", "autotuning.enabled",
       "the verb tune is the search, and reads this section whatever enabled says"},
      {"\"comet\": {\"enabled\": true, \"api_key\": \"k\"}", "comet.api_key",
       "nothing is sent from here: comet upload sends the archive"},
      {"\"comet\": {\"enabled\": true, \"online\": true}", "comet.online",
       "nothing is sent from here: comet upload sends the archive"},
      {"\"memory_breakdown\": true", "memory_breakdown", "the verb estimate says what holds memory"},
      {"\"expert_parallel\": {\"enabled\": true}", "expert_parallel.enabled",
       "ranks that share experts are set by twinspeed.expert_parallel_size (--ep)"},
      {"\"pipeline\": {\"activation_checkpoint_interval\": 1}", "pipeline.activation_checkpoint_interval",
       "recomputation is set by twinspeed.recompute"},
      {"\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"last_batch_iteration\": 5}}",
       "scheduler.params.last_batch_iteration", "twinspeed train --resume continues the schedule"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[200], says[400];
    snprintf(text, sizeof text, "{%s}", cases[i].text);
    snprintf(says, sizeof says, "\"%s\" has no effect: %s", cases[i].path, cases[i].reason);
    tws_text idle = idle_of(text, 1);
    ck_assert_msg(strstr(idle.data, says) != NULL, "%s: %s", text, idle.data);
    tws_text_free(&idle);
  }
  /* The section of DeepSpeed's tutorial: each note says that the key has no effect, and none that DeepSpeed does not
   * read it. */
  tws_text idle = idle_of(
      "{\"quantize_training\": {\"enabled\": true, \"quantizer_kernel\": true, \"quantize-algo\": "
      "{\"q_type\": \"asymmetric\"}, \"quantize_bits\": {\"start_bits\": 12, \"target_bits\": 4}, "
      "\"quantize_schedule\": {\"quantize_period\": 50, \"schedule_offset\": 0}}}",
      7);
  ck_assert_ptr_null(strstr(idle.data, "unknown key"));
  tws_text_free(&idle);
  /* The verb tune prints no notes on keys that it reads. */
  ck_assert(
      tws_autotuning_is_read("x: \"autotuning.enabled\" has no effect: the verb tune is the search, and reads this "
                             "section whatever enabled says"));
  ck_assert(
      !tws_autotuning_is_read("x: \"autotuning.mp_size\" has no effect: the verb tune takes model-parallel ranks"));
}
END_TEST

/* The values of a parameter group equal those of a configuration that gives them to all parameters, with each
 * schedule. */
START_TEST(param_groups_have_values_of_their_own) {
  static const char *const schedules[] = {
      "OneCycle\", \"params\": {\"cycle_min_lr\": %s, \"cycle_max_lr\": %s, \"cycle_first_step_size\": 5",
      "WarmupLR\", \"params\": {\"warmup_min_lr\": %s, \"warmup_max_lr\": %s, \"warmup_num_steps\": 5",
      "LRRangeTest\", \"params\": {\"lr_range_test_min_lr\": %s, \"lr_range_test_step_rate\": 2",
      "WarmupCosineLR\", \"params\": {\"total_num_steps\": 20, \"warmup_num_steps\": 5"};
  static const char *const values[][4] = {{"[0.1, 0.2]", "[0.5, 0.9]", "0.01",
                                           ", \"param_groups\": [{\"params\": \"*.bias\", "
                                           "\"lr\": 0.03, \"weight_decay\": 0, \"betas\": [0.5, 0.6], \"eps\": 1}]"},
                                          {"0.1", "0.5", "0.01", ""},
                                          {"0.2", "0.9", "0.03", ""}};
  for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
    tws_config *c[3], own;
    for (int v = 0; v < 3; v++) {
      char text[1024], schedule[256];
      snprintf(schedule, sizeof schedule, schedules[i], values[v][0], values[v][1]);
      snprintf(text, sizeof text,
               "{\"train_batch_size\": 1, \"optimizer\": {\"params\": {\"lr\": %s, \"weight_decay\": 0.1}%s}, "
               "\"scheduler\": {\"type\": \"%s}}}",
               values[v][2], values[v][3], schedule);
      ck_assert_msg(resolve(text, 1, 0, &c[v]) == TWS_OK, "%s: %s", text, err.message);
    }
    ck_assert_int_eq(tws_config_param_groups(c[0]), 2);
    for (int group = 0; group < 2; group++) {
      tws_config_of_param_group(c[0], group, &own);
      for (int64_t k = 0; k < 25; k++) ck_assert_double_eq(tws_config_lr(&own, k), tws_config_lr(c[1 + group], k));
      ck_assert(own.weight_decay == (group ? 0 : 0.1) && own.epsilon == (group ? 1 : 1e-8));
      ck_assert(own.beta1 == (group ? 0.5 : 0.9) && own.beta2 == (group ? 0.6 : 0.999));
    }
    tws_text printed = {0};
    tws_config *again;
    uint64_t print[2];
    ck_assert_int_eq(tws_config_print(c[0], 0, &printed, &err), TWS_OK);
    ck_assert_msg(resolve(printed.data, 1, 0, &again) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(tws_config_fingerprint(c[0], &print[0], &err), TWS_OK);
    ck_assert_int_eq(tws_config_fingerprint(again, &print[1], &err), TWS_OK);
    ck_assert_uint_eq(print[0], print[1]);
    ck_assert_int_eq(tws_config_fingerprint(c[1], &print[1], &err), TWS_OK);
    ck_assert_uint_ne(print[0], print[1]);
    tws_text_free(&printed);
    tws_config_destroy(again);
    for (int v = 0; v < 3; v++) tws_config_destroy(c[v]);
  }
}
END_TEST

/* A list of groups in optimizer.params means param_groups and params; on the command line it replaces the file's
 * list. */
START_TEST(params_as_a_list) {
  static const char *const texts[] = {
      "{\"params\": {\"lr\": 0.5, \"betas\": [0.8, 0.9]}, \"param_groups\": [{\"params\": \"*.bias\", \"lr\": 3}, "
      "{\"params\": "
      "[\"*.wte.*\"], \"lr\": 4}]}",
      "{\"params\": [{\"params\": \"*.bias\", \"lr\": 3}, {\"lr\": 0.5, \"betas\": [0.8, 0.9]}, {\"params\": "
      "[\"*.wte.*\"], \"lr\": "
      "4}]}",
      ("{\"params\": {\"lr\": 0.5}, \"param_groups\": [{\"params\": \"*\", \"lr\": 9}, {\"params\": "
       "\"*.bias\", \"lr\": 8}]}")};
  uint64_t prints[4];
  tws_config *c[3];
  for (int i = 0; i < 3; i++) {
    char text[512];
    snprintf(text, sizeof text, "{\"train_batch_size\": 1, \"optimizer\": %s}", texts[i]);
    ck_assert_msg(resolve(text, 1, 0, &c[i]) == TWS_OK, "%s: %s", text, err.message);
    ck_assert_int_eq(tws_config_fingerprint(c[i], &prints[i], &err), TWS_OK);
  }
  ck_assert_uint_eq(prints[0], prints[1]);
  ck_assert_uint_ne(prints[0], prints[2]);
  const char *list = strstr(texts[1], "[");
  char value[300];
  snprintf(value, sizeof value, "%.*s", (int)strlen(list) - 1, list);
  ck_assert_msg(tws_config_set(c[2], "optimizer.params", value, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_config_resolve(c[2], 1, NULL, &err), TWS_OK);
  ck_assert_int_eq(tws_config_fingerprint(c[2], &prints[3], &err), TWS_OK);
  ck_assert_uint_eq(prints[3], prints[0]);
  tws_text notes = {0};
  int count;
  ck_assert_int_eq(tws_config_notes(c[2], &notes, &count, &err), TWS_OK);
  ck_assert_int_eq(count, 0);
  tws_text_free(&notes);
  ck_assert_int_eq(tws_config_set(c[2], "optimizer.params", "[{}, {}]", &err), TWS_INVALID);
  for (int i = 0; i < 3; i++) tws_config_destroy(c[i]);
}
END_TEST

/* Muon has two groups for each set of parameters, of which the first is the matrices. */
START_TEST(groups_of_muon) {
  static const struct {
    const char *params;
    double muon, adam;
  } cases[] = {{"", 0.02, 3e-4},
               {"\"lr\": 0.5", 0.5, 0.5},
               {"\"lr\": 0.5, \"muon_lr\": 0.1", 0.1, 0.5},
               {"\"muon_lr\": 0, \"adam_lr\": 0.2", 0, 0.2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_config *c, own;
    char text[512];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Muon\", \"params\": {%s}, "
             "\"param_groups\": [{\"params\": \"*.mlp.*\", \"lr\": 0.7}]}}",
             cases[i].params);
    ck_assert_msg(resolve(text, 1, 0, &c) == TWS_OK, "%s: %s", text, err.message);
    ck_assert_int_eq(tws_config_param_groups(c), 4);
    for (int group = 0; group < 4; group++) {
      tws_config_of_param_group(c, group, &own);
      ck_assert_double_eq(own.lr, group >= 2 ? 0.7 : group ? cases[i].adam : cases[i].muon);
      ck_assert_int_eq(tws_config_is_muon_group(c, group), group % 2 == 0);
      ck_assert(own.momentum == 0.95 && own.beta1 == 0.9 && own.beta2 == 0.95 && own.epsilon == 1e-10);
    }
    tws_config_destroy(c);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("config_notes");
  TCase *tests = tcase_create("config_notes");
  tcase_add_test(tests, words_of_listings_and_python);
  tcase_add_test(tests, param_groups_have_values_of_their_own);
  tcase_add_test(tests, params_as_a_list);
  tcase_add_test(tests, groups_of_muon);
  tcase_add_test(tests, fractions_of_counts_are_rounded);
  tcase_add_test(tests, documented_arguments_at_their_defaults);
  tcase_add_test(tests, elasticity_of_other_divisions);
  tcase_add_test(tests, amp_auto_is_off);
  tcase_add_test(tests, sections_that_are_switches);
  tcase_add_test(tests, conditions_that_are_not_met);
  tcase_add_test(tests, reasons_name_what_does_it_here);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
