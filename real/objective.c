#include "real/objective.h"

#include <math.h>

#include "base/memory.h"
#include "base/random.h"

tws_code tws_objective_check(const tws_network *network, tws_error *err) {
  if (network->objective != TWS_OBJECTIVE_PRETRAINING) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, "train its BertForMaskedLM: set \"architectures\" to that",
                  "%s predicts which segment follows another, which data of tokens do not say", network->name);
}

/* What is filled at the moment. */
typedef struct filler {
  const tws_objective_source *from;
  int32_t *ids, *targets, *lengths, *places; /* NULL: the network has no such input */
  int32_t *row;                              /* the tokens of a whole sample */
  double *draw;                              /* of each of them, to be predicted: the smallest are */
} filler;

static int32_t *input_of(const tws_objective_source *s, void *const *input, tws_input_content content) {
  const uint32_t i = tws_network_input_of(s->network, content);
  return i == TWS_NONE ? NULL : input[i];
}

/* ---- masked tokens ---- */

enum { OF_CHOICE, OF_KIND, OF_TOKEN, DRAWS };

static double drawn(const tws_data *data, uint64_t sample, int64_t token, int draw) {
  static const uint64_t masks = UINT64_C(0x6d61736b65640000);
  return tws_random_uniform(data->seed ^ masks, sample, (uint64_t)token * DRAWS + (uint64_t)draw);
}

/* How many of the `length` tokens are predicted: those whose draw is at most *limit. */
static int64_t choose(const filler *f, uint64_t sample, int64_t length, double *limit) {
  const tws_batch_shape *shape = f->from->shape;
  const int64_t most = f->from->network->predictions > 0 ? f->from->network->predictions : length;
  int64_t chosen = 0, last = -1;
  *limit = 0.15;
  for (int64_t t = 0; t < length; t++) {
    f->draw[t] = f->row[t] == shape->ignored ? 1 : drawn(f->from->data, sample, t, OF_CHOICE);
    chosen += f->draw[t] < *limit;
    if (f->draw[t] < 1 && (last < 0 || f->draw[t] < f->draw[last])) last = t;
  }
  if (chosen == 0 && last >= 0) {
    *limit = nextafter(f->draw[last], 1);
    chosen = 1;
  }
  while (chosen > most) { /* all but the largest draw of them */
    double next = 0;
    for (int64_t t = 0; t < length; t++)
      if (f->draw[t] < *limit && f->draw[t] > next) next = f->draw[t];
    *limit = next;
    chosen--;
  }
  return chosen;
}

static int32_t replacement(const filler *f, uint64_t sample, int64_t t) {
  const tws_network *network = f->from->network;
  const double kind = drawn(f->from->data, sample, t, OF_KIND);
  if (kind < 0.8) return (int32_t)network->mask_token;
  if (kind < 0.9) return (int32_t)(drawn(f->from->data, sample, t, OF_TOKEN) * (double)network->vocabulary);
  return f->row[t];
}

/* One sample into row `row` of the rank's part of the step. */
static void mask_sample(const filler *f, uint64_t sample, int64_t row) {
  const tws_batch_shape *shape = f->from->shape;
  const int64_t whole = f->from->data->sequence, part = whole / shape->parts, first = part * shape->part;
  const int64_t predictions = f->from->network->predictions;
  int64_t length = whole, place = 0;
  double limit;
  while (length > 0 && f->row[length - 1] == shape->ignored) length--;
  choose(f, sample, length, &limit);
  for (int64_t t = 0; t < whole; t++) {
    const int chosen = t < length && f->draw[t] < limit;
    if (chosen && predictions > 0) {
      f->places[row * predictions + place] = (int32_t)t;
      f->targets[row * predictions + place++] = f->row[t];
    }
    if (t < first || t >= first + part) continue;
    f->ids[row * part + t - first] = chosen ? replacement(f, sample, t) : f->row[t];
    if (predictions == 0) f->targets[row * part + t - first] = chosen ? f->row[t] : -1;
  }
  for (; place < predictions; place++) {
    f->places[row * predictions + place] = 0;
    f->targets[row * predictions + place] = -1;
  }
  if (f->lengths) f->lengths[row] = (int32_t)length;
}

static tws_code fill_masked(filler *f, int64_t step, tws_error *err) {
  const tws_batch_shape *shape = f->from->shape;
  const tws_data *data = f->from->data;
  for (int64_t a = 0, row = 0; a < shape->accumulation; a++)
    for (int64_t i = 0; i < shape->micro_batch; i++, row++) {
      const int64_t place = (a * shape->replicas + shape->replica) * shape->micro_batch + i;
      const uint64_t first = tws_data_sample(data, shape->train_batch, step, place) * (uint64_t)data->sequence;
      TWS_TRY(tws_data_tokens_at(data, first, data->sequence, f->row, err));
      mask_sample(f, (uint64_t)(step * shape->train_batch + place), row);
    }
  return TWS_OK;
}

tws_code tws_objective_fill(const tws_objective_source *s, int64_t step, void *const input[TWS_NETWORK_INPUTS],
                            tws_error *err) {
  filler f = {.from = s,
              .ids = input_of(s, input, TWS_INPUT_TOKENS),
              .targets = input_of(s, input, TWS_INPUT_TARGETS),
              .lengths = input_of(s, input, TWS_INPUT_LENGTHS),
              .places = input_of(s, input, TWS_INPUT_PLACES)};
  if (s->network->objective == TWS_OBJECTIVE_NEXT_TOKEN)
    return tws_data_fill(s->data, s->shape, step, f.ids, f.targets, err);
  f.row = tws_calloc((size_t)s->data->sequence, sizeof *f.row);
  f.draw = tws_calloc((size_t)s->data->sequence, sizeof *f.draw);
  tws_code code = f.row && f.draw ? fill_masked(&f, step, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_free(f.row);
  tws_free(f.draw);
  return code;
}
