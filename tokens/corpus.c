#include "tokens/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"

/* ---- writing ---- */

typedef struct writer {
  char path[PATH_MAX], index[PATH_MAX];
  tws_new_file to;
  FILE *file; /* writes to a duplicate of to.fd, or to memory for a stream, whose header is known only at the end */
  char *kept;
  size_t kept_bytes;
  int megatron, bytes; /* bytes per token: 2 or 4 */
  int64_t tokens;
  int32_t *sizes; /* [document] tokens, for Megatron's index */
  size_t documents, capacity;
} writer;

static tws_code cannot_write(const writer *w, tws_error *err) {
  return tws_output_failed(w->path, "write", err);
}

static tws_code writer_open(writer *w, const char *path, int megatron, int64_t vocabulary, tws_error *err) {
  const char header[1024] = {0};
  const size_t length = strlen(path);
  *w = (writer){.to.fd = -1, .megatron = megatron, .bytes = vocabulary <= 65536 ? 2 : 4};
  snprintf(w->path, sizeof w->path, "%s", path);
  if (megatron && (length < 5 || strcmp(path + length - 4, ".bin") != 0))
    return tws_fail(err, TWS_USAGE, "name it, for example, book.bin; book.idx is written to the same folder",
                    "%s: a Megatron data set's name ends with .bin", path);
  if (megatron) snprintf(w->index, sizeof w->index, "%.*s.idx", (int)(length - 4), path);
  TWS_TRY(tws_new_file_open(w->path, &w->to, err));
  const int fd = w->to.is_stream ? -1 : fcntl(w->to.fd, F_DUPFD_CLOEXEC, 3);
  w->file = w->to.is_stream ? open_memstream(&w->kept, &w->kept_bytes) : fd >= 0 ? fdopen(fd, "wb") : NULL;
  if (!w->file && fd >= 0) close(fd);
  if (!w->file || (!megatron && fwrite(header, sizeof header, 1, w->file) != 1)) return cannot_write(w, err);
  return TWS_OK;
}

/* Writes token ids, little-endian as on every machine on which this program runs. */
static tws_code writer_add(writer *w, const int32_t *id, size_t count, tws_error *err) {
  for (size_t i = 0; i < count; i++)
    if (fwrite(&id[i], (size_t)w->bytes, 1, w->file) != 1) return cannot_write(w, err);
  w->tokens += (int64_t)count;
  if (!w->megatron) return TWS_OK;
  if (count > INT32_MAX) return tws_fail(err, TWS_INVALID, NULL, "%s: a document is too long", w->path);
  if (tws_reserve(&w->sizes, &w->capacity, w->documents + 1, sizeof *w->sizes))
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  w->sizes[w->documents++] = (int32_t)count;
  return TWS_OK;
}

/* Writes Megatron's index: magic number, version, type, numbers of sequences and of document bounds, sizes, offsets in
 * bytes, and bounds. */
static tws_code write_index(const writer *w, tws_error *err) {
  tws_text out = {0};
  const uint64_t version = 1, documents = w->documents, bounds = documents + 1;
  const char type = w->bytes == 2 ? 8 : 4; /* uint16 or int32 */
  uint64_t at = 0;
  tws_text_add_bytes(&out, "MMIDIDX\0\0", 9);
  tws_text_add_bytes(&out, (const char *)&version, 8);
  tws_text_add_bytes(&out, &type, 1);
  tws_text_add_bytes(&out, (const char *)&documents, 8);
  tws_text_add_bytes(&out, (const char *)&bounds, 8);
  if (documents) tws_text_add_bytes(&out, (const char *)w->sizes, documents * sizeof *w->sizes);
  for (size_t i = 0; i < documents; i++) {
    tws_text_add_bytes(&out, (const char *)&at, 8);
    at += (uint64_t)w->sizes[i] * (uint64_t)w->bytes;
  }
  for (uint64_t i = 0; i < bounds; i++) tws_text_add_bytes(&out, (const char *)&i, 8);
  const tws_code code = out.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory")
                                   : tws_write_file(w->index, out.data, out.length, err);
  tws_text_free(&out);
  return code;
}

static tws_code writer_finish(writer *w, tws_error *err) {
  const int32_t header[3] = {w->bytes == 2 ? 20240520 : 20240801, w->bytes == 2 ? 1 : 7, (int32_t)w->tokens};
  if (!w->megatron && w->tokens > INT32_MAX)
    return tws_fail(err, TWS_INVALID, "--megatron has room for more", "%s: more than 2^31 tokens", w->path);
  int bad = !w->megatron && (fseek(w->file, 0, SEEK_SET) != 0 || fwrite(header, sizeof header, 1, w->file) != 1);
  bad |= fseek(w->file, 0, SEEK_END) != 0 || fflush(w->file) != 0;
  if (bad) return cannot_write(w, err);
  if (w->to.is_stream) TWS_TRY(tws_write_all(w->to.fd, w->path, w->kept, w->kept_bytes, err));
  if (w->megatron) TWS_TRY(write_index(w, err));
  return tws_new_file_close(&w->to, TWS_OK, err);
}

static void writer_close(writer *w) {
  if (w->file) fclose(w->file);
  free(w->kept);                                  /* allocated by open_memstream() */
  (void)tws_new_file_close(&w->to, TWS_IO, NULL); /* removes an unfinished file */
  tws_free(w->sizes);
}

/* ---- reading ---- */

