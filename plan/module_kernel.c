/* Emits one kernel of a module's row in the table of module types, with operands in the order of the row. */
#include "models/network/module.h"
#include "models/operator.h"
#include "plan/attention_parts.h"
#include "plan/turns.h"

int tws_lower_sums(tws_lower *l, tws_work *work, tws_operand *operands, int count) {
  int accumulate;
  /* returns if the bias gradient is deferred with the weight gradients, or if the kernels are 8-bit, which do not
   * compute it */
  if (!l->at.sums_for || l->pipeline.split || l->float8.on || l->b.failed != TWS_OK) return count;
  const uint32_t bias = l->at.sums_for->param[1];
  const int adds = (work->flags & TWS_ACCUMULATE_PARAM) != 0, params = work->code == TWS_KERNEL_NORM_GRAD;
  /* a matrix product writes the bias gradient in the type of its result */
  if (!params && l->zero.grad_dtype != l->config->dtype) return count;
  if (params && !(work->flags & TWS_PLAIN) && tws_zero_adds(l, bias) != adds) return count;
  operands[count++] = tws_zero_gradient(l, bias, &accumulate);
  work->flags |= TWS_SUMS | (accumulate ? TWS_ACCUMULATE_PARAM : 0);
  work->dtype2 = (uint8_t)l->zero.grad_dtype;
  l->summed = bias;
  return count;
}

typedef struct emission {
  tws_work work;
  tws_operand operand[TWS_BINDINGS];
  int count;
  int casts;      /* 1: the kernel writes 8-bit codes in place of its result */
  int unwanted;   /* 1: no operation reads the gradient that the kernel writes */
  uint32_t fresh; /* flags of gradients that the kernel writes instead of adding to them */
  /* index of the value whose new gradient, in a separate buffer, is added to its existing one; or TWS_NONE */
  uint32_t add_to;
  tws_operand beside; /* the operand of the separate buffer of add_to */
} emission;

/* Binds the operand for the gradient of an input. A kernel that cannot accumulate into an existing gradient writes to a
 * separate buffer, which is then added. */
static void bind_input_gradient(tws_lower *l, emission *e, uint32_t value, uint32_t adds_flag) {
  int accumulate;
  /* the kernel is needed only for another gradient, so this one is written to scratch memory */
  if (!l->needed[value]) {
    e->operand[e->count++] =
        tws_lower_scratch(l, "unwanted gradient", tws_value_dtype(l, value), tws_value_read(l, value).count);
    return;
  }
  tws_operand into = tws_value_gradient_out(l, value, &accumulate);
  if (accumulate && !adds_flag) {
    into = e->beside = tws_lower_scratch(l, "gradient to add", tws_value_dtype(l, value), into.count);
    e->add_to = value;
  } else if (accumulate) {
    e->work.flags |= adds_flag;
  }
  e->operand[e->count++] = into;
}

/* Binds the gradient of an input to the buffer of the output's gradient, which no later operation reads; or to a new
 * buffer, if the buffer is also that of another value's gradient. */
static void bind_taken_gradient(tws_lower *l, emission *e, const tws_module *m, uint32_t value, uint32_t access) {
  tws_operand dy = tws_value_gradient(l, m->out[0]);
  if (tws_gradient_is_shared(l, m->out[0], (uint32_t)(m - l->network->modules))) {
    const tws_operand own = tws_lower_scratch(l, "gradient", l->config->dtype, dy.count);
    if (access == TWS_READ_WRITE) tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, dy, own);
    dy = own;
  }
  dy.access = access;
  if (l->values.gradient[value] == TWS_NONE || l->tiled[value]) {
    tws_value_place_gradient(l, value, dy.buffer);
  } else {
    e->beside = dy;
    e->add_to = value;
  }
  e->operand[e->count++] = dy;
}

static void bind_parameter_gradient(tws_lower *l, emission *e, const tws_module *m, uint32_t param,
                                    uint32_t adds_flag) {
  int accumulate = 0;
  e->operand[e->count++] =
      tws_trains(l, m, param) ? tws_zero_gradient(l, param, &accumulate) : tws_discarded_gradient(l, param);
  e->work.dtype2 = (uint8_t)l->zero.grad_dtype;
  if (accumulate) e->work.flags |= adds_flag;
  if (!accumulate) e->fresh |= adds_flag;
}

