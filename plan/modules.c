/* One visit of a module -> kernels. The same code serves every model: it knows module types, not architectures. */
#include <string.h>

#include "models/network/module.h"
#include "models/operator.h"
#include "models/zigzag.h"
#include "plan/lower.h"

const tws_local_module *tws_local_of(const tws_lower *l, const tws_module *m) {
  return &l->local.modules[m - l->network->modules];
}

int tws_lower_sliced(const tws_lower *l, const tws_module *m) {
  const int of_samples = l->network->values[m->out[0]].row[0].kind != TWS_DIM_FIXED;
  return l->slices > 1 && l->tiles == 1 && of_samples && tws_local_of(l, m)->split != TWS_SPLIT_NONE &&
         tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules)) == 1;
}

int64_t tws_module_rows(const tws_lower *l, const tws_module *m) {
  uint64_t rows = (uint64_t)l->tokens;
  if (m->in[0] != TWS_NONE)
    rows = tws_value_rows(l, m->in[0]);
  else if (m->input[0] != TWS_NONE)
    rows = tws_input_rows(l, m->input[0]);
  return l->tiles == 1 ? (int64_t)rows : (int64_t)rows / l->tiles;
}

static int drops(const tws_lower *l, const tws_module *m) {
  return (m->dropout > 0 || m->jitter > 0) && l->config->dropout && !l->evaluates;
}

#define SIZES(...) const int64_t sizes[] = {__VA_ARGS__};
#define SCALARS(...) const double scalars[] = {0, ##__VA_ARGS__};
#define FLAGS(flags_) work.flags |= (uint32_t)(flags_);
#define LENGTHS (m->input[0] != TWS_NONE ? TWS_LENGTHS : 0)
#define DOCUMENTS (m->input[1] != TWS_NONE ? TWS_DOCUMENTS : 0)
#define BIASED (m->param[1] != TWS_NONE ? TWS_BIAS : 0)
#define DROPPED (drops(l, m) ? TWS_DROPOUT : 0)
#define FOLLOWED (l->b.phase == TWS_PHASE_FORWARD && !l->evaluates ? TWS_RUNNING : 0)
#define MODULE(id, name_, summary_, sizes_, scalars_, flags_, traits_, forward_, backward_) \
  case TWS_MODULE_##id: {                                                                   \
    sizes_ scalars_ flags_ memcpy(work.d, sizes, sizeof sizes);                             \
    memcpy(work.f, scalars + 1, sizeof scalars - sizeof *scalars);                          \
    break;                                                                                  \
  }
/* Attention sees whole sequences. */
#define sequence (l->whole_sequence[m->in[0]])
#define other (l->whole_sequence[m->in[1]])
#define picked (int64_t) tws_input_rows(l, m->input[0])
#define tokens tws_expert_tokens(l, m)
#define slots tws_expert_slots(l, m)
#define sources tws_expert_sources(l, m)
#define sharers l->sharding.position.ranks[TWS_AXIS_EXPERT]
#define expected tws_expert_expected(l, m)
#define shared tws_expert_shared(l, m)
tws_work tws_module_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags) {
  tws_work work = tws_kernel_work(kernel, l->config->dtype, flags);
  const int64_t rows = tws_module_rows(l, m);
  switch (m->type) {
#include "models/network/modules.def"
    case TWS_MODULE_TYPE_COUNT:
      break;
  }
  if (m->type == TWS_MODULE_ROPE && l->sharding.ring) work.d[4] /= l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  return work;
}

#undef sequence
#undef other
#undef picked
#undef tokens
#undef slots
#undef sources
#undef sharers
#undef expected
#undef shared

/* ---- a kernel by its row ---- */

typedef struct emission {
  tws_work work;
  tws_operand operand[TWS_BINDINGS];
  int count;
  int unwanted;       /* what it finds is nobody's */
  uint32_t fresh;     /* flags of gradients that are not added to */
  uint32_t add_to;    /* value: its gradient, made beside the one that is there, is added to it; or TWS_NONE */
  tws_operand beside; /* that one */
} emission;

