/* ONNX files whose weights are in another file, as torch.onnx.export writes them by default: the network is that of one
 * file, and places that do not fit are refused with the tensor and a remedy. */
#include <sys/stat.h>
#include "answers.h"
#include "folder.h"
#include "models/network/onnx.h"
#include "onnx_writer.h"
#include "suite.h"

static tws_error err;

enum { INPUTS = 3, OUTPUTS = 2, WEIGHTS = INPUTS * OUTPUTS, BEFORE = 8 };
static const float weights[WEIGHTS] = {0.5f, -1, 0.25f, 2, -0.125f, 1};

/* One entry of external_data. */
static void add_entry(onnx_writer *w, const char *key, const char *value) {
  if (!value) return;
  const size_t entry = tws_protobuf_begin(&w->graph);
  tws_protobuf_text(&w->graph, 1, key);
  tws_protobuf_text(&w->graph, 2, value);
  tws_protobuf_end(&w->graph, 13, entry);
}

/* Writes a linear layer, whose weight is in the file, or with a location in another one. */
static void write_model(const char *path, const char *location, const char *offset, const char *length) {
  onnx_writer w = {.nodes = 0};
  onnx_port(&w, 11, "x", ONNX_FLOATS, "?,3");
  onnx_port(&w, 12, "y", ONNX_FLOATS, "?,2");
  const size_t tensor = tws_protobuf_begin(&w.graph);
  tws_protobuf_integer(&w.graph, 1, OUTPUTS);
  tws_protobuf_integer(&w.graph, 1, INPUTS);
  tws_protobuf_integer(&w.graph, 2, ONNX_FLOATS);
  tws_protobuf_text(&w.graph, 8, "fc.weight");
  if (location) {
    add_entry(&w, "location", location);
    add_entry(&w, "offset", offset);
    add_entry(&w, "length", length);
    add_entry(&w, "checksum", "not read");
    tws_protobuf_integer(&w.graph, 14, 1);
  } else {
    tws_protobuf_bytes(&w.graph, 9, (const char *)weights, sizeof weights);
  }
  tws_protobuf_end(&w.graph, 5, tensor);
  onnx_node(&w, "Gemm x,fc.weight -> y transB=1");
  tws_text file = onnx_file(&w);
  write_bytes(path, file.data, file.length);
  tws_text_free(&file);
}

static tws_code read_model(const char *path, tws_network **network) {
  tws_onnx_model *model = NULL;
  const tws_json *json;
  *network = NULL;
  tws_code code = tws_onnx_read(path, &model, &json, &err);
  if (code == TWS_OK) code = tws_network_from_json(json, 1, network, &err);
  if (code == TWS_OK) code = tws_onnx_give_weights(model, *network, &err);
  tws_onnx_close(model);
  return code;
}

static void write_data(void) {
  char bytes[BEFORE + sizeof weights + 4] = "12345678";
  memcpy(bytes + BEFORE, weights, sizeof weights);
  write_bytes(in_folder("net.onnx.data"), bytes, sizeof bytes);
}

START_TEST(weights_of_another_file) {
  static const char *const lengths[] = {"24", NULL};
  write_data();
  for (int i = 0; i < 2; i++) {
    tws_network *network;
    write_model(in_folder("net.onnx"), "net.onnx.data", "8", lengths[i]);
    ck_assert_msg(read_model(in_folder("net.onnx"), &network) == TWS_OK, "%s", err.message);
    ck_assert_uint_eq(network->param_count, 1);
    for (int k = 0; k < WEIGHTS; k++) ck_assert_float_eq(network->params[0].given[k], weights[k]);
    tws_network_destroy(network);
  }
  command_result r = twinspeed("estimate -m %s --json --quiet", in_folder("net.onnx"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
}
END_TEST

START_TEST(places_that_do_not_fit) {
  static const struct {
    const char *location, *offset, *length, *says;
    tws_code code;
  } cases[] = {{"", "8", "24", "which is no name of a file", TWS_INVALID},
               {"..", "8", "24", "which is no name of a file", TWS_INVALID},
               {"../net.onnx.data", "8", "24", "which is no name of a file", TWS_INVALID},
               {"/etc/passwd", "0", "24", "which is no name of a file", TWS_INVALID},
               {"missing", "0", "24", "keeps tensor fc.weight in another file", TWS_IO},
               {"folder", "0", "24", "is no regular file", TWS_INVALID},
               {"pipe", "0", "24", "a pipe or a device", TWS_INVALID},
               {"net.onnx.data", "13", "24", "has 24 bytes from byte 13 of", TWS_INVALID},
               {"net.onnx.data", "999999999999999999", "24", "which has 36", TWS_INVALID},
               {"net.onnx.data", "9999999999999999999999", "24", "is not that of the 24 bytes", TWS_INVALID},
               {"net.onnx.data", "-8", "24", "is not that of the 24 bytes", TWS_INVALID},
               {"net.onnx.data", "8x", "24", "is not that of the 24 bytes", TWS_INVALID},
               {"net.onnx.data", "8", "20", "is not that of the 24 bytes", TWS_INVALID}};
  write_data();
  ck_assert_int_eq(mkdir(in_folder("folder"), 0700), 0);
  ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_network *network;
    write_model(in_folder("net.onnx"), cases[i].location, cases[i].offset, cases[i].length);
    const tws_code code = read_model(in_folder("net.onnx"), &network);
    ck_assert_msg(code == cases[i].code && !network && strstr(err.message, cases[i].says), "case %zu: %d %s", i, code,
                  err.message);
    ck_assert_msg(strstr(err.message, "fc.weight"), "%s", err.message);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("onnx_data");
  TCase *tests = tcase_create("onnx_data");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, weights_of_another_file);
  tcase_add_test(tests, places_that_do_not_fit);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
