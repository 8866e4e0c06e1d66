/* Clusters: built-in names, files, and the errors for wrong ones. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/cluster.h"
#include "models/hardware/profile.h"
#include "tests/failing_allocator.h"
#include "tests/suite.h"

static tws_error err;

static tws_code from_text(const char *text, tws_cluster *out) {
  tws_json *json;
  err = (tws_error){0};
  TWS_TRY(tws_json_parse(text, strlen(text), "folder/c.json", &json, &err));
  tws_code code = tws_cluster_from_json(json, out, &err);
  tws_json_destroy(json);
  return code;
}

START_TEST(builtins) {
  int count = 0, systems = 0;
  for (const char *const *name = tws_cluster_builtin_names(); *name; name++, count++) {
    tws_cluster c;
    char spec[80];
    ck_assert_msg(tws_cluster_load(*name, &c, &err) == TWS_OK, "%s: %s", *name, err.message);
    ck_assert_str_eq(c.name, *name);
    if (c.box) continue; /* tests/test_hardware.c */
    systems++;
    ck_assert_msg(c.nodes == 1 && c.devices_per_node >= 1 && c.cores_per_node >= 1 && c.nics_per_node >= 1, "%s",
                  *name);
    ck_assert_msg(c.host_memory_bytes > 1e8 && c.intra.bandwidth > 0 && c.inter.bandwidth > 0 &&
                      c.host_link.bandwidth > 0 && c.intra.latency_s > 0 && c.inter.latency_s > 0,
                  "%s", *name);
    ck_assert_msg(c.intra.bandwidth >= c.inter.bandwidth, "%s", *name);
    tws_profile *profile;
    ck_assert_msg(tws_profile_load(c.profile, &profile, &err) == TWS_OK, "%s: %s", *name, err.message);
    tws_profile_destroy(profile);
    /* A job may use fewer devices of a node than there are, and no more; those of a host are ranks, of any number. */
    const int present = c.devices_per_node, used = present > 1 ? present - 1 : 1;
    snprintf(spec, sizeof spec, "%s:7x%d", *name, used);
    ck_assert_int_eq(tws_cluster_load(spec, &c, &err), TWS_OK);
    ck_assert(c.nodes == 7 && c.devices_per_node == used && strcmp(c.name, spec) == 0);
    snprintf(spec, sizeof spec, "%s:7x%d", *name, present + 1);
    const int host = strcmp(*name, "host") == 0;
    ck_assert_int_eq(tws_cluster_load(spec, &c, &err), host ? TWS_OK : TWS_INVALID);
    snprintf(spec, sizeof spec, "%d devices of a node, and a node has %d", present + 1, present);
    ck_assert_msg(host || (strstr(err.message, spec) && strstr(err.hint, "devices_per_node")), "%s: %s", *name,
                  err.message);
  }
  ck_assert_int_eq(systems, 17);
  ck_assert_int_eq(count, 17 + 78);
  tws_cluster c;
  ck_assert_int_eq(tws_cluster_load("dgx2-v100:64", &c, &err), TWS_OK);
  ck_assert(c.nodes == 64 && c.devices_per_node == 16 && c.nics_per_node == 8 && c.inter.bandwidth == 12.5e9);
  ck_assert_int_eq(tws_cluster_load("h200", &c, &err), TWS_OK);
  ck_assert(c.devices_per_node == 1 && strcmp(c.profile, "h200") == 0 && c.intra.bandwidth == 450e9);
  ck_assert_int_eq(tws_cluster_load("quad-v100", &c, &err), TWS_OK);
  ck_assert(c.paired && tws_cluster_port(&c, 2) == 50e9 && tws_cluster_port(&c, 4) == 150e9);
}
END_TEST

