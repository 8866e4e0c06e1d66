/* Hostile or unlucky folders and the files that the program writes and reads: links, devices, pipes, signals, readers
 * of a folder to which another job saves, lost states. No file outside is touched, and no process hangs. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/sysmacros.h>
#include <time.h>
#include "base/json.h"
#include "base/unfinished.h"
#include "checkpoint/read.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/hand_checkpoint.h"
#include "tests/suite.h"

static tws_error err;

static char *contents(const char *path) {
  const int fd = open(path, O_RDONLY | O_NONBLOCK);
  return fd < 0 ? NULL : command_slurp(fd);
}

static void assert_holds(const char *path, const char *text) {
  char *now = contents(path);
  ck_assert_msg(now && strcmp(now, text) == 0, "%s now holds \"%.60s\"", path, now ? now : "nothing");
  free(now);
}

static mode_t kind_of(const char *path) {
  struct stat info;
  return lstat(path, &info) == 0 ? info.st_mode & S_IFMT : 0;
}

static int is_there(const char *path) {
  return kind_of(path) != 0;
}

/* Returns the number of names in a folder that contain the word. */
static int count_names(const char *path, const char *word) {
  DIR *list = opendir(path);
  int found = 0;
  for (const struct dirent *entry; list && (entry = readdir(list));) found += strstr(entry->d_name, word) != NULL;
  if (list) closedir(list);
  return found;
}

/* Runs the program under `timeout`, which kills it after 60 s if it hangs; the status is then 137. */
static command_result limited(const char *format, ...) __attribute__((format(printf, 1, 2)));
static command_result limited(const char *format, ...) {
  char words[2048], line[4096];
  va_list list;
  va_start(list, format);
  vsnprintf(words, sizeof words, format, list);
  va_end(list);
  snprintf(line, sizeof line, "exec timeout -s KILL 60 %s/twinspeed %s", TWS_BUILD_DIR, words);
  char *argv[] = {"/bin/sh", "-c", line, NULL};
  return command_execute(argv);
}

static void fill_folder(void) {
  make_folder_with_text();
  write_text(in_folder("victim"), "precious");
}

/* ---- the writer ---- */

START_TEST(writer_follows_no_link) {
  char old_name[200];
  const char *path = in_folder("out"), *victim = in_folder("victim"), *link = in_folder("link");
  snprintf(old_name, sizeof old_name, "%s.%ld.new", path, (long)getpid()); /* as names were once made */
  ck_assert_int_eq(symlink(victim, old_name), 0);
  ck_assert_int_eq(tws_write_file(path, "new", 3, &err), TWS_OK);
  assert_holds(path, "new");
  assert_holds(victim, "precious");
  unlink(old_name);
  ck_assert_int_eq(symlink(victim, link), 0);
  ck_assert_int_eq(tws_write_file(link, "new", 3, &err), TWS_OK); /* callers have to check before whether they may
                                                                   * replace the link */
  ck_assert_int_eq(kind_of(link), S_IFREG);
  assert_holds(victim, "precious");
  unlink(link);
  ck_assert_int_eq(symlink(victim, link), 0);
  int fd;
  ck_assert_int_eq(tws_changed_file(link, 1, &fd, &err), TWS_IO);
  ck_assert_msg(strstr(err.message, "a symbolic link"), "%s", err.message);
  ck_assert_int_eq(tws_growing_file(link, &fd, &err), TWS_OK);
  close(fd);
  ck_assert_int_eq(kind_of(link), S_IFREG);
  assert_holds(victim, "precious");
  ck_assert_int_eq(count_names(folder, ".new"), 0);
}
END_TEST

/* A pipe gets the bytes and stays a pipe; so does a device of any name. */
START_TEST(streams_are_written_to) {
  const char *pipe = in_folder("pipe"), *device = in_folder("device");
  char got[8] = "";
  ck_assert_int_eq(mkfifo(pipe, 0600), 0);
  const int reader = open(pipe, O_RDONLY | O_NONBLOCK);
  ck_assert_int_eq(tws_write_file(pipe, "text", 4, &err), TWS_OK);
  ck_assert_int_eq(read(reader, got, sizeof got), 4);
  ck_assert_str_eq(got, "text");
  close(reader);
  ck_assert_int_eq(kind_of(pipe), S_IFIFO);
  ck_assert_int_eq(tws_path_kind_of("/dev/null"), TWS_PATH_STREAM);
  if (mknod(device, S_IFCHR | 0600, makedev(1, 3)) == 0) { /* for root */
    ck_assert_int_eq(tws_write_file(device, "text", 4, &err), TWS_OK);
    ck_assert_int_eq(kind_of(device), S_IFCHR);
  }
}
END_TEST

