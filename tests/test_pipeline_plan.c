/* Pipelines in time: plans of an ideal pipeline (equal stages, free messages), made from the schedules' programs, have
 * the bubble that the papers derive, on the longest path and in the simulator alike. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plan/builder.h"
#include "plan/pipeline_program.h"
#include "sim/sim.h"
#include "tests/bubble.h"
#include "tests/sim_module.h"
#include "tests/suite.h"

enum { MOST = 8 };
#define ELEMENTS (INT64_C(1) << 33) /* long passes, so that message latency is negligible */

static const tws_sim_api *sim;
static tws_profile *profile;
static tws_cluster cluster;

static void load(void) {
  tws_error err = {0};
  sim = load_simulator();
  ck_assert_msg(tws_profile_load("a100-80gb", &profile, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_cluster_load("dgx-a100", &cluster, &err) == TWS_OK, "%s", err.message);
  cluster.intra = cluster.inter = (tws_link){.bandwidth = 1e30, .latency_s = 0};
}

static void unload(void) {
  tws_profile_destroy(profile);
}

static tws_work pass(int64_t elements) {
  tws_work work;
  memset(&work, 0, sizeof work);
  work.kind = TWS_OP_COMPUTE;
  work.code = TWS_KERNEL_FILL;
  work.d[0] = elements;
  return work;
}

/* Makes the plan of a stage. The backward pass is two kernels, each as long as the forward one: gradients of inputs,
 * then of weights. */
static tws_plan *stage_plan(const tws_pipeline_shape *shape, int stage) {
  static const tws_axis axes[] = {TWS_AXIS_PIPE};
  tws_error err = {0};
  tws_pipeline_program program;
  tws_plan *plan = tws_calloc(1, sizeof *plan);
  plan->arena = tws_arena_create();
  plan->rank = stage;
  plan->world = shape->stages;
  plan->threads = 1;
  ck_assert(tws_topology_make(&plan->topology, 1, axes, &shape->stages, NULL) == TWS_OK);
  tws_builder b = {.plan = plan, .err = &err, .module = TWS_NONE};
  ck_assert(tws_pipeline_program_make(shape, stage, plan->arena, &program, &err) == TWS_OK);
  uint32_t state = tws_builder_buffer(&b, "work", TWS_CATEGORY_ACTIVATION, TWS_F32, ELEMENTS, 1);
  uint32_t *buffers = calloc((size_t)shape->micro_batches * (size_t)shape->virtual_stages * 4 + 1, sizeof *buffers);
  tws_work work = pass(ELEMENTS / shape->virtual_stages);
  for (uint32_t i = 0; i < program.count; i++) {
    const tws_pipeline_event *e = &program.events[i];
    int forward = e->action.kind == TWS_ACTION_FORWARD;
    size_t at = ((size_t)e->action.chunk * (size_t)shape->micro_batches + e->action.micro_batch) * 4;
    uint32_t *in = &buffers[at + (forward ? 0 : 2)], *out = in + 1; /* buffer + 1 */
    b.micro_batch = e->action.micro_batch;
    b.phase = forward ? TWS_PHASE_FORWARD : TWS_PHASE_BACKWARD;
    if (e->kind == TWS_EVENT_RECV) {
      *in = 1 + tws_builder_buffer(&b, "in", TWS_CATEGORY_ACTIVATION, TWS_F32, 1, 0);
      tws_builder_message(&b, TWS_OP_RECV, (uint32_t)e->peer, tws_all(&b, *in - 1, TWS_WRITE));
    } else if (e->kind == TWS_EVENT_SEND) {
      tws_builder_message(&b, TWS_OP_SEND, (uint32_t)e->peer, tws_all(&b, *out - 1, TWS_READ));
    } else {
      int weight = e->action.kind == TWS_ACTION_BACKWARD_WEIGHT;
      tws_operand operands[3] = {tws_update(state, 0, ELEMENTS)};
      int n = 1;
      if (!weight && *in) operands[n++] = tws_all(&b, *in - 1, TWS_READ);
      if (!weight) {
        *out = 1 + tws_builder_buffer(&b, "out", TWS_CATEGORY_ACTIVATION, TWS_F32, 1, 0);
        operands[n++] = tws_all(&b, *out - 1, TWS_WRITE);
      }
      tws_work both = pass(2 * (ELEMENTS / shape->virtual_stages));
      tws_builder_compute(&b, TWS_STREAM_COMPUTE, e->action.kind == TWS_ACTION_BACKWARD ? &both : &work, operands, n);
    }
  }
  ck_assert_msg(tws_builder_finish(&b) == TWS_OK, "%s", err.message);
  tws_builder_free(&b);
  free(buffers);
  return plan;
}

static double seconds_of(const tws_plan *plan, int64_t elements) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    if (plan->works[i].kind == TWS_OP_COMPUTE && plan->works[i].d[0] == elements) {
      return tws_kernel_seconds(profile, &plan->works[i], 1, 1);
    }
  }
  return 0;
}

