/* Kernels that ring attention and attention in chunks share. */
#include "plan/attention_parts.h"

static tws_work heads_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, int64_t tokens) {
  tws_work work = tws_kernel_work(kernel, l->config->dtype, 0);
  work.d[0] = tokens;
  work.d[1] = m->heads;
  work.d[2] = m->kv_heads;
  work.d[3] = m->head_size;
  return work;
}

void tws_heads_split(tws_lower *l, const tws_module *m, int64_t tokens, tws_operand qkv, tws_operand q,
                     tws_operand kv) {
  const tws_work work = heads_work(l, m, TWS_KERNEL_HEADS_SPLIT, tokens);
  const tws_operand operands[3] = {tws_with_access(qkv, TWS_READ), q, kv};
  tws_lower_compute(l, &work, operands, 3);
}

void tws_heads_join(tws_lower *l, const tws_module *m, int64_t tokens, tws_operand q, tws_operand kv, tws_operand qkv) {
  const tws_work work = heads_work(l, m, TWS_KERNEL_HEADS_JOIN, tokens);
  const tws_operand operands[3] = {tws_with_access(q, TWS_READ), tws_with_access(kv, TWS_READ),
                                   tws_with_access(qkv, TWS_READ_WRITE)};
  tws_lower_compute(l, &work, operands, 3);
}

tws_work tws_attention_own_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, int64_t samples,
                                int64_t length) {
  tws_work work = tws_module_work(l, m, kernel, 0);
  work.d[0] = samples;
  work.d[1] = length;
  work.d[6] = 0; /* 0: no window limits the keys, since the window is at least as long as the sequence */
  return work;
}

tws_work tws_attention_block_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, int64_t queries,
                                  int64_t keys) {
  tws_work work = tws_attention_own_work(l, m, kernel, 1, queries);
  work.flags |= TWS_Q_KV | TWS_BIDIRECTIONAL;
  work.d[5] = keys;
  return work;
}

void tws_attention_merge(tws_lower *l, const tws_module *m, int64_t samples, int64_t length, int64_t rows,
                         tws_operand part, tws_operand lse_part, tws_operand o, tws_operand lse) {
  tws_work work = tws_kernel_work(TWS_KERNEL_ATTENTION_MERGE, l->config->dtype, 0);
  work.d[0] = samples;
  work.d[1] = length;
  work.d[2] = m->heads;
  work.d[3] = m->head_size;
  work.d[4] = rows;
  const tws_operand operands[4] = {tws_with_access(part, TWS_READ), tws_with_access(lse_part, TWS_READ),
                                   tws_with_access(o, TWS_READ_WRITE), tws_with_access(lse, TWS_READ_WRITE)};
  tws_lower_compute(l, &work, operands, 4);
}
