#include "models/hardware/devices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/hardware/profile_internal.h"

static const tws_device devices[] = {
#define DEVICE(profile, name, vendor, architecture, memory, generation, parts, link, pcie, doubt) \
  {                                                                                               \
    profile, name, vendor, architecture, memory, generation, parts, link, pcie, doubt, (const tws_figure[]) {
#define S(key, value, sources) {key, value, TWS_MARK_SOURCED, sources},
#define R(key, value) {key, value, TWS_MARK_RECALLED, ""},
#define D(key, value) {key, value, TWS_MARK_DERIVED, ""},
#define END                         \
  { NULL, 0, TWS_MARK_SOURCED, "" } \
  }                                 \
  }                                 \
  ,
#include "models/hardware/devices.def"
#undef DEVICE
#undef S
#undef R
#undef D
#undef END
};
enum { DEVICES = sizeof devices / sizeof *devices };

const tws_device *tws_device_nth(int i) {
  return i >= 0 && i < DEVICES ? &devices[i] : NULL;
}

const tws_device *tws_device_find(const char *profile) {
  for (int i = 0; i < DEVICES; i++)
    if (strcmp(devices[i].profile, profile) == 0) return &devices[i];
  return NULL;
}

static double figure_or(const tws_device *d, const char *key, double otherwise) {
  const double value = tws_figure_value(d->figures, key);
  return isnan(value) ? otherwise : value;
}

/* Ratio of the median rate of large matrix products to the best rate of a search over shapes. Both are published for
 * A100, H100 and B300, with ratios from 0.90 to 0.93. The result is bounded by the peak of the data sheet, which the
 * best product of some GeForce cards exceeds. */
#define OF_BEST 0.9

double tws_device_products(const tws_device *device, const char *type, const char **what) {
  static const char *const kinds[] = {"median", "large", "best"};
  for (int i = 0; i < 3; i++) {
    char key[48];
    snprintf(key, sizeof key, "products.%.8s.%s", type, kinds[i]);
    const double share = tws_figure_value(device->figures, key);
    if (isnan(share)) continue;
    *what = kinds[i];
    return i == 2 ? fmin(1, OF_BEST * share) : share;
  }
  *what = "";
  return 0;
}

/* ---- profiles ---- */

/* Computes the efficiencies of matrix products and attention of a device without measured products: those of another
 * device of the same generation, which were fitted to training runs, or else the profile's defaults. */
static void assumed_rates(const tws_device *d, double *products, double *attention) {
  static const struct {
    const char *chip;
    double products, attention;
  } fitted[] = {{"GA100", 0.88, 0.44}, {"hopper", 0.80, 0.375}, {"blackwell ultra", 0.73, 0.58}};
  *products = 0.80;
  *attention = strcmp(d->vendor, "nvidia") == 0 ? 0.44 : 0.40;
  for (size_t i = 0; i < sizeof fitted / sizeof *fitted; i++)
    if (strstr(d->architecture, fitted[i].chip)) {
      *products = fitted[i].products;
      *attention = fitted[i].attention;
    }
}

/* Returns the device memory that CUDA reports: 0.99 of nvidia-smi's total, the median ratio of the devices for which
 * both are known. */
static double memory_bytes(const tws_device *d) {
  const double each = tws_figure_value(d->figures, "per_device_cuda_total_mib");
  if (!isnan(each)) return floor(each * 1048576);
  const double cuda = tws_figure_value(d->figures, "cuda_total_mib"),
               smi = tws_figure_value(d->figures, "reported_mib"), gib = tws_figure_value(d->figures, "hbm_gib");
  const double whole = !isnan(cuda)  ? cuda * 1048576
                       : !isnan(smi) ? smi * 1048576 * 0.99
                       : !isnan(gib) ? gib * 1073741824
                                     : figure_or(d, "hbm_gb", 0) * 1e9;
  return floor(whole / d->parts);
}

static int is_gpu(const tws_device *d) {
  return strcmp(d->vendor, "nvidia") == 0 || strcmp(d->vendor, "amd") == 0;
}

static int multiprocessors_of(const tws_device *d) {
  const double each = tws_figure_value(d->figures, "per_device_sms");
  return !is_gpu(d) ? 0 : (int)(!isnan(each) ? each : figure_or(d, "sms", 0) / d->parts);
}

/* Adds the peak rates. Without a published rate, float32 is 1/6 of the 16-bit rate, because six 16-bit products make
 * one float32 product. */
static void add_peaks(const tws_device *d, cJSON *root) {
  static const char *const types[] = {"fp32", "bf16", "fp16", "fp8", "fp4"};
  cJSON *peaks = cJSON_AddObjectToObject(root, "peak_flops");
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char key[16];
    snprintf(key, sizeof key, "peak.%s", types[i]);
    double peak = tws_figure_value(d->figures, key);
    if (isnan(peak) && i == 0) peak = figure_or(d, "peak.bf16", 0) / 6;
    if (!isnan(peak)) cJSON_AddNumberToObject(peaks, types[i], peak * 1e12 / d->parts);
  }
}

