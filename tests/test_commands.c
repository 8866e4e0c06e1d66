/* ctest: mpi */
/* Names and texts from outside are never run as commands: programs get them as arguments, names of hosts that look like
 * options are refused, and gnuplot and the terminal receive no commands from them. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cjson/cJSON.h>
#include "base/escape.h"
#include "base/log.h"
#include "base/process.h"
#include "launch/hostfile.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/suite.h"
#include "traces/plot.h"

static tws_error err;

static int is_there(const char *name) {
  return access(in_folder(name), F_OK) == 0;
}

static void write_program(const char *name, const char *text) {
  write_text(in_folder(name), text);
  ck_assert_int_eq(chmod(in_folder(name), 0755), 0);
}

/* ---- base/process.h ---- */

START_TEST(arguments_stay_arguments) {
  const char *const arguments[] = {"printf", "%s|", "$(touch x)", "a;b", "`c`", "> d", "", "-e", NULL};
  const tws_process process = {.arguments = arguments, .limit_s = 30};
  tws_process_end end;
  ck_assert_msg(tws_process_run(&process, &end, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(end.status, 0);
  ck_assert_str_eq(end.output.data, "$(touch x)|a;b|`c`|> d||-e|");
  tws_text_free(&end.output);
  const char *const none[] = {"no-such-program", NULL};
  const tws_process absent = {.arguments = none, .limit_s = 1};
  ck_assert_int_eq(tws_process_run(&absent, &end, &err), TWS_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(err.message, "no-such-program"));
  write_program("broken", "no program at all"); /* execvp() would let a shell run this file */
  const char *const broken[] = {in_folder("broken"), NULL};
  const tws_process text = {.arguments = broken, .limit_s = 1};
  ck_assert_int_eq(tws_process_run(&text, &end, &err), TWS_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(err.message, "does not start"));
}
END_TEST

/* The words of commands that are printed to be copied are quoted, so that a shell takes them literally. */
START_TEST(printed_words_are_quoted) {
  static const char *const words[] = {
      "plain-1.5_x/y:z@h", "", "a b", "it's", "$(touch x)", "`touch x`;#", "a\\", "\"q\"", "~", "*", "'';touch x;''"};
  tws_text line = {0}, expected = {0};
  ck_assert_int_eq(chdir(folder), 0);
  tws_text_add(&line, "printf '<%%s>'");
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    tws_text_add(&line, " ");
    tws_process_quote(&line, words[i]);
    tws_text_add(&expected, "<%s>", words[i]);
  }
  const char *const shell[] = {"sh", "-c", line.data, NULL};
  const tws_process process = {.arguments = shell, .limit_s = 30};
  tws_process_end end;
  ck_assert_msg(tws_process_run(&process, &end, &err) == TWS_OK, "%s", err.message);
  ck_assert_str_eq(end.output.data, expected.data);
  ck_assert(!is_there("x"));
  tws_text_free(&end.output);
  tws_text_free(&line);
  tws_text_free(&expected);
  command_result r = twinspeed("launch --print-command -n 2 -- echo it's");
  ck_assert_msg(r.status == 0 && strstr(r.out, " -- echo 'it'\\''s'\n"), "%s", r.out);
  command_free(&r);
}
END_TEST

START_TEST(programs_are_bounded) {
  const char *const lines[] = {"sh", "-c", "echo one; echo two; echo why >&2; exit 7", NULL};
  tws_process process = {.arguments = lines, .limit_s = 30, .most_bytes = 5};
  tws_process_end end;
  ck_assert_int_eq(tws_process_run(&process, &end, &err), TWS_OK);
  ck_assert_int_eq(end.status, 7);
  ck_assert_str_eq(end.output.data, "one\nt");
  ck_assert_int_eq(end.cut, 1);
  ck_assert_str_eq(end.errors, "why ");
  tws_text_free(&end.output);
  char line[16];
  ck_assert_int_eq(tws_process_line(&process, line, sizeof line), 0); /* it failed */
  const char *const endless[] = {"sh", "-c", "sleep 300 & echo $!; exec yes", NULL};
  const double before = tws_clock_s();
  process = (tws_process){.arguments = endless, .limit_s = 0.5, .most_bytes = 100};
  ck_assert_int_eq(tws_process_run(&process, &end, &err), TWS_OK);
  ck_assert(end.timed_out && end.cut && end.output.length == 100);
  ck_assert(tws_clock_s() - before < 60);
  const pid_t left = (pid_t)atoi(end.output.data);
  ck_assert_int_gt(left, 1);
  tws_text_free(&end.output);
  for (int i = 0; i < 500 && kill(left, 0) == 0; i++) { /* the child was killed with its parent; another process reaps
                                                         * it */
    char path[64], state[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", left);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(state, sizeof state, file) || strstr(state, ") Z ")) break;
    fclose(file);
    usleep(10000);
    ck_assert_int_lt(i, 499);
  }
  const char *const daemon[] = {"sh", "-c", "sleep 300 & echo started", NULL}; /* keeps the pipes open */
  process = (tws_process){.arguments = daemon, .limit_s = 60};
  ck_assert_int_eq(tws_process_line(&process, line, sizeof line), 1);
  ck_assert_str_eq(line, "started");
  ck_assert(tws_clock_s() - before < 60);
}
END_TEST

START_TEST(descriptors_are_passed_on) {
  write_text(in_folder("three"), "3");
  write_text(in_folder("four"), "4");
  const char *const arguments[] = {"sh", "-c", "cat <&3; cat <&4", NULL};
  const tws_process process = {
      .arguments = arguments,
      .limit_s = 30,
      .files = {open(in_folder("three"), O_RDONLY | O_CLOEXEC), open(in_folder("four"), O_RDONLY | O_CLOEXEC)},
      .file_count = 2};
  char line[16];
  ck_assert_int_eq(tws_process_line(&process, line, sizeof line), 1);
  ck_assert_str_eq(line, "34");
  close(process.files[0]);
  close(process.files[1]);
}
END_TEST

/* ---- hosts ---- */

static const char *const bad_names[] = {"a;touch${IFS}x;#",
                                        "$(touch${IFS}x)",
                                        "`touch${IFS}x`",
                                        "-oProxyCommand=touch${IFS}x",
                                        "a|b",
                                        "a&b",
                                        "a>b",
                                        "a'b",
                                        "a\"b",
                                        "a\\b",
                                        "a,b",
                                        "a/b",
                                        "a\033[2Jb",
                                        "h\xc3\xb6st",
                                        "a*",
                                        "a%sb"};
enum { BAD_NAMES = sizeof bad_names / sizeof *bad_names };

START_TEST(host_names_are_checked_where_they_are_read) {
  static const char *const good[] = {"worker-0", "10.0.0.1", "fe80::1", "me@login_2.example.org", "0"};
  char text[700], longest[300];
  tws_hosts hosts;
  tws_arena *arena = tws_arena_create();
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    snprintf(text, sizeof text, "# hosts\n%s slots=2\n", good[i]);
    ck_assert_msg(tws_hostfile_parse(text, "hosts", arena, &hosts, &err) == TWS_OK, "%s", err.message);
    ck_assert_str_eq(hosts.host[0].name, good[i]);
    ck_assert_msg(tws_nodelist_parse(good[i], NULL, arena, &hosts, &err) == TWS_OK, "%s", err.message);
  }
  for (int i = 0; i < BAD_NAMES; i++) {
    snprintf(text, sizeof text, "good slots=1\n%s slots=2\n", bad_names[i]);
    ck_assert_msg(tws_hostfile_parse(text, "hosts", arena, &hosts, &err) == TWS_INVALID, "%s", bad_names[i]);
    ck_assert_msg(strncmp(err.message, "hosts:2: ", 9) == 0, "%s", err.message);
    ck_assert_msg(strstr(err.message, bad_names[i]) && strstr(err.hint, "letters, digits"), "%s", err.message);
    if (strchr(bad_names[i], ',')) continue; /* two hosts of Slurm's */
    ck_assert_msg(tws_nodelist_parse(bad_names[i], NULL, arena, &hosts, &err) == TWS_INVALID, "%s", bad_names[i]);
    ck_assert_msg(strstr(err.message, "SLURM_JOB_NODELIST"), "%s", err.message);
    snprintf(text, sizeof text, "%s[1-3]", bad_names[i]);
    ck_assert_int_eq(tws_nodelist_parse(text, NULL, arena, &hosts, &err), TWS_INVALID);
  }
  memset(longest, 'a', 254);
  longest[254] = '\0';
  snprintf(text, sizeof text, "%s slots=1\n", longest);
  ck_assert_int_eq(tws_hostfile_parse(text, "hosts", arena, &hosts, &err), TWS_INVALID);
  ck_assert_int_eq(tws_nodelist_parse(longest, NULL, arena, &hosts, &err), TWS_INVALID);
  ck_assert_int_eq(tws_nodelist_parse("a[1-99999999]", NULL, arena, &hosts, &err), TWS_INVALID);
  ck_assert_int_eq(tws_nodelist_parse("a", "4(x2", arena, &hosts, &err), TWS_INVALID);
  ck_assert_int_eq(tws_nodelist_parse("a", "4294967297", arena, &hosts, &err), TWS_INVALID);
  tws_arena_destroy(arena);
}
END_TEST

