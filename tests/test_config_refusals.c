/* Configurations that are refused: the error gives the place, the reason and the remedy. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tests/configs.h"
#include "tests/suite.h"

typedef struct refusal {
  const char *text;
  tws_code code;
  const char *message, *hint;
} refusal;

START_TEST(bad_files) {
  static const refusal cases[] = {
      {"", TWS_INVALID, "ds.json:1:1: ", "{}"},
      {"[]", TWS_INVALID, "ds.json:1:1: a configuration is one object", ""},
      {"null", TWS_INVALID, "ds.json:1:1: a configuration is one object", ""},
      {"\"text\"", TWS_INVALID, "ds.json:1:1: a configuration is one object", ""},
      {"{\"trian_batch_size\": 1}", TWS_INVALID, "ds.json:1:2: unknown key \"trian_batch_size\"",
       "\"train_batch_size\""},
      {"{\n \"zero_optimization\": {\n  \"stge\": 3}}", TWS_INVALID, "ds.json:3:3: unknown key",
       "\"zero_optimization.stage\""},
      {"{\"zero_optimization.stage\": 3}", TWS_INVALID, "unknown key", "object inside an object"},
      {"{\"zero_optimization\": {\"offload_optimizer\": {\"devise\": \"cpu\"}}}", TWS_INVALID, "unknown key",
       "offload_optimizer.device"},
      {"{\"optimizer\": {\"params\": {\"max_grad_norm\": 1}}}", TWS_INVALID, "unknown key", "gradient_clipping"},
      {"{\"optimizer\": {\"params\": {\"learning_rate\": 1}}}", TWS_INVALID, "unknown key", "lr"},
      {"{\"tensor_parallel\": {\"partition_config\": {\"layer_specs\": [{\"pattern\": []}]}}}", TWS_INVALID,
       "unknown key", "patterns"},
      {"{\"tensor_parallel\": {\"partition_config\": {\"layer_specs\": [3]}}}", TWS_INVALID, "objects are expected",
       ""},
      {"{\"zero_optimization\": {\"quite_something_else\": 3}}", TWS_INVALID, "unknown key", "known here: stage"},
      {"{\"twinspeed\": {\"quite_something_else\": 3}}", TWS_INVALID, "unknown key", "known here:"},
      {"{\"zero_optimization\": {\"\": 1}}", TWS_INVALID, "unknown key \"zero_optimization.\"", ""},
      {"{\"train_batchsize\": 8}", TWS_INVALID, "unknown key", "\"train_batch_size\""},
      {"{\"wall_clock_breakdwon\": false}", TWS_INVALID, "unknown key", "\"wall_clock_breakdown\""},
      {"{\"fp16\": null}", TWS_INVALID, "an object is expected for \"fp16\"", "DeepSpeed refuses null"},
      {"{\"zero_optimization\": null}", TWS_INVALID, "an object is expected for", "leave it out"},
      {"{\"optimizer\": null}", TWS_INVALID, "an object is expected for", ""},
      {"{\"bf16\": {\"enabled\": \"maybe\"}}", TWS_INVALID, "must be true or false, not the string", "quotes"},
      {"{\"bf16\": {\"enabled\": 2}}", TWS_INVALID, "must be true or false, not 2", ""},
      {"{\"zero_optimization\": {\"stage\": \"4\"}}", TWS_INVALID, "from 0 to 3, not", ""},
      {"{\"zero_optimization\": {\"reduce_bucket_size\": \"5e8\"}}", TWS_INVALID, "not the string", "quotes"},
      {"{\"wall_clock_breakdown\": \"no\"}", TWS_INVALID, "must be true or false", "quotes"},
      {"{\"fp16\": 3}", TWS_INVALID, "an object is expected for \"fp16\"", ""},
      {"{\"fp16\": []}", TWS_INVALID, "an object is expected for \"fp16\"", ""},
      {"{\"train_batch_size\": -4}", TWS_INVALID, "at least 1, not -4", ""},
      {"{\"train_batch_size\": 0}", TWS_INVALID, "at least 1, not 0", ""},
      {"{\"train_batch_size\": 1.5}", TWS_INVALID, "must be an integer", ""},
      {"{\"train_batch_size\": 1e30}", TWS_INVALID, "must be an integer from 1 to", ""},
      {"{\"train_batch_size\": 1e400}", TWS_INVALID, "overflows", ""},
      {"{\"train_batch_size\": \"8\"}", TWS_INVALID, "must be an integer", "quotes"},
      {"{\"train_batch_size\": 8, \"train_batch_size\": 8}", TWS_INVALID, "ds.json:1:25: duplicate key", ""},
      {"{\"zero_optimization\": {\"stage\": 4}}", TWS_INVALID, "from 0 to 3, not 4", ""},
      {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"gpu\"}}}", TWS_INVALID, "one of none, cpu, nvme",
       "cpu"},
      {"{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", TWS_INVALID, "two numbers", ""},
      {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 2]}}}", TWS_INVALID, "two numbers", ""},
      {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 10.0}}}", TWS_INVALID,
       "without a point", ""},
      {"{\"twinspeed\": {\"recompute\": \"ful\"}}", TWS_INVALID, "one of none, selective, full, operations",
       "\"full\""},
      {"{\"tensor_parallel\": {\"autotp_size\": -1}}", TWS_INVALID, "from 0 to 65536, not -1", ""},
      {"{\"tensor_parallel\": {\"autotp_size\": 65537}}", TWS_INVALID, "from 0 to 65536, not 65537", ""},
      {"{\"tensor_parallel\": {\"autotp_sise\": 2}}", TWS_INVALID, "unknown key", "\"tensor_parallel.autotp_size\""},
      {"{\"tensor_parallel\": {\"tp\": {\"tp_size\": 0}}}", TWS_INVALID,
       "\"tensor_parallel.tensor_parallel.tp_size\" must be", ""},
      {"{\"sequence_parallel_size\": 0}", TWS_INVALID, "from 1 to 65536, not 0", ""},
      {"{\"sequence_parallel_size\": true}", TWS_INVALID, "must be an integer", ""},
      {"{\"sequence_paralel_size\": 2}", TWS_INVALID, "unknown key", "\"sequence_parallel_size\""},
      {"{\"twinspeed\": {\"tensor_overlap_chunks\": 65}}", TWS_INVALID, "from 1 to 64, not 65", ""},
      {"{\"twinspeed\": {\"tensor_sequence_parallel\": \"yes\"}}", TWS_INVALID, "must be true or false", "quotes"},
      {"{\"twinspeed\": {\"loss_tiles\": 0}}", TWS_INVALID, "from 1 to 65536, not 0", ""},
      {"{\"twinspeed\": {\"mlp_tiles\": 1.5}}", TWS_INVALID, "must be an integer", ""},
      {"{\"twinspeed\": {\"attention_chunks\": -2}}", TWS_INVALID, "from 1 to 65536, not -2", ""},
      {"{\"twinspeed\": {\"ignored_token\": -100}}", TWS_INVALID, "from -1 to", "-1 is none"},
      {"{\"twinspeed\": {\"axis_order\": [\"pipe\"]}}", TWS_INVALID, "in some order, parted by commas, not", "slowest"},
      {"{\"twinspeed\": {\"axis_order\": \"pipe,data,model\"}}", TWS_INVALID, "in some order", ""},
      {"{\"twinspeed\": {\"axis_order\": \"pipe,data,model,model\"}}", TWS_INVALID, "in some order", ""},
      {"{\"twinspeed\": {\"axis_order\": \"pipe,data,tensor,sequence\"}}", TWS_INVALID, "in some order", ""},
      {"{\"fp16\": {\"loss_scale\": true}}", TWS_INVALID, "must be a number", ""},
      {"{\"fp16\": {\"loss_scale\": -1}}", TWS_INVALID, "not -1", ""},
      {"{\"fp16\": {\"hysteresis\": -1}}", TWS_INVALID, "not -1", ""},
      {"{\"fp16\": {\"initial_scale_power\": 101}}", TWS_INVALID, "from 0 to 100, not 101", ""},
      {"{\"fp16\": {\"loss_scale_window\": 0}}", TWS_INVALID, "not 0", ""},
      {"{\"bf16\": {}, \"bfloat16\": {}}", TWS_INVALID, "given twice: \"bfloat16\"", "bf16"},
      {"{\"zero_optimization\": {\"prefetch_bucket_size\": 1, \"stage3_prefetch_bucket_size\": 1}}", TWS_INVALID,
       "given twice", ""},
      {"{\"zero_optimization\": {\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"cpu\"}}}", TWS_INVALID,
       "both are given", ""},
      {"{\"a\xff\": 1}", TWS_INVALID, "not valid UTF-8", ""}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_config *c;
    tws_code code = from_text(cases[i].text, &c);
    ck_assert_msg(code == cases[i].code && !c, "%s: %s", cases[i].text, code == TWS_OK ? "taken" : err.message);
    ck_assert_msg(strstr(err.message, cases[i].message) && strstr(err.hint, cases[i].hint), "%s:\n%s\n%s",
                  cases[i].text, err.message, err.hint);
  }
}
END_TEST

/* Checks configurations without a number of ranks: conflicts of keys are refused, and a batch that no number of ranks
 * can have. */
