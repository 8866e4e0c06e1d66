/* ctest: mpi */
/* Jobs on two machines (two addresses of this one, through a remote shell of the tests) while other processes connect
 * to the launcher, answer in its place, or do not read its output. */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include "launch/contact.h"
#include "launch/link.h"
#include "launch/seal.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

#define RUN TWS_BUILD_DIR "/twinspeed"

/* ---- a job that runs while a test acts ---- */

typedef struct running {
  pid_t pid;
  int out, err;
} running;

static running start_to(int out, char *const *argv) {
  setenv("TMPDIR", folder, 1);
  running job = {.out = out, .err = command_scratch()};
  job.pid = fork();
  if (job.pid == 0) {
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, 0);
    dup2(job.out, 1);
    dup2(job.err, 2);
    execv(argv[0], argv);
    _exit(126);
  }
  return job;
}

static command_result finish(running job) {
  int status = 0;
  waitpid(job.pid, &status, 0);
  return (command_result){WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), command_slurp(job.out),
                          command_slurp(job.err)};
}

static const char *two_hosts = "127.0.0.2 slots=1\n127.0.0.3 slots=1\n";

/* Starts a shell command as a job of two ranks on two hosts, with this remote shell and standard output. */
static running launch_to(int out, const char *remote_shell, const char *command) {
  char hosts[128], shell[256];
  snprintf(hosts, sizeof hosts, "%s", in_folder("hosts"));
  snprintf(shell, sizeof shell, "%s", remote_shell);
  write_text(hosts, two_hosts);
  char *argv[] = {
      (char *)RUN, (char *)"launch", (char *)"-q", (char *)"--hostfile", hosts,           (char *)"--remote-shell",
      shell,       (char *)"--",     (char *)"sh", (char *)"-c",         (char *)command, NULL};
  return start_to(out, argv);
}

static running launch(const char *remote_shell, const char *command) {
  return launch_to(command_scratch(), remote_shell, command);
}

/* Writes a remote shell that runs the command on this machine, after the shell code `first`, which may use the secret
 * on its standard input. Each call has its own TMPDIR, because Open MPI's daemons on two machines would have separate
 * folders, which they remove at the same time. */
static const char *write_shell(const char *name, const char *first) {
  char text[1024];
  snprintf(text, sizeof text,
           "#!/bin/sh\nlast=$1\nTMPDIR=$(mktemp -d %s/XXXXXX)\nexport TMPDIR\nshift\n%s\nexec sh -c \"$*\"\n", folder,
           first);
  const char *path = in_folder(name);
  write_text(path, text);
  chmod(path, 0755);
  return path;
}

/* ---- the address at which a process listens ---- */

/* Returns 1 if the process has the socket with this inode number. */
static int has_socket(pid_t pid, unsigned long inode) {
  char path[64], link[64], wanted[64];
  snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
  for (int fd = 0; fd < 64; fd++) {
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    const ssize_t got = readlink(path, link, sizeof link - 1);
    if (got <= 0) continue;
    link[got] = '\0';
    if (strcmp(link, wanted) == 0) return 1;
  }
  return 0;
}

static int listening_tcp(pid_t pid, struct sockaddr_in *out) {
  char line[512];
  unsigned address, port, state;
  unsigned long inode;
  int found = 0;
  FILE *list = fopen("/proc/net/tcp", "r");
  while (list && fgets(line, sizeof line, list)) {
    if (sscanf(line, " %*d: %8x:%4x %*x:%*x %2x %*s %*s %*s %*s %*s %lu", &address, &port, &state, &inode) != 4 ||
        state != 10 || !has_socket(pid, inode))
      continue;
    *out = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = address};
    found++;
  }
  if (list) fclose(list);
  return found;
}

