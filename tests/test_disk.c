/* ctest: engine mpi */
/* The disk tier: transfers of any shape, faults of the swap file, and which swap files are removed when. */
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "answers.h"
#include "draw.h"
#include "real/disk.h"
#include "real/swap.h"
#include "train.h"

static tws_error err;

static tws_disk *make_disk(uint64_t bytes, const tws_aio *aio) {
  tws_disk *disk;
  const tws_disk_setup setup = {.folder = folder, .aio = *aio};
  ck_assert_msg(tws_disk_create(&setup, "test", bytes, &disk, &err) == TWS_OK, "%s", err.message);
  return disk;
}

static tws_code transfer(tws_disk *disk, int writes, uint64_t offset, void *memory, uint64_t bytes) {
  uint64_t ticket;
  const tws_disk_transfer t = {.writes = writes, .offset = offset, .bytes = bytes, .memory = memory, .what = "exp_avg"};
  ck_assert(tws_disk_start(disk, &t, &ticket, &err) == TWS_OK);
  return tws_disk_wait(disk, ticket, &err);
}

/* Random transfers, several of them at a time, leave the same bytes in the file as in a copy in memory. */
START_TEST(any_shape) {
  static const tws_aio ways[] = {{4096, 1, 1, 0, 0}, {8192, 4, 1, 1, 1}, {20000, 3, 3, 0, 1}, {1 << 20, 8, 2, 0, 0}};
  enum { BYTES = 300000, ROOM = 76 * 4096, TRANSFERS = 60 };
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    tws_disk *disk = make_disk(BYTES, &ways[w]);
    char *mirror = calloc(1, BYTES), *memory = aligned_alloc(4096, 2 * ROOM);
    for (uint64_t i = 0; i < TRANSFERS; i++) {
      const uint64_t at = (uint64_t)draw(w + 1, i, 0, BYTES - 1), shift = (uint64_t)draw(w + 1, i + 100, 0, 2) * 8;
      const uint64_t first = i % 3 ? at : at / 4096 * 4096, most = BYTES - first;
      const uint64_t count = (uint64_t)draw(w + 1, i + 200, 1, (int)most);
      char *in = memory + shift, *out = memory + ROOM + shift;
      uint64_t ticket;
      for (uint64_t k = 0; k < count; k++) in[k] = mirror[first + k] = (char)draw(w + 7, i * 7 + k, 0, 255);
      const tws_disk_transfer there = {.writes = 1, .offset = first, .bytes = count, .memory = in, .what = "x"};
      const tws_disk_transfer back = {.writes = 0, .offset = first, .bytes = count, .memory = out, .what = "x"};
      ck_assert(tws_disk_start(disk, &there, &ticket, &err) == TWS_OK);
      ck_assert(tws_disk_start(disk, &back, &ticket, &err) == TWS_OK);
      ck_assert_msg(tws_disk_wait(disk, ticket, &err) == TWS_OK, "%s", err.message);
      ck_assert_msg(memcmp(in, out, count) == 0, "way %zu: %llu bytes at %llu came back wrong", w,
                    (unsigned long long)count, (unsigned long long)first);
    }
    ck_assert(transfer(disk, 0, 0, memory, BYTES) == TWS_OK);
    ck_assert(memcmp(memory, mirror, BYTES) == 0);
    const tws_disk_count before = tws_disk_transferred(disk);
    ck_assert(transfer(disk, 1, 8192, memory, 16384) == TWS_OK); /* a transfer of whole blocks moves nothing else */
    ck_assert_uint_eq(tws_disk_transferred(disk).written - before.written, 16384);
    ck_assert_uint_eq(tws_disk_transferred(disk).read, before.read);
    tws_disk_destroy(disk);
    free(mirror);
    free(memory);
  }
}
END_TEST

