/* Built-in hardware profiles: published peak rates and constants fitted to published runs; docs/profiles.md has the
 * sources. memory_bytes is what CUDA reports to a program, below the size on the box. */
#include <string.h>
#include "models/hardware/profile_internal.h"

#define GPU(name, generation, source, memory, overhead, peaks, bandwidth, processors, efficiency, attention)         \
  "{\"schema\":\"twinspeed-profile-1\",\"name\":\"" name "\",\"provenance\":\"" source                               \
  "\",\"backend\":\"cuda\",\"generation\":\"" generation                                                             \
  "\""                                                                                                               \
  ",\"memory_bytes\":" memory ",\"overhead_bytes\":" overhead ",\"peak_flops\":{" peaks "},\"bandwidth\":" bandwidth \
  ",\"bandwidth_efficiency\":0.76,\"launch_s\":1.6e-6,\"matmul\":{\"efficiency\":" efficiency                        \
  ",\"tile_overhead_s\":1.65e-6,\"multiprocessors\":" processors                                                     \
  ",\"misaligned\":0.41}"                                                                                            \
  ",\"attention\":{\"efficiency\":" attention ",\"half_length\":1625,\"backward\":0.84}}"

#define V100_PEAKS "\"fp32\":15.7e12,\"fp16\":125e12,\"fp64\":7.8e12"
#define A100_PEAKS "\"fp32\":19.5e12,\"bf16\":312e12,\"fp16\":312e12,\"fp64\":9.7e12"
#define H100_PEAKS "\"fp32\":67e12,\"bf16\":989e12,\"fp16\":989e12,\"fp64\":34e12,\"fp8\":1979e12"
#define B200_PEAKS "\"fp32\":80e12,\"bf16\":2250e12,\"fp16\":2250e12,\"fp64\":40e12,\"fp8\":4500e12"
#define H100_PCIE_PEAKS "\"fp32\":51e12,\"bf16\":756e12,\"fp16\":756e12,\"fp64\":26e12,\"fp8\":1513e12"
#define GB200_PEAKS "\"fp32\":80e12,\"bf16\":2500e12,\"fp16\":2500e12,\"fp64\":40e12,\"fp8\":5000e12"
#define DATASHEET(part) "NVIDIA " part " data sheet; efficiencies fitted to published training runs"
#define ASSUMED(part) "NVIDIA " part " data sheet; efficiencies assumed from A100's"
#define MEASURED(part) \
  "NVIDIA " part " data sheet; products after Markidis et al., 2018 (83 TFLOP/s), the rest as A100's"

static const struct {
  const char *name, *text;
} profiles[] = {
    {"v100-16gb", GPU("v100-16gb", "volta", ASSUMED("V100 SXM2"), "16930000000", "1073741824", V100_PEAKS, "900e9",
                      "80", "0.72", "0.3")},
    {"v100-32gb", GPU("v100-32gb", "volta", ASSUMED("V100 SXM2"), "34080000000", "1073741824", V100_PEAKS, "900e9",
                      "80", "0.72", "0.3")},
    {"v100-sxm3-32gb", GPU("v100-sxm3-32gb", "volta", MEASURED("V100 SXM3"), "34080000000", "1073741824", V100_PEAKS,
                           "900e9", "80", "0.80", "0.3")},
    {"a100-40gb", GPU("a100-40gb", "ampere", DATASHEET("A100 SXM4"), "42290000000", "1073741824", A100_PEAKS, "1555e9",
                      "108", "0.80", "0.44")},
    {"a100-80gb", GPU("a100-80gb", "ampere", DATASHEET("A100 SXM4"), "84990000000", "1073741824", A100_PEAKS, "2039e9",
                      "108", "0.80", "0.44")},
    {"h100-sxm", GPU("h100-sxm", "hopper", DATASHEET("H100 SXM5"), "84930000000", "1610612736", H100_PEAKS, "3350e9",
                     "132", "0.80", "0.375")},
    {"h200", GPU("h200", "hopper", DATASHEET("H200 SXM"), "150000000000", "1610612736", H100_PEAKS, "4800e9", "132",
                 "0.80", "0.375")},
    {"b200", GPU("b200", "blackwell", DATASHEET("B200 SXM"), "191500000000", "1610612736", B200_PEAKS, "8000e9", "148",
                 "0.65", "0.58")},
    /* The part of 500 W that torchtitan's runs name: 96 GB of HBM2e; its clocks under load are 0.75 of the 700 W
       part's. */
    {"h100-96gb-500w", GPU("h100-96gb-500w", "hopper", DATASHEET("H100, 96 GB HBM2e, 500 W (torchtitan, 2024-12)"),
                           "100900000000", "1610612736", H100_PEAKS, "2400e9", "132", "0.60", "0.28")},
    {"h100-pcie", GPU("h100-pcie", "hopper", DATASHEET("H100 PCIe"), "84930000000", "1610612736", H100_PCIE_PEAKS,
                      "2000e9", "114", "0.80", "0.375")},
    {"gb200", GPU("gb200", "blackwell", DATASHEET("GB200 NVL72"), "197000000000", "1610612736", GB200_PEAKS, "8000e9",
                  "148", "0.65", "0.58")},
    {"b300", GPU("b300", "blackwell", DATASHEET("B300"), "288000000000", "1610612736", B200_PEAKS, "8000e9", "148",
                 "0.73", "0.58")},
    {"gb300", GPU("gb300", "blackwell", DATASHEET("GB300 NVL72"), "288000000000", "1610612736", GB200_PEAKS, "8000e9",
                  "148", "0.73", "0.58")},
    {"host",
     "{\"schema\":\"twinspeed-profile-1\",\"name\":\"host\",\"provenance\":\"conservative figures for any x86-64 "
     "machine; run calibrate for this one\",\"backend\":\"host\",\"cores\":2,\"memory_bytes\":8589934592"
     ",\"overhead_bytes\":67108864,\"peak_flops\":{\"fp32\":50e9},\"bandwidth\":8e9,\"node_bandwidth\":16e9"
     ",\"launch_s\":1e-6,\"matmul\":{\"efficiency\":0.9},\"attention\":{\"efficiency\":0.4,\"half_length\":32"
     ",\"backward\":0.9}}"},
};
enum { PROFILES = sizeof profiles / sizeof profiles[0] };

const char *tws_profile_builtin(const char *name) {
  for (int i = 0; i < PROFILES; i++) {
    if (strcmp(profiles[i].name, name) == 0) return profiles[i].text;
  }
  return NULL;
}

const char *const *tws_profile_builtin_names(void) {
  static const char *const names[] = {"v100-16gb", "v100-32gb", "v100-sxm3-32gb", "a100-40gb", "a100-80gb",
                                      "h100-sxm",  "h100-pcie", "h100-96gb-500w", "h200",      "b200",
                                      "gb200",     "b300",      "gb300",          "host",      NULL};
  return names;
}
