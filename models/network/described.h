/* Networks that a file describes module by module (docs/networks.md); private to models/network. A file is read in two
 * passes: described_list.c lists the modules, with repetitions written out and names resolved, and described_modules.c
 * adds each of them to the graph. described.c reads files of one network, described_turns.c files of several networks
 * that are trained alternately. */
#ifndef TWS_MODELS_NETWORK_DESCRIBED_H
#define TWS_MODELS_NETWORK_DESCRIBED_H

#include "models/network/build.h"

enum { TWS_DESCRIBED_MODULES = 4096, TWS_DESCRIBED_OPERANDS = 2, TWS_DESCRIBED_SIDE = 1 << 14 };

/* Where indices of described modules are expected, -1 - i stands for input i of the network. */
enum { TWS_DESCRIBED_INPUT = -1, TWS_DESCRIBED_PICTURES = 3, TWS_DESCRIBED_INPUTS = TWS_DESCRIBED_PICTURES + 1 };

struct tws_described;
typedef struct tws_described_module {
  const cJSON *item; /* its object in the file */
  const struct tws_described_type *type;
  const char *name;
  const char *prefix;             /* what precedes the names of its block: "block.0.", or "" */
  int layer;                      /* layer of a pipeline */
  int in[TWS_DESCRIBED_OPERANDS]; /* indices of the described modules, or < 0 inputs, that it reads */
  int last_reader;                /* index of the last described module that reads it; its own index: no module does */
  uint32_t value;                 /* its output in the graph */
} tws_described_module;

/* An input of the network: pictures, or noise of the form of pictures. */
typedef struct tws_described_input {
  const char *name;
  const cJSON *item; /* its object in the file */
  uint32_t in_graph; /* index of the graph's input; TWS_NONE: the modules read tws_described.given */
  int is_read;       /* 1: some module reads it */
  int64_t side, channels;
} tws_described_input;

typedef struct tws_described {
  tws_network_builder *b;
  tws_described_module *modules;
  int count;
  int of_pictures; /* 1: the inputs are pictures; 0: tokens */
  tws_described_input inputs[TWS_DESCRIBED_INPUTS];
  int input_count; /* 0: of tokens */
  uint32_t given;  /* the value that the modules read as their input instead, or TWS_NONE */
  double std;      /* deviation of initial weights; 0: 1 / sqrt(3 n) for weights that sum n products */
} tws_described;

/* A loss: what the output of a module is compared with and how. */
typedef struct tws_described_loss {
  const char *name;
  const cJSON *item; /* its object in the file */
  int of;            /* index of the described module */
  int label;         /* index of the label in a record */
  tws_loss_kind kind;
  double weight; /* in the sum of losses */
} tws_described_loss;

/* A type of module of the file. inputs: number of values that it reads; keys: the keys of this type in addition to
 * those of all types. The builder reads the keys, adds modules to the graph and sets m->value. in_graph: the type of
 * the module that the builder adds or, if there are several, of the one after which the type is named. */
typedef struct tws_described_type {
  const char *name;
  int inputs;
  const char *const *keys;
  tws_code (*build)(tws_described *d, tws_described_module *m, tws_error *err);
  tws_module_type in_graph;
} tws_described_type;

extern const char tws_described_hint[]; /* where the format of a network file is described */
/* Reads a list of modules into d->modules; names of modules begin with `prefix`. Adds the number of layers to
 * *layers. */
tws_code tws_described_read_list(tws_described *d, const cJSON *list, const char *prefix, int *layers, tws_error *err);
/* Fails with TWS_INVALID if no module reads an input, or the output of a module whose last_reader is itself and that is
 * not the last one. */
tws_code tws_described_check_read(const tws_described *d, tws_error *err);
/* Adds the listed modules to the graph. */
tws_code tws_described_build(tws_described *d, tws_error *err);
/* Fails with TWS_INVALID unless module `of` scores this number of classes, or with one output says the class. */
tws_code tws_described_check_scores(const tws_described *d, int of, int64_t classes, tws_loss_kind loss,
                                    tws_error *err);
/* Reads {"side": ..., "channels": ...}. */
tws_code tws_described_read_pictures(const tws_json *json, const cJSON *pictures, int64_t *side, int64_t *channels,
                                     tws_error *err);
/* Makes the network one of pictures of this size, with net->vocabulary classes. */
void tws_described_begin_pictures(tws_network *net, int64_t side, int64_t channels);
/* Reads the key "loss" of an object; `fallback` without the key. */
tws_code tws_described_read_loss(const tws_json *json, const cJSON *object, tws_loss_kind fallback, tws_loss_kind *kind,
                                 tws_error *err);
/* Reads the key "weight" of a loss; 1 without the key. */
tws_code tws_described_read_weight(const tws_json *json, const cJSON *loss, double *weight, tws_error *err);
/* Adds a loss of scores; targets: an input of the network. */
void tws_described_build_loss(tws_network_builder *b, const char *name, uint32_t scores, uint32_t targets,
                              int64_t classes, tws_loss_kind kind, double weight);
/* Builds the networks of a file with the key "networks" (docs/networks.md). */
tws_code tws_build_described_turns(tws_network_builder *b, tws_error *err);

/* Returns the earlier module that a module with this prefix means by `name`, first of its own block; < 0: there is
 * none. */
int tws_described_named(const tws_described *d, const char *prefix, const char *name);
const tws_described_type *tws_described_type_named(const char *name); /* NULL: there is none */
/* Writes the names of all types into `hint`, those that differ least from `word` first. */
void tws_described_types_hint(const char *word, char *hint, size_t size);

#endif
