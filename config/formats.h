/* Reads and writes configurations of other programs (Megatron-LM, torchtitan, accelerate, ...). The settings of a
 * training (tws_settings) are common to all formats; each format holds some of them. For each format a table relates
 * settings to paths in a tree of keys (JSON, TOML, YAML, or an argument list as keys), and a few functions convert
 * settings that no single key holds. Keys of a file that have no row in the table are reported by name. */
#ifndef TWS_CONFIG_FORMATS_H
#define TWS_CONFIG_FORMATS_H

#include "config/settings.h"

/* The numbers of ranks and the sizes of the model, which some formats contain. */
typedef struct tws_format_shape {
  int64_t ranks, nodes, replicas;
  /* experts: number of experts of a layer; 0: the model has no experts */
  int64_t layers, hidden, heads, kv_heads, intermediate, vocabulary, positions, experts;
  int gated;        /* 1: the MLP is gated (SwiGLU) */
  const char *disk; /* folder for states on a disk; NULL: the configuration names none */
} tws_format_shape;

/* Writes the settings as a file of the format to `out`; files of TWS_FORMAT_MEGATRON have one argument per line. Fails
 * with TWS_UNSUPPORTED for formats that can only be read. */
tws_code tws_format_write(tws_config_format format, const tws_settings *settings, const tws_format_shape *shape,
                          tws_text *out, tws_error *err);
/* Returns 1 if a file of the format can hold this setting with its value in `settings`, so that reading the file
 * returns the same value. */
int tws_format_holds(tws_config_format format, const tws_settings *settings, tws_setting setting);
/* Reads Megatron's arguments from the text of a shell script or from a list, and returns them as a tree of keys in
 * *out. It skips comments and joins continued lines; it does not expand shell variables. */
tws_code tws_format_arguments(const char *text, const char *name, cJSON **out, tws_error *err);
/* Reads a configuration file of another program into `settings`. If the text is not such a file, it reads nothing and
 * sets *format to TWS_FORMAT_NONE. unread: receives a sentence that lists the keys without a row in the format's table,
 * and values that are read as another one, since this program lacks what they mean; it stays empty if there are none.
 * Fails with TWS_INVALID for a value that has no equivalent. */
tws_code tws_format_read(const char *text, size_t length, const char *name, tws_config_format *format,
                         tws_settings *settings, tws_text *unread, tws_error *err);

#endif
