/* Configurations of other programs: which of a training's settings each holds, to and from its files.
 *
 * A format is a table of paths in a tree of keys (JSON, TOML, YAML, or an argument list as keys), with a few rules
 * over it. Keys that no row reads are named. */
#ifndef TWS_CONFIG_FORMATS_H
#define TWS_CONFIG_FORMATS_H

#include "config/settings.h"

/* The ranks and the model, which some formats state. */
typedef struct tws_format_shape {
  int64_t ranks, nodes, replicas;
  int64_t layers, hidden, heads, kv_heads, intermediate, vocabulary, positions, experts; /* experts 0: none */
  int gated;                                                                             /* SwiGLU */
} tws_format_shape;

/* The settings as a file of the format. MEGATRON: one argument a line. TWS_UNSUPPORTED: files of this format are read
 * alone. */
tws_code tws_format_write(tws_config_format format, const tws_settings *settings, const tws_format_shape *shape,
                          tws_text *out, tws_error *err);
/* Returns 1 if a file of the format holds this setting as these settings have it: it is read back as it was. */
int tws_format_holds(tws_config_format format, const tws_settings *settings, tws_setting setting);
/* Megatron's arguments from a text of a shell script or a list, as a tree of keys; comments and continued lines are
 * read, variables are not. */
tws_code tws_format_arguments(const char *text, const char *name, cJSON **out, tws_error *err);
/* Reads a file of another program: NONE, and nothing read, where it is none. unread: a sentence with the keys that have
 * no row, where there are some. TWS_INVALID: a value that no setting has. */
tws_code tws_format_read(const char *text, size_t length, const char *name, tws_config_format *format,
                         tws_settings *settings, tws_text *unread, tws_error *err);

#endif
