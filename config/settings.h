/* The settings of a training that configurations of several programs have in common, as texts. Exports write them and
 * imports read them; tables and a few rules relate them to other programs' formats. */
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
/* Texts of the settings: words without quotes, numbers and lists as in JSON; empty: not given. */
typedef struct tws_settings {
  char text[TWS_SETTING_COUNT][TWS_SETTING_TEXT];
} tws_settings;

const char *tws_setting_key(tws_setting setting);
const char *tws_setting_words(tws_setting setting);
int64_t tws_setting_integer(const tws_settings *settings, tws_setting setting, int64_t otherwise);
/* Returns 1 and writes the two numbers if the setting is a list of two numbers; else returns 0. */
int tws_setting_pair(const tws_settings *settings, tws_setting setting, double pair[2]);
int tws_setting_is(const tws_settings *settings, tws_setting setting, const char *word);
__attribute__((format(printf, 3, 4))) void tws_setting_put(tws_settings *settings, tws_setting setting,
                                                           const char *format, ...);

/* Writes all settings of a resolved configuration except those without effect, such as the schedule if there is no
 * pipeline, or sizes that only other ZeRO stages use. */
void tws_settings_of(const tws_config *config, tws_settings *out);
/* Writes the settings as the text of a ds_config.json, with Twinspeed's section "twinspeed". */
tws_code tws_settings_config(const tws_settings *settings, tws_text *out, tws_error *err);

#endif
