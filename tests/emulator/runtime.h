/* The emulated device's memory, streams and graphs, for the emulated libraries (cuBLASLt, NCCL). */
#ifndef TWS_TESTS_EMULATOR_RUNTIME_H
#define TWS_TESTS_EMULATOR_RUNTIME_H

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

/* Submits work to a stream: the work runs later, when the host waits for the stream, or becomes a node of the graph
 * that the stream is being recorded into. On the device's clock it takes `milliseconds` after the works that it depends
 * on, whatever else runs. */
cudaError_t emulated_submit(cudaStream_t stream, const std::function<void()> &work, double milliseconds = 1);
/* Submits work that also runs after all work that was submitted by this function before, on any stream. */
cudaError_t emulated_submit_in_order(cudaStream_t stream, const std::function<void()> &work);
bool emulated_is_recorded(cudaStream_t stream);
/* Returns true if the bytes lie in one allocation of device memory. */
bool emulated_is_device(const void *address, size_t bytes);
uint32_t emulated_random();
/* Prints what was wrong and ends the program: on a GPU the same call would be an error, a hang or a wrong result. */
[[noreturn]] void emulated_refuse(const char *what);

#endif
