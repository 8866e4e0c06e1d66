/* Writes the JSON Schema of profile files. Names of kernels, types and collectives are taken from their tables. */
#include <stdio.h>
#include <string.h>

#include "models/hardware/profile_internal.h"

#define NUMBER(low, high, about) \
  "{\"type\":\"number\",\"minimum\":" low ",\"maximum\":" high ",\"description\":\"" about "\"}"
#define INTEGER(low, high) "{\"type\":\"integer\",\"minimum\":" low ",\"maximum\":" high "}"
#define TEXT(about) "{\"type\":\"string\",\"description\":\"" about "\"}"
#define FREE(about) "{\"type\":\"object\",\"description\":\"" about "\"}"
#define FLAG(about) "{\"type\":\"boolean\",\"description\":\"" about "\"}"
#define OBJECT(required, properties) \
  "{\"type\":\"object\",\"additionalProperties\":false,\"required\":[" required "],\"properties\":{" properties "}}"
#define LIST(items) "{\"type\":\"array\",\"items\":" items "}"
#define NAMED "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{}}" /* filled from the tables */
#define SHARE(about) NUMBER("0.001", "1", about)
#define SAMPLES LIST("{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1e18}}")
/* samples [scores, seconds] */
#define CHOICES                                                                                  \
  LIST(                                                                                          \
      "{\"type\":\"array\",\"minItems\":2,\"maxItems\":2,\"prefixItems\":[{\"type\":\"number\"," \
      "\"exclusiveMinimum\":0,\"maximum\":1e18},{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}]}")
#define WORD "{\"type\":\"string\",\"enum\":[]}"

static const char schema[] =
    "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"title\":\"hardware profile of Twinspeed\","
    "\"type\":\"object\",\"additionalProperties\":false,"
    "\"required\":[\"schema\",\"provenance\",\"backend\",\"memory_bytes\",\"peak_flops\",\"bandwidth\"],"
    "\"properties\":{"
    "\"schema\":{\"type\":\"string\",\"enum\":[\"twinspeed-profile-1\"]}"
    ",\"name\":" TEXT("what answers call it")
    ",\"provenance\":" TEXT("one line: who measured or published it, and when")
    ",\"details\":" FREE("texts for people")
    ",\"rates\":{\"type\":\"string\",\"enum\":[\"own\",\"measured\",\"data sheet\"],"
    "\"description\":\"of products: fitted or "
    "calibrated, published measurements, or a data sheet's\"}"
    ",\"device\":" FREE("names of the device, for people")
    ",\"figures\":" FREE("published figures with confidence and sources, for people")
    ",\"sources\":" FREE("what the sources' keys stand for")
    ",\"spread\":" NUMBER("0", "1e9", "median relative spread of a sample")
    ",\"drift\":" NUMBER("0", "1e9", "relative drift of a repeated product")
    ",\"backend\":{\"type\":\"string\",\"enum\":[\"host\",\"cuda\",\"other\"]}"
    ",\"generation\":" WORD
    ",\"cores\":" INTEGER("0", "1048576")
    ",\"memory_bytes\":" NUMBER("1", "1e18", "of one device; host: of the node")
    ",\"overhead_bytes\":" NUMBER("0", "1e18", "contexts and libraries")
    ",\"serial_streams\":" FLAG("a rank runs one stream at a time")
    ",\"peak_flops\":{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"fp32\"],\"properties\":{}}"
    ",\"bandwidth\":" NUMBER("1", "1e18", "bytes/s of one device or host rank")
    ",\"node_bandwidth\":" NUMBER("0", "1e18", "host: bytes/s of all ranks together")
    ",\"bandwidth_efficiency\":" SHARE("of the bandwidth, that element-wise kernels reach")
    ",\"launch_s\":" NUMBER("0", "1", "seconds of starting a kernel")
    ",\"matmul\":" OBJECT("\"efficiency\"",
      "\"efficiency\":" SHARE("sustained over peak") ",\"fp8_efficiency\":" SHARE("of fp8; absent: the same")
      ",\"fp4_efficiency\":" SHARE("of fp4; absent: the same")
      ",\"tile_overhead_s\":" NUMBER("0", "1", "of a wave of tiles")
      ",\"multiprocessors\":" INTEGER("0", "65536") ",\"misaligned\":" SHARE("at sizes that are no multiple of 8"))
    ",\"attention\":" OBJECT("",
      "\"efficiency\":" SHARE("of the peak, of long sequences")
      ",\"half_length\":" NUMBER("0", "1e9", "at which half is reached")
      ",\"backward\":" NUMBER("0.001", "10", "rate against forward") ",\"unfused\":"
      OBJECT("\"forward_bytes\",\"backward_bytes\"", "\"forward_bytes\":" NUMBER("0", "1000", "of a score")
        ",\"backward_bytes\":" NUMBER("0", "1000", "of a score")
        ",\"recomputed\":" FLAG("scores are recomputed in backward")))
    ",\"unfused\":" FLAG("activations and residual sums are kernels of their own")
    ",\"added_bytes\":" NAMED
    ",\"kernels\":" LIST(OBJECT("\"kernel\",\"samples\"",
      "\"kernel\":" WORD ",\"dtype\":" WORD ",\"dtype2\":" WORD ",\"flags\":" LIST(WORD)
      ",\"threads\":" INTEGER("1", "65536")
      ",\"busy\":" INTEGER("1", "65536")
    ",\"reread_bytes\":" NUMBER("0", "1e18", "after which weights were read again; 0 or absent: more than caches hold")
    ",\"samples\":" SAMPLES))
    ",\"collectives\":" LIST(OBJECT("\"collective\",\"ranks\",\"samples\"",
      "\"collective\":" WORD ",\"ranks\":" INTEGER("2", "1048576") ",\"samples\":" SAMPLES))
    ",\"p2p\":" SAMPLES
    ",\"disk\":" OBJECT("\"read\",\"write\"", "\"read\":" NUMBER("1", "1e18", "bytes/s")
      ",\"write\":" NUMBER("1", "1e18", "bytes/s"))
    ",\"host_copies\":" LIST(OBJECT("\"ranks\"", "\"ranks\":" INTEGER("1", "1048576")
      ",\"to_device\":" NUMBER("1", "1e18", "bytes/s of all ranks together")
      ",\"to_host\":" NUMBER("1", "1e18", "bytes/s of all ranks together")
      ",\"both_ways\":" NUMBER("1", "1e18", "bytes/s of both directions at once, together")))
    ",\"passes\":" OBJECT("", "\"start_s\":" NUMBER("0", "1", "seconds of an operation in addition to its kernel")
      ",\"pass_s\":" NUMBER("0", "1", "seconds of a pass of inference outside of operations and choices")
      ",\"choice_s\":" CHOICES)
    ",\"corrections\":" OBJECT("", "\"kernels\":" NAMED ",\"collectives\":" NAMED ",\"messages\":"
      NUMBER("0.001", "1000", "of messages between two ranks"))
    "}}";

