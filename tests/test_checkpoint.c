/* ctest: engine mpi sampled */
/* Checkpoints in spite of faults: kill -9 at any point of a save, signals, damaged files, full disks, two jobs with one
 * folder; and the cases that are refused. */
#include <signal.h>
#include <time.h>
#include "answers.h"
#include "base/memory.h"
#include "checkpoint/folder.h"
#include "checkpoint/read.h"
#include "job/recovery.h"
#include "train.h"

#define TINY "train -m tiny-gpt2 --seq 32 --micro-batch 4 --accumulation 1 --threads 1 --data %s "

static const char *in_save(const char *save, const char *name) {
  static char paths[4][512];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", save, name);
  return path;
}

static void expect(command_result r, int status, const char *what) {
  ck_assert_msg(r.status == status, "%s: status %d, not %d\n%s%s", what, r.status, status, r.out, r.err);
  command_free(&r);
}

/* Verifies every byte of the checkpoint that `latest` names and returns its step; 0: there is none. */
static int64_t verified_step(const char *save) {
  char path[TWS_FOLDER_SIZE];
  tws_saved_index *index = NULL;
  tws_saved_reader reader;
  tws_error err = {0};
  if (tws_folder_find(save, NULL, path, sizeof path, &err) != TWS_OK) {
    ck_assert_msg(access(in_save(save, "latest"), F_OK) != 0, "%s", err.message);
    return 0;
  }
  ck_assert_msg(tws_saved_open(path, &index, &err) == TWS_OK, "%s", err.message);
  ck_assert(tws_saved_reader_open(index, &reader, &err) == TWS_OK);
  ck_assert_msg(tws_saved_verify(&reader, &err) == TWS_OK, "%s", err.message);
  const int64_t step = index->counters.steps;
  tws_saved_reader_close(&reader);
  tws_saved_close(index);
  return step;
}

/* ---- a process of its own ---- */

typedef struct background {
  pid_t pid;
  int output; /* both streams */
} background;

static background start(const char *format, ...) __attribute__((format(printf, 1, 2)));
static background start(const char *format, ...) {
  char line[4096], *argv[64] = {(char *)TWS_BUILD_DIR "/twinspeed"};
  int argc = 1;
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
  background b = {.output = command_scratch()};
  b.pid = fork();
  if (b.pid == 0) {
    dup2(b.output, 1);
    dup2(b.output, 2);
    execv(argv[0], argv);
    _exit(126);
  }
  return b;
}

static void pause_ms(double ms) {
  const struct timespec time = {(time_t)(ms / 1e3), (long)(fmod(ms, 1e3) * 1e6)};
  nanosleep(&time, NULL);
}

/* Returns what the process has written to both streams so far. Free with free(). */
static char *said(const background *b) {
  char *text = calloc(1 << 20, 1);
  ck_assert(pread(b->output, text, (1 << 20) - 1, 0) >= 0);
  return text;
}

static void wait_until_said(const background *b, const char *word) {
  for (int i = 0; i < 6000; i++) {
    char *text = said(b);
    const int found = strstr(text, word) != NULL;
    free(text);
    if (found) return;
    pause_ms(5);
  }
  ck_abort_msg("nothing was said of \"%s\": %s", word, said(b));
}