/* Each error names the file and the tensor; after a fault all further transfers fail. */
START_TEST(faults) {
  static const tws_aio aio = {4096, 4, 1, 0, 1};
  static char memory[40000], path[1024];
  for (int fault = 0; fault < 2; fault++) {
    tws_disk *disk = make_disk(sizeof memory, &aio);
    snprintf(path, sizeof path, "%s", tws_disk_path(disk));
    ck_assert(transfer(disk, 1, 0, memory, sizeof memory) == TWS_OK);
    ck_assert_int_eq(fault ? unlink(path) : truncate(path, 10000), 0);
    ck_assert(transfer(disk, 0, 0, memory, sizeof memory) == TWS_IO);
    ck_assert_msg(strstr(err.message, path) && strstr(err.message, "'exp_avg'"), "%s", err.message);
    ck_assert_msg(strstr(err.message, fault ? "was removed" : "was the file cut?") != NULL, "%s", err.message);
    ck_assert(transfer(disk, 0, 0, memory, 4096) == TWS_IO);
    tws_disk_destroy(disk);
  }
  tws_disk *disk;
  tws_disk_setup setup = {.folder = in_folder("missing"), .aio = aio};
  ck_assert(tws_disk_create(&setup, "test", 4096, &disk, &err) == TWS_ENVIRONMENT && disk == NULL);
  ck_assert_msg(strstr(err.message, "missing/twinspeed-swap: No such file") != NULL, "%s", err.message);
  setup.folder = folder;
  ck_assert(tws_disk_create(&setup, "test", UINT64_C(1) << 50, &disk, &err) == TWS_ENVIRONMENT);
  ck_assert_msg(strstr(err.message, "the disk is full: swap file ") != NULL, "%s", err.message);
  ck_assert(access(in_folder("twinspeed-swap"), F_OK) != 0 || rmdir(in_folder("twinspeed-swap")) == 0);
}
END_TEST

/* ---- ownership of swap files ---- */

static int count_files(void) {
  DIR *list = opendir(in_folder("twinspeed-swap"));
  int count = 0;
  for (const struct dirent *e = list ? readdir(list) : NULL; e; e = readdir(list)) count += e->d_name[0] != '.';
  if (list) closedir(list);
  return count;
}

static const char swapped[] =
    "{\"train_batch_size\":4,\"train_micro_batch_size_per_gpu\":2,\"optimizer\":{\"type\":\"AdamW\"},"
    "\"zero_optimization\":{\"stage\":3,\"sub_group_size\":20000,\"offload_optimizer\":{\"device\":\"nvme\","
    "\"nvme_path\":\"%s\"},\"offload_param\":{\"device\":\"nvme\",\"max_in_cpu\":9000}},"
    "\"twinspeed\":{\"sequence_length\":32}}";
/* Only the parameters are swapped, so that the error is about them. */
static const char parameters_swapped[] =
    "{\"train_batch_size\":4,\"train_micro_batch_size_per_gpu\":2,\"optimizer\":{\"type\":\"AdamW\"},"
    "\"zero_optimization\":{\"stage\":3,\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"%s\",\"max_in_cpu\":0}},"
    "\"twinspeed\":{\"sequence_length\":32}}";

/* Trains until the swap file exists, then ends the training by a signal, and asserts that `left` swap files remain. */
static void end_training(const char *config, int number, int left) {
  char program[256];
  snprintf(program, sizeof program, "%s/twinspeed", TWS_BUILD_DIR);
  const int before = count_files();
  const pid_t child = fork();
  if (child == 0) {
    freopen("/dev/null", "w", stdout);
    execl(program, program, "train", "--quiet", "-m", "tiny-gpt2", "-c", config, "-n", "1", "--threads", "1", "--data",
          text_path, "--steps", "1000000", (char *)NULL);
    _exit(127);
  }
  for (int i = 0; i < 6000 && count_files() == before; i++) usleep(20000);
  ck_assert_int_eq(count_files(), before + 1);
  usleep(200000); /* into the steps */
  ck_assert_int_eq(kill(child, number), 0);
  int status;
  ck_assert(command_ends(child, 120, &status));
  while (waitpid(-1, NULL, 0) > 0) continue; /* the training process, whose parent was killed */
  const int as_documented = number == SIGTERM ? WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM
                                              : WIFSIGNALED(status) && WTERMSIG(status) == number;
  ck_assert_msg(as_documented, "status %x", (unsigned)status);
  ck_assert_int_eq(count_files(), before + left);
}

