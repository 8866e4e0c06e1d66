/* ctest: sampled */
/* Measurements of other software as profiles: readers of each format, attribution of times to operations, and
 * predictions of configurations that were not measured. */
#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <sys/resource.h>
#if __has_include(<sqlite3.h>)
#define WRITES_SQLITE
#include <sqlite3.h>
#endif

#include "calibration/recorded.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/sanitized.h"
#include "tests/suite.h"
#include "traces/event_record.h"

static tws_error err;
#define OK(call) ck_assert_msg((call) == TWS_OK, "%s (%s)", err.message, err.hint)

static const char *file_of(const char *name, const char *text) {
  const char *path = in_folder(name);
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fputs(text, file);
  fclose(file);
  return path;
}

static double number(const cJSON *object, const char *section, const char *key) {
  const cJSON *in = section ? cJSON_GetObjectItem(object, section) : object, *item = cJSON_GetObjectItem(in, key);
  return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* ---- readers ---- */

/* Readers of all formats of step logs find a step of 1.25 s, after a first step that warms up. */
START_TEST(step_logs) {
  static const struct {
    const char *text;
    tws_recording_format format;
    double step_s;
  } logs[] = {
      {"step,loss,step_time_ms\n1,9.0,3000\n2,8.0,1250\n3,7.5,1251\n4,7.2,1249\n", TWS_RECORDING_CSV, 1.25},
      {"step,loss,lr,gradient_norm,seconds,tokens_per_s,loss_scale,skipped\n1,6.9,0.001,9.1,3.0,170,1,0\n"
       "2,6.2,0.001,4.2,1.25,410,1,0\n3,5.8,0.001,3.2,1.25,410,1,0\n",
       TWS_RECORDING_CSV, 1.25},
      {"\"seq\",\"micro batch\",\"step_s\"\n512,2,1.25\n", TWS_RECORDING_CSV, 1.25},
      {"{\"step\": 1, \"step_time\": 4.0}\n{\"step\": 2, \"step_time\": 1.25}\n{\"step\": 3, \"step_time\": 1.25}\n",
       TWS_RECORDING_JSON_LINES, 1.25},
      {"using world size: 8\n iteration        1/     10 | consumed samples:          256 | elapsed time per iteration "
       "(ms): 9000.0 | learning rate: 1.0E-04 | lm loss: 1.0E+01 |\n iteration        2/     10 | consumed samples: "
       "512 "
       "| elapsed time per iteration (ms): 1250.0 | throughput per GPU (TFLOP/s/GPU): 400.0 |\n iteration 3/ 10 | "
       "elapsed time per iteration (ms): 1250.0 |\n",
       TWS_RECORDING_MEGATRON, 1.25},
      {"  0%|          | 0/3 [00:00<?, ?it/s]\r 33%|###       | 1/3 [00:02<00:04,  2.50s/it]\r100%|##########| 3/3 "
       "[00:05<00:00,  1.25s/it]\n{'train_runtime': 3.75, 'train_samples_per_second': 6.4, 'train_steps_per_second': "
       "0.8, 'train_loss': 2.5, 'epoch': 1.0}\n",
       TWS_RECORDING_TRAINER, 1.25},
      {"# nThread 1 nGpus 8 minBytes 8\n#  size count type redop root time algbw busbw\n", TWS_RECORDING_NCCL_TESTS,
       0}};
  for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
    tws_recording r;
    OK(tws_recording_read(file_of("log.txt", logs[i].text), &r, &err));
    ck_assert_int_eq(r.format, logs[i].format);
    ck_assert_double_eq_tol(tws_recording_step_s(&r), logs[i].step_s, 1e-9);
    if (i == 2) ck_assert(r.steps[0].sequence == 512 && r.steps[0].micro_batch == 2);
    tws_recording_free(&r);
  }
}
END_TEST