START_TEST(check_without_ranks) {
  static const struct {
    const char *text;
    tws_code code;
  } cases[] = {
      {"{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", TWS_INVALID},
      {"{\"pipeline\": {\"stages\": 2}, \"zero_optimization\": {\"stage\": 3}}", TWS_INVALID},
      {"{\"train_batch_size\": 7, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2}",
       TWS_INVALID},
      {"{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2}", TWS_OK},
      {"{\"train_batch_size\": 7}", TWS_OK},
      {"{\"twinspeed\": {\"attention_chunks\": 4}}", TWS_OK},
      {"{\"tensor_parallel\": {\"autotp_size\": 4, \"tp\": {\"tp_size\": 4}}}", TWS_OK},
      {"{\"tensor_parallel\": {\"autotp_size\": 4, \"tp\": {\"tp_size\": 8}}}", TWS_INVALID},
      {"{\"sequence_parallel_size\": 4, \"twinspeed\": {\"sequence_length\": 66}}", TWS_INVALID},
      {"{\"sequence_parallel_size\": 4, \"twinspeed\": {\"ranks\": 6}}", TWS_INVALID},
      {"{\"sequence_parallel_size\": 4, \"twinspeed\": {\"ranks\": 12}}", TWS_OK},
      {"{}", TWS_OK},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_config *c = config_of(cases[i].text);
    ck_assert_msg(tws_config_check(c, &err) == cases[i].code, "%s", cases[i].text);
    tws_config_destroy(c);
  }
}
END_TEST

