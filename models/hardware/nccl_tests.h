/* Reads the output of nccl-tests (all_reduce_perf and its siblings) as measured collectives of a profile. */
#ifndef TWS_MODELS_NCCL_TESTS_H
#define TWS_MODELS_NCCL_TESTS_H

#include "base/json.h"
#include "models/kernel.h"

enum { TWS_NCCL_TESTS_ROWS = 256 };
typedef struct tws_nccl_log {
  tws_collective collective;
  int ranks, count;
  double samples[TWS_NCCL_TESTS_ROWS][2]; /* bytes of the whole tensor; seconds, out of place */
} tws_nccl_log;

/* The collective is the one that the log names, or what its columns say: sums or none, a root or none, and whether an
 * element is counted once or for each rank. TWS_INVALID for a log without results, of one rank, of several nodes (a
 * profile's tables are of one), or of a test that a profile has no table of. */
tws_code tws_nccl_tests_read(const char *text, const char *name, tws_nccl_log *out, tws_error *err);
/* Puts the log into a profile (a built-in name or a file), in place of what it has of that collective and number of
 * ranks. *out is the new file's root; the caller deletes it. */
tws_code tws_nccl_tests_into(const tws_nccl_log *log, const char *name, const char *profile, cJSON **out,
                             tws_error *err);

#endif