/* Verbs that write their outputs with different code; %s is the output. */
static const char *const verbs[] = {"convert tokens @/text %s",
                                    "convert tokens @/text @/else --eval %s",
                                    "convert checkpoint @/weights.safetensors %s",
                                    "convert config @/config.json %s",
                                    "estimate -m tiny-gpt2 --ledger-csv %s",
                                    "train -m tiny-gpt2 --seq 32 --steps 1 --quiet --data @/text --csv %s",
                                    "train -m tiny-gpt2 --seq 32 --steps 1 --quiet --data @/text --result %s"};
enum { VERBS = sizeof verbs / sizeof *verbs };

static command_result run_verb(int verb, const char *path, const char *more) {
  char line[1024];
  size_t used = 0;
  for (const char *c = verbs[verb]; *c; c++) {
    if (c[0] == '@' || c[0] == '%')
      used += (size_t)snprintf(line + used, sizeof line - used, "%s", c[0] == '@' ? folder : path);
    else
      line[used++] = *c;
    c += c[0] == '%';
  }
  line[used] = '\0';
  return limited("%s %s", line, more);
}

static void fill_inputs(void) {
  static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
  char weights[256] = "";
  fill_folder();
  write_text(in_folder("config.json"), "{\"train_batch_size\": 8}");
  const uint64_t length = sizeof header - 1;
  memcpy(weights, &length, 8);
  memcpy(weights + 8, header, length);
  write_bytes(in_folder("weights.safetensors"), weights, 8 + length + 8);
}

/* A symbolic link as an output is refused without --force; with --force the link is replaced, and its target is not
 * touched. */
START_TEST(links_as_outputs) {
  const char *link = in_folder("link"), *victim = in_folder("victim");
  ck_assert_int_eq(symlink("victim", link), 0);
  command_result r = run_verb(_i, link, "");
  assert_one_error(&r, 2, verbs[_i]);
  ck_assert_msg(strstr(r.err, "is a symbolic link") && strstr(r.err, "--force replaces the link"), "%s", r.err);
  command_free(&r);
  ck_assert_int_eq(kind_of(link), S_IFLNK);
  r = run_verb(_i, link, "--force");
  ck_assert_msg(r.status == 0, "%s: %d %s", verbs[_i], r.status, r.err);
  command_free(&r);
  ck_assert_int_eq(kind_of(link), S_IFREG);
  assert_holds(victim, "precious");
  ck_assert_int_eq(count_names(folder, ".new"), 0);
}
END_TEST

START_TEST(pipes_as_outputs) {
  const char *pipe = in_folder("pipe");
  char got[16];
  ck_assert_int_eq(mkfifo(pipe, 0600), 0);
  const int reader = open(pipe, O_RDONLY | O_NONBLOCK);
  command_result r = run_verb(_i, pipe, "");
  ck_assert_msg(r.status == 0, "%s: %d %s", verbs[_i], r.status, r.err);
  command_free(&r);
  ck_assert_int_gt(read(reader, got, sizeof got), 8);
  close(reader);
  ck_assert_int_eq(kind_of(pipe), S_IFIFO);
  const char *device = in_folder("device");
  if (mknod(device, S_IFCHR | 0600, makedev(1, 3)) != 0) return; /* for root */
  unlink(in_folder("else"));
  r = run_verb(_i, device, "");
  ck_assert_msg(r.status == 0, "%s: %d %s", verbs[_i], r.status, r.err);
  command_free(&r);
  ck_assert_int_eq(kind_of(device), S_IFCHR);
}
END_TEST

/* An existing second file of a data set, the index, is not overwritten without --force. */
START_TEST(index_of_tokens_is_kept) {
  write_text(in_folder("set.idx"), "precious");
  command_result r = limited("convert tokens %s %s --megatron", in_folder("text"), in_folder("set.bin"));
  assert_one_error(&r, 2, "convert tokens --megatron");
  assert_holds(in_folder("set.idx"), "precious");
  command_free(&r);
}
END_TEST

