/* ctest: engine sampled */
/* Graphs that no architecture has yet are verified, laid out, costed, simulated, executed on the host and
 * differentiated against finite differences. */
#include "hand_network.h"
#include "suite.h"

static const char *const recompute[] = {"none", "selective", "full", "operations"};

static void make_ids(int32_t *ids, uint64_t count, int64_t below, uint64_t stream) {
  for (uint64_t i = 0; i < count; i++) ids[i] = (int32_t)(tws_random_uniform(3, stream, i) * (double)below);
}

/* ---- any graph ---- */

enum { VOCABULARY = 11, WIDTH = 12, SAMPLES = 2, SEQUENCE = 5, MOST = 64 };

/* Makes a random graph: values have no reader, one or many, and branches join anywhere. It has no ReLU, at whose corner
 * finite differences fail. */
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

static const char *hand_config_of(int index, int samples, int micro_batches) {
  static char text[256];
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0, "
           "\"zero_optimization\": {\"stage\": %d}, \"twinspeed\": {\"sequence_length\": %d, \"recompute\": "
           "\"%s\"}}",
           samples, micro_batches, index % 4, SEQUENCE, recompute[index / 4 % 4]);
  return text;
}
static const char *hand_config(int index) {
  return hand_config_of(index, SAMPLES, 1);
}

START_TEST(random_graphs) {
  int32_t ids[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE];
  hand_network h;
  hand_job job;
  random_graph(&h, (uint64_t)_i);
  hand_job_begin(&job, h.net, hand_config(_i));
  make_ids(ids, SAMPLES * SEQUENCE, VOCABULARY, 1);
  make_ids(targets, SAMPLES * SEQUENCE, VOCABULARY, 2);
  hand_input(&job, 0, ids);
  hand_input(&job, 1, targets);
  hand_differentiate(&job, 0.02);
  hand_job_end(&job);
  tws_network_destroy(h.net);
}
END_TEST

/* ---- attention: padding masks, two sequences ---- */

enum { HEADS = 3, HEAD = 4, OTHER = 7 };

static const tws_dim samples_alone[] = {{.kind = TWS_DIM_SAMPLES}};
static const tws_dim other_rows[] = {{.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_SEQUENCE, .size = OTHER}};

static void begin_heads(hand_network *h) {
  hand_network_begin(h, VOCABULARY, MOST);
  h->net->hidden = WIDTH;
  h->net->positions = SEQUENCE;
  h->net->heads = h->net->kv_heads = HEADS;
  h->net->head_size = HEAD;
}

static void end_heads(hand_network *h, uint32_t x) {
  x = tws_build_norm(&h->b, -2, "norm", x, 0, 1e-5);
  tws_build_loss(&h->b, tws_build_linear(&h->b, -2, "head", x, WIDTH, VOCABULARY, 0.3f, 1, NULL, TWS_NONE));
}

/* Adds an encoder layer, whose tokens attend to all valid tokens, earlier and later ones. */
static uint32_t encoder_layer(hand_network *h, int layer, uint32_t x, uint32_t lengths) {
  tws_network_builder *b = &h->b;
  const int64_t width = h->net->values[x].per_row, qkv[3] = {WIDTH, WIDTH, WIDTH};
#define NAME(part) tws_build_name(b, "encoder.%d." part, layer)
  uint32_t y = tws_build_linear(b, layer, NAME("qkv"), x, width, 3 * WIDTH, 0.3f, 1, qkv, TWS_NONE);
  y = tws_build_attention(b, layer, NAME("attention"), y);
  tws_module *attention = &h->net->modules[h->net->module_count - 1];
  attention->flags = TWS_BIDIRECTIONAL;
  attention->input[0] = lengths;
  y = tws_build_linear(b, layer, NAME("out"), y, WIDTH, width, 0.3f, 1, NULL, TWS_NONE);
  x = tws_build_norm(b, layer, NAME("norm_1"), tws_build_add(b, layer, NAME("add_1"), x, y), 0, 1e-5);
  y = tws_build_linear(b, layer, NAME("up"), x, width, 2 * width, 0.3f, 1, NULL, TWS_NONE);
  y = tws_build_pointwise(b, layer, NAME("act"), TWS_MODULE_GELU, y, 2 * width);
  y = tws_build_linear(b, layer, NAME("down"), y, 2 * width, width, 0.3f, 1, NULL, TWS_NONE);
  return tws_build_norm(b, layer, NAME("norm_2"), tws_build_add(b, layer, NAME("add_2"), x, y), 0, 1e-5);
#undef NAME
}

