#include <string.h>

#include "tokens/internal.h"

enum kind {
#define X(name) DECODE_##name,
  TWS_DECODERS(X)
#undef X
};
static const char *const names[] = {
#define X(name) #name,
    TWS_DECODERS(X)
#undef X
        NULL};

static tws_code read_decoder(const tws_json *json, const cJSON *item, tws_token_step *s, tws_error *err) {
  int64_t left = 0, right = 0;
  const char *scheme = NULL;
  int adds = 1;
  switch ((enum kind)s->kind) {
    case DECODE_Replace:
      TWS_TRY(tws_json_string(json, item, "content", 1, NULL, &s->content, err));
      return tws_pattern_read(json, cJSON_GetObjectItemCaseSensitive(item, "pattern"), &s->pattern, err);
    case DECODE_Strip:
      TWS_TRY(tws_json_string(json, item, "content", 1, NULL, &s->content, err));
      TWS_TRY(tws_json_int(json, item, "start", 0, 0, INT32_MAX, 0, &left, err));
      TWS_TRY(tws_json_int(json, item, "stop", 0, 0, INT32_MAX, 0, &right, err));
      s->left = (int)left;
      s->right = (int)right;
      return TWS_OK;
    case DECODE_Metaspace:
      TWS_TRY(tws_json_string(json, item, "replacement", 1, NULL, &s->content, err));
      TWS_TRY(tws_json_string(json, item, "prepend_scheme", 0, NULL, &scheme, err));
      TWS_TRY(tws_step_flag(json, item, "add_prefix_space", 1, &adds, err));
      s->prepend = scheme ? strcmp(scheme, "never") != 0 : adds;
      return s->content[0] ? TWS_OK : tws_json_fail(json, item, err, NULL, "\"replacement\" must be one character");
    case DECODE_WordPiece:
      TWS_TRY(tws_json_string(json, item, "prefix", 0, "##", &s->content, err));
      return tws_step_flag(json, item, "cleanup", 1, &s->cleans, err);
    default:
      return TWS_OK;
  }
}

tws_code tws_decoders_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err) {
  return tws_steps_read(json, item, "decoders", names, read_decoder, steps, err);
}

/* ---- steps, each of which changes a list of texts ---- */

typedef struct decoder {
  const tws_token_step *step;
  tws_texts *texts;
  tws_arena *arena;
  tws_growth growth; /* growth.made: bytes made by this step */
} decoder;

/* Replaces text i by a copy of `made` in the arena. */
static tws_code put(const decoder *d, size_t i, const tws_text *made, tws_error *err) {
  char *copy = tws_arena_alloc(d->arena, made->length + 1, 1);
  if (!copy || made->failed) return tws_no_token_memory(err);
  if (made->length) memcpy(copy, made->data, made->length);
  d->texts->item[i] = (struct tws_text_range){copy, made->length};
  return TWS_OK;
}

/* Replaces all texts by a single one; an empty list stays empty. */
static tws_code put_one(decoder *d, tws_text *made, tws_error *err) {
  tws_code code = d->texts->count ? put(d, 0, made, err) : TWS_OK;
  tws_text_free(made);
  if (d->texts->count) d->texts->count = 1;
  return code;
}

static void characters_to_bytes(const struct tws_text_range *text, tws_text *out) {
  int32_t c;
  int bad;
  const size_t before = out->length;
  for (size_t i = 0; i < text->length;) {
    const int n = tws_utf8_read(text->at + i, text->length - i, &c, &bad);
    const int byte = n ? tws_character_byte(c) : -1;
    if (byte < 0) {
      if (out->data) out->length = before;
      tws_text_add_bytes(out, text->at, text->length); /* unchanged */
      return;
    }
    const char value = (char)byte;
    tws_text_add_bytes(out, &value, 1);
    i += (size_t)n;
  }
}

static tws_code byte_level(decoder *d, tws_error *err) {
  tws_text bytes = {0}, text = {0};
  for (size_t i = 0; i < d->texts->count; i++) characters_to_bytes(&d->texts->item[i], &bytes);
  if (bytes.data) tws_utf8_repair(bytes.data, bytes.length, &text);
  if (bytes.failed) text.failed = 1;
  tws_text_free(&bytes);
  return put_one(d, &text, err);
}

