/* ctest: mpi waits sampled */
/* Several machines: two to four nodes that are network namespaces with addresses, hostnames and links of their own
 * (tests/nodes.sh), reached through an agent of the tests and, where it is installed, through sshd. Where this machine
 * cannot create them the suite prints the reason and tests nothing. */
#include <arpa/inet.h>
#include <check.h>
#include <linux/if_ether.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include "base/memory.h"
#include "launch/seal.h"
#include "tests/answers.h"
#include "running_job.h"
#include "tests/members.h"

#define MODEL "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":4,\"n_embd\":64,\"n_positions\":64,\"vocab_size\":256}"
#define TRAIN "train -m %s/model.json --seq 32 --micro-batch 2 --threads 1 --quiet --data %s"
/* A deadline for jobs whose nodes answer: a node counts as lost after half of it without an answer, and a loaded
 * machine that stands still for some seconds answers nothing. Only jobs whose link is cut have a shorter one. */
#define PATIENT "--deadline 20"
static char why_not[256];

static command_result shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static command_result shell(const char *format, ...) {
  char line[4096];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  char *argv[] = {(char *)"/bin/sh", (char *)"-c", line, NULL};
  return command_execute(argv);
}

static command_result nodes(const char *what) {
  return shell("sh %s/nodes.sh %s", TWS_TEST_DIR, what);
}

static void do_nodes(const char *what) {
  command_result r = nodes(what);
  ck_assert_msg(r.status == 0, "%s: %s%s", what, r.out, r.err);
  command_free(&r);
}

static char remote_shell[256];

/* Runs twinspeed on the first node, with the text `hosts` as its hostfile. */
static command_result on_nodes(const char *hosts, const char *format, ...) __attribute__((format(printf, 2, 3)));
static command_result on_nodes(const char *hosts, const char *format, ...) {
  char line[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  write_text(in_folder("hosts"), hosts);
  return shell("sh %s/nodes.sh run node1 \"%s/twinspeed %s --hostfile %s --remote-shell '%s'\"", TWS_TEST_DIR,
               TWS_BUILD_DIR, line, in_folder("hosts"), remote_shell);
}

/* Asserts that all processes of a run have ended, and waits up to 10 s for that. */
static void assert_alone(void) {
  for (int tries = 0; tries < 100; tries++) {
    command_result r = nodes("pids");
    const int alone = r.out[0] == '\0';
    command_free(&r);
    if (alone) return;
    usleep(100000);
  }
  command_result r = shell("for p in $(sh %s/nodes.sh pids); do ps -o args= -p $p; done", TWS_TEST_DIR);
  ck_abort_msg("left over: %s", r.out);
}

/* Asserts that two CSVs have the same loss, learning rate and norm in each step; times may differ. */
static void assert_same_steps(const char *a, const char *b, int steps) {
  char left[512], right[512];
  FILE *files[2] = {fopen(a, "r"), fopen(b, "r")};
  ck_assert(files[0] && files[1]);
  for (int step = 0; step <= steps; step++) {
    ck_assert(fgets(left, sizeof left, files[0]) && fgets(right, sizeof right, files[1]));
    for (int i = 0, at = 0; left[at] && i < 4; at++) {
      i += left[at] == ',';
      ck_assert_msg(left[at] == right[at], "%s, not %s", right, left);
    }
  }
  fclose(files[0]);
  fclose(files[1]);
}

START_TEST(same_bits) {
  static const struct {
    const char *hosts, *options;
  } cases[] = {{"node1 slots=2\nnode2 slots=2\n", "--stage 2 --dtype bf16"},
               {"node1 slots=1\nnode2 slots=2\nnode3 slots=1\n", "--stage 3"},
               {"node1 slots=1\nnode2 slots=1\nnode3 slots=1\nnode4 slots=1\n", "--tp 2 --pp 2 --accumulation 2"}};
  char one[96], many[96];
  snprintf(one, sizeof one, "%s", in_folder("one.csv"));
  snprintf(many, sizeof many, "%s", in_folder("many.csv"));
  command_result r = twinspeed(TRAIN " --steps 4 -n 4 %s --force --csv %s", folder, text_path, cases[_i].options, one);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = on_nodes(cases[_i].hosts, TRAIN " --steps 4 %s --force --csv %s --trace %s --save %s", folder, text_path,
               cases[_i].options, many, in_folder("trace.json"), in_folder("saved"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "equal to the byte"));
  command_free(&r);
  assert_same_steps(one, many, 4);
  tws_json *trace = NULL;
  tws_error err = {0};
  ck_assert(tws_json_read(in_folder("trace.json"), &trace, &err) == TWS_OK); /* of all ranks */
  int seen = 0;
  const cJSON *event;
  cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(trace->root, "traceEvents")) {
    const cJSON *pid = cJSON_GetObjectItemCaseSensitive(event, "pid");
    if (cJSON_IsNumber(pid) && pid->valueint >= 0 && pid->valueint < 4) seen |= 1 << pid->valueint;
  }
  ck_assert_int_eq(seen, 15);
  tws_json_destroy(trace);
  if (_i == 0) { /* a checkpoint of several nodes resumes on one */
    r = twinspeed(TRAIN " --steps 5 -n 1 --micro-batch 8 --resume %s", folder, text_path, in_folder("saved"));
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
  }
  assert_alone();
}
END_TEST