START_TEST(files) {
  tws_cluster c;
  ck_assert_msg(
      from_text(
          "{\"schema\": \"twinspeed-cluster-1\", \"name\": \"lab\", \"profile\": \"gpu.json\", \"nodes\": 3,\n"
          " \"devices_per_node\": 4, \"cores_per_node\": 32, \"host_memory\": \"512GiB\", \"device_memory\": 8e10,\n"
          " \"intra\": {\"bandwidth\": \"300 GB/s\", \"latency_s\": 2e-6}, // NVLink\n"
          " \"inter\": {\"bandwidth\": 25e9, \"latency_s\": 5e-6}, \"nics_per_node\": 2, \"message_bandwidth\": \"50 "
          "GB/s\", \"message_s\": 3e-6, \"paired\": 1,\n"
          " \"host_link\": {\"bandwidth\": \"31GB/s\"}, \"disk\": {\"read\": 6e9, \"write\": \"3 GB/s\", \"size\": "
          "\"2TB\"}}",
          &c) == TWS_OK,
      "%s", err.message);
  ck_assert(strcmp(c.name, "lab") == 0 && strcmp(c.profile, "folder/gpu.json") == 0);
  ck_assert(c.nodes == 3 && c.devices_per_node == 4 && c.cores_per_node == 32 && c.nics_per_node == 2);
  ck_assert(c.host_memory_bytes == 512.0 * 1024 * 1024 * 1024 && c.device_memory_bytes == 8e10);
  ck_assert(c.intra.bandwidth == 300e9 && c.intra.latency_s == 2e-6 && c.inter.bandwidth == 25e9);
  ck_assert(c.message_bandwidth == 50e9 && c.message_s == 3e-6 && c.paired);
  ck_assert(c.host_link.bandwidth == 31e9 && c.disk_read == 6e9 && c.disk_write == 3e9 && c.disk_bytes == 2e12);
  ck_assert_int_eq(from_text("{\"schema\": \"twinspeed-cluster-1\", \"base\": \"dgx-a100:4\", \"nics_per_node\": 1,"
                             " \"inter\": {\"bandwidth\": 1e9}, \"profile\": \"a100-40gb\"}",
                             &c),
                   TWS_OK);
  ck_assert(c.nodes == 4 && c.devices_per_node == 8 && c.nics_per_node == 1 && c.inter.bandwidth == 1e9);
  ck_assert(c.inter.latency_s == 14e-6 && c.intra.bandwidth == 300e9 && strcmp(c.profile, "a100-40gb") == 0);

  char path[] = "/tmp/twinspeed-cluster-XXXXXX.json";
  int fd = mkstemps(path, 5);
  ck_assert_int_ge(fd, 0);
  static const char text[] = "{\"schema\": \"twinspeed-cluster-1\", \"profile\": \"/abs/p.json\"}";
  ck_assert_int_eq(write(fd, text, sizeof text - 1), sizeof text - 1);
  close(fd);
  ck_assert_int_eq(tws_cluster_load(path, &c, &err), TWS_OK);
  ck_assert_str_eq(c.profile, "/abs/p.json");
  unlink(path);
  ck_assert_int_eq(tws_cluster_load(path, &c, &err), TWS_IO);
}
END_TEST

