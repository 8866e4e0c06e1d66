#include "base/dtype.h"

static const struct {
  size_t bytes;
  const char *text;
} dtypes[TWS_DTYPE_COUNT] = {
#define X(name, bytes_, text_) [TWS_##name] = {bytes_, text_},
    TWS_DTYPES(X)
#undef X
};

static const char *const tiers[TWS_TIER_COUNT] = {
#define X(name, text) [TWS_TIER_##name] = text,
    TWS_TIERS(X)
#undef X
};

size_t tws_dtype_bytes(tws_dtype dtype) {
  return (unsigned)dtype < TWS_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}
const char *tws_dtype_name(tws_dtype dtype) {
  return (unsigned)dtype < TWS_DTYPE_COUNT ? dtypes[dtype].text : "?";
}
const char *tws_tier_name(tws_tier tier) {
  return (unsigned)tier < TWS_TIER_COUNT ? tiers[tier] : "?";
}