static int listening_unix(pid_t pid, struct sockaddr_un *out, socklen_t *size) {
  char line[512], name[128];
  unsigned flags, type;
  unsigned long inode;
  int found = 0;
  FILE *list = fopen("/proc/net/unix", "r");
  while (list && fgets(line, sizeof line, list)) {
    if (sscanf(line, "%*[^:]: %*x %*x %x %x %*x %lu @%100s", &flags, &type, &inode, name) != 4 || type != 5 ||
        !(flags & 0x10000) || !has_socket(pid, inode))
      continue;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path + 1, name, strlen(name));
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    found++;
  }
  if (list) fclose(list);
  return found;
}

typedef struct place {
  union {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_un un;
  };
  socklen_t size;
  int count; /* of sockets that it listens on */
} place;

static place find_listener(pid_t pid, int far) {
  place p = {.size = sizeof p.in};
  for (int tries = 0; tries < 3000 && !p.count; tries++) {
    p.count = far ? listening_tcp(pid, &p.in) : listening_unix(pid, &p.un, &p.size);
    if (!p.count) usleep(2000);
  }
  ck_assert_msg(p.count > 0, "the launcher does not listen");
  return p;
}

/* ---- others who connect ---- */

enum { HELD = 200 };
static uid_t launcher_user;

/* Opens one more connection of a stranger, which sends wrong data before a proof; the number chooses the kind of the
 * data. Returns the socket, -1 on an error, -2 where no process listens. */
static int connect_stranger(const place *to, int number) {
  static const uint8_t junk[4096] = {1, 2, 3, 255, 255, 255, 255};
  const int s =
      socket(to->any.sa_family, (to->any.sa_family == AF_INET ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_NONBLOCK, 0);
  if (s < 0) return -1;
  if (connect(s, &to->any, to->size) != 0 && errno != EINPROGRESS) {
    const int refused = errno == ECONNREFUSED;
    close(s);
    return refused ? -2 : -1;
  }
  struct pollfd wait = {.fd = s, .events = POLLOUT};
  poll(&wait, 1, 20);
  tws_hello hello;
  tws_hello_make(number % 2, &hello);
  if (to->any.sa_family == AF_UNIX && geteuid() == launcher_user) hello.rank = 77; /* this user may be a rank */
  const struct linger reset = {.l_onoff = 1};
  switch (number % 7) {
    case 0:
      break; /* says nothing */
    case 1:
      send(s, junk, sizeof junk, MSG_NOSIGNAL);
      break;
    case 2:
      send(s, &hello, sizeof hello / 2, MSG_NOSIGNAL);
      break;
    case 3:
      send(s, &hello, sizeof hello, MSG_NOSIGNAL);
      break; /* and no proof */
    case 4:
      send(s, &hello, sizeof hello, MSG_NOSIGNAL);
      send(s, junk, TWS_RANDOM, MSG_NOSIGNAL); /* a wrong one */
      break;
    case 5:
      setsockopt(s, SOL_SOCKET, SO_LINGER, &reset, sizeof reset); /* fall through */
    default:
      close(s);
      return -1;
  }
  return s;
}

/* Starts a process that keeps 200 connections, and makes new ones in place of the oldest as fast as it can, until no
 * process listens any more. It runs as another user where the tests may do that. Returns its process ID. */
static pid_t start_strangers(const place *to, int flood) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  launcher_user = geteuid();
  const int to_other_user = geteuid() == 0 && to->any.sa_family == AF_UNIX && flood;
  if (to_other_user && setuid(65534) != 0) _exit(1);
  int held[HELD], refused = 0;
  memset(held, -1, sizeof held);
  for (int i = 0; refused < 20; i++) {
    if (held[i % HELD] >= 0) close(held[i % HELD]);
    held[i % HELD] = connect_stranger(to, i);
    refused = held[i % HELD] == -2 ? refused + 1 : 0;
    if (!flood && i >= HELD) usleep(20000);
  }
  _exit(0);
}

