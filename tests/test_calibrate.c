/* ctest: mpi engine sampled */
/* Calibration: the cases it measures are those of plans, measurements survive their file, and a quick calibration of
 * this machine makes a profile that answers. No figure of this machine is asserted. */
#include <check.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "calibration/calibration.h"
#include "calibration/cases.h"
#include "plan/plan.h"
#include "real/case_operands.h"
#include "real/operands.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/suite.h"
#include "traces/measurements.h"

static tws_error err;
#define OK(call) ck_assert_msg((call) == TWS_OK, "%s", err.message)

/* Checks that calibration would give every compute operation of real plans the same operands as the plan does. Returns
 * the number of operations. */
static int check_plan(const char *model, const char *dtype, int stage, const char *recompute, int micro) {
  tws_network *network;
  tws_config *config;
  char text[64];
  OK(tws_network_load(model, 1, &network, &err));
  OK(tws_config_default(&config, &err));
  snprintf(text, sizeof text, "%d", micro);
  OK(tws_config_set(config, "train_micro_batch_size_per_gpu", text, &err));
  OK(tws_config_set(config, "gradient_accumulation_steps", "2", &err));
  snprintf(text, sizeof text, "%d", stage);
  OK(tws_config_set(config, "zero_optimization.stage", text, &err));
  OK(tws_config_set(config, "bf16.enabled", strcmp(dtype, "bf16") == 0 ? "true" : "false", &err));
  OK(tws_config_set(config, "twinspeed.recompute", recompute, &err));
  OK(tws_config_set(config, "gradient_clipping", "1.0", &err));
  OK(tws_config_set(config, "twinspeed.sequence_length", "48", &err));
  tws_auto_context context = {.hidden_size = network->hidden};
  OK(tws_config_resolve(config, 2, &context, &err));
  tws_plan_request request = {.network = network, .config = config, .backend = TWS_BACKEND_HOST, .threads = 2};
  const tws_axis axis = TWS_AXIS_DATA;
  int ranks = 2, checked = 0;
  OK(tws_topology_make(&request.topology, 1, &axis, &ranks, &err));
  tws_plan *plan;
  OK(tws_plan_build(&request, &plan, &err));
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const tws_work *work = &plan->works[op->work];
    if (op->kind != TWS_OP_COMPUTE) continue;
    tws_case_operand operand[TWS_CASE_OPERANDS];
    int count = tws_case_operands(work, TWS_BACKEND_HOST, 2, operand);
    const char *kernel = tws_kernel_name((tws_kernel)work->code);
    ck_assert_msg(count == op->operand_count, "%s: %d operands, the plan has %d", kernel, count, op->operand_count);
    for (int j = 0; j < count; j++) {
      const tws_operand *expected = &plan->operands[op->operand_first + (uint32_t)j];
      const tws_buffer *buffer = &plan->buffers[expected->buffer];
      size_t bytes = operand[j].elements * tws_dtype_bytes(operand[j].dtype);
      ck_assert_msg(bytes == expected->count * tws_dtype_bytes((tws_dtype)buffer->dtype) || buffer->dtype == TWS_U8 ||
                        (buffer->dtype == TWS_F64 && bytes <= expected->count * 8),
                    "%s operand %d: %zu bytes, the plan has %llu of %s", kernel, j, bytes,
                    (unsigned long long)expected->count, tws_dtype_name((tws_dtype)buffer->dtype));
      ck_assert_msg(operand[j].written == ((expected->access & TWS_WRITE) != 0), "%s operand %d", kernel, j);
    }
    checked++;
  }
  tws_plan_destroy(plan);
  tws_config_destroy(config);
  tws_network_destroy(network);
  return checked;
}

START_TEST(cases_are_those_of_plans) {
  static const char *const models[] = {"tiny-gpt2", "tiny-llama"}, *const dtypes[] = {"fp32", "bf16"};
  int checked = 0;
  for (int m = 0; m < 2; m++)
    for (int d = 0; d < 2; d++)
      for (int stage = 0; stage < 4; stage++)
        checked += check_plan(models[m], dtypes[d], stage, stage % 2 ? "\"full\"" : "\"none\"", 1 + stage);
  ck_assert_int_gt(checked, 500);
}
END_TEST

START_TEST(standard_cases_cover_every_kernel) {
  for (int backend = TWS_BACKEND_HOST; backend <= TWS_BACKEND_CUDA; backend++)
    for (int quick = 0; quick < 2; quick++)
      for (int dtype = TWS_F32; dtype <= TWS_BF16; dtype++) {
        tws_case_list list = {0};
        int seen[TWS_KERNEL_COUNT] = {0};
        OK(tws_case_standard((tws_dtype)dtype, (tws_backend_kind)backend, quick, &list, &err));
        for (size_t i = 0; i < list.count; i++) {
          tws_case_operand operand[TWS_CASE_OPERANDS];
          seen[list.items[i].code]++;
          int count = tws_case_operands(&list.items[i], (tws_backend_kind)backend, 1, operand);
          double bytes = 0;
          for (int j = 0; j < count; j++)
            bytes += (double)operand[j].elements * (double)tws_dtype_bytes(operand[j].dtype);
          /* a prompt has all its tokens, and the token sees all cached positions, which is what costs count */
          for (int j = 0; j < count && list.items[i].code == TWS_KERNEL_CACHED_ATTENTION; j++)
            ck_assert_int_eq(operand[j].below > 0, operand[j].greatest);
          ck_assert_int_gt(count, 0);
          ck_assert_msg(bytes < (backend == TWS_BACKEND_CUDA ? 6.0 * (1 << 30) : 512e6), "%s: %g bytes",
                        tws_kernel_name(list.items[i].code), bytes);
        }
        for (int k = 0; k < TWS_KERNEL_COUNT; k++) ck_assert_msg(seen[k] > 0, "%s", tws_kernel_name((tws_kernel)k));
        tws_free(list.items);
      }
}
END_TEST