static void bind(tws_lower *l, emission *e, const tws_module *m, tws_binding b, uint32_t adds_flag) {
  const uint32_t in = b.index < TWS_MODULE_INS ? m->in[b.index] : TWS_NONE;
  switch ((tws_binding_source)b.source) {
    case TWS_BIND_IN:
      if (in != TWS_NONE) e->operand[e->count++] = tws_value_read(l, in);
      break;
    case TWS_BIND_OUT: /* forward kernels write the output, gradient kernels read it */
      if (m->out[b.index] == TWS_NONE || e->casts) break;
      e->operand[e->count++] =
          l->b.phase == TWS_PHASE_BACKWARD ? tws_value_read(l, m->out[b.index]) : tws_value_write(l, m->out[b.index]);
      break;
    case TWS_BIND_PARAM:
      if (m->param[b.index] != TWS_NONE) e->operand[e->count++] = tws_zero_param(l, m->param[b.index]);
      break;
    case TWS_BIND_INPUT:
      if (m->input[b.index] != TWS_NONE) e->operand[e->count++] = tws_input_read(l, m->input[b.index]);
      break;
    case TWS_BIND_IN_OR_INPUT:
      e->operand[e->count++] = in != TWS_NONE ? tws_value_read(l, in) : tws_input_read(l, m->input[b.index]);
      break;
    case TWS_BIND_RUNNING:
      if (m->running != TWS_NONE) e->operand[e->count++] = tws_running_operand(l, m, TWS_READ);
      break;
    case TWS_BIND_RUNNING_UPDATE:
      if (e->work.flags & TWS_RUNNING) e->operand[e->count++] = tws_running_operand(l, m, TWS_READ_WRITE);
      break;
    case TWS_BIND_HYPER:
      if (e->work.flags & TWS_DROPOUT || e->work.code == TWS_KERNEL_DROPOUT)
        e->operand[e->count++] = tws_hyper_of(l->b.plan->hyper, 0);
      break;
    case TWS_BIND_TAKE:
    case TWS_BIND_UPDATE:
      e->operand[e->count++] =
          tws_value_reuse(l, in, m->out[0], b.source == TWS_BIND_TAKE ? TWS_WRITE : TWS_READ_WRITE);
      break;
    case TWS_BIND_D_OUT:
      e->operand[e->count++] = tws_value_gradient(l, m->out[b.index]);
      break;
    case TWS_BIND_D_IN:
      if (e->casts)
        break;
      else if (in != TWS_NONE)
        bind_input_gradient(l, e, in, adds_flag);
      else
        e->unwanted = 1;
      break;
    case TWS_BIND_D_IN_PLACE:
    case TWS_BIND_D_IN_UPDATE:
      if (e->casts) break;
      bind_taken_gradient(l, e, m, in, b.source == TWS_BIND_D_IN_PLACE ? TWS_WRITE : TWS_READ_WRITE);
      break;
    case TWS_BIND_D_PARAM:
      if (m->param[b.index] != TWS_NONE) bind_parameter_gradient(l, e, m, m->param[b.index], adds_flag);
      break;
    case TWS_BIND_NONE:
      break;
    case TWS_BIND_WORKSPACE:
      e->operand[e->count++] = tws_lower_workspace(l, &e->work);
      break;
    default:
      tws_builder_fail(&l->b, TWS_INTERNAL, "a module's row has an operand that only its own code can give");
  }
}

/* Writes the constants of this operation and returns 1 if its kernel has some. */
static int arguments_of(tws_lower *l, const tws_module *m, const tws_work *work, tws_arguments *arguments) {
  if (work->code == TWS_KERNEL_BATCH_NORM) {
    *arguments = (tws_arguments){{tws_running_share(l, m)}};
    return 1;
  }
  if (m->type == TWS_MODULE_ROPE && l->sharding.ring) {
    *arguments = (tws_arguments){{(double)tws_first_token(l), (double)tws_token_gap(l)}};
    return 1;
  }
  if (m->type == TWS_MODULE_ROPE && l->at.chunk_role) {
    *arguments = (tws_arguments){{(double)tws_chunk_first_token(l)}};
    return 1;
  }
  const int has_some = ((m->dropout > 0 || m->jitter > 0) && work->flags & TWS_DROPOUT) ||
                       (m->type == TWS_MODULE_ATTENTION && work->flags & TWS_ALIBI);
  return has_some ? tws_dropout_arguments(l, m, (tws_kernel)work->code, arguments) : 0;
}

