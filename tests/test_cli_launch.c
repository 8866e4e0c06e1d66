/* launch: the ranks that a hostfile means, the status that their exits give, and that no process is left. */
#include <check.h>
#include <signal.h>
#include "launch/cores.h"
#include "launch/hostfile.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

/* ---- hostfiles: DeepSpeed 0.19.6's cases, with two exceptions: a bare included host means all of its slots, as the
 * documentation says; and a slot that the hostfile does not have is an error in --include too, as of 0.19.8 ---- */
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
  int exceptions = 0;
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
    cJSON *documented = NULL; /* DeepSpeed's program differs here from its documentation */
    if (strcmp(include, "worker-0") == 0) documented = cJSON_Parse("[[\"worker-0\", [0,1,2,3]]]");
    if (strstr(include, "worker-1:0,2") && strstr(include, "worker-0"))
      documented = cJSON_Parse("[[\"worker-0\", [0,1,2,3]], [\"worker-1\", [0,2]]]");
    if (strcmp(include, "worker-0:7") == 0) {
      assert_one_error(&r, 3, what);
      ck_assert_msg(strstr(r.err, "--include: no slot 7 on host worker-0") && strstr(r.err, "its slots are 0 to 3"),
                    "%s", r.err);
      exceptions++;
    } else if (cJSON_GetObjectItem(one, "error")) {
      assert_one_error(&r, 3, what);
    } else {
      ck_assert_msg(r.status == 0, "%s: %s", what, r.err);
      assert_hosts(&r, documented ? documented : cJSON_GetObjectItem(one, "result"));
    }
    cJSON_Delete(documented);
    command_free(&r);
  }
  ck_assert_int_eq(exceptions, 1);
  tws_json_destroy(golden);
  write_text(in_folder("hosts"), "elsewhere.invalid slots=2\n");
  command_result r = twinspeed("launch -q --hostfile %s --remote-shell /bin/false -- true", in_folder("hosts"));
  assert_one_error(&r, 4, "a machine that cannot be reached");
  command_free(&r);
}
END_TEST

/* --num-nodes is parsed as DeepSpeed's launcher does, where only elastic jobs (here: --restarts) give a range of nodes;
 * the hosts have the launcher's order. */
START_TEST(nodes_and_world_info) {
  tws_json *golden = golden_file("launcher.json");
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "num_nodes")) {
    const char *text = cJSON_GetArrayItem(one, 0)->valuestring;
    const cJSON *elastic = cJSON_GetArrayItem(one, 1), *wanted = cJSON_GetArrayItem(one, 2);
    int64_t least, most;
    const tws_code code = tws_nodes_parse(text, cJSON_IsTrue(elastic), &least, &most, NULL);
    ck_assert_msg(code == (cJSON_IsString(wanted) ? TWS_USAGE : TWS_OK), "%s", text);
    if (code != TWS_OK) continue;
    ck_assert_int_eq(least, cJSON_GetArrayItem(wanted, 0)->valueint);
    ck_assert_int_eq(most, cJSON_GetArrayItem(wanted, 1)->valueint);
  }
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "world_info")) {
    const cJSON *host, *slot;
    FILE *file = fopen(in_folder("hosts"), "w");
    cJSON_ArrayForEach(host, cJSON_GetObjectItem(one, "input")) {
      fprintf(file, "%s slots=%d\n", host->string, cJSON_GetArraySize(host));
      int number = 0;
      cJSON_ArrayForEach(slot, host) ck_assert_int_eq(slot->valueint, number++); /* the golden file has all slots of a
                                                                                  * host, as a hostfile means */
    }
    fclose(file);
    command_result r = twinspeed("launch --hostfile %s --dry-run --json", in_folder("hosts"));
    cJSON *json = assert_json(&r, "twinspeed-ranks-1");
    ck_assert_str_eq(cJSON_GetObjectItem(json, "world_info")->valuestring,
                     cJSON_GetObjectItem(one, "encoded")->valuestring);
    cJSON_Delete(json);
    command_free(&r);
  }
  tws_json_destroy(golden);
  static const char *const texts[] = {"0", "", ":2", "2:", "3:2", "-1", "1:x", "65537", "1 ", "99999999999999999999"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    int64_t least, most;
    ck_assert_msg(tws_nodes_parse(texts[i], 1, &least, &most, NULL) == TWS_USAGE, "%s", texts[i]);
  }
  write_text(in_folder("hosts"), "a slots=1\nb slots=1\nc slots=1\n");
  command_result r = twinspeed("launch --hostfile %s --num-nodes 2 --dry-run", in_folder("hosts"));
  ck_assert_str_eq(r.out, "rank 0 -> a -> device 0\nrank 1 -> b -> device 0\n");
  command_free(&r);
  r = twinspeed("launch --hostfile %s --num-nodes 1:2 --dry-run", in_folder("hosts"));
  assert_one_error(&r, 2, "a range without restarts");
  command_free(&r);
  r = twinspeed("train -m tiny-gpt2 --data %s --save %s/run --restarts 1 --hostfile %s --num-nodes 4:9",
                in_folder("hosts"), folder, in_folder("hosts"));
  assert_one_error(&r, 3, "fewer hosts than asked for");
  command_free(&r);
  r = twinspeed("launch --num-nodes 2 --dry-run");
  assert_one_error(&r, 2, "several nodes without a hostfile");
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