/* A signal ends a conversion that waits for input: its unfinished output, which exists by then, is removed. */
START_TEST(signals_leave_nothing) {
  static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
  const char *input = in_folder("input");
  char program[256], output[128];
  snprintf(program, sizeof program, "%s/twinspeed", TWS_BUILD_DIR);
  snprintf(output, sizeof output, "%s/tokens.bin", folder);
  ck_assert_int_eq(mkfifo(input, 0600), 0);
  const pid_t child = fork();
  if (child == 0) {
    execl(program, program, "convert", "tokens", input, output, "--quiet", (char *)NULL);
    _exit(127);
  }
  for (int i = 0; i < 6000 && count_names(folder, "tokens.bin") == 0; i++) usleep(10000);
  const int begun = count_names(folder, "tokens.bin");
  int status;
  kill(child, numbers[_i]);
  ck_assert(command_ends(child, 60, &status));
  ck_assert_int_eq(begun, 1);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 128 + numbers[_i], "status %x", (unsigned)status);
  ck_assert_int_eq(count_names(folder, "tokens.bin"), 0);
}
END_TEST

/* Does what a signal handler does, without a signal: removes unfinished files and a scratch folder with all its files,
 * without following links. A child process does not remove the files of its parent. */
START_TEST(unfinished_files) {
  char scratch[200], inside[300];
  tws_new_file file;
  setenv("TMPDIR", folder, 1);
  ck_assert_int_eq(tws_new_file_open(in_folder("out"), &file, &err), TWS_OK);
  ck_assert_int_eq(tws_temporary_folder(scratch, sizeof scratch, "test", &err), TWS_OK);
  snprintf(inside, sizeof inside, "%s/a", scratch);
  ck_assert_int_eq(mkdir(inside, 0777), 0);
  snprintf(inside, sizeof inside, "%s/a/b", scratch);
  write_text(inside, "b");
  snprintf(inside, sizeof inside, "%s/link", scratch);
  ck_assert_int_eq(symlink(folder, inside), 0);
  const pid_t child = fork();
  if (child == 0) {
    tws_unfinished_remove();
    _exit(0);
  }
  waitpid(child, NULL, 0);
  ck_assert_int_eq(count_names(folder, ".new-"), 1);
  ck_assert(is_there(scratch));
  tws_unfinished_remove();
  ck_assert_int_eq(count_names(folder, ".new-"), 0);
  ck_assert(!is_there(scratch));
  assert_holds(in_folder("victim"), "precious");
  ck_assert_int_eq(tws_new_file_close(&file, TWS_NO, NULL), TWS_NO);
  ck_assert(!is_there(in_folder("out")));
}
END_TEST

/* ---- folders of checkpoints ---- */

static void assert_saved(const char *save, int64_t step, int64_t keep, const char *remark) {
  char path[600], tag[TWS_TAG_SIZE];
  tws_text remarks = {0};
  ck_assert_msg(save_hand_checkpoint(save, step, keep, &remarks, &err) == TWS_OK, "%s", err.message);
  if (remark)
    ck_assert_msg(remarks.length > 0 && strstr(remarks.data, remark), "\"%s\" is not in: %s", remark,
                  remarks.length ? remarks.data : "");
  else
    ck_assert_msg(remarks.length == 0, "%s", remarks.data);
  tws_text_free(&remarks);
  tws_tag_of_step(step, tag, sizeof tag);
  snprintf(path, sizeof path, "%s/%s/%s", save, tag, TWS_CHECKPOINT_INDEX);
  ck_assert(is_there(path));
  snprintf(path, sizeof path, "%s/latest", save);
  assert_holds(path, tag);
}

static char save[128];

static void begin_folder(void) {
  fill_folder();
  snprintf(save, sizeof save, "%s/run", folder);
  ck_assert_int_eq(mkdir(save, 0777), 0);
  ck_assert_int_eq(mkdir(in_folder("treasure"), 0777), 0);
  write_text(in_folder("treasure/index.json"), "precious");
  write_text(in_folder("treasure/rank-00000.safetensors"), "precious");
}

static void assert_treasure(void) {
  assert_holds(in_folder("treasure/index.json"), "precious");
  assert_holds(in_folder("treasure/rank-00000.safetensors"), "precious");
  assert_holds(in_folder("victim"), "precious");
}

