/* ctest: engine mpi */
/* Real training: what must not depend on ranks, ZeRO stage, micro batches or recomputation does not; what the ledger
 * says is what is allocated; a rank that fails ends the job and leaves nothing behind. */
#include <check.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include "base/json.h"
#include "base/random.h"
#include "command.h"
#include "folder.h"
#include "members.h"
#include "real/data.h"
#include "real/fault.h"
#include "real/init.h"
#include "train_combinations.h"

static char text_path[64];

/* English-looking text: words of a short list, the more frequent the earlier. */
static void write_story(const char *path, size_t bytes) {
  static const char *const words[] = {"the",     "of",     "and",    "a",     "sea",  "ship",  "wind",
                                      "captain", "night",  "was",    "over",  "came", "under", "white",
                                      "harbour", "light",  "never",  "again", "song", "old",   "stone",
                                      "river",   "winter", "called", "home"};
  FILE *file = fopen(path, "w");
  size_t written = 0;
  for (uint64_t i = 0; written < bytes; i++) {
    double u = tws_random_uniform(5, 1, i);
    int n = fprintf(file, "%s%s", words[(int)(u * u * 25.0)], i % 11 == 10 ? ".\n" : " ");
    written += (size_t)n;
  }
  fclose(file);
}

static void set_up(void) {
  make_folder();
  snprintf(text_path, sizeof text_path, "%s/story.txt", folder);
  write_story(text_path, 40000);
  setenv("DATA", text_path, 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* in the ranks: MPI keeps memory */
}

/* ---- data ---- */

/* Every sample once an epoch; the samples of a step do not depend on how the batch is cut; orders of epochs differ. */
START_TEST(data_order) {
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
      /* replica r, micro-batch a, row i: place (a replicas + r) micro + i; of that sample one part */
      for (int cut = 0; cut < ranks * parts; cut++) {
        int replica = cut / (int)parts, part = cut % (int)parts;
        tws_batch_shape shape = {batch,      micro, accumulation, replica,
                                 (int)ranks, part,  (int)parts,   trial % 2 ? ' ' : -1};
        ck_assert_int_eq(tws_data_tokens(&data, &shape), (int64_t)tokens);
        tws_data_fill(&data, &shape, step, ids, targets);
        for (int64_t a = 0, at = 0; a < accumulation; a++)
          for (int64_t row = 0; row < micro; row++)
            for (int64_t i = part * length; i < (part + 1) * length; i++, at++) {
              uint64_t sample = tws_data_sample(&data, batch, step, (a * ranks + replica) * micro + row);
              int target = data.tokens[sample * (uint64_t)sequence + (uint64_t)i + 1];
              ck_assert_int_eq(ids[at], data.tokens[sample * (uint64_t)sequence + (uint64_t)i]);
              ck_assert_int_eq(targets[at], trial % 2 && target == ' ' ? -1 : target);
            }
      }
    }
    if (data.samples > 100) ck_assert_uint_lt(same, data.samples / 4);
    /* the step that crosses the end of the epoch takes the rest of it first */
    for (int64_t place = 0; place < (int64_t)data.samples - steps * batch; place++)
      ck_assert_int_eq(seen[tws_data_sample(&data, batch, steps, place)]++, 0);
    for (uint64_t i = 0; i < data.samples; i++) ck_assert_int_eq(seen[i], 1);
    free(ids);
    free(targets);
    free(seen);
    tws_data_close(&data);
  }
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
    tws_batch_shape shape = {2, 2, 1, 0, 1, 0, 1, -1};
    tws_data_fill(&data, &shape, 0, ids, targets);
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

