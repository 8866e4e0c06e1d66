/* Describes the device. Clocks, limits and the driver's version come from the driver's management library (NVML), if it
 * is installed; it is loaded at run time, so that its absence costs only these values. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include "real/cuda/internal.h"
#include "real/cuda/module.h"

/* The part of NVML's C interface that is used here: 0 is success, clocks are in MHz, limits in milliwatts. */
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, DRIVER_TEXT = 80 };
typedef struct management {
  int (*init)(void);
  int (*shutdown)(void);
  int (*driver_version)(char *text, unsigned length);
  int (*device_by_bus)(const char *bus, void **device);
  int (*clock)(void *device, int type, unsigned *mhz);
  int (*clock_limit)(void *device, int type, unsigned *mhz);
  int (*power_limit)(void *device, unsigned *milliwatts);
} management;

static int find(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

static int load(void *library, management *m) {
  return library && find(library, "nvmlInit_v2", &m->init) && find(library, "nvmlShutdown", &m->shutdown) &&
         find(library, "nvmlSystemGetDriverVersion", &m->driver_version) &&
         find(library, "nvmlDeviceGetHandleByPciBusId_v2", &m->device_by_bus) &&
         find(library, "nvmlDeviceGetClockInfo", &m->clock) &&
         find(library, "nvmlDeviceGetMaxClockInfo", &m->clock_limit) &&
         find(library, "nvmlDeviceGetPowerManagementLimit", &m->power_limit);
}

static int ask_clock(int (*ask)(void *, int, unsigned *), void *device, int type) {
  unsigned mhz = 0;
  return ask(device, type, &mhz) == 0 ? (int)mhz : 0;
}

static void ask_management(const char *bus, tws_cuda_device *out) {
  management m;
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *device = NULL;
  if (load(library, &m) && m.init() == 0) {
    char driver[DRIVER_TEXT] = "";
    unsigned milliwatts = 0;
    if (m.driver_version(driver, sizeof driver) == 0) snprintf(out->driver, sizeof out->driver, "%.40s", driver);
    if (m.device_by_bus(bus, &device) == 0) {
      out->sm_mhz = ask_clock(m.clock, device, CLOCK_SM);
      out->sm_limit_mhz = ask_clock(m.clock_limit, device, CLOCK_SM);
      out->memory_mhz = ask_clock(m.clock, device, CLOCK_MEMORY);
      if (m.power_limit(device, &milliwatts) == 0) out->power_limit_w = (int)(milliwatts / 1000);
    }
    m.shutdown();
  }
  if (library) dlclose(library);
}

tws_code tws_cuda_device_now(tws_cuda_device *out, tws_error *err) {
  struct cudaDeviceProp properties;
  int device = 0;
  *out = (tws_cuda_device){0};
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "looking at the device");
  snprintf(out->name, sizeof out->name, "%.90s", properties.name);
  out->multiprocessors = properties.multiProcessorCount;
  out->l2_bytes = (uint64_t)(properties.l2CacheSize > 0 ? properties.l2CacheSize : 0);
  int nccl = 0;
  if (ncclGetVersion(&nccl) == ncclSuccess) out->nccl = nccl;
  char bus[32];
  snprintf(bus, sizeof bus, "%08x:%02x:%02x.0", (unsigned)properties.pciDomainID, (unsigned)properties.pciBusID,
           (unsigned)properties.pciDeviceID);
  snprintf(out->bus, sizeof out->bus, "%04x:%02x:%02x.0", (unsigned)properties.pciDomainID & 0xffff,
           (unsigned)properties.pciBusID & 0xff, (unsigned)properties.pciDeviceID & 0xff);
  ask_management(bus, out);
  return TWS_OK;
}