/* The gradient of an input. A kernel that cannot add to what another reader left writes beside it. */
static void bind_input_gradient(tws_lower *l, emission *e, uint32_t value, uint32_t adds_flag) {
  int accumulate;
  if (!l->needed[value]) { /* the kernel is there for another */
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

/* The gradient of an input in the memory of the output's, which is not needed again, unless it is another
 * value's too. */
static void bind_taken_gradient(tws_lower *l, emission *e, const tws_module *m, uint32_t value, uint32_t access) {
  tws_operand dy = tws_value_gradient(l, m->out[0]);
  if (tws_gradient_is_shared(l, m->out[0], (uint32_t)(m - l->network->modules))) {
    const tws_operand own = tws_lower_scratch(l, "gradient", l->config->dtype, dy.count);
    if (access == TWS_READ_WRITE) tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, dy, own);
    dy = own;
  }
  dy.access = access;
  if (l->value_gradient[value] == TWS_NONE || l->tiled[value]) {
    l->value_gradient[value] = dy.buffer;
  } else {
    e->beside = dy;
    e->add_to = value;
  }
  e->operand[e->count++] = dy;
}

static void bind_parameter_gradient(tws_lower *l, emission *e, uint32_t param, uint32_t adds_flag) {
  int accumulate = 0;
  e->operand[e->count++] =
      tws_is_frozen(l, param) ? tws_unwanted_gradient(l, param) : tws_zero_gradient(l, param, &accumulate);
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
    case TWS_BIND_OUT: /* read by the gradient */
      if (m->out[b.index] == TWS_NONE) break;
      e->operand[e->count++] =
          l->b.phase == TWS_PHASE_BACKWARD ? tws_value_read(l, m->out[b.index]) : tws_value_make(l, m->out[b.index]);
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
        e->operand[e->count++] = tws_all(&l->b, l->b.plan->hyper, TWS_READ);
      break;
    case TWS_BIND_TAKE:
    case TWS_BIND_UPDATE:
      e->operand[e->count++] = tws_value_take(l, in, m->out[0], b.source == TWS_BIND_TAKE ? TWS_WRITE : TWS_READ_WRITE);
      break;
    case TWS_BIND_D_OUT:
      e->operand[e->count++] = tws_value_gradient(l, m->out[b.index]);
      break;
    case TWS_BIND_D_IN:
      if (in != TWS_NONE)
        bind_input_gradient(l, e, in, adds_flag);
      else
        e->unwanted = 1;
      break;
    case TWS_BIND_D_IN_PLACE:
    case TWS_BIND_D_IN_UPDATE:
      bind_taken_gradient(l, e, m, in, b.source == TWS_BIND_D_IN_PLACE ? TWS_WRITE : TWS_READ_WRITE);
      break;
    case TWS_BIND_D_PARAM:
      if (m->param[b.index] != TWS_NONE) bind_parameter_gradient(l, e, m->param[b.index], adds_flag);
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

/* Where this rank's tokens of a sequence begin, and how many of others lie between its halves. */
static int64_t first_token(const tws_lower *l) {
  const int ranks = l->sharding.position.ranks[TWS_AXIS_SEQUENCE],
            index = l->sharding.position.index[TWS_AXIS_SEQUENCE];
  const int64_t whole = l->config->sequence_length;
  return l->sharding.ring ? tws_zigzag_first(whole, ranks, index) : whole / ranks * index;
}

int64_t tws_token_gap(const tws_lower *l) {
  if (!l->sharding.ring) return 0;
  return tws_zigzag_gap(l->config->sequence_length, l->sharding.position.ranks[TWS_AXIS_SEQUENCE],
                        l->sharding.position.index[TWS_AXIS_SEQUENCE]);
}

/* Constants of this operation, where its kernel has some; whether it does. */
static int arguments_of(tws_lower *l, const tws_module *m, const tws_work *work, tws_arguments *arguments) {
  if (work->code == TWS_KERNEL_BATCH_NORM) {
    *arguments = (tws_arguments){{tws_running_share(l)}};
    return 1;
  }
  if (m->type == TWS_MODULE_ROPE && l->sharding.ring) {
    *arguments = (tws_arguments){{(double)first_token(l), (double)tws_token_gap(l)}};
    return 1;
  }
  const int has_some = ((m->dropout > 0 || m->jitter > 0) && work->flags & TWS_DROPOUT) ||
                       (m->type == TWS_MODULE_ATTENTION && work->flags & TWS_ALIBI);
  return has_some ? tws_dropout_arguments(l, m, (tws_kernel)work->code, arguments) : 0;
}

/* Of a kernel that finds gradients: whether all of them are nobody's. */
static int is_idle(const tws_lower *l, const tws_module *m, const tws_module_kernel *kernel) {
  int finds = 0;
  for (const tws_binding *b = kernel->binding; b->source != TWS_BIND_END; b++) {
    const int input = b->source >= TWS_BIND_D_IN && b->source <= TWS_BIND_D_IN_UPDATE;
    const uint32_t of = input ? m->in[b->index] : b->source == TWS_BIND_D_PARAM ? m->param[b->index] : TWS_NONE;
    if (of == TWS_NONE) continue;
    if (input ? l->needed[of] : !tws_is_frozen(l, of)) return 0;
    finds = 1;
  }
  return finds;
}

void tws_lower_kernel(tws_lower *l, const tws_module *m, const tws_module_kernel *kernel) {
  tws_arguments arguments;
  emission e; /* its operands are made one by one */
  if (is_idle(l, m, kernel)) return;
  e.work = tws_module_work(l, m, (tws_kernel)kernel->kernel, 0);
  const int without_bias = kernel->kernel == TWS_KERNEL_EXPERT_LINEAR && tws_local_of(l, m)->skips_vector;
  if (without_bias) e.work.flags &= ~(uint32_t)TWS_BIAS;
  e.count = e.unwanted = 0;
  e.fresh = 0;
  e.add_to = TWS_NONE;
  const tws_operator *row = tws_operator_of((tws_kernel)kernel->kernel);
  for (int i = 0; kernel->binding[i].source != TWS_BIND_END && !e.unwanted && l->b.failed == TWS_OK; i++)
    if (!without_bias || kernel->binding[i].source != TWS_BIND_PARAM || kernel->binding[i].index == 0)
      bind(l, &e, m, kernel->binding[i], row->operand[i].adds_flag);
  if (e.fresh & e.work.flags) tws_builder_fail(&l->b, TWS_INTERNAL, "gradients of one kernel differ in age");
  if (l->b.failed != TWS_OK || e.unwanted) return;
  if (kernel->kernel == TWS_KERNEL_NORM_GRAD) e.count = tws_lower_sums(l, &e.work, e.operand, e.count);
  const int has_arguments = arguments_of(l, m, &e.work, &arguments);
  tws_lower_compute_with(l, &e.work, has_arguments ? &arguments : NULL, e.operand, e.count);
  if (e.add_to != TWS_NONE) tws_lower_add_gradient(l, e.add_to, e.beside);
}

void tws_position_rows(const tws_lower *l, const tws_module *m, int64_t *first, int64_t *rows) {
  *first = m->first_position;
  *rows = l->network->params[m->param[1]].rows - m->first_position;
  if (l->sharding.position.ranks[TWS_AXIS_SEQUENCE] == 1) return;
  *rows = l->config->sequence_length / l->sharding.position.ranks[TWS_AXIS_SEQUENCE] + tws_token_gap(l);
  *first += first_token(l);
}

/* Rows of a table that an input chooses, the first of them that of id `first_id`, are added to what is there. */
static void add_rows(tws_lower *l, const tws_module *m, uint32_t input, uint32_t param, int64_t first_id) {
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING, l->config->dtype, TWS_ACCUMULATE);
  tws_operand x = tws_value_read(l, m->out[0]);
  x.access = TWS_READ_WRITE;
  const tws_operand operands[3] = {tws_input_read(l, input), tws_zero_param(l, param), x};
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = m->out_features;
  work.d[2] = l->network->params[param].rows;
  tws_lower_compute_with(l, &work, &(tws_arguments){{(double)first_id}}, operands, 3);
}

static void forward_embedding(tws_lower *l, const tws_module *m) {
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING, l->config->dtype, 0);
  const tws_local_module *local = tws_local_of(l, m);
  tws_operand operands[4] = {tws_input_read(l, m->input[0]), tws_zero_param(l, m->param[0])};
  int n = 2;
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = m->out_features;
  work.d[2] = l->network->params[m->param[0]].rows;
  work.d[4] = l->whole_sequence[m->out[0]] / l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  const int64_t skipped = m->param[1] == TWS_NONE ? m->first_position : 0; /* of a table of positions alone */
  const tws_arguments arguments = {{(double)(local->first_row - skipped), (double)tws_token_gap(l)}};
  const int of_documents = m->input[2] != TWS_NONE; /* whose positions are an input */
  if (m->param[1] != TWS_NONE && !local->skips_vector && !of_documents) {
    int64_t first, width = m->out_features;
    tws_operand positions = tws_zero_param(l, m->param[1]);
    tws_position_rows(l, m, &first, &work.d[3]);
    operands[n++] =
        tws_read(positions.buffer, positions.offset + (uint64_t)(first * width), (uint64_t)(work.d[3] * width));
  }
  operands[n++] = tws_value_make(l, m->out[0]);
  tws_lower_compute_with(l, &work, &arguments, operands, n);
  if (local->skips_vector) return;
  if (of_documents) add_rows(l, m, m->input[2], m->param[1], -m->first_position);
  if (m->param[2] != TWS_NONE) add_rows(l, m, m->input[1], m->param[2], 0);
}

