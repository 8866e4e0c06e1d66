/* Published figures: a number, its confidence (read in a source, recalled or derived) and its sources. Devices
 * (models/hardware/devices.h) and boxes (config/boxes.h) are lists of such figures. */
#ifndef TWS_CONFIG_FIGURES_H
#define TWS_CONFIG_FIGURES_H

#include <cjson/cJSON.h>

typedef enum tws_mark {
  TWS_MARK_SOURCED,  /* read in one of the listed sources */
  TWS_MARK_RECALLED, /* recalled from memory, without a source */
  TWS_MARK_DERIVED,  /* computed from other figures of the same list */
  TWS_MARK_COUNT
} tws_mark;
const char *tws_mark_name(int mark); /* returns "sourced", "recalled" or "derived" */

typedef struct tws_figure {
  const char *key; /* name that includes the unit, such as "peak.bf16" or "hbm_GBps"; NULL ends a list */
  double value;
  int mark;            /* tws_mark */
  const char *sources; /* keys of config/figure_sources.def, separated by spaces; "" unless sourced */
} tws_figure;

/* Returns the value of a figure, or NaN if the list does not have it. */
double tws_figure_value(const tws_figure *list, const char *key);
/* Returns the text of a source (title, address) by its key in figure_sources.def, the first `length` characters of
 * `key`; NULL if there is no such key. */
const char *tws_figure_source(const char *key, size_t length);
/* Returns the key of the i-th source, in the order of the file, and sets *text; NULL after the last. */
const char *tws_figure_source_nth(int i, const char **text);
/* tws_figures_json() returns a list of figures as {"hbm_gb": {"value": 24, "confidence": "sourced", "sources":
 * ["TPU_DB"]}, ...}, tws_figures_sources_json() the sources that it names as {"TPU_DB": "...", ...}; NULL if memory is
 * exhausted. The caller deletes them. */
cJSON *tws_figures_json(const tws_figure *list);
cJSON *tws_figures_sources_json(const tws_figure *list);

#endif