/* DeepSpeed 0.19.8 accepts each of these cases (they were run there), and so does this program, with a warning where a
 * key has no effect. */
START_TEST(deepspeed_keys_are_accepted) {
  static const char *const cases[] = {
      "\"zero_optimization\": {\"stage\": \"2\"}",
      "\"zero_optimization\": {\"stage\": 2.0, \"overlap_comm\": 1}",
      "\"zero_optimization\": {\"stage\": true, \"overlap_comm\": \"yes\"}",
      "\"zero_optimization\": {\"reduce_bucket_size\": \"500000000\", \"contiguous_gradients\": \"True\"}",
      "\"zero_optimization\": {\"reduce_bucket_size\": 5e8, \"sub_group_size\": 0}",
      "\"zero_optimization\": {\"stage\": 3, \"sub_group_size\": 1e14, \"round_robin_gradients\": 0}",
      "\"zero_optimization\": {\"stage\": 1, \"offload_param\": {\"device\": \"cpu\"}}",
      "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\", "
      "\"pin_memory\": true, \"buffer_count\": 5, \"buffer_size\": 1e8, \"max_in_cpu\": 1e9}}",
      "\"zero_optimization\": {\"stage\": 3, \"cpu_offload_param\": true, \"cpu_offload\": true}",
      "\"zero_optimization\": {\"stage\": 0, \"offload_optimizer\": {\"device\": \"cpu\"}}",
      "\"zero_optimization\": {\"offload_optimizer\": null}",
      "\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true, \"cpu_offload_use_pin_memory\": true}",
      ("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": false, "
       "\"buffer_count\": 5, \"fast_init\": true, \"pipeline_read\": true, \"pipeline_write\": true, \"ratio\": 0.3}}"),
      "\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"none\", \"pin_memory\": \"true\"}}",
      "\"zero_optimization\": {\"offload_optimizer\": {\"buffer_count\": \"4\"}}",
      "\"zero_optimization\": true",
      "\"fp16\": {\"enabled\": 1, \"initial_scale_power\": \"16\"}",
      "\"fp16\": {\"enabled\": \"true\", \"loss_scale\": \"0\", \"loss_scale_window\": 500.0}",
      "\"bf16\": {\"enabled\": 1}",
      "\"bf16\": null",
      "\"aio\": null",
      "\"steps_per_print\": 2e16",
      "\"steps_per_print\": null",
      "\"wall_clock_breakdown\": 0",
      "\"dump_state\": 1",
      "\"prescale_gradients\": 1",
      "\"activation_checkpointing\": {\"contiguous_memory_optimization\": true}",
      "\"activation_checkpointing\": {\"foo\": 1, \"number_checkpoints\": \"4\"}",
      "\"aio\": {\"thread_count\": 1, \"block_size\": 1048576}",
      "\"aio\": {\"block_size\": -5}",
      "\"flops_profiler\": {\"step\": 1, \"profile_step\": 1, \"output_file\": null}",
      "\"checkpoint\": {\"foo\": 1, \"use_node_local_storage\": 1}",
      "\"autotuning\": {\"foo\": 1, \"metric\": 5}",
      "\"timers\": {\"foo\": 1}",
      "\"pipeline\": {\"foo\": 1}",
      "\"data_types\": {\"foo\": 1}",
      "\"comms_config\": {}, \"log\": 1, \"_comment\": \"x\", \"cuda_visible_devices\": \"0\", \"seed\": 3",
      "\"offload_optimizer\": {\"device\": \"cpu\"}",
      "\"tensorboard\": {\"enabled\": 1}, \"wandb\": {\"enabled\": \"yes\", \"team\": null}",
      "\"optimizer\": {\"type\": \"FusedAdam\", \"params\": {\"lr\": 1e-4}}",
      "\"optimizer\": {\"type\": \"DeepSpeedCPUAdam\", \"lr\": 1}",
      "\"optimizer\": {\"type\": \"adam\", \"params\": null}",
      "\"optimizer\": {}, \"scheduler\": {}",
      "\"optimizer\": {\"type\": \"Adam\", \"legacy_fusion\": true}",
      "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": null}",
      "\"zero_allow_untested_optimizer\": 1",
      "\"tensor_parallel\": {\"autotp_size\": \"1\"}"};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    tws_config *c;
    tws_text printed = {0};
    tws_json *json;
    int count;
    snprintf(text, sizeof text, "{\"train_batch_size\": 8, %s}", cases[i]);
    ck_assert_msg(resolve(text, 1, 64, &c) == TWS_OK, "%s: %s", text, err.message);
    ck_assert_int_eq(tws_config_no_effect(c, &printed, &count, &err), TWS_OK);
    tws_text_free(&printed);
    ck_assert_int_eq(tws_config_print(c, 0, &printed, &err), TWS_OK);
    tws_config_destroy(c);
    ck_assert_int_eq(tws_json_parse(printed.data, printed.length, "printed", &json, &err), TWS_OK);
    ck_assert_msg(tws_config_from_json(json, &c, &err) == TWS_OK, "%s: %s", printed.data, err.message);
    tws_config_destroy(c);
    tws_json_destroy(json);
    tws_text_free(&printed);
  }
  tws_config *c;
  ck_assert_int_eq(resolve("{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": \"2\", \"overlap_comm\": 1}, "
                           "\"fp16\": {\"enabled\": \"on\", \"loss_scale\": \"128\"}}",
                           1, 0, &c),
                   TWS_OK);
  ck_assert(c->zero.stage == 2 && c->zero.overlap_comm == 1 && c->dtype == TWS_F16 && c->fp16.loss_scale == 128);
  tws_config_destroy(c);
}
END_TEST

