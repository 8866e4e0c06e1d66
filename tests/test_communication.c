/* communication_data_type: the values of the key, the type in which plans reduce, and the effect on estimates and
 * simulations. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "command.h"
#include "plan/plan.h"
#include "suite.h"

static tws_error err;

static tws_code read_config(const char *text, tws_config **out) {
  tws_json *json = NULL;
  ck_assert_msg(tws_json_parse(text, strlen(text), "ds.json", &json, &err) == TWS_OK, "%s", err.message);
  const tws_code code = tws_config_from_json(json, out, &err);
  tws_json_destroy(json);
  return code;
}

START_TEST(words) {
  static const struct {
    const char *model, *keys;
    tws_dtype type;
    const char *printed, *remark; /* NULL: none */
  } cases[] = {
      {"fp16", "", TWS_F16, NULL, NULL},
      {"bf16", "", TWS_BF16, NULL, NULL},
      {"fp32", "", TWS_F32, NULL, NULL},
      {"bf16", ",\"communication_data_type\": null", TWS_BF16, NULL, NULL},
      {"bf16", ",\"communication_data_type\": \"fp32\"", TWS_F32, "\"fp32\"", NULL},
      {"fp16", ",\"communication_data_type\": \"FP32\"", TWS_F32, "\"fp32\"", NULL},
      {"fp32", ",\"communication_data_type\": \"bf16\"", TWS_BF16, "\"bf16\"", NULL},
      {"fp32", ",\"communication_data_type\": \"bfp16\"", TWS_BF16, "\"bf16\"", NULL},
      {"fp16", ",\"communication_data_type\": \"BFP16\"", TWS_BF16, "\"bf16\"", NULL},
      {"fp16", ",\"communication_data_type\": \"fp16\"", TWS_F16, "\"fp16\"", NULL},
      {"bf16", ",\"communication_data_type\": \"fp16\"", TWS_F16, "\"fp16\"", "there is no loss scale"},
      {"bf16", ",\"sequence_parallel_size\": 2", TWS_BF16, NULL, NULL},
      {"bf16", ",\"sequence_parallel_size\": 2,\"communication_data_type\": \"fp32\"", TWS_F32, "\"fp32\"", NULL},
      {"bf16", ",\"seq_parallel_communication_data_type\": \"fp32\"", TWS_BF16, "\"fp32\"",
       "\"seq_parallel_communication_data_type\" has no effect: it needs sequence_parallel_size above 1"},
      {"bf16", ",\"sequence_parallel_size\": 2,\"seq_parallel_communication_data_type\": \"fp32\"", TWS_F32, "\"fp32\"",
       NULL},
      {"bf16",
       ",\"sequence_parallel_size\": 2,\"communication_data_type\": \"fp16\","
       "\"seq_parallel_communication_data_type\": \"bfp16\"",
       TWS_BF16, "\"bf16\"",
       "\"communication_data_type\" has no effect: seq_parallel_communication_data_type replaces"},
      {"bf16", ",\"prescale_gradients\": true", TWS_BF16, NULL, NULL},
      {"bf16", ",\"gradient_predivide_factor\": 2", TWS_BF16, NULL, NULL},
      {"bf16", ",\"gradient_predivide_factor\": 2,\"prescale_gradients\": true", TWS_BF16, NULL,
       "prescale_gradients has the whole division before"},
      {"bf16", ",\"prescale_gradients\": true,\"zero_optimization\": {\"stage\": 1}", TWS_BF16, NULL,
       "gradients are divided before their reduction anyway"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[400];
    tws_config *config = NULL;
    tws_text printed = {0}, remarks = {0};
    int count = 0;
    snprintf(text, sizeof text, "{\"train_micro_batch_size_per_gpu\": 1,\"%s\": {\"enabled\": %s}%s}",
             strcmp(cases[i].model, "bf16") ? "fp16" : "bf16", strcmp(cases[i].model, "fp32") ? "true" : "false",
             cases[i].keys);
    ck_assert_msg(read_config(text, &config) == TWS_OK, "%s: %s", text, err.message);
    ck_assert_msg(tws_config_communication_dtype(config) == cases[i].type, "%s", text);
    ck_assert_int_eq(tws_config_print(config, 0, &printed, &err), TWS_OK);
    const char *key = strstr(printed.data, "communication_data_type\":");
    ck_assert_msg((key != NULL) == (cases[i].printed != NULL), "%s", printed.data);
    if (key) ck_assert_msg(strstr(printed.data, cases[i].printed) != NULL, "%s", printed.data);
    ck_assert_ptr_null(strstr(printed.data, "bfp16"));
    ck_assert_int_eq(tws_config_no_effect(config, &remarks, &count, &err), TWS_OK);
    ck_assert_msg(count == (cases[i].remark != NULL), "%s: %s", text, remarks.data);
    if (count) ck_assert_msg(strstr(remarks.data, cases[i].remark) != NULL, "%s", remarks.data);
    tws_text_free(&printed);
    tws_text_free(&remarks);
    tws_config_destroy(config);
  }
}
END_TEST

