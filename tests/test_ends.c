/* ctest: mpi waits sampled */
/* Jobs whose end is none of the ranks' own: mpirun is killed, stays or is stopped, Ctrl-C comes twice, processes are
 * stopped and continue, and their output is not read. */
#include <check.h>
#include "launch/protocol.h"
#include "launch/watch.h"
#include "running_job.h"

static char hosts_path[96], shell_path[96];

static void start(running_job *j, int ranks, const char *more) {
  char line[2048];
  snprintf(line, sizeof line, RUNNING_TRAIN "-n %d %s", folder, text_path, ranks, more);
  running_start(j, "job", ranks, line);
}

static void assert_end(const running_job *j, int status, const char *says, const char *never) {
  const int is = running_wait(j);
  char *err = running_errors(j);
  ck_assert_msg(is == status && (!says || strstr(err, says)) && (!never || !strstr(err, never)), "status %d: %s", is,
                err);
  free(err);
  running_assert_gone(j);
}

/* When mpirun is killed, the error blames no rank, and the files that mpirun would have removed are removed. */
START_TEST(mpirun_is_killed) {
  running_job j;
  start(&j, 2, "--steps 1000000 --deadline 20");
  running_reach(&j, "     2  ");
  ck_assert_ptr_nonnull(strstr(j.remains.folder, "/pid."));
  ck_assert(access(j.remains.folder, F_OK) == 0 && j.remains.job != 0);
  kill(j.mpirun, SIGKILL);
  assert_end(&j, 5, "mpirun was ended by signal 9 (Killed)", "rank ");
}
END_TEST

/* When mpirun gets a signal from outside, the error blames no rank; when a rank gets one, the error names that rank. */
START_TEST(mpirun_is_asked_to_end) {
  static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGTERM, SIGTERM};
  static const char asked[] = "mpirun ended all ranks and names none that failed: a signal from outside this job";
  const int foreign = _i == 3, of_rank = _i == 4;
  running_job j;
  if (foreign)
    running_start(&j, "job", 2, "launch -q -n 2 -- sh -c 'echo it runs; exec sleep 100'");
  else
    start(&j, 2, "--steps 1000000 --deadline 20");
  running_reach(&j, foreign ? "it runs" : "     2  ");
  kill(of_rank ? j.rank[1] : j.mpirun, numbers[_i]);
  assert_end(&j, 5, of_rank ? "rank 1 was ended by signal 15 (Terminated)" : asked, of_rank ? "mpirun" : "rank 0");
}
END_TEST

/* The watchdog also supervises ranks that calibrate starts. */
START_TEST(calibration_is_stopped) {
  char line[512];
  running_job j;
  snprintf(line, sizeof line, "calibrate --quick --seconds 60 --largest 100000 -n 2 --cores 2 --deadline 2 -o %s",
           in_folder("profile.json"));
  running_start(&j, "job", 2, line);
  const double until = tws_clock_s() + 60;
  while (!running_find(&j) && tws_clock_s() < until) usleep(10000);
  usleep(1500000);
  ck_assert(j.rank[1] > 0 && kill(j.rank[1], SIGSTOP) == 0);
  if (_i == 1) kill(j.rank[0], SIGSTOP);
  const double since = tws_clock_s();
  assert_end(&j, 124, _i ? "rank 0 is stopped" : "rank 1 is stopped", _i ? NULL : "rank 0 is");
  ck_assert_msg(tws_clock_s() - since < 9, "it took %.1f s", tws_clock_s() - since);
}
END_TEST

/* The watchdog also supervises ranks that generate texts. The job has many short texts, so that it has a cache and
 * takes long. */
