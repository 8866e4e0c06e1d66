/* Published devices and boxes: their figures, the costs computed from them, their page of the documentation, estimates
 * on each, and schemas. */
#include <check.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/boxes.h"
#include "job/assumed.h"
#include "job/fit.h"
#include "job/job.h"
#include "job/cluster_name.h"
#include "models/hardware/devices.h"
#include "models/hardware/profile.h"
#include "tests/page.h"
#include "tests/members.h"
#include "tests/suite.h"
#include "validation/evidence.h"

static const char PAGE[] = TWS_TEST_DIR "/../docs/hardware.md";
static tws_error err;

/* ---- figures ---- */

static void assert_figures(const char *name, const tws_figure *list, const cJSON *golden) {
  int count = 0;
  for (; list->key; list++, count++) {
    const cJSON *one = cJSON_GetObjectItemCaseSensitive(golden, list->key);
    ck_assert_msg(one != NULL, "%s: %s", name, list->key);
    ck_assert_msg(cJSON_GetArrayItem(one, 0)->valuedouble == list->value, "%s: %s is %g", name, list->key, list->value);
    ck_assert_str_eq(cJSON_GetArrayItem(one, 1)->valuestring, tws_mark_name(list->mark));
    ck_assert_str_eq(cJSON_GetArrayItem(one, 2)->valuestring, list->sources);
    ck_assert_msg((list->mark == TWS_MARK_SOURCED) == (*list->sources != '\0'), "%s: %s", name, list->key);
    for (const char *at = list->sources; *at; at += strspn(at, " ")) {
      const size_t length = strcspn(at, " ");
      ck_assert_msg(tws_figure_source(at, length) != NULL, "%s: source %.*s", name, (int)length, at);
      at += length;
    }
  }
  ck_assert_msg(count == cJSON_GetArraySize(golden), "%s: %d figures", name, count);
}

START_TEST(figures_are_those_published) {
  tws_json *json = golden_file("hardware_figures.json");
  const cJSON *devices = member(json->root, "devices"), *boxes = member(json->root, "boxes");
  int count = 0;
  for (const tws_device *d; (d = tws_device_nth(count)) != NULL; count++) {
    const cJSON *golden = member(devices, d->profile);
    ck_assert_str_eq(member(golden, "title")->valuestring, d->name);
    assert_figures(d->profile, d->figures, member(golden, "figures"));
  }
  ck_assert_int_eq(count, 78);
  ck_assert_int_eq(count, cJSON_GetArraySize(devices));
  count = 0;
  for (const tws_box *b; (b = tws_box_nth(count)) != NULL; count++) {
    const cJSON *golden = member(boxes, b->name);
    ck_assert_str_eq(member(golden, "title")->valuestring, b->title);
    ck_assert_str_eq(member(golden, "profile")->valuestring, b->profile);
    assert_figures(b->name, b->figures, member(golden, "figures"));
  }
  ck_assert_int_eq(count, 78);
  ck_assert_int_eq(count, cJSON_GetArraySize(boxes));
  tws_json_destroy(json);
}
END_TEST

static void assert_ratio(const tws_device *d, const char *key, double to, double expected, double tolerance) {
  const double figure = tws_figure_value(d->figures, key);
  if (!isnan(figure))
    ck_assert_msg(fabs(figure / to - expected) <= tolerance * expected, "%s: %s is %g, %.4g of %g and not %g",
                  d->profile, key, figure, figure / to, to, expected);
}

/* Returns 1 for the chips GA10x, AD10x and GB20x, whose SMs have 128 lanes of float32 and four tensor cores. */
static int has_sms_of_graphics(const tws_device *d) {
  return (strstr(d->architecture, "(GA10") && !strstr(d->architecture, "(GA100")) ||
         strstr(d->architecture, "(AD10") || strstr(d->architecture, "(GB20");
}

/* Returns 1 for a GeForce card ("RTX-3090"), whose products with float32 accumulation have half the rate. */
static int is_geforce(const tws_device *d) {
  return strncmp(d->name, "RTX-", 4) == 0 && isdigit((unsigned char)d->name[4]) && !strstr(d->name, "Ada");
}

/* Figures of a device agree with each other: a lane of PCIe has the rate of its generation; peaks are SMs times clock
 * times the operations of an SM in a cycle; each narrower type doubles the rate; the driver reports at most the
 * memory on the box, less what it keeps for error correction. */