/* Links in a folder of checkpoints are removed or replaced, and their targets stay untouched. */
START_TEST(links_in_a_folder) {
  static const char *const folders[] = {"run/.saving-x", "run/.removing-x", "run/.saving-global_step4"};
  static const char *const files[] = {"run/.lock", "run/.latest.new", "run/latest"};
  int lock;
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(symlink("../treasure", in_folder(folders[i])), 0);
    ck_assert_int_eq(symlink("../victim", in_folder(files[i])), 0);
  }
  ck_assert_msg(tws_folder_lock(save, &lock, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(kind_of(in_folder("run/.lock")), S_IFREG);
  assert_saved(save, 4, 1, NULL);
  for (int i = 0; i < 3; i++) ck_assert(!is_there(in_folder(folders[i])));
  ck_assert_int_eq(kind_of(in_folder("run/latest")), S_IFREG);
  ck_assert(!is_there(in_folder("run/.latest.new")));
  ck_assert_int_eq(symlink("../treasure", in_folder("run/global_step8")), 0); /* where a checkpoint will be */
  assert_saved(save, 8, 1, NULL);
  ck_assert_int_eq(kind_of(in_folder("run/global_step8")), S_IFDIR);
  ck_assert_int_eq(count_names(save, ".saving"), 0);
  assert_treasure();
  tws_folder_unlock(lock);
  ck_assert_int_eq(unlink(in_folder("run/.lock")), 0);
  ck_assert_int_eq(link(in_folder("victim"), in_folder("run/.lock")), 0); /* another name of a file */
  ck_assert_msg(tws_folder_lock(save, &lock, &err) == TWS_OK, "%s", err.message);
  assert_treasure();
  tws_folder_unlock(lock);
}
END_TEST

/* A rank writes its file only into the folder that was made for the save, even if a link replaces that folder. */
START_TEST(links_during_a_save) {
  int fd;
  ck_assert_int_eq(tws_folder_begin(save, "global_step4", NULL, &err), TWS_OK);
  ck_assert_int_eq(rmdir(in_folder("run/.saving-global_step4")), 0);
  ck_assert_int_eq(symlink("../treasure", in_folder("run/.saving-global_step4")), 0);
  ck_assert_int_eq(tws_file_begin(in_folder("run/.saving-global_step4/rank-00001.safetensors"), &fd, &err), TWS_IO);
  ck_assert(!is_there(in_folder("treasure/rank-00001.safetensors")));
  ck_assert_int_eq(tws_folder_publish(save, "global_step4", 0, NULL, &err), TWS_IO);
  ck_assert(!is_there(in_folder("run/latest")));
  assert_treasure();
}
END_TEST

/* --keep removes the files of old checkpoints that their indices list. The user's files and folders stay and are
 * reported, and the save succeeds. */
START_TEST(keep_leaves_what_is_the_users) {
  assert_saved(save, 1, 0, NULL);
  write_text(in_folder("run/global_step1/notes.txt"), "mine");
  assert_saved(save, 2, 0, NULL);
  ck_assert_int_eq(mkdir(in_folder("run/global_step2/mine"), 0777), 0);
  write_text(in_folder("run/global_step2/mine/rank-00000.safetensors"), "mine");
  assert_saved(save, 3, 0, NULL);
  ck_assert_int_eq(rename(in_folder("run/global_step3"), in_folder("moved")), 0); /* to another disk */
  ck_assert_int_eq(symlink("../moved", in_folder("run/global_step3")), 0);
  ck_assert_int_eq(mkdir(in_folder("run/global_step4"), 0777), 0); /* of another program */
  write_text(in_folder("run/global_step4/mp_rank_00_model_states.pt"), "theirs");
  tws_text remarks = {0};
  ck_assert_int_eq(tws_folder_look(save, 1, &remarks, &err), TWS_OK); /* told before the first step */
  ck_assert_msg(strstr(remarks.data, "global_step1") && strstr(remarks.data, "notes.txt") &&
                    strstr(remarks.data, "global_step3: a symbolic link"),
                "%s", remarks.data);
  tws_text_free(&remarks);
  assert_saved(save, 5, 1, "notes.txt");
  assert_holds(in_folder("run/global_step1/notes.txt"), "mine");
  ck_assert(!is_there(in_folder("run/global_step1/index.json")));
  ck_assert(!is_there(in_folder("run/global_step1/rank-00000.safetensors")));
  assert_holds(in_folder("run/global_step2/mine/rank-00000.safetensors"), "mine");
  ck_assert(!is_there(in_folder("run/global_step3")));
  ck_assert(is_there(in_folder("moved/index.json")) && is_there(in_folder("moved/rank-00000.safetensors")));
  assert_holds(in_folder("run/global_step4/mp_rank_00_model_states.pt"), "theirs");
  ck_assert_int_eq(count_names(save, ".removing"), 0);
  assert_saved(save, 6, 1, NULL); /* the remains are no checkpoint and cause no more remarks */
  ck_assert(!is_there(in_folder("run/global_step5")));
}
END_TEST

/* A checkpoint with a damaged index is kept whole, because no list says which files belong to it. */
START_TEST(keep_leaves_what_it_cannot_read) {
  assert_saved(save, 1, 0, NULL);
  write_text(in_folder("run/global_step1/index.json"), "damaged");
  assert_saved(save, 2, 1, "global_step1: it stays");
  ck_assert(is_there(in_folder("run/global_step1/rank-00000.safetensors")));
}
END_TEST

/* A step that is saved again replaces the files of its checkpoint, and the user's files in it stay. */
START_TEST(a_step_saved_again) {
  hand_value = 1;
  assert_saved(save, 4, 0, NULL);
  write_text(in_folder("run/global_step4/notes.txt"), "mine");
  hand_value = 2;
  assert_saved(save, 4, 0, NULL);
  assert_holds(in_folder("run/global_step4/notes.txt"), "mine");
  ck_assert_int_eq(count_names(save, ".saving"), 0);
  ck_assert_int_eq(count_names(save, ".removing"), 0);
}
END_TEST

/* Leftovers that cannot be removed cause a remark, and the save succeeds. */
START_TEST(leftovers_that_stay) {
  ck_assert_int_eq(mkdir(in_folder("run/.saving-global_step4"), 0777), 0);
  ck_assert_int_eq(mkdir(in_folder("run/.saving-global_step4/mine"), 0777), 0);
  write_text(in_folder("run/.saving-global_step4/mine/notes.txt"), "mine");
  write_text(in_folder("run/.saving-global_step4/rank-00000.safetensors"), "half");
  ck_assert_int_eq(mkdir(in_folder("run/.removing-x"), 0777), 0);
  write_text(in_folder("run/.removing-x/notes.txt"), "mine");
  assert_saved(save, 4, 1, ".removing-x: left from a save");
  assert_holds(in_folder("run/.removing-x/notes.txt"), "mine");
  assert_holds(in_folder("run/.leftover-1-global_step4/mine/notes.txt"), "mine");
  ck_assert(!is_there(in_folder("run/.leftover-1-global_step4/rank-00000.safetensors")));
}
END_TEST

/* ---- readers ---- */

/* A reader whose checkpoint was removed meanwhile gets an error that says so and names an existing checkpoint. */
START_TEST(a_reader_and_keep) {
  char path[300];
  tws_saved_index *index = NULL;
  tws_saved_reader reader;
  float values[HAND_ROWS * HAND_COLUMNS];
  assert_saved(save, 4, 1, NULL);
  ck_assert_int_eq(tws_folder_find(save, NULL, path, sizeof path, &err), TWS_OK);
  ck_assert_int_eq(tws_saved_open(path, &index, &err), TWS_OK);
  ck_assert_int_eq(tws_saved_reader_open(index, &reader, &err), TWS_OK);
  assert_saved(save, 8, 1, NULL);
  const tws_param_slice whole = tws_slice_of(&index->params[0], NULL);
  ck_assert_int_eq(tws_saved_read(&reader, 0, 0, 0, &whole, 0, HAND_ROWS * HAND_COLUMNS, TWS_F32, values, &err),
                   TWS_IO);
  ck_assert_msg(strstr(err.message, "global_step4: the checkpoint was removed meanwhile"), "%s", err.message);
  ck_assert_msg(strstr(err.hint, "global_step8"), "%s", err.hint);
  tws_saved_reader_close(&reader);
  tws_saved_close(index);
  ck_assert_int_eq(tws_saved_open(path, &index, &err), TWS_IO);
  ck_assert_msg(strstr(err.message, "removed meanwhile") && strstr(err.hint, "global_step8"), "%s", err.message);
}
END_TEST

/* While a job saves every step and keeps one checkpoint, every reader gets a whole checkpoint. */
START_TEST(readers_of_a_running_job) {
  char program[256], text[128];
  enum { READERS = 25 };
  snprintf(program, sizeof program, "%s/twinspeed", TWS_BUILD_DIR);
  snprintf(text, sizeof text, "%s/text", folder);
  const pid_t child = fork();
  if (child == 0) {
    freopen("/dev/null", "w", stdout);
    execl(program, program, "train", "--quiet", "-m", "tiny-gpt2", "--seq", "32", "--threads", "1", "-n", "1", "--data",
          text, "--steps", "1000000", "--save", save, "--save-every", "1", "--keep", "1", (char *)NULL);
    _exit(127);
  }
  for (int i = 0; i < 1000 && !is_there(in_folder("run/latest")); i++) usleep(20000);
  for (int i = 0; i < READERS; i++) {
    command_result r = limited("convert checkpoint %s %s --force --quiet", save, in_folder("model.safetensors"));
    if (r.status != 0) kill(child, SIGKILL);
    ck_assert_msg(r.status == 0, "reader %d: %d %s", i, r.status, r.err);
    command_free(&r);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, WNOHANG), 0); /* it still runs */
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}
END_TEST

