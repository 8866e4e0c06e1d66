/* launch: which ranks a hostfile means, what their ends become, and that none is left behind. */
#include <check.h>
#include <signal.h>
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"

/* ---- hostfiles: DeepSpeed's cases; a bare included host means all of its slots, as its documentation says ---- */
static void assert_hosts(const command_result *r, const cJSON *expected) {
  cJSON *json = assert_json(r, "twinspeed-ranks-1");
  const cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "ranks"), 0), *host, *slot;
  cJSON_ArrayForEach(host, expected) {
    const char *name = cJSON_GetArrayItem(host, 0)->valuestring;
    const cJSON *slots = cJSON_GetArrayItem(host, 1);
    int count = cJSON_IsNumber(slots) ? slots->valueint : cJSON_GetArraySize(slots);
    slot = slots->child;
    for (int i = 0; i < count; i++, one = one->next) {
      ck_assert_ptr_nonnull(one);
      ck_assert_str_eq(cJSON_GetObjectItem(one, "host")->valuestring, name);
      ck_assert_int_eq(cJSON_GetObjectItem(one, "device")->valueint, slot ? slot->valueint : i);
      if (slot) slot = slot->next;
    }
  }
  ck_assert_ptr_null(one);
  cJSON_Delete(json);
}

START_TEST(hostfiles) {
  tws_json *golden = golden_file("launcher.json");
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "hostfile")) {
    const char *text = cJSON_GetObjectItem(one, "text")->valuestring;
    write_text(in_folder("hosts"), text);
    command_result r = twinspeed("launch --hostfile %s --dry-run --json", in_folder("hosts"));
    if (cJSON_GetObjectItem(one, "error")) {
      assert_one_error(&r, 3, text);
    } else {
      ck_assert_msg(r.status == 0, "%s: %s", text, r.err);
      assert_hosts(&r, cJSON_GetObjectItem(one, "result"));
    }
    command_free(&r);
  }
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "filter")) {
    const char *include = cJSON_GetObjectItem(one, "include")->valuestring;
    const char *exclude = cJSON_GetObjectItem(one, "exclude")->valuestring;
    char text[512] = "", what[256];
    const cJSON *host;
    cJSON_ArrayForEach(host, cJSON_GetObjectItem(one, "pool")) {
      size_t used = strlen(text);
      snprintf(text + used, sizeof text - used, "%s slots=%d\n", cJSON_GetArrayItem(host, 0)->valuestring,
               cJSON_GetArrayItem(host, 1)->valueint);
    }
    write_text(in_folder("hosts"), text);
    snprintf(what, sizeof what, "include '%s' exclude '%s'", include, exclude);
    command_result r = twinspeed("launch --hostfile %s --dry-run --json '--include=%s' '--exclude=%s'",
                                 in_folder("hosts"), include, exclude);
    cJSON *documented = NULL; /* where the reference program departs from its documentation */
    if (strcmp(include, "worker-0") == 0) documented = cJSON_Parse("[[\"worker-0\", [0,1,2,3]]]");
    if (strstr(include, "worker-1:0,2") && strstr(include, "worker-0"))
      documented = cJSON_Parse("[[\"worker-0\", [0,1,2,3]], [\"worker-1\", [0,2]]]");
    if (cJSON_GetObjectItem(one, "error")) {
      assert_one_error(&r, 3, what);
    } else {
      ck_assert_msg(r.status == 0, "%s: %s", what, r.err);
      assert_hosts(&r, documented ? documented : cJSON_GetObjectItem(one, "result"));
    }
    cJSON_Delete(documented);
    command_free(&r);
  }
  tws_json_destroy(golden);
  write_text(in_folder("hosts"), "elsewhere.invalid slots=2\n");
  command_result r = twinspeed("launch -q --hostfile %s --remote-shell /bin/false -- true", in_folder("hosts"));
  assert_one_error(&r, 4, "a machine that cannot be reached");
  command_free(&r);
}
END_TEST

START_TEST(launching) {
  command_result r = twinspeed("launch -q -n 2 -- sh -c 'echo rank; exit 0'");
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_int_eq(count_lines_with(r.out, "rank"), 2);
  command_free(&r);
  r = twinspeed("launch -q -n 2 -- sh -c 'exit 3'");
  assert_one_error(&r, 5, "a failing command");
  ck_assert_msg(strstr(r.err, " of the command ended with status 3") != NULL, "%s", r.err);
  command_free(&r);
  r = twinspeed("launch -q -n 2 -- sh -c 'if test $OMPI_COMM_WORLD_RANK = 1; then kill -9 $$; fi; sleep 20'");
  assert_one_error(&r, 5, "a killed command");
  ck_assert_msg(strstr(r.err, "rank 1 of the command was ended by signal 9 (Killed)") != NULL, "%s", r.err);
  command_free(&r);
  r = twinspeed("launch -n 2 --json -- sh -c 'echo rank'");
  ck_assert_msg(r.status == 0 && count_lines_with(r.err, "rank") == 2, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-ranks-1");
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "ranks")), 2);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("launch -q -n 2 -- /no/such/program");
  assert_one_error(&r, 4, "a missing program");
  command_free(&r);
}
END_TEST

/* Ctrl-C ends the ranks: status 130, and the command's processes are gone. */
START_TEST(interrupting) {
  char pids[512], line[64];
  snprintf(pids, sizeof pids, "echo $$ >> %s; exec sleep 1000", in_folder("pids"));
  char *argv[] = {(char *)TWS_BUILD_DIR "/twinspeed",
                  (char *)"launch",
                  (char *)"-q",
                  (char *)"-n",
                  (char *)"2",
                  (char *)"--",
                  (char *)"sh",
                  (char *)"-c",
                  pids,
                  NULL};
  pid_t child = fork();
  if (child == 0) {
    int null = open("/dev/null", O_RDWR);
    dup2(null, 1);
    dup2(null, 2);
    execv(argv[0], argv);
    _exit(126);
  }
  int lines = 0, status = 0;
  for (int tries = 0; tries < 600 && lines < 2; tries++) { /* until both ranks are there */
    usleep(50000);
    FILE *list = fopen(in_folder("pids"), "r");
    for (lines = 0; list && fgets(line, sizeof line, list);) lines++;
    if (list) fclose(list);
  }
  ck_assert_int_eq(lines, 2);
  kill(child, SIGINT);
  waitpid(child, &status, 0);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 130);
  FILE *list = fopen(in_folder("pids"), "r");
  while (fgets(line, sizeof line, list)) {
    int alive = 1;
    for (int tries = 0; tries < 100 && alive; tries++) { /* a killed process is there until it is reaped */
      alive = kill((pid_t)atoi(line), 0) == 0;
      if (alive) usleep(50000);
    }
    ck_assert_msg(!alive, "process %s is still there", line);
  }
  fclose(list);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_launch");
  TCase *launch = tcase_create("launch");
  tcase_set_timeout(launch, 120);
  tcase_add_checked_fixture(launch, make_folder, remove_folder);
  tcase_add_test(launch, hostfiles);
  tcase_add_test(launch, launching);
  tcase_add_test(launch, interrupting);
  suite_add_tcase(suite, launch);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