static void end_strangers(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

enum { LINES = TWS_SANITIZED ? 1000 : 4000 };

/* Asserts that the text has all lines of each rank, whole and in order. */
static void assert_lines(const char *text, int ranks) {
  int next[2] = {0}, rank, number, letters, count = 0;
  for (const char *at = text; *at; at = strchr(at, '\n') + 1, count++) {
    letters = 0;
    ck_assert_msg(sscanf(at, "rank %d has line %d%n", &rank, &number, &letters) == 2 && at[letters] == '\n' &&
                      rank >= 0 && rank < ranks && number == next[rank],
                  "line %d: %.80s", count, at);
    next[rank]++;
  }
  ck_assert_int_eq(count, ranks * LINES);
}

/* Returns a shell command that writes numbered lines, each in three parts. */
static const char *talk(const char *after) {
  static char text[512];
  snprintf(text, sizeof text,
           "i=0; while [ $i -lt %d ]; do printf 'rank %%s' $RANK; printf ' has line'; printf ' %%s\\n' $i; "
           "i=$((i+1)); done; %s",
           LINES, after);
  return text;
}

/* ---- the tests ---- */

/* Strangers connect from before the first rank connects until after the last one has ended: in the first run they hold
 * 200 connections, in the second they flood the launcher. */
START_TEST(through_the_network) {
  const char *shell = write_shell("shell", "sleep 0.7");
  running job = launch(shell, talk("sleep 0.5"));
  const place p = find_listener(job.pid, 1);
  const pid_t others = start_strangers(&p, _i);
  command_result r = finish(job);
  end_strangers(others);
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
  assert_lines(r.out, 2);
  command_free(&r);
  job = launch(shell, "sleep 0.$RANK; test $RANK = 0 || exit 3; sleep 20");
  const place second = find_listener(job.pid, 1);
  const pid_t more = start_strangers(&second, _i);
  r = finish(job);
  end_strangers(more);
  ck_assert_msg(r.status == 5 && strstr(r.err, "rank 1 of the command ended with status 3"), "status %d: %s", r.status,
                r.err);
  command_free(&r);
}
END_TEST

/* On one machine, too, a job survives strangers: those of this user, and a flood from another user. */
START_TEST(on_this_machine) {
  char *argv[] = {
      (char *)RUN,  (char *)"launch",          (char *)"-q", (char *)"-n", (char *)"2", (char *)"--", (char *)"sh",
      (char *)"-c", (char *)talk("sleep 0.5"), NULL};
  running job = start_to(command_scratch(), argv);
  const place p = find_listener(job.pid, 0);
  const pid_t others = start_strangers(&p, _i);
  command_result r = finish(job);
  end_strangers(others);
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
  assert_lines(r.out, 2);
  command_free(&r);
}
END_TEST

/* Standard output and error that are redirected to one file keep the order in which a rank writes. */
START_TEST(one_file) {
  char *argv[] = {
      (char *)"/bin/sh", (char *)"-c",
      (char *)RUN " launch -q -n 1 -- sh -c 'for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo $i >&2; done' 2>&1", NULL};
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.out);
  ck_assert_str_eq(r.out, "1\n1\n2\n2\n3\n3\n4\n4\n5\n5\n6\n6\n7\n7\n8\n8\n9\n9\n");
  command_free(&r);
}
END_TEST

/* The launcher listens only on the address at which the hosts can reach it, also when their names are aliases that only
 * ssh knows. */
