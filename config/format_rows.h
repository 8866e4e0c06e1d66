/* Private to config/: the tables that relate the keys of other programs' formats to settings. */
#ifndef TWS_CONFIG_FORMAT_ROWS_H
#define TWS_CONFIG_FORMAT_ROWS_H

#include "config/formats.h"
#include "config/tree.h"

/* One setting and the key that holds it. path: the key's path in the tree of keys; words: "ours=theirs|ours=theirs",
 * this program's value and the format's value of the setting, if they differ; NULL: both use the same values. */
typedef struct tws_format_row {
  tws_setting setting;
  const char *path, *words;
} tws_format_row;

typedef struct tws_format_table {
  const tws_format_row *rows;
  size_t count;
  /* Functions for settings that no single key holds, called in addition to the rows; NULL: the format needs none. */
  void (*write)(const tws_settings *settings, const tws_format_shape *shape, cJSON *root);
  void (*read)(const cJSON *root, tws_settings *settings);
  /* Returns 1 if a file that write() wrote returns this setting when read() reads it, 0 if the format cannot hold it,
   * and -1 if the rows decide. */
  int (*holds)(const tws_settings *settings, tws_setting setting);
  const char *const *known; /* paths that read() uses, NULL-terminated */
  /* Returns 1 if read() uses a path for the value that it has; NULL: the values do not matter. */
  int (*reads)(const cJSON *root, const char *path);
  /* Adds what read() takes values for whose meaning this program lacks, separated by "; "; NULL: there are no such
   * values. */
  void (*explain)(const cJSON *root, tws_text *out);
} tws_format_table;

extern const tws_format_table tws_format_megatron, tws_format_megatron_deepspeed, tws_format_bridge,
    tws_format_torchtitan, tws_format_accelerate, tws_format_accelerate_fsdp, tws_format_trainer, tws_format_axolotl,
    tws_format_llama_factory, tws_format_deepspeed;

/* Returns 1 if Megatron's arguments have one that only Megatron-DeepSpeed knows. */
int tws_format_is_megatron_deepspeed(const cJSON *root);

#endif
