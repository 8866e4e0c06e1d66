/* Scores of classes, tags, spans and pictures for the samples of a file, one after another in the order of the file.
 * The data are those of a training of batches of one sample, which visits the samples in a random order: the inverse of
 * that order says which batch has the next sample of the file. */
#include "base/memory.h"
#include "real/pairs.h"
#include "real/scored_pass.h"

typedef struct predictor {
  tws_scored_pass pass;
  const tws_predict_options *options;
  int64_t rows, columns;
  int64_t *batch_of; /* [sample] index of the batch that contains the sample */
} predictor;

static tws_code check_model(const tws_network *network, tws_error *err) {
  if (tws_network_losses(network) > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "write a file of the network that scores classes, and give it the weights",
                    "%s has several losses, and it is not known which scores are asked for", network->name);
  switch (network->objective) {
    case TWS_OBJECTIVE_CLASSES:
    case TWS_OBJECTIVE_TAGS:
    case TWS_OBJECTIVE_SPANS:
    case TWS_OBJECTIVE_PICTURES:
      return TWS_OK;
    default:
      return tws_fail(err, TWS_UNSUPPORTED,
                      "\"architectures\" of the model's file names its head, such as BertForQuestionAnswering",
                      "%s scores tokens of its vocabulary, and no classes or spans", network->name);
  }
}

static void find_form(predictor *p) {
  const tws_network *network = p->pass.t.plan->network;
  const int64_t length = p->pass.t.plan->sequence_length;
  p->rows = network->objective == TWS_OBJECTIVE_TAGS ? length : network->objective == TWS_OBJECTIVE_SPANS ? 2 : 1;
  p->columns = (int64_t)p->pass.count / p->rows;
}

static tws_code order_samples(predictor *p, tws_error *err) {
  const tws_data *data = &p->pass.t.data;
  p->batch_of = tws_calloc(data->samples, sizeof *p->batch_of);
  if (!p->batch_of) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the order of %s", p->options->data);
  for (uint64_t b = 0; b < data->samples; b++) p->batch_of[tws_data_sample(data, 1, (int64_t)b, 0)] = (int64_t)b;
  return TWS_OK;
}

/* Returns the class of the sample whose inputs are set, or -1 if it has more than one label. */
static int64_t label_of(const predictor *p) {
  const tws_network *network = p->pass.t.plan->network;
  const uint32_t targets = tws_network_input_of(network, TWS_INPUT_TARGETS);
  if (network->objective == TWS_OBJECTIVE_TAGS || network->objective == TWS_OBJECTIVE_SPANS || targets == TWS_NONE)
    return -1;
  return ((const int32_t *)p->pass.t.input[targets])[0];
}

static int64_t tokens_of(const predictor *p, uint64_t sample) {
  const int64_t most = p->pass.t.plan->sequence_length;
  if (!p->pass.t.data.pairs) return 1;
  const tws_pair pair = tws_pairs_at(p->pass.t.data.pairs, sample);
  return pair.sources < most ? pair.sources : most;
}

static tws_code predict_sample(predictor *p, uint64_t sample, tws_error *err) {
  const tws_predict_options *o = p->options;
  TWS_TRY(tws_training_put_inputs(&p->pass.t, (tws_program)0, &p->pass.t.data, p->batch_of[sample], err));
  TWS_TRY(tws_scored_pass_run(&p->pass, (int64_t)sample + 1, 0, err));
  return o->on_scores(o->user, sample, p->pass.values, p->rows, p->columns, tokens_of(p, sample), label_of(p), err);
}

static tws_code predict(predictor *p, tws_predict_result *result, tws_error *err) {
  const tws_predict_options *o = p->options;
  const tws_network *network = o->plan.network;
  TWS_TRY(check_model(network, err));
  TWS_TRY(tws_scored_pass_open(&p->pass, &o->plan, o->resume, o->tag, o->init_from, o->log, err));
  tws_training *t = &p->pass.t;
  TWS_TRY(tws_objective_open(network, o->data, t->config->sequence_length, 1, 0, &t->data, err));
  TWS_TRY(tws_training_shape(t, err));
  TWS_TRY(tws_inputs_open(t, err));
  find_form(p);
  TWS_TRY(tws_scored_pass_room(&p->pass, p->pass.count, err));
  TWS_TRY(order_samples(p, err));
  const double began = tws_clock_s();
  for (uint64_t i = 0; i < t->data.samples; i++, result->samples++) TWS_TRY(predict_sample(p, i, err));
  result->seconds = tws_clock_s() - began;
  return TWS_OK;
}

tws_code tws_real_predict(const tws_predict_options *options, tws_predict_result *result, tws_error *err) {
  predictor p = {.options = options};
  *result = (tws_predict_result){0};
  if (tws_mpi_world(NULL) != 1 || tws_topology_world(&options->plan.topology) != 1)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out -n", "predictions are made by one rank");
  if (options->plan.backend != TWS_BACKEND_HOST)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --cluster and --profile", "predictions are made on the host");
  const tws_code code = predict(&p, result, err);
  tws_scored_pass_close(&p.pass);
  tws_free(p.batch_of);
  return code;
}