START_TEST(figures_agree_with_each_other) {
  int buses = 0, chips = 0, geforce = 0;
  for (int i = 0; tws_device_nth(i); i++) {
    const tws_device *d = tws_device_nth(i);
    int generation, lanes;
    if (sscanf(d->pcie, "Gen%d x%d", &generation, &lanes) == 2) {
      assert_ratio(d, "pcie_uni_GBps", ldexp(15.75, generation - 3) * lanes / 16, 1, 1e-9);
      buses++;
    }
    const double reported = tws_figure_value(d->figures, "reported_mib") / 1024;
    if (!isnan(reported) && strcmp(d->vendor, "nvidia") == 0) {
      ck_assert_msg(reported <= tws_figure_value(d->figures, "hbm_gb"), "%s: %g GiB", d->profile, reported);
      ck_assert_msg(reported >= 0.93 * tws_figure_value(d->figures, "hbm_gb"), "%s: %g GiB", d->profile, reported);
    }
    if (strncmp(d->architecture, "ada", 3) == 0)
      ck_assert_double_eq(tws_figure_value(d->figures, "nvlink_uni_GBps"), 0);
    if (!has_sms_of_graphics(d)) continue;
    const double bf16 = tws_figure_value(d->figures, "peak.bf16"), sms = tws_figure_value(d->figures, "sms");
    const double cycles = sms * tws_figure_value(d->figures, "clock_mhz") * 1e-6; /* 10^12 a second, of all SMs */
    const int card = is_geforce(d), half = card || bf16 < 750 * cycles;
    assert_ratio(d, "peak.fp32", cycles, 256, 0.03);
    assert_ratio(d, "peak.bf16", cycles, half ? 512 : 1024, card ? 0.002 : 0.03);
    assert_ratio(d, "peak.fp16", bf16, 1, 0);
    assert_ratio(d, "peak.tf32", bf16, 0.5, 0.015);
    assert_ratio(d, "peak.fp8", bf16, 2, 0.015);
    assert_ratio(d, "peak.fp4", bf16, card ? 8 : 4, 0.001);
    assert_ratio(d, "peak.int8", bf16, card ? 4 : 2, 0.015);
    assert_ratio(d, "peak.fp16_fp16acc", bf16, 2, 0.002);
    assert_ratio(d, "peak.fp8_fp16acc", bf16, 4, 0.002);
    chips++;
    geforce += card;
  }
  ck_assert_int_ge(buses, 60);
  ck_assert_int_eq(chips, 35);
  ck_assert_int_eq(geforce, 18);
}
END_TEST

static int near(double a, double b) {
  return fabs(a - b) <= 1e-9 * fabs(b);
}

/* Returns 1 for a device whose profile existed before: it keeps its costs, which were compared with training runs. */
static int had_a_profile(const char *name) {
  static const char *const before[] = {"h100-pcie", "b200", "gb200", "b300", "gb300"};
  for (size_t i = 0; i < sizeof before / sizeof *before; i++)
    if (strcmp(before[i], name) == 0) return 1;
  return 0;
}

static void assert_peak(const tws_device *d, const tws_profile *p, const char *key, tws_dtype dtype) {
  const double figure = tws_figure_value(d->figures, key);
  if (!isnan(figure))
    ck_assert_msg(near(tws_profile_peak_flops(p, dtype), figure * 1e12 / d->parts), "%s: %s", d->profile, key);
}

/* The figures of a profile are the published ones: peaks, bandwidth, memory as CUDA reports it, measured products. */
START_TEST(profiles_have_the_figures) {
  int made = 0, measured = 0, other = 0;
  for (int i = 0; tws_device_nth(i); i++) {
    const tws_device *d = tws_device_nth(i);
    tws_profile *p;
    const char *what;
    ck_assert_msg(tws_profile_load(d->profile, &p, &err) == TWS_OK, "%s: %s", d->profile, err.message);
    if (!had_a_profile(d->profile)) {
      const double cuda = tws_figure_value(d->figures, "cuda_total_mib"), share = tws_device_products(d, "bf16", &what);
      made++;
      assert_peak(d, p, "peak.fp32", TWS_F32);
      assert_peak(d, p, "peak.bf16", TWS_BF16);
      assert_peak(d, p, "peak.fp16", TWS_F16);
      ck_assert(near(tws_profile_bandwidth(p), tws_figure_value(d->figures, "hbm_GBps") * 1e9 / d->parts));
      if (!isnan(cuda)) ck_assert(near(tws_profile_memory_bytes(p), cuda * 1048576));
      ck_assert_double_le(tws_profile_memory_bytes(p),
                          tws_figure_value(d->figures, "hbm_gb") * 1073741824.0 / d->parts);
      ck_assert_int_eq(tws_profile_has_no_engine(p), strcmp(d->vendor, "nvidia") != 0);
      ck_assert_int_eq(tws_profile_rates(p), share > 0 ? TWS_RATES_MEASURED : TWS_RATES_DATA_SHEET);
      /* the tiles of a GPU's products reach at most 0.85 of the peak */
      if (share > 0) ck_assert_double_le(fabs(tws_profile_product_share(p) - share), share > 0.85 ? 0.15 : 1e-9);
      measured += share > 0;
      other += tws_profile_has_no_engine(p);
    } else {
      ck_assert_int_eq(tws_profile_rates(p), TWS_RATES_OWN);
    }
    tws_profile_destroy(p);
  }
  ck_assert_int_eq(made, 73);
  ck_assert_int_eq(measured, 25);
  ck_assert_int_eq(other, 19);
}
END_TEST

