#include "real/scored_pass.h"

#include "base/memory.h"
#include "checkpoint/read.h"
#include "plan/hyper.h"
#include "real/forward_engine.h"

static tws_code find_scores(tws_scored_pass *pass, tws_error *err) {
  const tws_plan *plan = pass->t.plan;
  int found = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    if (op->kind != TWS_OP_COMPUTE || !tws_is_whole_loss((tws_kernel)plan->works[op->work].code)) continue;
    pass->loss_op = i;
    pass->scores = plan->operands[op->operand_first].buffer;
    pass->first = plan->operands[op->operand_first].offset;
    pass->count = plan->operands[op->operand_first].count;
    found++;
  }
  if (found == 1) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, "use a configuration without twinspeed.loss_tiles",
                  "the plan has %d losses, and one is expected", found);
}

static tws_code build_program(tws_scored_pass *pass, const tws_plan_request *asked, tws_error *err) {
  tws_training *t = &pass->t;
  tws_plan_request request = *asked;
  request.program = TWS_PROGRAM_EVALUATE;
  request.parameters_only = 1;
  TWS_TRY(tws_plan_build(&request, &t->plan, err));
  t->counters = &t->plan->state->counters;
  t->programs[0] = t->plan;
  return find_scores(pass, err);
}

tws_code tws_scored_pass_open(tws_scored_pass *pass, const tws_plan_request *request, const char *resume,
                              const char *tag, const char *init_from, const tws_log *log, tws_error *err) {
  *pass = (tws_scored_pass){
      .options = {.plan = *request, .resume = resume, .tag = tag, .init_from = init_from, .log = log}};
  TWS_TRY(tws_forward_begin(&pass->t, &pass->options, err));
  TWS_TRY(build_program(pass, request, err));
  return tws_forward_start(&pass->t, 1, 0, err);
}

tws_code tws_scored_pass_room(tws_scored_pass *pass, uint64_t wanted, tws_error *err) {
  pass->wanted = wanted;
  pass->raw = tws_calloc(wanted, sizeof(double));
  pass->values = tws_calloc(wanted, sizeof *pass->values);
  return pass->raw && pass->values ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

/* Reads the scores before the loss operation, which overwrites them; called before every operation. */
static tws_code read_scores(void *user, uint32_t op, tws_error *err) {
  tws_scored_pass *pass = user;
  if (op != pass->loss_op) return TWS_OK;
  return tws_executor_get(pass->t.executor, 0, pass->scores, pass->first + pass->from, pass->raw, pass->wanted, err);
}

tws_code tws_scored_pass_run(tws_scored_pass *pass, int64_t number, uint64_t from, tws_error *err) {
  tws_training *t = &pass->t;
  const float hyper[TWS_HYPER_COUNT] = {0};
  pass->from = from;
  TWS_TRY(tws_executor_put(t->executor, 0, t->plan->hyper, 0, hyper, TWS_HYPER_COUNT, err));
  TWS_TRY(tws_executor_zero(t->executor, 0, t->plan->metrics, err));
  TWS_TRY(tws_executor_step(t->executor, 0, number, NULL, read_scores, pass, err));
  tws_convert_elements((tws_dtype)t->plan->buffers[pass->scores].dtype, pass->raw, TWS_F32, pass->values, pass->wanted);
  return TWS_OK;
}

void tws_scored_pass_close(tws_scored_pass *pass) {
  tws_training_release(&pass->t);
  tws_free(pass->raw);
  tws_free(pass->values);
}