static void check_bubble(const tws_pipeline_shape *shape) {
  const tws_plan *plans[MOST];
  tws_machine machine = {&cluster, profile};
  tws_path_result paths[MOST];
  tws_error err = {0};
  double step;
  for (int s = 0; s < shape->stages; s++) plans[s] = stage_plan(shape, s);
  ck_assert_msg(tws_plans_verify(plans, shape->stages, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_job_path(plans, shape->stages, &machine, paths, &step, &err) == TWS_OK, "%s", err.message);
  int64_t block = ELEMENTS / shape->virtual_stages;
  int split = shape->kind == TWS_PIPELINE_ZB_H1;
  double f = shape->virtual_stages * seconds_of(plans[0], block);
  double backward = split ? 2 * f : shape->virtual_stages * seconds_of(plans[0], 2 * block);
  double bubble = ideal_bubble(shape, f, backward / 2, backward / 2);
  double busy = shape->micro_batches * (f + backward);
  ck_assert_msg(step > 0 && step < 1.001 * (busy + bubble) && step > 0.999 * (busy + bubble),
                "%s, %d stages x %d, %d micro-batches: step %g s, not %g", tws_pipeline_kind_name(shape->kind),
                shape->stages, shape->virtual_stages, shape->micro_batches, step, busy + bubble);
  double share = (step - busy) / step, p = shape->stages, m = shape->micro_batches;
  double plain = (p - 1) / (m + p - 1);
  if (shape->kind == TWS_PIPELINE_1F1B || shape->kind == TWS_PIPELINE_GPIPE) {
    ck_assert_double_lt(share / plain, 1.001);
    ck_assert_double_gt(share / plain, 0.999);
  }
  if (shape->kind == TWS_PIPELINE_ZB_H1) ck_assert_double_lt(share, plain);
  if (sim) {
    tws_sim_request request = {
        .plans = plans, .plan_count = shape->stages, .machine = machine, .fidelity = TWS_FIDELITY_ANALYTIC};
    tws_sim_result result;
    ck_assert_msg(sim->simulate(&request, &result, &err) == TWS_OK, "%s", err.message);
    ck_assert_double_lt(result.step_s / step, 1.0001);
    ck_assert_double_gt(result.step_s / step, 0.9999);
  }
  for (int s = 0; s < shape->stages; s++) tws_plan_destroy((tws_plan *)plans[s]);
}

START_TEST(ideal_bubbles) {
  for (int kind = 0; kind < TWS_PIPELINE_KIND_COUNT; kind++) {
    for (int stages = 2; stages <= MOST; stages += 2) {
      for (int times = 1; times <= 4; times++) {
        for (int v = 1; v <= (kind == TWS_PIPELINE_INTERLEAVED ? 4 : 1); v++) {
          tws_pipeline_shape shape = {
              .kind = (tws_pipeline_kind)kind, .stages = stages, .virtual_stages = v, .micro_batches = stages * times};
          check_bubble(&shape);
        }
      }
    }
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pipeline plan");
  TCase *c = tcase_create("time");
  tcase_add_unchecked_fixture(c, load, unload);
  tcase_set_timeout(c, 120);
  tcase_add_test(c, ideal_bubbles);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
