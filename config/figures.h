/* Published figures: a number, whether it was read somewhere, and where. Devices (models/hardware/devices.h) and boxes
 * (config/boxes.h) are lists of them. */
#ifndef TWS_CONFIG_FIGURES_H
#define TWS_CONFIG_FIGURES_H

#include <cjson/cJSON.h>

typedef enum tws_mark {
  TWS_MARK_SOURCED,  /* read in the sources named */
  TWS_MARK_RECALLED, /* from memory: no source was read */
  TWS_MARK_DERIVED,  /* computed from other figures of the same list */
  TWS_MARK_COUNT
} tws_mark;
const char *tws_mark_name(int mark); /* "sourced", "recalled", "derived" */

typedef struct tws_figure {
  const char *key; /* "peak.bf16", "hbm_GBps": the unit is in the name; NULL ends a list */
  double value;
  int mark;            /* tws_mark */
  const char *sources; /* keys of config/figure_sources.def, separated by spaces; "" unless sourced */
} tws_figure;

/* NaN where the list has no such figure. */
double tws_figure_value(const tws_figure *list, const char *key);
/* Returns the text that a key of figure_sources.def stands for; NULL: no such key. `length` characters of the key are
 * read. */
const char *tws_figure_source(const char *key, size_t length);
/* Keys and texts in the order of the file; NULL after the last. */
const char *tws_figure_source_nth(int i, const char **text);
/* "sourced, recalled": the marks that occur in a list. */
void tws_figures_confidence(const tws_figure *list, char *text, size_t size);
/* {"hbm_gb": {"value": 24, "confidence": "sourced", "sources": ["TPU_DB"]}, ...}, and {"TPU_DB": "...", ...} of the
 * sources that these name. NULL: no memory. The caller deletes them. */
cJSON *tws_figures_json(const tws_figure *list);
cJSON *tws_figures_sources_json(const tws_figure *list);

#endif