/* Every prefix of the list of a GPU's cases contains some cases of each important kernel, bandwidth comes first, and no
 * case is lost. */
START_TEST(valuable_cases_come_first) {
  static const tws_kernel early[] = {TWS_KERNEL_LINEAR,    TWS_KERNEL_LINEAR_GRAD_INPUT, TWS_KERNEL_LINEAR_GRAD_WEIGHT,
                                     TWS_KERNEL_ATTENTION, TWS_KERNEL_ATTENTION_GRAD,    TWS_KERNEL_NORM,
                                     TWS_KERNEL_NORM_GRAD, TWS_KERNEL_CROSS_ENTROPY,     TWS_KERNEL_ADAMW,
                                     TWS_KERNEL_ADD};
  tws_case_list list = {0}, before = {0};
  int seen[TWS_KERNEL_COUNT] = {0}, found = 0;
  OK(tws_case_standard(TWS_F32, TWS_BACKEND_CUDA, 0, &list, &err));
  OK(tws_case_standard(TWS_BF16, TWS_BACKEND_CUDA, 0, &list, &err));
  OK(tws_case_standard(TWS_F32, TWS_BACKEND_CUDA, 0, &before, &err));
  OK(tws_case_standard(TWS_BF16, TWS_BACKEND_CUDA, 0, &before, &err));
  OK(tws_case_order(&list, 1, &err));
  ck_assert_int_eq(memcmp(&list.items[0], &before.items[0], sizeof *list.items), 0);
  ck_assert_uint_eq(list.count, before.count);
  for (size_t i = 0; i < before.count; i++) /* a case that is in the list already is not added */
    OK(tws_case_add(&list, &before.items[i], &err));
  ck_assert_uint_eq(list.count, before.count);
  for (size_t i = 1; i < list.count / 8; i++) seen[list.items[i].code] += list.items[i].dtype == TWS_BF16;
  for (size_t i = 0; i < sizeof early / sizeof *early; i++) ck_assert_int_gt(seen[early[i]], 0);
  for (size_t i = 1; i < list.count / 8; i++)
    found += list.items[i].code == TWS_KERNEL_ADD && list.items[i].dtype == TWS_F32 && list.items[i].d[0] >= 1 << 26;
  ck_assert_int_gt(found, 0);
  tws_free(list.items);
  tws_free(before.items);
}
END_TEST

START_TEST(sizes_of_operands_are_checked) {
  const tws_work work = {.code = TWS_KERNEL_ATTENTION, .d = {2, 16, 4, 2, 8}};
  OK(tws_check_operand_size(&work, 0, 2 * 16 * 8 * 8, &err));
  OK(tws_check_operand_size(&work, 1, 2 * 16 * 4 * 8, &err));
  OK(tws_check_operand_size(&work, 3, 0, &err)); /* scratch memory */
  ck_assert_int_eq(tws_check_operand_size(&work, 1, 2 * 16 * 4 * 8 - 1, &err), TWS_INTERNAL);
  ck_assert_str_eq(err.message, "attention: operand 1 (o) has 1023 elements instead of 1024");
}
END_TEST

/* ---- measurements ---- */

static void add_sample(tws_measurements *m, int64_t size, int busy, double seconds) {
  tws_kernel_sample sample = {.threads = 1, .busy = busy, .seconds = seconds, .spread = 0.02};
  memset(&sample.work, 0, sizeof sample.work);
  sample.work.code = TWS_KERNEL_LINEAR;
  for (int i = 0; i < 3; i++) sample.work.d[i] = size;
  OK(tws_measurements_add_kernel(m, &sample, &err));
}

static tws_measurements example(int world, double factor) {
  tws_measurements m = {.world = world,
                        .cores = 2,
                        .reference_min_s = 1e-3 * factor,
                        .reference_s = 1e-3 * factor,
                        .reference_max_s = 2e-3 * factor};
  for (int64_t size = 64; size <= 1024; size *= 2)
    add_sample(&m, size, world, factor * (1e-6 + 2.0 * (double)(size * size * size) / 1e11));
  tws_kernel_sample add = {.threads = 1, .busy = world, .seconds = factor * 1e-3, .spread = 0.01};
  memset(&add.work, 0, sizeof add.work);
  add.work.code = TWS_KERNEL_ADD;
  add.work.d[0] = 1 << 20;
  OK(tws_measurements_add_kernel(&m, &add, &err));
  for (int i = 0; world > 1 && i < 3; i++) {
    tws_collective_sample sample = {.collective = TWS_COLLECTIVE_ALL_REDUCE,
                                    .ranks = world,
                                    .bytes = pow(10, 4 + i),
                                    .seconds = factor * pow(10, i - 5),
                                    .spread = 0.3};
    OK(tws_measurements_add_collective(&m, &sample, &err));
  }
  if (world == 2) OK(tws_measurements_add_message(&m, &(tws_p2p_sample){4096, 1e-6}, &err));
  return m;
}