/* Large products take as long as measurements of the device say. */
START_TEST(products_as_measured) {
  static const struct {
    const char *profile;
    double tflops;
  } rows[] = {{"l40s", 200.7}, {"rtx-pro-6000-blackwell-server", 398.9}, {"mi300x", 0.9 * 788.2}, {"tpu-v6e", 754.2}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    tws_profile *p;
    const tws_work work = {
        .code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {16384, 16384, 16384}};
    ck_assert_int_eq(tws_profile_load(rows[i].profile, &p, &err), TWS_OK);
    const double tflops = tws_work_flops(&work) / tws_kernel_seconds(p, &work, 1, 1) * 1e-12;
    ck_assert_msg(tflops > 0.93 * rows[i].tflops && tflops < 1.01 * rows[i].tflops, "%s: %.1f", rows[i].profile,
                  tflops);
    tws_profile_destroy(p);
  }
}
END_TEST

/* A built-in cluster has the figures of its box; its links have the nominal bandwidth times the share that their class
 * reaches. */
START_TEST(clusters_have_the_figures) {
  for (int i = 0; tws_box_nth(i); i++) {
    const tws_box *b = tws_box_nth(i);
    const double intra = tws_figure_value(b->figures, "intra_uni_GBps_per_gpu");
    tws_cluster c;
    ck_assert_msg(tws_cluster_load(b->name, &c, &err) == TWS_OK, "%s: %s", b->name, err.message);
    ck_assert_str_eq(c.name, b->name);
    ck_assert_str_eq(c.profile, b->profile);
    ck_assert(c.box && c.builtin && c.nodes == 1);
    ck_assert_int_eq(c.devices_per_node, (int)tws_figure_value(b->figures, "gpus"));
    ck_assert_int_eq(c.cores_per_node, (int)tws_figure_value(b->figures, "cores"));
    ck_assert_int_eq(c.nics_per_node, (int)tws_figure_value(b->figures, "nic_count"));
    ck_assert(near(c.host_memory_bytes, tws_figure_value(b->figures, "host_memory_gb") * 1e9));
    const double nic = tws_figure_value(b->figures, "nic_gbps") / 8 * 1e9;
    ck_assert(near(c.inter.bandwidth, nic * tws_fabric_of(b->nic)->reached));
    if (!isnan(intra) && b->intra != TWS_FABRIC_NVLINK_BRIDGE)
      ck_assert(near(c.intra.bandwidth, intra * 1e9 * tws_fabric_of(b->intra)->reached));
    ck_assert_int_eq(c.intra.bandwidth > 0, c.devices_per_node > 1);
  }
  tws_cluster c;
  ck_assert_int_eq(tws_cluster_load("lenovo-sr675-v3-8x-l40s:2", &c, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "no link between its nodes is published"));
  ck_assert_int_eq(tws_cluster_load("dgx-spark:1x2", &c, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "2 devices of a node, and a node has 1"));
  ck_assert_int_eq(tws_cluster_load("dgx-spark:2", &c, &err), TWS_OK);
  ck_assert(c.nodes == 2 && c.box);
}
END_TEST

/* ---- answers ---- */

static tws_job *open_job(const char *cluster, const char *profile) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  spec.model = "gpt2";
  spec.cluster = cluster;
  spec.profile = profile;
  spec.micro_batch = 1;
  spec.sequence = 256;
  if (profile) spec.ranks = 2;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s%s: %s", cluster ? cluster : "", profile ? profile : "",
                err.message);
  return job;
}

static void assert_answer(const char *cluster, const char *profile) {
  tws_job *job = open_job(cluster, profile);
  tws_estimate e;
  tws_assumption list[TWS_ASSUMPTIONS];
  tws_text text = {0};
  ck_assert_msg(tws_job_estimate(job, &e, NULL, &err) == TWS_OK, "%s", err.message);
  ck_assert(isfinite(e.step_s) && e.step_s > 1e-4 && e.step_s < 10 && e.mfu > 0 && e.mfu < 1);
  ck_assert(tws_job_fit(job, &e.ledger).fits);
  tws_assumptions_text(list, tws_job_assumed(job, list), &text);
  const tws_rates rates = tws_profile_rates(job->profile);
  ck_assert_msg((strstr(text.data, "by data sheet, not measured") != NULL) == (rates == TWS_RATES_DATA_SHEET), "%s",
                text.data);
  ck_assert((strstr(text.data, "by published measurements") != NULL) == (rates == TWS_RATES_MEASURED));
  const tws_evidence evidence = tws_evidence_of_job(job, e.step_s);
  if (rates != TWS_RATES_OWN) ck_assert(evidence.other_gpu && evidence.kind != TWS_EVIDENCE_NEAR);
  tws_text_free(&text);
  tws_job_destroy(job);
}