START_TEST(interfaces) {
  const char *addresses = two_hosts;
  if (_i == 1) two_hosts = "alias-a slots=1\nalias-b slots=1\n";
  running job = launch(write_shell("ssh", "test \"$1\" != -- || { echo hostname 127.0.0.2; exit; }"), "sleep 0.2");
  two_hosts = addresses;
  const place p = find_listener(job.pid, 1);
  ck_assert_int_eq(p.count, 1);
  ck_assert_uint_eq(ntohl(p.in.sin_addr.s_addr) >> 24, 127);
  command_result r = finish(job);
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

/* Ranks that do not receive the secret, or receive another one, end with an error that says so. */
START_TEST(ranks_without_the_secret) {
  static const struct {
    const char *first, *says;
  } cases[] = {
      {"exec </dev/null", "the job's secret did not reach this process"},
      {"read secret\nexport TWINSPEED_LAUNCHER_SECRET=\"$(echo $secret | tr 0-9a-f 1-9a-f0)\"\nset -- \"${*#*&& }\"\n"
       "set -- \"${*#*&& }\"",
       "what answers there does not know the job's secret"}};
  command_result r = finish(launch(write_shell("shell", cases[_i].first), "echo text"));
  assert_one_error(&r, 4, cases[_i].first);
  ck_assert_msg(strstr(r.err, cases[_i].says) != NULL, "%s", r.err);
  command_free(&r);
}
END_TEST

/* Acts as a launcher that does not know the secret: whatever it sends, the rank believes nothing and runs nothing. */
static void answer_falsely(int listener, int kind) {
  static uint8_t bytes[8192];
  const int s = accept(listener, NULL, NULL);
  tws_hello hello;
  ck_assert_int_eq(recv(s, &hello, sizeof hello, MSG_WAITALL), sizeof hello);
  memset(bytes, kind == 1 ? 0xff : 0, sizeof bytes);
  bytes[0] = 2; /* WELCOME as it once was */
  if (kind == 2) memcpy(bytes, hello.random, sizeof hello.random);
  if (kind < 3) send(s, bytes, sizeof bytes, MSG_NOSIGNAL);
  if (kind == 3) { /* another secret */
    tws_answer answer;
    tws_session session;
    tws_hello_answer(bytes, &hello, &answer, &session);
    send(s, &answer, sizeof answer, MSG_NOSIGNAL);
  }
  recv(s, bytes, sizeof bytes, 0); /* until it has left */
  close(s);
}

START_TEST(false_launchers) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  char name[64], secret[TWS_SECRET_TEXT + 1];
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  ck_assert(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 5) == 0 &&
            getsockname(listener, (struct sockaddr *)&address, &size) == 0);
  snprintf(name, sizeof name, "@127.0.0.1:%d", ntohs(address.sin_port));
  ck_assert(tws_secret_make(secret));
  setenv("TWINSPEED_LAUNCHER", name, 1);
  setenv("TWINSPEED_LAUNCHER_SECRET", secret, 1);
  char *argv[] = {(char *)RUN, (char *)"rank-worker", (char *)"launch", (char *)"--", (char *)"echo", (char *)"ran",
                  NULL};
  running rank = start_to(command_scratch(), argv);
  answer_falsely(listener, _i);
  command_result r = finish(rank);
  unsetenv("TWINSPEED_LAUNCHER");
  unsetenv("TWINSPEED_LAUNCHER_SECRET");
  assert_one_error(&r, 4, "a false launcher");
  ck_assert_msg(strstr(r.err, "what answers there does not know the job's secret") != NULL, "%s", r.err);
  command_free(&r);
  close(listener);
}
END_TEST

/* ---- a machine of the job that has been taken over ---- */

enum { FALSE_RANKS = 7 };

/* Makes a false record, sealed with the right key or not: it may only end this rank's connection. Returns its bytes. */
static size_t make_false_record(int kind, tws_session *session, uint8_t *wire) {
  tws_launch_record r = {.kind = TWS_RECORD_OUTPUT, .rank = kind, .bytes = 5, .text = "text\n"};
  size_t bytes = tws_record_bytes(&r);
  switch (kind) {
    case 0:
      r = (tws_launch_record){.kind = TWS_RECORD_FAILED, .rank = INT32_MAX, .error = {.code = TWS_IO, .message = "no"}};
      bytes = tws_record_bytes(&r);
      break;
    case 1:
      r.bytes = INT32_MAX;
      break;
    case 2:
      r.stream = -1;
      break;
    case 3:
      r.kind = TWS_RECORD_ACTIVITY;
      memset(r.text, 'Z', sizeof r.text);
      bytes = tws_record_bytes(&r);
      break;
    case 4:
      r.kind = 77;
      break;
    case 5:
      session->sent++;
      break; /* the number of another record */
    default:
      memset(wire, 0xff, 64);
      return 64;
  }
  return tws_seal(session, &r, bytes, wire);
}