static int end_of(const background *b) {
  int status = 0;
  waitpid(b->pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *format, ...) {
  char command[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(command, sizeof command, format, list);
  va_end(list);
  ck_assert_msg(system(command) == 0, "%s", command);
}

/* ---- kill -9 ---- */

/* Returns the step of the last checkpoint that the process announced, or 0. */
static int64_t announced(const background *b) {
  char *text = said(b), *at = text, *next;
  int64_t step = 0;
  while ((next = strstr(at, "/global_step"))) {
    at = next + 1;
    if (next > text && strchr(at, ':') && strncmp(at + strcspn(at, ":"), ": ", 2) == 0)
      step = tws_step_of_tag(strtok(at, ":"));
    at += strlen(at) + 1;
  }
  free(text);
  return step;
}

/* Jobs that save after every step are killed at random points, most of them inside a save, and each resumes from the
 * checkpoint of the job before. Every announced checkpoint exists and is whole, and leftovers are removed.
 * TWINSPEED_KILLS: the number of jobs. */
static void kill_and_resume(const char *save, int ranks, int kills) {
  int64_t reached = 0;
  int inside = 0;
  for (int i = 0; i < kills; i++) {
    char resume[200] = "";
    if (reached > 0) snprintf(resume, sizeof resume, "--resume %s", save);
    background b = start(TINY "-n %d --stage %d --steps 1000000 --every 1000000 --save %s --save-every 1 --keep 2 %s",
                         text_path, ranks, ranks > 1 ? 2 : 0, save, resume);
    wait_until_said(&b, "saved ");
    pause_ms(30.0 * tws_random_uniform(17, (uint64_t)ranks, (uint64_t)i));
    kill(b.pid, SIGKILL);
    ck_assert_int_eq(end_of(&b), 128 + SIGKILL);
    for (int k = 0; k < 2000; k++) { /* waits until the ranks, whose launcher was killed, have ended */
      int lock = -1;
      if (tws_folder_lock(save, &lock, NULL) == TWS_OK) {
        tws_folder_unlock(lock);
        break;
      }
      pause_ms(5);
    }
    inside += count_named(save, ".saving-") > 0;
    const int64_t told = announced(&b), there = verified_step(save);
    ck_assert_msg(there >= told && there > reached, "announced %ld, found %ld", (long)told, (long)there);
    ck_assert_int_le(count_named(save, "global_step"), 4); /* two kept ones, one that was being saved and one that was
                                                            * being removed */
    reached = there;
    close(b.output);
  }
  printf("%d kills on %d rank%s, %d of them with a checkpoint half written; step %ld\n", kills, ranks,
         ranks > 1 ? "s" : "", inside, (long)reached);
  if (kills >= 20) ck_assert_int_gt(inside, 0);
  expect(twinspeed(TINY "--quiet -n 1 --steps %ld --resume %s --save %s --keep 1", text_path, (long)reached + 1, save,
                   save),
         0, "after all of them");
  ck_assert_int_eq(verified_step(save), reached + 1);
  ck_assert_int_eq(count_named(save, "global_step"), 1);
  ck_assert_int_eq(count_named(save, ".saving-") + count_named(save, ".removing-"), 0);
}

START_TEST(kills) {
  char save[64];
  const char *asked = getenv("TWINSPEED_KILLS");
  const int count = asked ? atoi(asked) : TWS_SANITIZED ? 8 : 24;
  snprintf(save, sizeof save, "%s/killed", folder);
  kill_and_resume(save, 1, count);
  snprintf(save, sizeof save, "%s/killed2", folder);
  kill_and_resume(save, 2, count / 8);
}
END_TEST

/* ---- asked to end ---- */

/* SIGTERM ends a run after its step, with a checkpoint and status 0, on one rank and on several; the next run resumes
 * from it. */
START_TEST(asked_to_end) {
  for (int ranks = 1; ranks <= 2; ranks++) {
    char save[64];
    snprintf(save, sizeof save, "%s/asked%d", folder, ranks);
    background b = start(TINY "-n %d --stage 1 --steps 1000000 --every 1 --save %s", text_path, ranks, save);
    wait_until_said(&b, "\n     3 ");
    kill(b.pid, SIGTERM);
    const int status = end_of(&b);
    char *text = said(&b);
    ck_assert_msg(status == 0 && strstr(text, "asked to end, and saved at step "), "status %d: %s", status, text);
    free(text);
    close(b.output);
    const int64_t step = verified_step(save);
    ck_assert_int_ge(step, 3);
    expect(twinspeed(TINY "-n 1 --steps %ld --resume %s", text_path, (long)step + 2, save), 0, "the resumed run");
    expect(twinspeed(TINY "-n 1 --steps %ld --resume %s", text_path, (long)step, save), 2, "nothing left to do");
  }
}
END_TEST

/* ---- while training ---- */

static const char *line_of(const char *text, const char *words) {
  const char *at = strstr(text, words);
  ck_assert_msg(at != NULL, "nothing was said of \"%s\":\n%s", words, text);
  return at;
}

/* The save after step 2 is held back until step 4 is done, on one of the ranks: training continues, and the saved state
 * is that of step 2 to the last byte, as a run without a hold saves it. */
START_TEST(save_overlaps_training) {
  for (int ranks = 1; ranks <= 2; ranks++) {
    char held[64], plain[64];
    snprintf(held, sizeof held, "%s/held%d", folder, ranks);
    snprintf(plain, sizeof plain, "%s/plain%d", folder, ranks);
    setenv("TWINSPEED_FAULT", ranks > 1 ? "rank=1,step=2,kind=hold" : "rank=0,step=2,kind=hold", 1);
    background b =
        start(TINY "-n %d --stage %d --steps 6 --every 1 --save %s --save-every 2", text_path, ranks, ranks, held);
    ck_assert_int_eq(end_of(&b), 0);
    unsetenv("TWINSPEED_FAULT");
    char *text = said(&b);
    const char *first = line_of(text, "/global_step2: "), *second = line_of(text, "/global_step4: ");
    ck_assert_msg(line_of(text, "\n     4 ") < first && first < second && second < line_of(text, "/global_step6: "),
                  "%s", text);
    free(text);
    close(b.output);
    expect(twinspeed(TINY "--quiet -n %d --stage %d --steps 2 --save %s", text_path, ranks, ranks, plain), 0,
           "waiting");
    ck_assert_int_eq(verified_step(held), 6);
    for (int r = 0; r < ranks; r++)
      shell("cmp %s/global_step2/rank-0000%d.safetensors %s/global_step2/rank-0000%d.safetensors", held, r, plain, r);
  }
}
END_TEST

/* A save that fails during training ends the training with the error of the save; the previous checkpoint remains. */
START_TEST(failed_save_ends_training) {
  char save[64], script[1024];
  snprintf(save, sizeof save, "%s/fails", folder);
  expect(twinspeed(TINY "--quiet -n 1 --steps 2 --save %s", text_path, save), 0, "saving");
  snprintf(script, sizeof script,
           "ulimit -f 600; exec %s/twinspeed " TINY "--quiet -n 1 --steps 1000 --save-every 2 --resume %s --save %s",
           TWS_BUILD_DIR, text_path, save, save);
  char *argv[] = {"/bin/sh", "-c", script, NULL};
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 4 && strstr(r.err, "File too large") && strstr(r.err, "saving the checkpoint global_step4"),
                "%d: %s", r.status, r.err);
  command_free(&r);
  ck_assert_int_eq(verified_step(save), 2);
}
END_TEST

/* ---- errors name the damaged file ---- */

static void make_checkpoints(const char *save) {
  expect(twinspeed(TINY "--quiet -n 2 --stage 2 --steps 4 --save %s --save-every 2", text_path, save), 0, "saving");
  ck_assert_int_eq(verified_step(save), 4);
}

START_TEST(damage) {
  static const struct {
    const char *what, *command; /* run in the folder of the checkpoint */
    const char *words[3];       /* of the message */
    const char *hint;
  } cases[] = {
      {"a file cut short",
       "truncate -s -100 rank-00001.safetensors",
       {"rank-00001.safetensors", "bytes, and", "were saved"},
       "global_step2"},
      {"a file that is not there",
       "rm rank-00000.safetensors",
       {"rank-00000.safetensors: the file is missing"},
       "global_step2"},
      {"files that changed places",
       "mv rank-00000.safetensors x; cp rank-00001.safetensors rank-00000.safetensors; "
       "truncate -s $(stat -c %s x) rank-00000.safetensors",
       {"rank-00000.safetensors", "its header is not the one that was saved"},
       "global_step2"},
      {"zeros in the data",
       "dd if=/dev/zero of=rank-00000.safetensors bs=1 seek=50000 count=64 conv=notrunc 2>/dev/null",
       {"rank-00000.safetensors: tensor \"transformer.", "is damaged"},
       "global_step2"},
      {"an index of another step",
       "cp ../global_step2/index.json .",
       {"rank-0000", "tensor \"", "is damaged"},
       "global_step2"},
      {"an index that was edited",
       "sed -i s/\\\"steps\\\":4/\\\"steps\\\":3/ index.json",
       {"index.json", "its checksum is wrong"},
       "global_step2"},
      {"an index cut short", "truncate -s -1 index.json", {"index.json: it is cut short"}, "global_step2"},
      {"no index", "rm index.json", {"index.json"}, NULL},
  };
  char save[64], copy[64];
  snprintf(save, sizeof save, "%s/good", folder);
  snprintf(copy, sizeof copy, "%s/bad", folder);
  make_checkpoints(save);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    shell("rm -rf %s && cp -r %s %s && cd %s/global_step4 && { %s; }", copy, save, copy, copy, cases[i].command);
    command_result r = twinspeed(TINY "--quiet -n 1 --steps 6 --resume %s", text_path, copy);
    ck_assert_msg(r.status == 3 || (!cases[i].hint && r.status == 4), "%s: status %d\n%s", cases[i].what, r.status,
                  r.err);
    ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "%s: %s", cases[i].what, r.err);
    for (int k = 0; k < 3 && cases[i].words[k]; k++)
      ck_assert_msg(strstr(r.err, cases[i].words[k]) != NULL, "%s: not \"%s\" but %s", cases[i].what, cases[i].words[k],
                    r.err);
    ck_assert_msg(!cases[i].hint || strstr(strstr(r.err, "hint: "), cases[i].hint), "%s: %s", cases[i].what, r.err);
    command_free(&r);
    expect(twinspeed(TINY "--quiet -n 1 --steps 6 --resume %s --tag global_step2", text_path, copy), 0,
           "the one before");
  }
}
END_TEST