START_TEST(data_errors) {
  tws_error err = {0};
  tws_data data;
  ck_assert_int_eq(tws_data_open(in_folder("none"), 8, 256, 1, 0, &data, &err), TWS_IO);
  ck_assert_int_eq(tws_data_open(folder, 8, 256, 1, 0, &data, &err), TWS_IO);
  ck_assert_int_eq(tws_data_open("/dev/null", 8, 256, 1, 0, &data, &err), TWS_IO);
  ck_assert_int_eq(tws_data_open(text_path, 8, 100, 1, 0, &data, &err), TWS_INVALID);
  write_text(in_folder("empty"), "");
  ck_assert_int_eq(tws_data_open(in_folder("empty"), 8, 256, 1, 0, &data, &err), TWS_INVALID);
  write_text(in_folder("short"), "0123456789abcdef"); /* 16 tokens: one short of 2 x 8 + 1 */
  ck_assert_int_eq(tws_data_open(in_folder("short"), 8, 256, 2, 0, &data, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "needs 17"));
  write_text(in_folder("short"), "0123456789abcdef0");
  ck_assert_int_eq(tws_data_open(in_folder("short"), 8, 256, 2, 0, &data, &err), TWS_OK);
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

/* Blocks of rows and a range of columns of a matrix, as tensor parallelism cuts them, in pieces of any length. */
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

/* ---- the communicator, on its own ---- */

START_TEST(communicator) {
  if (_i > 5 && _i < 8) return;
  command_result r = twinspeed("launch --quiet -n %d -- %s/tests/ranks_engine comm", _i, TWS_BUILD_DIR);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
}
END_TEST

/* ---- training ---- */

enum { STEPS = 20, MAX_JOBS = 64, WORLDS = 4 };
typedef struct curve {
  char name[64];
  double loss[STEPS], norm[STEPS];
} curve;
static curve curves[WORLDS][MAX_JOBS]; /* by log2(ranks) */
static int curve_count[WORLDS];

static const char settings[] =
    "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.003,\"weight_decay\":0.1}},\"gradient_clipping\":1.0,"
    "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":5,\"warmup_max_lr\":0.003}},"
    "\"train_batch_size\":8";

static void add_job(FILE *file, const char *name, const char *model, int stage, int micro, const char *more,
                    const char *recompute) {
  fprintf(file,
          "%s\t%s\t%d\t{%s,\"train_micro_batch_size_per_gpu\":%d,\"zero_optimization\":{\"stage\":%d,"
          "\"reduce_bucket_size\":20000,\"stage3_prefetch_bucket_size\":30000,\"stage3_param_persistence_threshold\":"
          "100%s},"
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"recompute\":\"%s\"}}\n",
          name, model, STEPS, settings, micro, stage, more, recompute);
}

/* Pipelines: every schedule, both stages of ZeRO that go with one, with and without recomputation. */
static int add_pipelines(FILE *file, int ranks) {
  static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
  static const char *const models[] = {"tiny-gpt2", "tiny-llama"};
  int count = 0;
  for (int stages = 2; stages <= ranks; stages *= 2)
    for (int i = 0; i < 4; i++)
      for (int m = 0; m < 2; m++) {
        int virtual_stages = i == 2 && stages == 2 ? 2 : 1, zero = (i + m) % 2;
        fprintf(file,
                "%s-pipe%d-%s-zero%d\t%s\t%d\t{%s,\"train_micro_batch_size_per_gpu\":1,"
                "\"pipeline\":{\"stages\":%d,\"partition\":\"uniform\"},\"zero_optimization\":{\"stage\":%d},"
                "\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"recompute\":\"%s\",\"virtual_stages\":%d,"
                "\"pipeline_schedule\":\"%s\"}}\n",
                models[m], stages, schedules[i], zero, models[m], STEPS, settings, stages, zero, m ? "full" : "none",
                virtual_stages, schedules[i]);
        count++;
      }
  return count;
}

static int write_jobs(const char *path, int ranks) {
  static const char *const models[] = {"tiny-gpt2", "tiny-llama"};
  static const char *const modes[] = {"none", "full", "selective"};
  FILE *file = fopen(path, "w");
  char name[64];
  for (int m = 0; m < 2; m++)
    for (int stage = 0; stage < 4; stage++)
      for (int mode = 0; mode < 3; mode++) {
        if (mode == 2 && stage % 2) continue;
        snprintf(name, sizeof name, "%s-%d-%s", models[m], stage, modes[mode]);
        add_job(file, name, models[m], stage, 8 / ranks / (stage % 2 ? 2 : 1), "", modes[mode]);
      }
  add_job(file, "tiny-gpt2-1-overlap", "tiny-gpt2", 1, 1, ",\"overlap_comm\":true", "none");
  add_job(file, "tiny-gpt2-2-plain", "tiny-gpt2", 2, 2,
          ",\"overlap_comm\":true,\"reduce_scatter\":true,\"use_multi_rank_bucket_allreduce\":false", "none");
  add_job(file, "tiny-llama-3-allreduce", "tiny-llama", 3, 2, ",\"reduce_scatter\":false,\"overlap_comm\":false",
          "none");
  int pipelines = add_pipelines(file, ranks);
  fclose(file);
  return 23 + pipelines;
}

static void read_curves(const char *path, int k, int steps) {
  FILE *file = fopen(path, "r");
  ck_assert_ptr_nonnull(file);
  curve c;
  while (curve_count[k] < MAX_JOBS && fscanf(file, "%63s", c.name) == 1) {
    for (int i = 0; i < steps; i++) ck_assert_int_eq(fscanf(file, "%lf %lf", &c.loss[i], &c.norm[i]), 2);
    curves[k][curve_count[k]++] = c;
  }
  fclose(file);
}

static void run_jobs(int k, const char *jobs, int steps) {
  const char *out = in_folder("curves");
  curve_count[k] = 0;
  command_result r = twinspeed("launch --quiet -n %d --threads 1 -- %s/tests/ranks_engine train %s %s", 1 << k,
                               TWS_BUILD_DIR, jobs, out);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
  read_curves(out, k, steps);
}

static const curve *find(int k, const char *name) {
  for (int i = 0; i < curve_count[k]; i++)
    if (strcmp(curves[k][i].name, name) == 0) return &curves[k][i];
  ck_abort_msg("no results for %s", name);
  return NULL;
}

/* Losses of all stages, ranks, micro batches and schedules against stage 0 on one rank; recomputation to the bit; the
 * arenas are compared with the ledger inside the ranks. */
START_TEST(equal_losses) {
  for (int k = 0; k < 3; k++) {
    const char *jobs = in_folder("jobs");
    int count = write_jobs(jobs, 1 << k);
    run_jobs(k, jobs, STEPS);
    ck_assert_int_eq(curve_count[k], count);
  }
  double worst = 0.0;
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i];
      const curve *reference = find(0, strstr(c->name, "gpt2") ? "tiny-gpt2-0-none" : "tiny-llama-0-none");
      for (int s = 0; s < STEPS; s++) {
        double error = fabs(c->loss[s] - reference->loss[s]) / reference->loss[s];
        double norm_error = fabs(c->norm[s] - reference->norm[s]) / reference->norm[s];
        ck_assert_msg(error < 1e-5, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        ck_assert_msg(norm_error < 1e-3, "%s on %d ranks, step %d: norm %.9g, not %.9g", c->name, 1 << k, s + 1,
                      c->norm[s], reference->norm[s]);
        if (error > worst) worst = error;
      }
      char plain[64];
      memcpy(plain, c->name, sizeof plain);
      char *mode = strstr(plain, "-full") ? strstr(plain, "-full") : strstr(plain, "-selective");
      if (!mode) continue;
      strcpy(mode, "-none");
      const curve *without = find(k, plain);
      ck_assert_msg(
          memcmp(c->loss, without->loss, sizeof c->loss) == 0 && memcmp(c->norm, without->norm, sizeof c->norm) == 0,
          "%s differs from %s on %d ranks", c->name, plain, 1 << k);
    }
  printf("largest relative difference of a loss: %.2g\n", worst);
  for (int m = 0; m < 2; m++) {
    const curve *c = find(0, m ? "tiny-llama-0-none" : "tiny-gpt2-0-none");
    ck_assert_double_gt(c->loss[0], 5.0); /* about ln 256 */
    ck_assert_double_lt(c->loss[0], 6.2);
    ck_assert_double_lt(c->loss[STEPS - 1], 0.75 * c->loss[0]);
  }
}
END_TEST