START_TEST(devices_of_nvidia_smi) {
  tws_recording r;
  OK(tws_recording_read(
      file_of("smi.csv",
              "name, memory.total [MiB], clocks.current.sm [MHz]\nNVIDIA GeForce RTX 4090, 24564 MiB, "
              "2500 MHz\nNVIDIA GeForce RTX 4090, 24564 MiB, 2520 MHz\nNVIDIA GeForce RTX 4090, 24564 "
              "MiB, 2510 MHz\n"),
      &r, &err));
  ck_assert_int_eq(r.format, TWS_RECORDING_SMI);
  ck_assert_str_eq(r.device, "NVIDIA GeForce RTX 4090");
  ck_assert_double_eq(r.device_bytes, 24564.0 * 1048576);
  ck_assert_double_eq(r.clock_mhz, 2510);
  tws_recording_free(&r);
  ck_assert_str_eq(tws_profile_of_device("NVIDIA GeForce RTX 4090"), "rtx-4090");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA A100-SXM4-80GB"), "a100-80gb");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA H100 80GB HBM3"), "h100-sxm");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA H200"), "h200");
  ck_assert_ptr_null(tws_profile_of_device("Voodoo 2"));
  /* the longest name that fits, and whole numbers only */
  ck_assert_str_eq(tws_profile_of_device("NVIDIA GeForce RTX 4070 Ti SUPER"), "rtx-4070-ti-super");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA GeForce RTX 3080 Ti"), "rtx-3080-ti");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA TITAN RTX"), "titan-rtx");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA RTX 4000 Ada Generation"), "rtx-4000-ada");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA RTX A4000"), "rtx-a4000");
  ck_assert_str_eq(tws_profile_of_device("NVIDIA A2"), "a2");
  ck_assert_ptr_null(tws_profile_of_device("NVIDIA RTX A2000"));
}
END_TEST

static const char *events_file(const char *tag, float value, int damaged) {
  tws_text text = {0};
  tws_event_version(&text, 1e9);
  for (int step = 1; step <= 4; step++) tws_event_scalar(&text, tag, value, 1e9 + 0.5 * step, step);
  if (damaged) text.data[text.length - 6] ^= 1;
  const char *path = in_folder("events.out.tfevents.1");
  FILE *file = fopen(path, "wb");
  fwrite(text.data, 1, text.length, file);
  fclose(file);
  tws_text_free(&text);
  return path;
}

START_TEST(events_of_tensorboard) {
  tws_recording r;
  OK(tws_recording_read(events_file("Train/Performance/step_time_ms", 1250, 0), &r, &err));
  ck_assert_int_eq(r.format, TWS_RECORDING_EVENTS);
  ck_assert_double_eq_tol(tws_recording_step_s(&r), 1.25, 1e-6);
  tws_recording_free(&r);
  OK(tws_recording_read(events_file("train/loss", 3, 0), &r, &err)); /* then the time between steps */
  ck_assert_double_eq_tol(tws_recording_step_s(&r), 0.5, 1e-6);
  tws_recording_free(&r);
  ck_assert_int_eq(tws_recording_read(events_file("train/loss", 3, 1), &r, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "record 5 has a wrong checksum") != NULL, "%s", err.message);
  tws_recording_free(&r);
}
END_TEST

#define EVENT(category, name, ts, dur) \
  "{\"ph\":\"X\",\"cat\":\"" category "\",\"name\":\"" name "\",\"pid\":1,\"tid\":7,\"ts\":" ts ",\"dur\":" dur "}"

/* A trace of PyTorch's profiler gives the kernels of a device, also with braces and quotes in a name; in a trace
 * without a device the operators count with their own time. */
