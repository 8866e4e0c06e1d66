/* Texts of gzip files, with zlib where the build has it. */
#ifndef TWS_TRACES_GZIP_H
#define TWS_TRACES_GZIP_H

#include "base/memory.h"
#include "base/status.h"

int tws_gzip_is_named(const char *path); /* returns 1 for a path that ends with ".gz" */
/* Fails with TWS_UNSUPPORTED if the path ends with ".gz" and the build has no zlib. */
tws_code tws_gzip_check(const char *path, tws_error *err);
/* Writes a file: compressed if its name ends with ".gz". */
tws_code tws_gzip_write(const char *path, const char *data, size_t length, tws_error *err);
/* Replaces *text by its uncompressed contents if it begins as gzip files do. Refuses more than 64 MiB, and
 * damaged data. */
tws_code tws_gzip_expand(const char *path, char **text, size_t *length, tws_error *err);

#endif
