#include "models/rope.h"

tws_rope_form tws_rope_form_of(const tws_work *work, const float *factors) {
  const double *f = work->f;
  const int64_t rotary = work->d[5] > 0 ? work->d[5] : work->d[3];
  if (factors && (double)work->d[4] > f[4]) factors += rotary / 2;
  return (tws_rope_form){.rotary = rotary,
                         .theta = f[0],
                         .factor = f[1],
                         .low = f[2],
                         .high = f[3],
                         .original = f[4],
                         .gain = f[5] > 0 ? f[5] : 1,
                         .interleaved = (work->flags & TWS_INTERLEAVED) != 0,
                         .factors = factors};
}

tws_code tws_rope_check(const tws_work *work, tws_error *err) {
  const int64_t rotary = work->d[5] > 0 ? work->d[5] : work->d[3];
  if (rotary % 2 == 0 && rotary <= work->d[3]) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "rotary embedding of %lld elements of a head of %lld", (long long)rotary,
                  (long long)work->d[3]);
}