/* Returns 1 if no operation needs a gradient that this backward kernel computes. */
static int is_idle(const tws_lower *l, const tws_module *m, const tws_module_kernel *kernel) {
  int finds = 0;
  for (const tws_binding *b = kernel->binding; b->source != TWS_BIND_END; b++) {
    const int input = b->source >= TWS_BIND_D_IN && b->source <= TWS_BIND_D_IN_UPDATE;
    const uint32_t of = input ? m->in[b->index] : b->source == TWS_BIND_D_PARAM ? m->param[b->index] : TWS_NONE;
    if (of == TWS_NONE) continue;
    if (input ? l->needed[of] : tws_trains(l, m, of)) return 0;
    finds = 1;
  }
  return finds;
}

/* Returns 1 if the kernel of an activation is to cast its output, or the gradient of its input, to 8 bits. */
static int casts_result(tws_lower *l, const tws_module *m, tws_work *work, tws_float8_cast *cast) {
  switch ((tws_kernel)work->code) {
    case TWS_KERNEL_SWIGLU:
    case TWS_KERNEL_GEGLU:
      return tws_float8_casts_output(l, m->out[0], 0, cast);
    case TWS_KERNEL_SWIGLU_GRAD:
    case TWS_KERNEL_GEGLU_GRAD:
      return tws_float8_casts_gradient(l, m->in[0], cast);
    case TWS_KERNEL_GELU:
    case TWS_KERNEL_GELU_EXACT:
    case TWS_KERNEL_RELU:
    case TWS_KERNEL_SQUARED_RELU:
      if (!tws_float8_casts_output(l, m->out[0], 0, cast)) return 0;
      break;
    case TWS_KERNEL_GELU_EXACT_GRAD:
    case TWS_KERNEL_RELU_GRAD:
    case TWS_KERNEL_SQUARED_RELU_GRAD:
      if (!tws_float8_casts_gradient(l, m->in[0], cast)) return 0;
      break;
    default:
      return 0;
  }
  /* These works have a number of elements as their only size: the width of a row is a parameter. */
  tws_work_set_parameter(work, "width", (double)(work->d[0] / tws_module_rows(l, m)));
  return 1;
}

void tws_lower_kernel(tws_lower *l, const tws_module *m, const tws_module_kernel *kernel) {
  tws_arguments arguments;
  tws_float8_cast cast;
  emission e; /* without initial value, since the arrays are large; the operands are appended one by one */
  if (is_idle(l, m, kernel)) return;
  e.work = tws_module_work(l, m, (tws_kernel)kernel->kernel, 0);
  const int without_bias = kernel->kernel == TWS_KERNEL_EXPERT_LINEAR && tws_local_of(l, m)->skips_vector;
  if (without_bias) e.work.flags &= ~(uint32_t)TWS_BIAS;
  e.count = e.unwanted = 0;
  e.casts = casts_result(l, m, &e.work, &cast);
  e.fresh = 0;
  e.add_to = TWS_NONE;
  const tws_operator *row = tws_operator_of((tws_kernel)kernel->kernel);
  for (int i = 0; kernel->binding[i].source != TWS_BIND_END && !e.unwanted && l->b.failed == TWS_OK; i++)
    if (!without_bias || kernel->binding[i].source != TWS_BIND_PARAM || kernel->binding[i].index == 0)
      bind(l, &e, m, kernel->binding[i], row->operand[i].adds_flag);
  if (e.fresh & e.work.flags) tws_builder_fail(&l->b, TWS_INTERNAL, "gradients of one kernel differ in age");
  if (l->b.failed != TWS_OK || e.unwanted) return;
  if (e.casts)
    e.count = tws_float8_append(&cast, &e.work, e.operand, e.count);
  else if (kernel->kernel == TWS_KERNEL_SWIGLU && tws_float8_largest(l, m->out[0], &e.operand[e.count]))
    e.work.flags |= TWS_LARGEST, e.count++;
  if (kernel->kernel == TWS_KERNEL_NORM_GRAD) e.count = tws_lower_sums(l, &e.work, e.operand, e.count);
  const int has_arguments = arguments_of(l, m, &e.work, &arguments);
  tws_lower_compute_with(l, &e.work, has_arguments ? &arguments : NULL, e.operand, e.count);
  if (e.add_to != TWS_NONE) tws_lower_add_gradient(l, e.add_to, e.beside);
}
