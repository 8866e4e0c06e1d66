#include "real/agree.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/checksum.h"
#include "base/memory.h"
#include "checkpoint/folder.h"
#include "checkpoint/index.h"

enum { SAMPLES = 64, SAMPLE = 1 << 14, FILES = 3 };

/* What a rank read, in the order in which they are looked at. */
typedef struct reading {
  uint64_t model, file[FILES], lock; /* lock: of the folder that is saved to, which rank 0 holds */
  char host[64];
} reading;

/* Of the size and of pieces all over the file: a whole one may be larger than what a start may take. 0: no file. */
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
  const char *names[FILES] = {t->options->data, t->options->eval_data, t->resumed ? t->resumed->path : NULL};
  if (a->model != b->model) return "the model";
  for (int i = 0; i < FILES; i++)
    if (a->file[i] != b->file[i]) return names[i];
  return NULL;
}

/* What is to be said, in two lines: what is wrong, and what to do. "": nothing. */
static void compare(const tws_training *t, const reading *mine, const reading *other, int rank, char *text,
                    size_t size) {
  const char *what = difference(t, mine, other);
  if (what)
    snprintf(text, size,
             "%.300s is not the same on %.63s (rank %d) as on %.63s (rank 0)\n"
             "copy it to every node, or use a shared file system",
             what, other->host, rank, mine->host);
  else if (mine->lock != other->lock)
    snprintf(text, size,
             "%.300s: %.63s (rank %d) does not see the folder that %.63s (rank 0) saves to\n"
             "checkpoints need a file system that all nodes share; resuming does with a copy on every node",
             t->options->save, other->host, rank, mine->host);
}

tws_code tws_training_agree(tws_training *t, tws_error *err) {
  reading mine = {.model = tws_network_fingerprint(t->plan->network)};
  unsigned char *all = NULL;
  uint64_t *offset = NULL, bytes = 0;
  void *verdict = NULL;
  char text[700] = "";
  if (t->world == 1) return TWS_OK;
  gethostname(mine.host, sizeof mine.host - 1);
  mine.file[0] = sample_file(t->options->data);
  mine.file[1] = sample_file(t->options->eval_data);
  mine.file[2] = sample_in(t->resumed ? t->resumed->path : NULL, TWS_CHECKPOINT_INDEX);
  mine.lock = sample_in(t->options->save, TWS_FOLDER_LOCK);
  TWS_TRY(tws_comm_gather(t->comm, &mine, sizeof mine, &all, &offset, err));
  for (int r = 1; t->rank == 0 && r < t->world && !text[0]; r++) {
    reading other;
    memcpy(&other, all + offset[r], sizeof other);
    compare(t, &mine, &other, r, text, sizeof text);
  }
  tws_free(all);
  tws_free(offset);
  if (t->rank == 0) {
    verdict = text;
    bytes = sizeof text;
  }
  TWS_TRY(tws_comm_broadcast(t->comm, &verdict, &bytes, err));
  tws_code code = TWS_OK;
  const char *said = verdict, *hint = strchr(said, '\n');
  if (hint) code = tws_fail(err, TWS_INVALID, hint + 1, "%.*s", (int)(hint - said), said);
  if (t->rank != 0) tws_free(verdict);
  return code;
}
