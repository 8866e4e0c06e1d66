/* Private to config/: the rows of other programs' formats. */
#ifndef TWS_CONFIG_FORMAT_ROWS_H
#define TWS_CONFIG_FORMAT_ROWS_H

#include "config/formats.h"
#include "config/tree.h"

/* words: "ours=theirs|ours=theirs" where they differ; NULL: the same value. */
typedef struct tws_format_row {
  tws_setting setting;
  const char *path, *words;
} tws_format_row;

typedef struct tws_format_table {
  const tws_format_row *rows;
  size_t count;
  /* Rules over the rows: settings that one key does not hold alone. */
  void (*write)(const tws_settings *settings, const tws_format_shape *shape, cJSON *root);
  void (*read)(const cJSON *root, tws_settings *settings);
  /* Returns 1 for a setting that rules hold, 0 for one that is not held, -1 where the rows decide. */
  int (*holds)(const tws_settings *settings, tws_setting setting);
  const char *const *known; /* paths that rules read, NULL-terminated */
} tws_format_table;

/* NULL: DeepSpeed's own, or none. */
const tws_format_table *tws_format_table_of(tws_config_format format);
extern const tws_format_table tws_format_megatron, tws_format_bridge, tws_format_torchtitan, tws_format_accelerate,
    tws_format_accelerate_fsdp, tws_format_trainer, tws_format_axolotl, tws_format_llama_factory, tws_format_deepspeed;

#endif
