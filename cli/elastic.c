/* twinspeed elastic: prints the numbers of GPUs that an elasticity section allows, and the batch of each. */
#include <string.h>
#include "cli/cli.h"
#include "config/ds_config.h"
#include "config/elasticity.h"

typedef struct options {
  const char *config;
  tws_strings set;
  int64_t ranks;
} options;

typedef struct answer {
  tws_elastic elastic;
  tws_elastic_choice all; /* the batch for all numbers of GPUs */
  tws_elastic_row *rows;
  int count;
  tws_elastic_row own; /* with -n: the batch for that number of GPUs */
  int64_t own_batch;
} answer;

static tws_code read_section(const options *o, tws_elastic *out, tws_error *err) {
  tws_config *config = NULL;
  tws_code code = o->config ? tws_config_load(o->config, &config, err) : tws_config_default(&config, err);
  for (int i = 0; code == TWS_OK && i < o->set.count; i++) {
    const char *equals = strchr(o->set.item[i], '=');
    char key[128];
    if (!equals || equals - o->set.item[i] >= (int)sizeof key) {
      code = tws_fail(err, TWS_USAGE, "--set elasticity.max_train_batch_size=2000", "--set %.100s: not KEY=VALUE",
                      o->set.item[i]);
      break;
    }
    snprintf(key, sizeof key, "%.*s", (int)(equals - o->set.item[i]), o->set.item[i]);
    code = tws_config_set(config, key, equals + 1, err);
  }
  if (code == TWS_OK) code = tws_config_elastic(config, out, err);
  tws_config_destroy(config);
  return code;
}

static cJSON *row_json(const tws_elastic_row *row, int64_t batch) {
  cJSON *one = cJSON_CreateObject();
  cJSON_AddNumberToObject(one, "gpus", (double)row->gpus);
  cJSON_AddNumberToObject(one, "data_parallel", (double)row->replicas);
  cJSON_AddNumberToObject(one, "train_batch_size", (double)batch);
  cJSON_AddNumberToObject(one, "train_micro_batch_size_per_gpu", (double)row->micro);
  cJSON_AddNumberToObject(one, "gradient_accumulation_steps", (double)row->accumulation);
  return one;
}

static tws_code print_json(const answer *a, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-elastic-1");
  cJSON_AddNumberToObject(root, "version", a->elastic.version);
  cJSON_AddNumberToObject(root, "max_train_batch_size", (double)a->elastic.max_batch);
  cJSON_AddNumberToObject(root, "final_batch_size", (double)a->all.batch);
  cJSON *valid = cJSON_AddArrayToObject(root, "valid_gpus");
  for (int i = 0; i < a->all.gpu_count; i++) cJSON_AddItemToArray(valid, cJSON_CreateNumber((double)a->all.gpus[i]));
  cJSON *list = cJSON_AddArrayToObject(root, "jobs");
  for (int i = 0; i < a->count; i++) cJSON_AddItemToArray(list, row_json(&a->rows[i], a->all.batch));
  if (a->own.gpus) cJSON_AddItemToObject(root, "asked", row_json(&a->own, a->own_batch));
  return tws_out_json(root, err);
}

static tws_code print_text(const tws_cli *cli, const answer *a, tws_error *err) {
  const tws_elastic *e = &a->elastic;
  tws_out_wrapped(2, "elasticity %g: a batch of %lld samples (at most %lld) for %d numbers of GPUs", e->version,
                  (long long)a->all.batch, (long long)e->max_batch, a->count);
  tws_table table;
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"GPUs", "data-parallel", "micro batch", "accumulation"});
  for (int i = 0; i < a->count; i++) {
    const tws_elastic_row *row = &a->rows[i];
    tws_table_row(&table, (const char *[]){
                              tws_cell("%lld", (long long)row->gpus), tws_cell("%lld", (long long)row->replicas),
                              tws_cell("%lld", (long long)row->micro), tws_cell("%lld", (long long)row->accumulation)});
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  if (!a->own.gpus) return TWS_OK;
  tws_out_wrapped(2,
                  "%lld GPUs: a batch of %lld = micro batch %lld x %lld accumulation steps x %lld data-parallel ranks",
                  (long long)a->own.gpus, (long long)a->own_batch, (long long)a->own.micro,
                  (long long)a->own.accumulation, (long long)a->own.replicas);
  return TWS_OK;
}

static tws_code run_elastic(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  (void)argc;
  (void)argv;
  const options *o = raw;
  answer a = {0};
  if (!o->config && !o->set.count)
    return tws_fail(err, TWS_USAGE, "twinspeed elastic -c ds_config.json", "elastic: no configuration was given");
  TWS_TRY(read_section(o, &a.elastic, err));
  TWS_TRY(tws_elastic_list(&a.elastic, &a.all, &a.rows, &a.count, err));
  tws_code code = o->ranks ? tws_elastic_ask(&a.elastic, o->ranks, &a.own, &a.own_batch, err) : TWS_OK;
  if (code == TWS_OK) code = cli->json ? print_json(&a, err) : print_text(cli, &a, err);
  tws_free(a.rows);
  tws_free(a.all.gpus);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("config", 'c', "FILE", options, config,
               "ds_config.json with an elasticity section (\"-\": standard input)"),
    TWS_INTEGER("ranks", 'n', "N", options, ranks, 1, 4194304, "can a job of N GPUs train, and with which batch"),
    TWS_LIST("set", 0, "KEY=VALUE", options, set, "set a configuration key: --set elasticity.max_gpus=64"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_elastic = {
    .name = "elastic",
    .summary = "numbers of GPUs that an elasticity section allows, and their batches",
    .usage = "-c FILE [options]",
    .examples =
        "  twinspeed elastic -c ds_config.json\n"
        "  twinspeed elastic -c ds_config.json -n 24 --json\n",
    .notes =
        "The batch and the numbers are those of DeepSpeed's ds_elastic (compute_elastic_config). All rows have the\n"
        "same batch, so a job can continue with another of these numbers with equal results. With version 0.2 a\n"
        "number of nodes that is not listed has a batch of its own, which -n N prints. \"valid_gpus\" in JSON is\n"
        "DeepSpeed's list; with model parallelism it has numbers of data-parallel ranks, and \"jobs\" the world sizes\n"
        "that DeepSpeed accepts. Exit code 1: N GPUs cannot train.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .run = run_elastic,
};
