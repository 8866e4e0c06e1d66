#include "plan/placement.h"

static const struct {
  const char *name;
  tws_placed dual;
} placements[TWS_PLACED_COUNT] = {
#define X(id, name, dual) [TWS_PLACED_##id] = {name, TWS_PLACED_##dual},
    TWS_PLACEMENTS(X)
#undef X
};

const char *tws_placed_name(tws_placed placed) {
  return placements[placed].name;
}

tws_placed tws_placed_dual(tws_placed placed) {
  return placements[placed].dual;
}

int tws_placed_change(tws_placed from, tws_placed to) {
  static const struct {
    tws_placed from, to;
    int change;
  } table[] = {
      {TWS_PLACED_REPLICATED, TWS_PLACED_BROADCAST, TWS_NO_COMMUNICATION},
      {TWS_PLACED_PARTIAL, TWS_PLACED_REPLICATED, TWS_COLLECTIVE_ALL_REDUCE},
      {TWS_PLACED_PARTIAL, TWS_PLACED_BROADCAST, TWS_COLLECTIVE_ALL_REDUCE},
      {TWS_PLACED_TOKENS, TWS_PLACED_BROADCAST, TWS_COLLECTIVE_ALL_GATHER},
      {TWS_PLACED_PARTIAL, TWS_PLACED_TOKENS, TWS_COLLECTIVE_REDUCE_SCATTER},
      {TWS_PLACED_TOKENS, TWS_PLACED_FEATURES, TWS_COLLECTIVE_ALL_TO_ALL},
      {TWS_PLACED_FEATURES, TWS_PLACED_TOKENS, TWS_COLLECTIVE_ALL_TO_ALL},
      {TWS_PLACED_SAMPLES, TWS_PLACED_EXPERTS, TWS_COLLECTIVE_ALL_TO_ALL},
      {TWS_PLACED_EXPERTS, TWS_PLACED_SAMPLES, TWS_COLLECTIVE_ALL_TO_ALL},
  };
  if (from == to) return TWS_NO_COMMUNICATION;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (table[i].from == from && table[i].to == to) return table[i].change;
  return TWS_NO_CHANGE;
}