START_TEST(measurements_file_round_trip) {
  tws_measurements m = example(2, 1), back;
  snprintf(m.device, sizeof m.device, "a GPU");
  m.device_bytes = 8e10;
  m.shared_device = 1;
  m.copies = (tws_copy_rates){1e10, 2e10, 2.5e10};
  m.passes = (tws_pass_costs){.start_s = 1e-8, .pass_s = 2e-6, .choice_count = 1, .choice = {{1000, 5e-6}}};
  OK(tws_measurements_add_note(&m, "clocks", "1980 \"MHz\"", &err));
  char path[] = "/tmp/tws-measurements-XXXXXX";
  close(mkstemp(path));
  OK(tws_measurements_write(&m, path, &err));
  OK(tws_measurements_read(path, &back, &err));
  ck_assert_int_eq(back.world, 2);
  ck_assert_uint_eq(back.kernel_count, m.kernel_count);
  for (size_t i = 0; i < m.kernel_count; i++) {
    ck_assert_mem_eq(&back.kernels[i].work, &m.kernels[i].work, sizeof(tws_work));
    ck_assert_double_eq_tol(back.kernels[i].seconds, m.kernels[i].seconds, 1e-12 * m.kernels[i].seconds);
    ck_assert_int_eq(back.kernels[i].busy, 2);
  }
  ck_assert_uint_eq(back.collective_count, 3);
  ck_assert_double_eq(back.collectives[2].seconds, m.collectives[2].seconds);
  ck_assert_double_eq(back.messages[0].seconds, 1e-6);
  ck_assert_str_eq(back.device, "a GPU");
  ck_assert(back.device_bytes == 8e10 && back.shared_device == 1 && back.note_count == 1);
  ck_assert(back.copies.to_device == 1e10 && back.copies.to_host == 2e10 && back.copies.both_ways == 2.5e10);
  ck_assert(back.passes.start_s == 1e-8 && back.passes.pass_s == 2e-6 && back.passes.choice_count == 1);
  ck_assert(back.passes.choice[0].vocabulary == 1000 && back.passes.choice[0].seconds == 5e-6);
  ck_assert_str_eq(back.notes[0].key, "clocks");
  ck_assert_str_eq(back.notes[0].text, "1980 \"MHz\"");
  tws_measurements_free(&back);
  FILE *file = fopen(path, "w");
  fputs(
      "{\"schema\": \"twinspeed-measurements-1\", \"world\": 1, \"cores\": 1, \"kernels\": [{\"kernel\": \"nosuch\"}]}",
      file);
  fclose(file);
  ck_assert_int_eq(tws_measurements_read(path, &back, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "nosuch"));
  unlink(path);
  tws_measurements_free(&m);
}
END_TEST

/* From three runs, two of them disturbed, the profile gets the undisturbed times. */
START_TEST(the_least_disturbed_makes_the_profile) {
  tws_measurements one[3], two[3], combined[2];
  const double factor[3] = {1.1, 7.0, 1.3};
  const tws_measurements *ones[3], *twos[3];
  for (int i = 0; i < 3; i++) {
    one[i] = example(1, factor[i]);
    two[i] = example(2, 1.2 * factor[i]);
    one[i].copies = (tws_copy_rates){5e10 / factor[i], 6e10 / factor[i], 8e10 / factor[i]};
    two[i].copies = (tws_copy_rates){9e10 / factor[i], 9e10 / factor[i], 1e11 / factor[i]};
    one[i].passes = (tws_pass_costs){.start_s = 1e-8 * factor[i],
                                     .pass_s = 1e-6 * factor[i],
                                     .choice_count = 1,
                                     .choice = {{100, 1e-6 * factor[i]}}};
    ones[i] = &one[i];
    twos[i] = &two[i];
  }
  OK(tws_measurements_combine(ones, 3, &combined[0], &err));
  OK(tws_measurements_combine(twos, 3, &combined[1], &err));
  ck_assert_double_eq(combined[0].reference_max_s, 14e-3);
  const tws_measurements *unlike[2] = {&one[0], &two[0]};
  tws_measurements refused;
  ck_assert_int_eq(tws_measurements_combine(unlike, 2, &refused, &err), TWS_INVALID);
  tws_profile_builder *builder;
  tws_text text = {0};
  OK(tws_calibration_profile("test", combined, 2, NULL, &builder, &err));
  OK(tws_profile_builder_text(builder, &text, &err));
  const char *node = strstr(text.data, "\"node_bandwidth\":");
  ck_assert_ptr_nonnull(node);
  const double node_bandwidth = strtod(strchr(node, ':') + 1, NULL);
  tws_text_free(&text);
  tws_profile *profile;
  OK(tws_profile_builder_finish(builder, &profile, &err));
  ck_assert_double_eq_tol(tws_profile_bandwidth(profile), 12.0 * (1 << 20) / 1.1e-3, 1e5);
  ck_assert_double_gt(node_bandwidth, tws_profile_bandwidth(profile));
  ck_assert_double_eq_tol(tws_profile_start_s(profile), 1.1e-8, 1e-12);
  ck_assert_double_eq_tol(tws_profile_pass_s(profile, 1, 100), 2.2e-6, 1e-10);
  for (int busy = 1; busy <= 2; busy++)
    for (size_t i = 0; i < combined[busy - 1].kernel_count; i++) {
      const tws_kernel_sample *sample = &combined[busy - 1].kernels[i];
      ck_assert_double_eq_tol(tws_kernel_seconds(profile, &sample->work, 1, busy), sample->seconds,
                              1e-3 * sample->seconds);
    }
  tws_cluster cluster;
  OK(tws_cluster_load("host", &cluster, &err));
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_REDUCE, 2, 2, 1e5, 1),
                          1.1 * 1.2e-4, 1e-6);
  ck_assert_double_eq_tol(tws_profile_copies(profile, 0).to_host, 6e10 / 1.1, 1e6);
  ck_assert_double_eq_tol(tws_profile_copies(profile, 1).both_ways, 1e11 / 1.1, 1e6);
  tws_profile_destroy(profile);
  tws_profile_builder_destroy(builder);
  combined[1].shared_device = 1; /* two ranks on one device say nothing about two devices */
  OK(tws_calibration_profile("test", combined, 2, NULL, &builder, &err));
  OK(tws_profile_builder_finish(builder, &profile, &err));
  ck_assert(tws_profile_copies(profile, 0).to_host > 0 && tws_profile_copies(profile, 1).both_ways == 0);
  tws_profile_destroy(profile);
  tws_profile_builder_destroy(builder);
  for (int i = 0; i < 3; i++) {
    tws_measurements_free(&one[i]);
    tws_measurements_free(&two[i]);
  }
  for (int i = 0; i < 2; i++) tws_measurements_free(&combined[i]);
}
END_TEST