START_TEST(an_estimate_on_each) {
  for (int i = 0; tws_device_nth(i); i++) assert_answer(NULL, tws_device_nth(i)->profile);
  for (int i = 0; tws_box_nth(i); i++) assert_answer(tws_box_nth(i)->name, NULL);
}
END_TEST

START_TEST(no_engine_runs_on_others) {
  tws_job *job = open_job("intel-gaudi3-node", NULL);
  err = (tws_error){0};
  ck_assert_int_eq(tws_job_check_engine(job, 1, 0, &err), TWS_UNSUPPORTED);
  ck_assert_str_eq(err.message, "no engine of this program runs on gaudi3 (backend \"other\")");
  tws_job_destroy(job);
}
END_TEST

/* Measured rates of a device override those that a runtime assumes for its generation. */
START_TEST(measured_products_stay) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  spec.model = "gpt2";
  spec.runtime = "megatron";
  spec.profile = "rtx-a6000"; /* a device of the generation Ampere, for which the runtime has 0.92 */
  ck_assert_int_eq(tws_job_load(&spec, &job, &err), TWS_OK);
  ck_assert(near(tws_profile_product_share(job->profile), 0.9 * 0.848));
  tws_job_destroy(job);
}
END_TEST

/* ---- schemas ---- */

static int has_type(const cJSON *item, const char *type) {
  if (strcmp(type, "object") == 0) return cJSON_IsObject(item);
  if (strcmp(type, "array") == 0) return cJSON_IsArray(item);
  if (strcmp(type, "string") == 0) return cJSON_IsString(item);
  if (strcmp(type, "boolean") == 0) return cJSON_IsBool(item);
  if (strcmp(type, "number") == 0) return cJSON_IsNumber(item);
  return strcmp(type, "integer") == 0 && cJSON_IsNumber(item) && floor(item->valuedouble) == item->valuedouble;
}

/* Checks an item against a schema, for the keywords of JSON Schema that this program uses; returns the name of the
 * wrong member, or NULL. */
static const char *invalid(const cJSON *schema, const cJSON *item);

static const char *invalid_object(const cJSON *schema, const cJSON *item) {
  const cJSON *properties = cJSON_GetObjectItem(schema, "properties"), *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(schema, "required")) {
    if (!cJSON_GetObjectItemCaseSensitive(item, one->valuestring)) return one->valuestring;
  }
  cJSON_ArrayForEach(one, item) {
    const cJSON *of = cJSON_GetObjectItemCaseSensitive(properties, one->string);
    if (!of && cJSON_IsFalse(cJSON_GetObjectItem(schema, "additionalProperties"))) return one->string;
    const char *wrong = of ? invalid(of, one) : NULL;
    if (wrong) return wrong;
  }
  return NULL;
}

static const char *invalid(const cJSON *schema, const cJSON *item) {
  const char *name = item->string ? item->string : "item";
  const cJSON *type = cJSON_GetObjectItem(schema, "type"), *words = cJSON_GetObjectItem(schema, "enum"), *one,
              *low = cJSON_GetObjectItem(schema, "minimum"), *high = cJSON_GetObjectItem(schema, "maximum");
  int good = !type || (cJSON_IsString(type) && has_type(item, type->valuestring));
  if (cJSON_IsArray(type)) cJSON_ArrayForEach(one, type) good |= has_type(item, one->valuestring);
  if (!good) return name;
  good = !words;
  cJSON_ArrayForEach(one, words) good |= cJSON_IsString(item) && strcmp(one->valuestring, item->valuestring) == 0;
  if (cJSON_IsNumber(item))
    good &= (!low || item->valuedouble >= low->valuedouble) && (!high || item->valuedouble <= high->valuedouble);
  if (!good) return name;
  if (cJSON_IsArray(item) && cJSON_GetObjectItem(schema, "items")) cJSON_ArrayForEach(one, item) {
      const char *wrong = invalid(cJSON_GetObjectItem(schema, "items"), one);
      if (wrong) return wrong;
    }
  return cJSON_IsObject(item) ? invalid_object(schema, item) : NULL;
}

static cJSON *schema_of(tws_code (*print)(tws_text *out, tws_error *err)) {
  tws_text text = {0};
  ck_assert_int_eq(print(&text, &err), TWS_OK);
  cJSON *schema = cJSON_Parse(text.data);
  ck_assert_str_eq(member(schema, "$schema")->valuestring, "https://json-schema.org/draft/2020-12/schema");
  tws_text_free(&text);
  return schema;
}