static tws_code fuse(decoder *d, tws_error *err) {
  tws_text text = {0};
  for (size_t i = 0; i < d->texts->count; i++)
    tws_text_add_bytes(&text, d->texts->item[i].at, d->texts->item[i].length);
  return put_one(d, &text, err);
}

/* Returns the byte of a token such as "<0x0A>", or -1 if the token has another form. */
static int byte_of(const struct tws_text_range *text) {
  static const char digits[] = "0123456789ABCDEF";
  const char *at = text->at;
  if (text->length != 6 || memcmp(at, "<0x", 3) != 0 || at[5] != '>') return -1;
  const char high = at[3] >= 'a' && at[3] <= 'f' ? (char)(at[3] - 32) : at[3];
  const char low = at[4] >= 'a' && at[4] <= 'f' ? (char)(at[4] - 32) : at[4];
  const char *a = high ? strchr(digits, high) : NULL, *b = low ? strchr(digits, low) : NULL;
  return a && b ? (int)(16 * (a - digits) + (b - digits)) : -1;
}

/* Converts a run of bytes to text if they are valid UTF-8, else to one replacement character for each byte. */
static tws_code flush_bytes(const decoder *d, tws_text *run, size_t *count, tws_error *err) {
  if (run->length == 0) return run->failed ? tws_no_token_memory(err) : TWS_OK;
  const size_t bytes = run->length;
  if (tws_utf8_check(run->data, bytes) != SIZE_MAX) {
    run->length = 0;
    for (size_t i = 0; i < bytes; i++) tws_text_add_bytes(run, "\xef\xbf\xbd", 3);
  }
  TWS_TRY(put(d, (*count)++, run, err));
  run->length = 0;
  return TWS_OK;
}

static tws_code byte_fallback(decoder *d, tws_error *err) {
  tws_text run = {0};
  size_t count = 0;
  tws_code code = TWS_OK;
  for (size_t i = 0; i < d->texts->count && code == TWS_OK; i++) {
    const struct tws_text_range text = d->texts->item[i];
    const int byte = byte_of(&text);
    const char value = (char)byte;
    if (byte >= 0) {
      tws_text_add_bytes(&run, &value, 1);
      continue;
    }
    code = flush_bytes(d, &run, &count, err);
    d->texts->item[count++] = text;
  }
  if (code == TWS_OK) code = flush_bytes(d, &run, &count, err);
  tws_text_free(&run);
  d->texts->count = count;
  return code;
}

static tws_code replace_all(decoder *d, tws_error *err) {
  const size_t size = strlen(d->step->content);
  tws_text made = {0};
  tws_code code = TWS_OK;
  for (size_t i = 0; i < d->texts->count && code == TWS_OK; i++) {
    const struct tws_text_range text = d->texts->item[i];
    size_t begin = 0, end = 0;
    made.length = 0;
    for (size_t done = 0; code == TWS_OK && done < text.length; done = end) {
      if (d->growth.made + made.length + size > d->growth.most) code = tws_growth_exceeded(d->step, &d->growth, err);
      if (code != TWS_OK) break;
      code = tws_pattern_next(d->step->pattern, text.at, text.length, done, &begin, &end, err);
      if (code != TWS_OK) break;
      tws_text_add_bytes(&made, text.at + done, begin - done);
      if (begin < text.length) tws_text_add_bytes(&made, d->step->content, size);
    }
    if (code == TWS_OK) code = put(d, i, &made, err);
    d->growth.made += made.length;
  }
  tws_text_free(&made);
  return code;
}

static void strip_all(decoder *d) {
  const char *content = d->step->content;
  const size_t size = strlen(content);
  for (size_t i = 0; i < d->texts->count && size > 0; i++) {
    struct tws_text_range *text = &d->texts->item[i];
    for (int k = 0; k < d->step->left && text->length >= size && memcmp(text->at, content, size) == 0; k++) {
      text->at += size;
      text->length -= size;
    }
    for (int k = 0;
         k < d->step->right && text->length >= size && memcmp(text->at + text->length - size, content, size) == 0; k++)
      text->length -= size;
  }
}

