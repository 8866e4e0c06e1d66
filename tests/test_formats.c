/* Configurations of other programs: jobs that are written in their formats read back as the same jobs, users' files are
 * read, and written files keep the rules of DeepSpeed and Megatron. */
#include <check.h>
#include <ctype.h>
#include <unistd.h>

#include "compat/software_rules.h"
#include "config/formats.h"
#include "config/tree.h"
#include "job/features.h"
#include "tests/answers.h"
#include "tests/draw.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { JOBS = TWS_SANITIZED ? 20 : 200, LAYERS = 32, POSITIONS = 8192 };

/* Returns 1 if the build has toml++, 0 if it refuses TOML files with an error that names toml++. */
static int reads_toml(void) {
  cJSON *root;
  tws_error why = {0};
  const tws_code code = tws_tree_read_toml("a = 1\n", 6, "a.toml", &root, &why);
  ck_assert(code == TWS_OK || (code == TWS_UNSUPPORTED && strstr(why.hint, "toml++")));
  cJSON_Delete(root);
  return code == TWS_OK;
}

static int is_toml(const char *name) {
  return strstr(name, ".toml") != NULL;
}

static int pick(uint64_t seed, uint64_t what, int count) {
  return (int)draw(seed, what, 0, count - 1);
}

/* Writes a random configuration to text and returns its number of ranks; many are refused. */
static int draw_config(uint64_t seed, char *text, size_t size) {
  static const char *const schedules[] = {"1f1b", "interleaved", "gpipe"};
  static const char *const modes[] = {"none", "full", "selective", "operations"}, *const places[] = {"none", "cpu"};
  static const char *const products[] = {"auto", "fp8", "fp8-rowwise", "mxfp8", "nvfp4"};
  const int stage = pick(seed, 1, 4), pipeline = pick(seed, 2, 3) ? 1 : 1 << pick(seed, 3, 3);
  const int tensor = 1 << pick(seed, 4, 3), sharers = pick(seed, 5, 3) ? 1 : 2, kind = pick(seed, 6, 3);
  const int type = pick(seed, 7, 3), replicas = 1 << pick(seed, 8, 4), offload = pick(seed, 9, 4) == 0;
  const int micro = 1 + pick(seed, 10, 4), steps = (1 + pick(seed, 11, 3)) * (pipeline > 1 ? pipeline : 1);
  const int place = offload && stage > 0, group = stage == 3 && replicas >= 4 && pick(seed, 12, 3) == 0;
  snprintf(
      text, size,
      "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, "
      "\"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s, \"reduce_bucket_size\": %d, "
      "\"offload_optimizer\": {\"device\": \"%s\"}, \"offload_param\": {\"device\": \"%s\"}%s}, "
      "\"bf16\": {\"enabled\": %s}, \"fp16\": {\"enabled\": %s}, \"pipeline\": {\"stages\": %d}, "
      "\"tensor_parallel\": {\"autotp_size\": %d}, \"sequence_parallel_size\": %d, \"gradient_clipping\": %g, "
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": %g, \"betas\": [0.9, %g], \"eps\": 1e-%d, "
      "\"weight_decay\": %g}}, \"twinspeed\": {\"sequence_length\": %d, \"recompute\": \"%s\", "
      "\"pipeline_schedule\": \"%s\", \"virtual_stages\": %d, \"tensor_sequence_parallel\": %s, "
      "\"sequence_algorithm\": \"%s\", \"matmul_dtype\": \"%s\", \"fp8_recipe\": \"%s\", \"fp8_amax_history_len\": %d, "
      "\"fp8_margin\": %d}}",
      micro, steps, stage, pick(seed, 13, 2) ? "true" : "false", 1000000 * (1 + pick(seed, 14, 400)), places[place],
      places[place && stage == 3 && pick(seed, 15, 2)], group ? ", \"mics_shard_size\": 2" : "",
      type == 0 ? "true" : "false", type == 1 ? "true" : "false", pipeline, tensor, sharers, 0.5 * pick(seed, 16, 4),
      1e-5 * (1 + pick(seed, 17, 90)), pick(seed, 18, 2) ? 0.95 : 0.999, 6 + pick(seed, 19, 4),
      0.01 * pick(seed, 20, 11), 512 << pick(seed, 21, 4), modes[pick(seed, 22, 4)], schedules[kind],
      pipeline > 1 && kind == 1 ? 2 : 1, tensor > 1 && pick(seed, 23, 2) ? "true" : "false",
      pick(seed, 24, 2) ? "ring" : "ulysses", type == 2 ? "auto" : products[pick(seed, 25, 5)],
      pick(seed, 26, 2) ? "delayed" : "tensorwise", 1 << pick(seed, 27, 11), pick(seed, 28, 3));
  return pipeline * tensor * sharers * replicas;
}

