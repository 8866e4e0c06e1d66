/* Trainings on the emulated device (tests/emulator) and on the host, by the program: a text, two small models, and the
 * losses of a run. */
#ifndef TWS_TESTS_EMULATED_H
#define TWS_TESTS_EMULATED_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "folder.h"

enum { MOST_STEPS = 16 };
static char modules[64];

static const char *const gpt =
    "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_embd\":32,\"n_layer\":4,\"n_head\":4}";
static const char *const llama =
    "{\"model_type\":\"llama\",\"vocab_size\":259,\"hidden_size\":32,\"intermediate_size\":72,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":64}";

static inline void write_files(void) {
  static const char *const words[] = {"sea", "ship", "wind", "captain", "night", "over", "under", "white", "never"};
  char path[96], text[12000] = "", target[256];
  unsigned x = 7;
  for (size_t n = 0; n < sizeof text - 20; x = (x * 1103 + 12345) % 65536)
    n += (size_t)snprintf(text + n, sizeof text - n, "%s ", words[x % 9]);
  snprintf(path, sizeof path, "%s/text", folder), write_text(path, text);
  snprintf(path, sizeof path, "%s/gpt.json", folder), write_text(path, gpt);
  snprintf(path, sizeof path, "%s/llama.json", folder), write_text(path, llama);
  snprintf(modules, sizeof modules, "%s/modules", folder), mkdir(modules, 0700);
  snprintf(path, sizeof path, "%s/twinspeed_real.so", modules);
  if (symlink(TWS_BUILD_DIR "/twinspeed_real.so", path) != 0) exit(1);
  snprintf(path, sizeof path, "%s/twinspeed_cuda.so", modules);
  snprintf(target, sizeof target, "%s/emulated/twinspeed_cuda.so", TWS_BUILD_DIR);
  if (symlink(target, path) != 0) exit(1);
}

/* Trains and reads the losses of the steps, then those of the last evaluation, into `loss`; flags are the command's,
 * without the device, and without the text unless another one is wanted. Returns the number of losses. */
static inline int train(int on_device, int ranks, const char *flags, double *loss) {
  char csv[96], line[512];
  snprintf(csv, sizeof csv, "%s/steps.csv", folder);
  unlink(csv);
  unlink(in_folder("result"));
  setenv("TWINSPEED_MODULES", on_device ? modules : TWS_BUILD_DIR, 1);
  char data[128] = "";
  if (!strstr(flags, "--data ")) snprintf(data, sizeof data, "--data %s/text --seq 32", folder);
  command_result r = twinspeed("train --quiet %s -n %d --csv %s %s %s", data, ranks, csv,
                               on_device ? "--cluster dgx-h200" : "", flags);
  ck_assert_msg(r.status == 0, "%s: %s", flags, r.err);
  command_free(&r);
  FILE *file = fopen(csv, "r");
  ck_assert_ptr_nonnull(file);
  int count = 0;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "%*d,%lf", &loss[count]) == 1) count++;
  fclose(file);
  if (strstr(flags, "--eval-data") && sscanf(strrchr(line, ',') + 1, "%lf", &loss[count]) == 1) count++;
  ck_assert_int_gt(count, 0);
  ck_assert_int_le(count, MOST_STEPS);
  return count;
}

static inline void compare(const char *flags, int count, const double *want, const double *got, double limit) {
  for (int i = 0; i < count; i++) /* a skipped step may have no loss */
    ck_assert_msg(fabs(got[i] - want[i]) <= limit * want[i] || (isnan(got[i]) && isnan(want[i])),
                  "%s, step %d: loss %.9g instead of %.9g", flags, i + 1, got[i], want[i]);
}

static inline char *file_text(const char *name) {
  const int fd = open(in_folder(name), O_RDONLY);
  ck_assert_int_ge(fd, 0);
  return command_slurp(fd);
}
static inline double number_after(const char *text, const char *key) {
  const char *at = strstr(text, key);
  ck_assert_msg(at != NULL, "no %s", key);
  return strtod(at + strlen(key), NULL);
}

#endif