START_TEST(generation_is_stopped) {
  enum { PROMPTS = 100000 };
  char line[512];
  running_job j;
  command_result r = twinspeed(RUNNING_TRAIN "-n 1 --steps 1 --save %s", folder, text_path, in_folder("saved"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  FILE *prompts = fopen(in_folder("prompts"), "w");
  for (int i = 0; i < PROMPTS; i++) fputs("[65]\n", prompts);
  fclose(prompts);
  snprintf(
      line, sizeof line,
      "generate -m %s/model.json --seq 64 --threads 1 --quiet --tp 2 --resume %s --prompts %s --batch 1 --tokens 60 "
      "--deadline 2",
      folder, in_folder("saved"), in_folder("prompts"));
  running_start(&j, "job", 2, line);
  const double until = tws_clock_s() + 60;
  while (!running_find(&j) && tws_clock_s() < until) usleep(10000);
  usleep(1000000);
  ck_assert(j.rank[1] > 0 && kill(j.rank[1], SIGSTOP) == 0);
  assert_end(&j, 124, "rank 1 is stopped", "rank 0 is");
}
END_TEST

/* A second Ctrl-C ends all processes by force, also stopped ranks and a stopped mpirun, which receive no signals. */
START_TEST(interrupted_twice) {
  running_job j;
  start(&j, 2, "--steps 1000000 --deadline 20");
  running_reach(&j, "     2  ");
  if (_i == 1) kill(j.rank[1], SIGSTOP);
  if (_i == 2) kill(j.mpirun, SIGSTOP);
  kill(j.pid, SIGINT);
  usleep(50000);
  kill(j.pid, SIGINT);
  assert_end(&j, 130, "interrupted; all ranks have ended", NULL);
}
END_TEST

/* When all work is done but mpirun does not end, the launcher reports that, and no failure. */
START_TEST(mpirun_stays) {
  char text[512], path[8192], before[4096];
  running_job j;
  snprintf(before, sizeof before, "%s", getenv("PATH"));
  command_result found = twinspeed("launch -n 1 --print-command -- /bin/true");
  ck_assert_int_eq(found.status, 0);
  found.out[strcspn(found.out, " \n")] = '\0';
  snprintf(text, sizeof text, "#!/bin/sh\n%.200s \"$@\"\nexec sleep 100\n", found.out);
  command_free(&found);
  write_text(in_folder("mpirun"), text);
  chmod(in_folder("mpirun"), 0700);
  snprintf(path, sizeof path, "%s:%s", folder, before);
  setenv("PATH", path, 1);
  start(&j, 2, "--steps 3 --deadline 20");
  setenv("PATH", before, 1);
  assert_end(&j, 0, "all ranks have ended well, but mpirun did not", NULL);
  unlink(in_folder("mpirun"));
}
END_TEST

/* When mpirun is stopped, the error does not blame the ranks that wait for it, because mpirun helps them to end. */
START_TEST(mpirun_is_stopped) {
  running_job j;
  start(&j, 2, "--steps 60 --deadline 2");
  running_reach(&j, "     2  ");
  kill(j.mpirun, SIGSTOP);
  assert_end(&j, 124, "mpirun is stopped", "rank 0 is");
}
END_TEST

/* A process that is stopped and continues before the deadline causes no error: a rank; the launcher; the launcher of
 * ranks on other machines, from which it hears nothing meanwhile; and a single rank, alone or with the process that
 * supervises it. */
START_TEST(stopped_and_continued) {
  static const struct {
    int ranks, far, rank;
    double seconds;
  } cases[] = {{2, 0, 1, 1.0}, {2, 0, -1, 4.0}, {2, 1, -1, 5.0}, {1, 0, 0, 1.0}, {1, 0, -1, 4.0}};
  char line[2048], where[256];
  running_job j;
  snprintf(where, sizeof where, "-n %d", cases[_i].ranks);
  if (cases[_i].far) snprintf(where, sizeof where, "--hostfile %s --remote-shell %s", hosts_path, shell_path);
  snprintf(line, sizeof line, RUNNING_TRAIN "--steps %d --deadline 3 %s", folder, text_path, TWS_SANITIZED ? 40 : 400,
           where);
  running_start(&j, "job", cases[_i].ranks, line);
  running_reach(&j, "     2  ");
  const pid_t pid = cases[_i].rank >= 0 ? j.rank[cases[_i].rank] : j.pid;
  kill(pid, pid == j.pid && cases[_i].ranks == 1 ? SIGTSTP : SIGSTOP); /* Ctrl-Z */
  usleep((useconds_t)(cases[_i].seconds * 1e6));
  if (pid == j.pid && cases[_i].ranks == 1) ck_assert_int_eq(tws_process_state(j.rank[0], NULL), 'T');
  kill(pid, SIGCONT);
  assert_end(&j, 0, NULL, "nothing has happened");
}
END_TEST

/* A rank whose output is not read waits for the reader as long as necessary, without an error. */
START_TEST(unread_output) {
  char line[2048], text[4096] = "";
  snprintf(line, sizeof line, "exec %s/twinspeed " RUNNING_TRAIN "-n %d --steps 3000 --deadline 1", TWS_BUILD_DIR,
           folder, text_path, 2);
  FILE *stream = popen(line, "r");
  ck_assert_ptr_nonnull(stream);
  sleep(9); /* a pipe takes 64 KiB */
  char last[4096] = "";
  while (fgets(text, sizeof text, stream))
    if (*text != '\n' && strncmp(text, "memory", 6) != 0) snprintf(last, sizeof last, "%s", text);
  const int status = pclose(stream);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x: %s", status, last);
}
END_TEST

/* A single rank, which another process supervises, reacts to signals like a process without a supervisor. */
START_TEST(guarded) {
  static const struct { int number, status; } ends[] = {{SIGINT, 130}, {SIGTERM, 143}, {SIGKILL, 137}};
  running_job j;
  start(&j, 1, "--steps 1000000");
  running_reach(&j, "     2  ");
  ck_assert_msg(j.rank[0] > 0 && getpgid(j.rank[0]) == j.rank[0], "no rank");
  if (_i == 0) {
    kill(j.rank[0], SIGSTOP);
    usleep(700000);
  }
  kill(j.pid, ends[_i].number);
  assert_end(&j, ends[_i].status, NULL, NULL);
  start(&j, 1, "--steps 1000000");
  running_reach(&j, "     2  ");
  kill(j.rank[0], SIGALRM);
  assert_end(&j, 128 + SIGALRM, NULL, NULL);
}
END_TEST

/* ---- errors where the failing rank is not known ---- */

static tws_code judge(const char *const *lines, int ranks, int came, tws_error *err) {
  char board[RUNNING_RANKS * TWS_BOARD_LINE] = "";
  tws_watch *watch = NULL;
  int rank = 0;
  const tws_watch_setup setup = {.ranks = ranks, .deadline_s = 0.1, .board = board};
  for (int r = 0; r < ranks; r++) snprintf(board + r * TWS_BOARD_LINE, TWS_BOARD_LINE, "%s", lines[r]);
  ck_assert_int_eq(tws_watch_create(&setup, &watch, err), TWS_OK);
  for (int r = 0; r < came; r++) tws_watch_connected(watch, r, 0, -1);
  tws_code code = TWS_OK;
  for (int i = 0; i < 20 && code == TWS_OK; i++) {
    usleep(300000);
    (void)tws_watch_look(watch);
    code = tws_watch_judge(watch, &rank, err);
  }
  ck_assert_int_eq(rank, came < ranks ? came : -1);
  tws_watch_destroy(watch);
  return code;
}

START_TEST(messages_state_the_known_cause) {
  static const struct {
    const char *lines[4];
    int ranks, came;
    const char *says;
  } cases[] = {{{"step 2, saving x: meeting", "step 2, saving x: meeting"},
                2,
                2,
                "nothing has happened for 0.1 s: ranks 0 and 1 are both at: step 2, saving x: meeting; one of them "
                "does not continue"},
               {{"a", "b", "a", "a"},
                4,
                4,
                "nothing has happened for 0.1 s: ranks 0, 2 and 3 at: a; rank 1 at: b; one of them does not continue"},
               {{"a", "a", "a"},
                3,
                3,
                "nothing has happened for 0.1 s: ranks 0, 1 and 2 are all at: a; one of them does not continue"},
               {{"a", "", ""}, 3, 1, "rank 1 did not start within 0.1 s (nor did 1 other)"}};
  tws_error err = {0};
  ck_assert_int_eq(judge(cases[_i].lines, cases[_i].ranks, cases[_i].came, &err), TWS_HANG);
  ck_assert_str_eq(err.message, cases[_i].says);
}
END_TEST

/* Only mpirun's own folder is removed, without following links in it. */
START_TEST(remains_end_at_links) {
  char line[1024];
  snprintf(line, sizeof line,
           "cd %s && mkdir -p ompi.host.0/pid.4242/0 ompi.host.0/pid.4343 kept && touch kept/file "
           "ompi.host.0/pid.4242/0/a && "
           "ln -s %s/kept ompi.host.0/pid.4242/link && ln -s %s/kept ompi.host.0/pid.4444",
           folder, folder, folder);
  ck_assert_int_eq(system(line), 0);
  tws_mpirun_cleanup own = {.mpirun = 4242}, link = {.mpirun = 4444}, other = {.mpirun = 4242};
  snprintf(own.folder, sizeof own.folder, "%s/ompi.host.0/pid.4242", folder);
  snprintf(link.folder, sizeof link.folder, "%s/ompi.host.0/pid.4444", folder);
  snprintf(other.folder, sizeof other.folder, "%s/kept", folder);
  tws_mpirun_cleanup_run(&own, "nothing");
  tws_mpirun_cleanup_run(&link, "nothing");
  tws_mpirun_cleanup_run(&other, "nothing");
  ck_assert(access(in_folder("ompi.host.0/pid.4242"), F_OK) != 0);
  ck_assert(access(in_folder("ompi.host.0/pid.4343"), F_OK) == 0);
  ck_assert(access(in_folder("kept/file"), F_OK) == 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ends");
  TCase *tests = tcase_create("ends");
  tcase_set_timeout(tests, 200);
  tcase_add_test(tests, mpirun_is_killed);
  tcase_add_loop_test(tests, interrupted_twice, 0, 3);
  tcase_add_loop_test(tests, mpirun_is_asked_to_end, 0, 5);
  tcase_add_loop_test(tests, calibration_is_stopped, 0, 2);
  tcase_add_test(tests, generation_is_stopped);
  tcase_add_test(tests, mpirun_stays);
  tcase_add_test(tests, mpirun_is_stopped);
  tcase_add_loop_test(tests, stopped_and_continued, 0, 5);
  tcase_add_test(tests, unread_output);
  tcase_add_loop_test(tests, guarded, 0, 3);
  tcase_add_loop_test(tests, messages_state_the_known_cause, 0, 4);
  tcase_add_test(tests, remains_end_at_links);
  suite_add_tcase(suite, tests);
  set_up();
  write_text(in_folder("model.json"), RUNNING_MODEL);
  snprintf(shell_path, sizeof shell_path, "%s/shell", folder);
  snprintf(hosts_path, sizeof hosts_path, "%s/hosts", folder);
  write_machines_shell(shell_path);
  write_text(hosts_path, "127.0.0.2 slots=1\n127.0.0.3 slots=1\n");
  const int status = run_suite(suite);
  remove_folder();
  return status;
}