static tws_config *config_of(const char *text, int ranks) {
  tws_json *json;
  tws_config *config = NULL;
  ck_assert_msg(tws_json_parse(text, strlen(text), "drawn", &json, NULL) == TWS_OK, "%s", text);
  if (tws_config_from_json(json, &config, NULL) == TWS_OK &&
      tws_config_resolve(config, ranks, &(tws_auto_context){.hidden_size = 64}, NULL) != TWS_OK) {
    tws_config_destroy(config);
    config = NULL;
  }
  tws_json_destroy(json);
  return config;
}

static tws_format_shape shape_of(const tws_config *config, int ranks) {
  int64_t replicas = 1;
  ck_assert_int_eq(tws_config_replicas(config, ranks, &replicas, NULL), TWS_OK);
  return (tws_format_shape){.ranks = ranks,
                            .nodes = 1,
                            .replicas = replicas,
                            .layers = LAYERS,
                            .hidden = 1024,
                            .heads = 16,
                            .kv_heads = 16,
                            .intermediate = 4096,
                            .vocabulary = 32000,
                            .positions = POSITIONS};
}

static const struct {
  tws_config_format format;
  const char *runtime, *file;
} formats[] = {{TWS_FORMAT_DEEPSPEED, "deepspeed-flash", "ds_config.json"},
               {TWS_FORMAT_MEGATRON, "megatron", "arguments.txt"},
               {TWS_FORMAT_BRIDGE, "nemo-2026", "bridge.yaml"},
               {TWS_FORMAT_TORCHTITAN, "fsdp", "titan.toml"},
               {TWS_FORMAT_ACCELERATE, "transformers", "accelerate.yaml"},
               {TWS_FORMAT_ACCELERATE_FSDP, "torchtune", "fsdp.yaml"}};

/* Returns a copy with the keys in reverse order, as another program may write the file again. */
static cJSON *reversed(const cJSON *object) {
  cJSON *out = cJSON_CreateObject();
  for (int i = cJSON_GetArraySize(object); i-- > 0;) {
    const cJSON *item = cJSON_GetArrayItem(object, i);
    cJSON_AddItemToObject(out, item->string, cJSON_IsObject(item) ? reversed(item) : cJSON_Duplicate(item, 1));
  }
  return out;
}

static void rewrite(const char *path) {
  cJSON *root, *other;
  tws_text text = {0};
  char *given;
  size_t length;
  ck_assert_int_eq(tws_read_file(path, 0, &given, &length, NULL), TWS_OK);
  ck_assert_int_eq(tws_tree_read_yaml(given, length, path, &root, NULL), TWS_OK);
  other = reversed(root);
  tws_tree_write_yaml(other, 0, &text);
  write_text(path, text.data);
  tws_text_free(&text);
  tws_free(given);
  cJSON_Delete(root);
  cJSON_Delete(other);
}

static void assert_rules(tws_config_format format, const tws_text *file, int ranks) {
  tws_error why = {0};
  cJSON *root = NULL;
  if (format == TWS_FORMAT_DEEPSPEED) root = cJSON_Parse(file->data);
  if (format == TWS_FORMAT_MEGATRON) tws_format_arguments(file->data, "arguments", &root, NULL);
  const tws_code code = format == TWS_FORMAT_DEEPSPEED  ? tws_deepspeed_check(root, ranks, &why)
                        : format == TWS_FORMAT_MEGATRON ? tws_megatron_check(root, ranks, &why)
                                                        : TWS_OK;
  ck_assert_msg(code == TWS_OK, "%d ranks: %s:\n%s", ranks, why.message, file->data);
  cJSON_Delete(root);
}

/* Writes the job as a file of that format, and sets *before to its settings. Returns 0 if that software cannot run the
 * job. */
static int write_job(int which, const tws_config *config, int ranks, const char *path, tws_settings *before) {
  const tws_config_format format = formats[which].format;
  const tws_runtime *runtime = tws_runtime_find(formats[which].runtime);
  const tws_format_shape shape = shape_of(config, ranks);
  tws_text file = {0};
  if (tws_config_features(config, 0) & ~tws_runtime_features(runtime, TWS_BACKEND_CUDA)) return 0;
  tws_settings_of(config, before);
  ck_assert_int_eq(tws_format_write(format, before, &shape, &file, NULL), TWS_OK);
  assert_rules(format, &file, ranks);
  write_text(path, file.data);
  tws_text_free(&file);
  return 1;
}

/* Reads the job from the file at `path`, asserts that all settings that the format holds equal *before, and returns
 * their number. */