#define MODEL                                                                                                         \
  "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 1, \"n_head\": " \
  "4}"

/* A job has found its checkpoint and waits for its model, which is a pipe; meanwhile another job replaces the
 * checkpoint. */
START_TEST(resuming_while_a_job_saves) {
  char program[256], text[128], pipe[128];
  const char *said = in_folder("said");
  snprintf(program, sizeof program, "%s/twinspeed", TWS_BUILD_DIR);
  snprintf(text, sizeof text, "%s/text", folder);
  snprintf(pipe, sizeof pipe, "%s/pipe.json", folder);
  write_text(in_folder("model.json"), MODEL);
  ck_assert_int_eq(mkfifo(pipe, 0600), 0);
  command_result r =
      limited("train --quiet -m %s --seq 32 -n 1 --steps 2 --data %s --save %s", in_folder("model.json"), text, save);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  const pid_t child = fork();
  if (child == 0) {
    freopen("/dev/null", "w", stdout);
    freopen(said, "w", stderr);
    execl(program, program, "train", "--quiet", "-m", pipe, "--seq", "32", "-n", "1", "--data", text, "--steps", "6",
          "--resume", save, (char *)NULL);
    _exit(127);
  }
  int fd = open(pipe, O_WRONLY); /* it has come so far */
  r = limited("train --quiet -m %s --seq 32 -n 1 --steps 4 --data %s --save %s --resume %s --keep 1",
              in_folder("model.json"), text, save, save);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  const pid_t feeder = fork(); /* as often as the model is read */
  while (feeder == 0) {
    (void)!write(fd, MODEL, sizeof MODEL - 1);
    close(fd);
    usleep(20000);
    fd = open(pipe, O_WRONLY);
  }
  close(fd);
  int status;
  const int ended = command_ends(child, 120, &status);
  kill(feeder, SIGKILL);
  waitpid(feeder, NULL, 0);
  ck_assert(ended);
  char *message = contents(said);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x: %s", (unsigned)status, message);
  ck_assert_msg(strstr(message, "continuing from global_step4"), "%s", message);
  free(message);
}
END_TEST