/* ---- under load ---- */

static tws_kernel_sample half_sample(tws_kernel kernel, tws_dtype dtype, int64_t rows, int64_t columns,
                                     double seconds) {
  tws_kernel_sample sample = {.threads = 1, .busy = 1, .seconds = seconds};
  memset(&sample.work, 0, sizeof sample.work);
  sample.work.code = (uint8_t)kernel;
  sample.work.dtype = sample.work.dtype2 = (uint8_t)dtype;
  sample.work.d[0] = rows;
  sample.work.d[1] = sample.work.d[2] = columns;
  return sample;
}

/* A device that does a product at 800 TFLOP/s in short measurements, and at 640 when it does nothing else: what
 * arithmetic bounds takes a quarter longer in the profile, what memory bounds and float32 stay as they were measured,
 * and both rates are stated. They survive the file of measurements. */
START_TEST(sustained_load_slows_arithmetic) {
  tws_measurements made = {.world = 1,
                           .cores = 2,
                           .device = "some GPU",
                           .device_bytes = 8e10,
                           .description = "CUDA",
                           .reference_min_s = 1e-3,
                           .reference_s = 1e-3,
                           .reference_max_s = 1e-3,
                           .reference_flops = 8e11,
                           .sustained_reference_s = 1.25e-3,
                           .sustained_for_s = 3};
  const tws_kernel_sample samples[] = {half_sample(TWS_KERNEL_LINEAR, TWS_BF16, 8192, 4096, 4e-4),
                                       half_sample(TWS_KERNEL_LINEAR, TWS_F32, 8192, 4096, 6e-3),
                                       half_sample(TWS_KERNEL_LINEAR, TWS_BF16, 16384, 64, 1e-5),
                                       half_sample(TWS_KERNEL_NORM, TWS_BF16, 8192, 4096, 5e-5),
                                       half_sample(TWS_KERNEL_ADD, TWS_F32, 1 << 26, 0, 2e-4)};
  const double longer[] = {1.25, 1, 1, 1, 1};
  enum { SAMPLES = sizeof samples / sizeof *samples };
  for (int i = 0; i < SAMPLES; i++) OK(tws_measurements_add_kernel(&made, &samples[i], &err));
  tws_measurements m;
  make_folder();
  OK(tws_measurements_write(&made, in_folder("m.json"), &err));
  OK(tws_measurements_read(in_folder("m.json"), &m, &err));
  remove_folder();
  tws_profile_builder *builder;
  tws_profile *profile;
  OK(tws_calibration_profile("test", &m, 1, NULL, &builder, &err));
  OK(tws_profile_builder_finish(builder, &profile, &err));
  for (int i = 0; i < SAMPLES; i++)
    ck_assert_double_eq_tol(tws_kernel_seconds(profile, &samples[i].work, 1, 1), longer[i] * samples[i].seconds,
                            1e-3 * samples[i].seconds);
  const char *provenance = tws_profile_provenance(profile);
  ck_assert_msg(strstr(provenance, "800.0 TFLOP/s in bursts and 640.0 TFLOP/s after 3.0 s"), "%s", provenance);
  tws_profile_destroy(profile);
  tws_profile_builder_destroy(builder);
  tws_measurements_free(&m);
  tws_measurements_free(&made);
}
END_TEST

/* ---- a machine that is not quiet ---- */

typedef struct noise {
  const double *drift;
  int times;
} noise;

