#include "job/export.h"

#include <stdio.h>
#include <string.h>

#include "compat/software_rules.h"
#include "config/formats.h"
#include "job/features.h"

static const struct {
  const char *word, *runtime;
  tws_config_format format;
} formats[] = {{"deepspeed", "deepspeed-flash", TWS_FORMAT_DEEPSPEED},
               {"megatron", "megatron", TWS_FORMAT_MEGATRON},
               {"torchtitan", "fsdp", TWS_FORMAT_TORCHTITAN},
               {"accelerate", "transformers", TWS_FORMAT_ACCELERATE},
               {"megatron-bridge", "nemo-2026", TWS_FORMAT_BRIDGE}};

static int is_fsdps(const tws_job *job) {
  const char *family = tws_runtime_family(tws_profile_runtime(job->profile), job->backend);
  return strcmp(family, "PyTorch FSDP") == 0 || strcmp(family, "torchtitan") == 0 || strcmp(family, "PyTorch DDP") == 0;
}

static tws_format_shape shape_of(const tws_job *job) {
  const tws_network *n = job->network;
  tws_format_shape shape = {.ranks = job->ranks,
                            .nodes = job->mapping.nodes > 0 ? job->mapping.nodes : 1,
                            .replicas = tws_job_ranks_along(job, TWS_AXIS_DATA),
                            .layers = n->layers,
                            .hidden = n->hidden,
                            .heads = n->heads,
                            .kv_heads = n->kv_heads,
                            .intermediate = n->intermediate,
                            .vocabulary = n->vocabulary,
                            .positions = n->positions,
                            .disk = tws_config_disk(job->config)};
  if (shape.positions < job->config->sequence_length) shape.positions = job->config->sequence_length;
  for (uint32_t m = 0; m < n->module_count; m++) {
    if (n->modules[m].type == TWS_MODULE_ROUTER) shape.experts = n->modules[m].routing->experts;
    shape.gated |= n->modules[m].type == TWS_MODULE_SWIGLU;
  }
  return shape;
}

/* Appends a word in single quotes, as a shell reads it. */
static void quote(const char *word, tws_text *out) {
  tws_text_add(out, "'");
  for (; *word; word++) tws_text_add(out, *word == '\'' ? "'\\''" : "%c", *word);
  tws_text_add(out, "'");
}

/* Appends the words of the command line after the launcher: the program and its arguments. */
static void add_program(const tws_job *job, tws_config_format format, const char *path, tws_text *out) {
  const char *const before[TWS_FORMAT_COUNT] = {[TWS_FORMAT_DEEPSPEED] = "train.py --deepspeed_config ",
                                                [TWS_FORMAT_MEGATRON] = "pretrain_gpt.py $(cat ",
                                                [TWS_FORMAT_TORCHTITAN] = "-m torchtitan.train --job.config_file ",
                                                [TWS_FORMAT_BRIDGE] = "train.py --config-file "};
  if (before[format]) tws_text_add(out, "%s", before[format]);
  quote(path, out);
  if (format == TWS_FORMAT_MEGATRON) tws_text_add(out, ")");
  if (format == TWS_FORMAT_ACCELERATE || format == TWS_FORMAT_ACCELERATE_FSDP)
    tws_text_add(out, " train.py --per_device_train_batch_size %lld", (long long)job->config->micro_batch_size);
}

static void add_launcher(const tws_job *job, tws_config_format format, const char *path, int slurm, tws_text *out) {
  const tws_format_shape shape = shape_of(job);
  const long long each = shape.ranks / shape.nodes;
  const int accelerates = format == TWS_FORMAT_ACCELERATE || format == TWS_FORMAT_ACCELERATE_FSDP;
  const char *head = slurm ? "\"$HEAD\"" : "HEAD";
  if (accelerates) {
    tws_text_add(out, "accelerate launch ");
    if (shape.nodes > 1)
      tws_text_add(out, "--main_process_ip %s --main_process_port 29500 --machine_rank %s ", head,
                   slurm ? "$SLURM_NODEID" : "NODE");
    tws_text_add(out, "--config_file ");
  } else if (format == TWS_FORMAT_DEEPSPEED && !slurm) {
    tws_text_add(out, "deepspeed --num_nodes %lld --num_gpus %lld ", (long long)shape.nodes, each);
  } else {
    tws_text_add(out, "torchrun --nnodes %lld --nproc_per_node %lld ", (long long)shape.nodes, each);
    if (shape.nodes > 1) tws_text_add(out, "--rdzv_backend c10d --rdzv_endpoint %s:29500 ", head);
    if (shape.nodes == 1) tws_text_add(out, "--standalone ");
  }
  add_program(job, format, path, out);
}