/* ---- every division of one training ---- */

enum { SHORT = 10 };
static const char *const model_names[MODELS] = {"gpt2", "gpt2-untied", "llama", "llama-tied"};

static void reference_name(int model, int ignored, char *name, size_t size) {
  snprintf(name, size, "%s%s", model_names[model], ignored ? "-ignored" : "");
}

static void run_combinations(int k) {
  char jobs[96], name[64];
  snprintf(jobs, sizeof jobs, "%s", in_folder("jobs")); /* in_folder() forgets */
  FILE *file = fopen(jobs, "w");
  int count = 0;
  for (int i = 0; k == 0 && i < 2 * MODELS; i++, count++) {
    combination one = {.model = i / 2, .ranks = 1, .micro = 2, .ignored = i % 2};
    reference_name(one.model, one.ignored, name, sizeof name);
    write_combination(file, &one, name, in_folder(model_names[one.model]), SHORT, settings);
  }
  for (int i = 0; i < COMBINATIONS; i += EVERY) {
    const combination *c = &combinations[i];
    if (c->ranks != 1 << k) continue;
    combination_name(c, name, sizeof name);
    write_combination(file, c, name, in_folder(model_names[c->model]), SHORT, settings);
    count++;
  }
  fclose(file);
  run_jobs(k, jobs, SHORT);
  ck_assert_int_eq(curve_count[k], count);
}

