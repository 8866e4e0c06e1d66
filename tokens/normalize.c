#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokens/internal.h"

enum kind {
#define X(name) NORMALIZE_##name,
  TWS_NORMALIZERS(X)
#undef X
};
static const char *const names[] = {
#define X(name) #name,
    TWS_NORMALIZERS(X)
#undef X
        NULL};

/* ---- reading; some functions serve all three kinds of steps ---- */

tws_code tws_step_flag(const tws_json *json, const cJSON *item, const char *key, int fallback, int *value,
                       tws_error *err) {
  return tws_json_bool(json, item, key, 0, fallback, value, err);
}

static tws_code read_step(const tws_json *json, const cJSON *item, const char *const *kinds, tws_step_reader reader,
                          tws_token_steps *steps, tws_error *err) {
  const char *type = NULL;
  TWS_TRY(tws_json_string(json, item, "type", 1, NULL, &type, err));
  if (steps->count == TWS_TOKEN_STEPS)
    return tws_json_fail(json, item, err, NULL, "more than %d steps", TWS_TOKEN_STEPS);
  for (int k = 0; kinds[k]; k++) {
    if (strcmp(kinds[k], type) != 0) continue;
    tws_token_step *step = &steps->step[steps->count++];
    *step = (tws_token_step){.kind = k, .json = json, .item = item};
    return reader(json, item, step, err);
  }
  tws_text known = {0};
  for (int k = 0; kinds[k]; k++) tws_text_add(&known, "%s%s", k ? ", " : "", kinds[k]);
  tws_json_fail(json, item, err, "use a tokenizer without it", "\"%.60s\" is not known (known: Sequence, %s)", type,
                known.data ? known.data : "");
  tws_text_free(&known);
  if (err) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

tws_code tws_steps_read(const tws_json *json, const cJSON *item, const char *member, const char *const *kinds,
                        tws_step_reader reader, tws_token_steps *steps, tws_error *err) {
  if (!item || cJSON_IsNull(item)) return TWS_OK;
  if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, NULL, "expected an object with a \"type\"");
  const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "type");
  if (!cJSON_IsString(type) || strcmp(type->valuestring, "Sequence") != 0)
    return read_step(json, item, kinds, reader, steps, err);
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, member), *one;
  if (!cJSON_IsArray(list)) return tws_json_fail(json, item, err, NULL, "a Sequence needs the list \"%s\"", member);
  cJSON_ArrayForEach(one, list) TWS_TRY(tws_steps_read(json, one, member, kinds, reader, steps, err));
  return TWS_OK;
}

void tws_steps_free(tws_token_steps *steps) {
  for (int i = 0; i < steps->count; i++) {
    tws_pattern_free(steps->step[i].pattern);
    tws_free(steps->step[i].blob);
    tws_free(steps->step[i].units);
    tws_text_free(&steps->step[i].room);
  }
}

tws_growth tws_growth_of(size_t length) {
  return (tws_growth){
      length, length > (SIZE_MAX - TWS_GROWTH_BYTES) / TWS_GROWTH ? SIZE_MAX : TWS_GROWTH_BYTES + TWS_GROWTH * length,
      0};
}

tws_code tws_growth_exceeded(const tws_token_step *s, const tws_growth *growth, tws_error *err) {
  const cJSON *type = cJSON_GetObjectItemCaseSensitive(s->item, "type");
  return tws_json_fail(s->json, s->item, err, "use a tokenizer whose steps add less to a text",
                       "\"%.40s\" makes more than %zu bytes of %zu, and %d times as much is allowed",
                       cJSON_IsString(type) ? type->valuestring : "?", growth->most, growth->from, TWS_GROWTH);
}

static int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Reads a precompiled map, which is base64 of: the number of bytes of the trie, the trie, and zero-terminated
 * strings. */
