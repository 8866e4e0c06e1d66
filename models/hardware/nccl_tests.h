/* Reads the output of nccl-tests (all_reduce_perf and its siblings) as measured collectives of a profile. */
#ifndef TWS_MODELS_NCCL_TESTS_H
#define TWS_MODELS_NCCL_TESTS_H

#include "base/json.h"
#include "models/kernel.h"

enum { TWS_NCCL_TESTS_ROWS = 256 };
typedef struct tws_nccl_log {
  tws_collective collective;
  int ranks, count;
  double samples[TWS_NCCL_TESTS_ROWS][2]; /* bytes of the whole tensor; seconds (out of place) */
} tws_nccl_log;

/* Reads a log. The collective is named in the log, or inferred from its columns: whether there are reduction operations
 * and roots, and whether elements are counted once or per rank. Fails with TWS_INVALID for a log without results, of
 * one rank, of several nodes (a profile's tables are for one node), or of a test for which profiles have no table. */
tws_code tws_nccl_tests_read(const char *text, const char *name, tws_nccl_log *out, tws_error *err);
/* Adds the log to a profile (a built-in name or a file), and replaces the profile's table of that collective and number
 * of ranks. *out is the new profile's JSON, which the caller deletes. */
tws_code tws_nccl_tests_into(const tws_nccl_log *log, const char *name, const char *profile, cJSON **out,
                             tws_error *err);
/* Writes the log to the JSON object of a valid profile, where it replaces the table of the same collective and number
 * of ranks. Adds to the profile's provenance the tool that measured it (by: "nccl-tests") and the name of the log. */
void tws_nccl_tests_add(const tws_nccl_log *log, const char *by, const char *name, cJSON *root);

#endif