/* Becomes that rank, sends a valid line and then a false record: the launcher has to close the connection. */
static void be_false_rank(const char *name, const uint8_t *secret, int kind) {
  static tws_launch_record record;
  static uint8_t wire[TWS_LINK_BYTES];
  static tws_link link;
  tws_error err = {0};
  ck_assert_msg(tws_contact_remote(name, secret, kind, &link, &err) == TWS_OK, "%s", err.message);
  struct pollfd wait = {.fd = link.socket, .events = POLLIN};
  int got = 0;
  while (got == 0 && poll(&wait, 1, 20000) == 1) got = tws_link_receive(&link, &record);
  ck_assert(got == 1 && record.kind == TWS_RECORD_WELCOME && record.place.ranks == FALSE_RANKS + 1);
  record = (tws_launch_record){.kind = TWS_RECORD_OUTPUT, .rank = kind, .bytes = 5, .text = "good\n"};
  ck_assert(tws_link_try_send(&link, &record));
  const size_t bytes = make_false_record(kind, &link.session, wire);
  ck_assert_int_eq(send(link.socket, wire, bytes, MSG_NOSIGNAL), bytes);
  for (got = 0; got >= 0 && poll(&wait, 1, 20000) == 1;) got = tws_link_receive(&link, &record);
  ck_assert_msg(got < 0, "record %d was accepted", kind);
  tws_link_close(&link);
}

START_TEST(false_ranks) {
  const char *addresses = two_hosts;
  char first[512], name[256] = "", secret[TWS_SECRET_TEXT + 2] = "";
  uint8_t bytes[TWS_SECRET];
  const char *stolen = in_folder("stolen"), *stop = in_folder("stop");
  snprintf(first, sizeof first,
           "case $last in *.2) read s; printf '%%s\\n%%s\\n' $TWINSPEED_LAUNCHER $s >%s.new; mv %s.new %s; "
           "while [ ! -e %s ]; do sleep 0.05; done; exit 1 ;; esac",
           stolen, stolen, stolen, stop);
  two_hosts = "127.0.0.2 slots=7\n127.0.0.3 slots=1\n";
  running job = launch(write_shell("shell", first), "echo text; sleep 20");
  two_hosts = addresses;
  for (int tries = 0; tries < 1000 && access(stolen, R_OK) != 0; tries++) usleep(20000);
  FILE *file = fopen(stolen, "r");
  ck_assert(file && fgets(name, sizeof name, file) && fgets(secret, sizeof secret, file));
  fclose(file);
  name[strcspn(name, "\n")] = secret[strcspn(secret, "\n")] = '\0';
  ck_assert(tws_secret_read(secret, bytes));
  for (int kind = 0; kind < FALSE_RANKS; kind++) be_false_rank(name, bytes, kind);
  write_text(stop, "");
  command_result r = finish(job);
  ck_assert_msg(r.status == 5 && strstr(r.err, "rank 0 ended "), "status %d: %s", r.status, r.err);
  ck_assert_int_eq(count_lines_with(r.err, "twinspeed: "), 1);
  ck_assert_int_eq(count_lines_with(r.out, "good\n"), FALSE_RANKS);
  ck_assert_int_le(count_lines_with(r.out, "text\n"), 1); /* the false output of the last rank, if it has started */
  command_free(&r);
}
END_TEST

/* Output is complete even if its reader starts late; output that cannot be written is lost, and the exit status says
 * so. */
