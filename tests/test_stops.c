/* ctest: mpi alone */
/* Processes are stopped (SIGSTOP) at random times of a training: while it starts, steps, saves, evaluates and ends;
 * one, two and four ranks, here and on several machines that are names of this one. Each job ends with status 124
 * within its deadline and five seconds, names the stopped ranks and no other, and leaves nothing. TWS_STOPS=300 runs
 * that many situations in place of thirty, TWS_STOPS_SEED others. Under the sanitizers `make check` runs half of them. */
#include <check.h>
#include "running_job.h"
#include "sample.h"

enum { BEFORE = 3, TOGETHER = 8, TRIES = 12 };
static const double deadline_s = 2.0, slack_s = 5.0;

typedef enum moment { START, STEP, SAVE, EVALUATION, END, MOMENTS } moment;
static const char *const moments[] = {"start", "step", "save", "evaluation", "end"};

typedef struct situation {
  int number, ranks, far, all, tries;
  moment when;
  double delay_s;
  int victim;
  enum { WAITING, STARTED, DUE, STOPPED, ENDED } state;
  running_job job;
  unsigned stopped; /* a bit a rank */
  int status;
  double due_s, stopped_s, ended_s, late_s; /* late_s: seconds for which this process could not check */
  char save[96];
} situation;

static char shell_path[96], hosts_path[2][96];
static int seed = 20260727;

static double draw_at(const situation *s, int what) {
  return tws_random_uniform((uint64_t)seed, (uint64_t)(what + 16 * s->tries), (uint64_t)s->number);
}

static void choose(situation *s, int number) {
  static const int ranks[] = {2, 4, 1, 2, 4, 2};
  *s = (situation){.number = number, .when = (moment)(number % MOMENTS), .ranks = ranks[number / MOMENTS % 6]};
  s->far = s->ranks > 1 && number % 4 == 3;
  s->all = number % 7 == 6;
  snprintf(s->save, sizeof s->save, "%s/save%d", folder, number);
}

/* ---- a job ---- */

static void start(situation *s) {
  static const char *const more[] = {"", "", "--save %s --save-every 1 --keep 2", "--eval-data %s --eval-every 1",
                                     "--save %s"};
  char line[2048], where[256], text[256], name[32];
  const int steps = s->when == END ? 30 : 1000000;
  s->victim = (int)(draw_at(s, 1) * s->ranks) % s->ranks;
  s->delay_s = draw_at(s, 2) * (s->when == START ? 0.6 : s->when == END ? 0.03 : 0.5);
  snprintf(where, sizeof where, "-n %d", s->ranks);
  if (s->far) snprintf(where, sizeof where, "--hostfile %s --remote-shell %s", hosts_path[s->ranks > 2], shell_path);
  snprintf(text, sizeof text, more[s->when], s->when == EVALUATION ? text_path : s->save);
  snprintf(line, sizeof line, RUNNING_TRAIN "--steps %d --deadline %g --force %s %s", folder, text_path, steps,
           deadline_s, where, text);
  s->state = STARTED;
  s->stopped = 0;
  s->late_s = 0;
  snprintf(name, sizeof name, "situation%d", s->number);
  running_start(&s->job, name, s->ranks, line);
}

static int is_time(situation *s) {
  char path[160];
  if (s->when == START) {
    (void)running_find(&s->job);
    return s->job.rank[s->victim] > 0 && (!s->all || running_find(&s->job));
  }
  if (!running_find(&s->job) || !running_has_line(s->job.out, s->when == END ? "    30  " : "     2  ")) return 0;
  snprintf(path, sizeof path, "%s/latest", s->save);
  return s->when != SAVE || access(path, F_OK) == 0;
}

static void stop(situation *s) {
  (void)running_find(&s->job);
  for (int r = 0; r < s->ranks; r++) {
    if (!s->all && r != s->victim) continue;
    const char state = s->job.rank[r] > 0 ? tws_process_state(s->job.rank[r], NULL) : 0;
    if (state && state != 'Z' && kill(s->job.rank[r], SIGSTOP) == 0) s->stopped |= 1u << r;
  }
  s->stopped_s = tws_clock_s();
  s->state = STOPPED;
}

/* ---- what it says ---- */

/* Returns a bit for each rank of which the text says that it is, does or did something. */
static unsigned named_in(const char *text) {
  static const char *const verbs[] = {" is ", " does ", " did "};
  unsigned named = 0;
  for (const char *at = text; (at = strstr(at, "rank ")) != NULL; at += 5) {
    char *end;
    const long rank = strtol(at + 5, &end, 10);
    for (size_t i = 0; end > at + 5 && rank < 32 && i < sizeof verbs / sizeof *verbs; i++)
      if (strncmp(end, verbs[i], strlen(verbs[i])) == 0) named |= 1u << rank;
  }
  return named;
}

/* Returns 1 if the situation is to be repeated: it started too slowly while others ran, or its work had already
 * ended. */
static int missed(const situation *s) {
  return s->state != STOPPED || (s->when == END && s->status == 0);
}

typedef struct tally {
  int done, local, named, repeated, moments[MOMENTS];
  double longest_s;
  char failure[3000]; /* "": none */
} tally;