static int read_job(int which, int ranks, const char *path, const tws_settings *before) {
  const tws_config_format format = formats[which].format;
  tws_settings after;
  tws_config *read;
  tws_error err = {0};
  int held = 0;
  ck_assert_msg(tws_config_load(path, &read, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_config_format_of(read), format);
  if (format == TWS_FORMAT_ACCELERATE || format == TWS_FORMAT_ACCELERATE_FSDP) /* the launch line says it */
    ck_assert_int_eq(tws_config_set(read, "train_micro_batch_size_per_gpu", before->text[TWS_SETTING_MICRO], NULL),
                     TWS_OK);
  ck_assert_msg(tws_config_resolve(read, ranks, &(tws_auto_context){.hidden_size = 64}, &err) == TWS_OK, "%s: %s", path,
                err.message);
  tws_settings_of(read, &after);
  for (int i = 0; i < TWS_SETTING_COUNT; i++) {
    if (!tws_format_holds(format, before, (tws_setting)i)) continue;
    held++;
    ck_assert_msg(strcmp(before->text[i], after.text[i]) == 0, "%s: %s was %s and is \"%s\"", path,
                  tws_setting_words((tws_setting)i), before->text[i], after.text[i]);
  }
  tws_config_destroy(read);
  return held;
}

/* Writes the job in a format and reads it back. Returns the number of settings that the format holds; -1: the software
 * cannot run the job. */
static int round_trip(int which, const tws_config *config, int ranks) {
  const char *path = in_folder(formats[which].file);
  tws_settings before;
  if (!write_job(which, config, ranks, path, &before)) return -1;
  if (strstr(path, ".yaml")) rewrite(path);
  return read_job(which, ranks, path, &before);
}

START_TEST(exports_read_back) {
  static const int least[] = {14, 18, 18, 15, 5, 4};
  int done[sizeof formats / sizeof *formats] = {0};
  const int toml = reads_toml();
  for (uint64_t seed = 1; seed < 60000; seed++) {
    char text[2048];
    const int ranks = draw_config(seed, text, sizeof text);
    int left = 0;
    tws_config *config = config_of(text, ranks);
    for (size_t f = 0; config && f < sizeof formats / sizeof *formats; f++) {
      if (is_toml(formats[f].file) && !toml) done[f] = JOBS;
      if (done[f] == JOBS) continue;
      const int held = round_trip((int)f, config, ranks);
      ck_assert_msg(held < 0 || held >= least[f], "%s holds %d settings", formats[f].file, held);
      done[f] += held >= 0;
    }
    tws_config_destroy(config);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) left += done[f] < JOBS;
    if (!left) return;
  }
  ck_abort_msg("fewer than %d jobs of a format: %d %d %d %d %d %d", JOBS, done[0], done[1], done[2], done[3], done[4],
               done[5]);
}
END_TEST

/* Runs tests/rewrite_configs.py on the folder. Returns 0 if its interpreter lacks a package. */
static int rewritten_by_python(const char *classes) {
  const char *const named = getenv("TWS_PYTHON");
  char script[] = TWS_SOURCE_DIR "/tests/rewrite_configs.py", place[64], python[512], how[16];
  snprintf(python, sizeof python, "%s", named ? named : "/usr/bin/python3");
  snprintf(place, sizeof place, "%s", folder);
  snprintf(how, sizeof how, "%s", classes);
  char *argv[] = {python, script, place, *classes ? how : NULL, NULL};
  if (access(python, X_OK) != 0) return 0;
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 0 || r.status == 3, "%s: %d %s%s", python, r.status, r.out, r.err);
  const int done = r.status == 0;
  command_free(&r);
  return done;
}

static const char *job_file(int format, int number) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%03d-%.40s", folder, number, formats[format].file);
  return path;
}

/* Files that Python's json, PyYAML or accelerate's own class have written again state the same settings. All files are
 * written, then one Python process writes them again, then all are read. An interpreter other than the system's, which
 * may have accelerate, is named by TWS_PYTHON. */
START_TEST(exports_survive_other_writers) {
  static const char *const classes[] = {"", "classes"};
  static struct {
    int format, number, ranks;
    tws_settings before;
  } jobs[4 * JOBS];
  int count = 0, done[sizeof formats / sizeof *formats] = {0};
  for (uint64_t seed = 1; seed < 60000 && count < 4 * JOBS; seed++) {
    char text[2048];
    const int ranks = draw_config(seed, text, sizeof text);
    tws_config *config = config_of(text, ranks);
    for (int f = 0; config && f < (int)(sizeof formats / sizeof *formats); f++) {
      const char *ending = strrchr(formats[f].file, '.');
      if (done[f] == JOBS || (strcmp(ending, ".json") != 0 && strcmp(ending, ".yaml") != 0)) continue;
      if (!write_job(f, config, ranks, job_file(f, done[f]), &jobs[count].before)) continue;
      jobs[count].format = f;
      jobs[count].number = done[f];
      jobs[count++].ranks = ranks;
      done[f]++;
    }
    tws_config_destroy(config);
  }
  ck_assert_int_eq(count, 4 * JOBS);
  if (!rewritten_by_python(classes[_i])) {
    printf("formats: python3 lacks %s\n", *classes[_i] ? "accelerate" : "PyYAML");
    return;
  }
  for (int i = 0; i < count; i++)
    read_job(jobs[i].format, jobs[i].ranks, job_file(jobs[i].format, jobs[i].number), &jobs[i].before);
}
END_TEST

