/* A tokenizer.json of any bytes gives one error, or a tokenizer whose tokens are below its vocabulary and decode to
 * UTF-8. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tokens/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

static void use(tws_tokenizer *t, const char *text, size_t length) {
  tws_token_list list = {0};
  tws_error err = {0};
  char *decoded = NULL;
  size_t bytes = 0;
  const tws_code code = tws_tokenizer_encode(t, text, length, 1, &list, &err);
  require(code == TWS_OK || (code == TWS_INVALID && err.message[0]));
  for (size_t i = 0; i < list.count; i++) require(list.id[i] >= 0 && list.id[i] < tws_tokenizer_vocabulary(t));
  require(tws_tokenizer_decode(t, list.id, list.count, 0, &decoded, &bytes, &err) == TWS_OK ||
          (err.code == TWS_INVALID && err.message[0]));
  if (decoded) require(strlen(decoded) <= bytes && tws_utf8_check(decoded, bytes) == SIZE_MAX);
  tws_free(decoded);
  tws_token_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "It's a  t\xc3\xa9st:\n 12 \xe2\x96\x81x \xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd <s>[MASK]";
  tws_tokenizer *t = NULL;
  tws_error err = {0};
  const tws_code code = tws_tokenizer_parse((const char *)data, size, "file", &t, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
  if (code == TWS_OK) {
    use(t, text, sizeof text - 1);
    use(t, (const char *)data, size < 256 ? size : 256);
  }
  tws_tokenizer_close(t);
  return 0;
}