double tws_loss_weight(const tws_lower *l, const tws_module *m) {
  return 1.0 / ((double)tws_input_elements(l, m->input[0]) * (double)l->config->accumulation_steps * l->zero.ranks);
}

/* Where the loss and the share of ignored targets of one of the network's losses are. Of several losses that share is
 * known before the first: it is part of the gradients' weights. */
static tws_operand loss_slots(tws_lower *l, const tws_module *m, tws_work *work) {
  if (tws_network_losses(l->b.plan->network) < 2) return tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, 2);
  work->flags |= TWS_COUNTED;
  return tws_update(l->b.plan->metrics, tws_loss_slot(l->network, m), 2);
}

int tws_lower_scaled(tws_lower *l, tws_work *work, tws_operand *operands, int count) {
  if (l->config->dtype != TWS_F16 || l->evaluates) return count;
  work->flags |= TWS_SCALED;
  operands[count] = tws_all(&l->b, l->b.plan->hyper, TWS_READ);
  return count + 1;
}

/* Each rank has some columns of the logits: what the softmax needs of them is gathered first. */
static void forward_split_loss(tws_lower *l, const tws_module *m) {
  const tws_local_module *local = tws_local_of(l, m);
  tws_work work = tws_kernel_work(TWS_KERNEL_VOCABULARY_STATS, l->config->dtype, 0);
  int64_t tokens = tws_module_rows(l, m);
  work.d[0] = tokens;
  work.d[1] = local->rows;
  work.d[2] = m->out_features;
  const tws_arguments columns = {{(double)local->first_row}};
  tws_operand targets = tws_input_read(l, m->input[0]);
  tws_operand stats = tws_lower_scratch(l, "loss statistics", TWS_F32, 3 * (uint64_t)tokens);
  tws_operand first[3] = {tws_value_read(l, m->in[0]), targets, stats};
  tws_lower_compute_with(l, &work, &columns, first, 3);
  tws_operand all = tws_exchange_gather(l, stats, "loss statistics of all ranks");
  work.code = TWS_KERNEL_VOCABULARY_LOSS;
  work.d[3] = l->sharding.position.ranks[TWS_AXIS_MODEL];
  const double weight = tws_loss_weight(l, m);
  const tws_arguments arguments = {
      {weight, weight / l->sharding.position.ranks[TWS_AXIS_MODEL], (double)local->first_row}};
  tws_operand second[5] = {tws_value_take(l, m->in[0], m->out[0], TWS_READ_WRITE), targets, all,
                           loss_slots(l, m, &work)};
  const int count = tws_lower_scaled(l, &work, second, 4);
  tws_lower_compute_with(l, &work, &arguments, second, count);
}