START_TEST(refusals) {
  static const struct {
    const char *keys, *message, *hint;
  } cases[] = {
      {"\"communication_data_type\": \"fp8\"",
       "ds.json:1:39: \"communication_data_type\" must be one of fp16, bf16, fp32",
       "Type in which gradients are reduced"},
      {"\"communication_data_type\": \"fp61\"", "must be one of fp16, bf16, fp32", "did you mean \"fp16\"?"},
      {"\"seq_parallel_communication_data_type\": \"bf61\"", "must be one of fp16, bf16, fp32",
       "did you mean \"bf16\"?"},
      {"\"communication_data_type\": 16", "must be one of fp16, bf16, fp32", "Type in which gradients are reduced"},
      {"\"prescale_gradients\": true, \"zero_optimization\": {\"stage\": 2}",
       "prescale_gradients does not go with reduce_scatter at stage 2", "set one of them to false"},
      {"\"gradient_predivide_factor\": 2, \"zero_optimization\": {\"stage\": 3}",
       "gradient_predivide_factor must be 1 with reduce_scatter at stage 3",
       "leave it out, or set zero_optimization.reduce_scatter to false"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[300];
    tws_config *config = NULL;
    snprintf(text, sizeof text, "{\"train_micro_batch_size_per_gpu\": 1, %s}", cases[i].keys);
    tws_code code = read_config(text, &config);
    if (code == TWS_OK) code = tws_config_resolve(config, 4, NULL, &err);
    ck_assert_int_eq(code, TWS_INVALID);
    ck_assert_msg(strstr(err.message, cases[i].message) && strstr(err.hint, cases[i].hint), "%s (%s)", err.message,
                  err.hint);
    tws_config_destroy(config);
  }
}
END_TEST

/* ---- plans ---- */

enum { RANKS = 4 };

typedef struct reductions {
  uint64_t elements, cast, cast_back; /* numbers of elements: reduced, cast to the type, cast back */
  int operations, others;             /* others: number of reductions in another type than the given one */
} reductions;

static int is_reduction(const tws_plan *plan, const tws_op *op) {
  const tws_work *work = &plan->works[op->work];
  return op->kind == TWS_OP_COLLECTIVE && op->phase == TWS_PHASE_BACKWARD &&
         (work->code == TWS_COLLECTIVE_ALL_REDUCE || work->code == TWS_COLLECTIVE_REDUCE ||
          work->code == TWS_COLLECTIVE_REDUCE_SCATTER);
}

static int is_communicated(const tws_plan *plan, const tws_operand *operand) {
  return strcmp(plan->buffers[operand->buffer].name, "communicated gradients") == 0;
}

static reductions reductions_of(const tws_plan *plan, tws_dtype type) {
  reductions r = {0};
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const tws_work *work = &plan->works[op->work];
    const tws_operand *operand = &plan->operands[op->operand_first];
    if (is_reduction(plan, op)) {
      r.operations++;
      r.others += work->dtype != type;
      r.elements += (uint64_t)work->d[0] / tws_dtype_bytes((tws_dtype)work->dtype);
      for (int k = 0; k < op->operand_count; k++) ck_assert_int_eq(plan->buffers[operand[k].buffer].dtype, work->dtype);
    } else if (op->kind == TWS_OP_COMPUTE && work->code == TWS_KERNEL_CAST) {
      if (is_communicated(plan, &operand[1])) r.cast += operand[1].count;
      if (is_communicated(plan, &operand[0])) r.cast_back += operand[0].count;
    }
  }
  return r;
}