/* A Slurm allocation replaces a hostfile; checks the hosts and the commands that would start ranks there. */
START_TEST(allocations) {
  write_text(in_folder("srun"), "#!/bin/sh\nexit 7\n");
  chmod(in_folder("srun"), 0755);
  char path[4096];
  snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
  setenv("PATH", path, 1);
  command_result r = twinspeed("launch --launcher srun --dry-run");
  assert_one_error(&r, 2, "no allocation");
  command_free(&r);
  setenv("SLURM_JOB_NODELIST", "gpu[08-10,12],login", 1);
  setenv("SLURM_TASKS_PER_NODE", "2(x4),1", 1);
  r = twinspeed("launch --launcher srun --dry-run --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *wanted = cJSON_Parse("[[\"gpu08\",2],[\"gpu09\",2],[\"gpu10\",2],[\"gpu12\",2],[\"login\",1]]");
  assert_hosts(&r, wanted);
  cJSON_Delete(wanted);
  command_free(&r);
  r = twinspeed("launch --launcher srun --exclude login --print-command -- hostname");
  ck_assert_msg(
      r.status == 0 && strstr(r.out, "--ntasks=8 --nodes=4 --ntasks-per-node=2 --nodelist=gpu08,gpu09,gpu10,gpu12"),
      "%s%s", r.out, r.err);
  command_free(&r);
  r = twinspeed("launch --launcher srun --print-command -- hostname");
  assert_one_error(&r, 3, "unequal nodes");
  command_free(&r);
  r = twinspeed("launch -q --launcher srun --exclude login -- hostname");
  assert_one_error(&r, 4, "srun that fails");
  command_free(&r);
  setenv("SLURM_JOB_NODELIST", "gpu[08-", 1);
  r = twinspeed("launch --launcher srun --dry-run");
  assert_one_error(&r, 3, "a bad list");
  command_free(&r);
  unsetenv("SLURM_JOB_NODELIST");
  unsetenv("SLURM_TASKS_PER_NODE");
}
END_TEST

/* Variables come from .deepspeed_env in the home folder and in the working one, whose lines override; neither variables
 * nor lines may be missing or added. */
START_TEST(environment_files) {
  char home[512], here[64];
  const char *before = getenv("HOME");
  snprintf(home, sizeof home, "%s", before ? before : "");
  snprintf(here, sizeof here, "%s", in_folder("here.env"));
  setenv("HOME", folder, 1);
  write_text(in_folder(".deepspeed_env"), "# of all jobs\nNCCL_DEBUG=INFO\n\nA = b c=d \nOMP_WAIT_POLICY=active\n");
  write_text(in_folder("hosts"), "elsewhere slots=1\nelsewhere2 slots=1\n");
  command_result r = twinspeed("launch --hostfile %s --print-command -- hostname", in_folder("hosts"));
  ck_assert_msg(r.status == 0 &&
                    strstr(r.out, "-x NCCL_DEBUG=INFO -x 'A=b c=d' -x OMP_WAIT_POLICY=active -x OMP_NUM") &&
                    !strstr(r.out, "-x OMP_WAIT_POLICY "),
                "%s%s", r.out, r.err);
  command_free(&r);
  r = twinspeed("launch -n 2 --print-command -- hostname");
  ck_assert_msg(r.status == 0 && !strstr(r.out, "NCCL_DEBUG=INFO"), "%s%s", r.out, r.err);
  command_free(&r);
  setenv("DS_ENV_FILE", here, 1);
  write_text(here, "B=1\nB=2\n");
  r = twinspeed("launch --hostfile %s --print-command -- hostname", in_folder("hosts"));
  ck_assert_msg(r.status == 0 && strstr(r.out, "-x B=2 ") && !strstr(r.out, "B=1") && !strstr(r.out, "NCCL_DEBUG=INFO"),
                "%s%s", r.out, r.err);
  command_free(&r);
  write_text(here, "B=1\nno variable\n");
  r = twinspeed("launch --hostfile %s --print-command -- hostname", in_folder("hosts"));
  assert_one_error(&r, 3, "a bad line");
  ck_assert_msg(strstr(r.err, "here.env:2: it sets no variable") != NULL, "%s", r.err);
  command_free(&r);
  unsetenv("DS_ENV_FILE");
  setenv("HOME", home, 1);
}
END_TEST

/* The environment of commands, without what makes MPI start faster, and the destination of their output. */
START_TEST(environment) {
  command_result r =
      twinspeed("launch -q -n 2 --logs %s -- sh -c 'echo $RANK of $WORLD_SIZE, $LOCAL_RANK of "
                "$LOCAL_WORLD_SIZE$HWLOC_COMPONENTS$HWLOC_PLUGINS_PATH'",
                in_folder("logs"));
  ck_assert_msg(r.status == 0 && r.out[0] == '\0', "%s%s", r.out, r.err);
  command_free(&r);
  for (int rank = 0; rank < 2; rank++) {
    char name[64], line[64] = "", wanted[64];
    snprintf(name, sizeof name, "logs/rank-%d.log", rank);
    snprintf(wanted, sizeof wanted, "%d of 2, %d of 2\n", rank, rank);
    FILE *log = fopen(in_folder(name), "r");
    ck_assert_ptr_nonnull(log);
    ck_assert(fgets(line, sizeof line, log) != NULL);
    ck_assert_str_eq(line, wanted);
    fclose(log);
  }
}
END_TEST

/* Ranks that mpirun or torchrun has started, instead of this program, work, too. */
START_TEST(started_by_others) {
  char text[4096], line[1024];
  memset(text, 'a', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  write_text(in_folder("text"), text);
  const char *const starts[] = {"mpirun -q -n 2 --oversubscribe --allow-run-as-root",
                                "env TORCHELASTIC_RUN_ID=1 RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2",
                                "env TORCHELASTIC_RUN_ID=1 RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2"};
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
  for (int i = 0; i < 3; i++) {
    snprintf(line, sizeof line, "%s %s/twinspeed train -m tiny-gpt2 --seq 32 --steps 2 --threads 1 --data %s",
             starts[i], TWS_BUILD_DIR, in_folder("text"));
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", line, NULL};
    command_result r = command_execute(argv);
    ck_assert_msg(r.status == 0, "%s: %s", line, r.err);
    ck_assert_msg(i == 2 ? r.out[0] == '\0' : strstr(r.out, "memory of 2 ranks") != NULL, "%s: %s", line, r.out);
    command_free(&r);
  }
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

/* Returns `text` with every `from` replaced by `to`; the caller frees it. */
static char *replaced(const char *text, const char *from, const char *to) {
  tws_text out = {0};
  for (const char *at = text, *next; *at; at = next + strlen(from)) {
    next = strstr(at, from);
    tws_text_add(&out, "%.*s", (int)(next ? next - at : (ptrdiff_t)strlen(at)), at);
    if (!next) break;
    tws_text_add(&out, "%s", to);
  }
  return out.data;
}

/* Runs the program in the test's folder, with an environment in which no launcher is installed. */
static command_result bare(const char *format, ...) __attribute__((format(printf, 1, 2)));
static command_result bare(const char *format, ...) {
  char home[64], line[1024], *rest = NULL;
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  snprintf(home, sizeof home, "HOME=%s", folder);
  char *argv[64] = {(char *)"/usr/bin/env",
                    (char *)"-i",
                    (char *)"-C",
                    folder,
                    (char *)"PATH=/none",
                    home,
                    (char *)"NCCL_DEBUG=INFO",
                    (char *)"OMPI_MCA_mpi_yield_when_idle=0",
                    (char *)TWS_BUILD_DIR "/twinspeed"};
  int count = 9;
  for (char *word = strtok_r(line, " ", &rest); word && count < 63; word = strtok_r(NULL, " ", &rest))
    argv[count++] = word;
  return command_execute(argv);
}

/* --print-command prints the golden command line for every launcher, although neither the launcher nor the command is
 * installed. */
START_TEST(command_lines) {
  tws_json *golden = golden_file("launch_commands.json");
  const cJSON *one;
  int count = 0;
  write_text(in_folder("hosts"), "worker-0 slots=2\nworker-1 slots=2\n");
  write_text(in_folder(".deepspeed_env"), "A=b c\n");
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "commands")) {
    const char *launcher = cJSON_GetObjectItem(one, "launcher")->valuestring;
    char *options = replaced(cJSON_GetObjectItem(one, "options")->valuestring, "{folder}", folder);
    command_result r =
        bare("launch --launcher %s %s --threads 1 --print-command -- echo it's 100%%n :", launcher, options);
    ck_assert_msg(r.status == 0, "%s: %s", launcher, r.err);
    char *program = replaced(r.out, TWS_BUILD_DIR "/twinspeed", "twinspeed");
    char *root = replaced(program, " --allow-run-as-root", ""), *got = replaced(root, folder, "{folder}");
    ck_assert_str_eq(got, cJSON_GetObjectItem(one, "command")->valuestring);
    tws_free(options);
    tws_free(program);
    tws_free(root);
    tws_free(got);
    command_free(&r);
    count++;
  }
  ck_assert_int_ge(count, 11);
  tws_json_destroy(golden);
  const struct {
    const char *line;
    int status;
    const char *says;
  } bad[] = {{"launch --launcher pdsh --hostfile hosts -- /bin/true", 4, "pdsh was not found in PATH"},
             {"launch --launcher rsh --hostfile hosts --dry-run", 2, "openmpi, mpich, impi, mvapich or slurm"},
             {"train -m tiny-gpt2 --data hosts --launcher impi --hostfile hosts", 2, "cannot start ranks of Open MPI"},
             {"launch --launcher mpich --hostfile unequal --print-command -- x", 3, "worker-1 has 1 slots where"},
             {"launch --launcher impi --hostfile unequal --print-command -- x", 3, "worker-1 has 1 slots where"},
             {"launch --launcher mvapich --hostfile unequal --print-command -- x", 3, "worker-1 has 1 slots where"},
             {"launch --launcher slurm --hostfile unequal --print-command -- x", 3, "worker-1 has 1 slots where"}};
  write_text(in_folder("unequal"), "worker-0 slots=2\nworker-1 slots=1\n");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    command_result r = bare("%s", bad[i].line);
    ck_assert_msg(r.status == bad[i].status && strstr(r.err, bad[i].says), "%s: %d %s", bad[i].line, r.status, r.err);
    command_free(&r);
  }
}
END_TEST

static const char report[] =
    "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $CROSS_RANK/$CROSS_SIZE $MASTER_ADDR:$MASTER_PORT "
    "devices $CUDA_VISIBLE_DEVICES $*\n";

/* Where the driver reports the number of devices of this machine, other devices are refused, and every filter is
 * applied. */
START_TEST(devices_of_this_machine) {
  tws_arena *arena = tws_arena_create();
  const struct {
    const char *include, *exclude;
    int count, first; /* 0: refused */
  } cases[] = {{"localhost:1", NULL, 1, 1},
               {"localhost:3", NULL, 1, 3},
               {"localhost:4", NULL, 0, 0},
               {"localhost", NULL, 4, 0},
               {NULL, "localhost:0", 3, 1},
               {NULL, "localhost:7", 0, 0},
               {"localhost:2@localhost:0", NULL, 2, 0},
               {"elsewhere:0", NULL, 0, 0},
               {"localhost:0", "localhost:1", 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const tws_hosts_request request = {.include = cases[i].include, .exclude = cases[i].exclude, .devices = 4};
    tws_hosts hosts;
    const tws_code code = tws_hosts_find(&request, arena, &hosts, NULL);
    ck_assert_msg((code == TWS_OK) == (cases[i].count > 0), "case %zu: %d", i, (int)code);
    if (code != TWS_OK) continue;
    ck_assert_int_eq(hosts.host[0].count, cases[i].count);
    ck_assert_int_eq(hosts.host[0].slot[0], cases[i].first);
  }
  tws_arena_destroy(arena);
}
END_TEST

/* Without a hostfile launch uses the devices of this machine, or the default hostfile. */
START_TEST(without_hostfile) {
  const int known = tws_devices_here() > 0; /* where the driver reports devices, other devices are refused */
  write_text(in_folder("report"), report);
  unsetenv("CUDA_VISIBLE_DEVICES");
  command_result r = twinspeed("launch -q --include localhost:%d -- sh %s", !known, in_folder("report"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_str_eq(r.out,
                   known ? "0/1 0/1 0/1 127.0.0.1:29500 devices 0\n" : "0/1 0/1 0/1 127.0.0.1:29500 devices 1\n");
  command_free(&r);
  setenv("CUDA_VISIBLE_DEVICES", "7", 1); /* is ignored where --include names devices */
  r = twinspeed("launch --include localhost:0 -- sh %s", in_folder("report"));
  ck_assert_str_eq(r.out, "0/1 0/1 0/1 127.0.0.1:29500 devices 0\n");
  ck_assert_msg(strstr(r.err, "CUDA_VISIBLE_DEVICES=7 is left out") != NULL, "%s", r.err);
  command_free(&r);
  unsetenv("CUDA_VISIBLE_DEVICES");
  r = twinspeed("launch --include 127.0.0.1:2,5 --dry-run");
  if (!known) ck_assert_str_eq(r.out, "rank 0 -> 127.0.0.1 -> device 2\nrank 1 -> 127.0.0.1 -> device 5\n");
  command_free(&r);
  static const char *const bad[] = {"--include elsewhere:1",
                                    "--include localhost",
                                    "--include localhost:",
                                    "--exclude localhost:0",
                                    "--include localhost:1@localhost:2",
                                    "--include localhost:256",
                                    "-n 2 --include localhost:1"};
  for (size_t i = 0; !known && i < sizeof bad / sizeof *bad; i++) {
    r = twinspeed("launch %s --dry-run", bad[i]);
    assert_one_error(&r, strstr(bad[i], "localhost:256") || bad[i][strlen(bad[i]) - 1] == ':' ? 3 : 2, bad[i]);
    command_free(&r);
  }
  write_text(in_folder("hosts"), "worker-0 slots=2\nworker-1 slots=2\n");
  setenv("TWINSPEED_HOSTFILE", in_folder("hosts"), 1);
  r = twinspeed("launch --num_gpus 1 --dry-run");
  ck_assert_msg(strstr(r.err, "the hosts are those of /tmp/") != NULL, "%s", r.err);
  ck_assert_str_eq(r.out, "rank 0 -> worker-0 -> device 0\nrank 1 -> worker-1 -> device 0\n");
  command_free(&r);
  r = twinspeed("launch --num_nodes=1 --num_accelerators=1 --dry-run");
  ck_assert_str_eq(r.out, "rank 0 -> worker-0 -> device 0\n");
  command_free(&r);
  r = twinspeed("launch -n 1 --dry-run"); /* on this machine */
  ck_assert_msg(r.status == 0 && !strstr(r.out, "worker"), "%s%s", r.out, r.err);
  command_free(&r);
  unsetenv("TWINSPEED_HOSTFILE");
}
END_TEST

/* The same command on every node; the ranks of both nodes know of each other. */
START_TEST(one_node_of_several) {
  write_text(in_folder("report"), report);
  write_text(in_folder("hosts"), "worker-0 slots=1\nworker-1 slots=3\n");
  unsetenv("CUDA_VISIBLE_DEVICES");
  for (int node = 0; node < 2; node++) {
    char hosts[64];
    snprintf(hosts, sizeof hosts, "%s", in_folder("hosts"));
    command_result r = twinspeed(
        "launch -q --hostfile %s --exclude worker-1:1 --no_ssh --node_rank=%d --master_port "
        "29777 %s -- sh %s a :",
        hosts, node, node ? "--master_addr 10.1.2.3" : "", in_folder("report"));
    ck_assert_msg(r.status == 0, "%s", r.err);
    if (!node) ck_assert_str_eq(r.out, "0/3 0/1 0/2 worker-0:29777 devices 0 a :\n");
    ck_assert_int_eq(count_lines_with(r.out, "1/3 0/2 1/2 10.1.2.3:29777 devices 0,2 a :\n"), node);
    ck_assert_int_eq(count_lines_with(r.out, "2/3 1/2 1/2 10.1.2.3:29777 devices 0,2 a :\n"), node);
    command_free(&r);
  }
  static const char *const bad[] = {"--no_ssh --node_rank 2", "--no_ssh",
                                    "--node_rank 0",          "--no_ssh --node_rank 0 --launcher pdsh",
                                    "--master_addr a;b",      "--master_port 65536",
                                    "--world_info eyJh",      "--world_info e30= --node_rank 0",
                                    "--bind_core_list 3-1",   "--bind_core_list 0,0",
                                    "--bind_core_list 1024"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    command_result r = twinspeed("launch --hostfile %s %s -- true", in_folder("hosts"), bad[i]);
    assert_one_error(&r, i == 0 ? 3 : 2, bad[i]);
    command_free(&r);
  }
  command_result r = twinspeed("launch --no_ssh --node_rank 0 -- true");
  assert_one_error(&r, 2, "no hostfile");
  command_free(&r);
}
END_TEST

/* Each rank is bound to cores of its own. */
START_TEST(bound_cores) {
  tws_cores all, part;
  ck_assert_int_eq(tws_cores_parse("0-3,8,10-12", &all, NULL), TWS_OK);
  ck_assert_int_eq(all.count, 8);
  ck_assert_int_eq(tws_cores_of_rank(&all, 1, 3, &part, NULL), TWS_OK);
  ck_assert(part.count == 2 && part.core[0] == 2 && part.core[1] == 3);
  ck_assert_int_eq(tws_cores_of_rank(&all, 2, 3, &part, NULL), TWS_OK);
  ck_assert(part.count == 2 && part.core[0] == 8 && part.core[1] == 10);
  ck_assert_int_eq(tws_cores_of_rank(&all, 0, 9, &part, NULL), TWS_INVALID);
  ck_assert_int_eq(tws_cores_parse(NULL, &all, NULL), TWS_OK);
  char wanted[64];
  write_text(in_folder("cores"), "echo $OMP_NUM_THREADS $(grep Cpus_allowed_list /proc/$$/status)\n");
  command_result r = twinspeed("launch -q -n 1 --bind_cores_to_rank --bind_core_list %d -- sh %s",
                               all.core[all.count - 1], in_folder("cores"));
  snprintf(wanted, sizeof wanted, "1 Cpus_allowed_list: %d\n", all.core[all.count - 1]);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_str_eq(r.out, wanted);
  command_free(&r);
  r = twinspeed("launch -q -n 1 --bind_core_list 1023 -- true");
  assert_one_error(&r, all.core[all.count - 1] == 1023 ? 0 : 4, "a core that is not there");
  command_free(&r);
}
END_TEST

/* With --launcher openmpi, Open MPI's own mpirun starts and supervises the ranks. */
START_TEST(given_to_openmpi) {
  write_text(in_folder("report"), report);
  write_text(in_folder("hosts"), "localhost slots=4\n");
  unsetenv("CUDA_VISIBLE_DEVICES");
  char hosts[64];
  snprintf(hosts, sizeof hosts, "%s", in_folder("hosts"));
  command_result r = twinspeed(
      "launch -q --launcher openmpi --hostfile %s --include localhost:1,3 --master_port 29600 "
      "-- sh %s 'b  c' :",
      hosts, in_folder("report"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_int_eq(count_lines_with(r.out, "0/2 0/2 0/1 localhost:29600 devices 1,3 b c :"), 1);
  ck_assert_int_eq(count_lines_with(r.out, "1/2 1/2 0/1 localhost:29600 devices 1,3 b c :"), 1);
  command_free(&r);
  r = twinspeed("launch --json --launcher openmpi --hostfile %s --num_gpus 2 -- echo rank", hosts);
  ck_assert_msg(r.status == 0 && count_lines_with(r.err, "rank") == 2, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-ranks-1");
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "ranks")), 2);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("launch -q --launcher openmpi --hostfile %s -- sh -c 'exit 3'", hosts);
  ck_assert_msg(r.status == 5 && strstr(r.err, " ended with status 3\n"), "%d %s", r.status, r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_launch");
  TCase *launch = tcase_create("launch");
  tcase_set_timeout(launch, 120);
  tcase_add_checked_fixture(launch, make_folder, remove_folder);
  tcase_add_test(launch, hostfiles);
  tcase_add_test(launch, nodes_and_world_info);
  tcase_add_test(launch, launching);
  tcase_add_test(launch, allocations);
  tcase_add_test(launch, environment_files);
  tcase_add_test(launch, environment);
  tcase_add_test(launch, command_lines);
  tcase_add_test(launch, devices_of_this_machine);
  tcase_add_test(launch, without_hostfile);
  tcase_add_test(launch, one_node_of_several);
  tcase_add_test(launch, bound_cores);
  tcase_add_test(launch, given_to_openmpi);
  tcase_add_test(launch, started_by_others);
  tcase_add_test(launch, interrupting);
  suite_add_tcase(suite, launch);
  return run_suite(suite);
}
