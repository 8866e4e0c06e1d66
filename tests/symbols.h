/* Finds which source file calls which, read from the symbol tables of a build's object files (ELF, 64 bits). A file
 * calls another where an undefined symbol of its object is defined by the other's. Objects of one source that is
 * compiled several times, such as kernels for several instruction sets, count as one file. */
#ifndef TESTS_SYMBOLS_H
#define TESTS_SYMBOLS_H

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { SYMBOLS_FILES = 1024, SYMBOLS_NAME = 128 };

typedef struct symbol {
  char *name;
  int file;
} symbol;

typedef struct symbol_list {
  symbol *items;
  size_t count, room;
} symbol_list;

typedef struct calls {
  int count;
  char files[SYMBOLS_FILES][SYMBOLS_NAME];          /* paths from the root of the sources, such as "plan/zero.c" */
  unsigned char edge[SYMBOLS_FILES][SYMBOLS_FILES]; /* edge[a][b]: a calls b */
  symbol_list defined, wanted;
} calls;

static inline void symbols_add(symbol_list *list, const char *name, int file) {
  if (list->count == list->room) {
    list->room = list->room ? 2 * list->room : 4096;
    list->items = realloc(list->items, list->room * sizeof *list->items);
    if (!list->items) abort();
  }
  list->items[list->count++] = (symbol){strdup(name), file};
}

static inline int symbols_by_name(const void *a, const void *b) {
  return strcmp(((const symbol *)a)->name, ((const symbol *)b)->name);
}

/* Returns the number of the file of that name, which is added where it is new. */
static inline int calls_file(calls *c, const char *name) {
  for (int i = 0; i < c->count; i++)
    if (strcmp(c->files[i], name) == 0) return i;
  if (c->count == SYMBOLS_FILES || strlen(name) >= SYMBOLS_NAME) abort();
  memcpy(c->files[c->count], name, strlen(name) + 1);
  return c->count++;
}

/* Adds the global symbols of an object file to the lists; bytes are aligned as by malloc(). Returns 0 if it is no
 * 64-bit ELF object, else 1. */
static inline int calls_read_object(calls *c, int file, const unsigned char *bytes, size_t size) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)(const void *)bytes;
  if (size < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
    return 0;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(bytes + header->e_shoff);
  for (int s = 0; s < header->e_shnum; s++) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const Elf64_Sym *table = (const Elf64_Sym *)(const void *)(bytes + sections[s].sh_offset);
    const char *names = (const char *)bytes + sections[sections[s].sh_link].sh_offset;
    for (size_t i = 0; i < sections[s].sh_size / sizeof *table; i++)
      if (ELF64_ST_BIND(table[i].st_info) == STB_GLOBAL)
        symbols_add(table[i].st_shndx == SHN_UNDEF ? &c->wanted : &c->defined, names + table[i].st_name, file);
  }
  return 1;
}

/* Connects each file with the files that define the symbols that it needs. A symbol that several files define, such as
 * a module's entry, connects a file with none of the others if it defines the symbol itself, else with all of them. */
static inline void calls_connect(calls *c) {
  qsort(c->defined.items, c->defined.count, sizeof *c->defined.items, symbols_by_name);
  for (size_t i = 0; i < c->wanted.count; i++) {
    const symbol *at = bsearch(&c->wanted.items[i], c->defined.items, c->defined.count, sizeof *at, symbols_by_name);
    if (!at) continue;
    while (at > c->defined.items && symbols_by_name(at - 1, at) == 0) at--;
    const symbol *end = c->defined.items + c->defined.count;
    int own = 0;
    for (const symbol *d = at; d < end && symbols_by_name(d, at) == 0; d++) own |= d->file == c->wanted.items[i].file;
    for (const symbol *d = at; !own && d < end && symbols_by_name(d, at) == 0; d++)
      c->edge[c->wanted.items[i].file][d->file] = 1;
  }
}

static inline void calls_free(calls *c) {
  symbol_list *lists[] = {&c->defined, &c->wanted};
  for (int l = 0; l < 2; l++) {
    for (size_t i = 0; i < lists[l]->count; i++) free(lists[l]->items[i].name);
    free(lists[l]->items);
  }
  free(c);
}

/* Finds circles of calls as strongly connected components, by Tarjan's algorithm. */
typedef struct circles {
  const calls *calls;
  int circle[SYMBOLS_FILES]; /* index of the circle of calls that each file belongs to */
  int count, seen[SYMBOLS_FILES], low[SYMBOLS_FILES], stack[SYMBOLS_FILES], depth, visited;
} circles;

static inline void circles_visit(circles *t, int at) {
  t->seen[at] = t->low[at] = ++t->visited;
  t->stack[t->depth++] = at;
  for (int to = 0; to < t->calls->count; to++) {
    if (!t->calls->edge[at][to] || (t->seen[to] && t->circle[to] >= 0)) continue;
    if (!t->seen[to]) circles_visit(t, to);
    if (t->low[to] < t->low[at]) t->low[at] = t->low[to];
  }
  if (t->low[at] != t->seen[at]) return;
  int file;
  do {
    file = t->stack[--t->depth];
    t->circle[file] = t->count;
  } while (file != at);
  t->count++;
}

static inline circles *circles_of(const calls *c) {
  circles *t = calloc(1, sizeof *t);
  if (!t) abort();
  t->calls = c;
  for (int i = 0; i < c->count; i++) t->circle[i] = -1;
  for (int i = 0; i < c->count; i++)
    if (!t->seen[i]) circles_visit(t, i);
  return t;
}

#endif