/* A job that restarts resumes from its newest whole checkpoint and reports the damaged ones that it passed over. It
 * resumes neither from a checkpoint that another training left in the folder nor, once it has saved, from the
 * beginning. */
START_TEST(resumed_checkpoint_is_the_newest_whole_one) {
  char save[64];
  tws_recovery_point point;
  tws_error err = {0};
  snprintf(save, sizeof save, "%s/points", folder);
  ck_assert(tws_recovery_find(save, 0, NULL, &point, &err) == TWS_OK && !*point.tag);
  make_checkpoints(save);
  ck_assert(tws_recovery_find(save, 0, NULL, &point, &err) == TWS_OK && !*point.damage.message);
  ck_assert_str_eq(point.tag, "global_step4");
  const int64_t since = tws_folder_stamp(save, "latest");
  ck_assert(tws_recovery_find(save, since, NULL, &point, &err) == TWS_OK && !*point.tag);
  ck_assert(tws_recovery_find(save, since, "global_step2", &point, &err) == TWS_OK);
  ck_assert_str_eq(point.tag, "global_step2");
  shell("cd %s && mkdir global_step9 && printf global_step9 >latest", save); /* another training has saved there,
                                                                              * whether damaged or not */
  ck_assert(tws_recovery_find(save, since, "global_step4", &point, &err) == TWS_OK && !*point.damage.message);
  ck_assert_str_eq(point.tag, "global_step4");
  shell("cd %s && rmdir global_step9 && printf global_step4 >latest && truncate -s -1 global_step4/rank-00001.*", save);
  ck_assert(tws_recovery_find(save, 0, NULL, &point, &err) == TWS_OK);
  ck_assert_str_eq(point.tag, "global_step2");
  ck_assert(strstr(point.damage.message, "global_step4/rank-00001.safetensors: it has"));
  shell("cd %s && printf global_step2 >latest", save); /* `latest` says that the newer checkpoint is not of this
                                                        * training */
  ck_assert(tws_recovery_find(save, 0, NULL, &point, &err) == TWS_OK && !*point.damage.message);
  shell(
      "cd %s && rm latest && dd if=/dev/zero of=global_step2/rank-00000.safetensors bs=1 seek=50000 count=64 "
      "conv=notrunc 2>/dev/null",
      save);
  ck_assert(tws_recovery_find(save, 0, NULL, &point, &err) == TWS_INVALID);
  ck_assert(strstr(err.message, "global_step4/rank-00001") && strstr(err.message, "no checkpoint of the job is whole"));
}
END_TEST