START_TEST(kineto_traces) {
  tws_recording r;
  OK(tws_recording_read(
      file_of("trace.json",
              "{\"schemaVersion\":1,\"deviceProperties\":[{\"id\":0,\"name\":\"NVIDIA A100-SXM4-80GB\","
              "\"totalGlobalMem\":85000000000}],\"traceEvents\":[\n" EVENT(
                  "kernel", "gemm \\\"x\\\" {[", "10",
                  "1000") "," EVENT("kernel", "gemm \\\"x\\\" {[", "2000.5",
                                    "1000") "," EVENT("cpu_op", "aten::mm", "1", "5") "," EVENT("user_annotation",
                                                                                                "ProfilerStep#3", "0",
                                                                                                "4000") "\n]}\n"),
      &r, &err));
  ck_assert(r.kernel_count == 1 && r.kernels[0].calls == 2 && r.step_count == 1 && r.on_device);
  ck_assert_str_eq(r.kernels[0].name, "gemm \"x\" {[");
  ck_assert_double_eq_tol(r.kernels[0].seconds, 2e-3, 1e-12);
  ck_assert_str_eq(r.device, "NVIDIA A100-SXM4-80GB");
  tws_recording_free(&r);
  OK(tws_recording_read(file_of("trace.json", "[" EVENT("cpu_op", "aten::linear", "0", "100") "," EVENT(
                                                  "cpu_op", "aten::addmm", "10", "80") "]"),
                        &r, &err));
  ck_assert_int_eq((int)r.kernel_count, 2);
  ck_assert_double_eq_tol(r.kernels[0].seconds, 20e-6, 1e-12);
  ck_assert_double_eq_tol(r.kernels[1].seconds, 80e-6, 1e-12);
  ck_assert_str_eq(r.kernels[1].under, "aten::linear");
  tws_recording_free(&r);
}
END_TEST

/* A trace of PyTorch's profiler on a processor (bench/peer/record_kineto.py), compressed with gzip, predicts its own
 * step, half its micro-batch and twice its sequence, which were measured alternately. */
