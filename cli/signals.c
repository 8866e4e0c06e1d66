#include "cli/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FILES = 8, PATH_SIZE = 1024 };

/* Handlers get nothing else. A slot is used while its flag is set, which is after its path is there. */
static volatile sig_atomic_t asked, listens;
static char paths[MOST_FILES][PATH_SIZE];
static atomic_int used[MOST_FILES];

static void remove_files(void) {
  for (int i = 0; i < MOST_FILES; i++)
    if (atomic_load(&used[i])) unlink(paths[i]);
}

static void end_now(int number) {
  remove_files();
  signal(number, SIG_DFL);
  raise(number);
}

static void note_end(int number) {
  (void)number;
  if (asked) {
    remove_files();
    _exit(128 + SIGTERM);
  }
  asked = 1;
}

/* The handler has a stack of its own: oneDNN's kernels move the stack pointer into memory that they allocated, and a
 * frame put there would overwrite what lies below. */
static void listen_to(int number, void (*handler)(int), int flags) {
  static _Alignas(64) char memory[64 << 10];
  const stack_t own = {.ss_sp = memory, .ss_size = sizeof memory};
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | flags}, before;
  sigemptyset(&action.sa_mask);
  sigaltstack(&own, NULL);
  if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(number, &action, NULL);
}

void tws_listen_for_end(void) {
  listens = 1;
  listen_to(SIGTERM, note_end, SA_RESTART);
}

int tws_asked_to_end(void) {
  return asked;
}

void tws_remove_on_signal(void *user, const char *path, int there) {
  static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  int slot = 0;
  (void)user;
  while (slot < MOST_FILES && (there ? atomic_load(&used[slot]) : strcmp(paths[slot], path) != 0)) slot++;
  if (slot == MOST_FILES || strlen(path) >= PATH_SIZE) return; /* the next start removes it */
  if (there) snprintf(paths[slot], PATH_SIZE, "%s", path);
  atomic_store(&used[slot], there);
  for (size_t i = 0; there && i < sizeof ends / sizeof *ends; i++)
    if (ends[i] != SIGTERM || !listens) listen_to(ends[i], end_now, (int)SA_NODEFER);
}
