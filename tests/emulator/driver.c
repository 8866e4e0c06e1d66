/* An emulated CUDA driver library, which only counts devices. Like the real library it starts a thread when it is
 * initialised; that thread must not receive the signals that the process waits for. */
#include <pthread.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDriverGetVersion(int *version);

static void *wait_for_ever(void *unused) {
  for (;;) pause();
  return unused;
}

int cuInit(unsigned flags) {
  static pthread_t thread;
  (void)flags;
  return thread ? 0 : pthread_create(&thread, NULL, wait_for_ever, NULL);
}

int cuDeviceGetCount(int *count) {
  *count = 1;
  return 0;
}

int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}