static tws_code measure_noisily(void *user, tws_measurements *out, tws_error *e) {
  noise *n = user;
  (void)e;
  const double drift = n->drift[n->times++];
  *out = example(1, 1 + drift);
  out->reference_s = 1e-3;
  out->reference_min_s = 1e-3;
  out->reference_max_s = 1e-3 * (1 + drift);
  return TWS_OK;
}

/* Calibration is repeated until the machine is quiet, three times at most. It keeps the least disturbed samples and the
 * smallest drift; the profile states that drift, and programs that use the profile warn. */
START_TEST(measured_until_quiet) {
  static const struct {
    double drift[3], kept;
    int times, noisy;
  } cases[] = {{{0.1}, 0.1, 1, 0}, {{0.6, 0.05}, 0.05, 2, 0}, {{0.8, 0.46, 0.7}, 0.46, 3, 1}};
  make_folder();
  for (int i = 0; i < 3; i++) {
    noise n = {cases[i].drift, 0};
    tws_measurements m;
    OK(tws_calibration_repeat(measure_noisily, &n, TWS_CALIBRATION_REPEATS, NULL, &m, &err));
    ck_assert_int_eq(n.times, cases[i].times);
    ck_assert_double_eq_tol(tws_calibration_drift(&m), cases[i].kept, 1e-12);
    const tws_measurements undisturbed = example(1, 1 + cases[i].kept);
    ck_assert_double_eq_tol(m.kernels[0].seconds / undisturbed.kernels[0].seconds, 1, 1e-12);
    tws_profile_builder *builder;
    OK(tws_calibration_profile("test", &m, 1, NULL, &builder, &err));
    OK(tws_profile_builder_write(builder, in_folder("host.json"), &err));
    tws_profile_builder_destroy(builder);
    tws_profile *profile;
    OK(tws_profile_load(in_folder("host.json"), &profile, &err));
    ck_assert_int_eq(tws_profile_is_noisy(profile), cases[i].noisy);
    ck_assert_double_eq_tol(tws_profile_drift(profile), cases[i].kept, 1e-3);
    tws_profile_destroy(profile);
    static const char *const verbs[] = {"estimate -m gpt2", "check -m gpt2", "simulate -m gpt2", "profile -m gpt2"};
    for (int v = 0; v < 4; v++) {
      command_result r = twinspeed("%s --seq 64 --profile %s", verbs[v], in_folder("host.json"));
      ck_assert_msg(count_lines_with(r.err, "warning: the machine was not quiet") == cases[i].noisy, "%s: %s", verbs[v],
                    r.err);
      command_free(&r);
    }
    tws_measurements kept = undisturbed;
    tws_measurements_free(&kept);
    tws_measurements_free(&m);
  }
  remove_folder();
}
END_TEST

/* ---- this machine ---- */

START_TEST(calibrate_this_machine) {
  make_folder();
  const char *path = in_folder("host.json");
  command_result run =
      twinspeed("calibrate --quick --largest 1000000 --seconds 1 -n 1,2,3 --cores 2 --json -o %s", path);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  cJSON *json = cJSON_Parse(run.out);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "runs")), 3);
  cJSON_Delete(json);
  command_free(&run);
  tws_profile *profile;
  OK(tws_profile_load(path, &profile, &err));
  ck_assert_int_eq(tws_profile_cores(profile), 2);
  ck_assert_double_gt(tws_profile_overhead_bytes(profile), 1e6);
  /* for shapes that were not measured, twice the work takes more time, for every number of busy ranks */
  for (int busy = 1; busy <= 2; busy++) {
    tws_work work = {.code = TWS_KERNEL_LINEAR, .d = {200, 300, 500}},
             large = {.code = TWS_KERNEL_LINEAR, .d = {800, 1200, 1000}};
    double seconds = tws_kernel_seconds(profile, &work, 1, busy), more = tws_kernel_seconds(profile, &large, 1, busy);
    ck_assert_double_gt(seconds, 0);
    ck_assert_double_gt(more, seconds);
  }
  /* a token is chosen from more scores in more time, in the time of at most 1 us for each score */
  const double few_s = tws_profile_pass_s(profile, 1, 1000), many_s = tws_profile_pass_s(profile, 1, 100000);
  ck_assert_double_gt(few_s, 0);
  ck_assert_double_gt(many_s, few_s);
  ck_assert_double_lt(many_s, 0.1);
  tws_cluster cluster;
  OK(tws_cluster_load("host", &cluster, &err));
  cluster.devices_per_node = 4;
  for (int ranks = 2; ranks <= 3; ranks++)
    ck_assert_double_gt(tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_GATHER, ranks, ranks, 1e5, 1), 0);
  tws_profile_destroy(profile);
  /* not over an existing profile */
  run = twinspeed("calibrate --quick --largest 1000000 --seconds 1 -n 1 -o %s", path);
  ck_assert_int_eq(run.status, 2);
  ck_assert_ptr_nonnull(strstr(run.err, "--force"));
  command_free(&run);
  remove_folder();
}
END_TEST

static const char figures_only[] =
    "{\"schema\":\"twinspeed-profile-1\",\"name\":\"figures\",\"provenance\":\"a test\",\"backend\":\"cuda\","
    "\"memory_bytes\":80e9,\"peak_flops\":{\"fp32\":1e13},\"bandwidth\":1e12%s}";