static void add_products(const tws_device *d, cJSON *root) {
  const char *what;
  const int multiprocessors = multiprocessors_of(d);
  /* factor by which the largest tile takes longer than its multiplications, by which a measured share is increased */
  const double shape = multiprocessors > 0 ? tws_profile_tiled(256, 128, TWS_TILE_FEED) : 1;
  const double measured = tws_device_products(d, "bf16", &what), fp8 = tws_device_products(d, "fp8", &what),
               fp4 = tws_device_products(d, "fp4", &what);
  double assumed, attention;
  assumed_rates(d, &assumed, &attention);
  cJSON *matmul = cJSON_AddObjectToObject(root, "matmul");
  cJSON_AddNumberToObject(matmul, "efficiency", measured > 0 ? fmin(1, measured * shape) : assumed);
  if (fp8 > 0) cJSON_AddNumberToObject(matmul, "fp8_efficiency", fmin(1, fp8 * shape));
  if (fp4 > 0) cJSON_AddNumberToObject(matmul, "fp4_efficiency", fmin(1, fp4 * shape));
  if (multiprocessors > 0) { /* a GPU with tensor cores also has the constants of the tile model */
    cJSON_AddNumberToObject(matmul, "tile_overhead_s", 1.65e-6);
    cJSON_AddNumberToObject(matmul, "multiprocessors", multiprocessors);
    cJSON_AddNumberToObject(matmul, "misaligned", 0.41);
  }
  cJSON *object = cJSON_AddObjectToObject(root, "attention");
  cJSON_AddNumberToObject(object, "efficiency", attention);
  cJSON_AddNumberToObject(object, "half_length", 1625);
  cJSON_AddNumberToObject(object, "backward", 0.84);
}

/* Adds the measured rates of copies between one device and its host, if they are published. */
static void add_copies(const tws_device *d, cJSON *root) {
  static const char *const rates[] = {"to_device", "to_host", "both_ways"};
  cJSON *one = NULL;
  for (int i = 0; i < 3; i++) {
    char key[48];
    snprintf(key, sizeof key, "copies.%s_GBps", rates[i]);
    const double rate = tws_figure_value(d->figures, key);
    if (isnan(rate)) continue;
    if (!one) {
      one = cJSON_CreateObject();
      cJSON_AddNumberToObject(one, "ranks", 1);
      cJSON_AddItemToArray(cJSON_AddArrayToObject(root, "host_copies"), one);
    }
    cJSON_AddNumberToObject(one, rates[i], rate * 1e9);
  }
}

static void provenance(const tws_device *d, char *text, size_t size) {
  const char *what;
  const double share = tws_device_products(d, "bf16", &what);
  size_t used = (size_t)snprintf(text, size, "published figures of %s%s; ", d->name,
                                 d->parts > 1 ? ", of one of its two devices" : "");
  if (strcmp(what, "best") == 0)
    used += (size_t)snprintf(text + used, size - used, "products %.3g of the peak: 0.9 of the best that was measured",
                             share);
  else if (share > 0)
    used +=
        (size_t)snprintf(text + used, size - used, "products %.3g of the peak: %s", share,
                         strcmp(what, "median") == 0 ? "the median of measured large ones" : "a measured large one");
  else
    used += (size_t)snprintf(text + used, size - used, "no product of it was measured");
  if (isnan(tws_figure_value(d->figures, "peak.fp32")))
    used += (size_t)snprintf(text + used, size - used, "; float32 is assumed at a sixth of bf16");
  snprintf(text + used, size - used, "; attention, memory's share and launches assumed from A100's");
}

cJSON *tws_device_profile(const tws_device *d) {
  const char *what;
  char text[320];
  cJSON *root = cJSON_CreateObject();
  if (!root) return NULL;
  provenance(d, text, sizeof text);
  cJSON_AddStringToObject(root, "schema", "twinspeed-profile-1");
  cJSON_AddStringToObject(root, "name", d->profile);
  cJSON_AddStringToObject(root, "provenance", text);
  cJSON_AddStringToObject(root, "rates", tws_device_products(d, "bf16", &what) > 0 ? "measured" : "data sheet");
  cJSON_AddStringToObject(root, "backend", strcmp(d->vendor, "nvidia") == 0 ? "cuda" : "other");
  cJSON_AddStringToObject(root, "generation", d->generation);
  cJSON_AddNumberToObject(root, "memory_bytes", memory_bytes(d));
  cJSON_AddNumberToObject(root, "overhead_bytes", strcmp(d->generation, "hopper") == 0 ? 1610612736 : 1073741824);
  add_peaks(d, root);
  cJSON_AddNumberToObject(root, "bandwidth", figure_or(d, "hbm_GBps", 0) * 1e9 / d->parts);
  cJSON_AddNumberToObject(root, "bandwidth_efficiency", 0.76);
  cJSON_AddNumberToObject(root, "launch_s", 1.6e-6);
  add_products(d, root);
  add_copies(d, root);
  return root;
}

int tws_device_add_figures(const tws_device *d, cJSON *profile) {
  cJSON *device = cJSON_AddObjectToObject(profile, "device");
  if (!device) return 0;
  cJSON_AddStringToObject(device, "name", d->name);
  cJSON_AddStringToObject(device, "vendor", d->vendor);
  cJSON_AddStringToObject(device, "architecture", d->architecture);
  cJSON_AddStringToObject(device, "memory", d->memory);
  if (*d->link) cJSON_AddStringToObject(device, "link", d->link);
  if (*d->pcie) cJSON_AddStringToObject(device, "pcie", d->pcie);
  if (*d->doubt) cJSON_AddStringToObject(device, "doubt", d->doubt);
  cJSON *figures = tws_figures_json(d->figures), *sources = tws_figures_sources_json(d->figures);
  const int added = cJSON_AddItemToObject(profile, "figures", figures);
  if (!added) cJSON_Delete(figures);
  if (cJSON_AddItemToObject(profile, "sources", sources)) return added;
  cJSON_Delete(sources);
  return 0;
}
