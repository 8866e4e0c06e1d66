/* The emulated device's memory, streams and graphs, for what stands in for libraries. */
#ifndef TWS_TESTS_EMULATOR_RUNTIME_H
#define TWS_TESTS_EMULATOR_RUNTIME_H

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

/* Work of a stream: later, when the host waits for it, or as a node of the graph that the stream is being recorded
 * into. By the device's clock it takes so long after what it comes after, whatever else there is. */
cudaError_t emulated_submit(cudaStream_t stream, const std::function<void()> &work, double milliseconds = 1);
/* After whatever was submitted this way before, on any stream. */
cudaError_t emulated_submit_in_order(cudaStream_t stream, const std::function<void()> &work);
bool emulated_is_recorded(cudaStream_t stream);
/* Returns true if the bytes lie in one allocation of device memory. */
bool emulated_is_device(const void *address, size_t bytes);
uint32_t emulated_random();
/* Says what was wrong and ends the program: on a GPU this would be an error, a hang or a wrong result. */
[[noreturn]] void emulated_refuse(const char *what);

#endif