static void forward_loss(tws_lower *l, const tws_module *m) {
  if (tws_local_of(l, m)->split != TWS_SPLIT_NONE) {
    forward_split_loss(l, m);
    return;
  }
  tws_work work = tws_kernel_work(TWS_KERNEL_CROSS_ENTROPY, l->config->dtype, 0);
  const int64_t rows = tws_module_rows(l, m), tokens_of_one = l->whole_sequence[m->in[0]];
  work.d[0] = m->in_features > 0 ? rows : rows / tokens_of_one; /* 0: a token is a class */
  work.d[1] = m->in_features > 0 ? m->in_features : tokens_of_one;
  work.d[2] = m->in_features > 0 ? m->out_features : tokens_of_one;
  const double weight = tws_loss_weight(l, m); /* of a loss that all tensor ranks have, each adds its share */
  tws_operand operands[4];
  operands[0] = tws_value_take(l, m->in[0], m->out[0], TWS_READ_WRITE);
  operands[1] = tws_input_read(l, m->input[0]);
  operands[2] = loss_slots(l, m, &work);
  const int count = tws_lower_scaled(l, &work, operands, 3);
  tws_lower_compute_with(l, &work, &(tws_arguments){{weight, weight / l->sharding.position.ranks[TWS_AXIS_MODEL]}},
                         operands, count);
}