/* Users' files of other programs give the job that the same settings as flags give. */
START_TEST(files_of_others_are_read) {
  static const struct {
    const char *name, *text, *runtime;
    int stage, micro, steps, seq;
    const char *recompute, *unread;
  } files[] = {
      {"train.sh",
       "#!/bin/bash\n# a comment with --fp16\nMODEL_ARGS=(\n  --num-layers 32 --hidden-size 4096 \\\n  --seq-length "
       "2048\n"
       "  --data-path $DATA\n)\ntorchrun pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel "
       "--micro-batch-size 2 --global-batch-size 32 --bf16 --use-distributed-optimizer --recompute-activations\n",
       "megatron", 1, 2, 4, 2048, "selective", "hidden_size"},
      {"titan.toml",
       "[model]\nname = \"llama3\"\n[training]\nlocal_batch_size = 2\nseq_len = 4096 # tokens\n[parallelism]\n"
       "tensor_parallel_degree = 2\n[activation_checkpoint]\nmode = \"full\"\n",
       "fsdp", 3, 2, 1, 4096, "full", "model.name"},
      {"acc.yaml",
       "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
       "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 4\n  offload_optimizer_device: cpu\n"
       "num_processes: 8\nuse_cpu: false\n",
       "transformers", 3, 1, 4, 512, "none", "use_cpu"},
      {"fsdp.yaml",
       "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
       "  fsdp_activation_checkpointing: true\n",
       "transformers-fsdp", 2, 1, 1, 512, "full", NULL},
      {"arguments.json",
       "{\"per_device_train_batch_size\": 4, \"gradient_accumulation_steps\": 2, \"bf16\": true, "
       "\"gradient_checkpointing\": true, \"output_dir\": \"out\"}",
       "transformers-ddp", 0, 4, 2, 512, "full", "output_dir"},
      {"axolotl.yml",
       "base_model: meta-llama/Llama-3.1-8B\nload_in_4bit: true\nadapter: qlora\nlora_r: 32\nlora_alpha: 16\n"
       "lora_target_linear: true\nsequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: auto\n"
       "gradient_checkpointing: true\ndatasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\n",
       "transformers-ddp", 0, 2, 4, 4096, "full", "datasets"},
      {"arguments8.json",
       "{\"per_device_train_batch_size\": 4, \"bf16\": true, \"optim\": \"paged_adamw_8bit\", \"output_dir\": \"out\"}",
       "transformers-ddp", 0, 4, 1, 512, "none", "output_dir"},
      {"factory.yaml",
       "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\nfinetuning_type: lora\nlora_rank: 8\n"
       "lora_target: all\ncutoff_len: 2048\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: "
       "true\n",
       "transformers-ddp", 0, 1, 8, 2048, "none", "stage"}};
  write_text(in_folder("model.json"),
             "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 256, \"intermediate_size\": 512, "
             "\"num_attention_heads\": 4, \"vocab_size\": 1024, \"max_position_embeddings\": 8192}");
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    if (is_toml(files[i].name) && !reads_toml()) continue;
    write_text(in_folder(files[i].name), files[i].text);
    const int micro = !strstr(files[i].text, "batch_size") && !strstr(files[i].text, "batch-size"),
              seq = files[i].seq == 512;
    command_result r = twinspeed("estimate -m %s -c %s --cluster dgx-a100 -n 8 %s %s --json", in_folder("model.json"),
                                 in_folder(files[i].name), micro ? "--micro-batch 1" : "", seq ? "--seq 512" : "");
    ck_assert_msg(r.status == 0, "%s: %s", files[i].name, r.err);
    cJSON *json = assert_json(&r, "twinspeed-estimate-1");
    ck_assert_str_eq(member(json, "runtime")->valuestring, files[i].runtime);
    ck_assert_int_eq(integer(json, "zero_stage"), files[i].stage);
    ck_assert_int_eq(integer(json, "micro_batch"), files[i].micro);
    ck_assert_int_eq(integer(json, "accumulation_steps"), files[i].steps);
    ck_assert_int_eq(integer(json, "sequence_length"), files[i].seq);
    ck_assert_str_eq(member(json, "recompute")->valuestring, files[i].recompute);
    if (files[i].unread)
      ck_assert_msg(strstr(r.err, "these keys are not read: ") && strstr(r.err, files[i].unread), "%s: %s",
                    files[i].name, r.err);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* A bad file gives one error with its place in the file, and never a wrong number. */
START_TEST(bad_files_have_a_place) {
  static const struct {
    const char *name, *text, *says;
  } files[] = {{"a.toml", "[training]\nseq_len = \n", "a.toml:2:"},
               {"b.toml", "[training]\nseq_len = 8\n[parallelism]\npipeline_parallel_schedule = \"DualPipeV\"\n",
                "parallelism.pipeline_parallel_schedule is \"DualPipeV\""},
               {"c.yaml", "base_model: x\nmicro_batch_size: [1\n", "c.yaml:3:"},
               {"d.yaml", "base_model: &a x\nother: *a\n", "d.yaml:2:8: aliases"},
               {"e.txt", "--micro-batch-size four --seq-length 8\n", "e.txt"},
               {"f.yaml", "distributed_type: FSDP\nmixed_precision: int3\n", "mixed_precision is \"int3\""}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    if (is_toml(files[i].name) && !reads_toml()) continue;
    write_text(in_folder(files[i].name), files[i].text);
    command_result r = twinspeed("check -c %s", in_folder(files[i].name));
    ck_assert_msg(r.status == 3 && strstr(r.err, files[i].says), "%s: %d %s", files[i].name, r.status, r.err);
    command_free(&r);
  }
}
END_TEST

/* The rules that this test applies to written files refuse the configurations that DeepSpeed and Megatron refuse. */
START_TEST(rules_refuse) {
  static const char *const ds[] = {
      "{\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1}",
      "{\"gradient_accumulation_steps\": 2}",
      "{\"train_batch_size\": 6}",
      "{\"train_micro_batch_size_per_gpu\": 1, \"pipeline\": {\"stages\": 2}, \"zero_optimization\": {\"stage\": 2}}",
      ("{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": "
       "\"cpu\"}}}"),
      "{\"train_micro_batch_size_per_gpu\": 1, \"elasticity\": {\"enabled\": false}}",
      ("{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": -1}}"),
      ("{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": "
       "{\"device\": "
       "\"nvme\"}}}"),
      ("{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": "
       "\"nvme\"}}}"),
      "{\"train_micro_batch_size_per_gpu\": 1, \"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}"};
  static const char *const megatron[] = {"--num-layers 30 --pipeline-model-parallel-size 4",
                                         "--num-layers 32 --context-parallel-size 8 --seq-length 1000",
                                         "--num-layers 32 --global-batch-size 12",
                                         "--num-layers 32 --recompute-granularity selective --recompute-method uniform",
                                         "--num-layers 32 --use-megatron-fsdp",
                                         "--num-layers 32 --optimizer-cpu-offload",
                                         "--num-layers 32 --bf16 --fp16",
                                         "--num-layers 32 --tensor-model-parallel-size 3"};
  for (size_t i = 0; i < sizeof ds / sizeof *ds; i++) {
    cJSON *root = cJSON_Parse(ds[i]);
    ck_assert_msg(root && tws_deepspeed_check(root, 8, NULL) == TWS_INVALID, "%s", ds[i]);
    cJSON_Delete(root);
  }
  for (size_t i = 0; i < sizeof megatron / sizeof *megatron; i++) {
    char text[512];
    cJSON *root;
    const char *batch = strstr(megatron[i], "--global") ? "" : "--global-batch-size 64";
    snprintf(text, sizeof text, "--micro-batch-size 1 --max-position-embeddings 4096 %s %s %s", batch,
             strstr(megatron[i], "--seq-length") ? "" : "--seq-length 2048", megatron[i]);
    ck_assert_int_eq(tws_format_arguments(text, "arguments", &root, NULL), TWS_OK);
    ck_assert_msg(tws_megatron_check(root, 8, NULL) == TWS_INVALID, "%s", text);
    cJSON_Delete(root);
  }
}
END_TEST

