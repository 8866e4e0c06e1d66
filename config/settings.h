/* Settings of a training that configurations of several programs have, as texts: what exports write and imports read.
 * Other programs' formats are tables and a few rules over them. */
#ifndef TWS_CONFIG_SETTINGS_H
#define TWS_CONFIG_SETTINGS_H

#include "config/ds_config.h"

typedef enum tws_setting {
#define X(name, key, words) TWS_SETTING_##name,
#include "config/settings.def"
#undef X
  TWS_SETTING_COUNT
} tws_setting;

enum { TWS_SETTING_TEXT = 256 };
/* Words without quotes, numbers and lists as JSON has them; empty: not said. */
typedef struct tws_settings {
  char text[TWS_SETTING_COUNT][TWS_SETTING_TEXT];
} tws_settings;

const char *tws_setting_key(tws_setting setting);
const char *tws_setting_words(tws_setting setting);
int64_t tws_setting_integer(const tws_settings *settings, tws_setting setting, int64_t otherwise);
/* Two numbers of a list; 0: it is none. */
int tws_setting_pair(const tws_settings *settings, tws_setting setting, double pair[2]);
int tws_setting_is(const tws_settings *settings, tws_setting setting, const char *word);
__attribute__((format(printf, 3, 4))) void tws_setting_put(tws_settings *settings, tws_setting setting,
                                                           const char *format, ...);

/* Writes all settings of a resolved configuration except those without effect: schedules without a pipeline, sizes of
 * other ZeRO stages. */
void tws_settings_of(const tws_config *config, tws_settings *out);
/* A configuration with these keys, as the text of a ds_config.json with this program's section. */
tws_code tws_settings_config(const tws_settings *settings, tws_text *out, tws_error *err);

#endif