/* Every built-in profile, written as a file, conforms to the schema and reads back as the same profile. */
START_TEST(profiles_keep_to_the_schema) {
  cJSON *schema = schema_of(tws_profile_print_schema);
  int published = 0;
  for (const char *const *name = tws_profile_builtin_names(); *name; name++) {
    tws_text text = {0};
    tws_json *json;
    tws_profile *file, *own;
    ck_assert_msg(tws_profile_builtin_text(*name, &text, &err) == TWS_OK, "%s: %s", *name, err.message);
    ck_assert_int_eq(tws_json_parse(text.data, text.length, *name, &json, &err), TWS_OK);
    const char *wrong = invalid(schema, json->root);
    ck_assert_msg(!wrong, "%s: %s", *name, wrong);
    ck_assert_msg(tws_profile_from_json(json, &file, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(tws_profile_load(*name, &own, &err), TWS_OK);
    const tws_work work = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {4096, 1024, 1024}};
    ck_assert_double_eq(tws_kernel_seconds(file, &work, 1, 1), tws_kernel_seconds(own, &work, 1, 1));
    ck_assert_double_eq(tws_profile_memory_bytes(file), tws_profile_memory_bytes(own));
    ck_assert_str_eq(tws_profile_provenance(file), tws_profile_provenance(own));
    const cJSON *figure = cJSON_GetObjectItemCaseSensitive(member(json->root, "schema") ? json->root : NULL, "figures");
    published += figure != NULL;
    if (figure) ck_assert_ptr_nonnull(cJSON_GetObjectItem(figure->child, "confidence"));
    tws_profile_destroy(file);
    tws_profile_destroy(own);
    tws_json_destroy(json);
    tws_text_free(&text);
  }
  ck_assert_int_eq(published, 78);
  cJSON *wrong = cJSON_Parse(
      "{\"schema\":\"twinspeed-profile-1\",\"provenance\":\"\",\"backend\":\"tpu\",\"memory_bytes\":1,"
      "\"peak_flops\":{\"fp32\":1},\"bandwidth\":1}");
  ck_assert_str_eq(invalid(schema, wrong), "backend");
  cJSON_ReplaceItemInObject(wrong, "backend", cJSON_CreateString("other"));
  ck_assert_ptr_null(invalid(schema, wrong));
  cJSON_AddNumberToObject(wrong, "bandwith", 1);
  ck_assert_str_eq(invalid(schema, wrong), "bandwith");
  cJSON_Delete(wrong);
  cJSON_Delete(schema);
}
END_TEST

START_TEST(clusters_keep_to_the_schema) {
  cJSON *schema = schema_of(tws_cluster_print_schema);
  int count = 0;
  for (const char *const *name = tws_cluster_builtin_names(); *name; name++, count++) {
    tws_cluster own, file;
    ck_assert_int_eq(tws_cluster_load(*name, &own, &err), TWS_OK);
    cJSON *root = tws_cluster_to_json(&own);
    const char *wrong = invalid(schema, root);
    ck_assert_msg(!wrong, "%s: %s", *name, wrong);
    char *text = cJSON_Print(root);
    tws_json *json;
    ck_assert_int_eq(tws_json_parse(text, strlen(text), *name, &json, &err), TWS_OK);
    ck_assert_msg(tws_cluster_from_json(json, &file, &err) == TWS_OK, "%s: %s", *name, err.message);
    own.box = 0; /* a cluster file's figures are only shown to readers */
    cJSON *again = tws_cluster_to_json(&file), *first = tws_cluster_to_json(&own);
    char *texts[2] = {cJSON_Print(again), cJSON_Print(first)};
    ck_assert_str_eq(texts[0], texts[1]);
    ck_assert(!file.builtin && !file.assumed_nics);
    for (int i = 0; i < 2; i++) cJSON_free(texts[i]);
    cJSON_Delete(again);
    cJSON_Delete(first);
    tws_json_destroy(json);
    cJSON_free(text);
    cJSON_Delete(root);
  }
  ck_assert_int_eq(count, 17 + 78);
  cJSON *wrong = cJSON_Parse("{\"schema\":\"twinspeed-cluster-1\",\"intra\":{\"class\":\"nvlinc\"}}");
  ck_assert_str_eq(invalid(schema, wrong), "class");
  cJSON_Delete(wrong);
  cJSON_Delete(schema);
}
END_TEST

/* A link's class gives its latency, unless the file does. */
START_TEST(classes_of_links) {
  static const char text[] =
      "{\"schema\":\"twinspeed-cluster-1\",\"intra\":{\"class\":\"xgmi\",\"bandwidth\":\"448 GB/s\"},"
      "\"inter\":{\"class\":\"ethernet\",\"bandwidth\":1e9,\"latency_s\":5e-6}}",
                    bad[] = "{\"schema\":\"twinspeed-cluster-1\",\"intra\":{\"class\":\"nvlinc\",\"bandwidth\":1e9}}";
  tws_json *json;
  tws_cluster c;
  ck_assert_int_eq(tws_json_parse(text, strlen(text), "c.json", &json, &err), TWS_OK);
  ck_assert_int_eq(tws_cluster_from_json(json, &c, &err), TWS_OK);
  ck_assert(c.intra.latency_s == tws_fabric_of(TWS_FABRIC_XGMI)->latency_s && c.intra.bandwidth == 448e9);
  ck_assert(c.inter.latency_s == 5e-6 && c.inter_fabric == TWS_FABRIC_ETHERNET);
  tws_json_destroy(json);
  ck_assert_int_eq(tws_json_parse(bad, strlen(bad), "c.json", &json, &err), TWS_OK);
  ck_assert_int_eq(tws_cluster_from_json(json, &c, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "c.json:1:"));
  ck_assert_msg(strncmp(err.hint, "did you mean nvlink? known: nvlink, xgmi,", 41) == 0, "%s", err.hint);
  tws_json_destroy(json);
}
END_TEST

/* ---- hints ---- */

static int commas(const char *text) {
  int count = 0;
  for (; (text = strstr(text, ", ")) != NULL; text++) count++;
  return count;
}

START_TEST(hints_have_the_nearest_names) {
  tws_cluster c;
  tws_profile *p;
  ck_assert_int_eq(tws_cluster_load("aws-p5.48xlagre:2", &c, &err), TWS_INVALID);
  ck_assert_int_eq(commas(err.hint), 9);
  ck_assert_msg(strstr(err.hint, "; \"twinspeed convert list clusters\" prints all ") != NULL, "%s", err.hint);
  ck_assert_msg(strstr(err.hint, "name: aws-p5.48xlarge, aws-p5e.48xlarge,") != NULL, "%s", err.hint);
  ck_assert_int_eq(tws_profile_load("tpu-v5", &p, &err), TWS_INVALID);
  ck_assert_int_eq(commas(err.hint), 9);
  ck_assert_msg(strstr(err.hint, "; \"twinspeed convert list profiles\" prints all ") != NULL, "%s", err.hint);
  ck_assert_msg(strstr(err.hint, "did you mean tpu-v5") == err.hint, "%s", err.hint);
  char hint[64];
  const char *const words[] = {"alpha", "beta", "gamma"};
  tws_names_hint("gamna", words, 3, "known:", NULL, hint, sizeof hint);
  ck_assert_str_eq(hint, "did you mean gamma? known: gamma, alpha, beta");
}
END_TEST

/* The name of a device's profile is also a cluster: one node with one such device. */
START_TEST(a_device_is_a_cluster) {
  tws_cluster c;
  ck_assert_int_eq(tws_cluster_named("rtx-4090", &c, &err), TWS_OK);
  ck_assert(c.nodes == 1 && c.devices_per_node == 1 && c.lone_device);
  ck_assert_str_eq(c.profile, "rtx-4090");
  ck_assert_double_eq_tol(c.host_link.bandwidth, 31.5e9, 1);
  ck_assert(c.host_memory_bytes == 64e9 && c.cores_per_node == 16 && c.host_bandwidth > 0);
  ck_assert_int_eq(tws_cluster_named("a100", &c, &err), TWS_OK); /* a cluster of that name has priority over the
                                                                  * device */
  ck_assert(!c.lone_device && c.nics_per_node == 1);
  ck_assert_int_eq(tws_cluster_named("rtx-4090:2", &c, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "rtx-4090 names one device") != NULL, "%s", err.message);
  ck_assert_int_eq(tws_cluster_named("rtx-4009", &c, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.hint, "did you mean rtx-4090?") == err.hint && commas(err.hint) == 10, "%s", err.hint);
}
END_TEST

/* Each spelling of a card leads to its name, and not to a card of another number. */
START_TEST(spellings_of_a_card) {
  static const char *const spellings[][2] = {{"4080", "rtx-4080"},
                                             {"RTX 4080", "rtx-4080"},
                                             {"rtx4080", "rtx-4080"},
                                             {"RTX-3070", "rtx-3070"},
                                             {"rtx 4070 ti super", "rtx-4070-ti-super"},
                                             {"rtx-4060-ti", "rtx-4060-ti-16gb"},
                                             {"rtx-3060-12gb", "rtx-3060"}};
  for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
    tws_cluster c;
    char start[64];
    snprintf(start, sizeof start, "did you mean %s?", spellings[i][1]);
    ck_assert_int_eq(tws_cluster_named(spellings[i][0], &c, &err), TWS_INVALID);
    ck_assert_msg(strstr(err.hint, start) == err.hint, "%s: %s", spellings[i][0], err.hint);
    ck_assert_int_eq(tws_cluster_named(spellings[i][1], &c, &err), TWS_OK);
  }
  tws_cluster narrow;
  ck_assert_int_eq(tws_cluster_named("rtx-4060-ti-16gb:1x1", &narrow, &err), TWS_OK);
  ck_assert_double_eq(narrow.host_link.bandwidth, 15.75e9);
}
END_TEST