static const char *write_profile(const char *name, const char *disk) {
  const char *path = in_folder(name);
  FILE *file = fopen(path, "w");
  fprintf(file, figures_only, disk);
  fclose(file);
  return path;
}

/* Returns the seconds of a step whose optimizer is on the disk, from an estimate or a simulation. */
static double step_on_disk(const char *profile, const char *cluster, const char *verb, const char *member) {
  command_result run = twinspeed(
      "%s -m tiny-gpt2 --stage 2 --json --profile %s --cluster %s --set "
      "zero_optimization.offload_optimizer.device=nvme --set "
      "zero_optimization.offload_optimizer.nvme_path=/tmp",
      verb, profile, cluster);
  ck_assert_msg(run.status == 0, "%s", run.err);
  cJSON *json = cJSON_Parse(run.out), *at = cJSON_GetObjectItem(json, "time");
  const double seconds = cJSON_GetNumberValue(cJSON_GetObjectItem(at ? at : json, member));
  cJSON_Delete(json);
  command_free(&run);
  return seconds;
}

/* Calibration measures a small file and adds the disk's rates to a profile; estimates and simulations use the rates of
 * a profile's disk. */
START_TEST(a_disk_into_a_profile) {
  make_folder();
  char path[2][256], cluster[256];
  snprintf(path[0], sizeof path[0], "%s", write_profile("measured.json", ""));
  command_result run = twinspeed("calibrate --disk %s --quick --disk-bytes 65536 --into %s --json", folder, path[0]);
  ck_assert_msg(run.status == 0, "%s", run.err);
  cJSON *json = cJSON_Parse(run.out), *disk = cJSON_GetObjectItem(json, "disk");
  tws_profile *profile;
  OK(tws_profile_load(path[0], &profile, &err));
  ck_assert_double_gt(tws_profile_disk_read(profile), 0);
  ck_assert_double_eq_tol(tws_profile_disk_read(profile) / cJSON_GetNumberValue(cJSON_GetObjectItem(disk, "read")), 1,
                          1e-9);
  ck_assert_double_eq_tol(tws_profile_disk_write(profile) / cJSON_GetNumberValue(cJSON_GetObjectItem(disk, "write")), 1,
                          1e-9);
  ck_assert_double_eq(tws_profile_memory_bytes(profile), 80e9); /* the rest is as it was */
  tws_profile_destroy(profile);
  cJSON_Delete(json);
  command_free(&run);
  snprintf(path[0], sizeof path[0], "%s", write_profile("slow.json", ",\"disk\":{\"read\":1e6,\"write\":1e6}"));
  snprintf(path[1], sizeof path[1], "%s", write_profile("fast.json", ",\"disk\":{\"read\":2e6,\"write\":2e6}"));
  const double slow = step_on_disk(path[0], "dgx-a100:1", "estimate", "step_s");
  ck_assert_double_gt(slow, 1); /* megabytes at 1 MB/s take so long that no other time matters */
  ck_assert_double_eq_tol(step_on_disk(path[1], "dgx-a100:1", "estimate", "step_s") / slow, 0.5, 0.01);
  ck_assert_double_eq_tol(step_on_disk(path[0], "dgx-a100:1", "simulate", "step_s") / slow, 1, 0.1);
  /* the rates of a cluster file override those of the profile */
  snprintf(cluster, sizeof cluster, "%s", in_folder("cluster.json"));
  FILE *file = fopen(cluster, "w");
  fprintf(file,
          "{\"schema\":\"twinspeed-cluster-1\",\"base\":\"dgx-a100:1\","
          "\"disk\":{\"read\":4e6,\"write\":4e6}}");
  fclose(file);
  ck_assert_double_eq_tol(step_on_disk(path[0], cluster, "estimate", "step_s") / slow, 0.25, 0.01);
  run = twinspeed("check --profile %s -m tiny-gpt2", write_profile("bad.json", ",\"disk\":{\"read\":-1,\"write\":1}"));
  ck_assert(run.status == 3 && strstr(run.err, "read"));
  command_free(&run);
  run = twinspeed("calibrate --into %s", path[0]);
  ck_assert(run.status == 2 && strstr(run.err, "--disk"));
  command_free(&run);
  remove_folder();
}
END_TEST

/* Makes a folder with the emulated device's modules and lets the program load them from there. Returns 0 where they
 * were not built, because the CUDA toolkit is missing. */
static int use_emulated_device(void) {
  static const char *const modules[][2] = {{"twinspeed_real.so", "twinspeed_real.so"},
                                           {"twinspeed_cuda.so", "emulated/twinspeed_cuda.so"}};
  char target[256];
  if (access(TWS_BUILD_DIR "/emulated/twinspeed_cuda.so", R_OK) != 0) return 0;
  make_folder();
  for (int i = 0; i < 2; i++) {
    snprintf(target, sizeof target, "%s/%s", TWS_BUILD_DIR, modules[i][1]);
    ck_assert_int_eq(symlink(target, in_folder(modules[i][0])), 0);
  }
  setenv("TWINSPEED_MODULES", folder, 1);
  return 1;
}

/* A calibration that would take minutes is killed once its profile exists: the profile has the cases measured until
 * then. */