/* A pipe in the place of a checkpoint's file is refused at once, with the file's name in the error. */
START_TEST(pipes_in_a_checkpoint) {
  static const char *const names[] = {"run/latest", "run/global_step4/index.json",
                                      "run/global_step4/rank-00000.safetensors"};
  assert_saved(save, 4, 0, NULL);
  unlink(in_folder(names[_i]));
  ck_assert_int_eq(mkfifo(in_folder(names[_i]), 0600), 0);
  command_result r = limited("convert checkpoint %s %s", save, in_folder("out"));
  assert_one_error(&r, 3, names[_i]);
  ck_assert_msg(strstr(r.err, in_folder(names[_i])), "%s", r.err);
  command_free(&r);
  r = limited("train -m tiny-gpt2 --seq 32 -n 1 --steps 8 --quiet --data %s --resume %s", in_folder("text"), save);
  assert_one_error(&r, 3, names[_i]);
  command_free(&r);
}
END_TEST

START_TEST(pipes_as_weights) {
  ck_assert_int_eq(mkfifo(in_folder("model.safetensors"), 0600), 0);
  write_text(in_folder("model.safetensors.index.json"), "{\"weight_map\": {\"w\": \"model.safetensors\"}}");
  command_result r = limited("convert checkpoint %s %s", in_folder("model.safetensors.index.json"), in_folder("out"));
  assert_one_error(&r, 3, "a shard that is a pipe");
  ck_assert_msg(strstr(r.err, "a pipe or a device"), "%s", r.err);
  command_free(&r);
}
END_TEST

/* ---- whole jobs ---- */

#define JOB "train -m tiny-gpt2 --seq 32 --quiet --data %s --save %s --save-every 2 "

