/* Files as torch.save writes them, byte by byte: pickles of protocol 2 and the archive around them. */
#ifndef TESTS_TORCH_WRITER_H
#define TESTS_TORCH_WRITER_H

#include <check.h>
#include <lzma.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static inline void put_number(tws_text *to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) {
    const char byte = (char)(value >> 8 * i & 255);
    tws_text_add_bytes(to, &byte, 1);
  }
}

/* An archive in the making: entries "archive/<name>", one after another. `method` 0: stored without compression. */
typedef struct torch_archive {
  tws_text file, list;
  int count, method;
} torch_archive;

static inline void archive_add(torch_archive *a, const char *name, const void *bytes, size_t count) {
  char path[128];
  const int length = snprintf(path, sizeof path, "archive/%s", name);
  const uint64_t at = a->file.length;
  const uint32_t crc = lzma_crc32(bytes, count, 0);
  for (int central = 0; central < 2; central++) {
    tws_text *to = central ? &a->list : &a->file;
    put_number(to, central ? 0x02014b50 : 0x04034b50, 4);
    if (central) put_number(to, 0, 2);
    put_number(to, 0, 4); /* version, flags */
    put_number(to, (uint64_t)a->method, 2);
    put_number(to, 0, 4); /* time */
    put_number(to, crc, 4);
    put_number(to, count, 4);
    put_number(to, count, 4);
    put_number(to, (uint64_t)length, 2);
    put_number(to, 0, 2);
    if (central) put_number(to, 0, 8);
    if (central) put_number(to, 0, 2);
    if (central) put_number(to, at, 4);
    tws_text_add_bytes(to, path, (size_t)length);
  }
  tws_text_add_bytes(&a->file, bytes, count);
  a->count++;
}

/* Writes the archive to a file and frees its memory. */
static inline void archive_write(torch_archive *a, const char *path) {
  const uint64_t at = a->file.length;
  tws_text_add_bytes(&a->file, a->list.data, a->list.length);
  put_number(&a->file, 0x06054b50, 4);
  put_number(&a->file, 0, 4);
  put_number(&a->file, (uint64_t)a->count, 2);
  put_number(&a->file, (uint64_t)a->count, 2);
  put_number(&a->file, a->list.length, 4);
  put_number(&a->file, at, 4);
  put_number(&a->file, 0, 2);
  FILE *file = fopen(path, "wb");
  ck_assert(file && !a->file.failed && fwrite(a->file.data, a->file.length, 1, file) == 1);
  fclose(file);
  tws_text_free(&a->file);
  tws_text_free(&a->list);
}

static inline void pickle_text(tws_text *to, const char *text) {
  tws_text_add_bytes(to, "X", 1);
  put_number(to, strlen(text), 4);
  tws_text_add(to, "%s", text);
}

static inline void pickle_integer(tws_text *to, int64_t value) {
  tws_text_add_bytes(to, "\x8a\x08", 2);
  put_number(to, (uint64_t)value, 8);
}

/* Adds the pickle of a tensor that consists of all elements of storage `key`. */
static inline void pickle_tensor(tws_text *to, const char *type, const char *key, const int64_t *shape, int dims) {
  int64_t elements = 1, stride = 1;
  for (int i = 0; i < dims; i++) elements *= shape[i];
  tws_text_add(to, "ctorch._utils\n_rebuild_tensor_v2\n((");
  pickle_text(to, "storage");
  tws_text_add(to, "ctorch\n%s\n", type);
  pickle_text(to, key);
  pickle_text(to, "cpu");
  pickle_integer(to, elements);
  tws_text_add(to, "tQK");
  put_number(to, 0, 1);
  tws_text_add(to, "(");
  for (int i = 0; i < dims; i++) pickle_integer(to, shape[i]);
  tws_text_add(to, "t(");
  for (int i = 0; i < dims; i++) {
    stride = 1;
    for (int k = i + 1; k < dims; k++) stride *= shape[k];
    pickle_integer(to, stride);
  }
  tws_text_add(to,
               "t\x89"
               "ccollections\nOrderedDict\n)RtR");
}

#endif