/* ---- what is refused ---- */

static void refused(command_result r, int status, const char *words, const char *what) {
  assert_one_error(&r, status, what);
  ck_assert_msg(strstr(r.err, words) != NULL, "%s: not \"%s\" but %s", what, words, r.err);
  command_free(&r);
}

#define PLAIN "train --quiet -m %s --seq 32 --micro-batch 4 --accumulation 1 -n 1 --data %s --steps 8 %s"

START_TEST(refusals) {
  static const char other[] =
      "{\"model_type\":\"gpt2\",\"vocab_size\":256,\"n_positions\":64,\"n_layer\":2,\"n_embd\":32,\"n_head\":2}";
  static const char heads[] =
      "{\"model_type\":\"gpt2\",\"vocab_size\":256,\"n_positions\":64,\"n_layer\":2,\"n_embd\":64,\"n_head\":%s}";
  char save[64], more[256], text[256];
  int lock = -1;
  snprintf(save, sizeof save, "%s/saved", folder);
  write_text(in_folder("other"), other);
  snprintf(text, sizeof text, heads, "8");
  write_text(in_folder("heads"), text);
#define REFUSED(status, words, model, ...)  \
  snprintf(more, sizeof more, __VA_ARGS__); \
  refused(twinspeed(PLAIN, model, text_path, more), status, words, more)
  REFUSED(4, "there is no file \"latest\"", "tiny-gpt2", "--resume %s", folder);
  REFUSED(4, "No such file", "tiny-gpt2", "--resume %s", save);
  REFUSED(2, "without a folder to save to", "tiny-gpt2", "--save-every 5");
  REFUSED(2, "without a folder to save to", "tiny-gpt2", "--keep 5");
  REFUSED(2, "--tag without --resume", "tiny-gpt2", "--tag global_step5");
  REFUSED(4, "cannot make the folder", "tiny-gpt2", "--save %s/no/where", folder);
  REFUSED(4, "Not a directory", "tiny-gpt2", "--save %s", text_path);
  make_checkpoints(save);
  REFUSED(2, "has checkpoints", "tiny-gpt2", "--save %s", save);
  REFUSED(3, "elements, and the model's 256 x 32", in_folder("other"), "--resume %s", save);
  REFUSED(3, "it has no parameter \"model.embed_tokens.weight\"", "tiny-llama", "--resume %s", save);
  REFUSED(3, "works otherwise", in_folder("heads"), "--resume %s", save);
  REFUSED(3, "seed 1234, and the configuration says 5", "tiny-gpt2", "--resume %s --set twinspeed.seed=5", save);
  REFUSED(4, "there is no checkpoint \"global_step3\"", "tiny-gpt2", "--resume %s --tag global_step3", save);
  REFUSED(2, "is not a tag", "tiny-gpt2", "--resume %s --tag ../saved", save);
  expect(twinspeed(TINY "--quiet -n 1 --steps 2 --set optimizer.type=Lion --save %s/lion", text_path, folder), 0,
         "Lion");
  REFUSED(3, "which the optimizer keeps", "tiny-gpt2", "--resume %s/lion --set optimizer.type=AdamW", folder);
  ck_assert(tws_folder_lock(save, &lock, NULL) == TWS_OK);
  REFUSED(4, "another job saves there: process ", "tiny-gpt2", "--resume %s --save %s", save, save);
  tws_folder_unlock(lock);
#undef REFUSED
  expect(twinspeed(PLAIN, "tiny-gpt2", text_path, "--force --save "), 2, "no name");
  snprintf(more, sizeof more, "--force --save %s --save-every 4", save);
  expect(twinspeed(PLAIN, "tiny-gpt2", text_path, more), 0, "over what is there");
  ck_assert_int_eq(verified_step(save), 8);
  snprintf(more, sizeof more, "--resume %s/global_step4", save);
  expect(twinspeed(PLAIN, "tiny-gpt2", text_path, more), 0, "a checkpoint's own folder");
}
END_TEST