/* --export writes the file, a script for Slurm and the launch line; a job that the software cannot run is refused. */
START_TEST(jobs_are_exported) {
  static const struct {
    const char *format, *options, *launch, *has;
  } cases[] = {
      {"deepspeed", "--stage 3", "deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed_config", "\"stage\""},
      {"megatron", "--stage 1 --tp 2", "torchrun --nnodes 2 --nproc_per_node 8", "--tensor-model-parallel-size 2"},
      {"torchtitan", "--stage 3", "-m torchtitan.train --job.config_file", "data_parallel_shard_degree = -1"},
      {"deepspeed", "--stage 3 --set zero_optimization.offload_optimizer.device=nvme --runtime deepspeed-flash",
       "deepspeed --num_nodes", "\"nvme_path\":\t\"/local_nvme\""},
      {"accelerate", "--stage 2", "accelerate launch", "zero_stage: 2"},
      {"megatron-bridge", "--stage 1", "train.py --config-file", "use_distributed_optimizer: true"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed("estimate -m gpt2 --cluster dgx-a100:2 --dtype bf16 %s --force --export %s %s",
                                 cases[i].options, cases[i].format, in_folder(cases[i].format));
    ck_assert_msg(r.status == 0 && strstr(r.out, cases[i].launch), "%s: %s%s", cases[i].format, r.out, r.err);
    char script[64];
    snprintf(script, sizeof script, "%s.sbatch", cases[i].format);
    char *file = command_slurp(open(in_folder(cases[i].format), O_RDONLY));
    char *sbatch = command_slurp(open(in_folder(script), O_RDONLY));
    ck_assert_msg(strstr(file, cases[i].has) != NULL, "%s", file);
    ck_assert_msg(strstr(sbatch, "#SBATCH --nodes=2") && strstr(sbatch, "srun bash -c"), "%s", sbatch);
    free(file);
    free(sbatch);
    command_free(&r);
  }
  command_result r = twinspeed(
      "estimate -m gpt2 --cluster dgx-a100 --pp 2 --accumulation 4 --schedule zb-h1 --export "
      "megatron %s",
      in_folder("refused"));
  ck_assert_msg(r.status != 0 && strstr(r.err, "Megatron-Core cannot run this job: it has no schedule zb-h1"), "%s",
                r.err);
  ck_assert_int_ne(access(in_folder("refused"), F_OK), 0);
  command_free(&r);
  r = twinspeed(
      "tune -m gpt2 --cluster dgx-a100 -n 8 --dtype bf16 --runtime megatron --no-simulation -o %s --export "
      "megatron %s",
      in_folder("tuned"), in_folder("winner"));
  ck_assert_msg(r.status == 0 && strstr(r.out, "Export "), "%s", r.err);
  command_free(&r);
}
END_TEST

static void assert_file_is_deepspeeds(const char *path, int ranks, int batch) {
  tws_error why = {0};
  char *text = command_slurp(open(path, O_RDONLY));
  cJSON *root = cJSON_Parse(text);
  ck_assert_msg(root && tws_deepspeed_check(root, ranks, &why) == TWS_OK, "%s: %s\n%s", path, why.message, text);
  ck_assert_int_eq(member(root, "train_batch_size")->valueint, batch);
  ck_assert_int_eq(member(root, "train_micro_batch_size_per_gpu")->valueint *
                       member(root, "gradient_accumulation_steps")->valueint * ranks,
                   batch);
  cJSON_Delete(root);
  free(text);
}

/* A job whose batch elasticity chooses is exported with that batch; a note names the section elasticity, which is not
 * exported. */
START_TEST(elastic_jobs_are_exported_with_their_batch) {
  static const char *const said[][2] = {{"deepspeed", "elasticity (its batch of 60 for 6 ranks is in the file)"},
                                        {"megatron", "--global-batch-size 60"},
                                        {"accelerate", "elasticity (its batch of 60 for 6 ranks has to be given)"}};
  write_text(
      in_folder("elastic.json"),
      "{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}, \"elasticity\": {\"enabled\": true,"
      "\"max_train_batch_size\": 64, \"micro_batch_sizes\": [1, 2, 4], \"max_gpus\": 64, \"version\": 0.1}}");
  for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
    command_result r = twinspeed("estimate -m gpt2 -c %s --cluster dgx-a100 -n 6 --seq 512 --force --export %s %s",
                                 in_folder("elastic.json"), said[i][0], in_folder("exported"));
    ck_assert_msg(r.status == 0, "%s: %s", said[i][0], r.err);
    char *file = command_slurp(open(in_folder("exported"), O_RDONLY));
    char *to = r.out;
    for (const char *c = r.out; *c; c++) /* lines are wrapped anywhere */
      if (!isspace((unsigned char)*c) || !isspace((unsigned char)c[1])) *to++ = isspace((unsigned char)*c) ? ' ' : *c;
    *to = '\0';
    ck_assert_msg(strstr(r.out, said[i][1]) || strstr(file, said[i][1]), "%s: %s%s", said[i][0], r.out, file);
    if (i == 0) assert_file_is_deepspeeds(in_folder("exported"), 6, 60);
    free(file);
    command_free(&r);
  }
  command_result r = twinspeed("tune -m gpt2 -c %s --cluster dgx-a100 -n 6 --seq 512 --stages 1 -o %s -q",
                               in_folder("elastic.json"), in_folder("elastic"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  assert_file_is_deepspeeds(in_folder("elastic/ds_config_optimal.json"), 6, 60);
  command_free(&r);
}
END_TEST

/* docs/recipes.md has a row for each setting, with the formats that hold it. */
START_TEST(the_page_says_what_files_hold) {
  static const char *const samples[TWS_SETTING_COUNT] = {[TWS_SETTING_STAGE] = "3",
                                                         [TWS_SETTING_TYPE] = "bf16",
                                                         [TWS_SETTING_SCHEDULE] = "1f1b",
                                                         [TWS_SETTING_TOKENS] = "true",
                                                         [TWS_SETTING_TENSOR_OVERLAP] = "true",
                                                         [TWS_SETTING_ALGORITHM] = "ring",
                                                         [TWS_SETTING_RECOMPUTE] = "full",
                                                         [TWS_SETTING_OPTIMIZER_PLACE] = "cpu",
                                                         [TWS_SETTING_PARAMETER_PLACE] = "cpu",
                                                         [TWS_SETTING_OVERLAP] = "true",
                                                         [TWS_SETTING_MATMUL] = "fp8",
                                                         [TWS_SETTING_FP8_RECIPE] = "tensorwise",
                                                         [TWS_SETTING_OPTIMIZER] = "AdamW",
                                                         [TWS_SETTING_BETAS] = "[0.9,0.95]",
                                                         [TWS_SETTING_FROZEN] = "nf4",
                                                         [TWS_SETTING_TARGETS] = "all-linear",
                                                         [TWS_SETTING_QUANTIZED_WEIGHTS] = "true",
                                                         [TWS_SETTING_QUANTIZED_GRADIENTS] = "true"};
  tws_settings settings = {0};
  const int file = open(TWS_SOURCE_DIR "/docs/recipes.md", O_RDONLY);
  ck_assert_int_ge(file, 0);
  char *page = command_slurp(file);
  for (int i = 0; i < TWS_SETTING_COUNT; i++)
    tws_setting_put(&settings, (tws_setting)i, "%s", samples[i] ? samples[i] : "2");
  for (int i = 0; i < TWS_SETTING_COUNT; i++) {
    char row[256];
    int n = snprintf(row, sizeof row, "\n| %s |", tws_setting_words((tws_setting)i));
    if (i == TWS_SETTING_RANKS) continue;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
      n += snprintf(row + n, sizeof row - (size_t)n, " %s |",
                    tws_format_holds(formats[f].format, &settings, (tws_setting)i) ? "yes" : "");
    snprintf(row + n, sizeof row - (size_t)n, "\n");
    ck_assert_msg(strstr(page, row) != NULL, "docs/recipes.md has no row%s", row);
  }
  free(page);
}
END_TEST

/* Arguments of Megatron-DeepSpeed: ranks that share a sequence, attention in chunks of tokens, and with these two tiles
 * of MLPs and 32 tiles of the loss for each chunk. */
START_TEST(long_sequences_of_megatron_deepspeed) {
  static const struct {
    const char *arguments;
    int64_t chunks; /* 0: refused */
  } cases[] = {
      {"--ds-sequence-parallel-size 4", 1},
      {"--ds-sequence-parallel-size 4 --ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-offloading", 4},
      {"--ds-sequence-parallel-size 4 --ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-chunk-size 32768", 8},
      {"--ds-sequence-parallel-size 4 --ds-sequence-parallel-fpdt-chunk-size 32768", 1},
      {"--ds-sequence-parallel-size 4 --ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-chunk-size 40000", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    tws_config *config;
    tws_error err = {0};
    snprintf(text, sizeof text, "--num-layers 2 --seq-length 262144 --micro-batch-size 1 --global-batch-size 2 %s\n",
             cases[i].arguments);
    write_text(in_folder("long.txt"), text);
    tws_code code = tws_config_load(in_folder("long.txt"), &config, &err);
    if (code == TWS_OK) {
      const int64_t chunked = cases[i].chunks > 1 ? cases[i].chunks : 0;
      ck_assert_int_eq(tws_config_format_of(config), TWS_FORMAT_MEGATRON_DEEPSPEED);
      code = tws_config_resolve(config, 8, &(tws_auto_context){.hidden_size = 64}, &err);
      if (code == TWS_OK)
        ck_assert_msg(config->attention_chunks == cases[i].chunks && config->mlp_tiles == (chunked ? 2 * chunked : 1) &&
                          config->loss_tiles == (chunked ? 32 * chunked : 1) &&
                          tws_config_division(config).sequence == 4 && config->sequence_algorithm != TWS_SEQUENCE_RING,
                      "%s: %lld chunks", text, (long long)config->attention_chunks);
      tws_config_destroy(config);
    }
    ck_assert_msg((code == TWS_OK) == (cases[i].chunks > 0), "%s: %s", text, err.message);
    if (code != TWS_OK) ck_assert_msg(strstr(err.message, "attention_chunks") != NULL, "%s", err.message);
  }
}
END_TEST

/* Products in 8 bits and their scales are read from the arguments of Megatron-LM, and from files of Megatron-Bridge and
 * torchtitan; what has no counterpart here is named in a note, or the note says what is computed in its place. */
START_TEST(scales_in_8_bits_are_read) {
#define ARGUMENTS "--micro-batch-size 1 --bf16 "
#define BRIDGE "model:\n  tensor_model_parallel_size: 1\n"
#define TITAN "[training]\nseq_len = 8\n[model]\n"
  static const struct {
    const char *name, *text, *matmul, *recipe, *history, *margin, *note; /* note: "": there is none */
  } files[] = {
      {"a.sh", ARGUMENTS "--fp8-format hybrid", "fp8", "delayed", "1", "0", ""},
      {"a.sh", ARGUMENTS "--fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-margin 2",
       "fp8", "delayed", "1024", "2", ""},
      {"a.sh", ARGUMENTS "--fp8-format hybrid --fp8-amax-history-len 1024", "fp8", "delayed", "1", "0", ""},
      {"a.sh", ARGUMENTS "--fp8-format hybrid --fp8-recipe tensorwise --fp8-amax-history-len 16", "fp8", "tensorwise",
       "", "", ""},
      {"a.sh", ARGUMENTS "--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8", "", "", "", ""},
      {"a.sh", ARGUMENTS "--fp8-recipe delayed --fp8-margin 2", "", "", "", "", ""},
      {"a.sh", ARGUMENTS "--fp8-format e4m3 --fp8-recipe blockwise --no-fp8-wgrad", "fp8", "tensorwise", "", "",
       ("a.sh: these keys are not read: no_fp8_wgrad; fp8_recipe is taken as tensorwise: a tensor has one scale; "
        "fp8_format is taken as hybrid: gradients are e5m2")},
      {"a.sh", ARGUMENTS "--fp8-format hybrid --fp8-param-gather --fp8-interval 1", "fp8", "delayed", "1", "0",
       "a.sh: these keys are not read: fp8_param_gather"},
      {"b.yaml", BRIDGE "  fp8: hybrid\nmixed_precision: bf16_mixed\n", "fp8", "delayed", "1", "0", ""},
      {"b.yaml", BRIDGE "mixed_precision: bf16-with-fp8-delayed-scaling-mixed\n", "fp8", "delayed", "1024", "0", ""},
      {"b.yaml", BRIDGE "mixed_precision: bf16_with_fp8_current_scaling_mixed\n", "fp8", "tensorwise", "", "",
       ("b.yaml: mixed_precision bf16_with_fp8_current_scaling_mixed: the first and last layers have products in 8 "
        "bits too")},
      {"b.yaml", BRIDGE "mixed_precision:\n  bf16: true\n  fp8: hybrid\n", "fp8", "tensorwise", "", "", ""},
      {"t.toml", TITAN "converters = [\"float8\"]\n", "fp8", "tensorwise", "", "", ""},
      {"t.toml", TITAN "converters = [\"float8\"]\n[float8]\nrecipe_name = \"rowwise_with_gw_hp\"\n", "fp8-rowwise", "",
       "", "",
       "t.toml: recipe_name rowwise_with_gw_hp is taken as rowwise: gradients of weights are products in 8 bits"},
      {"t.toml", TITAN "converters = [\"quantize.linear.mx\"]\n", "mxfp8", "", "", "", ""}};
  static const tws_setting settings[] = {TWS_SETTING_MATMUL, TWS_SETTING_FP8_RECIPE, TWS_SETTING_FP8_HISTORY,
                                         TWS_SETTING_FP8_MARGIN};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    const char *const expected[] = {files[i].matmul, files[i].recipe, files[i].history, files[i].margin};
    tws_config_format format;
    tws_settings read;
    tws_text note = {0};
    tws_error err = {0};
    if (is_toml(files[i].name) && !reads_toml()) continue;
    ck_assert_msg(
        tws_format_read(files[i].text, strlen(files[i].text), files[i].name, &format, &read, &note, &err) == TWS_OK,
        "%s: %s", files[i].text, err.message);
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++)
      ck_assert_msg(strcmp(read.text[settings[k]], expected[k]) == 0, "%s: %s is \"%s\"", files[i].text,
                    tws_setting_words(settings[k]), read.text[settings[k]]);
    ck_assert_str_eq(read.text[TWS_SETTING_TYPE], "bf16");
    ck_assert_str_eq(note.length ? note.data : "", files[i].note);
    tws_text_free(&note);
  }
}
END_TEST

/* Megatron's runtime counts casts with the products: its predictions do not depend on the recipe, as a note says. */
START_TEST(recipes_leave_predictions_of_megatron) {
  double steps[2];
  write_text(in_folder("model.json"),
             "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 256, \"intermediate_size\": 512, "
             "\"num_attention_heads\": 4, \"vocab_size\": 1024, \"max_position_embeddings\": 8192}");
  for (int i = 0; i < 2; i++) {
    char text[512];
    snprintf(text, sizeof text,
             "--micro-batch-size 2 --global-batch-size 16 --seq-length 512 --bf16 --fp8-format hybrid %s\n",
             i ? "--fp8-amax-history-len 1024 --fp8-amax-compute-algo max" : "--fp8-recipe tensorwise");
    write_text(in_folder("eight.txt"), text);
    command_result r =
        twinspeed("estimate -m %s -c %s --cluster dgx-h100 --json", in_folder("model.json"), in_folder("eight.txt"));
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-estimate-1");
    ck_assert_str_eq(member(json, "runtime")->valuestring, "megatron");
    steps[i] = number(member(json, "time"), "step_s");
    ck_assert_int_eq(strstr(r.err, "twinspeed.fp8_recipe is ignored") != NULL, i);
    cJSON_Delete(json);
    command_free(&r);
  }
  ck_assert_double_eq(steps[0], steps[1]);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("formats");
  TCase *tcase = tcase_create("formats");
  tcase_set_timeout(tcase, 300);
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_test(tcase, exports_read_back);
  tcase_add_loop_test(tcase, exports_survive_other_writers, 0, 2);
  tcase_add_test(tcase, files_of_others_are_read);
  tcase_add_test(tcase, bad_files_have_a_place);
  tcase_add_test(tcase, rules_refuse);
  tcase_add_test(tcase, the_page_says_what_files_hold);
  tcase_add_test(tcase, jobs_are_exported);
  tcase_add_test(tcase, elastic_jobs_are_exported_with_their_batch);
  tcase_add_test(tcase, long_sequences_of_megatron_deepspeed);
  tcase_add_test(tcase, scales_in_8_bits_are_read);
  tcase_add_test(tcase, recipes_leave_predictions_of_megatron);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