START_TEST(swap_files) {
  static const tws_aio aio = {4096, 4, 1, 0, 1};
  char text[1024], config[128];
  snprintf(config, sizeof config, "%s", in_folder("swapped.json"));
  snprintf(text, sizeof text, swapped, folder);
  write_text(config, text);
  tws_disk *ours = make_disk(8192, &aio); /* the swap file of another run, which is alive all the time */
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  end_training(config, SIGTERM, 0);
  end_training(config, SIGKILL, 1);
  ck_assert_int_eq(count_files(), 2);
  command_result r = twinspeed("train -m tiny-gpt2 -c %s -n 1 --threads 1 --data %s --steps 2", config, text_path);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_msg(strstr(r.out, "as planned, to the byte") != NULL, "%s", r.out);
  command_free(&r);
  ck_assert_int_eq(count_files(), 1);
  ck_assert_int_eq(access(tws_disk_path(ours), F_OK), 0);
  tws_disk_destroy(ours);
  ck_assert_int_eq(count_files(), 0);
  snprintf(text, sizeof text, swapped, "/proc");
  write_text(config, text);
  r = twinspeed("train --quiet -m tiny-gpt2 -c %s -n 1 --threads 1 --data %s --steps 2", config, text_path);
  assert_one_error(&r, 4, "no place for swap files");
  ck_assert_msg(strstr(r.err, "/proc/twinspeed-swap") != NULL, "%s", r.err);
  command_free(&r);
}
END_TEST

/* The only swap file there is. */
static int find_file(char *path, size_t size) {
  DIR *list = opendir(in_folder("twinspeed-swap"));
  int found = 0;
  for (const struct dirent *e = list ? readdir(list) : NULL; e; e = readdir(list))
    if (e->d_name[0] != '.') found = snprintf(path, size, "%s/%s", in_folder("twinspeed-swap"), e->d_name) > 0;
  if (list) closedir(list);
  return found;
}

/* Parameters in a swap file that is cut or removed during training: the step that reads them fails with an error that
 * says so. */
START_TEST(lost_parameters) {
  char program[256], text[1024], config[128], said[128], path[512] = "", message[4096];
  snprintf(program, sizeof program, "%s/twinspeed", TWS_BUILD_DIR);
  snprintf(config, sizeof config, "%s", in_folder("parameters.json"));
  snprintf(said, sizeof said, "%s", in_folder("said"));
  snprintf(text, sizeof text, parameters_swapped, folder);
  write_text(config, text);
  for (int removes = 0; removes < 2; removes++) {
    const pid_t child = fork();
    if (child == 0) {
      freopen("/dev/null", "w", stdout);
      freopen(said, "w", stderr);
      execl(program, program, "train", "--quiet", "-m", "tiny-gpt2", "-c", config, "-n", "1", "--threads", "1",
            "--data", text_path, "--steps", "1000000", (char *)NULL);
      _exit(127);
    }
    for (int i = 0; i < 6000 && !find_file(path, sizeof path); i++) usleep(20000);
    usleep(200000);
    int status;
    ck_assert_int_eq(removes ? unlink(path) : 0, 0);
    do { /* repeated, because a step that writes all parameters makes the file whole again */
      if (!removes) (void)!truncate(path, 4096);
      usleep(300);
    } while (waitpid(child, &status, WNOHANG) == 0);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != 0, "status %x", (unsigned)status);
    FILE *file = fopen(said, "r");
    message[fread(message, 1, sizeof message - 1, file)] = '\0';
    fclose(file);
    ck_assert_msg(strstr(message, path) && strstr(message, "'parameters'"), "%s", message);
    ck_assert_msg(strstr(message, removes ? "was removed" : "was the file cut?") != NULL, "%s", message);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("disk");
  TCase *tests = tcase_create("disk");
  tcase_add_test(tests, any_shape);
  tcase_add_test(tests, faults);
  tcase_add_test(tests, swap_files);
  tcase_add_test(tests, lost_parameters);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