/* ---- the page ---- */

static void print_figure(FILE *out, const tws_figure *list, const char *key, double unit) {
  for (; list->key && strcmp(list->key, key) != 0; list++) {
  }
  if (list->key)
    fprintf(out, " %.6g%s |", list->value * unit,
            list->mark == TWS_MARK_RECALLED  ? "\\*"
            : list->mark == TWS_MARK_DERIVED ? "'"
                                             : "");
  else
    fprintf(out, " |");
}

/* Prints figures grouped by source: "KAWS MLP: gpus 8, ...; recalled: ..." */
static void print_by_source(FILE *out, const tws_figure *list) {
  const tws_figure *first = list;
  for (; list->key; list++) {
    int known = 0;
    for (const tws_figure *f = first; f < list; f++)
      known |= f->mark == list->mark && strcmp(f->sources, list->sources) == 0;
    if (known) continue;
    fprintf(out, "%s%s:", list == first ? " " : "; ", *list->sources ? list->sources : tws_mark_name(list->mark));
    int count = 0;
    for (const tws_figure *f = list; f->key; f++)
      if (f->mark == list->mark && strcmp(f->sources, list->sources) == 0)
        fprintf(out, "%s %s %.6g", count++ ? "," : "", f->key, f->value);
  }
  fprintf(out, ".\n");
}