/* In a folder with links and foreign files a job warns before the first step, and every save succeeds. */
START_TEST(a_job_in_a_folder_of_traps) {
  assert_saved(save, 1, 0, NULL);
  write_text(in_folder("run/global_step1/notes.txt"), "mine");
  ck_assert_int_eq(symlink("../treasure", in_folder("run/.saving-x")), 0);
  ck_assert_int_eq(symlink("../victim", in_folder("run/.lock")), 0);
  command_result r = limited(JOB "--steps 6 --keep 1 --force -n %d", in_folder("text"), save, _i + 1);
  ck_assert_msg(r.status == 0, "%d: %s", r.status, r.err);
  ck_assert_msg(strstr(r.err, "notes.txt") && !strstr(r.err, "saving the checkpoint"), "%s", r.err);
  command_free(&r);
  assert_holds(in_folder("run/global_step1/notes.txt"), "mine");
  assert_holds(in_folder("run/latest"), "global_step6");
  ck_assert(!is_there(in_folder("run/global_step4")) && !is_there(in_folder("run/.saving-x")));
  assert_treasure();
}
END_TEST

/* Adam with eps 0: the rows of the vocabulary that occur in no text become 0/0. The warning names the key; the broken
 * state is not saved, and the earlier checkpoint stays. */
START_TEST(a_lost_state_is_not_saved) {
  static const char config[] =
      "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001, "
      "\"eps\": %s}}, \"zero_optimization\": {\"stage\": 1}}";
  char text[512];
  command_result r = limited(JOB "--steps 2 -n %d", in_folder("text"), save, 1 + _i);
  ck_assert_msg(r.status == 0, "%d: %s", r.status, r.err);
  command_free(&r);
  snprintf(text, sizeof text, config, _i ? "1e-50" : "0");
  write_text(in_folder("eps.json"), text);
  r = limited(JOB "--steps 6 -c %s -n %d --resume %s", in_folder("text"), save, in_folder("eps.json"), 1 + _i, save);
  ck_assert_msg(r.status == 5, "%d: %s", r.status, r.err);
  ck_assert_msg(strstr(r.err, "is 0 in float32"), "%s", r.err);
  ck_assert_msg(strstr(r.err, "NaN or infinite, and is not saved"), "%s", r.err);
  command_free(&r);
  assert_holds(in_folder("run/latest"), "global_step2");
  ck_assert(!is_there(in_folder("run/global_step4")));
}
END_TEST

/* Existing output files that a configuration names are refused without --force, like those of the command line. */
START_TEST(outputs_of_a_configuration) {
  char text[512];
  snprintf(text, sizeof text,
           "{\"train_batch_size\": 2, \"flops_profiler\": {\"enabled\": true, \"profile_step\": 2, \"output_file\": "
           "\"%s\"}}",
           in_folder("victim"));
  write_text(in_folder("profiled.json"), text);
  command_result r = limited("train -m tiny-gpt2 --seq 32 --quiet --steps 2 -n 1 --data %s -c %s", in_folder("text"),
                             in_folder("profiled.json"));
  assert_one_error(&r, 2, "flops_profiler.output_file");
  assert_holds(in_folder("victim"), "precious");
  command_free(&r);
  r = limited("train -m tiny-gpt2 --seq 32 --quiet --steps 2 -n 1 --data %s -c %s --force", in_folder("text"),
              in_folder("profiled.json"));
  ck_assert_msg(r.status == 0, "%d: %s", r.status, r.err);
  char *now = contents(in_folder("victim"));
  ck_assert_msg(strstr(now, "params"), "%s", now);
  free(now);
  command_free(&r);
}
END_TEST

