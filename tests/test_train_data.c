/* ctest: engine */
/* The start of a training: the order and the division of the data, initial weights, requested faults. */
#include "real/data.h"
#include "real/fault.h"
#include "real/init.h"
#include "real/objective.h"
#include "tokens/corpus.h"
#include "train.h"

/* ---- data ---- */

/* Each sample occurs once per epoch; the samples of a step do not depend on the division of the batch; epochs have
 * different orders. */
START_TEST(data_order) {
  char *text = NULL;
  size_t length_of_text;
  ck_assert_int_eq(tws_read_file(text_path, 0, &text, &length_of_text, NULL), TWS_OK);
  for (uint64_t trial = 0; trial < 40; trial++) {
    uint32_t word[4];
    tws_philox(3, 0, trial, word);
    int64_t micro = 1 + word[0] % 3, accumulation = 1 + word[1] % 3, ranks = 1 + word[2] % 4;
    int64_t parts = 1 + word[3] % 4, sequence = parts * (5 + word[3] / 4 % 30), length = sequence / parts;
    int64_t batch = micro * accumulation * ranks;
    tws_error err = {0};
    tws_data data;
    ck_assert_msg(tws_data_open(text_path, sequence, 256, batch, trial, &data, &err) == TWS_OK, "%s", err.message);
    ck_assert_uint_eq(data.samples, (data.count - 1) / (uint64_t)sequence);
    size_t tokens = (size_t)(micro * accumulation * length);
    int32_t *ids = malloc(tokens * sizeof *ids), *targets = malloc(tokens * sizeof *targets);
    unsigned char *seen = calloc(data.samples, 1);
    uint64_t same = 0;
    int64_t steps = (int64_t)data.samples / batch;
    for (int64_t step = 0; step < steps; step++) {
      for (int64_t place = 0; place < batch; place++) {
        uint64_t sample = tws_data_sample(&data, batch, step, place);
        ck_assert_uint_lt(sample, data.samples);
        ck_assert_int_eq(seen[sample]++, 0);
        same += sample == tws_random_permute(trial + 1, data.samples, (uint64_t)(step * batch + place));
      }
      if (step > 2) continue;
      /* row i of micro-batch a of replica r is sample (a replicas + r) micro + i of the batch; a rank has one part of
       * it, or with attention in chunks a part of each chunk */
      for (int cut = 0; cut < 2 * ranks * parts; cut++) {
        int replica = cut / 2 / (int)parts, part = cut / 2 % (int)parts;
        const int64_t chunks = cut % 2 && length % 3 == 0 ? 3 : 1, range = length / chunks;
        tws_batch_shape shape = {batch,      micro,                accumulation, replica, (int)ranks, part,
                                 (int)parts, trial % 2 ? ' ' : -1, 0,            chunks};
        ck_assert_int_eq(tws_data_tokens(&data, &shape), (int64_t)tokens);
        ck_assert_int_eq(tws_data_fill(&data, &shape, step, ids, targets, &err), TWS_OK);
        for (int64_t a = 0, at = 0; a < accumulation; a++)
          for (int64_t row = 0; row < micro; row++)
            for (int64_t own = 0; own < length; own++, at++) {
              const int64_t i = own / range * range * parts + part * range + own % range;
              uint64_t sample = tws_data_sample(&data, batch, step, (a * ranks + replica) * micro + row);
              int target = text[sample * (uint64_t)sequence + (uint64_t)i + 1];
              ck_assert_int_eq(ids[at], text[sample * (uint64_t)sequence + (uint64_t)i]);
              ck_assert_int_eq(targets[at], trial % 2 && target == ' ' ? -1 : target);
            }
      }
    }
    if (data.samples > 100) ck_assert_uint_lt(same, data.samples / 4);
    /* the step that crosses the end of an epoch takes the epoch's remaining samples first */
    for (int64_t place = 0; place < (int64_t)data.samples - steps * batch; place++)
      ck_assert_int_eq(seen[tws_data_sample(&data, batch, steps, place)]++, 0);
    for (uint64_t i = 0; i < data.samples; i++) ck_assert_int_eq(seen[i], 1);
    free(ids);
    free(targets);
    free(seen);
    tws_data_close(&data);
  }
  tws_free(text);
}
END_TEST

