/* ctest: engine */
/* Graphs that no architecture makes yet, through every reader: verified, laid out, costed, simulated, executed on the
 * host and differentiated against finite differences. */
#include "hand_network.h"

static const char *const recompute[] = {"none", "selective"};

static void make_ids(int32_t *ids, uint64_t count, int64_t below, uint64_t stream) {
  for (uint64_t i = 0; i < count; i++) ids[i] = (int32_t)(tws_random_uniform(3, stream, i) * (double)below);
}

/* ---- any graph ---- */

enum { VOCABULARY = 11, WIDTH = 12, SAMPLES = 2, SEQUENCE = 5, MOST = 64 };

/* A graph at random: values are read by none, one or many, branches join where they like. Without ReLU, whose corners
 * differences fall over. */
static void random_graph(hand_network *h, uint64_t seed) {
  uint32_t value[MOST], live = 0;
  hand_network_begin(h, VOCABULARY, MOST);
  h->net->hidden = WIDTH;
  h->net->positions = SEQUENCE;
  value[live++] = tws_build_embedding(&h->b, "embed", "wte", "wpe", 0.5f);
  for (int i = 0; i < 4 + (int)(seed % 3) * 10; i++) {
    const int pick = (int)(tws_random_uniform(seed, 1, (uint64_t)i) * 8);
    const uint32_t at = (uint32_t)(tws_random_uniform(seed, 2, (uint64_t)i) * live), x = value[at];
    const char *name = tws_build_name(&h->b, "m.%d", i);
    static const tws_module_type pointwise[] = {TWS_MODULE_GELU, TWS_MODULE_SQUARED_RELU};
    uint32_t y;
    if (pick < 3) {
      y = tws_build_linear(&h->b, 0, name, x, WIDTH, WIDTH, 0.3f, pick % 2, NULL, TWS_NONE);
    } else if (pick < 5) {
      y = tws_build_pointwise(&h->b, 0, name, pointwise[i % 2], x, WIDTH);
    } else if (pick == 5) {
      y = tws_build_norm(&h->b, 0, name, x, i % 2, 1e-5);
    } else if (live > 1) { /* the second is not read again */
      const uint32_t with = (at + 1 + (uint32_t)(tws_random_uniform(seed, 3, (uint64_t)i) * (live - 1))) % live;
      y = tws_build_add(&h->b, 0, name, x, value[with]);
      value[with] = y;
      continue;
    } else {
      continue;
    }
    value[live++] = y;
  }
  uint32_t x = value[0]; /* everything counts */
  for (uint32_t i = 1; i < live; i++) x = tws_build_add(&h->b, 0, tws_build_name(&h->b, "join.%u", i), x, value[i]);
  x = tws_build_norm(&h->b, -2, "norm", x, 0, 1e-5);
  tws_build_loss(&h->b, tws_build_linear(&h->b, -2, "head", x, WIDTH, VOCABULARY, 0.3f, 0, NULL, TWS_NONE));
}

START_TEST(random_graphs) {
  int32_t ids[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE];
  char config[256];
  hand_network h;
  hand_job job;
  random_graph(&h, (uint64_t)_i);
  snprintf(config, sizeof config,
           "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": 1, \"gradient_clipping\": 0, "
           "\"zero_optimization\": "
           "{\"stage\": %d}, \"twinspeed\": {\"sequence_length\": %d, \"recompute\": \"%s\"}}",
           SAMPLES, _i % 4, SEQUENCE, recompute[_i / 4 % 2]);
  hand_job_begin(&job, h.net, config);
  make_ids(ids, SAMPLES * SEQUENCE, VOCABULARY, 1);
  make_ids(targets, SAMPLES * SEQUENCE, VOCABULARY, 2);
  hand_input(&job, 0, ids);
  hand_input(&job, 1, targets);
  hand_differentiate(&job, 0.02);
  hand_job_end(&job);
  tws_network_destroy(h.net);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hand networks");
  TCase *graphs = tcase_create("graphs");
  tcase_set_timeout(graphs, 300);
  tcase_add_loop_test(graphs, random_graphs, 0, 40);
  suite_add_tcase(suite, graphs);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
