/* Encodes and decodes the hosts of a job as DeepSpeed's launcher passes them on: URL-safe base64 of {"worker-0": [0,
 * 1]}. */
#include <string.h>
#include "base/json.h"
#include "launch/hostfile.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const char *tws_hosts_world_info(const tws_hosts *hosts, tws_arena *arena) {
  tws_text text = {0};
  for (int h = 0; h < hosts->count; h++) {
    tws_text_add(&text, "%s\"%s\": [", h ? ", " : "{", hosts->host[h].name);
    for (int i = 0; i < hosts->host[h].count; i++) tws_text_add(&text, "%s%d", i ? ", " : "", hosts->host[h].slot[i]);
    tws_text_add(&text, "]");
  }
  tws_text_add(&text, hosts->count ? "}" : "{}");
  char *out = text.failed ? NULL : tws_arena_alloc(arena, (text.length + 2) / 3 * 4 + 1, 1), *to = out;
  for (size_t i = 0; out && i < text.length; i += 3) {
    const size_t left = text.length - i;
    const unsigned char *from = (const unsigned char *)text.data + i;
    const unsigned three =
        (unsigned)from[0] << 16 | (left > 1 ? (unsigned)from[1] << 8 : 0) | (left > 2 ? (unsigned)from[2] : 0);
    *to++ = digits[three >> 18];
    *to++ = digits[three >> 12 & 63];
    *to++ = left > 1 ? digits[three >> 6 & 63] : '=';
    *to++ = left > 2 ? digits[three & 63] : '=';
  }
  tws_text_free(&text);
  return out;
}

/* Decodes base64; returns NULL if a character does not belong to base64. */
static char *decode(const char *text, tws_arena *arena, size_t *length) {
  size_t letters = strlen(text);
  while (letters && text[letters - 1] == '=') letters--;
  char *out = tws_arena_alloc(arena, letters + 1, 1);
  unsigned bits = 0, waiting = 0;
  *length = 0;
  for (size_t i = 0; out && i < letters; i++) {
    const char *digit = strchr(digits, text[i]);
    if (!digit) return NULL;
    bits = (bits << 6 | (unsigned)(digit - digits)) & 0xffff;
    waiting += 6;
    if (waiting < 8) continue;
    waiting -= 8;
    out[(*length)++] = (char)(bits >> waiting & 0xff);
  }
  return out;
}

static tws_code read_host(const tws_json *json, const cJSON *item, tws_host *host, tws_arena *arena, tws_error *err) {
  const cJSON *one;
  if (!tws_is_host_name(item->string, strlen(item->string)) || !cJSON_IsArray(item))
    return tws_fail(err, TWS_USAGE, NULL, "--world-info: \"%.200s\" is not a host with a list of slots", item->string);
  host->name = tws_arena_strdup(arena, item->string);
  if (!host->name) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  cJSON_ArrayForEach(one, item) {
    int64_t slot;
    if (!tws_json_integer(json, one, &slot, NULL) || slot < 0 || slot >= TWS_MAX_SLOTS || host->count == TWS_MAX_SLOTS)
      return tws_fail(err, TWS_USAGE, NULL, "--world-info: host %.200s has a slot that is no number below %d",
                      host->name, TWS_MAX_SLOTS);
    host->slot[host->count++] = (short)slot;
  }
  return TWS_OK;
}

tws_code tws_hosts_read_world_info(const char *text, tws_arena *arena, tws_hosts *out, tws_error *err) {
  size_t length = 0;
  tws_json *json = NULL;
  tws_error why = {0};
  const char *document = decode(text, arena, &length);
  if (!document || tws_json_parse(document, length, "--world-info", &json, &why) != TWS_OK)
    return tws_fail(err, TWS_USAGE, "twinspeed launch --dry-run --json prints it",
                    "--world-info: it is not base64 of {\"worker-0\": [0, 1]}");
  const int count = cJSON_IsObject(json->root) ? cJSON_GetArraySize(json->root) : 0;
  *out = (tws_hosts){.host = tws_arena_alloc(arena, (size_t)count + 1, sizeof *out->host)};
  tws_code code = !out->host ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
  if (code == TWS_OK && (count < 1 || count > TWS_MAX_HOSTS))
    code = tws_fail(err, TWS_USAGE, NULL, "--world-info: it names %d hosts", count);
  for (const cJSON *item = json->root->child; code == TWS_OK && item; item = item->next)
    code = read_host(json, item, &out->host[out->count++], arena, err);
  if (code == TWS_OK && tws_hosts_ranks(out) < 1) code = tws_fail(err, TWS_USAGE, NULL, "--world-info: it has no slot");
  tws_json_destroy(json);
  return code;
}