/* All errors of a file are reported at once, one line each. */
START_TEST(all_refusals_at_once) {
  tws_config *c;
  ck_assert_int_eq(from_text("{\"train_batch_size\": 8.5,\n \"zero_optimization\": {\"stge\": 3, \"foo\": 1},\n"
                             " \"fp16\": null,\n \"train_batchsize\": 1}",
                             &c),
                   TWS_INVALID);
  static const char *const says[] = {"ds.json:1:2: \"train_batch_size\" must be", "\nds.json:2:24: unknown key",
                                     "\nds.json:2:35: unknown key", "\nds.json:3:2: an object",
                                     "\nds.json:4:2: unknown key \"train_batchsize\" (did you mean"};
  for (size_t i = 0; i < sizeof says / sizeof *says; i++)
    ck_assert_msg(strstr(err.message, says[i]) != NULL, "no %s in %s", says[i], err.message);
  ck_assert_int_eq(
      resolve("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"MuAdam\"}, \"zero_optimization\": "
              "{\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"a\"}, \"offload_optimizer\": "
              "{\"device\": \"nvme\", \"nvme_path\": \"b\"}}, \"pipeline\": {\"stages\": 2}}",
              2, 0, &c),
      TWS_UNSUPPORTED);
  ck_assert_msg(strstr(err.message, "give two folders") && strstr(err.message, "\"MuAdam\"") &&
                    strstr(err.message, "pipeline parallelism"),
                "%s", err.message);
  char text[8192] = "{\"twinspeed\": {\"unknown\": 0";
  for (int i = 0; i < 60; i++) snprintf(text + strlen(text), sizeof text - strlen(text), ", \"unknown%d\": 1", i);
  strcat(text, "}}");
  ck_assert_int_eq(from_text(text, &c), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "\n... and ") != NULL, "%s", err.message);
}
END_TEST