/* Replaces the marks of blanks by blanks, and removes the blanks that encoding added before the first text. */
static tws_code metaspace(decoder *d, tws_error *err) {
  const char *mark = d->step->content;
  const size_t size = strlen(mark);
  tws_text made = {0};
  tws_code code = TWS_OK;
  for (size_t i = 0; i < d->texts->count && code == TWS_OK; i++) {
    const struct tws_text_range text = d->texts->item[i];
    made.length = 0;
    for (size_t k = 0; k < text.length;) {
      const int is = text.length - k >= size && memcmp(text.at + k, mark, size) == 0;
      if (!is)
        tws_text_add_bytes(&made, text.at + k, 1);
      else if (i > 0 || !d->step->prepend)
        tws_text_add(&made, " ");
      k += is ? size : 1;
    }
    code = put(d, i, &made, err);
  }
  tws_text_free(&made);
  return code;
}

static void replace_word(tws_text *text, const char *from, const char *to) {
  tws_text made = {0};
  const size_t size = strlen(from);
  if (text->failed || !text->data || !strstr(text->data, from)) return;
  for (size_t i = 0; i < text->length;) {
    const int is = text->length - i >= size && memcmp(text->data + i, from, size) == 0;
    tws_text_add_bytes(&made, is ? to : text->data + i, is ? strlen(to) : 1);
    i += is ? size : 1;
  }
  tws_text_free(text);
  *text = made;
}

/* Adds a blank before each token that begins a word; if the file says so, removes blanks before punctuation. */
static tws_code word_pieces(decoder *d, tws_error *err) {
  static const char *const cleaned[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  const char *prefix = d->step->content;
  const size_t size = strlen(prefix);
  tws_code code = TWS_OK;
  for (size_t i = 0; i < d->texts->count && code == TWS_OK; i++) {
    const struct tws_text_range text = d->texts->item[i];
    const int continues = i > 0 && text.length >= size && memcmp(text.at, prefix, size) == 0;
    tws_text made = {0};
    if (i > 0 && !continues) tws_text_add(&made, " ");
    tws_text_add_bytes(&made, text.at + (continues ? size : 0), text.length - (continues ? size : 0));
    for (size_t k = 0; d->step->cleans && k < sizeof cleaned / sizeof *cleaned; k++)
      replace_word(&made, cleaned[k][0], cleaned[k][1]);
    code = put(d, i, &made, err);
    tws_text_free(&made);
  }
  return code;
}

static tws_code run_step(decoder *d, tws_error *err) {
  switch ((enum kind)d->step->kind) {
    case DECODE_ByteLevel:
      return byte_level(d, err);
    case DECODE_Metaspace:
      return metaspace(d, err);
    case DECODE_Replace:
      return replace_all(d, err);
    case DECODE_ByteFallback:
      return byte_fallback(d, err);
    case DECODE_Fuse:
      return fuse(d, err);
    case DECODE_Strip:
      strip_all(d);
      return TWS_OK;
    case DECODE_WordPiece:
      return word_pieces(d, err);
  }
  return TWS_OK;
}

static size_t bytes_of(const tws_texts *texts) {
  size_t bytes = 0;
  for (size_t i = 0; i < texts->count; i++) bytes += texts->item[i].length;
  return bytes;
}

tws_code tws_decode(const tws_token_steps *steps, int none, tws_texts *texts, tws_arena *arena, tws_text *out,
                    tws_error *err) {
  const tws_growth growth = tws_growth_of(bytes_of(texts));
  for (int i = 0; i < steps->count; i++) {
    decoder d = {&steps->step[i], texts, arena, growth};
    TWS_TRY(run_step(&d, err));
    if (bytes_of(texts) > growth.most) return tws_growth_exceeded(d.step, &growth, err);
  }
  tws_text_add_bytes(out, "", 0);
  for (size_t i = 0; i < texts->count; i++) {
    if (none && i > 0) tws_text_add(out, " ");
    tws_text_add_bytes(out, texts->item[i].at, texts->item[i].length);
  }
  return out->failed ? tws_no_token_memory(err) : TWS_OK;
}