static void note_failure(tally *t, const situation *s, const char *what, const char *err) {
  if (!t->failure[0])
    snprintf(t->failure, sizeof t->failure,
             "situation %d (%s, %d ranks%s) %s: stopped %x, named %x, status %d, %.2f s: %.2000s", s->number,
             moments[s->when], s->ranks, s->far ? " on several machines" : "", what, s->stopped, named_in(err),
             s->status, s->ended_s - s->stopped_s, err);
}

/* 0: once more. */
static int judge(situation *s, tally *t) {
  char *err = running_errors(&s->job);
  const unsigned named = named_in(err);
  const double took = s->ended_s - s->stopped_s;
  const int again = missed(s) && s->tries < TRIES;
  s->tries++;
  t->repeated += again;
  if (!again) {
    if (getenv("TWS_STOPS"))
      printf("%d: %s, %d rank%s%s, stopped %x, named %x, status %d in %.2f s: %s\n", s->number, moments[s->when],
             s->ranks, s->ranks > 1 ? "s" : "", s->far ? " on several machines" : "", s->stopped, named, s->status,
             took, err);
    if (s->status != 124 || !s->stopped) note_failure(t, s, "ends otherwise", err);
    if (named & ~s->stopped) note_failure(t, s, "names another rank", err);
    if (took >= deadline_s + slack_s + s->late_s) note_failure(t, s, "takes too long", err);
    running_assert_gone(&s->job);
    t->done++;
    t->moments[s->when]++;
    t->local += !s->far;
    t->named += !s->far && (named & s->stopped) == s->stopped;
    t->longest_s = took > t->longest_s ? took : t->longest_s;
  }
  free(err);
  return !again;
}

/* ---- all of them ---- */

/* Takes the next step of one situation if it is due; returns 1 if the situation is over. */
static int advance(situation *s, tally *t) {
  if (s->state == STARTED && is_time(s)) {
    s->due_s = tws_clock_s() + s->delay_s;
    s->state = DUE;
  }
  if (s->state == DUE && tws_clock_s() >= s->due_s) stop(s);
  if (!running_has_ended(&s->job, &s->status)) {
    if (s->state != STOPPED || tws_clock_s() - s->stopped_s < 60) return 0;
    s->ended_s = tws_clock_s();
    note_failure(t, s, "hangs", "");
    return 0;
  }
  s->ended_s = tws_clock_s();
  s->state = judge(s, t) ? ENDED : WAITING;
  return 1;
}

/* Runs the situations of the numbers from 0 to most - 1; with `half` and TWS_SEED those of one number of each two. */
static void run_situations(int most, int half, tally *t) {
  situation *all = calloc((size_t)most, sizeof *all);
  int count = 0;
  for (int i = 0; i < most; i++)
    if (!half || takes((uint64_t)i, 2)) choose(&all[count++], i);
  for (double looked_s = tws_clock_s(); t->done < count && !t->failure[0];) {
    int before = 0, running = 0;
    const double passed = tws_clock_s() - looked_s;
    looked_s += passed;
    for (int i = 0; i < count; i++) {
      situation *s = &all[i];
      if (s->state == WAITING || s->state == ENDED) continue;
      if (passed > 0.1) s->late_s += passed;
      if (advance(s, t)) continue;
      running++;
      before += s->state != STOPPED;
    }
    for (int i = 0; i < count && before < BEFORE && running < TOGETHER; i++)
      if (all[i].state == WAITING) {
        start(&all[i]);
        before++;
        running++;
      }
    usleep(5000);
  }
  for (int i = 0; i < count; i++)
    if (all[i].state != WAITING && all[i].state != ENDED) running_kill(&all[i].job);
  free(all);
}

START_TEST(stopped_at_random_times) {
  const char *many = getenv("TWS_STOPS"), *other = getenv("TWS_STOPS_SEED");
  const int most = many ? atoi(many) : 30;
  tally t = {0};
  if (other) seed = atoi(other);
  run_situations(most, TWS_SANITIZED && !many, &t);
  ck_assert_msg(!t.failure[0], "%s", t.failure);
  printf("stops: %d situations (seed %d), %d repeated; %d of %d local ones name the stopped; the longest took %.2f s\n",
         t.done, seed, t.repeated, t.named, t.local, t.longest_s);
  ck_assert_int_ge(t.named * 100, t.local * 95);
}
END_TEST

static void make_files(void) {
  write_text(in_folder("model.json"), RUNNING_MODEL);
  snprintf(shell_path, sizeof shell_path, "%s/shell", folder);
  write_machines_shell(shell_path);
  for (int i = 0; i < 2; i++) {
    snprintf(hosts_path[i], sizeof hosts_path[i], "%s/hosts%d", folder, i);
    write_text(hosts_path[i], i ? "127.0.0.2 slots=1\n127.0.0.3 slots=1\n127.0.0.4 slots=1\n127.0.0.5 slots=1\n"
                                : "127.0.0.2 slots=1\n127.0.0.3 slots=1\n");
  }
}

int main(void) {
  Suite *suite = suite_create("stops");
  TCase *tests = tcase_create("stops");
  tcase_set_timeout(tests, getenv("TWS_STOPS") ? 7200 : 400);
  tcase_add_test(tests, stopped_at_random_times);
  suite_add_tcase(suite, tests);
  set_up();
  make_files();
  const int status = run_suite(suite);
  remove_folder();
  return status;
}