START_TEST(a_kineto_trace_becomes_a_profile) {
  static const struct {
    int micro, sequence;
    double measured_s, allowed;
  } runs[] = {{4, 256, 0.4486, 0.03}, {2, 256, 0.2446, 0.1}, {4, 512, 1.0047, 0.1}};
  static const char job[] = "--dtype fp32 --threads 1";
  file_of("model.json",
          "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"n_embd\":256,\"n_layer\":2,"
          "\"n_head\":4,\"vocab_size\":2048,\"n_positions\":1024,\"resid_pdrop\":0,\"embd_pdrop\":0,"
          "\"attn_pdrop\":0}");
  command_result r = twinspeed("calibrate --from " TWS_SOURCE_DIR
                               "/tests/golden/kineto_cpu.json.gz -m %s %s --profile "
                               "host --micro-batch 4 --seq 256 -o %s --json",
                               in_folder("model.json"), job, in_folder("kineto.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_double_ge(number(json, NULL, "attributed_share"), 0.95);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "modules")), TWS_PART_COUNT);
  const cJSON *product = NULL, *products = cJSON_GetObjectItem(json, "products");
  ck_assert_int_eq(cJSON_GetArraySize(products), 4); /* four products per layer and model: attention, its projection,
                                                      * both of the MLP; and the logits */
  cJSON_ArrayForEach(product, products) {
    ck_assert_str_ne(cJSON_GetStringValue(cJSON_GetObjectItem(product, "module")), "");
    ck_assert_double_gt(number(product, NULL, "predicted_s"), 0);
  }
  cJSON_Delete(json);
  command_free(&r);
  for (int i = 0; i < 3; i++) {
    r = twinspeed("estimate -m %s %s --profile %s --micro-batch %d --seq %d -q --json", in_folder("model.json"), job,
                  in_folder("kineto.json"), runs[i].micro, runs[i].sequence);
    json = cJSON_Parse(r.out);
    const double step = number(json, "time", "step_s");
    ck_assert_msg(fabs(step / runs[i].measured_s - 1) <= runs[i].allowed, "%d x %d: predicted %g, measured %g",
                  runs[i].micro, runs[i].sequence, step, runs[i].measured_s);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* The memory to read a trace does not grow with its size. */
START_TEST(large_traces_are_streams) {
  enum { EVENTS = 400000 };
  const char *path = in_folder("large.json");
  struct rusage before, after;
  tws_recording r;
  FILE *file = fopen(path, "w");
  fprintf(file, "{\"schemaVersion\":1,\"traceEvents\":[\n");
  for (int i = 0; i < EVENTS; i++)
    fprintf(file,
            "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"kernel %d\",\"pid\":0,\"tid\":7,\"ts\":%d,\"dur\":2,\"args\":"
            "{\"External id\":%d,\"grid\":[640,1,1],\"block\":[128,1,1]}}%s\n",
            i % 100, 3 * i, i, i + 1 < EVENTS ? "," : "]}");
  fclose(file);
  getrusage(RUSAGE_SELF, &before);
  OK(tws_recording_read(path, &r, &err));
  getrusage(RUSAGE_SELF, &after);
  ck_assert(r.kernel_count == 100 && r.kernels[99].calls == EVENTS / 100);
  if (!TWS_SANITIZED) ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 8 << 10); /* KiB, of a file of 50 MB */
  tws_recording_free(&r);
}
END_TEST

#define COLLECTIVE(elements, ts, dur)                                                                                \
  "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)\"," \
  "\"tid\":"                                                                                                         \
  "7,\"ts\":" ts ",\"dur\":" dur ",\"args\":{\"Collective name\":\"_allgather_base\",\"In msg nelems\":" elements    \
  "0,"                                                                                                               \
  "\"Out msg nelems\":" elements "000,\"Group size\":8,\"dtype\":\"BFloat16\"}}"

/* The sizes and times of collectives in a trace become a table for their number of ranks. */
START_TEST(collectives_by_size) {
  file_of("comm.json",
          "{\"schemaVersion\":1,\"traceEvents\":[" EVENT("user_annotation", "ProfilerStep#1", "0", "900000") "," EVENT(
              "kernel", "nvjet_hsh_256x128", "0",
              "600000") "," COLLECTIVE("1000", "1", "50") "," COLLECTIVE("1000", "100",
                                                                         "70") "," COLLECTIVE("500000", "200",
                                                                                              "8000") "]}");
  tws_recording r;
  OK(tws_recording_read(in_folder("comm.json"), &r, &err));
  ck_assert(r.collective_count == 2 && r.collectives[0].calls == 2 && r.collectives[0].ranks == 8);
  ck_assert_double_eq(r.collectives[0].bytes, 2e6);
  tws_recording_free(&r);
  command_result c = twinspeed(
      "calibrate --from %s -m gpt2-xl --stage 3 --dtype bf16 --seq 1024 --micro-batch 8 --cluster "
      "dgx-a100 -o %s",
      in_folder("comm.json"), in_folder("comm-profile.json"));
  ck_assert_msg(c.status == 0, "%s", c.err);
  command_free(&c);
  tws_profile *profile;
  tws_cluster cluster;
  OK(tws_profile_load(in_folder("comm-profile.json"), &profile, &err));
  OK(tws_cluster_load("dgx-a100", &cluster, &err));
  const double small = tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_GATHER, 8, 8, 2e6, 1),
               large = tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_GATHER, 8, 8, 1e9, 1);
  ck_assert_double_eq_tol(large / small, 8000 / 60.0, 1);
  tws_profile_destroy(profile);
}
END_TEST

/* Each bad file gives one clear error with the file, the line where there are lines, and a remedy. */
START_TEST(bad_files) {
  static const struct {
    const char *text, *message;
  } bad[] = {{"", "the file is empty"},
             {"hello\nworld\n", "no line says how long a step takes"},
             {"step,step_s\n1,2.0\n2,fast\n", "bad.txt:3: \"fast\" is no number"},
             {"step,step_s\n1\n", "bad.txt:2: 1 cells under a header of 2"},
             {"{\"step_s\": 1.0}\n{\"step_s\": \n", "bad.txt:2: no JSON object"},
             {"{\"traceEvents\": [{\"ph\": \"X\"", "the trace is cut off"},
             {"{\"traceEvents\": []}", "the trace has no events"},
             {"{\"traceEvents\": [\n{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"ts\":1}]}",
              "bad.txt:2: an event without a time"},
             {"SQLite format 3", "no line says how long"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    file_of("bad.txt", bad[i].text);
    command_result r = twinspeed("calibrate --from %s -m gpt2 --profile a100-80gb -o %s", in_folder("bad.txt"),
                                 in_folder("none.json"));
    ck_assert_msg(r.status == 3 && strstr(r.err, bad[i].message) && strstr(r.err, "\nhint: "), "%s: %d: %s",
                  bad[i].message, r.status, r.err);
    command_free(&r);
  }
}
END_TEST

/* ---- a GPU whose kernel times are known ---- */

/* A GPT-2 of 24 layers and width 1024 on a device that does products at 190 TFLOP/s, attention at 90, and moves 1.3
 * TB/s; each kernel starts in 2 us. */
enum { LAYERS = 24, HIDDEN = 1024, HEADS = 16, VOCABULARY = 50257 };

typedef void (*visitor)(void *user, const char *name, double seconds);

static void product(visitor visit, void *user, double m, double n, double k) {
  for (int i = 0; i < 3; i++)
    visit(user, "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", 2 * m * n * k / 190e12 + 2e-6);
}

static void moved(visitor visit, void *user, const char *name, double bytes) {
  visit(user, name, bytes / 1.3e12 + 2e-6);
}

static void visit_step(double micro, double sequence, visitor visit, void *user) {
  const double tokens = micro * sequence, wide = tokens * HIDDEN, parameters = 354.8e6;
  const double pairs = micro * sequence * sequence / 2 * HIDDEN;
  for (int i = 0; i < LAYERS; i++) {
    product(visit, user, tokens, 3 * HIDDEN, HIDDEN);
    product(visit, user, tokens, HIDDEN, HIDDEN);
    product(visit, user, tokens, 4 * HIDDEN, HIDDEN);
    product(visit, user, tokens, HIDDEN, 4 * HIDDEN);
    visit(user, "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
          4 * pairs / 90e12 + 2e-6);
    visit(user, "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(Flash_bwd_params)",
          10 * pairs / 90e12 + 2e-6);
    for (int n = 0; n < 2; n++) {
      moved(visit, user, "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)", 4 * wide);
      moved(visit, user, "void at::native::layer_norm_grad_input_kernel_vectorized<c10::BFloat16>(float)", 8 * wide);
      moved(visit, user, "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<c10::BFloat16>>", 6 * wide);
    }
    moved(visit, user, "void at::native::vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>", 16 * wide);
    moved(visit, user, "void at::native::vectorized_elementwise_kernel<4, GeluBackwardCUDAKernelImpl>", 24 * wide);
  }
  product(visit, user, tokens, VOCABULARY, HIDDEN);
  moved(visit, user, "void at::native::(anonymous namespace)::cunn_SoftMaxForward<log_softmax>",
        6 * tokens * VOCABULARY);
  moved(visit, user, "void at::native::nll_loss_backward_kernel", 4 * tokens * VOCABULARY);
  moved(visit, user, "void at::native::indexSelectLargeIndex<c10::BFloat16>", 4 * wide);
  moved(visit, user, "void at::native::embedding_backward_feature_kernel", 6 * wide);
  moved(visit, user, "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", 30 * parameters);
  moved(visit, user, "my_own_kernel", 2 * wide);
}

static void add_up(void *user, const char *name, double seconds) {
  (void)name;
  *(double *)user += seconds;
}

static double truth(double micro, double sequence) {
  double seconds = 0;
  visit_step(micro, sequence, add_up, &seconds);
  return seconds;
}

#define JOB "-m gpt2-medium --cluster a100 --dtype bf16"

static void assert_prediction(const char *profile, int micro, int sequence, double allowed) {
  command_result r = twinspeed("estimate " JOB
                               " --profile %s --micro-batch %d --seq %d --set "
                               "twinspeed.loss_tiles=1 -q --json",
                               profile, micro, sequence);
  cJSON *json = cJSON_Parse(r.out);
  const double step = number(json, "time", "step_s"), known = truth(micro, sequence);
  ck_assert_msg(fabs(step / known - 1) <= allowed, "micro batch %d, sequence %d: predicted %g, known %g: %s", micro,
                sequence, step, known, r.err);
  cJSON_Delete(json);
  command_free(&r);
}

/* Asserts that the profile predicts the measured step, half its micro-batch and twice its sequence. */
static void assert_profile(const char *profile) {
  assert_prediction(profile, 8, 512, 0.03);
  assert_prediction(profile, 4, 512, 0.1);
  assert_prediction(profile, 8, 1024, 0.1);
}

#ifdef WRITES_SQLITE
typedef struct database {
  sqlite3 *db;
  int64_t now;
} database;

static void run_sql(database *d, const char *sql) {
  char *why = NULL;
  ck_assert_msg(sqlite3_exec(d->db, sql, NULL, NULL, &why) == SQLITE_OK, "%s: %s", sql, why);
}

static void add_row(void *user, const char *name, double seconds) {
  database *d = user;
  char *sql = sqlite3_mprintf(
      "INSERT OR IGNORE INTO StringIds(value) VALUES (%Q);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, streamId, demangledName, shortName) "
      "SELECT %lld, %lld, 0, 7, id, id FROM StringIds WHERE value = %Q;",
      name, (long long)d->now, (long long)(d->now + llround(seconds * 1e9)), name);
  run_sql(d, sql);
  sqlite3_free(sql);
  d->now += llround(seconds * 1e9);
}

/* Writes the tables and columns of an export of nsys 2024 that the reader uses. */
static void write_nsys(const char *path, int steps) {
  database d = {NULL, 1000};
  ck_assert_int_eq(sqlite3_open(path, &d.db), SQLITE_OK);
  run_sql(&d,
          "BEGIN; CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL UNIQUE);"
          "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT "
          "NULL, contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName "
          "INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER, blockX INTEGER);"
          "CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, "
          "globalTid INTEGER, textId INTEGER);"
          "CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT, totalMemory INTEGER);"
          "INSERT INTO TARGET_INFO_GPU VALUES (1, 0, 'NVIDIA A100-SXM4-80GB', '0000:07:00.0', 84987740160);");
  for (int i = 0; i < steps; i++) {
    const int64_t begin = d.now;
    visit_step(8, 512, add_row, &d);
    char *sql = sqlite3_mprintf("INSERT INTO NVTX_EVENTS VALUES (%lld, %lld, 59, 'step %d', 1, NULL);",
                                (long long)begin, (long long)d.now, i);
    run_sql(&d, sql);
    sqlite3_free(sql);
  }
  run_sql(&d, "COMMIT");
  sqlite3_close(d.db);
}

/* An endless SQL view in the place of a table is refused. */
START_TEST(views_are_not_read) {
  database d = {NULL, 0};
  tws_recording r;
  ck_assert_int_eq(sqlite3_open(in_folder("view.sqlite"), &d.db), SQLITE_OK);
  run_sql(
      &d,
      "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
      "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM "
      "n) SELECT start, start AS end, 0 AS deviceId, 1 AS demangledName FROM n;");
  sqlite3_close(d.db);
  ck_assert_int_eq(tws_recording_read(in_folder("view.sqlite"), &r, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "CUPTI_ACTIVITY_KIND_KERNEL is no table") != NULL, "%s", err.message);
  tws_recording_free(&r);
}
END_TEST

START_TEST(an_nsys_export_becomes_a_profile) {
  write_nsys(in_folder("report.sqlite"), 3);
  command_result r = twinspeed("calibrate --from %s " JOB " --micro-batch 8 --seq 512 -o %s --json",
                               in_folder("report.sqlite"), in_folder("nsys.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_double_eq_tol(number(json, "step", "measured_s"), truth(8, 512), 1e-5);
  ck_assert_double_eq_tol(number(json, NULL, "kernel_s"), truth(8, 512), 1e-5);
  ck_assert_double_ge(number(json, NULL, "attributed_share"), 0.95);
  ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(
                       cJSON_GetArrayItem(cJSON_GetObjectItem(json, "without_module"), 0), "kernel")),
                   "my_own_kernel");
  cJSON_Delete(json);
  command_free(&r);
  assert_profile(in_folder("nsys.json"));
}
END_TEST
#endif

START_TEST(a_step_log_becomes_a_profile) {
  char text[256];
  snprintf(text, sizeof text, "step,step_s\n1,9.0\n2,%.6f\n3,%.6f\n", truth(8, 512), truth(8, 512));
  file_of("steps.csv", text);
  command_result r = twinspeed("calibrate --from %s " JOB " --micro-batch 8 --seq 512 -o %s", in_folder("steps.csv"),
                               in_folder("steps.json"));
  ck_assert_msg(r.status == 0 && strstr(r.out, "measured step"), "%s", r.err);
  command_free(&r);
  assert_profile(in_folder("steps.json"));
}
END_TEST

/* Tables of collectives and the name of the device need no model's configuration. */
START_TEST(tables_need_no_model) {
  file_of("smi.csv", "name, memory.total [MiB]\nNVIDIA H100 80GB HBM3, 81559 MiB\n");
  file_of("all_gather.log",
          "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824 step: 1024(factor) warmup iters: 5 iters: 20\n"
          "# Collective test starting: all_gather_perf\n#\n# Using devices\n#  Rank  0 Group  0 Pid 1 on n device 0\n"
          "#  Rank  1 Group  0 Pid 1 on n device 1\n#\n"
          "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
          "     1048576        131072     float    none      -1    25.00   41.94   20.97      0\n"
          "  1073741824     134217728     float    none      -1  3000.00  357.91  178.96      0\n");
  command_result r = twinspeed("calibrate --from %s --from %s -o %s", in_folder("smi.csv"), in_folder("all_gather.log"),
                               in_folder("tables.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  tws_profile *profile;
  tws_cluster cluster;
  OK(tws_profile_load(in_folder("tables.json"), &profile, &err));
  OK(tws_cluster_load("dgx-h100", &cluster, &err));
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_GATHER, 2, 8, 1073741824, 1),
                          3e-3, 1e-6);
  ck_assert_double_eq(tws_profile_memory_bytes(profile), floor(0.99 * 81559 * 1048576));
  tws_profile_destroy(profile);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("recordings");
  TCase *c = tcase_create("recordings");
  tcase_set_timeout(c, 120);
  tcase_add_unchecked_fixture(c, make_folder, remove_folder);
  tcase_add_test(c, step_logs);
  tcase_add_test(c, devices_of_nvidia_smi);
  tcase_add_test(c, events_of_tensorboard);
  tcase_add_test(c, kineto_traces);
  tcase_add_test(c, a_kineto_trace_becomes_a_profile);
  tcase_add_test(c, large_traces_are_streams);
  tcase_add_test(c, collectives_by_size);
  tcase_add_test(c, bad_files);
#ifdef WRITES_SQLITE
  tcase_add_test(c, views_are_not_read);
  tcase_add_test(c, an_nsys_export_becomes_a_profile);
#endif
  tcase_add_test(c, a_step_log_becomes_a_profile);
  tcase_add_test(c, tables_need_no_model);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
