/* Computes rows, sizes, flags and scales of the kernels of a module's visit, from the table of module types. */
#include <string.h>

#include "models/network/module.h"
#include "models/zigzag.h"
#include "plan/lower.h"
#include "plan/turns.h"

const tws_local_module *tws_local_of(const tws_lower *l, const tws_module *m) {
  return &l->local.modules[m - l->network->modules];
}

int tws_lower_sliced(const tws_lower *l, const tws_module *m) {
  const int of_samples = l->network->values[m->out[0]].row[0].kind != TWS_DIM_FIXED;
  return l->streams.slices > 1 && l->at.tiles == 1 && of_samples && tws_local_of(l, m)->split != TWS_SPLIT_NONE &&
         tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules)) == 1;
}

int64_t tws_module_rows(const tws_lower *l, const tws_module *m) {
  uint64_t rows = (uint64_t)l->extent.tokens;
  if (m->in[0] != TWS_NONE)
    rows = tws_value_rows(l, m->in[0]);
  else if (m->input[0] != TWS_NONE)
    rows = tws_input_rows(l, m->input[0]);
  return l->at.tiles == 1 ? (int64_t)rows : (int64_t)rows / l->at.tiles;
}

static int drops(const tws_lower *l, const tws_module *m) {
  return (m->dropout > 0 || m->jitter > 0) && l->config->dropout && !l->extent.evaluates;
}

/* Returns the length in tokens of the whole texts, on which the parameters of rotary positions depend: in a program of
 * inference that of the cache, else `sequence`. */
static int64_t text_length(const tws_lower *l, int64_t sequence) {
  return l->config->cache_length > 0 ? l->config->cache_length : sequence;
}

#define SIZES(...) const int64_t sizes[] = {__VA_ARGS__};
#define SCALARS(...) const double scalars[] = {0, ##__VA_ARGS__};
#define FLAGS(flags_) work.flags |= (uint32_t)(flags_);
#define LENGTHS (m->input[0] != TWS_NONE ? TWS_LENGTHS : 0)
#define DOCUMENTS (m->input[1] != TWS_NONE ? TWS_DOCUMENTS : 0)
#define BIASED (m->param[1] != TWS_NONE ? TWS_BIAS : 0)
#define DROPPED (drops(l, m) ? TWS_DROPOUT : 0)
#define FOLLOWED (l->b.phase == TWS_PHASE_FORWARD && !l->extent.evaluates ? TWS_RUNNING : 0)
#define MODULE(id, name_, summary_, sizes_, scalars_, flags_, traits_, forward_, backward_) \
  case TWS_MODULE_##id: {                                                                   \
    sizes_ scalars_ flags_ memcpy(work.d, sizes, sizeof sizes);                             \
    memcpy(work.f, scalars + 1, sizeof scalars - sizeof *scalars);                          \
    break;                                                                                  \
  }
/* names for the rows of modules.def; the sizes of attention are those of whole sequences */
#define sequence (l->values.whole_sequence[m->in[0]])
#define text text_length(l, sequence)
#define other (l->values.whole_sequence[m->in[1]])
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
  /* inference: the cache's length decides whether factors for long texts apply, not the few tokens of one program */
  if (m->type == TWS_MODULE_ROPE && work.flags & TWS_RUNNING && l->config->cache_length > 0)
    work.f[4] = (double)l->config->cache_length > work.f[4] ? 0 : (double)INT32_MAX;
  if (m->type == TWS_MODULE_ROPE && l->at.chunk_role) work.d[4] /= l->config->attention_chunks;
  if (m->type == TWS_MODULE_ROPE && l->sharding.ring) work.d[4] /= l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  return work;
}

#undef sequence
#undef text
#undef other
#undef picked
#undef tokens
#undef slots
#undef sources
#undef sharers
#undef expected
#undef shared

/* tws_first_token() returns the position in its sequence of the first token that this rank has; tws_token_gap() the
 * number of other ranks' tokens between the two halves that this rank has (zigzag). */
int64_t tws_first_token(const tws_lower *l) {
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

void tws_position_rows(const tws_lower *l, const tws_module *m, int64_t *first, int64_t *rows) {
  *first = m->first_position;
  *rows = l->network->params[m->param[1]].rows - m->first_position;
  if (l->sharding.position.ranks[TWS_AXIS_SEQUENCE] == 1) return;
  *rows = l->config->sequence_length / l->sharding.position.ranks[TWS_AXIS_SEQUENCE] + tws_token_gap(l);
  *first += tws_first_token(l);
}

double tws_loss_weight(const tws_lower *l, const tws_module *m) {
  return 1.0 / ((double)tws_input_elements(l, m->input[0]) * (double)l->config->accumulation_steps * l->zero.ranks);
}

int tws_lower_scaled(tws_lower *l, tws_work *work, tws_operand *operands, int count) {
  if (l->config->dtype != TWS_F16 || l->extent.evaluates) return count;
  work->flags |= TWS_SCALED;
  operands[count] = tws_hyper_of(l->b.plan->hyper, 0);
  return count + 1;
}

int tws_lower_narrow(const tws_lower *l, const tws_module *m) {
  const tws_config *c = l->config;
  const int byte = c->matmul_dtype == TWS_MATMUL_FP8 || c->matmul_dtype == TWS_MATMUL_MXFP8;
  const int narrow = (byte || c->matmul_dtype == TWS_MATMUL_NVFP4) && !c->matmul_keeps_wide;
  return narrow && !l->float8.on && c->dtype != TWS_F32 && !l->extent.evaluates && l->at.tiles <= 1 &&
         l->kept[m->in[0]] == TWS_KEPT && !l->tiled[m->in[0]] && tws_trains(l, m, m->param[0]) &&
         tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules)) == 1;
}