static void write_tokens(const char *path, uint32_t magic, uint32_t version, uint32_t promised, int size, int count) {
  uint32_t header[256] = {magic, version, promised};
  FILE *file = fopen(path, "wb");
  fwrite(header, sizeof header, 1, file);
  for (uint32_t i = 0; i < (uint32_t)count; i++) {
    uint32_t token = i * 37 % 1000;
    fwrite(&token, (size_t)size, 1, file); /* little-endian */
  }
  fclose(file);
}

START_TEST(data_tokens) {
  tws_error err = {0};
  tws_data data;
  const char *path = in_folder("tokens.bin");
  const uint32_t magic[] = {20240520, 20240801}, version[] = {1, 7};
  for (int f = 0; f < 2; f++) {
    write_tokens(path, magic[f], version[f], 500, f ? 4 : 2, 500);
    ck_assert_msg(tws_data_open(path, 10, 1000, 2, 0, &data, &err) == TWS_OK, "%s", err.message);
    ck_assert_uint_eq(data.count, 500);
    int32_t ids[20], targets[20];
    tws_batch_shape shape = {2, 2, 1, 0, 1, 0, 1, -1, 0, 1};
    ck_assert_int_eq(tws_data_fill(&data, &shape, 0, ids, targets, &err), TWS_OK);
    for (int i = 0; i < 20; i++) ck_assert_int_eq(targets[i], (ids[i] + 37) % 1000);
    tws_data_close(&data);
    ck_assert_int_eq(tws_data_open(path, 10, 999, 2, 0, &data, &err), TWS_INVALID); /* token 999 */
    ck_assert_ptr_nonnull(strstr(err.message, "token 27 is 999"));
  }
  write_tokens(path, 20240520, 2, 500, 2, 500);
  ck_assert_int_eq(tws_data_open(path, 10, 1000, 2, 0, &data, &err), TWS_INVALID);
  write_tokens(path, 20240520, 1, 501, 2, 500);
  ck_assert_int_eq(tws_data_open(path, 10, 1000, 2, 0, &data, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "holds 500"));
  write_tokens(path, 1, 1, 500, 2, 500);
  ck_assert_int_eq(tws_data_open(path, 10, 1000, 2, 0, &data, &err), TWS_INVALID);
}
END_TEST

/* Samples of two texts: the marks are where the segments begin, the second text is the continuation or another
 * sample's, and both together have the sample's tokens except for masks, which never replace a mark. */