static tws_code read_map(const tws_json *json, const cJSON *item, tws_token_step *s, tws_error *err) {
  const char *text = NULL;
  size_t length = 0;
  uint32_t bits = 0, trie = 0;
  int held = 0;
  TWS_TRY(tws_json_string(json, item, "precompiled_charsmap", 1, NULL, &text, err));
  const size_t count = strlen(text);
  s->blob = tws_calloc(count + 1, 1);
  if (!s->blob) return tws_no_token_memory(err);
  for (size_t i = 0; i < count && text[i] != '='; i++) {
    const int digit = digit_of(text[i]);
    if (digit < 0) return tws_json_fail(json, item, err, NULL, "\"precompiled_charsmap\" is not base64");
    bits = bits << 6 | (uint32_t)digit;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    s->blob[length++] = (char)(bits >> held & 255);
  }
  if (length >= 4) memcpy(&trie, s->blob, sizeof trie);
  if (length < 4 || trie % 4 || trie > length - 4 || trie < 4 || s->blob[length - 1] != '\0')
    return tws_json_fail(json, item, err, NULL, "\"precompiled_charsmap\" is damaged");
  s->unit_count = trie / 4;
  s->units = tws_calloc(s->unit_count, sizeof *s->units);
  if (!s->units) return tws_no_token_memory(err);
  memcpy(s->units, s->blob + 4, trie);
  s->strings = s->blob + 4 + trie;
  s->strings_length = length - 4 - trie;
  return TWS_OK;
}

static tws_code read_normalizer(const tws_json *json, const cJSON *item, tws_token_step *s, tws_error *err) {
  switch ((enum kind)s->kind) {
    case NORMALIZE_Strip:
      TWS_TRY(tws_step_flag(json, item, "strip_left", 1, &s->left, err));
      return tws_step_flag(json, item, "strip_right", 1, &s->right, err);
    case NORMALIZE_Prepend:
      return tws_json_string(json, item, "prepend", 1, NULL, &s->content, err);
    case NORMALIZE_Replace:
      TWS_TRY(tws_json_string(json, item, "content", 1, NULL, &s->content, err));
      return tws_pattern_read(json, cJSON_GetObjectItemCaseSensitive(item, "pattern"), &s->pattern, err);
    case NORMALIZE_Precompiled:
      return read_map(json, item, s, err);
    case NORMALIZE_BertNormalizer:
      TWS_TRY(tws_step_flag(json, item, "clean_text", 1, &s->cleans, err));
      TWS_TRY(tws_step_flag(json, item, "handle_chinese_chars", 1, &s->pads, err));
      TWS_TRY(tws_step_flag(json, item, "lowercase", 1, &s->lowers, err));
      return tws_step_flag(json, item, "strip_accents", s->lowers, &s->strips_accents, err);
    default:
      return TWS_OK;
  }
}

tws_code tws_normalizers_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err) {
  return tws_steps_read(json, item, "normalizers", names, read_normalizer, steps, err);
}

/* ---- normalizing ---- */

static tws_code to_form(const char *text, size_t length, utf8proc_option_t options, tws_text *out, tws_error *err) {
  utf8proc_uint8_t *made = NULL;
  const utf8proc_ssize_t n =
      utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &made, options | UTF8PROC_STABLE);
  if (n == UTF8PROC_ERROR_NOMEM) return tws_no_token_memory(err);
  if (n < 0) return tws_fail(err, TWS_INVALID, NULL, "a text cannot be normalized: %s", utf8proc_errmsg(n));
  tws_text_add_bytes(out, (const char *)made, (size_t)n);
  free(made); /* allocated by utf8proc */
  return TWS_OK;
}

static void add_lower(int32_t c, tws_text *out) {
  char text[4];
  if (c == 0x130) { /* the only character whose lower case has two characters */
    tws_text_add_bytes(out, "i\xcc\x87", 3);
    return;
  }
  const size_t n = tws_utf8_write(utf8proc_tolower(c), text);
  tws_text_add_bytes(out, text, n);
}

/* Maps each character to lower case, or removes marks. */
static void map_characters(enum kind kind, const char *text, size_t length, tws_text *out) {
  int32_t c;
  int bad;
  for (size_t i = 0; i < length;) {
    const int n = tws_utf8_read(text + i, length - i, &c, &bad);
    if (kind == NORMALIZE_Lowercase)
      add_lower(c, out);
    else if (!tws_is_mark(c))
      tws_text_add_bytes(out, text + i, (size_t)n);
    i += (size_t)n;
  }
}

