#include <string.h>

#include "tokens/internal.h"

tws_code tws_no_token_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a tokenizer");
}

static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 32) * UINT64_C(0x9e3779b97f4a7c15);
  return x ^ x >> 29;
}

static uint64_t hash(const char *text, size_t length) {
  uint64_t h = length;
  for (; length >= 8; length -= 8, text += 8) {
    uint64_t word;
    memcpy(&word, text, sizeof word);
    h = mix(h ^ word);
  }
  uint64_t rest = 0;
  if (length > 0) memcpy(&rest, text, length);
  return mix(mix(h ^ rest) + 1);
}

static struct tws_vocabulary_slot *slot_of(const tws_vocabulary *v, const char *text, size_t length) {
  for (size_t i = hash(text, length);; i++) {
    struct tws_vocabulary_slot *slot = &v->slots[i & (v->room - 1)];
    if (!slot->text || (slot->length == length && memcmp(slot->text, text, length) == 0)) return slot;
  }
}

static tws_code grow(tws_vocabulary *v, tws_error *err) {
  const tws_vocabulary before = *v;
  v->room = before.room ? 2 * before.room : 1024;
  v->slots = tws_calloc(v->room, sizeof *v->slots);
  if (!v->slots) {
    *v = before;
    return tws_no_token_memory(err);
  }
  for (size_t i = 0; i < before.room; i++)
    if (before.slots[i].text) *slot_of(v, before.slots[i].text, before.slots[i].length) = before.slots[i];
  tws_free(before.slots);
  return TWS_OK;
}

tws_code tws_vocabulary_add(tws_vocabulary *v, const char *text, size_t length, int32_t id, tws_error *err) {
  if (2 * (v->count + 1) > v->room) TWS_TRY(grow(v, err));
  struct tws_vocabulary_slot *slot = slot_of(v, text, length);
  if (!slot->text) v->count++;
  *slot = (struct tws_vocabulary_slot){text, (uint32_t)length, id};
  return TWS_OK;
}

int32_t tws_vocabulary_find(const tws_vocabulary *v, const char *text, size_t length) {
  if (!v->room) return -1;
  const struct tws_vocabulary_slot *slot = slot_of(v, text, length);
  return slot->text ? slot->id : -1;
}

/* ---- map of pairs ---- */

static uint64_t key_of(uint32_t a, uint32_t b) {
  return ((uint64_t)a << 32 | b) + 1;
}

static struct tws_pair_slot *pair_slot(const tws_pair_table *t, uint64_t key) {
  for (size_t i = mix(key);; i++) {
    struct tws_pair_slot *slot = &t->slots[i & (t->room - 1)];
    if (!slot->key || slot->key == key) return slot;
  }
}

tws_code tws_pair_add(tws_pair_table *t, uint32_t a, uint32_t b, int32_t rank, int32_t id, tws_error *err) {
  if (2 * (t->count + 1) > t->room) {
    const tws_pair_table before = *t;
    t->room = before.room ? 2 * before.room : 1024;
    t->slots = tws_calloc(t->room, sizeof *t->slots);
    if (!t->slots) {
      *t = before;
      return tws_no_token_memory(err);
    }
    for (size_t i = 0; i < before.room; i++)
      if (before.slots[i].key) *pair_slot(t, before.slots[i].key) = before.slots[i];
    tws_free(before.slots);
  }
  struct tws_pair_slot *slot = pair_slot(t, key_of(a, b));
  if (!slot->key) t->count++;
  *slot = (struct tws_pair_slot){key_of(a, b), rank, id};
  return TWS_OK;
}

const struct tws_pair_slot *tws_pair_find(const tws_pair_table *t, uint32_t a, uint32_t b) {
  if (!t->room) return NULL;
  const struct tws_pair_slot *slot = pair_slot(t, key_of(a, b));
  return slot->key ? slot : NULL;
}