START_TEST(sentences_paired) {
  enum { SEQUENCE = 40, SAMPLES = 40, VOCABULARY = 259, CLASS = 256, SEPARATOR = 257, MASK = 258, MARKS = 3 };
  tws_network network = {.name = "by hand",
                         .objective = TWS_OBJECTIVE_SENTENCES,
                         .vocabulary = VOCABULARY,
                         .mask_token = MASK,
                         .class_token = CLASS,
                         .separator_token = SEPARATOR,
                         .input_count = 6,
                         .input = {{.content = TWS_INPUT_TOKENS},
                                   {.content = TWS_INPUT_TYPES},
                                   {.content = TWS_INPUT_LENGTHS},
                                   {.content = TWS_INPUT_TARGETS},
                                   {.content = TWS_INPUT_CLASSES},
                                   {.content = TWS_INPUT_ROWS}}};
  static int32_t ids[SAMPLES][SEQUENCE], types[SAMPLES][SEQUENCE], lengths[SAMPLES], targets[SAMPLES][SEQUENCE],
      classes[SAMPLES], rows[SAMPLES], text[SEQUENCE];
  void *const input[TWS_NETWORK_INPUTS] = {ids, types, lengths, targets, classes, rows};
  const tws_batch_shape shape = {
      .train_batch = SAMPLES, .micro_batch = SAMPLES / 2, .accumulation = 2, .replicas = 1, .parts = 1, .ignored = -1};
  tws_error err = {0};
  tws_data data;
  int others = 0, masked = 0;
  ck_assert_msg(tws_data_open(text_path, SEQUENCE, VOCABULARY, SAMPLES, 7, &data, &err) == TWS_OK, "%s", err.message);
  const tws_objective_source from = {&network, &data, &shape, TWS_F32, 0, -1};
  ck_assert_msg(tws_objective_fill(&from, 0, input, &err) == TWS_OK, "%s", err.message);
  for (int s = 0; s < SAMPLES; s++) {
    const uint64_t sample = tws_data_sample(&data, SAMPLES, 0, s);
    int first = 1, same = 1;
    ck_assert_int_eq(tws_data_tokens_at(&data, sample * SEQUENCE, SEQUENCE, text, &err), TWS_OK);
    ck_assert(lengths[s] == SEQUENCE && rows[s] == s % (SAMPLES / 2) * SEQUENCE);
    while (first < SEQUENCE && types[s][first] == 0) first++;
    ck_assert(first > 2 && first < SEQUENCE - 1 && ids[s][0] == CLASS);
    ck_assert(ids[s][first - 1] == SEPARATOR && ids[s][SEQUENCE - 1] == SEPARATOR);
    for (int t = 0; t < SEQUENCE; t++) {
      const int mark = t == 0 || t == first - 1 || t == SEQUENCE - 1, at = t - 1 - (t >= first);
      const int32_t was = targets[s][t] >= 0 ? targets[s][t] : ids[s][t];
      ck_assert(!mark || targets[s][t] == -1);
      ck_assert_int_eq(types[s][t], t >= first);
      masked += targets[s][t] >= 0;
      if (!mark && t < first) ck_assert_int_eq(was, text[at]);
      if (!mark && t >= first) same &= was == text[at];
    }
    ck_assert(classes[s] == 1 || same);
    others += classes[s];
  }
  ck_assert_int_ge(others, SAMPLES / 4);
  ck_assert_int_le(others, 3 * SAMPLES / 4);
  ck_assert_int_ge(masked, SAMPLES * SEQUENCE / 10);
  ck_assert_int_le(masked, SAMPLES * SEQUENCE / 5);
  tws_data_close(&data);
  ck_assert_int_eq(tws_objective_open(&network, text_path, MARKS, 1, 7, &data, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "two texts and their marks need 5 tokens, not 3"));
}
END_TEST

/* Sources and targets of a text without some spans together give the text, with the expected number and length of
 * spans. */