typedef struct converter {
  const tws_corpus_request *request;
  tws_corpus_result *result;
  writer to, eval;
  tws_token_list tokens; /* tokens of one document */
} converter;

static tws_code tokenize(converter *c, const char *text, size_t length, tws_error *err) {
  c->tokens.count = 0;
  if (c->request->tokenizer) return tws_tokenizer_encode(c->request->tokenizer, text, length, 0, &c->tokens, err);
  for (size_t i = 0; i < length; i++) TWS_TRY(tws_token_add(&c->tokens, (unsigned char)text[i], err));
  return TWS_OK;
}

static tws_code read_text(converter *c, tws_error *err) {
  const tws_corpus_request *r = c->request;
  char *text = NULL;
  size_t length = 0;
  TWS_TRY(tws_read_file(r->from, INT32_MAX, &text, &length, err));
  uint32_t magic = 0;
  tws_code code = TWS_OK;
  if (length >= 1024) memcpy(&magic, text, sizeof magic);
  if (length == 0) code = tws_fail(err, TWS_INVALID, NULL, "%s is empty", r->from);
  if (magic == 20240520 || magic == 20240801)
    code = tws_fail(err, TWS_INVALID, "train takes it as it is", "%s is a file of tokens already", r->from);
  if (code == TWS_OK) {
    code = tokenize(c, text, length, err);
    if (code != TWS_OK) code = tws_fail_in(err, code, "%s", r->from);
  }
  tws_free(text);
  TWS_TRY(code);
  const size_t evaluates = r->eval_to ? (size_t)((double)c->tokens.count * r->eval_share) : 0;
  c->result->documents = 1;
  TWS_TRY(writer_add(&c->to, c->tokens.id, c->tokens.count - evaluates, err));
  return evaluates ? writer_add(&c->eval, c->tokens.id + c->tokens.count - evaluates, evaluates, err) : TWS_OK;
}

static tws_code read_line(converter *c, const char *line, size_t length, int64_t number, tws_error *err) {
  const tws_corpus_request *r = c->request;
  const char *text = NULL;
  char name[512];
  tws_json *json = NULL;
  snprintf(name, sizeof name, "%.400s, line %lld", r->from, (long long)number);
  TWS_TRY(tws_json_parse(line, length, name, &json, err));
  tws_code code = tws_json_string(json, json->root, r->field ? r->field : "text", 1, NULL, &text, err);
  if (code == TWS_OK) {
    code = tokenize(c, text, strlen(text), err);
    if (code == TWS_OK && c->result->end >= 0) code = tws_token_add(&c->tokens, c->result->end, err);
    if (code != TWS_OK) code = tws_fail_in(err, code, "%s", name);
  }
  tws_json_destroy(json);
  TWS_TRY(code);
  const int evaluates = r->eval_to && tws_random_uniform(0, 0, (uint64_t)c->result->documents) < r->eval_share;
  c->result->documents++;
  return writer_add(evaluates ? &c->eval : &c->to, c->tokens.id, c->tokens.count, err);
}

static tws_code read_lines(converter *c, tws_error *err) {
  char *line = NULL;
  int fd;
  size_t room = 0;
  ssize_t length;
  tws_code code = TWS_OK;
  TWS_TRY(tws_open_stream(c->request->from, &fd, err));
  FILE *file = fdopen(fd, "r");
  if (!file) close(fd);
  if (!file) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", c->request->from);
  for (int64_t number = 1; code == TWS_OK && (length = getline(&line, &room, file)) >= 0; number++)
    if (strspn(line, " \t\r\n") != (size_t)length) code = read_line(c, line, (size_t)length, number, err);
  if (code == TWS_OK && ferror(file)) code = tws_fail(err, TWS_IO, NULL, "%s: cannot be read", c->request->from);
  free(line); /* allocated by getline() */
  fclose(file);
  if (code == TWS_OK && c->result->documents == 0)
    code = tws_fail(err, TWS_INVALID, NULL, "%s: no line has a document", c->request->from);
  return code;
}

static tws_code convert(converter *c, tws_error *err) {
  const tws_corpus_request *r = c->request;
  const size_t length = strlen(r->from);
  const int lines = length > 6 && strcmp(r->from + length - 6, ".jsonl") == 0;
  c->result->vocabulary = r->tokenizer ? tws_tokenizer_vocabulary(r->tokenizer) : 256;
  c->result->end = r->tokenizer && lines ? tws_tokenizer_end(r->tokenizer) : -1;
  TWS_TRY(writer_open(&c->to, r->to, r->megatron, c->result->vocabulary, err));
  if (r->eval_to) TWS_TRY(writer_open(&c->eval, r->eval_to, r->megatron, c->result->vocabulary, err));
  TWS_TRY(lines ? read_lines(c, err) : read_text(c, err));
  c->result->tokens = c->to.tokens;
  c->result->eval_tokens = c->eval.tokens;
  TWS_TRY(writer_finish(&c->to, err));
  return r->eval_to ? writer_finish(&c->eval, err) : TWS_OK;
}

tws_code tws_corpus_convert(const tws_corpus_request *request, tws_corpus_result *result, tws_error *err) {
  converter *c = tws_calloc(1, sizeof *c);
  if (!c) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  *result = (tws_corpus_result){.end = -1};
  c->request = request;
  c->result = result;
  const tws_code code = convert(c, err);
  writer_close(&c->to);
  writer_close(&c->eval);
  tws_token_free(&c->tokens);
  tws_free(c);
  return code;
}