static void print_devices(FILE *out) {
  static const char *const columns[] = {"peak.fp32", "peak.bf16", "peak.fp16", "peak.fp8",       "peak.fp4",
                                        "hbm_gb",    "hbm_GBps",  "sms",       "nvlink_uni_GBps"};
  fprintf(
      out,
      "\n## Devices\nPeaks are dense TFLOP/s, memory GB, bandwidth and link GB/s (one way, all links).\n\n"
      "| profile | device | backend | fp32 | bf16 | fp16 | fp8 | fp4 | memory | bandwidth | SMs | link | products |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int i = 0; tws_device_nth(i); i++) {
    const tws_device *d = tws_device_nth(i);
    tws_profile *p;
    const char *what;
    ck_assert_int_eq(tws_profile_load(d->profile, &p, &err), TWS_OK);
    fprintf(out, "| `%s` | %s | %s |", d->profile, d->name, tws_profile_has_no_engine(p) ? "other" : "cuda");
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) print_figure(out, d->figures, columns[c], 1);
    const double share = tws_device_products(d, "bf16", &what);
    fprintf(out, " %.2f, %s", tws_profile_product_share(p),
            tws_profile_rates(p) == TWS_RATES_OWN        ? "fitted to training"
            : tws_profile_rates(p) == TWS_RATES_MEASURED ? "measured"
                                                         : "data sheet");
    if (share > 0) fprintf(out, " (%s %.3g)", what, share);
    fprintf(out, " |\n");
    tws_profile_destroy(p);
  }
  fprintf(out, "\n### By source\n");
  for (int i = 0; tws_device_nth(i); i++) {
    const tws_device *d = tws_device_nth(i);
    fprintf(out, "- `%s`: %s, %s, %s; link: %s.%s%s%s", d->profile, d->vendor, d->architecture, d->memory, d->link,
            *d->doubt ? " Doubt: " : "", d->doubt, *d->doubt ? "." : "");
    print_by_source(out, d->figures);
  }
}

static void print_boxes(FILE *out) {
  static const char *const columns[] = {"gpus",  "intra_uni_GBps_per_gpu", "nic_count",    "nic_gbps",
                                        "cores", "host_memory_gb",         "local_nvme_tb"};
  fprintf(
      out,
      "\n## Boxes and instances\nLinks between devices are GB/s of a device, one way, nominal; NICs Gbit/s each; host "
      "memory GB; local disks TB.\n\n"
      "| cluster | box | profile | devices | link | fabric | NICs | each | fabric | cores | memory | disks |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int i = 0; tws_box_nth(i); i++) {
    const tws_box *b = tws_box_nth(i);
    fprintf(out, "| `%s` | %s | `%s` |", b->name, b->title, b->profile);
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
      print_figure(out, b->figures, columns[c], 1);
      if (c == 1) fprintf(out, " %s |", tws_fabric_of(b->intra)->word);
      if (c == 3) fprintf(out, " %s |", tws_fabric_of(b->nic)->word);
    }
    fprintf(out, "\n");
  }
  fprintf(out, "\n### By source\n");
  for (int i = 0; tws_box_nth(i); i++) {
    const tws_box *b = tws_box_nth(i);
    fprintf(out, "- `%s`: %s%s%s%s%s.", b->name, *b->topology ? b->topology : "one device", *b->nics ? "; " : "",
            b->nics, *b->cpu ? "; " : "", b->cpu);
    print_by_source(out, b->figures);
  }
}

