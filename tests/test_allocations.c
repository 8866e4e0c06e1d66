/* Each allocation fails once, with all later ones: whatever reads or builds something then returns TWS_MEMORY and
 * leaves no allocation. Other components have this test in their own suites (json, config, cluster, tokens,
 * pipeline_schedule, torch_files). */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/checksum.h"
#include "base/json.h"
#include "checkpoint/index.h"
#include "estimators/estimators.h"
#include "failing_allocator.h"
#include "job/job.h"
#include "launch/env_file.h"
#include "launch/hostfile.h"
#include "models/network/huggingface.h"
#include "models/network/safetensors.h"
#include "tests/folder.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

/* Runs the body with each of its first allocations failing, then with later ones at growing distances, until it
 * succeeds. Returns how many runs failed. */
static long fail_many(tws_code (*body)(void *user), void *user, const char *what) {
  long tried = 0;
  for (long n = 0;; n += 1 + n / (TWS_SANITIZED ? 40 : 80)) {
    failing_allocator f = {.countdown = n};
    tws_set_allocator(&(tws_allocator){failing_resize, &f});
    const tws_code code = body(user);
    tws_set_allocator(NULL);
    ck_assert_msg(f.held == 0, "%s: %ld allocations are left after allocation %ld of it failed", what, f.held, n);
    if (code == TWS_OK) return tried;
    ck_assert_msg(code == TWS_MEMORY, "%s: allocation %ld failed, and it says %s", what, n, tws_code_name(code));
    tried++;
  }
}

static char *fuzz_corpus(const char *name, size_t *length) {
  char path[512], *text = NULL;
  tws_error err = {0};
  snprintf(path, sizeof path, "%s/fuzz/corpus/%s", TWS_TEST_DIR, name);
  ck_assert_msg(tws_read_file(path, 0, &text, length, &err) == TWS_OK, "%s", err.message);
  return text;
}

/* ---- networks ---- */

static tws_code load_network(void *name) {
  tws_network *network = NULL;
  TWS_TRY(tws_network_load(name, 8, &network, NULL));
  tws_network_destroy(network);
  return TWS_OK;
}