/* Writes a script for sbatch that runs one task on each node, which starts the node's ranks. */
static void add_sbatch(const tws_job *job, tws_config_format format, const char *path, tws_text *out) {
  const tws_format_shape shape = shape_of(job);
  const int connections = format == TWS_FORMAT_MEGATRON && job->config->zero.stage < 2 &&
                          (job->config->tensor_ranks > 1 || job->config->sequence_ranks > 1);
  tws_text line = {0};
  tws_text_add(out,
               "#!/bin/bash\n#SBATCH --nodes=%lld\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=%lld\n"
               "#SBATCH --exclusive\nset -eu\n",
               (long long)shape.nodes, (long long)(shape.ranks / shape.nodes));
  if (shape.nodes > 1)
    tws_text_add(out, "export HEAD=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n");
  if (connections) tws_text_add(out, "export CUDA_DEVICE_MAX_CONNECTIONS=1\n");
  add_launcher(job, format, path, 1, &line);
  tws_text_add(out, "srun bash -c ");
  quote(line.data ? line.data : "", out);
  tws_text_add(out, "\n");
  tws_text_free(&line);
}

/* Names the settings of the job that a file of this format cannot state. */
static void add_left(const tws_job *job, const tws_settings *settings, tws_config_format format, tws_text *out) {
  static const char *const usual[] = {"1", "0", "none", "auto", "false"};
  for (int i = 0; i < TWS_SETTING_COUNT; i++) {
    const char *value = settings->text[i];
    int plain = !*value || i == TWS_SETTING_RANKS;
    for (size_t k = 0; k < sizeof usual / sizeof *usual; k++) plain |= strcmp(value, usual[k]) == 0;
    if (!plain && !tws_format_holds(format, settings, (tws_setting)i))
      tws_text_add(out, "%s%s %s", out->length ? ", " : "", tws_setting_words((tws_setting)i), value);
  }
  /* none of these programs has an elastic batch: DeepSpeed 0.19.8 refuses the section */
  if (tws_config_is_elastic(job->config))
    tws_text_add(out, "%selasticity (its batch of %lld for %d ranks %s)", out->length ? ", " : "",
                 (long long)job->config->train_batch_size, job->ranks,
                 tws_format_holds(format, settings, TWS_SETTING_MICRO) ? "is in the file" : "has to be given");
}

/* Checks the written file by the software's own rules; fails with TWS_INVALID. */
static tws_code check_rules(const tws_job *job, const tws_export *out, tws_error *err) {
  cJSON *root = NULL;
  tws_code code = TWS_OK;
  tws_error why = {0};
  if (out->format == TWS_FORMAT_DEEPSPEED) {
    root = cJSON_Parse(out->file.data);
    if (root) code = tws_deepspeed_check(root, job->ranks, &why);
  } else if (out->format == TWS_FORMAT_MEGATRON) {
    TWS_TRY(tws_format_arguments(out->file.data, "arguments", &root, err));
    code = tws_megatron_check(root, job->ranks, &why);
  } else {
    return TWS_OK;
  }
  cJSON_Delete(root);
  if (!root) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the export");
  return code == TWS_OK ? TWS_OK
                        : tws_fail(err, TWS_INVALID, "change the job so that the rule holds",
                                   "the file would be refused there by this rule: %s", why.message);
}

/* Finds the row of a format by its name. */
static tws_code find_format(const char *format, size_t *at, tws_error *err) {
  for (*at = 0; *at < sizeof formats / sizeof *formats; ++*at)
    if (strcmp(formats[*at].word, format) == 0) return TWS_OK;
  return tws_fail(err, TWS_USAGE, TWS_EXPORT_WORDS, "--export: no format \"%.40s\"", format);
}

tws_code tws_export_check(const char *format, tws_error *err) {
  size_t at;
  return find_format(format, &at, err);
}

tws_code tws_job_export(const tws_job *job, const char *format, const char *path, tws_export *out, tws_error *err) {
  const tws_format_shape shape = shape_of(job);
  tws_settings settings;
  size_t at;
  *out = (tws_export){0};
  TWS_TRY(find_format(format, &at, err));
  const int shards = formats[at].format == TWS_FORMAT_ACCELERATE && is_fsdps(job);
  out->format = shards ? TWS_FORMAT_ACCELERATE_FSDP : formats[at].format;
  const tws_runtime *runtime = tws_runtime_find(shards ? "torchtune" : formats[at].runtime);
  const tws_features lacked = tws_job_features(job) & ~tws_runtime_features(runtime, TWS_BACKEND_CUDA);
  if (lacked) {
    tws_text text = {0};
    tws_features_text(lacked, &text);
    tws_fail(err, TWS_UNSUPPORTED, "change the job, or export it for other software", "%s cannot run this job: it %s",
             tws_runtime_family(runtime, TWS_BACKEND_CUDA), text.data ? text.data : "");
    tws_text_free(&text);
    return TWS_UNSUPPORTED;
  }
  tws_settings_of(job->config, &settings);
  TWS_TRY(tws_format_write(out->format, &settings, &shape, &out->file, err));
  TWS_TRY(check_rules(job, out, err));
  add_launcher(job, out->format, path, 0, &out->launch);
  add_sbatch(job, out->format, path, &out->sbatch);
  add_left(job, &settings, out->format, &out->left);
  const int failed = out->launch.failed || out->sbatch.failed || out->left.failed;
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for the export") : TWS_OK;
}

void tws_export_free(tws_export *out) {
  tws_text_free(&out->file);
  tws_text_free(&out->launch);
  tws_text_free(&out->sbatch);
  tws_text_free(&out->left);
}
