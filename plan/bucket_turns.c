#include "plan/bucket_turns.h"

int tws_bucket_turns_make(uint32_t buckets, tws_arena *arena, tws_bucket_turns *out) {
  uint32_t *all = tws_arena_alloc(arena, 5 * ((size_t)buckets + 1), sizeof *all);
  *out = (tws_bucket_turns){.begun_last = TWS_NONE};
  if (!all) return 0;
  uint32_t **const of[] = {&out->place, &out->next, &out->first, &out->last, &out->freed};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) *of[i] = all + i * ((size_t)buckets + 1);
  return 1;
}

static uint32_t find_place(const tws_bucket_turns *t) {
  uint32_t best = TWS_NONE;
  for (uint32_t i = 0; i < t->places; i++)
    if (t->freed[i] && t->last[i] != t->begun_last && (best == TWS_NONE || t->freed[i] < t->freed[best])) best = i;
  return best;
}

void tws_bucket_turns_begin(tws_bucket_turns *t, uint32_t bucket) {
  uint32_t place = find_place(t);
  if (place == TWS_NONE) {
    place = t->places++;
    t->first[place] = bucket;
  } else {
    t->next[t->last[place]] = bucket;
  }
  t->place[bucket] = place;
  t->next[bucket] = TWS_NONE;
  t->last[place] = bucket;
  t->freed[place] = 0;
  t->begun_last = bucket;
}

void tws_bucket_turns_end(tws_bucket_turns *t, uint32_t bucket) {
  t->freed[t->place[bucket]] = 1 + t->ended++;
}