typedef struct job {
  int stage, way, overlap; /* way 0: as DeepSpeed; 1: all-reduce of buckets; 2: reduce to owners */
  tws_dtype model, sums;
  int given; /* 1 + a type; 0: none */
} job;

/* Verifies the plans of all ranks; returns the reductions of rank 0's. */
static reductions plan_job(const tws_network *network, const job *j, tws_dtype type) {
  tws_config *base;
  ck_assert(tws_config_default(&base, &err) == TWS_OK);
  tws_config c = *base;
  c.store = NULL;
  tws_config_destroy(base);
  c.train_batch_size = 2 * RANKS;
  c.micro_batch_size = 1;
  c.accumulation_steps = 2;
  c.sequence_length = 8;
  c.dtype = j->model;
  c.accumulation_dtype = j->sums;
  c.communication_dtype = j->given;
  c.zero.stage = j->stage;
  c.zero.overlap_comm = j->overlap;
  c.zero.reduce_bucket_size = 30000;
  c.zero.reduce_scatter = j->way != 1;
  c.zero.multi_rank_bucket_allreduce = j->way != 2;
  tws_plan_request request = {.network = network, .config = &c, .backend = TWS_BACKEND_CUDA, .threads = 1};
  ck_assert(tws_plan_topology(&c, RANKS, &request.topology, &err) == TWS_OK);
  tws_plan *plans[RANKS];
  for (request.rank = 0; request.rank < RANKS; request.rank++) {
    tws_plan **plan = &plans[request.rank];
    ck_assert_msg(tws_plan_build(&request, plan, &err) == TWS_OK, "%s", err.message);
    ck_assert_msg(tws_plan_verify(*plan, &err) == TWS_OK, "%s", err.message);
    ck_assert_uint_eq((*plan)->arena_bytes[TWS_TIER_DEVICE], plans[0]->arena_bytes[TWS_TIER_DEVICE]);
  }
  ck_assert_msg(tws_plans_verify((const tws_plan *const *)plans, RANKS, &err) == TWS_OK, "%s", err.message);
  const reductions r = reductions_of(plans[0], type);
  for (int i = 0; i < RANKS; i++) tws_plan_destroy(plans[i]);
  return r;
}

static void check_job(const tws_network *network, job j, uint64_t params) {
  const tws_dtype type = j.given ? (tws_dtype)(j.given - 1) : j.model, gradients = j.stage < 2 ? j.sums : j.model;
  const reductions r = plan_job(network, &j, type);
  const int rounds = j.stage < 2 ? 1 : 2, casts = type != gradients;
  char what[96];
  snprintf(what, sizeof what, "stage %d, way %d, %s, sums %s, reduced in %s", j.stage, j.way, tws_dtype_name(j.model),
           tws_dtype_name(j.sums), tws_dtype_name(type));
  ck_assert_msg(r.operations > 0 && r.others == 0, "%s: %d of %d in another type", what, r.others, r.operations);
  if (j.stage < 3)
    ck_assert_msg(r.elements == (uint64_t)rounds * params, "%s: %lld elements", what, (long long)r.elements);
  else /* padded */
    ck_assert_msg(r.elements >= 2 * params && r.elements < 2 * params + 8 * RANKS * network->param_count, "%s", what);
  ck_assert_msg(r.cast == (casts ? r.elements : 0), "%s: %lld elements cast", what, (long long)r.cast);
  if (j.stage < 2) ck_assert_msg(r.cast_back == (casts ? params : 0), "%s: %lld back", what, (long long)r.cast_back);
  ck_assert_msg(casts || r.cast_back == 0, "%s", what);
}