/* An encoder after norms (BERT's), whose second sample is shorter. Tokens after a sample's end change nothing. */
START_TEST(encoder_with_padding) {
  int32_t ids[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE], lengths[SAMPLES] = {SEQUENCE, SEQUENCE - 2};
  hand_network h;
  hand_job job;
  begin_heads(&h);
  uint32_t x = tws_build_embedding(&h.b, "embed", "wte", "wpe", 0.5f);
  const uint32_t input = tws_build_input(&h.b, "lengths", TWS_INPUT_LENGTHS, samples_alone, 1);
  for (int layer = 0; layer < 2; layer++) x = encoder_layer(&h, layer, x, input);
  end_heads(&h, x);
  hand_job_begin(&job, h.net, hand_config(_i));
  make_ids(ids, SAMPLES * SEQUENCE, VOCABULARY, 1);
  make_ids(targets, SAMPLES * SEQUENCE, VOCABULARY, 2);
  for (int i = SAMPLES * SEQUENCE - 2; i < SAMPLES * SEQUENCE; i++) targets[i] = -1; /* padding is not predicted */
  hand_input(&job, tws_network_input_of(h.net, TWS_INPUT_TOKENS), ids);
  hand_input(&job, tws_network_input_of(h.net, TWS_INPUT_TARGETS), targets);
  hand_input(&job, input, lengths);
  hand_differentiate(&job, 0.02);
  const double loss = hand_loss(&job, job.weights, 0);
  ids[SAMPLES * SEQUENCE - 1] = (ids[SAMPLES * SEQUENCE - 1] + 1) % VOCABULARY;
  ck_assert_double_eq(hand_loss(&job, job.weights, 0), loss);
  ids[0] = (ids[0] + 1) % VOCABULARY;
  ck_assert_double_ne(hand_loss(&job, job.weights, 0), loss);
  hand_job_end(&job);
  tws_network_destroy(h.net);
}
END_TEST

/* Adds a layer of cross-attention: a decoder reads an encoder's output, which has another length. */
static uint32_t cross_layer(hand_network *h, int layer, uint32_t x, uint32_t memory, uint32_t lengths) {
  tws_network_builder *b = &h->b;
  const int64_t kv[3] = {WIDTH, WIDTH, 0};
  uint32_t q =
      tws_build_linear(b, layer, tws_build_name(b, "decoder.%d.q", layer), x, WIDTH, WIDTH, 0.3f, 0, NULL, TWS_NONE);
  uint32_t keys = tws_build_linear(b, layer, tws_build_name(b, "decoder.%d.kv", layer), memory, WIDTH, 2 * WIDTH, 0.3f,
                                   1, kv, TWS_NONE);
  const uint32_t at =
      tws_build_module(b, TWS_MODULE_CROSS_ATTENTION, layer, tws_build_name(b, "decoder.%d.cross", layer));
  tws_module *m = &h->net->modules[at];
  m->in[0] = q;
  m->in[1] = keys;
  m->input[0] = lengths;
  m->heads = m->kv_heads = HEADS;
  m->head_size = HEAD;
  m->in_features = m->out_features = WIDTH;
  const tws_value *like = &h->net->values[q];
  const uint32_t o = tws_build_value(b, at, 0, "o", like->row, like->row_dims, WIDTH, TWS_VALUE_ACTIVATION);
  tws_build_value(b, at, 1, "lse", like->row, like->row_dims, HEADS, TWS_VALUE_STATISTIC);
  uint32_t y =
      tws_build_linear(b, layer, tws_build_name(b, "decoder.%d.out", layer), o, WIDTH, WIDTH, 0.3f, 0, NULL, TWS_NONE);
  return tws_build_norm(b, layer, tws_build_name(b, "decoder.%d.norm", layer),
                        tws_build_add(b, layer, tws_build_name(b, "decoder.%d.add", layer), x, y), 1, 1e-5);
}

