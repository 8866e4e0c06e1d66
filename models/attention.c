#include "models/attention.h"

#include <math.h>

tws_attention_form tws_attention_form_of(const tws_work *work, const double *arguments) {
  const int64_t *d = work->d;
  const double dropout = work->flags & TWS_DROPOUT ? work->f[1] : 0;
  tws_attention_form f = {.seq = d[1],
                          .kv_seq = d[5] > 0 ? d[5] : d[1],
                          .window = d[6],
                          .bidirectional = (work->flags & TWS_BIDIRECTIONAL) != 0,
                          .alibi = (work->flags & TWS_ALIBI) != 0,
                          .scale = work->f[0] != 0 ? (float)work->f[0] : 1.0F / sqrtf((float)d[4]),
                          .slope = work->f[5] != 0 ? (float)work->f[5] : 1,
                          .cap = (float)work->f[2],
                          .dropped_below = tws_dropout_threshold(dropout),
                          .kept = (float)(1 / (1 - dropout)),
                          .seed = (uint64_t)arguments[0],
                          .first_sequence = (int64_t)arguments[1],
                          .first_head = (int64_t)arguments[2],
                          .heads = arguments[3] > 0 ? (int64_t)arguments[3] : d[2],
                          .buckets = work->flags & TWS_RELATIVE ? d[7] : 0,
                          .max_distance = (int64_t)work->f[3]};
  const uint32_t special = TWS_BIDIRECTIONAL | TWS_ALIBI | TWS_LENGTHS | TWS_RELATIVE | TWS_DOCUMENTS;
  f.offset = f.kv_seq - f.seq;
  f.ordinary = !(work->flags & special) && f.window == 0 && f.offset == 0 && f.cap == 0;
  f.plain = f.ordinary && !(work->flags & TWS_DROPOUT);
  return f;
}