/* Losses and norms of jobs divided along all axes, against one rank. */
START_TEST(equal_divisions) {
  double worst = 0.0, worst_norm = 0.0;
  for (int m = 0; m < MODELS; m++) write_text(in_folder(model_names[m]), model_texts[m]);
  for (int k = 0; k < WORLDS; k++) run_combinations(k);
  for (int i = 0; i < COMBINATIONS; i += EVERY) {
    const combination *c = &combinations[i];
    char name[64], reference[64];
    combination_name(c, name, sizeof name);
    reference_name(c->model, c->ignored, reference, sizeof reference);
    int k = c->ranks == 2 ? 1 : c->ranks == 4 ? 2 : 3;
    const curve *got = find(k, name), *want = find(0, reference);
    for (int s = 0; s < SHORT; s++) {
      double error = fabs(got->loss[s] / want->loss[s] - 1.0), norm_error = fabs(got->norm[s] / want->norm[s] - 1.0);
      ck_assert_msg(error < 1e-5, "%s of %s, step %d: loss %.9g, not %.9g", name, reference, s + 1, got->loss[s],
                    want->loss[s]);
      ck_assert_msg(norm_error < 1e-4, "%s of %s, step %d: norm %.9g, not %.9g", name, reference, s + 1, got->norm[s],
                    want->norm[s]);
      worst = fmax(worst, error);
      worst_norm = fmax(worst_norm, norm_error);
    }
  }
  printf("largest relative difference of a loss: %.2g, of a norm: %.2g\n", worst, worst_norm);
  for (int m = 0; m < MODELS; m++) { /* what is left out matters: the losses differ */
    char plain[64], ignored[64];
    reference_name(m, 0, plain, sizeof plain);
    reference_name(m, 1, ignored, sizeof ignored);
    ck_assert_double_gt(fabs(find(0, plain)->loss[SHORT - 1] - find(0, ignored)->loss[SHORT - 1]), 1e-3);
  }
}
END_TEST

/* bf16 storage with float32 masters: learns like float32 does, whatever the stage and the axis. Roundings make two runs
 * part by a percent or two in single steps, one to this side, one to that. */
START_TEST(bf16_trains) {
  static const char *const axes[] = {"",
                                     "",
                                     "",
                                     "",
                                     "\"tensor_parallel\":{\"autotp_size\":2},",
                                     "\"sequence_parallel_size\":2,",
                                     "\"pipeline\":{\"stages\":2},"};
  enum { KINDS = sizeof axes / sizeof *axes };
  const char *jobs = in_folder("jobs");
  FILE *file = fopen(jobs, "w");
  for (int kind = 0; kind <= KINDS; kind++) { /* the last is float32 */
    int bf16 = kind < KINDS;
    fprintf(file,
            "%s-%d\ttiny-gpt2\t%d\t{%s,%s\"bf16\":{\"enabled\":%s},\"train_micro_batch_size_per_gpu\":2,"
            "\"zero_optimization\":{\"stage\":%d},\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
            bf16 ? "bf16" : "fp32", kind, STEPS, settings, bf16 ? axes[kind] : "", bf16 ? "true" : "false",
            bf16 ? kind < 4 ? kind : 1 : 0);
  }
  fclose(file);
  run_jobs(1, jobs, STEPS);
  ck_assert_int_eq(curve_count[1], KINDS + 1);
  const curve *exact = &curves[1][KINDS];
  for (int kind = 0; kind < KINDS; kind++) {
    const curve *c = &curves[1][kind];
    double apart = 0, side = 0;
    ck_assert_double_lt(c->loss[STEPS - 1], 0.75 * c->loss[0]);
    for (int s = 0; s < STEPS; s++) {
      double error = c->loss[s] / exact->loss[s] - 1;
      apart += fabs(error) / STEPS;
      side += error / STEPS;
      ck_assert_msg(fabs(error) < 0.05, "kind %d, step %d: %g", kind, s + 1, error);
    }
    ck_assert_msg(apart < 0.006 && fabs(side) < 0.004, "kind %d: %g apart, %g to one side", kind, apart, side);
  }
}
END_TEST

