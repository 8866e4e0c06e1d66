#include "real/agree.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/checksum.h"
#include "base/memory.h"
#include "checkpoint/folder.h"

enum { SAMPLES = 64, SAMPLE = 1 << 14, FILES = 2 };

/* Fingerprints of the files that a rank read, in the order in which they are compared. */
typedef struct reading {
  uint64_t model, file[FILES], lock; /* lock: fingerprint of the locked folder for saving, as this rank sees it */
  uint64_t fetches;                  /* 1: this rank does not see the checkpoint that is resumed */
  char host[64];
} reading;

/* Returns a fingerprint of a file's size and of samples spread over it, since hashing a whole file could take too long;
 * 0 if there is no file. */
static uint64_t sample_file(const char *path) {
  static unsigned char piece[SAMPLE];
  struct stat info;
  const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) info.st_size = 0;
  const uint64_t bytes = (uint64_t)info.st_size;
  uint64_t sum = bytes * UINT64_C(0x9e3779b97f4a7c15);
  for (uint64_t i = 0; bytes > 0 && i < SAMPLES; i++) {
    const uint64_t at = bytes > SAMPLE ? (bytes - SAMPLE) / (SAMPLES - 1) * i : 0;
    const ssize_t got = pread(fd, piece, SAMPLE, (off_t)at);
    if (got > 0) sum = (sum ^ tws_checksum(0, piece, (size_t)got)) * UINT64_C(0x100000001b3);
    if (bytes <= SAMPLE) break;
  }
  if (fd >= 0) close(fd);
  return sum;
}

static uint64_t sample_in(const char *folder, const char *name) {
  char path[TWS_FOLDER_SIZE + 32];
  if (!folder) return 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return sample_file(path);
}

static const char *difference(const tws_training *t, const reading *a, const reading *b) {
  const char *names[FILES] = {t->options->data, t->options->eval_data};
  if (a->model != b->model) return "the model";
  for (int i = 0; i < FILES; i++)
    if (a->file[i] != b->file[i]) return names[i];
  return NULL;
}

/* The result of the comparison, which rank 0 sends to all ranks. */
typedef struct verdict {
  char text[700]; /* the error's message, and in a second line its hint; "": no error */
  uint8_t far_writers[];
} verdict;

static void compare(const tws_training *t, const reading *mine, const reading *other, int rank, verdict *v) {
  const char *what = difference(t, mine, other);
  if (what && !v->text[0])
    snprintf(v->text, sizeof v->text,
             "%.300s is not the same on %.63s (rank %d) as on %.63s (rank 0)\n"
             "copy it to every node, or use a shared file system",
             what, other->host, rank, mine->host);
  v->far_writers[rank] = mine->lock != other->lock;
  t->far_readers[rank] = other->fetches != 0;
}

/* Logs once that some ranks do not see the folder for saving: each save then takes longer, and the folder on their
 * nodes stays empty. */
static void say_far(const tws_training *t, const reading *mine, const unsigned char *all, const uint64_t *offset,
                    const verdict *v) {
  int count = 0, first = 0;
  for (int r = t->world - 1; r > 0; r--)
    if (v->far_writers[r]) {
      count++;
      first = r;
    }
  if (count == 0) return;
  reading other;
  memcpy(&other, all + offset[first], sizeof other);
  tws_log_write(t->options->log, TWS_LOG_WARNING,
                "%.300s: %d of %d ranks (the first: rank %d, on %.63s) do not see the folder; what they save goes to "
                "%.63s through the network, and training waits for it",
                t->options->save, count, t->world, first, other.host, mine->host);
}

static tws_code judge(tws_training *t, const reading *mine, void **data, uint64_t *bytes, tws_error *err) {
  unsigned char *all = NULL;
  uint64_t *offset = NULL;
  TWS_TRY(tws_comm_gather(t->comm, mine, sizeof *mine, &all, &offset, err));
  if (t->rank != 0) return TWS_OK;
  *bytes = sizeof(verdict) + (uint64_t)t->world;
  verdict *v = tws_calloc(*bytes, 1);
  *data = v;
  t->far_readers = tws_calloc((size_t)t->world, 1);
  const int room = v && t->far_readers;
  for (int r = 1; room && r < t->world; r++) {
    reading other;
    memcpy(&other, all + offset[r], sizeof other);
    compare(t, mine, &other, r, v);
  }
  if (room && !v->text[0]) say_far(t, mine, all, offset, v);
  tws_free(all);
  tws_free(offset);
  return room ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

static tws_code take_verdict(tws_training *t, const verdict *v, tws_error *err) {
  if (v->text[0]) {
    const size_t line = strcspn(v->text, "\n");
    return tws_fail(err, TWS_INVALID, v->text + line + 1, "%.*s", (int)line, v->text);
  }
  int far = 0;
  for (int r = 1; r < t->world; r++) far |= v->far_writers[r];
  if (!far) return TWS_OK;
  t->far_writers = tws_calloc((size_t)t->world, 1);
  if (!t->far_writers) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  memcpy(t->far_writers, v->far_writers, (size_t)t->world);
  return TWS_OK;
}

tws_code tws_training_agree(tws_training *t, tws_error *err) {
  reading mine = {.model = tws_network_fingerprint(t->plan->network), .fetches = t->fetches != 0};
  void *data = NULL;
  uint64_t bytes = 0;
  if (t->world == 1) return TWS_OK;
  gethostname(mine.host, sizeof mine.host - 1);
  mine.file[0] = sample_file(t->options->data);
  mine.file[1] = sample_file(t->options->eval_data);
  mine.lock = sample_in(t->options->save, TWS_FOLDER_LOCK);
  tws_code code = judge(t, &mine, &data, &bytes, err);
  if (code == TWS_OK) code = tws_mpi_broadcast(t->mpi, &data, &bytes, err);
  if (code == TWS_OK) code = take_verdict(t, data, err);
  tws_free(data);
  return code;
}