START_TEST(a_killed_run_leaves_a_profile) {
  if (!use_emulated_device()) return;
  const char *path = in_folder("gpu.json");
  const pid_t run = fork();
  if (run == 0) {
    setpgid(0, 0);
    execl(TWS_BUILD_DIR "/twinspeed", "twinspeed", "calibrate", "--quiet", "--device", "cuda", "--quick", "--largest",
          "100000", "--seconds", "600", "-n", "1", "-o", path, (char *)NULL);
    _exit(127);
  }
  ck_assert_int_gt(run, 0);
  int status = 0, ended = 0;
  while (access(path, R_OK) != 0 && !(ended = waitpid(run, &status, WNOHANG) == run)) usleep(20000);
  kill(-run, SIGKILL);
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR, 1);
  ck_assert_msg(!ended, "ended with status %d", status);
  ck_assert_int_eq(waitpid(run, &status, 0), run);
  tws_profile *profile;
  OK(tws_profile_load(path, &profile, &err));
  ck_assert_int_eq(tws_profile_backend(profile), TWS_BACKEND_CUDA);
  tws_work work = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {128, 64, 64}};
  ck_assert_double_gt(tws_kernel_seconds(profile, &work, 1, 1), 0);
  ck_assert_ptr_nonnull(strstr(tws_profile_provenance(profile), "without a rest"));
  tws_profile_destroy(profile);
  remove_folder();
}
END_TEST

/* With the profile of a GPU alone, tune trains the best points on the GPU, and their measured steps correct the
 * profile. Without a GPU, or with fewer than the search includes, tune refuses before the search begins. */
static void tune_on_device(const char *profile) {
  char text[256], command[1024];
  FILE *file = fopen(in_folder("text.txt"), "w");
  for (int i = 0; i < 4096; i++) fputc("a text "[i % 7], file);
  fclose(file);
  snprintf(text, sizeof text, "%s", in_folder("text.txt"));
  snprintf(command, sizeof command,
           "tune -m tiny-gpt2 --seq 32 -b 4 --stages 0 --recomputes none --validate 2 --rounds 1 --race 0 "
           "--end-profile-step 3 "
           "--data %s --profile %s --json -o %s/tuned",
           text, profile, folder);
  setenv("TWINSPEED_MODULES", folder, 1);
  command_result none = twinspeed("%s", command);
  ck_assert_msg(none.status == 3 && strstr(none.err, "which has 0 GPUs, and the search includes up to 1 ranks"),
                "%d: %s", none.status, none.err);
  command_free(&none);
  setenv("LD_LIBRARY_PATH", TWS_BUILD_DIR "/emulated", 1);
  command_result run = twinspeed("%s", command);
  unsetenv("LD_LIBRARY_PATH");
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR, 1);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  cJSON *json = cJSON_Parse(run.out);
  const cJSON *trial, *trials = cJSON_GetObjectItem(json, "trials");
  ck_assert_int_ge(cJSON_GetArraySize(trials), 2);
  cJSON_ArrayForEach(trial, trials) {
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(trial, "outcome")), "measured");
  }
  cJSON_Delete(json);
  command_free(&run);
}

/* The driver's library starts threads in the process that starts the ranks: that process still receives the signal that
 * they ended. */
START_TEST(a_driver_with_threads) {
  if (!use_emulated_device()) return;
  const char *path = in_folder("gpu.json");
  setenv("LD_LIBRARY_PATH", TWS_BUILD_DIR "/emulated", 1);
  for (int i = 0; i < 3; i++) { /* three runs, because a wrong program loses the signal in most runs only */
    command_result run =
        twinspeed("calibrate --device cuda --quick --largest 100000 --seconds 0.1 --force -o %s", path);
    ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
    command_free(&run);
  }
  unsetenv("LD_LIBRARY_PATH");
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR, 1);
  remove_folder();
}
END_TEST

static void describe_node(const char *sysfs, int node) {
  char name[128];
  snprintf(name, sizeof name, "%s/devices/system/node/node%d", sysfs, node);
  ck_assert_int_eq(mkdir(name, 0700), 0);
  snprintf(name, sizeof name, "%s/devices/system/node/node%d/cpulist", sysfs, node);
  FILE *file = fopen(name, "w");
  fprintf(file, "%d\n", node);
  fclose(file);
}

/* Where a machine has several NUMA nodes, copies from and to memory of each are measured, and the notes say which node
 * the device is attached to. A folder in place of /sys describes two nodes of one processor each, with the device at
 * the second. The kernel of a machine without that node cannot take memory from it, and the note says so. */