/* ---- the program ---- */

#define JOB "train -m tiny-gpt2 --seq 32 --micro-batch 2 --stage 2 -n 3 --data "
#define AXES_JOB "train -m tiny-gpt2 --seq 32 --pp 2 --tp 2 --accumulation 4 -n 4 --data "

#include "train_fp16.h"
#include "train_masters.h"

static void check_trace(const char *path, int ranks) {
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_json_read(path, &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *event, *events = cJSON_GetObjectItemCaseSensitive(json->root, "traceEvents");
  int begun[64] = {0}, collectives = 0;
  cJSON_ArrayForEach(event, events) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "name");
    const cJSON *ph = cJSON_GetObjectItemCaseSensitive(event, "ph");
    if (!cJSON_IsString(ph) || strcmp(ph->valuestring, "X") != 0) continue;
    ck_assert_double_ge(number(event, "ts"), 0.0);
    ck_assert_double_ge(number(event, "dur"), 0.0);
    begun[(int)number(event, "pid") % 64]++;
    collectives += strstr(name->valuestring, "all_gather") != NULL;
  }
  int processes = 0, most = 0;
  for (int i = 0; i < 64; i++) {
    processes += begun[i] > 0;
    if (begun[i] > most) most = begun[i];
  }
  ck_assert_int_eq(processes, ranks);
  for (int i = 0; i < 64; i++) ck_assert(begun[i] == 0 || begun[i] > most - 4); /* padding fills differ by rank */
  ck_assert_int_ge(collectives, ranks);
  tws_json_destroy(json);
}

START_TEST(program_output) {
  command_result r = twinspeed(JOB "%s --steps 4 --csv %s --trace %s --result %s", text_path, in_folder("csv"),
                               in_folder("trace"), in_folder("result"));
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "equal to the byte"));
  ck_assert_ptr_nonnull(strstr(r.out, "4 steps"));
  command_free(&r);
  check_trace(in_folder("trace"), 3);
  char *csv = NULL;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("csv"), 0, &csv, &length, NULL), TWS_OK);
  ck_assert_int_eq(count_lines_with(csv, "step,loss,lr,gradient_norm,seconds,tokens_per_s"), 1);
  for (int i = 1; i <= 4; i++) ck_assert_int_eq(count_lines_with(csv, (char[]){(char)('0' + i), ',', '\0'}), 1);
  tws_free(csv);
  tws_json *json = NULL;
  ck_assert_int_eq(tws_json_read(in_folder("result"), &json, NULL), TWS_OK);
  const cJSON *memory = cJSON_GetObjectItemCaseSensitive(json->root, "memory"), *one;
  ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(json->root, "schema")->valuestring, "twinspeed-train-1");
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json->root, "losses")), 4);
  ck_assert_int_eq(cJSON_GetArraySize(memory), 3);
  cJSON_ArrayForEach(one, memory) {
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(one, "device");
    ck_assert_double_eq(number(device, "predicted_bytes"), number(device, "allocated_bytes"));
    ck_assert_double_ge(number(one, "peak_rss_bytes"), number(device, "allocated_bytes"));
  }
  tws_json_destroy(json);
}
END_TEST

/* The reader of the printed steps has left: the training goes on to its end. */
START_TEST(output_that_nobody_reads) {
  command_result r = twinspeed_unread(JOB "%s --steps 4 --csv %s", text_path, in_folder("unread"));
  ck_assert_msg(r.status == 0 && count_lines_with(r.err, "twinspeed: ") == 0, "exit %d: %s", r.status, r.err);
  command_free(&r);
  char *csv = NULL;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("unread"), 0, &csv, &length, NULL), TWS_OK);
  for (int i = 1; i <= 4; i++) ck_assert_int_eq(count_lines_with(csv, (char[]){(char)('0' + i), ',', '\0'}), 1);
  tws_free(csv);
}
END_TEST

