/* Functions that the emulated device's module exports for tests, found with dlsym(): the dependencies among the works
 * that streams received. */
#ifndef TWS_TESTS_EMULATOR_TRACE_H
#define TWS_TESTS_EMULATOR_TRACE_H

/* on 1: from now on every work that streams receive is recorded; earlier records are deleted. */
typedef void (*emulated_trace_function)(int on);
/* How much was noted. */
typedef long (*emulated_traced_function)(void);
/* Sets the total milliseconds, on the device's clock, of all work that is submitted until the next call. */
typedef void (*emulated_work_function)(double milliseconds);
/* Returns the number of the recorded work at `index`, and in after[most] the numbers of the *count works that it waits
 * for. */
typedef long (*emulated_node_function)(long index, long *after, int most, int *count);

#endif