static char *page(void) {
  char *text = NULL;
  size_t length = 0;
  const char *about, *key;
  FILE *out = open_memstream(&text, &length);
  fprintf(
      out,
      "# Devices, boxes and instances\n"
      "Built-in profiles and clusters with published figures, made from `models/hardware/devices.def`, "
      "`config/boxes.def` "
      "and `config/fabrics.def` by the suite `hardware` (`TWINSPEED_UPDATE=1 build/tests/test_hardware` writes it "
      "again). `twinspeed estimate -m MODEL --cluster aws-p5.48xlarge:4`, or `--profile rtx-4090 -n 2`, takes them; "
      "`twinspeed convert profile NAME -` and `convert cluster NAME -` print one as a file, with the confidence and "
      "the "
      "sources of each figure. How times follow from them is in [profiles](profiles.md).\n\n"
      "A figure without a mark was read in the sources that are listed by device, \\* is from memory, ' is computed "
      "from "
      "others. Computed peaks are SMs times clock times the operations of an SM in a cycle, which "
      "`models/hardware/devices.def` "
      "states. Backend *other*: the engines of this program do not run on it, so that it is planned (`estimate`, "
      "`check`, "
      "`simulate`, `tune`, `emulate`) and not trained on.\n\n"
      "*Products* is the share of the 16-bit peak that large products reach: fitted to published training runs; "
      "measured, where products of the device are published (*median* of large products of serving frameworks, *large* "
      "ones of one size, or 0.9 of the *best* of a search over shapes, at most 0.85 on a GPU, whose tiles read their "
      "operands); or by data sheet, with a share that other devices reach. Answers with the latter two say so where "
      "they list what was assumed, and no training run is near them. Five devices had profiles before, and keep them: "
      "`h100-pcie`, `b200`, `gb200`, `b300` and `gb300` cost with what stands in `models/hardware/builtin.c`. Memory "
      "is what CUDA reports, where that is published, else 0.99 of what nvidia-smi prints, else the size on the box. "
      "Devices that software sees as two have halves of the figures in their profile.\n");
  fprintf(
      out,
      "\n## Fabrics\nClasses of links, with the latency of a link and the share of the nominal rate that collectives "
      "reach. Sources are in `config/fabrics.def`. In a cluster file `\"class\"` names one, and gives `latency_s` "
      "where "
      "that is absent.\n\n| class | latency, us | share | |\n|---|---|---|---|\n");
  for (int i = 1; i < TWS_FABRIC_COUNT; i++) {
    const tws_fabric_row *f = tws_fabric_of(i);
    fprintf(out, "| `%s` | %.3g | %.2f | %s |\n", f->word, f->latency_s * 1e6, f->reached, f->about);
  }
  print_devices(out);
  print_boxes(out);
  fprintf(out, "\n## Sources\n");
  for (int i = 0; (key = tws_figure_source_nth(i, &about)) != NULL; i++) fprintf(out, "- %s: %s\n", key, about);
  fclose(out);
  return text;
}

START_TEST(page_is_that_of_the_data) {
  char *expected = page();
  assert_page(PAGE, expected,
              "docs/hardware.md is not what the data says: TWINSPEED_UPDATE=1 build/tests/test_hardware");
  free(expected);
}
END_TEST

int main(void) {
  Suite *s = suite_create("hardware");
  TCase *c = tcase_create("hardware");
  tcase_add_test(c, figures_are_those_published);
  tcase_add_test(c, figures_agree_with_each_other);
  tcase_add_test(c, profiles_have_the_figures);
  tcase_add_test(c, products_as_measured);
  tcase_add_test(c, clusters_have_the_figures);
  tcase_add_test(c, an_estimate_on_each);
  tcase_add_test(c, no_engine_runs_on_others);
  tcase_add_test(c, measured_products_stay);
  tcase_add_test(c, profiles_keep_to_the_schema);
  tcase_add_test(c, clusters_keep_to_the_schema);
  tcase_add_test(c, classes_of_links);
  tcase_add_test(c, hints_have_the_nearest_names);
  tcase_add_test(c, a_device_is_a_cluster);
  tcase_add_test(c, spellings_of_a_card);
  tcase_add_test(c, page_is_that_of_the_data);
  suite_add_tcase(s, c);
  return run_suite(s);
}