int tws_lower_narrow(const tws_lower *l, const tws_module *m) {
  const tws_config *c = l->config;
  const int narrow =
      (c->matmul_dtype == TWS_MATMUL_FP8 || c->matmul_dtype == TWS_MATMUL_MXFP8) && !c->matmul_keeps_wide;
  return narrow && !l->float8 && c->dtype != TWS_F32 && !l->evaluates && l->tiles <= 1 &&
         l->kept[m->in[0]] == TWS_KEPT && !l->tiled[m->in[0]] && !tws_is_frozen(l, m->param[0]) &&
         tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules)) == 1;
}

/* The first product that reads a value writes the copy, which others share. */
static int keep_narrow(tws_lower *l, const tws_module *m, tws_operand *operand) {
  const uint32_t value = m->in[0];
  if (!tws_lower_narrow(l, m) || l->value_narrow[value] != TWS_NONE) return 0;
  l->value_narrow[value] = tws_builder_buffer(&l->b, l->network->values[value].name, TWS_CATEGORY_ACTIVATION, TWS_U8,
                                              tws_value_elements(l, value), 0);
  *operand = tws_all(&l->b, l->value_narrow[value], TWS_WRITE);
  return 1;
}

/* A product cut into slices of tokens, so that what follows one slice overlaps with the next; or that of a tile of the
 * weight. */
static void forward_linear(tws_lower *l, const tws_module *m) {
  tws_work work = tws_module_work(l, m, TWS_KERNEL_LINEAR, 0);
  const tws_outputs outputs = tws_visit_outputs(l, m);
  tws_operand operands[8];
  tws_operand scales[2];
  int first_out, n = 2;
  work.d[1] = outputs.count;
  if (tws_is_float8(l, m)) {
    const tws_float8 x = tws_float8_input(l, m), weight = tws_float8_weight(l, m);
    work.flags |= TWS_FP8;
    operands[0] = x.rows, operands[1] = weight.rows;
    scales[0] = x.scale, scales[1] = weight.scale;
  } else {
    operands[0] = tws_value_read(l, m->in[0]);
    operands[1] = tws_zero_param(l, tws_visit_param(l, m->param[0], l->weight_tile));
  }
  if (tws_local_of(l, m)->skips_vector) work.flags &= ~(uint32_t)TWS_BIAS;
  if (work.flags & TWS_BIAS) operands[n++] = tws_outputs_of(tws_zero_param(l, m->param[1]), outputs);
  first_out = n;
  if (l->fused_with) {
    work.flags |= TWS_GELU;
    operands[n++] = tws_value_make(l, l->fused_with->out[0]);
  }
  const int outputs_at = n++;
  operands[outputs_at] = tws_outputs_make(l, m);
  const int narrow = keep_narrow(l, m, &operands[n]), last = n - 1 + narrow;
  if (narrow) work.flags |= TWS_NARROW, n++;
  for (int i = 0; i < 2 && work.flags & TWS_FP8; i++) operands[n++] = scales[i];
  if (!tws_lower_sliced(l, m)) {
    tws_lower_compute(l, &work, operands, n);
    tws_outputs_put(l, m, operands[outputs_at]);
    return;
  }
  tws_operand whole[8];
  memcpy(whole, operands, sizeof whole);
  for (int k = first_out; k <= last; k++) tws_lower_slice(l, whole[k].buffer);
  work.d[0] /= l->slices;
  for (int i = 0; i < l->slices; i++) {
    operands[0] = tws_operand_slice(l, whole[0], i);
    for (int k = first_out; k <= last; k++) operands[k] = tws_operand_slice(l, whole[k], i);
    tws_lower_compute(l, &work, operands, n);
  }
}

