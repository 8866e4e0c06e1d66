#include "real/objective.h"

#include <math.h>

#include "base/memory.h"
#include "base/random.h"

/* What is filled at the moment. */
typedef struct filler {
  const tws_objective_source *from;
  int32_t *ids, *targets, *lengths; /* NULL: the network has no such input */
  int32_t *row;                     /* the tokens of a whole sample */
  double *draw;                     /* of each of them, to be predicted: the smallest are */
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

/* Of the `length` tokens those are predicted whose draw is less than what this returns. */
static double choose(const filler *f, uint64_t sample, int64_t length) {
  const tws_batch_shape *shape = f->from->shape;
  const int64_t most = f->from->network->predictions > 0 ? f->from->network->predictions : length;
  int64_t chosen = 0, least = -1;
  double limit = 0.15;
  for (int64_t t = 0; t < length; t++) {
    f->draw[t] = f->row[t] == shape->ignored ? 1 : drawn(f->from->data, sample, t, OF_CHOICE);
    chosen += f->draw[t] < limit;
    if (f->draw[t] < 1 && (least < 0 || f->draw[t] < f->draw[least])) least = t;
  }
  if (chosen == 0 && least >= 0) return nextafter(f->draw[least], 1);
  for (; chosen > most; chosen--) { /* without the largest draw of them */
    double next = 0;
    for (int64_t t = 0; t < length; t++)
      if (f->draw[t] < limit && f->draw[t] > next) next = f->draw[t];
    limit = next;
  }
  return limit;
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
  int64_t length = whole;
  while (length > 0 && f->row[length - 1] == shape->ignored) length--;
  const double limit = choose(f, sample, length);
  for (int64_t t = 0; t < part; t++) {
    const int chosen = first + t < length && f->draw[first + t] < limit;
    f->ids[row * part + t] = chosen ? replacement(f, sample, first + t) : f->row[first + t];
    f->targets[row * part + t] = chosen ? f->row[first + t] : -1;
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
              .lengths = input_of(s, input, TWS_INPUT_LENGTHS)};
  if (s->network->objective == TWS_OBJECTIVE_NEXT_TOKEN)
    return tws_data_fill(s->data, s->shape, step, f.ids, f.targets, err);
  f.row = tws_calloc((size_t)s->data->sequence, sizeof *f.row);
  f.draw = tws_calloc((size_t)s->data->sequence, sizeof *f.draw);
  tws_code code = f.row && f.draw ? fill_masked(&f, step, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_free(f.row);
  tws_free(f.draw);
  return code;
}
