/* Functions that the emulated device's module exports for tests, found with dlsym(): which work was started after
 * which. */
#ifndef TWS_TESTS_EMULATOR_TRACE_H
#define TWS_TESTS_EMULATOR_TRACE_H

/* From now on (1) all that streams are given is noted; what was noted before is forgotten. */
typedef void (*emulated_trace_function)(int on);
/* How much was noted. */
typedef long (*emulated_traced_function)(void);
/* All work that is started until the next call takes this time by the device's clock, in total. */
typedef void (*emulated_work_function)(double milliseconds);
/* The number of the noted work at `index`, and in after[most] the numbers of what it comes after: *count of them. */
typedef long (*emulated_node_function)(long index, long *after, int most, int *count);

#endif