static void forward_norm(tws_lower *l, const tws_module *m) {
  tws_work work = tws_module_work(l, m, TWS_KERNEL_NORM, 0);
  tws_operand operands[7] = {tws_value_read(l, l->fused_with ? l->fused_with->in[0] : m->in[0])};
  int n = 1;
  if (m->param[0] != TWS_NONE) operands[n++] = tws_zero_param(l, m->param[0]);
  if (m->param[1] != TWS_NONE) operands[n++] = tws_zero_param(l, m->param[1]);
  operands[n++] = tws_value_make(l, m->out[0]);
  operands[n++] = tws_value_make(l, m->out[1]);
  if (l->fused_with) {
    work.flags |= TWS_RESIDUAL;
    operands[n++] = tws_value_read(l, l->fused_with->in[1]);
    operands[n++] = tws_value_take(l, l->fused_with->in[1], l->fused_with->out[0], TWS_WRITE);
  }
  tws_lower_compute(l, &work, operands, n);
}

static void forward_table(tws_lower *l, const tws_module *m) {
  tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, tws_zero_param(l, m->param[0]), tws_value_make(l, m->out[0]));
}

/* An evaluation drops nothing: it reads x itself. */
static void forward_dropped(tws_lower *l, const tws_module *m) {
  tws_arguments arguments;
  if (l->evaluates || !l->config->dropout) {
    l->value_buffer[m->out[0]] = l->value_buffer[m->in[0]];
    return;
  }
  const tws_operand x = tws_value_read(l, m->in[0]);
  tws_operand operands[2] = {tws_value_make(l, m->out[0]), tws_all(&l->b, l->b.plan->hyper, TWS_READ)};
  const tws_work work = tws_module_work(l, m, TWS_KERNEL_DROPOUT, 0);
  tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, x, operands[0]);
  operands[0].access = TWS_READ_WRITE;
  tws_dropout_arguments(l, m, TWS_KERNEL_DROPOUT, &arguments);
  tws_lower_compute_with(l, &work, &arguments, operands, 2);
}

/* Types that do more than their row says: parts of a split vocabulary, slices, neighbours in one kernel. */
static void (*const own_forward[TWS_MODULE_TYPE_COUNT])(tws_lower *l, const tws_module *m) = {
    [TWS_MODULE_EMBEDDING] = forward_embedding, [TWS_MODULE_LOSS] = forward_loss,
    [TWS_MODULE_LINEAR] = forward_linear,       [TWS_MODULE_EXCHANGE] = tws_exchange_forward,
    [TWS_MODULE_ROUTER] = tws_router_forward,   [TWS_MODULE_NORM] = forward_norm,
    [TWS_MODULE_DROPPED] = forward_dropped,     [TWS_MODULE_TABLE] = forward_table};

/* A kernel that this program leaves out: what it would work on in place is its output as it is. */
static void pass_on(tws_lower *l, const tws_module *m, const tws_module_kernel *kernel) {
  for (const tws_binding *b = kernel->binding; b->source != TWS_BIND_END; b++)
    if (b->source == TWS_BIND_UPDATE && l->b.failed == TWS_OK) tws_value_take(l, m->in[b->index], m->out[0], TWS_READ);
}

static void forward(tws_lower *l, const tws_module *m) {
  const int drops_none = m->type == TWS_MODULE_DROPOUT && !l->config->dropout;
  const int program = l->evaluates || drops_none ? TWS_IN_EVALUATION : TWS_IN_TRAINING;
  if (m->type == TWS_MODULE_ATTENTION && l->sharding.ring)
    tws_ring_forward(l, m);
  else if (own_forward[m->type])
    own_forward[m->type](l, m);
  else
    for (const tws_module_kernel *k = tws_module_row_of(m->type)->forward; k->binding[0].source; k++)
      if (k->programs & program)
        tws_lower_kernel(l, m, k);
      else
        pass_on(l, m, k);
}

void tws_lower_visit(tws_lower *l, const tws_visit *visit) {
  if (visit->module == TWS_NONE || visit->fused_away || l->b.failed != TWS_OK) return;
  const tws_module *m = &l->network->modules[visit->module];
  tws_lower_at_visit(l, visit);
  l->tile = visit->tile;
  l->tiles = visit->tiles;
  l->weight_tile = visit->weight_tile;
  l->fused_with = visit->fused_with == TWS_NONE ? NULL : &l->network->modules[visit->fused_with];
  l->sums_for = visit->sums_for == TWS_NONE ? NULL : &l->network->modules[visit->sums_for];
  if (visit->phase == TWS_PHASE_BACKWARD) {
    tws_lower_backward(l, m);
  } else {
    forward(l, m);
  }
  l->tile = 0;
  l->tiles = 1;
  l->weight_tile = 0;
  l->fused_with = NULL;
  l->sums_for = NULL;
}