/* A remote shell that records how it was called, and runs the words after the host as a shell on that host would do. */
static const char *const recorder =
    "#!/bin/sh\n"
    "if [ \"$1\" = -V ]; then echo version; exit; fi\n"
    "log=$(dirname \"$0\")/calls\n"
    "for a in \"$@\"; do printf '[%s]' \"$a\" >> \"$log\"; done; echo >> \"$log\"\n"
    "while [ \"$1\" != -- ]; do shift; done; shift; shift\n"
    "exec sh -c \"$*\"\n";

START_TEST(doctor_runs_no_host_name) {
  char text[200], calls[4096] = "", *path = strdup(getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");
  write_program("ssh", recorder);
  snprintf(text, sizeof text, "%s:%s", folder, "/usr/bin:/bin");
  setenv("PATH", text, 1);
  ck_assert_int_eq(chdir(folder), 0);
  for (int i = 0; i < 4; i++) {
    snprintf(text, sizeof text, "%s slots=1\n", bad_names[i]);
    write_text(in_folder("hosts"), text);
    command_result r = twinspeed("doctor --hostfile %s", in_folder("hosts"));
    ck_assert_msg(r.status == 3 && strstr(r.err, "hosts:1: ") && !is_there("x") && !is_there("calls"), "%d: %s",
                  r.status, r.err);
    command_free(&r);
    r = twinspeed("launch --hostfile %s true", in_folder("hosts"));
    ck_assert_msg(r.status == 3 && strstr(r.err, "hosts:1: ") && !is_there("x"), "%d: %s", r.status, r.err);
    command_free(&r);
  }
  write_text(in_folder("hosts"), "worker-1 slots=1\n");
  command_result r = twinspeed("doctor --hostfile %s", in_folder("hosts"));
  ck_assert_msg(strstr(r.out, "reached, the same program"), "%s%s", r.out, r.err);
  command_free(&r);
  r = twinspeed("doctor --hostfile %s --remote-shell '%s -p 22'", in_folder("hosts"), in_folder("ssh"));
  ck_assert_msg(strstr(r.out, "reached, the same program"), "%s%s", r.out, r.err);
  command_free(&r);
  FILE *file = fopen(in_folder("calls"), "r");
  ck_assert(file && fread(calls, 1, sizeof calls - 1, file) > 0);
  fclose(file);
  ck_assert_msg(strstr(calls, "[-o][BatchMode=yes][-o][ConnectTimeout=5][--][worker-1][date]"), "%s", calls);
  ck_assert_msg(strstr(calls, "\n[-p][22][--][worker-1][date]"), "%s", calls);
  setenv("PATH", path, 1);
  free(path);
}
END_TEST

/* Open MPI would write the path of its folder and the remote shell into a command line for a shell of each node:
 * special characters in them are refused. */
START_TEST(folders_are_no_commands) {
  char line[4096], *path = strdup(getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");
  ck_assert_int_eq(chdir(folder), 0);
  ck_assert_int_eq(mkdir("p;touch x;", 0777), 0);
  write_text(in_folder("hosts"), "other-1 slots=1\nother-2 slots=1\n");
  write_program("p;touch x;/mpirun", "#!/bin/sh\ntouch started\n");
  snprintf(line, sizeof line, "%s/p;touch x;:%s", folder, path);
  setenv("PATH", line, 1);
  command_result r = twinspeed("launch -q --hostfile %s -- true", in_folder("hosts"));
  ck_assert_msg(r.status == 4 && strstr(r.err, "p;touch x;/mpirun: Open MPI would give") && !is_there("started"),
                "%d %s", r.status, r.err);
  command_free(&r);
  setenv("PATH", path, 1);
  free(path);
  r = twinspeed("launch -q --hostfile %s --remote-shell 'a$(touch${IFS}x)' -- true", in_folder("hosts"));
  ck_assert_msg(r.status == 2 && strstr(r.err, "--remote-shell: Open MPI would give"), "%d %s", r.status, r.err);
  ck_assert(!is_there("x"));
  command_free(&r);
}
END_TEST

/* Jobs run in a folder whose name has special characters of shells. */
START_TEST(jobs_run_in_any_folder) {
  static const char *const names[] = {"a;b", "a b$(touch x)", "a'b\"c", "p:q"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mkdir(names[i], 0777), 0);
    ck_assert_int_eq(chdir(names[i]), 0);
    setenv("TMPDIR", in_folder(names[i]), 1);
    command_result r = twinspeed("launch -q -n 2 -- pwd");
    unsetenv("TMPDIR");
    ck_assert_msg(r.status == 0, "%s: %d %s", names[i], r.status, r.err);
    ck_assert_msg(strstr(r.out, names[i]) && !is_there("x"), "%s", r.out);
    command_free(&r);
  }
  command_result r = twinspeed("launch -q -n 2 -- echo a : :: -n 5 ; 'b;c'");
  ck_assert_msg(r.status == 0, "%d %s", r.status, r.err);
  ck_assert_str_eq(r.out, "a : :: -n 5 ; b;c\na : :: -n 5 ; b;c\n");
  command_free(&r);
}
END_TEST

/* mpirun removes its session directory when it ends, and follows links as it does so: so none is started where that
 * directory contains more than mpirun's own files. The mpirun of this test only reports that it was started, and all
 * links lead into this test's folder. */
START_TEST(sessions_that_mpirun_would_remove) {
  static const struct {
    const char *make; /* in the folder */
    const char *variable, *value, *says;
  } refused[] = {
      {"mkdir s && ln -s ../kept s/link", "OMPI_MCA_orte_jobfam_session_dir", "s", "/s/link is a symbolic link"},
      {"mkdir -p s/0/1 && ln -s ../../../kept s/0/1/link", "PRTE_MCA_prte_jobfam_session_dir", "s",
       "/s/0/1/link is a symbolic link"},
      {"mkdir s && touch s/thesis.tex", "OMPI_MCA_orte_top_session_dir", "s",
       "/s/thesis.tex is not one of mpirun's own entries"},
      {"mkdir s && touch s/.hidden", "PRTE_MCA_prte_top_session_dir", "s",
       "/s/.hidden is not one of mpirun's own entries"},
      {"ln -s kept s", "OMPI_MCA_orte_jobfam_session_dir", "s", "/s is a symbolic link"},
      {"touch s", "OMPI_MCA_orte_top_session_dir", "s", "/s is not a directory"},
      {"mkdir -p s/ompi.node.$(id -u)/pid.7 && ln -s ../../../kept s/ompi.node.$(id -u)/pid.7/0", "TMPDIR", "s",
       "/pid.7/0 is a symbolic link"},
      {"mkdir s && ln -s ../kept s/ompi.node.$(id -u)", "OMPI_MCA_orte_tmpdir_base", "s", " is a symbolic link"},
      {"mkdir s && ln -s ../kept s/prterun.node.7.$(id -u)", "PRTE_MCA_prte_tmpdir_base", "s", " is a symbolic link"},
      {"mkdir -p s/ompi.node.$(id -u) && chmod 777 s/ompi.node.$(id -u)", "TMPDIR", "s", "may be written by others"}};
  static const char own[] = "mkdir -p s/0/0 s/1 s/pmix_dstor_7 && touch s/contact.txt s/hwloc.sm";
  char text[1024], *path = strdup(getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");
  ck_assert_int_eq(chdir(folder), 0);
  ck_assert_int_eq(system("mkdir bin kept && touch kept/file"), 0);
  snprintf(text, sizeof text, "#!/bin/sh\ntouch %s/started\nexit 1\n", folder);
  write_program("bin/mpirun", text);
  write_program("bin/mpirun.openmpi", text);
  snprintf(text, sizeof text, "%s/bin:%.900s", folder, path);
  setenv("PATH", text, 1);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    for (int given_over = 0; given_over < 2; given_over++) {
      ck_assert_int_eq(system(refused[i].make), 0);
      setenv(refused[i].variable, in_folder(refused[i].value), 1);
      command_result r = twinspeed("launch -q -n 2 %s-- true", given_over ? "--launcher openmpi " : "");
      unsetenv(refused[i].variable);
      ck_assert_msg(r.status == 4 && strstr(r.err, refused[i].says) && !is_there("started"), "%s: %d %s",
                    refused[i].make, r.status, r.err);
      ck_assert_msg(count_lines_with(r.err, "hint: ") == 1, "%s", r.err);
      ck_assert_msg(is_there("kept/file"), "%s", refused[i].make);
      command_free(&r);
      ck_assert_int_eq(system("rm -r s"), 0); /* of a link the link */
    }
  for (int i = 0; i < 3;
       i++) { /* mpirun may remove a directory that is missing, empty or its own; entries of TMPDIR do not matter */
    if (i > 0) ck_assert_int_eq(system(i == 1 ? "mkdir s" : own), 0);
    if (i == 2) setenv("TMPDIR", in_folder("."), 1);
    setenv("OMPI_MCA_orte_jobfam_session_dir", in_folder("s"), 1);
    command_result r = twinspeed("launch -q -n 2 -- true");
    unsetenv("OMPI_MCA_orte_jobfam_session_dir");
    ck_assert_msg(is_there("started") && !strstr(r.err, "removes this directory"), "%d: %d %s", i, r.status, r.err);
    command_free(&r);
    ck_assert_int_eq(unlink(in_folder("started")), 0);
  }
  unsetenv("TMPDIR");
  setenv("PATH", path, 1);
  free(path);
}
END_TEST

/* ---- gnuplot ---- */

START_TEST(gnuplot_gets_no_commands) {
  if (!tws_plot_available()) return;
  const char *scripts = TWS_SOURCE_DIR "/scenarios/plots";
  static const char *const names[] = {"|touch x",      "< touch x",     "|touch x;.png",
                                      "<touch x;.svg", "`touch x`.png", "a'; system('touch x'); '.svg",
                                      "-e.svg"};
  const tws_plot_point point = {"\"; system(\"touch x\")", 1, 1, 1, 1};
  ck_assert_int_eq(chdir(folder), 0);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    ck_assert_msg(tws_plot_accuracy(scripts, &point, 1, names[i], names[i], &err) == TWS_OK, "%s", err.message);
    ck_assert_msg(!is_there("x") && is_there(names[i]), "%s", names[i]);
    FILE *file = fopen(in_folder(names[i]), "r");
    char head[400] = "";
    ck_assert(file && fread(head, 1, sizeof head - 1, file) > 100);
    fclose(file);
    ck_assert_msg(strstr(head, strstr(names[i], ".svg") ? "<svg" : "PNG"), "%s", names[i]);
  }
  const double at[] = {0, 1}, loss[] = {2, 1};
  const tws_plot_series series = {"a'; system('touch x'); b = '", at, loss, 2};
  const tws_plot_band band = {0, 0, 1};
  const tws_mark mark = {.from_s = 0.5, .until_s = 0.5, .name = "'; system('touch x'); c = '"};
  const char *const kinds[] = {"work"};
  ck_assert_msg(tws_plot_run(scripts, &series, 1, &band, 1, &mark, 1, kinds, 1, "t", "run.svg", &err) == TWS_OK, "%s",
                err.message);
  ck_assert(!is_there("x") && is_there("run.svg"));
  ck_assert_int_eq(tws_plot_accuracy("< touch x;", &point, 1, "t", "y.svg", &err), TWS_ENVIRONMENT);
  ck_assert(!is_there("x") && !is_there("y.svg"));
  ck_assert_msg(tws_plot_accuracy(scripts, &point, 1, "t", "/dev/null", &err) == TWS_OK, "%s", err.message);
  ck_assert_int_ne(access("/dev/null.dat", F_OK), 0);
}
END_TEST

/* ---- terminals ---- */

START_TEST(control_characters_are_escaped) {
  static const struct {
    const char *text, *escaped;
  } cases[] = {
      {"plain \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\n\t", "plain \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\n\t"},
      {"\033]0;x\007\b\177\r", "\\x1b]0;x\\x07\\x08\\u007f\\x0d"},
      {"\xc2\x9b"
       "2J\xc2\x80\xc2\x9f\xc2\xa0",
       "\\u009b2J\\u0080\\u009f\xc2\xa0"},
      {"\x9b\xff\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80", "\\x9b\\xff\\xc0\\x80\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80"},
      {"\xc2\033\xe2\x82", "\\xc2\\x1b\\xe2\\x82"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const size_t length = strlen(cases[i].text);
    for (size_t part = 1; part <= length; part++) { /* the result is the same when the text arrives in parts of any
                                                     * size */
      tws_escape state = {0};
      tws_text out = {0};
      for (size_t at = 0; at < length; at += part)
        tws_escape_add(&state, cases[i].text + at, part < length - at ? part : length - at, "\n\t", &out);
      tws_escape_end(&state, &out);
      ck_assert_str_eq(out.data, cases[i].escaped);
      tws_text_free(&out);
    }
  }
  tws_text nul = {0};
  tws_escape_text("a\0b", 3, "", &nul);
  ck_assert_str_eq(nul.data, "a\\x00b");
  tws_text_free(&nul);
}
END_TEST

static void assert_printable(const char *text, const char *escaped) {
  ck_assert_msg(strstr(text, escaped) != NULL, "%s", text);
  for (const char *c = text; *c; c++)
    ck_assert_msg((unsigned char)*c >= 32 || *c == '\n' || *c == '\t', "control character %02x: %s", *c, text);
  ck_assert_msg(!strstr(text, "\xc2\x9b"), "%s", text);
}

/* Special characters in names of files reach a terminal only escaped: in results, documents and errors. */
START_TEST(names_reach_no_terminal_as_commands) {
  static const char model[] =
      "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":1,\"n_embd\":8,"
      "\"n_positions\":8,\"vocab_size\":9}";
  char path[128], line[512];
  snprintf(path, sizeof path,
           "%s/m\033]0;x\007\xc2\x9b"
           "2J.json",
           folder);
  write_text(path, model);
  command_result r = twinspeed("estimate -m %s", path);
  ck_assert_int_eq(r.status, 0);
  assert_printable(r.out, "m\\x1b]0;x\\x07\\u009b2J");
  command_free(&r);
  r = twinspeed("estimate --json -m %s", path);
  assert_printable(r.out, "m\\u001b]0;x\\u0007\\u009b2J");
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_ptr_nonnull(json);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("estimate -m %s.none", path);
  ck_assert_int_ne(r.status, 0);
  assert_printable(r.err, "m\\x1b]0;x\\x07\\u009b2J");
  command_free(&r);
  snprintf(line, sizeof line, "TERM=xterm exec script -qec \"%s/twinspeed estimate -m '%s'\" %s", TWS_BUILD_DIR, path,
           in_folder("seen"));
  char *argv[] = {(char *)"/bin/sh", (char *)"-c", line, NULL};
  r = command_execute(argv);
  command_free(&r);
  char *seen = command_slurp(open(in_folder("seen"), O_RDONLY));
  const char *name = strstr(seen, "\nCOMMAND") ? strchr(seen + 1, '\n') : strchr(seen, '\n');    /* script's own line */
  ck_assert_msg(name && strstr(name, "m\\x1b]0;x\\x07") && strstr(name, "\033[1m"), "%s", seen); /* our own styles */
  ck_assert_msg(!strstr(name, "\033]0;") || strstr(name, "\033]0;") > strstr(name, "Script done"), "%s", seen);
  free(seen);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("commands");
  TCase *tcase = tcase_create("commands");
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_test(tcase, arguments_stay_arguments);
  tcase_add_test(tcase, programs_are_bounded);
  tcase_add_test(tcase, printed_words_are_quoted);
  tcase_add_test(tcase, descriptors_are_passed_on);
  tcase_add_test(tcase, host_names_are_checked_where_they_are_read);
  tcase_add_test(tcase, doctor_runs_no_host_name);
  tcase_add_test(tcase, gnuplot_gets_no_commands);
  tcase_add_test(tcase, control_characters_are_escaped);
  tcase_add_test(tcase, names_reach_no_terminal_as_commands);
  tcase_add_test(tcase, folders_are_no_commands);
  tcase_add_test(tcase, jobs_run_in_any_folder);
  tcase_add_test(tcase, sessions_that_mpirun_would_remove);
  tcase_set_timeout(tcase, 60);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
