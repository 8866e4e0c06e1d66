/* Networks that a file describes module by module (docs/networks.md); private to models/network. A file is read in two
 * passes: described.c lists the modules, with repetitions written out and names resolved, and described_modules.c adds
 * each of them to the graph. */
#ifndef TWS_MODELS_NETWORK_DESCRIBED_H
#define TWS_MODELS_NETWORK_DESCRIBED_H

#include "models/network/build.h"

enum { TWS_DESCRIBED_MODULES = 4096, TWS_DESCRIBED_INPUTS = 2, TWS_DESCRIBED_SIDE = 1 << 14 };

/* Index of a described module, or the network's input. */
enum { TWS_DESCRIBED_INPUT = -1 };

struct tws_described;
typedef struct tws_described_module {
  const cJSON *item; /* its object in the file */
  const struct tws_described_type *type;
  const char *name;
  const char *prefix;           /* what precedes the names of its block: "block.0.", or "" */
  int layer;                    /* layer of a pipeline */
  int in[TWS_DESCRIBED_INPUTS]; /* described modules that it reads */
  int last_reader;              /* the last described module that reads it; its own index: none does */
  uint32_t value;               /* its output in the graph */
} tws_described_module;

typedef struct tws_described {
  tws_network_builder *b;
  tws_described_module *modules;
  int count;
  tws_loss_kind loss;
  int of_pictures; /* 1: the input is pictures; 0: tokens */
  uint32_t input;  /* the network's input of pictures, or TWS_NONE */
  double std;      /* deviation of initial weights; 0: 1 / sqrt(3 n) for weights that sum n products */
  int64_t side, channels;
} tws_described;

/* A type of module of the file. inputs: number of values that it reads; keys: those that no other type has. The builder
 * reads the keys, adds modules to the graph and sets m->value. in_graph: the type of the module that it adds; of
 * several, that of the one that gives it its name. */
typedef struct tws_described_type {
  const char *name;
  int inputs;
  const char *const *keys;
  tws_code (*build)(tws_described *d, tws_described_module *m, tws_error *err);
  tws_module_type in_graph;
} tws_described_type;

/* Returns the earlier module that a module with this prefix means by `name`, first of its own block; < 0: there is
 * none. */
int tws_described_named(const tws_described *d, const char *prefix, const char *name);
const tws_described_type *tws_described_type_named(const char *name); /* NULL: there is none */
/* Writes the names of all types into `hint`, those that differ least from `word` first. */
void tws_described_types_hint(const char *word, char *hint, size_t size);

#endif
