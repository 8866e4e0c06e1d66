/* Built-in hardware profiles: published peak rates, and constants fitted to published runs; docs/profiles.md has the
 * sources. memory_bytes is what CUDA reports to a program, which is less than the advertised size. */
#include <string.h>
#include "models/hardware/devices.h"
#include "models/hardware/profile_internal.h"

#define GPU_AT(share, more, name, generation, source, memory, overhead, peaks, bandwidth, processors, efficiency,    \
               attention)                                                                                            \
  "{\"schema\":\"twinspeed-profile-1\",\"name\":\"" name "\",\"provenance\":\"" source                               \
  "\",\"backend\":\"cuda\",\"generation\":\"" generation                                                             \
  "\""                                                                                                               \
  ",\"memory_bytes\":" memory ",\"overhead_bytes\":" overhead ",\"peak_flops\":{" peaks "},\"bandwidth\":" bandwidth \
  ",\"bandwidth_efficiency\":" share ",\"launch_s\":1.6e-6,\"matmul\":{\"efficiency\":" efficiency                   \
  ",\"tile_overhead_s\":1.65e-6,\"multiprocessors\":" processors                                                     \
  ",\"misaligned\":0.41}"                                                                                            \
  ",\"attention\":{\"efficiency\":" attention ",\"half_length\":1625,\"backward\":0.84}" more "}"
#define GPU_WITH(more, ...) GPU_AT("0.76", more, __VA_ARGS__)
#define GPU(...) GPU_AT("0.76", "", __VA_ARGS__)
#define V100(...) GPU_AT("0.83", "", __VA_ARGS__) /* 750 of 900 GB/s: Jia et al., 2018 */

/* Measurements of nccl-tests on one node of eight A100 with NVSwitch, out of place, as published with vTrain
 * (github.com/VIA-Research/vTrain, trace/a100). Reduce-scatter and all-gather are assumed to take half of an
 * all-reduce, as the two halves of a ring. */
#define COLLECTIVE(kind, ranks, samples) "{\"collective\":\"" kind "\",\"ranks\":" ranks ",\"samples\":[" samples "]}"
#define A100_WHOLE_2                                                                           \
  "[1048576,4.421e-05],[2097152,5.343e-05],[4194304,6.118e-05],[8388608,8.69e-05],[16777216,0" \
  ".0001319],[33554432,0.00023],[67108864,0.0004047],[134217728,0.0007636],[268435456,0.00145" \
  "58],[536870912,0.0028384],[1073741824,0.0054428]"
#define A100_WHOLE_4                                                                           \
  "[1048576,5.14e-05],[2097152,5.574e-05],[4194304,7.732e-05],[8388608,0.0001168],[16777216,0" \
  ".0001796],[33554432,0.0002842],[67108864,0.0005438],[134217728,0.0009986],[268435456,0.001" \
  "929],[536870912,0.00372],[1073741824,0.0072594]"
#define A100_WHOLE_8                                                                           \
  "[1048576,9.279e-05],[2097152,9.325e-05],[4194304,9.58e-05],[8388608,0.0001343],[16777216,0" \
  ".0002324],[33554432,0.0003581],[67108864,0.0005799],[134217728,0.001162],[268435456,0.0021" \
  "623],[536870912,0.0041915],[1073741824,0.008193]"
#define A100_HALF_2                                                                            \
  "[1048576,2.2105e-05],[2097152,2.6715e-05],[4194304,3.059e-05],[8388608,4.345e-05],[1677721" \
  "6,6.595e-05],[33554432,0.000115],[67108864,0.00020235],[134217728,0.0003818],[268435456,0." \
  "0007279],[536870912,0.0014192],[1073741824,0.0027214]"
#define A100_HALF_4                                                                            \
  "[1048576,2.57e-05],[2097152,2.787e-05],[4194304,3.866e-05],[8388608,5.84e-05],[16777216,8." \
  "98e-05],[33554432,0.0001421],[67108864,0.0002719],[134217728,0.0004993],[268435456,0.00096" \
  "45],[536870912,0.00186],[1073741824,0.0036297]"
#define A100_HALF_8                                                                            \
  "[1048576,4.6395e-05],[2097152,4.6625e-05],[4194304,4.79e-05],[8388608,6.715e-05],[16777216" \
  ",0.0001162],[33554432,0.00017905],[67108864,0.00028995],[134217728,0.000581],[268435456,0." \
  "00108115],[536870912,0.00209575],[1073741824,0.0040965]"
