/* Devices with published figures (models/hardware/devices.def), and the profiles that are made from them. */
#ifndef TWS_MODELS_DEVICES_H
#define TWS_MODELS_DEVICES_H

#include "config/figures.h"

typedef struct tws_device {
  const char *profile, *name; /* "rtx-3090", "RTX-3090" */
  const char *vendor, *architecture, *memory, *generation;
  int parts;                       /* devices that software sees of it, each with an equal part of all figures */
  const char *link, *pcie, *doubt; /* "": nothing to say */
  const tws_figure *figures;
} tws_device;

const tws_device *tws_device_nth(int i); /* NULL after the last */
const tws_device *tws_device_find(const char *profile);

/* Share of the peak that large products reach, from measurements of the device; 0: none is published. `what` says what
 * was measured: "median", "large", "best" (of which 0.9 is taken). `type` is "bf16", "fp8" or "fp4". */
double tws_device_products(const tws_device *device, const char *type, const char **what);
/* The profile as a JSON object; the caller deletes it. NULL: no memory. */
cJSON *tws_device_profile(const tws_device *device);
/* Puts published figures and their sources into a profile's object. 0: no memory. */
int tws_device_add_figures(const tws_device *device, cJSON *profile);

#endif