/* A full disk gives exit code 4 (environment), on one rank and on two. */
START_TEST(a_full_disk) {
  command_result r = limited("train -m tiny-gpt2 --seq 32 --quiet --steps 2 --data %s -n %d --csv /dev/full",
                             in_folder("text"), 1 + _i);
  assert_one_error(&r, 4, "a csv on a full disk");
  command_free(&r);
  r = limited("train -m tiny-gpt2 --seq 32 --quiet --steps 2 --data %s -n %d >/dev/full", in_folder("text"), 1 + _i);
  assert_one_error(&r, 4, "an output on a full disk");
  command_free(&r);
  char line[1024]; /* a small file system, where the test may mount one */
  snprintf(line, sizeof line,
           "unshare -m sh -c 'mount -t tmpfs -o size=200k none %s && exec timeout -s KILL 60 %s/twinspeed " JOB
           "--steps 2 -n %d'",
           save, TWS_BUILD_DIR, in_folder("text"), save, 1 + _i);
  char *argv[] = {"/bin/sh", "-c", line, NULL};
  if (system("unshare -m sh -c 'mount -t tmpfs -o size=200k none /mnt' 2>/dev/null") != 0) return;
  r = command_execute(argv);
  ck_assert_msg(r.status == 4 && strstr(r.err, "the disk has"), "%d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

/* tune --force removes the results of an earlier search, and follows no links. */
START_TEST(a_search_follows_no_link) {
  write_text(in_folder("treasure/exp.json"), "precious");
  ck_assert_int_eq(symlink("../treasure", in_folder("run/z0")), 0);
  ck_assert_int_eq(mkdir(in_folder("run/z1"), 0777), 0);
  write_text(in_folder("run/z1/exp.json"), "{}");
  command_result r = limited("tune -m tiny-gpt2 --cluster dgx-a100 --no-simulation --quiet --force -o %s", save);
  ck_assert_msg(r.status == 0, "%d: %s", r.status, r.err);
  command_free(&r);
  ck_assert(!is_there(in_folder("run/z1")));
  assert_holds(in_folder("treasure/exp.json"), "precious");
}
END_TEST

/* Swap files of ended jobs are removed from the program's folder, and not from the target of a link in its place. */
START_TEST(swap_files_follow_no_link) {
  static const char config[] =
      "{\"train_batch_size\":4,\"train_micro_batch_size_per_gpu\":2,\"optimizer\":{\"type\":\"AdamW\"},"
      "\"zero_optimization\":{\"stage\":3,\"offload_optimizer\":{\"device\":\"nvme\",\"nvme_path\":\"%s\"}}}";
  char text[1024];
  write_text(in_folder("treasure/old.swap"), "precious");
  ck_assert_int_eq(symlink("../treasure", in_folder("run/twinspeed-swap")), 0);
  snprintf(text, sizeof text, config, save);
  write_text(in_folder("nvme.json"), text);
  command_result r = limited("train --quiet -m tiny-gpt2 --seq 32 -c %s -n 1 --data %s --steps 1",
                             in_folder("nvme.json"), in_folder("text"));
  assert_one_error(&r, 4, "a link in the place of the folder");
  ck_assert_msg(strstr(r.err, "twinspeed-swap"), "%s", r.err);
  command_free(&r);
  assert_holds(in_folder("treasure/old.swap"), "precious");
}
END_TEST

static void add_folders(TCase *tests) {
  tcase_add_test(tests, links_in_a_folder);
  tcase_add_test(tests, links_during_a_save);
  tcase_add_test(tests, keep_leaves_what_is_the_users);
  tcase_add_test(tests, keep_leaves_what_it_cannot_read);
  tcase_add_test(tests, a_step_saved_again);
  tcase_add_test(tests, leftovers_that_stay);
  tcase_add_test(tests, a_reader_and_keep);
  tcase_add_test(tests, readers_of_a_running_job);
  tcase_add_test(tests, resuming_while_a_job_saves);
  tcase_add_loop_test(tests, pipes_in_a_checkpoint, 0, 3);
  tcase_add_loop_test(tests, a_job_in_a_folder_of_traps, 0, 2);
  tcase_add_loop_test(tests, a_lost_state_is_not_saved, 0, 2);
  tcase_add_test(tests, outputs_of_a_configuration);
  tcase_add_loop_test(tests, a_full_disk, 0, 2);
  tcase_add_test(tests, a_search_follows_no_link);
  tcase_add_test(tests, swap_files_follow_no_link);
}

/* ctest: mpi */
int main(void) {
  Suite *suite = suite_create("files");
  TCase *writer = tcase_create("writer"), *places = tcase_create("folders");
  tcase_add_checked_fixture(writer, fill_inputs, remove_folder);
  tcase_add_checked_fixture(places, begin_folder, remove_folder);
  tcase_set_timeout(writer, 240);
  tcase_set_timeout(places, 240);
  tcase_add_test(writer, writer_follows_no_link);
  tcase_add_test(writer, streams_are_written_to);
  tcase_add_loop_test(writer, links_as_outputs, 0, VERBS);
  tcase_add_loop_test(writer, pipes_as_outputs, 0, VERBS);
  tcase_add_test(writer, index_of_tokens_is_kept);
  tcase_add_loop_test(writer, signals_leave_nothing, 0, 3);
  tcase_add_test(writer, unfinished_files);
  tcase_add_test(writer, pipes_as_weights);
  suite_add_tcase(suite, writer);
  add_folders(places);
  suite_add_tcase(suite, places);
  return run_suite(suite);
}