START_TEST(plans_reduce_in_the_type) {
  static const tws_dtype types[] = {TWS_F32, TWS_BF16, TWS_F16};
  tws_network *network = NULL;
  ck_assert_msg(tws_network_load("tiny-gpt2", 1, &network, &err) == TWS_OK, "%s", err.message);
  const uint64_t params = (uint64_t)tws_network_params(network, 0);
  int jobs = 0;
  for (int stage = 0; stage <= 3; stage++)
    for (int way = 0; way < 3; way++)
      for (int m = 0; m < 3; m++)
        for (int wide = 0; wide < (stage && m ? 2 : 1); wide++)
          for (int given = 0; given <= 3; given++, jobs++) {
            const tws_dtype sums = wide ? TWS_F32 : types[m];
            check_job(network, (job){stage, way, jobs % 2, types[m], sums, given}, params);
          }
  ck_assert_int_eq(jobs, 3 * 4 * (3 + 3 * 5));
  tws_network_destroy(network);
}
END_TEST

/* ---- readers ---- */

static tws_json *answer_of(const char *verb, int stage, const char *more) {
  command_result r =
      twinspeed("%s -m gpt2-xl --dtype bf16 --micro-batch 1 --seq 512 --stage %d --cluster dgx-a100 --json %s", verb,
                stage, more);
  tws_json *json = NULL;
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_msg(tws_json_parse(r.out, strlen(r.out), verb, &json, &err) == TWS_OK, "%s", err.message);
  command_free(&r);
  return json;
}

static double at(const cJSON *object, const char *a, const char *b, const char *c) {
  const char *const path[] = {a, b, c};
  for (int i = 0; i < 3 && path[i]; i++) {
    object = cJSON_GetObjectItem(object, path[i]);
    ck_assert_msg(object != NULL, "no %s", path[i]);
  }
  return object->valuedouble;
}

/* Seconds of a step and of its collectives between replicas, and the arena's bytes. The collectives other than
 * reductions are gathers, which use the model's type in any case. */
typedef struct seconds {
  double step, busy, arena;
} seconds;

static seconds estimated(int stage, const char *more) {
  tws_json *json = answer_of("estimate", stage, more);
  const seconds s = {
      at(json->root, "time", "step_s", NULL),
      cJSON_GetObjectItem(
          cJSON_GetObjectItem(cJSON_GetObjectItem(cJSON_GetObjectItem(json->root, "time"), "communication"), "data"),
          "busy_s")
          ->valuedouble,
      at(json->root, "memory", "device", "arena_bytes")};
  tws_json_destroy(json);
  return s;
}

/* Estimates and simulations count the bytes of the chosen type. */
START_TEST(readers_follow_the_bytes) {
  for (int stage = 0; stage <= 3; stage++) {
    const seconds none = estimated(stage, ""), same = estimated(stage, "--set communication_data_type=bfp16");
    const seconds half = estimated(stage, "--set communication_data_type=fp16");
    const seconds wide = estimated(stage, "--set communication_data_type=fp32");
    ck_assert(none.step == same.step && none.busy == same.busy && none.arena == same.arena);
    ck_assert_msg(fabs(half.busy / none.busy - 1) < 1e-9, "stage %d: %g s, not %g s", stage, half.busy, none.busy);
    ck_assert_double_gt(half.step, none.step); /* casts */
    ck_assert_double_gt(wide.step, half.step);
    if (stage == 0)
      ck_assert_msg(wide.busy > 1.9 * none.busy && wide.busy < 2.1 * none.busy, "%g", wide.busy / none.busy);
    ck_assert_msg(wide.busy > 1.2 * none.busy, "stage %d: %g", stage, wide.busy / none.busy);
    ck_assert_double_ge(wide.arena, none.arena);
    tws_json *json = answer_of("simulate", stage, "--set communication_data_type=fp32");
    ck_assert_double_eq_tol(at(json->root, "step_s", NULL, NULL), wide.step, 1e-9);
    tws_json_destroy(json);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("communication");
  TCase *tests = tcase_create("communication");
  tcase_add_test(tests, words);
  tcase_add_test(tests, refusals);
  tcase_add_test(tests, plans_reduce_in_the_type);
  tcase_add_test(tests, readers_follow_the_bytes);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