static const char *dtype_word(int i) {
  return tws_dtype_name((tws_dtype)i);
}
static const char *kernel_word(int i) {
  return tws_kernel_name((tws_kernel)i);
}
static const char *collective_word(int i) {
  return tws_collective_name((tws_collective)i);
}

/* Returns the item at a path of members, such as "properties.matmul"; NULL: there is none. */
static cJSON *at(cJSON *root, const char *path) {
  while (root && *path) {
    char name[48];
    const size_t length = strcspn(path, ".");
    snprintf(name, sizeof name, "%.*s", (int)length, path);
    root = cJSON_GetObjectItemCaseSensitive(root, name);
    path += length + (path[length] == '.');
  }
  return root;
}

static int add_words(cJSON *root, const char *path, const char *(*name)(int), int count) {
  cJSON *list = at(root, path);
  int good = list != NULL;
  for (int i = 0; i < count && good; i++)
    if (name(i)) good = cJSON_AddItemToArray(list, cJSON_CreateString(name(i)));
  return good;
}

static int add_numbers(cJSON *root, const char *path, const char *(*name)(int), int count, double low, double high) {
  cJSON *object = at(root, path);
  int good = object != NULL;
  for (int i = 0; i < count && good; i++) {
    cJSON *one = cJSON_AddObjectToObject(object, name(i));
    good = one && cJSON_AddStringToObject(one, "type", "number") && cJSON_AddNumberToObject(one, "minimum", low) &&
           cJSON_AddNumberToObject(one, "maximum", high);
  }
  return good;
}

#define OF_KERNEL "properties.kernels.items.properties."
#define OF_COLLECTIVE "properties.collectives.items.properties."

static int fill(cJSON *root) {
  return add_words(root, "properties.generation.enum", tws_generation_name, TWS_GENERATION_COUNT) &&
         add_numbers(root, "properties.peak_flops.properties", dtype_word, TWS_DTYPE_COUNT, 1, 1e18) &&
         add_numbers(root, "properties.peak_flops.properties", tws_narrow_name, TWS_NARROW_COUNT, 1, 1e18) &&
         add_numbers(root, "properties.added_bytes.properties", kernel_word, TWS_KERNEL_COUNT, 0, 1000) &&
         add_words(root, OF_KERNEL "kernel.enum", kernel_word, TWS_KERNEL_COUNT) &&
         add_words(root, OF_KERNEL "dtype.enum", dtype_word, TWS_DTYPE_COUNT) &&
         add_words(root, OF_KERNEL "dtype2.enum", dtype_word, TWS_DTYPE_COUNT) &&
         add_words(root, OF_KERNEL "flags.items.enum", tws_kernel_flag_name, TWS_KERNEL_FLAGS) &&
         add_words(root, OF_COLLECTIVE "collective.enum", collective_word, TWS_COLLECTIVE_COUNT) &&
         add_numbers(root, "properties.corrections.properties.kernels.properties", kernel_word, TWS_KERNEL_COUNT, 1e-3,
                     1e3) &&
         add_numbers(root, "properties.corrections.properties.collectives.properties", collective_word,
                     TWS_COLLECTIVE_COUNT, 1e-3, 1e3);
}

tws_code tws_profile_print_schema(tws_text *out, tws_error *err) {
  cJSON *root = cJSON_Parse(schema);
  char *text = root && fill(root) ? cJSON_Print(root) : NULL;
  if (text) tws_text_add(out, "%s\n", text);
  cJSON_free(text);
  cJSON_Delete(root);
  return text && !out->failed ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for a schema");
}