START_TEST(spans_left_out) {
  enum { SEQUENCE = 120, TARGET = 40, SAMPLES = 20, FIRST = 999, END = 1, START = 5 };
  tws_network network = {.name = "by hand",
                         .objective = TWS_OBJECTIVE_PAIRS,
                         .vocabulary = 1000,
                         .mask_token = FIRST,
                         .end_token = END,
                         .start_token = START,
                         .input_count = 4,
                         .input = {{.content = TWS_INPUT_SOURCE},
                                   {.content = TWS_INPUT_LENGTHS},
                                   {.content = TWS_INPUT_TOKENS},
                                   {.content = TWS_INPUT_TARGETS}}};
  static int32_t source[SAMPLES][SEQUENCE], lengths[SAMPLES], ids[SAMPLES][TARGET], targets[SAMPLES][TARGET],
      text[SEQUENCE];
  void *const input[TWS_NETWORK_INPUTS] = {source, lengths, ids, targets};
  const tws_batch_shape shape = {
      .train_batch = SAMPLES, .micro_batch = SAMPLES, .accumulation = 1, .replicas = 1, .parts = 1, .ignored = -1};
  tws_error err = {0};
  tws_data data;
  int first_lengths[4] = {0};
  ck_assert_msg(tws_data_open(text_path, SEQUENCE, 1000, SAMPLES, 7, &data, &err) == TWS_OK, "%s", err.message);
  const tws_objective_source from = {&network, &data, &shape, TWS_F32, TARGET, -1};
  ck_assert_msg(tws_objective_fill(&from, 0, input, &err) == TWS_OK, "%s", err.message);
  for (int i = 0; i < SAMPLES; i++) {
    int at = 0, spans = 0, read = 0;
    const uint64_t sample = tws_data_sample(&data, SAMPLES, 0, i);
    ck_assert_int_eq(tws_data_tokens_at(&data, sample * SEQUENCE, SEQUENCE, text, &err), TWS_OK);
    for (int k = 0; k + 1 < lengths[i]; k++) {
      if (source[i][k] != FIRST - spans) {
        ck_assert_int_eq(source[i][k], text[at++]);
        continue;
      }
      ck_assert_int_eq(targets[i][read++], FIRST - spans++);
      const int begin = at;
      while (targets[i][read] > END && targets[i][read] < FIRST - 20) ck_assert_int_eq(targets[i][read++], text[at++]);
      ck_assert_int_gt(at, begin);
      if (spans == 1) first_lengths[at - begin < 4 ? at - begin - 1 : 3]++;
    }
    ck_assert_int_eq(source[i][lengths[i] - 1], END);
    ck_assert_int_eq(targets[i][read], END);
    ck_assert_int_eq(at, SEQUENCE);
    ck_assert_int_eq(spans, 6); /* 18 tokens are left out, in spans of 3 on average */
    ck_assert_int_eq(lengths[i], SEQUENCE - 18 + 6 + 1);
    ck_assert_int_eq(read, 18 + 6);
    for (int k = 0; k < TARGET; k++) {
      ck_assert_int_eq(ids[i][k], k == 0 ? START : k <= read + 1 ? targets[i][k - 1] : 0);
      if (k > read) ck_assert_int_eq(targets[i][k], -1);
    }
  }
  ck_assert(first_lengths[0] > 0 && first_lengths[1] > 0 && first_lengths[3] > 0);
  tws_data_close(&data);
}
END_TEST

START_TEST(data_errors) {
  tws_error err = {0};
  tws_data data;
  ck_assert_int_eq(tws_data_open(in_folder("none"), 8, 256, 1, 0, &data, &err), TWS_IO);
  ck_assert_int_eq(tws_data_open(folder, 8, 256, 1, 0, &data, &err), TWS_IO);
  ck_assert_int_eq(tws_data_open("/dev/null", 8, 256, 1, 0, &data, &err), TWS_IO);
  ck_assert_int_eq(tws_data_open(text_path, 8, 100, 1, 0, &data, &err), TWS_INVALID);
  write_text(in_folder("empty"), "");
  ck_assert_int_eq(tws_data_open(in_folder("empty"), 8, 256, 1, 0, &data, &err), TWS_INVALID);
  write_text(in_folder("short"), "0123456789abcdef"); /* 16 tokens are one less than the needed 2 x 8 + 1 */
  ck_assert_int_eq(tws_data_open(in_folder("short"), 8, 256, 2, 0, &data, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "needs 17"));
  write_text(in_folder("short"), "0123456789abcdef0");
  ck_assert_int_eq(tws_data_open(in_folder("short"), 8, 256, 2, 0, &data, &err), TWS_OK);
  tws_data_close(&data);
}
END_TEST

/* ---- files that `convert tokens` writes ---- */

static tws_data opened(const char *path, int64_t sequence, int64_t vocabulary) {
  tws_data data;
  tws_error err = {0};
  ck_assert_msg(tws_data_open(path, sequence, vocabulary, 1, 0, &data, &err) == TWS_OK, "%s", err.message);
  return data;
}

