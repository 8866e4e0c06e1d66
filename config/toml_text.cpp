#include "config/toml_text.h"

#ifdef TWS_HAVE_TOML
#undef NDEBUG /* or toml++ takes its assertions for granted */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string_view>

/* toml++ 3.3 asserts where some bad texts lead: they are errors like others. */
#define TOML_ASSERT(holds)                                                 \
  do {                                                                     \
    if (!(holds)) throw std::runtime_error("a key or a value is missing"); \
  } while (0)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wterminate" /* in functions that no text fails in */
#endif
#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

void tws_toml_to_json(const char *text, size_t length, tws_toml_text *out) {
  try {
    const toml::table parsed = toml::parse(std::string_view(text, length));
    std::ostringstream json;
    json << toml::json_formatter(parsed);
    out->json = strdup(json.str().c_str());
  } catch (const toml::parse_error &error) {
    out->line = static_cast<int>(error.source().begin.line);
    out->column = static_cast<int>(error.source().begin.column);
    std::snprintf(out->message, sizeof out->message, "%.*s", static_cast<int>(error.description().size()),
                  error.description().data());
  } catch (const std::exception &error) {
    std::snprintf(out->message, sizeof out->message, "%s", error.what());
  }
}
#else
void tws_toml_to_json(const char *text, size_t length, tws_toml_text *out) {
  static_cast<void>(text);
  static_cast<void>(length);
  out->unsupported = 1;
}
#endif