START_TEST(json_output) {
  command_result r = twinspeed(AXES_JOB "%s --steps 2 --json --quiet", text_path);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_json_parse(r.out, strlen(r.out), "output", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_double_eq(number(json->root, "ranks"), 4);
  const cJSON *configuration = cJSON_GetObjectItemCaseSensitive(json->root, "configuration");
  const cJSON *axes = cJSON_GetObjectItemCaseSensitive(configuration, "axes");
  ck_assert_double_eq(number(axes, "pipe"), 2);
  ck_assert_double_eq(number(axes, "model"), 2);
  ck_assert_double_eq(number(axes, "sequence"), 1);
  ck_assert_double_eq(number(axes, "data"), 1);
  /* tokens of the whole batch, once: not once per rank */
  double tokens = number(json->root, "tokens_per_s") * number(json->root, "median_step_s");
  ck_assert_double_eq_tol(tokens, 4 * 32, 1e-6);
  const cJSON *largest = cJSON_GetObjectItemCaseSensitive(json->root, "largest_rank"), *one;
  double most = 0.0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(json->root, "memory")) {
    double bytes = number(cJSON_GetObjectItemCaseSensitive(one, "device"), "allocated_bytes");
    most = fmax(most, bytes);
    if (number(one, "rank") == 3)
      ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(one, "place")->valuestring, "pipe_01-data_00-model_01");
    if (number(one, "rank") == number(largest, "rank")) ck_assert_double_eq(number(largest, "allocated_bytes"), bytes);
  }
  ck_assert_double_eq(number(largest, "allocated_bytes"), most);
  tws_json_destroy(json);
  command_free(&r);
}
END_TEST

/* ---- failures ---- */

/* Processes whose command line names this test's folder, this one aside. */
static int left_behind(void) {
  DIR *proc = opendir("/proc");
  struct dirent *entry;
  int count = 0;
  while ((entry = readdir(proc)) != NULL) {
    char path[300], line[4096];
    if (atoi(entry->d_name) <= 0) continue;
    snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    for (size_t i = 0; i < got; i++)
      if (line[i] == '\0') line[i] = ' ';
    line[got] = '\0';
    count += strstr(line, "rank-worker") && strstr(line, folder);
  }
  closedir(proc);
  return count;
}

#define PRODUCT "forward transformer.h.1.attn.c_proj all_reduce (model group of ranks 2 3)"
START_TEST(failures) {
  static const struct {
    const char *job, *fault, *options;
    int status;
    const char *says[2];
  } cases[] = {
      {JOB,
       "rank=2,step=2,kind=kill",
       "",
       5,
       {"rank 2 was ended by signal 9", "step 2, backward all_reduce (data group of ranks 0 1 2)"}},
      {JOB, "rank=0,step=1,kind=kill", "", 5, {"rank 0 was ended by signal 9", "step 1, "}},
      {JOB, "rank=1,step=1,kind=allocate", "", 5, {"rank 1: cannot allocate", ""}},
      {JOB,
       "rank=1,step=2,kind=hang",
       "--deadline 1",
       124,
       {"rank 1 is in operation 'backward all_reduce (data group of ranks 0 1 2)'", "step 2 is not done"}},
      {JOB, "rank=2,step=2,kind=nan", "", 5, {"rank 2, step 2: operation", "not a finite number"}},
      {JOB, "rank=2,step=2", "", 2, {"TWINSPEED_FAULT", ""}},
      {AXES_JOB, "rank=2,step=2,kind=kill", "", 5, {"rank 2 was ended by signal 9", PRODUCT}},
      {AXES_JOB, "rank=3,step=2,kind=hang", "--deadline 1", 124, {"rank 3 is in operation '" PRODUCT, "step 2 is"}},
  };
  setenv("TWINSPEED_FAULT", cases[_i].fault, 1);
  command_result r =
      twinspeed("%s%s --steps 3 --quiet %s", cases[_i].job ? cases[_i].job : JOB, text_path, cases[_i].options);
  unsetenv("TWINSPEED_FAULT");
  ck_assert_msg(r.status == cases[_i].status, "status %d: %s", r.status, r.err);
  for (int i = 0; i < 2; i++) ck_assert_msg(strstr(r.err, cases[_i].says[i]) != NULL, "%s", r.err);
  ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "one message: %s", r.err);
  ck_assert_int_eq(left_behind(), 0);
  command_free(&r);
}
END_TEST