START_TEST(cross_attention) {
  int32_t ids[SAMPLES * OTHER], read[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE],
      lengths[SAMPLES] = {OTHER - 3, OTHER};
  hand_network h;
  hand_job job;
  begin_heads(&h);
  const uint32_t other = tws_build_input(&h.b, "encoder ids", TWS_INPUT_TOKENS, other_rows, 2);
  const uint32_t count = tws_build_input(&h.b, "lengths", TWS_INPUT_LENGTHS, samples_alone, 1);
  const uint32_t at = tws_build_module(&h.b, TWS_MODULE_EMBEDDING, -1, "encoder.embed");
  h.net->modules[at].input[0] = other;
  h.net->modules[at].out_features = WIDTH;
  tws_build_param(&h.b, at, 0, "encoder.embed.weight", VOCABULARY, WIDTH, (tws_init){0.5f, 0});
  tws_build_param(&h.b, at, 1, "encoder.positions.weight", OTHER + 1, WIDTH, (tws_init){0.5f, 0});
  uint32_t memory = tws_build_value(&h.b, at, 0, "x", other_rows, 2, WIDTH, TWS_VALUE_ACTIVATION);
  memory = encoder_layer(&h, 0, memory, count);
  const uint32_t own = tws_build_input(&h.b, "input ids", TWS_INPUT_TOKENS,
                                       (const tws_dim[]){{.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_SEQUENCE}}, 2);
  uint32_t x = tws_build_embedding(&h.b, "embed", "wte", "wpe", 0.5f);
  h.net->modules[h.net->module_count - 1].input[0] = own;
  for (int layer = 1; layer < 3; layer++) x = cross_layer(&h, layer, x, memory, count);
  end_heads(&h, x);
  hand_job_begin(&job, h.net, hand_config(_i));
  make_ids(ids, SAMPLES * OTHER, VOCABULARY, 1);
  make_ids(read, SAMPLES * SEQUENCE, VOCABULARY, 2);
  make_ids(targets, SAMPLES * SEQUENCE, VOCABULARY, 3);
  hand_input(&job, other, ids);
  hand_input(&job, own, read);
  hand_input(&job, count, lengths);
  hand_input(&job, tws_network_input_of(h.net, TWS_INPUT_TARGETS), targets);
  hand_differentiate(&job, 0.02);
  const double loss = hand_loss(&job, job.weights, 0);
  ids[OTHER - 3] = (ids[OTHER - 3] + 1) % VOCABULARY; /* after the first sample's end */
  ck_assert_double_eq(hand_loss(&job, job.weights, 0), loss);
  hand_job_end(&job);
  tws_network_destroy(h.net);
}
END_TEST

/* ---- experts ---- */

/* Adds a layer of experts with a residual connection. */
static uint32_t expert_layer(hand_network *h, int layer, uint32_t x, const tws_routing *routing, tws_module_type type) {
  tws_network_builder *b = &h->b;
  const int64_t inner = WIDTH + 4, up = type == TWS_MODULE_SWIGLU ? 2 * inner : inner;
#define NAME(part) tws_build_name(b, "layer.%d." part, layer)
  uint32_t y = tws_build_norm(b, layer, NAME("norm"), x, 1, 1e-5);
  const uint32_t logits = tws_build_linear(b, layer, NAME("gate"), y, WIDTH, routing->experts, 0.5f, 0, NULL, TWS_NONE);
  const tws_routes routes = tws_build_router(b, layer, NAME("router"), logits, routing);
  y = tws_build_dispatch(b, layer, NAME("dispatch"), y, &routes);
  y = tws_build_expert_linear(b, layer, NAME("up"), y, &routes, up, 0.3f, layer % 2, NULL);
  y = tws_build_pointwise(b, layer, NAME("act"), type, y, inner);
  y = tws_build_expert_linear(b, layer, NAME("down"), y, &routes, WIDTH, 0.3f, layer % 2, NULL);
  y = tws_build_combine(b, layer, NAME("combine"), y, &routes);
  return tws_build_add(b, layer, NAME("add"), x, y);
#undef NAME
}

/* Layers with top-1 and top-2 routing with too few slots, and with top-3 routing that keeps the most probable tokens:
 * checks the gradients through the routers, their auxiliary losses and the slots, wherever it is differentiable. */
START_TEST(experts) {
  int32_t ids[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE];
  hand_network h;
  hand_job job;
  hand_network_begin(&h, VOCABULARY, MOST);
  h.net->hidden = WIDTH;
  h.net->positions = SEQUENCE;
  uint32_t x = tws_build_embedding(&h.b, "embed", "wte", "wpe", 0.5f);
  for (int layer = 0; layer < 3; layer++) {
    tws_routing routing = tws_routing_like_deepspeed(4 + layer, 1 + layer, layer ? 1.0 : 0.75, 1, 0);
    routing.auxiliary = 0.25;
    x = expert_layer(&h, layer, x, &routing, layer == 2 ? TWS_MODULE_SWIGLU : TWS_MODULE_GELU);
  }
  end_heads(&h, x);
  hand_job_begin(&job, h.net, hand_config(_i));
  make_ids(ids, SAMPLES * SEQUENCE, VOCABULARY, 1);
  make_ids(targets, SAMPLES * SEQUENCE, VOCABULARY, 2);
  hand_input(&job, 0, ids);
  hand_input(&job, 1, targets);
  hand_differentiate(&job, 0.02);
  double metrics[TWS_METRIC_COUNT];
  HAND_OK(
      tws_executor_get(job.executor, TWS_PROGRAM_EVALUATE, job.evaluate->metrics, 0, metrics, TWS_METRIC_COUNT, &err));
  ck_assert(metrics[TWS_METRIC_DROPPED] > 0 && metrics[TWS_METRIC_DROPPED] < 0.5);
  ck_assert(metrics[TWS_METRIC_AUXILIARY] > 0.5); /* the auxiliary loss of a balanced layer is at least 1, times its
                                                   * weight */
  hand_job_end(&job);
  tws_network_destroy(h.net);
}
END_TEST

