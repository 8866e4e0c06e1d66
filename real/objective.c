#include "real/objective.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "checkpoint/read.h"
#include "models/zigzag.h"
#include "real/pairs.h"
#include "real/pictures.h"

/* State of the batch that is being filled. */
typedef struct filler {
  const tws_objective_source *from;
  /* inputs of this rank's share of the step; NULL: the network has no such input */
  int32_t *ids, *targets, *lengths, *source, *types, *rows, *classes;
  int32_t *documents, *positions; /* inputs of this rank's share of the step; NULL: the network has no such input */
  int32_t *row;                   /* all tokens of one sample */
  int32_t *other;                 /* all tokens of another sample */
  int32_t *spans;                 /* [token of `row`] its document, if documents are packed */
  double *draw; /* [token of `row`] random number; the tokens with the smallest numbers are predicted */
} filler;

static int32_t *input_of(const tws_objective_source *s, void *const *input, tws_input_content content) {
  const uint32_t i = tws_network_input_of(s->network, content);
  return i == TWS_NONE ? NULL : input[i];
}

/* ---- packed documents ---- */

void tws_documents_find(const int32_t *tokens, int64_t count, int64_t end_token, int32_t *documents) {
  for (int64_t begin = 0, end; begin < count; begin = end) {
    for (end = begin + 1; end < count && tokens[end - 1] != end_token; end++) continue;
    for (int64_t t = begin; t < end; t++) documents[2 * t] = (int32_t)begin, documents[2 * t + 1] = (int32_t)end;
  }
}

/* Returns 1 if an input or a target depends on positions in documents, packed ones or one per sample. */
static int has_places(const filler *f) {
  return f->from->document_end >= 0 || f->positions;
}

/* Finds the documents of a sample whose tokens are present, and sets this rank's share of positions and targets.
 * Without packed documents (document_end -1, which is no token) the sample is one document. */
static void put_documents(const filler *f, int64_t row) {
  const tws_batch_shape *shape = f->from->shape;
  const int64_t whole = f->from->data->sequence, part = whole / shape->parts;
  if (!has_places(f)) return;
  const tws_token_ranges ranges = tws_token_ranges_of(whole, shape->parts, shape->part, shape->halves, shape->chunks);
  tws_documents_find(f->row, whole, f->from->document_end, f->spans);
  if (f->documents) memcpy(f->documents + 2 * row * whole, f->spans, 2 * (size_t)whole * sizeof *f->spans);
  for (int64_t t = 0; t < part; t++) {
    const int64_t at = ranges.first + t + t / ranges.length * ranges.gap;
    if (f->positions) f->positions[row * part + t] = (int32_t)at - f->spans[2 * at];
    if (f->targets && f->from->network->objective == TWS_OBJECTIVE_NEXT_TOKEN && f->row[at] == f->from->document_end)
      f->targets[row * part + t] = -1;
  }
}

/* ---- masked tokens ---- */

enum { OF_CHOICE, OF_KIND, OF_TOKEN, DRAWS };

static double drawn(const tws_data *data, uint64_t sample, int64_t token, int draw) {
  static const uint64_t masks = UINT64_C(0x6d61736b65640000);
  return tws_random_uniform(data->seed ^ masks, sample, (uint64_t)token * DRAWS + (uint64_t)draw);
}

/* Returns 1 for padding and for the special tokens of texts, [CLS] and [SEP], which are never masked. */
static int is_never_masked(const filler *f, int32_t token) {
  const tws_network *network = f->from->network;
  const int marks = network->objective == TWS_OBJECTIVE_SENTENCES;
  return token == f->from->shape->ignored || token == f->from->document_end ||
         (marks && (token == network->class_token || token == network->separator_token));
}

/* Draws a random number for each of the `length` tokens, and returns a limit: the tokens whose number is below it are
 * to be predicted. */
