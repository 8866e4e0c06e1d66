/* Private to base/: Hjson (https://hjson.github.io/syntax.html), as DeepSpeed reads its configurations, rewritten as
 * JSON: keys and texts without quotes or in single ones, texts of several lines between ''', line ends in place of
 * commas, no braces around the document. Called where a text is no JSON, and followed by the strict scan of what was
 * written. */
#ifndef TWS_BASE_HJSON_H
#define TWS_BASE_HJSON_H

#include "base/json_scan.h"
#include "base/memory.h"

/* `marks` has the places of the values in the original, as tws_json_scan() finds them. The text is valid UTF-8 and
 * followed by a zero byte. The caller frees out and marks->items, also after an error, which names the place. */
tws_code tws_hjson_rewrite(const char *text, const char *name, tws_text *out, tws_json_marks *marks, tws_error *err);

#endif