static void strip(const tws_token_step *s, const char *text, size_t length, tws_text *out) {
  size_t begin = length, end = 0;
  int32_t c;
  int bad;
  for (size_t i = 0; i < length;) {
    const int n = tws_utf8_read(text + i, length - i, &c, &bad);
    if (!tws_is_space(c)) {
      if (begin == length) begin = i;
      end = i + (size_t)n;
    }
    i += (size_t)n;
  }
  if (!s->left) begin = 0;
  if (!s->right) end = length;
  if (begin < end) tws_text_add_bytes(out, text + begin, end - begin);
}

/* Replaces all matches. Stops with `most` + 1 bytes if the result is longer than `most` bytes, which the caller
 * checks. */
static tws_code replace(const tws_token_step *s, const char *text, size_t length, size_t most, tws_text *out,
                        tws_error *err) {
  const size_t size = strlen(s->content);
  size_t begin, end;
  for (size_t done = 0; out->length <= most; done = end) {
    TWS_TRY(tws_pattern_next(s->pattern, text, length, done, &begin, &end, err));
    tws_text_add_bytes(out, text + done, begin - done);
    if (begin == length) return TWS_OK;
    tws_text_add_bytes(out, s->content, size <= most ? size : most + 1);
  }
  return TWS_OK;
}

/* Returns the string to which the shortest prefix of `key` in the trie maps, or NULL. The trie is a double array as in
 * Darts: a unit has a label, a bit for a leaf, and the offset of its children. */
static const char *look_up(const tws_token_step *s, const char *key, size_t length) {
  const uint32_t *units = s->units;
  size_t node = 0;
#define OFFSET(unit) ((size_t)((unit) >> 10) << (((unit)&1u << 9) >> 6))
  node ^= OFFSET(units[0]);
  for (size_t i = 0; i < length; i++) {
    const unsigned char byte = (unsigned char)key[i];
    if (byte == 0) return NULL;
    node ^= byte;
    if (node >= s->unit_count || (units[node] & (1u << 31 | 255)) != byte) return NULL;
    const uint32_t unit = units[node];
    node ^= OFFSET(unit);
    if (!(unit >> 8 & 1)) continue;
    if (node >= s->unit_count) return NULL;
    const uint32_t value = units[node] & ~(1u << 31);
    return value < s->strings_length ? s->strings + value : NULL;
  }
#undef OFFSET
  return NULL;
}

/* Maps a grapheme. Short ones are looked up as a whole, and the first prefix found replaces the whole grapheme, as in
 * the library; others are mapped character by character. */
static void map_grapheme(const tws_token_step *s, const char *text, size_t length, size_t most, tws_text *out) {
  const char *mapped = length < 6 ? look_up(s, text, length) : NULL;
  if (mapped) {
    tws_text_add_bytes(out, mapped, strlen(mapped));
    return;
  }
  for (size_t i = 0; i < length && out->length <= most;) {
    const size_t n = (size_t)tws_utf8_length(text + i);
    mapped = look_up(s, text + i, n);
    if (mapped)
      tws_text_add_bytes(out, mapped, strlen(mapped));
    else
      tws_text_add_bytes(out, text + i, n);
    i += n;
  }
}

static void map_graphemes(const tws_token_step *s, const char *text, size_t length, size_t most, tws_text *out) {
  utf8proc_int32_t state = 0;
  int32_t before = 0, c;
  size_t begin = 0;
  int bad;
  for (size_t i = 0; i < length && out->length <= most;) {
    const int n = tws_utf8_read(text + i, length - i, &c, &bad);
    if (i > 0 && utf8proc_grapheme_break_stateful(before, c, &state)) {
      map_grapheme(s, text + begin, i - begin, most, out);
      begin = i;
    }
    before = c;
    i += (size_t)n;
  }
  if (begin < length) map_grapheme(s, text + begin, length - begin, most, out);
}

/* ---- BertNormalizer: removes control characters, separates ideographs, strips accents, lower-cases ---- */

