/* Private to base/: rewrites Hjson (https://hjson.github.io/syntax.html), which DeepSpeed accepts for its
 * configurations, as JSON. Hjson allows keys and texts without quotes or in single ones, texts of several lines between
 * ''', line ends in place of commas, and no braces around the document. The program tries Hjson if a text is not valid
 * JSON, and checks the result with the strict scan. */
#ifndef TWS_BASE_HJSON_H
#define TWS_BASE_HJSON_H

#include "base/json_scan.h"
#include "base/memory.h"

/* Rewrites `text`, which must be valid UTF-8 and followed by a zero byte, as JSON into `out`. `marks` receives the
 * positions of the values in the original text, as from tws_json_scan(). The caller frees out->data and marks->items,
 * also after an error. An error's message has the position in the original text. */
tws_code tws_hjson_rewrite(const char *text, const char *name, tws_text *out, tws_json_marks *marks, tws_error *err);

#endif