/* Documents of JSON lines, in llm.c's files and Megatron's: the same tokens, an end of text after each document, and
 * every document either for training or for evaluation. */
START_TEST(data_converted) {
  static const char tokenizer[] =
      "{\"added_tokens\":[{\"id\":70000,\"content\":\"</s>\"}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
      "\"ab\":2},\"merges\":[\"a b\"]}}";
  char lines[8192], *at = lines, path[256], eval[256];
  tws_corpus_result r[2];
  tws_tokenizer *t = NULL;
  int32_t ids[2][2][400];
  for (int i = 0; i < 60; i++) at += sprintf(at, "{\"n\":%d,\"body\":\"abba%s\"}\n", i, i % 3 ? "b" : "");
  snprintf(path, sizeof path, "%s.jsonl", in_folder("lines"));
  write_text(path, lines);
  ck_assert(tws_tokenizer_parse(tokenizer, strlen(tokenizer), "file", &t, NULL) == TWS_OK);
  for (int megatron = 0; megatron < 2; megatron++) {
    char to[256];
    tws_error err = {0};
    snprintf(to, sizeof to, "%s%d.bin", in_folder("train"), megatron);
    snprintf(eval, sizeof eval, "%s%d.bin", in_folder("eval"), megatron);
    const tws_corpus_request request = {.from = path,
                                        .to = to,
                                        .eval_to = eval,
                                        .eval_share = 0.25,
                                        .field = "body",
                                        .tokenizer = t,
                                        .megatron = megatron};
    ck_assert_msg(tws_corpus_convert(&request, &r[megatron], &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(r[megatron].documents, 60);
    ck_assert_int_eq(r[megatron].tokens + r[megatron].eval_tokens, 60 * 4); /* ab b a </s>, or ab b ab </s> */
    ck_assert(r[megatron].eval_tokens > 20 && r[megatron].eval_tokens < 140);
    for (int part = 0; part < 2; part++) {
      const int64_t count = part ? r[megatron].eval_tokens : r[megatron].tokens;
      int32_t targets[400];
      tws_data data = opened(part ? eval : to, count - 1, 70001);
      ck_assert_int_eq((int64_t)data.count, count);
      ck_assert_int_eq(data.token_bytes, 4);
      const tws_batch_shape shape = {1, 1, 1, 0, 1, 0, 1, -1, 0, 1};
      ck_assert(tws_data_fill(&data, &shape, 0, ids[megatron][part], targets, &err) == TWS_OK);
      ck_assert_int_eq(targets[count - 2], 70000);
      tws_data_close(&data);
      ck_assert(ids[megatron][part][0] == 2 && ids[megatron][part][1] == 1 && ids[megatron][part][3] == 70000);
      if (megatron) ck_assert_mem_eq(ids[0][part], ids[1][part], (size_t)(count - 1) * sizeof(int32_t));
    }
  }
  tws_tokenizer_close(t);
  /* an index that does not match its tokens is refused */
  snprintf(path, sizeof path, "%s1.idx", in_folder("eval"));
  ck_assert_int_eq(truncate(path, 40), 0);
  tws_data data;
  tws_error err = {0};
  ck_assert(tws_data_open(eval, 4, 70001, 1, 0, &data, &err) == TWS_INVALID && strstr(err.message, "cut short"));
}
END_TEST

/* Converting one text keeps its last tokens for evaluation; without a tokenizer tokens are bytes. */
START_TEST(text_converted) {
  char to[256], eval[256], line[64];
  tws_corpus_result r;
  tws_error err = {0};
  snprintf(to, sizeof to, "%s.bin", in_folder("bytes"));
  snprintf(eval, sizeof eval, "%s.bin", in_folder("bytes-eval"));
  tws_corpus_request request = {.from = text_path, .to = to, .eval_to = eval, .eval_share = 0.1};
  ck_assert_msg(tws_corpus_convert(&request, &r, &err) == TWS_OK, "%s", err.message);
  tws_data text = opened(text_path, 8, 256), train = opened(to, 8, 256), last = opened(eval, 8, 256);
  ck_assert_uint_eq(train.count + last.count, text.count);
  ck_assert_uint_eq(last.count, text.count / 10);
  tws_data_close(&text);
  tws_data_close(&train);
  tws_data_close(&last);
  snprintf(line, sizeof line, "{\"text\":\"a\"}\n{\"text\":7}\n");
  snprintf(eval, sizeof eval, "%s.jsonl", in_folder("bad"));
  write_text(eval, line);
  request = (tws_corpus_request){.from = eval, .to = in_folder("never.bin")};
  ck_assert(tws_corpus_convert(&request, &r, &err) == TWS_INVALID && strstr(err.message, "line 2"));
  ck_assert(access(in_folder("never.bin"), F_OK) != 0);
}
END_TEST

/* A data file that changes during the training gives an error, and no signal. */
START_TEST(data_that_changes) {
  tws_data data;
  tws_error err = {0};
  int32_t ids[8], targets[8], failed = 0;
  const tws_batch_shape shape = {.train_batch = 1, .micro_batch = 1, .accumulation = 1, .replicas = 1, .parts = 1};
  unsigned char bytes[4096] = {0};
  write_bytes(in_folder("changing"), bytes, sizeof bytes);
  ck_assert_int_eq(tws_data_open(in_folder("changing"), 8, 100, 1, 0, &data, &err), TWS_OK);
  ck_assert_int_eq(tws_data_fill(&data, &shape, 0, ids, targets, &err), TWS_OK);
  memset(bytes, 200, sizeof bytes); /* beyond the vocabulary */
  write_bytes(in_folder("changing"), bytes, sizeof bytes);
  ck_assert_int_eq(tws_data_fill(&data, &shape, 1, ids, targets, &err), TWS_INVALID);
  ck_assert_int_eq(truncate(in_folder("changing"), 10), 0);
  for (int step = 0; step < 4 && !failed; step++)
    failed = tws_data_fill(&data, &shape, step, ids, targets, &err) == TWS_IO && strstr(err.message, "4096 bytes");
  ck_assert_msg(failed, "%s", err.message);
  tws_data_close(&data);
  tws_data_close(&data);
}
END_TEST

/* ---- initial weights ---- */

START_TEST(init_by_parts) {
  enum { N = 10007, MANY = 200003 };
  static float whole[N], part[N], alone[MANY], together[MANY];
  tws_param param = {.init_std = 0.02f, .init_value = 0.0f};
  tws_init_values(&param, 3, 42, 0, N, whole);
  for (uint64_t trial = 0; trial < 100; trial++) {
    uint64_t first = (uint64_t)(tws_random_uniform(1, 2, trial) * N), count = (N - first) / (1 + trial % 5);
    tws_init_values(&param, 3, 42, first, count, part);
    for (uint64_t i = 0; i < count; i++) ck_assert(part[i] == whole[first + i]);
  }
  double sum = 0.0, squares = 0.0;
  for (int i = 0; i < N; i++) {
    sum += whole[i];
    squares += (double)whole[i] * whole[i];
  }
  ck_assert_double_lt(fabs(sum / N), 4 * 0.02 / sqrt(N));
  ck_assert_double_lt(fabs(sqrt(squares / N) / 0.02 - 1.0), 0.04);
  tws_init_values(&param, 4, 42, 0, N, part);
  ck_assert(memcmp(whole, part, sizeof whole) != 0);
  tws_param one = {.init_value = 1.0f};
  tws_init_values(&one, 0, 42, 5, 3, part);
  ck_assert(part[0] == 1.0f && part[2] == 1.0f);
  tws_init_values(&param, 3, 42, 7, MANY, alone);
  for (int threads = 1; threads <= 13; threads += 4) {
    memset(together, 0, sizeof together);
    tws_init_part_with(threads, &param, 3, 42, NULL, 7, MANY, together);
    ck_assert_mem_eq(together, alone, sizeof alone);
  }
}
END_TEST

/* Initial weights of slices equal those of the whole matrix: blocks of rows and a range of columns, as tensor
 * parallelism divides a matrix, in segments of any length. */
START_TEST(init_of_slices) {
  enum { ROWS = 60, COLUMNS = 97, N = ROWS * COLUMNS };
  static float whole[N], expected[N], part[N];
  tws_param param = {.init_std = 0.02f, .init_value = 0.5f};
  tws_init_values(&param, 2, 9, 0, N, whole);
  for (uint64_t trial = 0; trial < 200; trial++) {
    uint32_t word[4];
    tws_philox(17, 0, trial, word);
    tws_param_slice slice = {.whole_columns = COLUMNS, .columns = COLUMNS};
    int64_t row = 0, count = 0, first_column = word[0] % COLUMNS;
    if (word[1] % 2) {
      slice.first_column = first_column;
      slice.columns = 1 + word[1] / 2 % (COLUMNS - first_column);
    }
    for (uint32_t block = 0; block < 1 + word[2] % 3; block++) {
      slice.first_row[block] = row + word[3] % 7;
      slice.rows[block] = 1 + word[0] / 97 % 13;
      row = slice.first_row[block] + slice.rows[block];
      for (int64_t r = slice.first_row[block]; r < row; r++)
        for (int64_t c = 0; c < slice.columns; c++) expected[count++] = whole[r * COLUMNS + slice.first_column + c];
    }
    ck_assert_int_le(row, ROWS);
    for (int64_t first = 0, n; first < count; first += n) {
      n = 1 + (int64_t)(tws_random_uniform(trial, 3, (uint64_t)first) * 300.0);
      if (n > count - first) n = count - first;
      tws_init_part(&param, 2, 9, &slice, (uint64_t)first, (uint64_t)n, part);
      ck_assert_mem_eq(part, expected + first, (size_t)n * sizeof *part);
    }
  }
  tws_init_part(&param, 2, 9, NULL, 5, 100, part);
  ck_assert_mem_eq(part, whole + 5, 100 * sizeof *part);
}
END_TEST

START_TEST(fault_texts) {
  tws_fault fault;
  ck_assert_int_eq(tws_fault_parse("rank=1,step=3,kind=kill", 1, &fault, NULL), TWS_OK);
  ck_assert(fault.kind == TWS_FAULT_KILL && fault.step == 3);
  ck_assert_int_eq(tws_fault_parse("rank=1,step=3,kind=kill", 0, &fault, NULL), TWS_OK);
  ck_assert(fault.kind == TWS_FAULT_NONE);
  ck_assert_int_eq(tws_fault_parse(NULL, 0, &fault, NULL), TWS_OK);
  ck_assert_int_eq(tws_fault_parse("rank=1,step=3,kind=kil", 1, &fault, NULL), TWS_USAGE);
  ck_assert_int_eq(tws_fault_parse("rank=1,kind=kill", 1, &fault, NULL), TWS_USAGE);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_data");
  TCase *tests = tcase_create("train_data");
  tcase_add_test(tests, data_order);
  tcase_add_test(tests, data_tokens);
  tcase_add_test(tests, sentences_paired);
  tcase_add_test(tests, spans_left_out);
  tcase_add_test(tests, data_errors);
  tcase_add_test(tests, data_converted);
  tcase_add_test(tests, text_converted);
  tcase_add_test(tests, data_that_changes);
  tcase_add_test(tests, init_by_parts);
  tcase_add_test(tests, init_of_slices);
  tcase_add_test(tests, fault_texts);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
