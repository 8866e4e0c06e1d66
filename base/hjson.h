/* Private to base/: rewrites Hjson (https://hjson.github.io/syntax.html), which DeepSpeed accepts for its
 * configurations, as JSON. Hjson allows keys and texts without quotes or in single ones, texts of several lines
 * between ''', line ends in place of commas, and no braces around the document. It is tried where a text is no JSON,
 * and the strict scan reads the result. */
#ifndef TWS_BASE_HJSON_H
#define TWS_BASE_HJSON_H

#include "base/json_scan.h"
#include "base/memory.h"

/* `marks` receives the positions of the values in the original, as from tws_json_scan(). The text is valid UTF-8 and
 * followed by a zero byte. The caller frees out and marks->items, also after an error, which names the position. */
tws_code tws_hjson_rewrite(const char *text, const char *name, tws_text *out, tws_json_marks *marks, tws_error *err);

#endif