#define A100_NVSWITCH \
  ",\"collectives\":[" COLLECTIVE("all_reduce", "2", A100_WHOLE_2) "," \
  COLLECTIVE("all_reduce", "4", A100_WHOLE_4) "," \
  COLLECTIVE("all_reduce", "8", A100_WHOLE_8) "," \
  COLLECTIVE("reduce_scatter", "2", A100_HALF_2) "," \
  COLLECTIVE("reduce_scatter", "4", A100_HALF_4) "," \
  COLLECTIVE("reduce_scatter", "8", A100_HALF_8) "," \
  COLLECTIVE("all_gather", "2", A100_HALF_2) "," \
  COLLECTIVE("all_gather", "4", A100_HALF_4) "," \
  COLLECTIVE("all_gather", "8", A100_HALF_8) "]"

/* Copies of one device in each direction alone, by nvbandwidth (stas00/ml-engineering, network/README.md). */
#define H200_COPIES ",\"host_copies\":[{\"ranks\":1,\"to_device\":55.43e9,\"to_host\":55.06e9}]"

#define V100_PEAKS "\"fp32\":15.7e12,\"fp16\":125e12,\"fp64\":7.8e12"
#define A100_PEAKS "\"fp32\":19.5e12,\"bf16\":312e12,\"fp16\":312e12,\"fp64\":9.7e12"
#define H100_PEAKS "\"fp32\":67e12,\"bf16\":989e12,\"fp16\":989e12,\"fp64\":34e12,\"fp8\":1979e12"
#define B200_PEAKS "\"fp32\":80e12,\"bf16\":2250e12,\"fp16\":2250e12,\"fp64\":40e12,\"fp8\":4500e12,\"fp4\":9000e12"
#define H100_PCIE_PEAKS "\"fp32\":51e12,\"bf16\":756e12,\"fp16\":756e12,\"fp64\":26e12,\"fp8\":1513e12"
#define GB200_PEAKS "\"fp32\":80e12,\"bf16\":2500e12,\"fp16\":2500e12,\"fp64\":40e12,\"fp8\":5000e12,\"fp4\":10000e12"
#define B300_PEAKS "\"fp32\":80e12,\"bf16\":2250e12,\"fp16\":2250e12,\"fp64\":40e12,\"fp8\":4500e12,\"fp4\":13500e12"
#define GB300_PEAKS "\"fp32\":80e12,\"bf16\":2500e12,\"fp16\":2500e12,\"fp64\":40e12,\"fp8\":5000e12,\"fp4\":15000e12"
#define DATASHEET(part) "NVIDIA " part " data sheet; efficiencies fitted to published training runs"
#define ASSUMED(part) "NVIDIA " part " data sheet; efficiencies assumed from A100's"
#define MEASURED(part) "NVIDIA " part " data sheet; efficiencies as A100's of CUDA 11"