START_TEST(readers) {
  const char *shell = write_shell("shell", ":");
  int ends[2], count = 0;
  char text[4096];
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  running job = launch_to(ends[1], shell, "seq 100000");
  close(ends[1]);
  usleep(1500000);
  for (ssize_t got; (got = read(ends[0], text, sizeof text)) > 0;)
    for (ssize_t i = 0; i < got; i++) count += text[i] == '\n';
  close(ends[0]);
  job.out = command_scratch();
  command_result r = finish(job);
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
  ck_assert_int_eq(count, 200000);
  command_free(&r);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  r = finish(launch_to(full, shell, "echo text"));
  ck_assert_msg(r.status == 4 && strstr(r.err, "not all that the ranks printed was written: No space left on device"),
                "status %d: %s", r.status, r.err);
  command_free(&r);
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  r = finish(launch_to(ends[1], shell, "echo text"));
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err); /* it wants no more */
  command_free(&r);
}
END_TEST

/* srun gives its standard input to every task: the ranks receive the secret from it, and it is in no environment and on
 * no command line. */
START_TEST(through_srun) {
  write_text(in_folder("srun"),
             "#!/bin/sh\n"
             "env >$0.env; echo \"$@\" >$0.words; read secret; echo $secret >$0.secret\n"
             "while [ $# -gt 0 ]; do case $1 in --*) shift ;; *) break ;; esac; done\n"
             "for task in 0 1; do echo $secret | SLURM_PROCID=$task \"$@\" & done; wait\n");
  chmod(in_folder("srun"), 0755);
  char path[8192], before[4096], line[1024];
  snprintf(before, sizeof before, "%s", getenv("PATH"));
  snprintf(path, sizeof path, "%s:%s", folder, before);
  setenv("PATH", path, 1);
  setenv("SLURM_JOB_NODELIST", "localhost", 1);
  setenv("SLURM_TASKS_PER_NODE", "2", 1);
  command_result r = twinspeed("launch -q --launcher srun -- sh -c 'echo rank $RANK; env | grep -c SECRET; true'");
  setenv("PATH", before, 1);
  unsetenv("SLURM_JOB_NODELIST");
  unsetenv("SLURM_TASKS_PER_NODE");
  ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
  ck_assert(strstr(r.out, "rank 0\n") && strstr(r.out, "rank 1\n"));
  ck_assert_int_eq(count_lines_with(r.out, "0\n"), 2); /* no command finds it */
  command_free(&r);
  char secret[TWS_SECRET_TEXT + 2] = "";
  FILE *file = fopen(in_folder("srun.secret"), "r");
  ck_assert(file && fgets(secret, sizeof secret, file));
  secret[strcspn(secret, "\n")] = '\0';
  ck_assert_uint_eq(strlen(secret), TWS_SECRET_TEXT);
  fclose(file);
  static const char *const names[] = {"srun.env", "srun.words"};
  for (int i = 0; i < 2; i++) {
    file = fopen(in_folder(names[i]), "r");
    while (file && fgets(line, sizeof line, file)) ck_assert_msg(!strstr(line, secret), "%s: %s", names[i], line);
    if (file) fclose(file);
  }
}
END_TEST

/* A build without libsodium refuses jobs on several machines. */
START_TEST(refused) {
  command_result r = finish(launch(write_shell("shell", ":"), "echo text"));
  assert_one_error(&r, 4, "without libsodium");
  ck_assert_msg(strstr(r.err, "ranks on several machines need libsodium") != NULL, "%s", r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("strangers");
  TCase *tests = tcase_create("strangers");
  tcase_set_timeout(tests, 180);
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  signal(SIGPIPE, SIG_IGN);
  tcase_add_loop_test(tests, on_this_machine, 0, 2);
  tcase_add_test(tests, one_file);
  if (tws_seal_available()) {
    tcase_add_loop_test(tests, through_the_network, 0, 2);
    tcase_add_loop_test(tests, interfaces, 0, 2);
    tcase_add_loop_test(tests, ranks_without_the_secret, 0, 2);
    tcase_add_loop_test(tests, false_launchers, 0, 4);
    tcase_add_test(tests, false_ranks);
    tcase_add_test(tests, readers);
    tcase_add_test(tests, through_srun);
  } else {
    tcase_add_test(tests, refused);
  }
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