static double choose(const filler *f, uint64_t sample, int64_t length) {
  const int64_t most = f->from->network->predictions > 0 ? f->from->network->predictions : length;
  int64_t chosen = 0, least = -1;
  double limit = 0.15;
  for (int64_t t = 0; t < length; t++) {
    f->draw[t] = is_never_masked(f, f->row[t]) ? 1 : drawn(f->from->data, sample, t, OF_CHOICE);
    chosen += f->draw[t] < limit;
    if (f->draw[t] < 1 && (least < 0 || f->draw[t] < f->draw[least])) least = t;
  }
  if (chosen == 0 && least >= 0) return nextafter(f->draw[least], 1);
  for (; chosen > most; chosen--) { /* excludes the largest of the drawn numbers */
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

/* Returns the number of tokens without padding at the end. */
static int64_t length_of(const filler *f, const int32_t *tokens) {
  int64_t length = f->from->data->sequence;
  while (length > 0 && tokens[length - 1] == f->from->shape->ignored) length--;
  return length;
}

/* Masks a sample of `length` tokens and writes it into row `row` of the rank's share of the step. */
static void mask_sample(const filler *f, uint64_t sample, int64_t length, int64_t row) {
  const tws_batch_shape *shape = f->from->shape;
  const int64_t whole = f->from->data->sequence, part = whole / shape->parts, first = part * shape->part;
  const double limit = choose(f, sample, length);
  for (int64_t t = 0; t < part; t++) {
    const int chosen = first + t < length && f->draw[first + t] < limit;
    f->ids[row * part + t] = chosen ? replacement(f, sample, first + t) : f->row[first + t];
    f->targets[row * part + t] = chosen ? f->row[first + t] : -1;
  }
  if (f->lengths) f->lengths[row] = (int32_t)length;
}

/* ---- two texts in one ---- */

enum { FOLLOWS, IS_ANOTHER, FOLLOWS_CLASSES, LEAST_SENTENCES = 5 };

/* Writes a sample of `length` tokens, whose special tokens, segments and class are known. */
static void put_sentences(const filler *f, uint64_t number, int64_t length, const int32_t *types, int is_another,
                          int64_t row) {
  const tws_batch_shape *shape = f->from->shape;
  const int64_t whole = f->from->data->sequence;
  for (int64_t t = length; t < whole; t++) f->row[t] = (int32_t)f->from->network->pad_token;
  mask_sample(f, number, length, row);
  for (int64_t t = 0; t < whole && f->types; t++) f->types[row * whole + t] = t < length && types ? types[t] : 0;
  if (f->rows) f->rows[row] = (int32_t)(row % shape->micro_batch * whole);
  if (f->classes) f->classes[row] = is_another;
}

/* Turns f->row, `length` tokens of a text, into [CLS], its beginning, [SEP], the rest of the text or, for every
 * other sample, the same range of another sample, and [SEP]. */
static tws_code make_sentences(const filler *f, uint64_t number, uint64_t sample, int64_t row, tws_error *err) {
  enum { MARKS = 3, OF_SPLIT = 0, OF_PAIR = 1, OF_OTHER = 2 };
  const tws_data *data = f->from->data;
  const tws_network *network = f->from->network;
  const int64_t whole = data->sequence, there = length_of(f, f->row), room = whole - MARKS;
  int64_t taken = there < room ? there : room, n = 0;
  const int64_t first = taken > 1 ? 1 + (int64_t)(drawn(data, number, whole, OF_SPLIT) * (double)(taken - 1)) : taken;
  int another = data->samples > 1 && taken > 1 && drawn(data, number, whole, OF_PAIR) < 0.5;
  if (another) {
    const uint64_t away = 1 + (uint64_t)(drawn(data, number, whole, OF_OTHER) * (double)(data->samples - 1));
    TWS_TRY(tws_data_tokens_at(data, (sample + away) % data->samples * (uint64_t)whole, whole, f->other, err));
    const int64_t ends = length_of(f, f->other);
    /* 1: sentence B is taken from another sample; 0 if that sample has no token after the end of A */
    another = ends > first;
    if (another) taken = ends < taken ? ends : taken;
  }
  const int32_t *second = another ? f->other : f->row;
  int32_t *types = f->other; /* written after the part of f->other that is read */
  memmove(f->row + first + 2, second + first, (size_t)(taken - first) * sizeof *f->row);
  memmove(f->row + 1, f->row, (size_t)first * sizeof *f->row);
  f->row[0] = (int32_t)network->class_token;
  f->row[first + 1] = f->row[taken + 2] = (int32_t)network->separator_token;
  for (; n < taken + MARKS; n++) types[n] = n > first + 1;
  put_sentences(f, number, taken + MARKS, types, another ? IS_ANOTHER : FOLLOWS, row);
  return TWS_OK;
}

/* Writes a sample from a line of a file with labels. */
static void take_sentences(const filler *f, uint64_t number, const tws_pair *pair, int64_t row) {
  const int64_t whole = f->from->data->sequence, length = pair->sources < whole ? pair->sources : whole;
  memcpy(f->row, pair->source, (size_t)length * sizeof *f->row);
  put_sentences(f, number, length, pair->types, pair->target[0], row);
}

/* ---- sources and targets ---- */

/* Writes the tokens of one of the network's inputs one by one. */
typedef struct writer {
  int32_t *to;
  int64_t count, room;
} writer;

static void write_token(writer *w, int64_t token) {
  if (w->count < w->room) w->to[w->count++] = (int32_t)token;
}

/* Ends a text with the end token, which replaces the last token where the buffer is full. */
static void end_text(writer *w, int64_t end) {
  if (w->count == w->room) w->count--;
  write_token(w, end);
}

/* Returns 1 if a range ends after token `at`, where `wanted` of the next `places` positions are still to be ends:
 * each set of positions is equally likely. */
static int ends_here(const filler *f, uint64_t sample, int64_t at, int draw, int64_t wanted, int64_t places) {
  return drawn(f->from->data, sample, at, draw) * (double)places < (double)wanted;
}

/* Splits a text for span corruption alternately into ranges that stay in the source and spans that are moved to the
 * target; the first range stays. */
static void leave_out_spans(const filler *f, uint64_t sample, writer *source, writer *target) {
  enum { STAYS, GOES };
  const tws_network *network = f->from->network;
  const int64_t length = f->from->data->sequence;
  const double share = 0.15, span = 3;
  int64_t out = (int64_t)(share * (double)length + 0.5);
  out = out < 1 ? 1 : out;
  int64_t spans = (int64_t)((double)out / span + 0.5);
  spans = spans < 1 ? 1 : spans;
  if (length < 2 * spans) spans = out = length > 1;
  int64_t left[2] = {length - out, out}, ends[2] = {spans - 1, spans - 1}, sentinel = network->mask_token;
  int now = STAYS;
  for (int64_t t = 0; t < length; t++) {
    write_token(now == STAYS ? source : target, f->row[t]);
    left[now]--;
    const int ends_span =
        ends[now] > 0 && left[now] > 0 ? ends_here(f, sample, t, now, ends[now], left[now]) : left[now] == 0;
    if (!ends_span) continue;
    if (ends[now] > 0) ends[now]--;
    now = now == STAYS ? GOES : STAYS;
    if (now != GOES || left[GOES] == 0) continue;
    write_token(source, sentinel);
    write_token(target, sentinel);
    if (sentinel > 0) sentinel--;
  }
}

static void pair_sample(const filler *f, uint64_t sample, const tws_pair *pair, int64_t row) {
  const tws_network *network = f->from->network;
  const int64_t whole = f->from->data->sequence, room = f->from->target > 0 ? f->from->target : whole;
  writer source = {f->source + row * whole, 0, whole}, target = {f->targets + row * room, 0, room};
  for (int64_t i = 0; pair && i < pair->sources; i++) write_token(&source, pair->source[i]);
  for (int64_t i = 0; pair && i < pair->targets; i++) write_token(&target, pair->target[i]);
  if (!pair) leave_out_spans(f, sample, &source, &target);
  end_text(&source, network->end_token);
  end_text(&target, network->end_token);
  f->lengths[row] = (int32_t)source.count;
  for (int64_t t = source.count; t < whole; t++) source.to[t] = (int32_t)network->pad_token;
  for (int64_t t = 0; t < room; t++)
    f->ids[row * room + t] = (int32_t)(t == 0              ? network->start_token
                                       : t <= target.count ? target.to[t - 1]
                                                           : network->pad_token);
  for (int64_t t = target.count; t < room; t++) target.to[t] = -1;
}

/* ---- texts with labels ---- */

static void label_sample(const filler *f, const tws_pair *pair, int64_t row) {
  const tws_network *network = f->from->network;
  const tws_batch_shape *shape = f->from->shape;
  const int64_t whole = f->from->data->sequence, part = whole / shape->parts, first = part * shape->part;
  const int64_t length = pair->sources < whole ? pair->sources : whole;
  const int tags = network->objective == TWS_OBJECTIVE_TAGS;
  for (int64_t t = 0; t < part; t++) {
    const int inside = first + t < length;
    f->ids[row * part + t] = inside ? pair->source[first + t] : (int32_t)network->pad_token;
    if (f->types) f->types[row * part + t] = inside && pair->types ? pair->types[first + t] : 0;
    if (tags && f->targets) f->targets[row * part + t] = inside ? pair->target[first + t] : -1;
  }
  const int ends = network->objective == TWS_OBJECTIVE_SPANS ? 2 : 1, whole_answer = pair->target[ends - 1] < length;
  for (int e = 0; e < ends && !tags && f->targets; e++)
    f->targets[row * ends + e] = ends == 1 || whole_answer ? pair->target[e] : -1;
  if (f->rows) f->rows[row] = (int32_t)(row % shape->micro_batch * whole + (f->lengths ? 0 : length - 1));
  if (f->lengths) f->lengths[row] = (int32_t)length;
}

/* Fills this rank's share of the step sample by sample, according to the objective. */
static tws_code fill_samples(filler *f, int64_t step, tws_error *err) {
  const tws_batch_shape *shape = f->from->shape;
  const tws_data *data = f->from->data;
  for (int64_t a = 0, row = 0; a < shape->accumulation; a++)
    for (int64_t i = 0; i < shape->micro_batch; i++, row++) {
      const int64_t place = (a * shape->replicas + shape->replica) * shape->micro_batch + i;
      const uint64_t number = (uint64_t)(step * shape->train_batch + place),
                     sample = tws_data_sample(data, shape->train_batch, step, place);
      if (data->pairs) {
        const tws_pair pair = tws_pairs_at(data->pairs, sample);
        if (f->from->network->objective == TWS_OBJECTIVE_SENTENCES)
          take_sentences(f, number, &pair, row);
        else if (f->from->network->classes > 0)
          label_sample(f, &pair, row);
        else
          pair_sample(f, number, &pair, row);
        continue;
      }
      TWS_TRY(tws_data_tokens_at(data, sample * (uint64_t)data->sequence, data->sequence, f->row, err));
      if (f->from->network->objective == TWS_OBJECTIVE_PAIRS)
        pair_sample(f, number, NULL, row);
      else if (f->from->network->objective == TWS_OBJECTIVE_SENTENCES)
        TWS_TRY(make_sentences(f, number, sample, row, err));
      else if (f->from->network->objective == TWS_OBJECTIVE_MASKED)
        mask_sample(f, number, length_of(f, f->row), row);
      put_documents(f, row);
    }
  return TWS_OK;
}

/* ---- pictures ---- */

/* Writes the pictures and labels of the record that was read last as row `row` of the inputs that this rank has.
 * patches: room for the largest picture. */
static void put_record(const tws_objective_source *s, int64_t row, void *const *input, float *patches) {
  int picture = 0;
  for (uint32_t i = 0; i < s->network->input_count; i++) {
    const tws_network_input *in = &s->network->input[i];
    const int index = in->content == TWS_INPUT_NUMBERS ? picture++ : 0;
    if (input[i] == NULL) continue;
    if (in->content == TWS_INPUT_TARGETS) ((int32_t *)input[i])[row] = tws_pictures_label(s->data, in->value);
    if (in->content != TWS_INPUT_NUMBERS) continue;
    const tws_picture p = tws_network_picture(s->network, index);
    const uint64_t numbers = (uint64_t)(p.side * p.side * p.channels);
    tws_pictures_patches(s->data, s->network, index, patches);
    tws_convert_elements(TWS_F32, patches, s->dtype,
                         (char *)input[i] + (size_t)row * numbers * tws_dtype_bytes(s->dtype), numbers);
  }
}

/* Returns the elements of the network's largest picture. */
static size_t largest_picture(const tws_network *network) {
  size_t largest = 0;
  for (int i = 0; i < tws_network_pictures(network); i++) {
    const tws_picture p = tws_network_picture(network, i);
    const size_t numbers = (size_t)(p.side * p.side * p.channels);
    largest = numbers > largest ? numbers : largest;
  }
  return largest;
}

/* Sets which rows of a micro-batch are patches, and which are class tokens, for a network of pictures. */
static void fill_rows(const tws_objective_source *s, void *const *input, int64_t patches) {
  const tws_batch_shape *shape = s->shape;
  const int64_t samples = shape->accumulation * shape->micro_batch, tokens = patches + 1;
  for (uint32_t i = 0; i < s->network->input_count; i++) {
    const tws_network_input *in = &s->network->input[i];
    int32_t *to = input[i];
    if (to == NULL || (in->content != TWS_INPUT_ROWS && in->content != TWS_INPUT_TYPES)) continue;
    for (int64_t sample = 0; sample < samples; sample++) {
      const int64_t own = sample % shape->micro_batch;
      if (in->dims == 1) to[sample] = (int32_t)(own * tokens);
      for (int64_t t = 0; t < tokens && in->dims > 1; t++)
        to[sample * tokens + t] = (int32_t)(in->content == TWS_INPUT_TYPES ? -(t > 0)
                                            : t > 0                        ? own * patches + t - 1
                                                                           : -1);
    }
  }
}

/* Draws the noise of a sample, whose position among the samples of all steps is `number`, as row `row`. */
static void draw_noise(const tws_objective_source *s, uint64_t number, int64_t row, void *const *input) {
  static const uint64_t noise = UINT64_C(0x6e6f697365000000);
  const uint32_t i = tws_network_input_of(s->network, TWS_INPUT_NOISE);
  if (i == TWS_NONE || input[i] == NULL) return;
  const uint64_t numbers = (uint64_t)tws_dims_count(s->network->input[i].dim, s->network->input[i].dims, 1, 1);
  char *to = (char *)input[i] + (size_t)row * numbers * tws_dtype_bytes(s->dtype);
  for (uint64_t k = 0; k < numbers; k++, to += tws_dtype_bytes(s->dtype)) {
    const float drawn_number = (float)tws_random_normal(s->data->seed ^ noise, number, k);
    tws_convert_elements(TWS_F32, &drawn_number, s->dtype, to, 1);
  }
}

static void fill_constants(const tws_objective_source *s, void *const *input) {
  const int64_t samples = s->shape->accumulation * s->shape->micro_batch;
  for (uint32_t i = 0; i < s->network->input_count; i++) {
    const tws_network_input *in = &s->network->input[i];
    if (in->content != TWS_INPUT_CONSTANT || input[i] == NULL) continue;
    const int64_t count = tws_dims_count(in->dim, in->dims, samples, 1);
    for (int64_t k = 0; k < count; k++) ((int32_t *)input[i])[k] = in->value;
  }
}

static tws_code fill_pictures(const tws_objective_source *s, int64_t step, void *const *input, tws_error *err) {
  const tws_batch_shape *shape = s->shape;
  const tws_picture *p = &s->network->picture;
  float *patches = tws_calloc(largest_picture(s->network), sizeof *patches);
  tws_code code = patches ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int64_t a = 0, row = 0; a < shape->accumulation; a++)
    for (int64_t i = 0; i < shape->micro_batch && code == TWS_OK; i++, row++) {
      const int64_t place = (a * shape->replicas + shape->replica) * shape->micro_batch + i;
      code = tws_pictures_read(s->data, s->network, tws_data_sample(s->data, shape->train_batch, step, place), err);
      if (code == TWS_OK) put_record(s, row, input, patches);
      draw_noise(s, (uint64_t)(step * shape->train_batch + place), row, input);
    }
  fill_constants(s, input);
  fill_rows(s, input, (p->side / p->patch) * (p->side / p->patch));
  tws_free(patches);
  return code;
}

/* Returns the number of rows of the segment table. */
static int64_t types_of(const tws_network *network) {
  const uint32_t types = tws_network_input_of(network, TWS_INPUT_TYPES);
  for (uint32_t m = 0; m < network->module_count; m++)
    if (types != TWS_NONE && network->modules[m].type == TWS_MODULE_EMBEDDING && network->modules[m].input[1] == types)
      return network->params[network->modules[m].param[2]].rows;
  return 1;
}

tws_code tws_objective_open(const tws_network *network, const char *path, int64_t sequence, int64_t train_batch,
                            uint64_t seed, tws_data *data, tws_error *err) {
  if (network->objective == TWS_OBJECTIVE_PICTURES)
    return tws_pictures_open(path, network, train_batch, seed, data, err);
  if (network->objective == TWS_OBJECTIVE_CLASSES && network->classes == 1)
    return tws_fail(err, TWS_UNSUPPORTED, "train a model of two labels or more",
                    "%s has one label, a score, and there is no loss of scores here", network->name);
  const int sentences = network->objective == TWS_OBJECTIVE_SENTENCES && tws_pairs_is_file(path);
  if (network->objective == TWS_OBJECTIVE_SENTENCES && sequence < LEAST_SENTENCES)
    return tws_fail(err, TWS_INVALID, "use longer sequences", "two texts and their marks need %d tokens, not %lld",
                    LEAST_SENTENCES, (long long)sequence);
  if (network->classes > 0 || sentences) {
    const tws_pairs_form form = {.kind = network->objective == TWS_OBJECTIVE_TAGS    ? TWS_PAIRS_TAGS
                                         : network->objective == TWS_OBJECTIVE_SPANS ? TWS_PAIRS_SPANS
                                                                                     : TWS_PAIRS_CLASSES,
                                 .vocabulary = network->vocabulary,
                                 .classes = sentences ? FOLLOWS_CLASSES : network->classes,
                                 .types = types_of(network)};
    return tws_data_open_labelled(path, sequence, &form, train_batch, seed, data, err);
  }
  return tws_data_open(path, sequence, network->vocabulary, train_batch, seed, data, err);
}

tws_code tws_objective_open_memory(const tws_network *network, int64_t sequence, int64_t train_batch, uint64_t seed,
                                   tws_data *data, tws_error *err) {
  if (network->objective == TWS_OBJECTIVE_PICTURES || network->classes > 0)
    return tws_fail(err, TWS_UNSUPPORTED, "name a file of them",
                    "%s is trained on pictures or labelled texts, and a batch in memory has tokens alone",
                    network->name);
  return tws_data_open_memory(sequence, network->vocabulary, train_batch, seed, data, err);
}

tws_code tws_objective_fill(const tws_objective_source *s, int64_t step, void *const input[TWS_NETWORK_INPUTS],
                            tws_error *err) {
  filler f = {.from = s,
              .ids = input_of(s, input, TWS_INPUT_TOKENS),
              .targets = input_of(s, input, TWS_INPUT_TARGETS),
              .lengths = input_of(s, input, TWS_INPUT_LENGTHS),
              .source = input_of(s, input, TWS_INPUT_SOURCE),
              .types = input_of(s, input, TWS_INPUT_TYPES),
              .rows = input_of(s, input, TWS_INPUT_ROWS),
              .classes = input_of(s, input, TWS_INPUT_CLASSES),
              .documents = input_of(s, input, TWS_INPUT_DOCUMENTS),
              .positions = input_of(s, input, TWS_INPUT_POSITIONS)};
  const tws_objective objective = s->network->objective;
  if (s->data->pairs && objective != TWS_OBJECTIVE_PAIRS && objective != TWS_OBJECTIVE_SENTENCES &&
      s->network->classes == 0)
    return tws_fail(err, TWS_INVALID, "give a text or tokens", "%s has pairs, and %s is not trained on such",
                    s->data->path, s->network->name);
  if (s->network->objective == TWS_OBJECTIVE_PICTURES) return fill_pictures(s, step, input, err);
  if (s->network->objective == TWS_OBJECTIVE_NEXT_TOKEN) {
    TWS_TRY(tws_data_fill(s->data, s->shape, step, f.ids, f.targets, err));
    if (!has_places(&f)) return TWS_OK;
  }
  f.row = tws_calloc((size_t)s->data->sequence, sizeof *f.row);
  f.other = tws_calloc((size_t)s->data->sequence, sizeof *f.other);
  f.draw = tws_calloc((size_t)s->data->sequence, sizeof *f.draw);
  f.spans = tws_calloc((size_t)s->data->sequence, 2 * sizeof *f.spans);
  tws_code code = f.row && f.other && f.draw && f.spans ? fill_samples(&f, step, err)
                                                        : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_free(f.row);
  tws_free(f.other);
  tws_free(f.draw);
  tws_free(f.spans);
  return code;
}