START_TEST(contradictions) {
#define B "\"train_batch_size\": 4, "
#define F16 "\"fp16\": {\"enabled\": true"
#define MASTERS "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true"
#define ZENFLOW(more, zero, zen)                                                                                  \
  "{" B more "\"zero_optimization\": {" zero ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"zenflow\": {" zen \
  "}}"                                                                                                            \
  "}"
  static const refusal cases[] = {
      {"{}", TWS_INVALID, "train_batch_size or train_micro_batch_size_per_gpu", ""},
      {"{" B "\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", TWS_INVALID, "both enabled", ""},
      {"{" B "\"data_types\": {\"param_dtype\": \"fp16\"}}", TWS_INVALID, "make it fp32", ""},
      {"{" B "\"bf16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}", TWS_INVALID,
       "need ZeRO", ""},
      {"{" B "\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}, \"zero_optimization\": {\"stage\": 1}}",
       TWS_INVALID, "needs \"bf16.bf16_master_weights_and_grads\"", "set both"},
      {"{" B MASTERS "}}", TWS_INVALID, "bf16_master_weights_and_grads\" needs ZeRO stage 1, 2 or 3", "stage to 1"},
      {"{" B MASTERS ", \"bf16_optimizer_states\": true}}", TWS_INVALID, "needs ZeRO stage 1, 2 or 3", "stage to 1"},
      {"{" B MASTERS "}, \"zero_optimization\": {\"stage\": 2}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
       TWS_INVALID, "keeps gradients in bf16, and data_types.grad_accum_dtype is fp32", "leave it out"},
      {"{" B "\"fp16\": {\"fp16_master_weights_and_grads\": true}}", TWS_INVALID, "needs ZeRO stage", ""},
      {"{" B F16 ", \"fp16_master_weights_and_grads\": true}, \"zero_optimization\": {\"stage\": 2}}", TWS_INVALID,
       "needs offload_optimizer", "device to cpu"},
      {"{" B F16
       ", \"fp16_master_weights_and_grads\": true}, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": "
       "{\"device\": \"cpu\"}}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
       TWS_INVALID, "keeps gradients in fp16, and data_types.grad_accum_dtype is fp32", "leave it out"},
      {"{" B F16 "}, \"data_types\": {\"grad_accum_dtype\": \"bf16\"}, \"zero_optimization\": {\"stage\": 1}}",
       TWS_UNSUPPORTED, "do not add up in bf16", "fp32"},
      {"{" B "\"data_types\": {\"grad_accum_dtype\": \"fp16\"}, \"zero_optimization\": {\"stage\": 1}}",
       TWS_UNSUPPORTED, "only where fp16 is enabled", "fp32"},
      {"{" B F16 ", \"initial_scale_power\": 8, \"min_loss_scale\": 257}}", TWS_INVALID,
       "min_loss_scale 257 is above the first scale, 2^8", "lower"},
      {"{" B F16 ", \"loss_scale\": 1e-40}}", TWS_INVALID, "1e-40 is too small", "use 0"},
      {"{" B "\"amp\": {\"opt_level\": \"O1\"}}", TWS_INVALID, "enabled", ""},
      {"{" B "\"amp\": {\"enabled\": true, \"any\": 3}, \"zero_optimization\": {\"stage\": 1}}", TWS_INVALID,
       "does not go with ZeRO", ""},
      {"{" B "\"amp\": {\"enabled\": true}}", TWS_UNSUPPORTED, "amp", "bf16"},
      {"{" B "\"gradient_allreduce_op\": \"SUM\", \"zero_optimization\": {\"stage\": 3}}", TWS_INVALID, "stage 3", ""},
      {"{" B "\"gradient_allreduce_op\": \"sum\"}", TWS_UNSUPPORTED, "sum", ""},
      {"{" B "\"sparse_gradients\": true, \"zero_optimization\": {\"stage\": 1}}", TWS_INVALID, "stage 0", ""},
      {"{" B "\"prescale_gradients\": true, \"zero_optimization\": {\"stage\": 2}}", TWS_INVALID, "reduce_scatter", ""},
      {"{" B "\"gradient_predivide_factor\": 2, \"zero_optimization\": {\"stage\": 3}}", TWS_INVALID, "must be 1", ""},
      {"{" B "\"zero_optimization\": {\"stage\": 2, \"allgather_bucket_size\": 501}}", TWS_INVALID, "even", ""},
      {"{" B "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}}}",
       TWS_INVALID, "ratio", ""},
      {"{" B "\"aio\": {\"block_size\": 512}, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": "
       "{\"device\": \"nvme\"}}}",
       TWS_INVALID, "aio.block_size must be an integer from 4096", ""},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"a\"}, "
       "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"b\"}}}",
       TWS_UNSUPPORTED, "two folders", "the same folder"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2, \"offload_param\": {\"device\": "
       "\"cpu\"}}}",
       TWS_UNSUPPORTED, "zero_hpz_partition_size keeps gathered parameters on the device", "device to none"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2}, "
       "\"twinspeed\": {\"expert_parallel_size\": 2}}",
       TWS_UNSUPPORTED, "zero_hpz_partition_size does not go with expert parallelism", "leave it out"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"zero_quantized_gradients\": true}, "
       "\"twinspeed\": {\"expert_parallel_size\": 2}}",
       TWS_UNSUPPORTED, "zero_quantized_gradients does not go with expert parallelism", "leave it out"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"zero_quantized_gradients\": true, \"reduce_scatter\": false}}",
       TWS_INVALID, "reduce_scatter is false", "reduce_scatter to true"},
      {"{" B "\"zero_optimization\": {\"stage\": 3}, \"twinspeed\": {\"zero_node_ranks\": 2}}", TWS_INVALID,
       "zero_node_ranks is for quantized gradients", "zero_quantized_gradients"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"zero_quantized_gradients\": true, "
       "\"zero_hpz_partition_size\": 4}, \"twinspeed\": {\"zero_node_ranks\": 2}}",
       TWS_INVALID, "zero_node_ranks is 2 and zero_hpz_partition_size 4", "leave it out"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"zero_quantized_nontrainable_weights\": true}, "
       "\"twinspeed\": {\"frozen_quantization\": {\"type\": \"nf4\"}}}",
       TWS_INVALID, "zero_quantized_nontrainable_weights is of 8 bits", "leave out one"},
      {"{" B "\"twinspeed\": {\"frozen_quantization\": {\"type\": \"nf4\", \"block_size\": 8192, "
       "\"scale_block_size\": 256}}}",
       TWS_INVALID, "256 blocks of 8192 elements are more than 2^20", "use at most 128"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 1}}", TWS_INVALID, "leaves nothing to divide",
       "stage to 0"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2, \"zero_hpz_partition_size\": 2}}",
       TWS_UNSUPPORTED, "mics_shard_size does not go with zero_hpz_partition_size", "leave out one"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2, \"zero_quantized_gradients\": true}}",
       TWS_UNSUPPORTED, "mics_shard_size does not go with zero_quantized_gradients", "to false"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2, \"offload_optimizer\": {\"device\": "
       "\"cpu\"}}}",
       TWS_UNSUPPORTED, "mics_shard_size does not go with offload_optimizer", "device to none"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2}, "
       "\"twinspeed\": {\"expert_parallel_size\": 2}}",
       TWS_UNSUPPORTED, "mics_shard_size does not go with expert parallelism", "expert_parallel_size to 1"},
      {"{" B "\"zero_optimization\": {\"stage\": 2}, \"twinspeed\": {\"delayed_update\": true}}", TWS_INVALID,
       "delayed_update is the host's", "set zero_optimization.offload_optimizer.device to cpu"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}}, "
       "\"twinspeed\": {\"delayed_update\": true}}",
       TWS_UNSUPPORTED, "a part of it would stay on the device", "ratio to 1"},
      {"{" B "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": "
       "{\"device\": \"nvme\"}}, \"twinspeed\": {\"delayed_update\": true}}",
       TWS_UNSUPPORTED, "parameters on a disk do not go together", "device to cpu"},
      {"{" B "\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}, \"pipeline\": "
       "{\"stages\": 2}, \"twinspeed\": {\"delayed_update\": true}}",
       TWS_UNSUPPORTED, "does not go with a pipeline", "pipeline.stages to 1"},
      {"{" B "\"zero_optimization\": {\"stage\": 2, \"zenflow\": {\"offload\": true}}}", TWS_INVALID,
       "zenflow needs offload_optimizer", "device to cpu"},
      {ZENFLOW("", "\"stage\": 0", ""), TWS_INVALID, "zenflow needs offload_optimizer", "at stage 1, 2 or 3"},
      {ZENFLOW("", "\"stage\": 2", "\"offload\": true"), TWS_INVALID, "zenflow.offload needs overlap_comm", "true"},
      {ZENFLOW("", "\"stage\": 3", "\"offload\": true"), TWS_UNSUPPORTED, "stay on the device", "set it to false"},
      {ZENFLOW("", "\"stage\": 2", "\"update_interval\": 4, \"select_interval\": 6"), TWS_UNSUPPORTED,
       "no multiple of the update_interval of 4", "use 8"},
      {ZENFLOW("", "\"stage\": 2", "\"update_interval\": \"often\""), TWS_INVALID, "update_interval is \"often\"",
       "or \"auto\""},
      {ZENFLOW("", "\"stage\": 2", "\"update_interval\": 0"), TWS_INVALID, "update_interval", ""},
      {ZENFLOW("", "\"stage\": 2", "\"select_strategy\": \"epoch\""), TWS_INVALID, "needs the steps of an epoch",
       "steps_per_epoch"},
      {ZENFLOW("", "\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}", ""), TWS_UNSUPPORTED,
       "offload_param keeps them elsewhere", "offload_param.device to none"},
      {ZENFLOW("\"gradient_allreduce_op\": \"sum\",", "\"stage\": 2", ""), TWS_INVALID,
       "sum does not go with zero_optimization.zenflow", "mean"},
      {ZENFLOW("\"twinspeed\": {\"delayed_update\": true},", "\"stage\": 2", ""), TWS_UNSUPPORTED,
       "each says when the host updates", "leave out one"},
      {ZENFLOW(MASTERS "},", "\"stage\": 2", ""), TWS_UNSUPPORTED, "in float32, for masters in float32", "to false"},
      {ZENFLOW("\"pipeline\": {\"stages\": 2},", "\"stage\": 1", ""), TWS_UNSUPPORTED, "does not go with a pipeline",
       "set pipeline.stages to 1"},
      {ZENFLOW("\"optimizer\": {\"type\": \"Lamb\"},", "\"stage\": 2", ""), TWS_UNSUPPORTED, "Lamb", ""},
      {"{" B "\"zero_optimization\": {\"legacy_stage1\": true}}", TWS_INVALID, "no longer exists", ""},
      {"{" B "\"pipeline\": {\"stages\": 2}, \"zero_optimization\": {\"stage\": 2}}", TWS_INVALID, "pipeline", ""},
      {"{" B "\"pipeline\": {\"stages\": 2}}", TWS_INVALID, "ds.json:1:38: pipeline.stages 2 does not divide 1 rank",
       "use 2 ranks"},
      {"{" B "\"tensor_parallel\": {\"autotp_size\": 4}}", TWS_INVALID,
       "tensor_parallel.autotp_size 4 does not divide 1 rank", "use 4 ranks"},
      {"{" B "\"tensor_parallel\": {\"tp\": {\"tp_size\": 4}}}", TWS_INVALID,
       "tensor_parallel.tensor_parallel.tp_size 4 does not divide 1 rank",
       "use 4 ranks, or tensor_parallel.tensor_parallel.tp_size 1"},
      {"{" B "\"sequence_parallel_size\": 3}", TWS_INVALID, "sequence_parallel_size 3 does not divide 1 rank",
       "use 3 ranks"},
      {"{" B "\"sequence_parallel_size\": 3, \"pipeline\": {\"stages\": 2}, \"tensor_parallel\": {\"autotp_size\": 4}}",
       TWS_INVALID,
       "pipeline.stages 2 x tensor_parallel.autotp_size 4 x sequence_parallel_size 3 = 24 do not divide 1 rank",
       "use 24 ranks"},
      {"{" B "\"tensor_parallel\": {\"autotp_size\": 4, \"tensor_parallel\": {\"tp_size\": 2}}}", TWS_INVALID,
       "autotp_size is 4 and tensor_parallel.tensor_parallel.tp_size is 2", "keep one"},
      {"{" B "\"tensor_parallel\": {\"autotp_size\": 0, \"tp\": {\"tp_size\": 2}}}", TWS_INVALID, "autotp_size is 0",
       "keep one"},
      {"{" B "\"sequence_parallel_size\": 3, \"twinspeed\": {\"sequence_length\": 64}}", TWS_INVALID,
       "sequence_parallel_size 3 does not divide a sequence of 64 tokens", "63 or 66 tokens"},
      {"{" B "\"sequence_parallel_size\": 3, \"twinspeed\": {\"sequence_length\": 2}}", TWS_INVALID,
       "a sequence of 2 tokens", "of 3 tokens"},
      {"{" B "\"elasticity\": {\"enabled\": true}}", TWS_INVALID, "elasticity chooses it", ""},
      {"{\"elasticity\": {\"enabled\": true}}", TWS_INVALID, "elasticity needs max_train_batch_size", ""},
      {"{" B "\"optimizer\": {\"type\": \"MuAdam\"}}", TWS_UNSUPPORTED, "\"MuAdam\"", "AdamW"},
      {"{" B "\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\"betas\": [0.9, 0.99]}}}", TWS_INVALID,
       "Adagrad takes no \"betas\"", "Adam|AdamW"},
      {"{" B "\"optimizer\": {\"type\": \"Lamb\"}, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": "
       "{\"device\": \"cpu\"}}}",
       TWS_UNSUPPORTED, "Lamb does not go with offloading", "none"},
      {"{" B "\"optimizer\": {\"type\": \"Lamb\"}, \"fp16\": {\"enabled\": true, \"loss_scale\": 128}}", TWS_INVALID,
       "Lamb needs a loss scale that adapts itself", "use 0"},
      {"{" B "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"eps_inside_sqrt\": true}}}", TWS_UNSUPPORTED,
       "eps_inside_sqrt", ""},
      {"{" B "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"min_coeff\": 11}}}", TWS_INVALID, "above max_coeff",
       ""},
      {"{" B "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": true}}}", TWS_INVALID,
       "nesterov needs a momentum", "above 0"},
      {"{" B "\"optimizer\": {\"type\": \"RMSprop\"}}", TWS_UNSUPPORTED, "\"RMSprop\"", "AdamW"},
      {"{" B "\"optimizer\": {\"type\": \"OneBitAdam\"}, \"zero_optimization\": {\"stage\": 1}}", TWS_INVALID,
       "does not go with ZeRO", ""},
      {"{" B "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"freeze_step\": 3}}}", TWS_INVALID,
       "Adam takes no \"freeze_step\"", "OneBitAdam"},
      {"{" B "\"optimizer\": {\"type\": \"lion\", \"params\": {\"eps\": 1e-6}}}", TWS_INVALID, "Lion takes no \"eps\"",
       "Adam|AdamW"},
      {"{" B "\"optimizer\": {\"params\": {\"betas\": [0.9, 1.0]}}}", TWS_INVALID, "below 1", ""},
      {"{" B "\"optimizer\": {\"type\": \"Muon\"}, \"tensor_parallel\": {\"autotp_size\": 2}}", TWS_UNSUPPORTED,
       "Muon does not go with tensor parallelism", "autotp_size"},
      {"{" B "\"optimizer\": {\"type\": \"AdamW8bit\"}, \"tensor_parallel\": {\"autotp_size\": 2}}", TWS_UNSUPPORTED,
       "AdamW8bit does not go with tensor parallelism", "autotp_size"},
      {"{" B "\"optimizer\": {\"type\": \"PagedAdamW8bit\"}, \"zero_optimization\": {\"stage\": 2, "
       "\"offload_optimizer\": {\"device\": \"cpu\"}}}",
       TWS_UNSUPPORTED, "PagedAdamW8bit does not go with offloading", "offload_optimizer"},
      {"{" B "\"optimizer\": {\"type\": \"AdamW8bit\", \"params\": {\"optim_bits\": 16}}}", TWS_INVALID,
       "optim_bits is 16", "8, or 32"},
      {"{" B "\"optimizer\": {\"type\": \"AdamW8bit\", \"param_groups\": [{\"params\": \"*\", \"optim_bits\": 16}]}}",
       TWS_INVALID, "entry 1: optim_bits is 16", "8, or 32"},
      {"{" B "\"optimizer\": {\"type\": \"Adafactor\"}, \"pipeline\": {\"stages\": 2}}", TWS_UNSUPPORTED,
       "Adafactor does not go with pipeline stages", "pipeline.stages"},
      {"{" B "\"optimizer\": {\"type\": \"Adafactor\", \"params\": {\"eps\": 1e-8}}}", TWS_INVALID,
       "eps of Adafactor is a list of two numbers", "[null, 0.001]"},
      {"{" B "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"eps\": [null, 1e-3]}}}", TWS_INVALID,
       "eps of AdamW is one number", "1e-8"},
      {"{" B "\"optimizer\": {\"type\": \"Adafactor\", \"params\": {\"d\": 0.5}}}", TWS_INVALID,
       "\"optimizer.params.d\"", ""},
      {"{" B "\"optimizer\": {\"type\": \"Muon\", \"params\": {\"nesterov\": true}}}", TWS_INVALID,
       "Muon takes no \"nesterov\"", "SGD"},
      {"{" B "\"optimizer\": {\"param_groups\": [{\"lr\": 1}]}}", TWS_INVALID, "entry 1 has no \"params\"", "*.bias"},
      {"{" B "\"optimizer\": {\"param_groups\": [{\"params\": \"*\", \"rate\": 1}]}}", TWS_INVALID, "rate", ""},
      {"{" B "\"optimizer\": {\"type\": \"SGD\", \"param_groups\": [{\"params\": \"*\", \"eps\": 1}]}}", TWS_INVALID,
       "entry 1: SGD takes no \"eps\"", ""},
      {"{" B "\"optimizer\": {\"param_groups\": [{\"params\": \"*\", \"betas\": [0.9, 1]}]}}", TWS_INVALID,
       "entry 1: betas must be below 1", ""},
      {"{" B "\"optimizer\": {\"params\": [{\"lr\": 1}, {\"lr\": 2}]}}", TWS_INVALID, "have no \"params\"",
       "all entries but one"},
      {"{" B "\"optimizer\": {\"params\": [{\"lr\": 1}, 2]}}", TWS_INVALID, "objects are expected", ""},
      {"{" B "\"optimizer\": {\"params\": [{\"params\": \"*\", \"freeze_step\": 2}]}}", TWS_INVALID, "freeze_step", ""},
      {"{" B "\"optimizer\": {\"params\": [{\"params\": \"*\"}], \"param_groups\": []}}", TWS_INVALID,
       "is given as well", "one of them"},
      {"{" B
       "\"optimizer\": {\"param_groups\": [{\"params\": \"*\"}]}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
       "{\"warmup_max_lr\": [1, 2, 3]}}}",
       TWS_INVALID, "warmup_max_lr has 3 values for 2 parameter groups", "one for each"},
      {"{" B "\"scheduler\": {\"type\": \"WarmUpLR\"}}", TWS_UNSUPPORTED, "\"WarmUpLR\"", "\"WarmupLR\""},
      {"{" B "\"scheduler\": {\"type\": \"CosineAnnealingLR\", \"params\": {\"T_max\": 3}}}", TWS_UNSUPPORTED,
       "CosineAnnealingLR", "OneCycle"},
      {"{" B "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1}}}", TWS_INVALID, "cycle_max_lr",
       ""},
      {"{" B "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {}}}", TWS_INVALID, "total_num_steps", ""},
      {"{" B "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"cycle_min_lr\": 1}}}", TWS_INVALID, "takes no",
       "OneCycle"},
      {"{\"train_micro_batch_size_per_gpu\": 1e12, \"gradient_accumulation_steps\": 1e12}", TWS_INVALID, "64 bits",
       ""}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_config *c;
    tws_code code = resolve(cases[i].text, 1, 0, &c);
    ck_assert_msg(code == cases[i].code && !c, "%s: %s", cases[i].text, code == TWS_OK ? "taken" : err.message);
    ck_assert_msg(strncmp(err.message, "ds.json", 7) == 0 && strstr(err.message, cases[i].message) &&
                      strstr(err.hint, cases[i].hint),
                  "%s:\n%s\n%s", cases[i].text, err.message, err.hint);
  }
}
END_TEST

