/* Numbers in texts and files: wherever they are read, numbers that are out of range, not finite or no numbers are
 * refused with their place, and no conversion overflows. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/number.h"
#include "base/units.h"
#include "config/autotuning.h"
#include "config/topology_import.h"
#include "launch/hostfile.h"
#include "models/hardware/nccl_tests.h"
#include "models/network/network.h"
#include "tests/command.h"
#include "tests/csv.h"
#include "tests/folder.h"
#include "tests/suite.h"
#include "traces/timeline.h"

static tws_error err;

START_TEST(texts_become_numbers) {
  static const char *const bad[] = {"",    "nan", "inf", "-inf", "0x10", "1e999", "one", "-",  "+",
                                    "1 2", "1,2", "--1", "1x",   ".",    "e5",    " ",   "1e", "\xc2\xb2"};
  const char *end = NULL;
  int64_t whole = 7;
  double number = 7;
  int small = 7;
  uint64_t bits = 7;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_msg(!tws_text_integer(bad[i], NULL, INT64_MIN, INT64_MAX, &whole), "%s", bad[i]);
    ck_assert_msg(!tws_text_number(bad[i], NULL, -DBL_MAX, DBL_MAX, &number), "%s", bad[i]);
  }
  ck_assert(!tws_text_integer("9223372036854775808", NULL, INT64_MIN, INT64_MAX, &whole) &&
            !tws_text_integer("99999999999999999999", &end, INT64_MIN, INT64_MAX, &whole) &&
            !tws_text_int("4294967297", NULL, 0, INT32_MAX, &small) && !tws_text_int("5", NULL, 6, 8, &small) &&
            !tws_text_number("1e20", NULL, 0, 1e19, &number) && !tws_text_hex("12345678901234567", NULL, &bits) &&
            !tws_text_hex("0x1", NULL, &bits) && !tws_text_hex("", NULL, &bits));
  ck_assert(whole == 7 && number == 7 && small == 7 && bits == 7 && !end);
  ck_assert(tws_text_integer(" -9223372036854775808 ", NULL, INT64_MIN, INT64_MAX, &whole) && whole == INT64_MIN);
  ck_assert(tws_text_integer("16 GT/s", &end, 0, 64, &whole) && whole == 16 && strcmp(end, " GT/s") == 0);
  ck_assert(tws_text_number("2.5e3,4", &end, 0, 1e4, &number) && number == 2500 && *end == ',');
  ck_assert(tws_text_hex("fF00000000000001", NULL, &bits) && bits == UINT64_C(0xff00000000000001));
  ck_assert(!tws_whole_number(NAN, INT64_MIN, INT64_MAX, &whole) && !tws_whole_number(INFINITY, 0, 9, &whole) &&
            !tws_whole_number(0x1p63, INT64_MIN, INT64_MAX, &whole) && !tws_whole_number(1.5, 0, 9, &whole) &&
            !tws_whole_number(-1, 0, 9, &whole));
  ck_assert(tws_whole_number(-0x1p63, INT64_MIN, INT64_MAX, &whole) && whole == INT64_MIN);
  ck_assert_int_eq(tws_parse_integer("1e20", "--x", 0, INT64_MAX, &whole, &err), TWS_USAGE);
  ck_assert_int_eq(tws_parse_number("1e999", "--x", 0, INFINITY, &number, &err), TWS_USAGE);
  ck_assert_ptr_nonnull(strstr(err.message, "too large"));
}
END_TEST

static void refuse_topology(const char *attributes, const char *says) {
  char text[1024];
  tws_node_description n;
  snprintf(
      text, sizeof text,
      "<system version=\"1\">\n<cpu numaid=\"0\">\n<pci busid=\"0\" link_speed=\"16 GT/s\" link_width=\"16\">\n%s\n"
      "</pci></cpu></system>",
      attributes);
  ck_assert_msg(tws_topology_read(text, "node.xml", &n, &err) == TWS_INVALID, "%s", attributes);
  ck_assert_msg(strncmp(err.message, "node.xml:4: ", 12) == 0 && strstr(err.message, says), "%s", err.message);
}

START_TEST(numbers_of_topologies) {
  static const char *const values[] = {"nan", "inf", "1e20", "99999999999999999999", "-1", "1.5", "4294967297", "many"};
  char tag[300], says[100];
  tws_node_description n;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    snprintf(tag, sizeof tag, "<gpu dev=\"0\" sm=\"80\"><nvlink count=\"%s\" tclass=\"0x030200\"/></gpu>", values[i]);
    snprintf(says, sizeof says, "count=\"%s\" is not a number from 0 to 1024", values[i]);
    refuse_topology(tag, says);
    snprintf(tag, sizeof tag, "<gpu dev=\"0\" sm=\"%s\"></gpu>", values[i]);
    refuse_topology(tag, "sm=");
  }
  refuse_topology("<pci link_speed=\"nan GT/s\" link_width=\"16\"><gpu sm=\"80\"/></pci>", "link_speed=");
  refuse_topology("<gpu sm=\"80\"/><nic><net speed=\"1e300\"/></nic>", "speed=");
  ck_assert_msg(tws_topology_read("<system><pci link_speed=\"Unknown\" link_width=\"\"><gpu sm=\"80\"/></pci></system>",
                                  "x", &n, &err) == TWS_OK,
                "%s", err.message);
  ck_assert(n.devices == 1 && n.pcie_bandwidth == 0);
  ck_assert_int_eq(tws_topology_read("     GPU0 GPU1 CPU\nGPU0 X NV99999999999 0\n", "m.txt", &n, &err), TWS_INVALID);
  ck_assert_msg(strncmp(err.message, "m.txt:2: \"NV99999999999\"", 24) == 0, "%s", err.message);
  write_text(in_folder("n.xml"), "<system><gpu sm=\"80\"><nvlink count=\"nan\"/></gpu></system>");
  command_result r = twinspeed("convert topology %s %s", in_folder("n.xml"), in_folder("c.json"));
  ck_assert_msg(r.status == 3 && strstr(r.err, "n.xml:1: count=\"nan\"") && strstr(r.err, "hint: "), "%s", r.err);
  ck_assert_int_ne(access(in_folder("c.json"), F_OK), 0);
  command_free(&r);
}
END_TEST

START_TEST(numbers_of_other_files) {
  tws_config *config;
  static const char huge[] =
      "{\"autotuning\": {\"tuner_num_trials\": 1e300, \"start_profile_step\": -1e300, "
      "\"max_train_batch_size\": 9223372036854775807}}";
  tws_json *json;
  ck_assert_int_eq(tws_json_parse(huge, strlen(huge), "c.json", &json, &err), TWS_OK);
  ck_assert_msg(tws_config_from_json(json, &config, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  const tws_autotuning a = tws_config_autotuning(config);
  ck_assert(a.trials == 0 && a.first_step == 0 && a.max_train_batch == INT64_MAX);
  tws_config_destroy(config);

  static const char model[] =
      "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":1,\"n_embd\":8,\"n_positions\":8,"
      "\"vocab_size\":9,\"expert_interval\":1,\"topk\":1,\n\"num_experts\":[2.5]}";
  tws_network *network = NULL;
  write_text(in_folder("m.json"), model);
  ck_assert_int_eq(tws_network_load(in_folder("m.json"), 1, &network, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "m.json:2:"), "%s", err.message);

  static const char csv[] = "a,b,c,d,e\n1.5,inf,nan,0x10,1e999\n";
  csv_table *table;
  ck_assert_int_eq(csv_parse(csv, strlen(csv), "t.csv", &table, &err), TWS_OK);
  ck_assert(table->numbers[0] == 1.5 && isinf(table->numbers[1]) && isnan(table->numbers[2]) &&
            isnan(table->numbers[3]) && isnan(table->numbers[4]));
  csv_destroy(table);

  tws_nccl_log log;
  ck_assert_int_eq(tws_nccl_tests_read("# Rank 0 on a\n# Rank 1 on a\n 1024 256 float sum -1 inf 1 1 0\n"
                                       " 1e400 256 float sum -1 5 1 1 0\n nan 256 float sum -1 5 1 1 0\n",
                                       "l", &log, &err),
                   TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "no row of nccl-tests"));

  int64_t least, most;
  static const char *const nodes[] = {"99999999999999999999", "4294967298", "2:99999999999999999999", "0x2", "nan"};
  for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
    ck_assert_int_eq(tws_nodes_parse(nodes[i], 1, &least, &most, &err), TWS_USAGE);
}
END_TEST

/* A trace of another program has steps and operations beyond 32 bits. */
START_TEST(numbers_of_traces) {
  static const char trace[] =
      "{\"traceEvents\": [{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, \"args\": {\"name\": \"measured rank "
      "0\"}},"
      "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 2, \"args\": {\"name\": \"measured rank 99999999999\"}},"
      "{\"name\": \"x\", \"ph\": \"X\", \"pid\": 1, \"tid\": 0, \"ts\": 1, \"dur\": 1, \"args\": {\"phase\": "
      "\"forward\", "
      "\"op\": 4294967301, \"step\": 1e14, \"micro_batch\": 2.5}}]}";
  static const char *const streams[] = {"compute"}, *const phases[] = {"forward"};
  tws_timeline *read;
  write_text(in_folder("t.json"), trace);
  ck_assert_msg(tws_timeline_read_chrome(in_folder("t.json"), "measured", streams, 1, phases, 1, &read, &err) == TWS_OK,
                "%s", err.message);
  ck_assert(read->event_count == 1 && read->events[0].op == 0 && read->events[0].step == 0 &&
            read->events[0].micro_batch == 0);
  tws_timeline_destroy(read);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("numbers");
  TCase *tcase = tcase_create("numbers");
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_test(tcase, texts_become_numbers);
  tcase_add_test(tcase, numbers_of_topologies);
  tcase_add_test(tcase, numbers_of_other_files);
  tcase_add_test(tcase, numbers_of_traces);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