START_TEST(refused) {
#define S "{\"schema\": \"twinspeed-cluster-1\""
  static const struct {
    const char *text, *message, *hint;
  } texts[] = {{"[]", "c.json:1:1: a cluster file holds one object", "twinspeed-cluster-1"},
               {"{}", "key \"schema\" is missing", ""},
               {"{\"schema\": \"twinspeed-cluster-9\"}", "c.json:1:2: unknown schema", "twinspeed-cluster-1"},
               {"{\"schema\": 3}", "must be a string", ""},
               {S ", \"node\": 3}", "c.json:1:35: unknown key \"node\"", "\"nodes\""},
               {S ", \"nodes\": 0}", "from 1 to 65536, not 0", ""},
               {S ", \"nodes\": -1}", "not -1", ""},
               {S ", \"nodes\": 1e9}", "not 1000000000", ""},
               {S ", \"nodes\": 1.5}", "an integer", ""},
               {S ", \"nodes\": \"4\"}", "the string \"4\"", "quotes"},
               {S ", \"nodes\": 4}", "4 nodes, but no network", "inter"},
               {S ", \"devices_per_node\": 8}", "8 devices a node, but no bandwidth", "intra"},
               {S ", \"nodes\": 1, \"nodes\": 2}", "duplicate key", ""},
               {S ", \"leaf\": {\"nodes\": 2}}", "\"oversubscription\" is missing", ""},
               {S ", \"leaf\": {\"nodes\": 2, \"oversubscription\": 0.5}}", "\"oversubscription\" must be", ""},
               {S ", \"collectives\": \"trees\"}", "unknown word \"trees\"", "nccl"},
               {S ", \"intra\": 5}", "\"intra\" must be an object", "{\"bandwidth\": ..., \"latency_s\": ..."},
               {S ", \"intra\": {\"bandwith\": 5}}", "unknown key \"bandwith\"", "bandwidth"},
               {S ", \"intra\": {\"bandwidth\": -5}}", "\"bandwidth\" must be", ""},
               {S ", \"intra\": {\"bandwidth\": \"300 Gbit\"}}", "not a number of bytes", "GB/s"},
               {S ", \"intra\": {\"bandwidth\": \"-1 GB/s\"}}", "not a number of bytes", ""},
               {S ", \"intra\": {\"bandwidth\": 1e31}}", "\"bandwidth\" must be", ""},
               {S ", \"intra\": {\"latency_s\": -1}}", "\"latency_s\" must be", ""},
               {S ", \"host_memory\": \"lots\"}", "not a number of bytes", ""},
               {S ", \"host_memory\": true}", "\"host_memory\" must be", ""},
               {S ", \"host_memory\": 1e999}", "overflows", ""},
               {S ", \"name\": \"\"}", "1 to 63 characters", ""},
               {S ", \"profile\": 3}", "must be a string", ""},
               {S ", \"base\": \"dgxa100\"}", "unknown cluster \"dgxa100\"", "dgx-a100"},
               {S ", \"disk\": []}", "\"disk\" must be an object", "{\"read\": ..., \"write\": ..., \"size\": ...}"},
               {"{\"schema\": \"\xff\"}", "not valid UTF-8", ""}};
  tws_cluster c;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    tws_code code = from_text(texts[i].text, &c);
    ck_assert_msg(code == TWS_INVALID && strstr(err.message, "c.json:1:"), "%s: %s", texts[i].text,
                  code == TWS_OK ? "taken" : err.message);
    ck_assert_msg(strstr(err.message, texts[i].message) && strstr(err.hint, texts[i].hint), "%s:\n%s\n%s",
                  texts[i].text, err.message, err.hint);
  }
  char longer[600] = S ", \"name\": \"";
  memset(longer + strlen(longer), 'n', 300);
  strcat(longer, "\"}");
  ck_assert_int_eq(from_text(longer, &c), TWS_INVALID);
  static const char *const specs[] = {"",
                                      "dgx",
                                      "dgx-a100:",
                                      "dgx-a100:0",
                                      "dgx-a100:-1",
                                      "host:x2",
                                      "host:2x",
                                      "host:2x0",
                                      "host:2x4x1",
                                      "host:1e3",
                                      "host: 2",
                                      "dgx-a100:4 ",
                                      "host:70000",
                                      "host:1x2000",
                                      "DGX-A100",
                                      "host:99999999999999999999",
                                      "dgx-a100:4:2",
                                      "unknown-system:4"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    ck_assert_msg(tws_cluster_load(specs[i], &c, &err) == TWS_INVALID, "%s was taken", specs[i]);
    ck_assert_str_ne(err.hint, "");
  }
}
END_TEST

static tws_code parse(void *user) {
  tws_json *json;
  tws_cluster c;
  tws_error why = {0};
  TWS_TRY(tws_json_parse(user, strlen(user), "f", &json, &why));
  tws_code code = tws_cluster_from_json(json, &c, &why);
  tws_json_destroy(json);
  return code;
}

START_TEST(every_allocation_may_fail) {
  long bad, tried = fail_every_allocation(
                parse, S ", \"base\": \"dgx-a100:4\", \"intra\": {\"bandwidth\": \"3 GB/s\", \"latency_s\": 0}}", &bad);
  ck_assert_int_eq(bad, 0);
  ck_assert_int_gt(tried, 8);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cluster");
  TCase *all = tcase_create("all");
  tcase_add_test(all, builtins);
  tcase_add_test(all, files);
  tcase_add_test(all, refused);
  tcase_add_test(all, every_allocation_may_fail);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