/* Where a file has thousands of unknown keys, only the first are compared with known ones, and the notes on the others
 * say so; a key that resembles a known one is still reported as a typing error. */
START_TEST(thousands_of_unknown_keys) {
  enum { KEYS = 40000 };
  int count;
  tws_text text = {0}, out = {0};
  tws_json *json;
  tws_config *c;
  tws_text_add(&text, "{" B);
  for (int i = 0; i < KEYS; i++) tws_text_add(&text, "%s\n\"made_up_%d\": 1", i ? "," : "", i);
  tws_text_add(&text, "}");
  ck_assert_int_eq(tws_json_parse(text.data, text.length, "ds.json", &json, &err), TWS_OK);
  ck_assert_msg(tws_config_from_json(json, &c, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_config_no_effect(c, &out, &count, &err), TWS_OK);
  ck_assert_int_eq(count, KEYS);
  ck_assert_ptr_nonnull(strstr(out.data,
                               "ds.json:257:1: unknown key \"made_up_255\" has no effect: DeepSpeed does not read "
                               "it either\n"));
  ck_assert_ptr_nonnull(strstr(out.data,
                               "ds.json:258:1: unknown key \"made_up_256\" has no effect: DeepSpeed does not read "
                               "it either; not compared with known keys, because 256 unknown keys"));
  ck_assert_ptr_nonnull(strstr(out.data, "unknown key \"made_up_39999\" has no effect"));
  tws_config_destroy(c);
  tws_json_destroy(json);
  tws_text_free(&out);
  text.length = 0;
  tws_text_add(&text, "{" B "\"a\": 1, \"b\": 2, \"wall_clock_breakdwon\": false}");
  ck_assert_int_eq(tws_json_parse(text.data, text.length, "ds.json", &json, &err), TWS_OK);
  ck_assert_int_eq(tws_config_from_json(json, &c, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.hint, "wall_clock_breakdown"));
  tws_json_destroy(json);
  tws_text_free(&text);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("config_refusals");
  TCase *all = tcase_create("all");
  tcase_set_timeout(all, 60);
  tcase_add_test(all, bad_files);
  tcase_add_test(all, contradictions);
  tcase_add_test(all, deepspeed_keys_are_accepted);
  tcase_add_test(all, all_refusals_at_once);
  tcase_add_test(all, check_without_ranks);
  tcase_add_test(all, thousands_of_unknown_keys);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