START_TEST(copies_by_numa_node) {
  static const char *const made[] = {"devices", "devices/system",  "devices/system/node",         "bus",
                                     "bus/pci", "bus/pci/devices", "bus/pci/devices/0000:00:00.0"};
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !CPU_ISSET(0, &allowed) || !CPU_ISSET(1, &allowed)) return;
  if (!use_emulated_device()) return;
  char sysfs[64], name[128];
  snprintf(sysfs, sizeof sysfs, "%s", in_folder("sys"));
  mkdir(sysfs, 0700);
  for (size_t i = 0; i < sizeof made / sizeof *made; i++)
    snprintf(name, sizeof name, "%s/%s", sysfs, made[i]), mkdir(name, 0700);
  for (int node = 0; node < 2; node++) describe_node(sysfs, node);
  snprintf(name, sizeof name, "%s/devices/system/node/online", sysfs), write_text(name, "0-1\n");
  snprintf(name, sizeof name, "%s/bus/pci/devices/0000:00:00.0/numa_node", sysfs), write_text(name, "1\n");
  setenv("TWINSPEED_SYSFS", sysfs, 1);
  command_result run = twinspeed("calibrate --device cuda --quick --largest 100000 --seconds 0.1 --force --json -o %s",
                                 in_folder("nodes.json"));
  unsetenv("TWINSPEED_SYSFS");
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR, 1);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  cJSON *json = cJSON_Parse(run.out);
  const cJSON *notes = cJSON_GetObjectItem(json, "notes");
  for (int node = 0; node < 2; node++) {
    snprintf(name, sizeof name, "copies both ways, memory of NUMA node %d", node);
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(notes, name));
    ck_assert_msg(text && strstr(text, "0.1 GB/s to the device"), "%s: %s", name, text ? text : run.out);
    ck_assert_msg(!strstr(text, "the device is attached to this node") == (node == 0), "%s: %s", name, text);
  }
  cJSON_Delete(json);
  command_free(&run);
  remove_folder();
}
END_TEST

/* The whole calibration of a GPU, on the emulated device, where the fastest kernel of a product takes one
 * millisecond. */
START_TEST(calibrate_emulated_device) {
  if (!use_emulated_device()) return;
  const char *path = in_folder("gpu.json");
  command_result run =
      twinspeed("calibrate --device cuda --quick --largest 100000 --seconds 1 -n 1,2 --json -o %s", path);
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR, 1);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  cJSON *json = cJSON_Parse(run.out);
  ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(json, "device")), "emulated device");
  const cJSON *notes = cJSON_GetObjectItem(json, "notes");
  ck_assert(cJSON_HasObjectItem(notes, "smallest kernels") && cJSON_HasObjectItem(notes, "copies from pinned memory"));
  cJSON_Delete(json);
  command_free(&run);
  tws_profile *profile;
  OK(tws_profile_load(path, &profile, &err));
  ck_assert_int_eq(tws_profile_backend(profile), TWS_BACKEND_CUDA);
  ck_assert(tws_profile_memory_bytes(profile) == 80.0 * (1 << 30));
  ck_assert_double_gt(tws_profile_overhead_bytes(profile), 512.0 * (1 << 20)); /* the overhead is CUDA's context and the
                                                                                * workspace, without memory pools */
  ck_assert_double_lt(tws_profile_overhead_bytes(profile), 600.0 * (1 << 20));
  tws_work work = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {128, 64, 64}};
  ck_assert_double_eq_tol(tws_kernel_seconds(profile, &work, 1, 1), 1e-3, 1e-9);
  /* on the emulated device each copy takes one millisecond, whatever else runs; the two ranks share one device */
  const tws_copy_rates one = tws_profile_copies(profile, 0), two = tws_profile_copies(profile, 1);
  ck_assert_double_eq_tol(one.to_device, 1e8, 1e3);
  ck_assert_double_eq_tol(one.to_host, 1e8, 1e3);
  ck_assert_double_eq_tol(one.both_ways, 2e8, 1e3);
  ck_assert_double_eq(two.both_ways, 0);
  work.flags = TWS_FP8; /* products in 8 bits were measured, so that their time is known */
  ck_assert_double_eq_tol(tws_kernel_seconds(profile, &work, 1, 1), 1e-3, 1e-9);
  command_result estimate =
      twinspeed("estimate -m tiny-gpt2 --dtype bf16 --set twinspeed.matmul_dtype=fp8 --profile %s", path);
  ck_assert_msg(estimate.status == 0, "%s", estimate.err);
  command_free(&estimate);
  tune_on_device(path);
  tws_cluster cluster;
  OK(tws_cluster_load("dgx-h200", &cluster, &err));
  ck_assert_double_gt(tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_REDUCE, 2, 2, 4096, 1), 0);
  tws_profile_destroy(profile);
  run = twinspeed("calibrate --device cuda -n 2 -o %s/none.json", folder);
  ck_assert_int_eq(run.status, 2);
  command_free(&run);
  run = twinspeed("calibrate --device gpu -o %s/none.json", folder);
  ck_assert_int_eq(run.status, 2);
  command_free(&run);
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("calibrate");
  TCase *tcase = tcase_create("calibrate");
  tcase_set_timeout(tcase, 240);
  tcase_add_test(tcase, cases_are_those_of_plans);
  tcase_add_test(tcase, standard_cases_cover_every_kernel);
  tcase_add_test(tcase, valuable_cases_come_first);
  tcase_add_test(tcase, sizes_of_operands_are_checked);
  tcase_add_test(tcase, measurements_file_round_trip);
  tcase_add_test(tcase, the_least_disturbed_makes_the_profile);
  tcase_add_test(tcase, sustained_load_slows_arithmetic);
  tcase_add_test(tcase, measured_until_quiet);
  tcase_add_test(tcase, calibrate_this_machine);
  tcase_add_test(tcase, a_disk_into_a_profile);
  tcase_add_test(tcase, a_killed_run_leaves_a_profile);
  tcase_add_test(tcase, a_driver_with_threads);
  tcase_add_test(tcase, calibrate_emulated_device);
  tcase_add_test(tcase, copies_by_numa_node);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