static const struct {
  const char *name, *text;
} profiles[] = {
    {"v100-16gb", V100("v100-16gb", "volta", ASSUMED("V100 SXM2"), "16930000000", "1073741824", V100_PEAKS, "900e9",
                       "80", "0.72", "0.3")},
    {"v100-32gb", V100("v100-32gb", "volta", ASSUMED("V100 SXM2"), "34080000000", "1073741824", V100_PEAKS, "900e9",
                       "80", "0.72", "0.3")},
    {"v100-sxm3-32gb", V100("v100-sxm3-32gb", "volta", MEASURED("V100 SXM3"), "34080000000", "1073741824", V100_PEAKS,
                            "900e9", "80", "0.88", "0.3")},
    {"a100-40gb", GPU("a100-40gb", "ampere", DATASHEET("A100 SXM4"), "42290000000", "1073741824", A100_PEAKS, "1555e9",
                      "108", "0.88", "0.44")},
    {"a100-80gb", GPU("a100-80gb", "ampere", DATASHEET("A100 SXM4"), "84990000000", "1073741824", A100_PEAKS, "2039e9",
                      "108", "0.88", "0.44")},
    /* a100-40gb with measured collectives over NVSwitch, which are slower than the formulas predict from the links */
    {"a100-40gb-nccl",
     GPU_WITH(A100_NVSWITCH, "a100-40gb-nccl", "ampere", DATASHEET("A100 SXM4") "; nccl-tests on eight", "42290000000",
              "1073741824", A100_PEAKS, "1555e9", "108", "0.88", "0.44")},
    {"a100-80gb-nccl",
     GPU_WITH(A100_NVSWITCH, "a100-80gb-nccl", "ampere", DATASHEET("A100 SXM4") "; nccl-tests on eight", "84990000000",
              "1073741824", A100_PEAKS, "2039e9", "108", "0.88", "0.44")},
    {"h100-sxm", GPU("h100-sxm", "hopper", DATASHEET("H100 SXM5"), "84930000000", "1610612736", H100_PEAKS, "3350e9",
                     "132", "0.80", "0.375")},
    {"h200", GPU_WITH(H200_COPIES, "h200", "hopper", DATASHEET("H200 SXM"), "150000000000", "1610612736", H100_PEAKS,
                      "4800e9", "132", "0.80", "0.375")},
    {"b200", GPU("b200", "blackwell", DATASHEET("B200 SXM"), "191500000000", "1610612736", B200_PEAKS, "8000e9", "148",
                 "0.65", "0.58")},
    /* The 500 W part named in torchtitan's runs, with 96 GB of HBM2e. Its clocks under load are 0.75 of those of the
     * 700 W part. */
    {"h100-96gb-500w", GPU("h100-96gb-500w", "hopper", DATASHEET("H100, 96 GB HBM2e, 500 W (torchtitan, 2024-12)"),
                           "100900000000", "1610612736", H100_PEAKS, "2400e9", "132", "0.60", "0.28")},
    {"h100-pcie", GPU("h100-pcie", "hopper", DATASHEET("H100 PCIe"), "84930000000", "1610612736", H100_PCIE_PEAKS,
                      "2000e9", "114", "0.80", "0.375")},
    {"gb200", GPU("gb200", "blackwell", DATASHEET("GB200 NVL72"), "197000000000", "1610612736", GB200_PEAKS, "8000e9",
                  "148", "0.65", "0.58")},
    {"b300", GPU("b300", "blackwell", DATASHEET("B300"), "288000000000", "1610612736", B300_PEAKS, "8000e9", "148",
                 "0.73", "0.58")},
    {"gb300", GPU("gb300", "blackwell", DATASHEET("GB300 NVL72"), "288000000000", "1610612736", GB300_PEAKS, "8000e9",
                  "148", "0.73,\"fp4_efficiency\":0.55", "0.58")},
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

tws_code tws_profile_open(const char *spec, tws_json **out, tws_error *err) {
  const char *text = tws_profile_builtin(spec);
  const tws_device *device = text ? NULL : tws_device_find(spec);
  if (text) return tws_json_parse(text, strlen(text), spec, out, err);
  if (!device) return tws_json_read(spec, out, err);
  cJSON *root = tws_device_profile(device);
  char *made = root ? cJSON_PrintUnformatted(root) : NULL;
  const tws_code code =
      made ? tws_json_parse(made, strlen(made), spec, out, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  cJSON_free(made);
  cJSON_Delete(root);
  return code;
}

tws_code tws_profile_builtin_text(const char *name, tws_text *out, tws_error *err) {
  const tws_device *device = tws_device_find(name);
  tws_json *json;
  if (!tws_profile_builtin(name) && !device) return tws_profile_unknown(name, "", err);
  TWS_TRY(tws_profile_open(name, &json, err));
  char *text = !device || tws_device_add_figures(device, json->root) ? cJSON_Print(json->root) : NULL;
  if (text) tws_text_add(out, "%s\n", text);
  const int good = text && !out->failed;
  cJSON_free(text);
  tws_json_destroy(json);
  return good ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
}

const char *const *tws_profile_builtin_names(void) {
  static const char *const names[] = {
      "v100-16gb", "v100-32gb",      "v100-sxm3-32gb", "a100-40gb", "a100-80gb", "a100-40gb-nccl", "a100-80gb-nccl",
      "h100-sxm",  "h100-96gb-500w", "h200",           "host",
#define DEVICE(profile, name, vendor, architecture, memory, generation, parts, link, pcie, doubt) profile,
#define S(key, value, sources)
#define R(key, value)
#define D(key, value)
#define END
#include "models/hardware/devices.def"
#undef DEVICE
#undef S
#undef R
#undef D
#undef END
      NULL};
  return names;
}

tws_code tws_profile_unknown(const char *spec, const char *or_file, tws_error *err) {
  const char *const *names = tws_profile_builtin_names();
  size_t count = 0;
  while (names[count] != NULL) count++;
  char hint[sizeof err->hint];
  tws_names_hint(spec, names, count, "built in:", "twinspeed convert list profiles", hint, sizeof hint);
  return tws_fail(
      err, TWS_INVALID, hint,
      *or_file ? "\"%.200s\" is neither a built-in hardware profile%s" : "\"%.200s\" is no built-in hardware profile%s",
      spec, or_file);
}
