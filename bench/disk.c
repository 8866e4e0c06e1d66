/* The disk tier compared with fio, on one file system, with one block size and depth: both alternate, since disks are
 * shared.
 *
 * bench-disk FOLDER [--block BYTES] [--depth N] [--mib N] [--rounds N] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "bench/support.h"
#include "real/real.h"

enum { MAX_ROUNDS = 99, OURS_READ = 0, OURS_WRITE, FIO_READ, FIO_WRITE, RATES };

/* Returns the bytes/s of fio with the same system calls, or NaN if fio is not installed or fails. fio reads and
 * overwrites an existing file. */
static double fio_rate(const char *folder, const tws_aio *aio, int64_t mib, const char *direction) {
  char file[4200], rw[32], block[48], depth[48], size[48];
  snprintf(file, sizeof file, "--filename=%s/fio.tmp", folder);
  snprintf(rw, sizeof rw, "--rw=%s", direction);
  snprintf(block, sizeof block, "--bs=%lld", (long long)aio->block_size);
  snprintf(depth, sizeof depth, "--iodepth=%lld", (long long)aio->queue_depth);
  snprintf(size, sizeof size, "--size=%lldm", (long long)mib);
  const char *const arguments[] = {
      "fio",           "--name=twinspeed",     file, rw, block, depth, "--ioengine=libaio", "--direct=1", size,
      "--overwrite=1", "--output-format=json", NULL};
  const tws_process process = {.arguments = arguments, .limit_s = 3600, .most_bytes = 1 << 20};
  tws_process_end end;
  if (tws_process_run(&process, &end, NULL) != TWS_OK) return NAN;
  const char *text = end.status == 0 && end.output.data ? strchr(end.output.data, '{') : NULL;
  cJSON *root = text ? cJSON_Parse(text) : NULL;
  tws_text_free(&end.output);
  const cJSON *job = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "jobs"), 0);
  const cJSON *rate = cJSON_GetObjectItem(cJSON_GetObjectItem(job, direction), "bw_bytes");
  const double found = cJSON_IsNumber(rate) ? rate->valuedouble : NAN;
  cJSON_Delete(root);
  return found;
}

int main(int argc, char **argv) {
  tws_aio aio = {.block_size = 1 << 20, .queue_depth = 8, .threads = 1, .overlap_events = 1};
  int64_t mib = 256;
  int rounds = 9, direct = 0, bad = argc < 2 || argc % 2 == 1;
  for (int i = 2; i + 1 < argc; i += 2) {
    const int64_t value = argument_number(argv[i + 1]);
    if (strcmp(argv[i], "--block") == 0)
      aio.block_size = value;
    else if (strcmp(argv[i], "--depth") == 0)
      aio.queue_depth = value;
    else if (strcmp(argv[i], "--mib") == 0)
      mib = value;
    else if (strcmp(argv[i], "--rounds") == 0)
      rounds = (int)value;
    else
      bad = 1;
  }
  if (bad || rounds < 1 || rounds > MAX_ROUNDS || mib < 1 || aio.block_size < 4096 || aio.queue_depth < 1) {
    fprintf(stderr, "usage: bench-disk FOLDER [--block BYTES] [--depth N] [--mib N] [--rounds N]\n");
    return 2;
  }
  const char *path = getenv("TWINSPEED_REAL_MODULE");
  void *symbol = module_symbol(path ? path : TWS_BUILD_DIR "/twinspeed_real.so", TWS_REAL_MODULE_SYMBOL);
  const tws_real_api *(*entry)(void);
  memcpy(&entry, &symbol, sizeof entry);
  static double rate[RATES][MAX_ROUNDS];
  tws_error err = {0};
  char file[2048];
  for (int i = -1; i < rounds; i++) { /* the first makes fio's file */
    const int at = i < 0 ? 0 : i;
    rate[FIO_WRITE][at] = fio_rate(argv[1], &aio, mib, "write");
    need(entry()->measure_disk(argv[1], &aio, (uint64_t)mib << 20, &rate[OURS_READ][at], &rate[OURS_WRITE][at], &direct,
                               &err),
         &err);
    rate[FIO_READ][at] = fio_rate(argv[1], &aio, mib, "read");
  }
  snprintf(file, sizeof file, "%s/fio.tmp", argv[1]);
  remove(file);
  static const char *const names[RATES] = {"twinspeed read", "twinspeed write", "fio read", "fio write"};
  double middle[RATES];
  printf("%lld MiB in blocks of %lld, %lld under way, %s; medians of %d rounds\n", (long long)mib,
         (long long)aio.block_size, (long long)aio.queue_depth, direct ? "direct" : "through the page cache", rounds);
  for (int k = 0; k < RATES; k++) printf("%-16s %9.1f MB/s\n", names[k], (middle[k] = median(rate[k], rounds)) / 1e6);
  printf("of fio's: read %.2f, write %.2f\n", middle[OURS_READ] / middle[FIO_READ],
         middle[OURS_WRITE] / middle[FIO_WRITE]);
  return 0;
}