/* Nodes with disks of their own: node2 has another folder in the place of the folder to which node1 saves. The whole
 * checkpoint is then on node1, and both nodes resume from it, bit for bit, also after a rank of node2 has died; node2
 * uses a copy if it has one, and another checkpoint of that name is refused. */
START_TEST(own_disks) {
  static const char hosts[] = "node1 slots=1\nnode2 slots=2\n";
  char mount[512], one[96], many[96];
  snprintf(one, sizeof one, "%s", in_folder("one.csv"));
  snprintf(many, sizeof many, "%s", in_folder("many.csv"));
  command_result r = shell("mkdir -p %s %s", in_folder("own"), in_folder("other"));
  command_free(&r);
  snprintf(mount, sizeof mount, "node2 %s %s", in_folder("other"), in_folder("own"));
  r = twinspeed(TRAIN " --steps 5 -n 3 --stage 3 --force --csv %s", folder, text_path, one);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  setenv("TWS_NODE_MOUNT", mount, 1);
  r = on_nodes(hosts, TRAIN " --steps 3 --stage 3 --save %s --save-every 1 --keep 2", folder, text_path,
               in_folder("own"));
  ck_assert_msg(r.status == 0 && strstr(r.err, "2 of 3 ranks (the first: rank 1, on node2) do not see the folder"),
                "status %d: %s", r.status, r.err);
  command_free(&r);
  r = shell("ls -A %s | wc -l; ls %s/global_step3 | wc -l", in_folder("other"), in_folder("own"));
  ck_assert_str_eq(r.out, "0\n4\n"); /* three files and the index */
  command_free(&r);
  r = on_nodes(hosts, TRAIN " --steps 5 --stage 3 --force --csv %s --resume %s", folder, text_path, many,
               in_folder("own"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = shell("sed '$!N;$!D' %s | cut -d, -f1-4 >%s; sed '$!N;$!D' %s | cut -d, -f1-4 | cmp - %s", one, in_folder("end"),
            many, in_folder("end"));
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
  r = shell("cp -r %s/* %s && printf x >>%s/global_step3/index.json", in_folder("own"), in_folder("other"),
            in_folder("other"));
  command_free(&r);
  r = on_nodes(hosts, TRAIN " --steps 4 --stage 3 --resume %s", folder, text_path, in_folder("own"));
  ck_assert_msg(r.status == 3 && strstr(r.err, "global_step3 is not the same on node2 (rank "), "status %d: %s",
                r.status, r.err);
  command_free(&r);
  r = on_nodes(hosts, TRAIN " --steps 4 --stage 3 --resume %s --tag global_step2", folder, text_path, in_folder("own"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = shell("rm -r %s/*", in_folder("other"));
  command_free(&r);
  setenv("TWINSPEED_FAULT", "rank=2,step=5,kind=kill", 1);
  r = on_nodes(hosts, TRAIN " --steps 6 --save-every 1 --restarts 1 --save %s --resume %s --set train_batch_size=6",
               folder, text_path, in_folder("own"), in_folder("own"));
  unsetenv("TWINSPEED_FAULT");
  ck_assert_msg(r.status == 0 && strstr(r.err, "continuing with 1 of 3 ranks from global_step4"), "status %d: %s",
                r.status, r.err);
  command_free(&r);
  unsetenv("TWS_NODE_MOUNT");
  assert_alone();
}
END_TEST

/* Jobs start through a real sshd on each node, with its own keys: losses have the same bits, the error names a killed
 * rank, and no process is left on any node. */
START_TEST(through_sshd) {
  static const char hosts[] = "node1 slots=1\nnode2 slots=2\nnode3 slots=1\n";
  char command[256], one[96], many[96], before[sizeof remote_shell];
  snprintf(command, sizeof command, "sshd 3 %s", in_folder("ssh"));
  command_result r = nodes(command);
  ck_assert_msg(r.status == 0 || r.status == 77, "%s%s", r.out, r.err);
  if (r.status == 77) printf("nodes: without sshd: %s\n", r.out);
  const int skip = r.status == 77;
  command_free(&r);
  if (!skip) {
    snprintf(before, sizeof before, "%s", remote_shell);
    snprintf(remote_shell, sizeof remote_shell, "ssh -F %s/ssh_config", in_folder("ssh"));
    snprintf(one, sizeof one, "%s", in_folder("one.csv"));
    snprintf(many, sizeof many, "%s", in_folder("many.csv"));
    r = twinspeed(TRAIN " --steps 3 -n 4 --stage 2 --force --csv %s", folder, text_path, one);
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
    r = on_nodes(hosts, TRAIN " --steps 3 --stage 2 --force --csv %s", folder, text_path, many);
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
    assert_same_steps(one, many, 3);
    setenv("TWINSPEED_FAULT", "rank=2,step=2,kind=kill", 1);
    r = on_nodes(hosts, TRAIN " --steps 3 --stage 2", folder, text_path);
    unsetenv("TWINSPEED_FAULT");
    ck_assert_msg(r.status == 5 && strstr(r.err, "rank 2 was ended by signal 9"), "status %d: %s", r.status, r.err);
    command_free(&r);
    snprintf(remote_shell, sizeof remote_shell, "%s", before);
    snprintf(command, sizeof command, "sshd-off %s", in_folder("ssh"));
    do_nodes(command);
  }
  assert_alone();
}
END_TEST

/* With a link of 100 Mbit/s, the predicted and the real step take at least as long as the link needs for the
 * gradients. */
START_TEST(slow_link) {
  write_text(in_folder("cluster.json"),
             "{\"schema\":\"twinspeed-cluster-1\",\"base\":\"host\",\"nodes\":2,\"devices_per_node\":1,"
             "\"inter\":{\"bandwidth\":12.5e6,\"latency_s\":5e-5}}");
  for (int i = 1; i <= 2; i++) {
    char rate[64];
    snprintf(rate, sizeof rate, "rate %d 100mbit", i);
    command_result limited = nodes(rate);
    if (limited.status == 77) printf("nodes: links are as fast as they are: %s", limited.out);
    const int skip = limited.status == 77;
    command_free(&limited);
    if (skip) return;
  }
  const double seconds = 118208 * 4.0 / 12.5e6; /* float32 gradients, each way */
  command_result r = on_nodes("node1 slots=1\nnode2 slots=1\n", TRAIN " --steps 4 --stage 0 --json --cluster %s",
                              folder, text_path, in_folder("cluster.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *measured = assert_json(&r, "twinspeed-train-1");
  command_free(&r);
  r = twinspeed(
      "simulate -m %s/model.json --seq 32 --micro-batch 2 --threads 1 -n 2 --stage 0 --json --quiet --cluster %s",
      folder, in_folder("cluster.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *predicted = cJSON_Parse(r.out);
  const cJSON *step = cJSON_GetObjectItemCaseSensitive(predicted, "step_s");
  ck_assert_msg(cJSON_IsNumber(step), "%s", r.out);
  const double took = cJSON_GetObjectItemCaseSensitive(measured, "median_step_s")->valuedouble;
  printf("nodes: a step over 100 Mbit/s: predicted %.1f ms, measured %.1f ms, gradients alone %.1f ms\n",
         step->valuedouble * 1e3, took * 1e3, seconds * 1e3);
  ck_assert_double_gt(took, 0.8 * seconds); /* the link lends a burst */
  ck_assert_double_gt(step->valuedouble, 0.9 * seconds);
  cJSON_Delete(measured);
  cJSON_Delete(predicted);
  command_free(&r);
}
END_TEST

/* Faults on the second node: a rank that dies, a rank that hangs, and a data file that differs from the first
 * node's. */
START_TEST(faults) {
  static const struct {
    const char *fault, *options;
    int status;
    const char *says[2];
  } cases[] = {{"rank=3,step=2,kind=kill", "", 5, {"rank 3 was ended by signal 9", "(Killed)"}},
               {"rank=3,step=2,kind=hang", PATIENT, 124, {"rank 3 is in operation", "step 2 is not done"}},
               {"", "", 3, {"is not the same on node2 (rank 2) as on node1 (rank 0)", "story.txt"}}};
  char mount[512];
  snprintf(mount, sizeof mount, "node2 %s/other.txt %s", folder, text_path);
  setenv("TWINSPEED_FAULT", cases[_i].fault, 1);
  if (_i == 2) setenv("TWS_NODE_MOUNT", mount, 1);
  command_result r =
      on_nodes("node1 slots=2\nnode2 slots=2\n", TRAIN " --steps 3 %s", folder, text_path, cases[_i].options);
  unsetenv("TWINSPEED_FAULT");
  unsetenv("TWS_NODE_MOUNT");
  ck_assert_msg(r.status == cases[_i].status, "status %d: %s", r.status, r.err);
  for (int i = 0; i < 2; i++) ck_assert_msg(strstr(r.err, cases[_i].says[i]) != NULL, "%s", r.err);
  ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "one message: %s", r.err);
  command_free(&r);
  assert_alone();
}
END_TEST

/* Control sequences in the output of a command on another machine are escaped for this terminal, in whatever parts the
 * output arrives; and arguments that mpirun would interpret reach the command. */
START_TEST(output_of_other_machines) {
  write_text(in_folder("hosts"), "node2 slots=1\n");
  write_text(in_folder("prints"),
             "printf 'a\\033]0;x\\007\\302'; sleep 1; printf '\\2332J \\303\\244\\tb\\r\\n'; "
             "printf '%s|' \"$@\"; printf '\\377\\303'; printf '\\033[2J' >&2\n");
  command_result r = shell(
      "sh %s/nodes.sh run node1 \"%s/twinspeed launch -q --hostfile %s --remote-shell '%s' -- sh %s a : "
      ":: --\"",
      TWS_TEST_DIR, TWS_BUILD_DIR, in_folder("hosts"), remote_shell, in_folder("prints"));
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
  ck_assert_str_eq(r.out, "a\\x1b]0;x\\x07\\u009b2J \xc3\xa4\tb\r\na|:|::|--|\\xff\\xc3");
  ck_assert_msg(strstr(r.err, "\\x1b[2J") && !strchr(r.err, '\033'), "%s", r.err);
  command_free(&r);
  assert_alone();
}
END_TEST

/* A link that is cut for one second causes no error; a link that stays cut is reported as a lost node, with its name,
 * and the lost node's processes end by themselves. */
START_TEST(cut_link) {
  char line[256] = "";
  write_text(in_folder("hosts"), "node1 slots=1\nnode2 slots=2\n");
  char command[2048];
  snprintf(command, sizeof command,
           "exec sh %s/nodes.sh run node1 \"%s/twinspeed " TRAIN
           " --steps 1000000 --every 1 --deadline 12 --hostfile %s --remote-shell '%s'\" 2>%s",
           TWS_TEST_DIR, TWS_BUILD_DIR, folder, text_path, in_folder("hosts"), remote_shell, in_folder("error"));
  FILE *stream = popen(command, "r");
  ck_assert_ptr_nonnull(stream);
  while (strstr(line, "     2  ") != line && fgets(line, sizeof line, stream)) continue;
  ck_assert_msg(strncmp(line, "     2  ", 8) == 0, "%s", line);
  do_nodes("cut 2");
  usleep(700000);
  do_nodes("mend 2");
  for (int lines = 0; lines < 50 && fgets(line, sizeof line, stream);) lines++; /* it goes on */
  ck_assert_msg(!feof(stream), "ended: %s", line);
  do_nodes("cut 2");
  while (fgets(line, sizeof line, stream)) continue;
  const int status = pclose(stream);
  command_result says = shell("cat %s", in_folder("error"));
  do_nodes("mend 2");
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 5, "status %x: %s", status, says.out);
  ck_assert_msg(strstr(says.out, "node node2 (ranks 1 2) has not been heard of") != NULL, "%s", says.out);
  command_free(&says);
  assert_alone();
}
END_TEST

/* Starts a process that records every packet on the first node's interfaces; returns its id. */
static pid_t start_recording(const char *path) {
  int ready[2];
  char byte;
  ck_assert_int_eq(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    static char packet[1 << 17];
    char name[96];
    snprintf(name, sizeof name, "/var/run/netns/%s1", getenv("TWS_NODES"));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int node = open(name, O_RDONLY), room = 64 << 20;
    FILE *file = fopen(path, "w");
    if (node < 0 || !file || setns(node, CLONE_NEWNET) != 0) _exit(1);
    const int s = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    if (s < 0) _exit(1);
    setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    if (write(ready[1], "r", 1) != 1) _exit(1);
    for (ssize_t got; (got = recv(s, packet, sizeof packet, 0)) >= 0; fflush(file))
      fwrite(packet, 1, (size_t)got, file);
    _exit(0);
  }
  close(ready[1]);
  ck_assert_msg(read(ready[0], &byte, 1) == 1, "the packets of a node cannot be recorded");
  close(ready[0]);
  return pid;
}

/* Network traffic shows neither the secret nor the output of ranks. */
START_TEST(recorded) {
  static const char text[] = "1235801567"; /* computed by the ranks, so that it is on no command line */
  char spy[256], script[512], secret[TWS_SECRET_TEXT + 2] = "", *packets = NULL;
  uint8_t bytes[TWS_SECRET];
  size_t length = 0;
  snprintf(spy, sizeof spy, "%s", in_folder("spy"));
  snprintf(script, sizeof script, "#!/bin/sh\nread s\necho $s >%s\necho $s | sh %s/nodes.sh shell \"$@\"\n",
           in_folder("secret"), TWS_TEST_DIR);
  write_text(spy, script);
  chmod(spy, 0755);
  write_text(in_folder("command"), "echo text $((1234567 * 1001)) of rank $RANK; sleep 1.5\n");
  write_text(in_folder("hosts"), "node1 slots=1\nnode2 slots=1\n");
  const pid_t recorder = start_recording(in_folder("packets"));
  command_result r =
      shell("sh %s/nodes.sh run node1 \"%s/twinspeed launch -q --hostfile %s --remote-shell %s -- sh %s\"",
            TWS_TEST_DIR, TWS_BUILD_DIR, in_folder("hosts"), spy, in_folder("command"));
  usleep(200000);
  kill(recorder, SIGKILL);
  waitpid(recorder, NULL, 0);
  ck_assert_msg(r.status == 0 && count_lines_with(r.out, "text 1235801567 of rank ") == 2, "status %d: %s%s", r.status,
                r.out, r.err);
  command_free(&r);
  FILE *file = fopen(in_folder("secret"), "r");
  ck_assert(file && fgets(secret, sizeof secret, file));
  fclose(file);
  secret[strcspn(secret, "\n")] = '\0';
  ck_assert(tws_secret_read(secret, bytes));
  ck_assert(tws_read_file(in_folder("packets"), 1 << 28, &packets, &length, NULL) == TWS_OK);
  ck_assert_msg(memmem(packets, length, "twsrank2", 8) != NULL, "%zu bytes without a connection to the launcher",
                length);
  ck_assert_msg(!memmem(packets, length, text, strlen(text)), "what ranks print was sent in clear");
  ck_assert_msg(!memmem(packets, length, secret, strlen(secret)), "the secret was sent as text");
  ck_assert_msg(!memmem(packets, length, bytes, sizeof bytes), "the secret was sent");
  tws_free(packets);
  assert_alone();
}
END_TEST

/* Stopped processes on the second node are reported as a hang, and not as a lost node, because the machine still
 * answers; the error names the silent ranks and no others. The state of a remote rank reaches the launcher up to 0.2 s
 * later (launch/worker.c), so ranks are stopped after several steps. */
START_TEST(stopped) {
  static const struct {
    int first;
    const char *says, *never;
  } cases[] = {{3, "rank 3 is silent, while its machine answers", "rank 2 is"},
               {2, "rank 2 is silent, while its machine answers, since: step", "not been heard of"}};
  char command[2048];
  running_job job;
  write_text(in_folder("hosts"), "node1 slots=2\nnode2 slots=2\n");
  snprintf(command, sizeof command,
           "exec sh %s/nodes.sh run node1 \"%s/twinspeed " TRAIN
           " --steps 1000000 --every 1 " PATIENT " --hostfile %s --remote-shell '%s'\"",
           TWS_TEST_DIR, TWS_BUILD_DIR, folder, text_path, in_folder("hosts"), remote_shell);
  running_start_command(&job, "job", 4, command);
  running_reach(&job, "   200  ");
  for (int r = cases[_i].first; r < 4; r++) ck_assert_int_eq(kill(job.rank[r], SIGSTOP), 0);
  const double since = tws_clock_s();
  const int status = running_wait(&job);
  char *err = running_errors(&job);
  printf("nodes: ranks from %d on were stopped: %.1f s\n", cases[_i].first, tws_clock_s() - since);
  ck_assert_msg(status == 124 && strstr(err, cases[_i].says) && !strstr(err, cases[_i].never), "status %d: %s", status,
                err);
  free(err);
  assert_alone();
}
END_TEST

static int is_running(pid_t pid) {
  const char state = tws_process_state(pid, NULL);
  return state != 0 && state != 'Z';
}

/* Starts a job and stops its launcher while a rank on another machine prints more than the buffers of the network and
 * both kernels hold; returns the launcher's process id. */
static pid_t stop_launcher(running_job *job, int steps, const char *shell_of_nodes) {
  char command[2048], number[32] = "";
  command_result room = nodes("room 1 16384"); /* smaller socket buffers: a fraction of what 600 steps print */
  command_free(&room);
  write_text(in_folder("hosts"), "node2 slots=1\nnode3 slots=1\n");
  snprintf(command, sizeof command,
           "exec sh %s/nodes.sh run node1 \"echo \\$\\$ >%s/launcher; exec %s/twinspeed " TRAIN
           " --steps %d --every 1 --deadline 10 --hostfile %s --remote-shell '%s'\"",
           TWS_TEST_DIR, folder, TWS_BUILD_DIR, folder, text_path, steps, in_folder("hosts"), shell_of_nodes);
  running_start_command(job, "job", 2, command);
  running_reach(job, "     2  ");
  FILE *file = fopen(in_folder("launcher"), "r");
  ck_assert(file && fgets(number, sizeof number, file));
  fclose(file);
  const pid_t launcher = atoi(number);
  ck_assert(launcher > 0 && kill(launcher, SIGSTOP) == 0);
  return launcher;
}

/* A launcher that is stopped for longer than a silent node is tolerated (5 s with this deadline), and then continues,
 * receives every line. */
START_TEST(stopped_launcher) {
  enum { LAUNCHER_STEPS = 600 };
  running_job job;
  char line[512];
  int step, next = 1;
  const pid_t launcher = stop_launcher(&job, LAUNCHER_STEPS, remote_shell);
  sleep(12);
  for (int r = 0; r < 2; r++) ck_assert_msg(is_running(job.rank[r]), "rank %d has ended", r);
  kill(launcher, SIGCONT);
  const int status = running_wait(&job);
  char *err = running_errors(&job);
  ck_assert_msg(status == 0, "status %d: %s", status, err);
  free(err);
  FILE *out = fopen(job.out, "r");
  while (fgets(line, sizeof line, out))
    if (line[0] == ' ' && sscanf(line, "%d", &step) == 1 && step == next) next++;
  fclose(out);
  ck_assert_int_eq(next, LAUNCHER_STEPS + 1);
  assert_alone();
}
END_TEST

/* A rank whose output waits for a stopped launcher still notices within the deadline that the link is cut, and ends;
 * when the launcher continues, it names the node. The remote shell does not end, like ssh with a cut link. */
START_TEST(cut_from_a_stopped_launcher) {
  running_job job;
  char text[512];
  snprintf(text, sizeof text, "#!/bin/sh\nsh %s/nodes.sh shell \"$@\"\nexec sleep 100\n", TWS_TEST_DIR);
  write_text(in_folder("shell"), text);
  chmod(in_folder("shell"), 0700);
  const pid_t launcher = stop_launcher(&job, 1000000, in_folder("shell"));
  sleep(7);
  ck_assert_msg(is_running(job.rank[0]), "rank 0 has ended");
  do_nodes("cut 2");
  const double cut_s = tws_clock_s();
  while (is_running(job.rank[0]) && tws_clock_s() - cut_s < 30) usleep(20000);
  const double took_s = tws_clock_s() - cut_s;
  kill(launcher, SIGCONT);
  const int status = running_wait(&job);
  char *err = running_errors(&job);
  do_nodes("mend 2");
  printf("nodes: a rank that was cut off ended in %.1f s\n", took_s);
  ck_assert_msg(took_s > 2 && took_s < 10, "a rank that was cut off took %.1f s to end", took_s);
  ck_assert_msg(status == 5 && strstr(err, "node node2 (rank 0) has not been heard of"), "status %d: %s", status, err);
  free(err);
  assert_alone();
}
END_TEST

/* Creates the network namespaces of the nodes. They belong to the machine, so main() removes them whatever happens to a
 * test. */
static void make_nodes(void) {
  char name[32], path[96];
  snprintf(name, sizeof name, "tw%d-", (int)getpid() % 100000);
  setenv("TWS_NODES", name, 1);
  snprintf(remote_shell, sizeof remote_shell, "sh %s/nodes.sh shell", TWS_TEST_DIR);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1); /* the nodes share their cores */
  command_result r = nodes("up 4");
  if (r.status != 0) snprintf(why_not, sizeof why_not, "%s%s", r.out, r.err);
  if (!tws_seal_available()) snprintf(why_not, sizeof why_not, "built without libsodium");
  command_free(&r);
  snprintf(path, sizeof path, "%s/model.json", folder);
  write_text(path, MODEL);
  snprintf(path, sizeof path, "%s/other.txt", folder);
  write_story(path, 50000);
}

int main(void) {
  Suite *suite = suite_create("nodes");
  TCase *tests = tcase_create("nodes");
  tcase_set_timeout(tests, 300);
  tcase_add_loop_test(tests, same_bits, 0, 3);
  tcase_add_loop_test(tests, faults, 0, 3);
  tcase_add_test(tests, recorded);
  tcase_add_test(tests, own_disks);
  tcase_add_test(tests, through_sshd);
  tcase_add_test(tests, output_of_other_machines);
  tcase_add_test(tests, cut_link);
  tcase_add_loop_test(tests, stopped, 0, 2);
  tcase_add_test(tests, slow_link);
  suite_add_tcase(suite, tests);
  TCase *launcher = tcase_create("launcher"); /* is stopped */
  tcase_set_timeout(launcher, 300);
  tcase_add_test(launcher, stopped_launcher);
  tcase_add_test(launcher, cut_from_a_stopped_launcher);
  suite_add_tcase(suite, launcher);
  SRunner *runner = srunner_create(suite);
  set_up();
  make_nodes();
  int failed = 0;
  if (why_not[0])
    printf("nodes: skipped: %s\n", why_not);
  else
    srunner_run_all(runner, CK_NORMAL);
  failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  command_result r = nodes("down");
  command_free(&r);
  remove_folder();
  return failed != 0;
}