/* ---- no room ---- */

/* A save meets a limit on the size of files in the middle of a shard; on a file system of one MiB, where one can be
 * mounted, it fails before anything is written. The previous checkpoint stays whole, and the next save removes the
 * unfinished files. */
START_TEST(no_room) {
  char save[64], script[1024];
  snprintf(save, sizeof save, "%s/small", folder);
  expect(twinspeed(TINY "--quiet -n 1 --steps 2 --save %s", text_path, save), 0, "saving");
  snprintf(script, sizeof script,
           "ulimit -f 1000; exec %s/twinspeed " TINY "--quiet -n 1 --steps 4 --resume %s --save %s", TWS_BUILD_DIR,
           text_path, save, save);
  char *argv[] = {"/bin/sh", "-c", script, NULL};
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 4 && strstr(r.err, "File too large") && strstr(r.err, "saving the checkpoint") &&
                    strstr(r.err, "hint: make room"),
                "%d: %s", r.status, r.err);
  command_free(&r);
  ck_assert_int_eq(verified_step(save), 2);
  ck_assert_int_eq(count_named(save, ".saving-"), 1);
  expect(twinspeed(TINY "--quiet -n 1 --steps 4 --resume %s --save %s", text_path, save, save), 0, "with room");
  ck_assert_int_eq(verified_step(save), 4);
  ck_assert_int_eq(count_named(save, ".saving-"), 0);
  snprintf(script, sizeof script,
           "mkdir -p %s/disk && mount -t tmpfs -o size=1m none %s/disk 2>/dev/null || exit 99; "
           "%s/twinspeed " TINY "--quiet -n 1 --steps 4 --save %s/disk; status=$?; umount %s/disk; exit $status",
           folder, folder, TWS_BUILD_DIR, text_path, folder, folder);
  r = command_execute(argv);
  printf("a disk of one MiB: %s\n", r.status == 99 ? "cannot be mounted here" : "full");
  if (r.status != 99)
    ck_assert_msg(r.status == 4 && strstr(r.err, "a checkpoint takes 1.") && strstr(r.err, "left"), "%d: %s", r.status,
                  r.err);
  command_free(&r);
}
END_TEST