static int is_ideograph(int32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
         (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

static int is_control(int32_t c) {
  const utf8proc_category_t k = utf8proc_category(c);
  if (c == '\t' || c == '\n' || c == '\r') return 0;
  return (c == 0 || c == 0xfffd || k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF ||
          k == UTF8PROC_CATEGORY_CO) != tws_bert_differs(TWS_BERT_CONTROL, c);
}

static void clean(const tws_token_step *s, const char *text, size_t length, tws_text *out) {
  int32_t c;
  int bad;
  for (size_t i = 0; i < length;) {
    const int n = tws_utf8_read(text + i, length - i, &c, &bad), pads = s->pads && is_ideograph(c);
    if (!s->cleans || !is_control(c)) {
      if (pads) tws_text_add(out, " ");
      if (s->cleans && tws_is_space(c))
        tws_text_add(out, " ");
      else
        tws_text_add_bytes(out, text + i, (size_t)n);
      if (pads) tws_text_add(out, " ");
    }
    i += (size_t)n;
  }
}

/* Removes accents only: combining marks that are non-spacing. */
static void strip_accents(const char *text, size_t length, tws_text *out) {
  int32_t c;
  int bad;
  for (size_t i = 0; i < length;) {
    const int n = tws_utf8_read(text + i, length - i, &c, &bad);
    const int accent = (utf8proc_category(c) == UTF8PROC_CATEGORY_MN) != tws_bert_differs(TWS_BERT_ACCENT, c);
    if (!accent) tws_text_add_bytes(out, text + i, (size_t)n);
    i += (size_t)n;
  }
}

static tws_code normalize_as_bert(const tws_token_step *s, const char *text, size_t length, tws_text *out,
                                  tws_error *err) {
  tws_text made[3] = {{0}};
  tws_code code = TWS_OK;
  clean(s, text, length, &made[0]);
  const tws_text *now = &made[0];
  if (s->strips_accents && now->length > 0) {
    code = to_form(now->data, now->length, UTF8PROC_DECOMPOSE, &made[1], err);
    if (code == TWS_OK && made[1].length > 0) strip_accents(made[1].data, made[1].length, &made[2]);
    now = &made[2];
  }
  if (now->length > 0) {
    if (s->lowers)
      map_characters(NORMALIZE_Lowercase, now->data, now->length, out);
    else
      tws_text_add_bytes(out, now->data, now->length);
  }
  for (int i = 0; i < 3; i++) {
    if (made[i].failed) out->failed = 1;
    tws_text_free(&made[i]);
  }
  return code;
}

static tws_code run_step(const tws_token_step *s, const char *text, size_t length, size_t most, tws_text *out,
                         tws_error *err) {
  switch ((enum kind)s->kind) {
    case NORMALIZE_NFC:
      return to_form(text, length, UTF8PROC_COMPOSE, out, err);
    case NORMALIZE_NFD:
      return to_form(text, length, UTF8PROC_DECOMPOSE, out, err);
    case NORMALIZE_NFKC:
      return to_form(text, length, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, out, err);
    case NORMALIZE_NFKD:
      return to_form(text, length, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, out, err);
    case NORMALIZE_Lowercase:
    case NORMALIZE_StripAccents:
      map_characters((enum kind)s->kind, text, length, out);
      return TWS_OK;
    case NORMALIZE_Strip:
      strip(s, text, length, out);
      return TWS_OK;
    case NORMALIZE_Replace:
      return replace(s, text, length, most, out, err);
    case NORMALIZE_Prepend:
      if (length > 0) tws_text_add_bytes(out, s->content, strlen(s->content));
      tws_text_add_bytes(out, text, length);
      return TWS_OK;
    case NORMALIZE_Precompiled:
      map_graphemes(s, text, length, most, out);
      return TWS_OK;
    case NORMALIZE_BertNormalizer:
      return normalize_as_bert(s, text, length, out, err);
  }
  return TWS_OK;
}

tws_code tws_normalize(tws_token_steps *steps, const char *text, size_t length, tws_growth *growth, tws_text *out,
                       tws_error *err) {
  const size_t most = growth->most - growth->made;
  for (int i = 0; i < steps->count; i++) {
    tws_text *room = &steps->step[i].room;
    room->length = 0;
    tws_text_add_bytes(room, "", 0);
    TWS_TRY(run_step(&steps->step[i], text, length, most, room, err));
    if (room->failed) return tws_no_token_memory(err);
    if (room->length > most) return tws_growth_exceeded(&steps->step[i], growth, err);
    text = room->data;
    length = room->length;
  }
  growth->made += length;
  out->length = 0;
  tws_text_add_bytes(out, text, length);
  return out->failed ? tws_no_token_memory(err) : TWS_OK;
}