/* Ctrl-C, and a launcher that is killed itself, while a rank hangs in the second step. */
START_TEST(interrupted) {
  int out[2], sent = _i ? SIGKILL : SIGINT, status = 0;
  char line[256] = "";
  ck_assert_int_eq(pipe(out), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    close(2);
    setenv("TWINSPEED_FAULT", "rank=1,step=2,kind=hang", 1);
    execl(TWS_BUILD_DIR "/twinspeed", "twinspeed", "train", "-m", "tiny-gpt2", "--seq", "32", "-n", "2", "--steps", "3",
          "--data", text_path, "--quiet", (char *)NULL);
    _exit(126);
  }
  close(out[1]);
  FILE *stream = fdopen(out[0], "r");
  while (strstr(line, "     1  ") != line && fgets(line, sizeof line, stream)) continue; /* the first step is done */
  ck_assert_msg(strncmp(line, "     1  ", 8) == 0, "%s", line);
  ck_assert_int_gt(left_behind(), 1);
  kill(child, sent);
  waitpid(child, &status, 0);
  if (sent == SIGINT) ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 130, "status %x", status);
  for (int i = 0; sent == SIGKILL && i < 100 && left_behind() > 0; i++) usleep(100000); /* they notice by themselves */
  ck_assert_int_eq(left_behind(), 0);
  fclose(stream);
}
END_TEST

START_TEST(bad_input) {
  static const struct {
    const char *arguments;
    int status;
  } cases[] = {{"train -m tiny-gpt2 -n 2", 2},
               {"train -m tiny-gpt2 -n 2 --data /nowhere/at/all", 4},
               {"train -m tiny-gpt2 -n 2 --data /tmp", 4},
               {"train -m tiny-gpt2 -n 2 --micro-batch 5000 --data %s", 3},
               {"train -m tiny-gpt2 -n 2 --data %s --csv /nowhere/at/all.csv", 4},
               {"train -m gpt2 -n 2 --micro-batch 100000 --data %s", 1},
               {"rank-worker train", 2}};
  char words[256];
  snprintf(words, sizeof words, cases[_i].arguments, text_path);
  command_result r = twinspeed("%s", words);
  ck_assert_msg(r.status == cases[_i].status, "%s: status %d: %s", words, r.status, r.err);
  ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "one message: %s", r.err);
  ck_assert_int_eq(left_behind(), 0);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train");
  TCase *parts = tcase_create("parts"), *training = tcase_create("training"), *program = tcase_create("program");
  tcase_add_test(parts, data_order);
  tcase_add_test(parts, data_tokens);
  tcase_add_test(parts, data_errors);
  tcase_add_test(parts, init_by_parts);
  tcase_add_test(parts, init_of_slices);
  tcase_add_test(parts, fault_texts);
  tcase_add_loop_test(training, communicator, 2, 9);
  tcase_add_test(training, equal_losses);
  tcase_add_test(training, equal_divisions);
  tcase_add_test(training, bf16_trains);
  tcase_add_test(training, fp16_trains);
  tcase_add_test(training, weights_without_copies_train);
  tcase_add_test(program, program_output);
  tcase_add_test(program, output_that_nobody_reads);
  tcase_add_test(program, json_output);
  tcase_add_test(program, small_updates_are_not_lost);
  tcase_add_test(program, skipped_steps);
  tcase_add_test(program, scales_that_never_fit);
  tcase_add_loop_test(program, failures, 0, 8);
  tcase_add_loop_test(program, interrupted, 0, 2);
  tcase_add_loop_test(program, bad_input, 0, 7);
  TCase *all[] = {parts, training, program};
  for (int i = 0; i < 3; i++) {
    tcase_set_timeout(all[i], 200.0);
    suite_add_tcase(suite, all[i]);
  }
  SRunner *runner = srunner_create(suite);
  set_up();
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  remove_folder();
  return failed != 0;
}