/* ---- dropout ---- */

static void dropping_network(hand_network *h, double dropout) {
  tws_network_builder *b = &h->b;
  const int64_t qkv[3] = {WIDTH, WIDTH, WIDTH};
  begin_heads(h);
  uint32_t x = tws_build_embedding(b, "embed", "wte", "wpe", 0.5f);
  x = tws_build_dropout(b, -1, "embed.dropout", x, dropout);
  for (int layer = 0; layer < 2; layer++) {
#define NAME(part) tws_build_name(b, "h.%d." part, layer)
    uint32_t y = tws_build_linear(b, layer, NAME("qkv"), x, WIDTH, 3 * WIDTH, 0.3f, 1, qkv, TWS_NONE);
    y = tws_build_attention(b, layer, NAME("attention"), y);
    h->net->modules[h->net->module_count - 1].dropout = dropout;
    y = tws_build_linear(b, layer, NAME("out"), y, WIDTH, WIDTH, 0.3f, 1, NULL, TWS_NONE);
    y = tws_build_dropout(b, layer, NAME("dropout"), y, dropout);
    x = tws_build_norm(b, layer, NAME("norm"), tws_build_add(b, layer, NAME("add"), x, y), 0, 1e-5);
#undef NAME
  }
  end_heads(h, x);
}

typedef struct dropping_job {
  hand_network h;
  hand_job job;
} dropping_job;

static void dropping_begin(dropping_job *d, double dropout, const char *config, const int32_t *ids,
                           const int32_t *targets) {
  dropping_network(&d->h, dropout);
  hand_job_begin(&d->job, d->h.net, config);
  hand_input(&d->job, 0, ids);
  hand_input(&d->job, 1, targets);
}
static void dropping_end(dropping_job *d) {
  hand_job_end(&d->job);
  tws_network_destroy(d->h.net);
}

/* The gradient and recomputation drop the same numbers as the forward pass. Another step drops other numbers; another
 * division into micro-batches drops the same numbers of each sample; evaluations drop none. */
START_TEST(dropout) {
  int32_t ids[SAMPLES * SEQUENCE], targets[SAMPLES * SEQUENCE];
  dropping_job drops, parts, keeps;
  make_ids(ids, SAMPLES * SEQUENCE, VOCABULARY, 1);
  make_ids(targets, SAMPLES * SEQUENCE, VOCABULARY, 2);
  dropping_begin(&drops, 0.3, hand_config(_i), ids, targets);
  dropping_begin(&parts, 0.3, hand_config_of(_i, 1, SAMPLES), ids, targets);
  dropping_begin(&keeps, 0, hand_config(_i), ids, targets);
  hand_differentiate(&drops.job, 0.02);
  const double first = hand_loss(&drops.job, drops.job.weights, 1), kept = hand_loss(&keeps.job, keeps.job.weights, 1);
  ck_assert_double_eq_tol(hand_loss(&parts.job, parts.job.weights, 1), first, 1e-6 * first);
  drops.job.step = 1;
  ck_assert_double_gt(fabs(hand_loss(&drops.job, drops.job.weights, 1) - first), 1e-3 * first);
  drops.job.step = 0;
  ck_assert_double_eq(hand_loss(&drops.job, drops.job.weights, 1), first);
  ck_assert_double_gt(fabs(kept - first), 1e-3 * first);
  ck_assert_double_eq_tol(hand_loss(&drops.job, drops.job.weights, 0), kept, 1e-6 * kept);
  dropping_end(&drops);
  dropping_end(&parts);
  dropping_end(&keeps);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hand networks");
  TCase *graphs = tcase_create("graphs");
  tcase_set_timeout(graphs, 300);
  tcase_add_loop_test(graphs, random_graphs, 0, 40);
  tcase_add_loop_test(graphs, encoder_with_padding, 0, 12);
  tcase_add_loop_test(graphs, cross_attention, 0, 12);
  tcase_add_loop_test(graphs, dropout, 0, 12);
  tcase_add_loop_test(graphs, experts, 0, 8);
  suite_add_tcase(suite, graphs);
  return run_suite(suite);
}