START_TEST(networks) {
  static char *const names[] = {"tiny-gpt2", "tiny-llama", "tiny-mixtral"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    ck_assert_int_gt(fail_many(load_network, names[i], names[i]), 20);
}
END_TEST

/* ---- plans: model, configuration and cluster of the jobs that the fuzzer starts from ---- */

typedef struct job_text {
  char *text[3];
} job_text;

static tws_code read_parts(const job_text *from, tws_job_parts_given *parts) {
  tws_json *json = NULL;
  TWS_TRY(tws_json_parse(from->text[1], strlen(from->text[1]), "job", &json, NULL));
  tws_code code = tws_config_from_json(json, &parts->config, NULL);
  tws_json_destroy(json);
  TWS_TRY(code);
  TWS_TRY(tws_json_parse(from->text[2], strlen(from->text[2]), "job", &json, NULL));
  code = tws_cluster_from_json(json, &parts->cluster, NULL);
  tws_json_destroy(json);
  TWS_TRY(code);
  TWS_TRY(tws_json_parse(from->text[0], strlen(from->text[0]), "job", &json, NULL));
  code = tws_network_from_json(json, tws_config_vocabulary_multiple(parts->config), &parts->network, NULL);
  tws_json_destroy(json);
  TWS_TRY(code);
  return tws_profile_load("a100-80gb", &parts->profile, NULL);
}

static tws_code use_job(tws_job *job) {
  tws_plan *plan = NULL;
  tws_estimate estimate;
  TWS_TRY(tws_job_plan(job, job->ranks - 1, &plan, NULL));
  tws_code code = tws_plan_verify(plan, NULL);
  tws_plan_destroy(plan);
  if (code == TWS_OK) code = tws_job_estimate(job, &estimate, NULL, NULL);
  return code;
}

static tws_code plan_job(void *from) {
  tws_job_parts_given parts = {0};
  tws_job *job = NULL;
  tws_code code = read_parts(from, &parts);
  if (code != TWS_OK) {
    tws_network_destroy(parts.network);
    tws_config_destroy(parts.config);
    tws_profile_destroy(parts.profile);
    return code;
  }
  parts.ranks = parts.cluster.nodes * parts.cluster.devices_per_node;
  code = tws_job_assemble(&parts, &job, NULL);
  if (code == TWS_OK) code = use_job(job);
  tws_job_destroy(job);
  return code;
}

START_TEST(plans) {
  static const char *const jobs[] = {"one", "zero3", "pipeline", "interleaved", "tensor", "sequence"};
  size_t length;
  char name[64], *text;
  snprintf(name, sizeof name, "job/%s", jobs[_i]);
  text = fuzz_corpus(name, &length);
  char *second = strstr(text, "\n---\n"), *third = second ? strstr(second + 5, "\n---\n") : NULL;
  ck_assert(second && third);
  *second = *third = '\0';
  job_text job = {{text, second + 5, third + 5}};
  ck_assert_int_gt(fail_many(plan_job, &job, name), 100);
  tws_free(text);
}
END_TEST

/* ---- files ---- */

typedef struct bytes {
  const char *data;
  size_t count;
} bytes;

static tws_code read_index(void *from) {
  const bytes *b = from;
  tws_saved_index *index = NULL;
  tws_hf_tensor *tensors;
  uint32_t count;
  TWS_TRY(tws_saved_parse(b->data, b->count, "folder", &index, NULL));
  const tws_hf_request names = {.architecture = index->architecture,
                                .params = index->params,
                                .param_count = index->param_count,
                                .vocabulary = index->vocabulary,
                                .padded_vocabulary = index->padded_vocabulary};
  tws_text text = {0};
  tws_code code = tws_hf_tensors(&names, index->arena, &tensors, &count, NULL);
  if (code == TWS_UNSUPPORTED) code = TWS_OK; /* the fuzzer's corpus has parameters of no known model */
  tws_saved_write(index, &text);
  if (code == TWS_OK && text.failed) code = TWS_MEMORY;
  tws_text_free(&text);
  tws_saved_close(index);
  return code;
}

START_TEST(indices) {
  static const char *const names[] = {"checkpoint/blocks", "checkpoint/columns"};
  for (int i = 0; i < 2; i++) {
    size_t length;
    char *text = fuzz_corpus(names[i], &length);
    tws_text whole = {0};
    tws_text_add_bytes(&whole, text, length);
    tws_text_add(&whole, ",\n\"checksum\":\"%016" PRIx64 "\"}\n", tws_checksum(0, text, length));
    bytes b = {whole.data, whole.length};
    ck_assert_int_gt(fail_many(read_index, &b, names[i]), 10);
    tws_text_free(&whole);
    tws_free(text);
  }
}
END_TEST

static tws_code read_header(void *from) {
  const bytes *b = from;
  tws_safetensors *list = NULL;
  TWS_TRY(tws_safetensors_parse("file", b->data, b->count, (int64_t)b->count + 28, &list, NULL));
  tws_safetensors_close(list);
  return TWS_OK;
}

START_TEST(headers) {
  size_t length;
  char *text = fuzz_corpus("checkpoint/header", &length);
  tws_text whole = {0};
  for (int i = 0; i < 8; i++) {
    const char byte = (char)(length >> 8 * i & 255);
    tws_text_add_bytes(&whole, &byte, 1);
  }
  tws_text_add_bytes(&whole, text, length);
  bytes b = {whole.data, whole.length};
  ck_assert_int_gt(fail_many(read_header, &b, "safetensors"), 5);
  tws_text_free(&whole);
  tws_free(text);
}
END_TEST

/* ---- hosts ---- */

static tws_code find_hosts(void *request) {
  tws_arena *arena = tws_arena_create();
  tws_hosts hosts;
  tws_env_file file;
  if (!arena) return TWS_MEMORY;
  tws_code code = tws_hosts_find(request, arena, &hosts, NULL);
  if (code == TWS_OK) code = tws_env_file_read(arena, &file, NULL);
  tws_arena_destroy(arena);
  return code;
}

START_TEST(hosts) {
  static const char text[] = "# all\nworker-0 slots=4\nworker-1 slots=2\nworker-2 slots=8\n";
  char path[64];
  snprintf(path, sizeof path, "%s", in_folder("hosts"));
  ck_assert(tws_write_file(path, text, strlen(text), NULL) == TWS_OK);
  ck_assert(tws_write_file(in_folder("env"), "A=1\nB=2\n", 8, NULL) == TWS_OK);
  setenv("DS_ENV_FILE", in_folder("env"), 1);
  tws_hosts_request file = {.hostfile = path, .include = "worker-0:0,1@worker-2"};
  tws_hosts_request slurm = {.nodelist = "gpu[01-12,20],login", .tasks = "4(x3),1(x11)"};
  ck_assert_int_gt(fail_many(find_hosts, &file, "a hostfile"), 3);
  ck_assert_int_gt(fail_many(find_hosts, &slurm, "Slurm's words"), 3);
  unsetenv("DS_ENV_FILE");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("allocations");
  TCase *tests = tcase_create("allocations");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, networks);
  tcase_add_loop_test(tests, plans, 0, 6);
  tcase_add_test(tests, indices);
  tcase_add_test(tests, headers);
  tcase_add_test(tests, hosts);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
