#include "cli/signals.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "base/unfinished.h"
#include "cli/cli.h"

/* asked: SIGTERM has arrived; listens: SIGTERM requests a stop, and does not end the process. Both are global because
 * handlers receive no arguments. */
static volatile sig_atomic_t asked, listens;

/* Functions that run in a signal handler and end the process. Before a call that does not return, AddressSanitizer's
 * checks allocate memory, and the interrupted code may hold the allocator's lock: the process would wait for itself. */
#define IN_HANDLER __attribute__((no_sanitize("address")))

/* Prints a message and exits with the status that a shell reports for the signal. */
IN_HANDLER static void end_by_signal(int number) {
  static const char interrupted[] = "twinspeed: interrupted\n", ended[] = "twinspeed: asked to end\n";
  const int asks = number == SIGTERM;
  tws_unfinished_remove();
  if (tws_progress_lines && write(STDERR_FILENO, "\n", 1) < 0) _exit(128); /* the message gets a line of its own */
  if (write(STDERR_FILENO, asks ? ended : interrupted, (asks ? sizeof ended : sizeof interrupted) - 1) < 0) _exit(128);
  _exit(128 + number);
}

/* Ends the process by the default action of the signal: in ranks, whose end is reported by the process that started
 * them, and for SIGQUIT. */
static void end_now(int number) {
  tws_unfinished_remove();
  signal(number, SIG_DFL);
  raise(number);
}

IN_HANDLER static void note_end(int number) {
  (void)number;
  if (asked) {
    tws_unfinished_remove();
    _exit(128 + SIGTERM);
  }
  asked = 1;
}

/* Installs a handler, which runs on its own stack: oneDNN's kernels move the stack pointer into memory that they
 * allocated, and a frame there would overwrite data below it. */
static void listen_to(int number, void (*handler)(int), int flags) {
  static _Alignas(64) char memory[64 << 10];
  const stack_t own = {.ss_sp = memory, .ss_size = sizeof memory};
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | flags}, before;
  sigemptyset(&action.sa_mask);
  sigaltstack(&own, NULL);
  if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(number, &action, NULL);
}

void tws_catch_signals(int is_rank) {
  static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (ends[i] != SIGTERM || !listens) listen_to(ends[i], is_rank ? end_now : end_by_signal, (int)SA_NODEFER);
  listen_to(SIGQUIT, end_now, (int)SA_NODEFER);
  signal(SIGCHLD, SIG_DFL); /* a parent that ignores SIGCHLD would hide the exit status of child processes */
  signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is then an error of write() */
  signal(SIGPIPE, SIG_IGN); /* a reader may close the pipe: see tws_flush_output() */
}

void tws_listen_for_end(void) {
  listens = 1;
  listen_to(SIGTERM, note_end, SA_RESTART);
}

int tws_asked_to_end(void) {
  return asked;
}
