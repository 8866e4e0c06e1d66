/* Devices with published figures (models/hardware/devices.def), and the profiles that are computed from them. */
#ifndef TWS_MODELS_DEVICES_H
#define TWS_MODELS_DEVICES_H

#include "config/figures.h"

typedef struct tws_device {
  const char *profile, *name; /* names of the profile ("rtx-3090") and of the device ("RTX-3090") */
  const char *vendor, *architecture, *memory, *generation;
  int parts; /* number of devices that software sees in one package; each has an equal part of all figures */
  /* descriptions of the links and of PCIe; doubt: reason why figures are uncertain; "": they are certain */
  const char *link, *pcie, *doubt;
  const tws_figure *figures;
} tws_device;

const tws_device *tws_device_nth(int i); /* returns NULL after the last device */
const tws_device *tws_device_find(const char *profile);

/* Returns the share of the peak (0 to 1) that large products reach in measurements of the device; 0: none is published.
 * *what is the kind of measurement: "median", "large" or "best" (of the latter, 0.9 times the published share is
 * returned). `type` is "bf16", "fp8" or "fp4". */
double tws_device_products(const tws_device *device, const char *type, const char **what);
/* Returns the device's profile as a JSON object, which the caller deletes; NULL if memory is exhausted. */
cJSON *tws_device_profile(const tws_device *device);
/* Adds published figures and their sources to a profile's object. Returns 0 if memory is exhausted, else 1. */
int tws_device_add_figures(const tws_device *device, cJSON *profile);

#endif