/* On a read-only file system, in a mount namespace of its own, a job that saves is refused before the first step and
 * changes no file; a job that resumes without saving works. */
START_TEST(read_only) {
  char save[64], script[2048];
  snprintf(save, sizeof save, "%s/kept", folder);
  expect(twinspeed(TINY "--quiet -n 1 --steps 2 --save %s", text_path, save), 0, "saving");
  snprintf(script, sizeof script,
           "mkdir -p %s/ro; mount -t tmpfs none %s/ro 2>/dev/null && cp -r %s %s/ro/run && mount -o remount,ro %s/ro "
           "|| exit 99; "
           "%s/twinspeed " TINY
           "--quiet -n 1 --steps 3 --resume %s/ro/run >/dev/null 2>&1 || exit 98; "
           "exec %s/twinspeed " TINY "--quiet -n 2 --stage 1 --steps 3 --resume %s/ro/run --save %s/ro/run",
           folder, folder, save, folder, folder, TWS_BUILD_DIR, text_path, folder, TWS_BUILD_DIR, text_path, folder,
           folder);
  char *argv[] = {"/usr/bin/unshare", "--mount", "/bin/sh", "-c", script, NULL};
  command_result r = command_execute(argv);
  const int possible = r.status != 99 && strstr(r.err, "unshare") == NULL;
  printf("a file system that is read only: %s\n", possible ? "refused" : "cannot be mounted here");
  if (possible) refused(r, 4, "Read-only file system", "a read-only folder");
  if (!possible) command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("checkpoint");
  TCase *tests = tcase_create("checkpoint");
  tcase_add_test(tests, kills);
  tcase_add_test(tests, asked_to_end);
  tcase_add_test(tests, save_overlaps_training);
  tcase_add_test(tests, failed_save_ends_training);
  tcase_add_test(tests, damage);
  tcase_add_test(tests, resumed_checkpoint_is_the_newest_whole_one);
  tcase_add_test(tests, refusals);
  tcase_add_test(tests, no_room);
  tcase_add_test(tests, read_only);
  tcase_set_timeout(tests, 600);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
