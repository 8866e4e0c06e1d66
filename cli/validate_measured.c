/* twinspeed validate --cases --measured: uses each run of a group as the one measurement, and predicts the others with
 * it. */
#include <math.h>

#include "cli/validate.h"
#include "validation/cases.h"

static tws_code print_choices(const tws_cli *cli, const tws_case_choices *c, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 6);
  tws_out("Each run as the one measurement that rescales the profile; errors of step times in percent:\n");
  tws_table_row(&table, (const char *[]){"measured run", "products", "memory", "links", "own", "others"});
  for (int i = 0; i < c->count; i++) {
    const tws_case_choice *one = &c->choices[i];
    tws_table_row(&table, (const char *[]){one->of->id, tws_cell("%.3f", one->factor[TWS_SCALE_PRODUCTS]),
                                           tws_cell("%.3f", one->factor[TWS_SCALE_MEMORY]),
                                           tws_cell("%.3f", one->factor[TWS_SCALE_LINKS]), tws_cell("%.1f", one->own),
                                           isfinite(one->others) ? tws_cell("%.1f", one->others) : ""});
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  tws_out("\n");
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"group", "runs", "mean without", "mean of the others"});
  for (int i = 0; i < c->group_count; i++)
    tws_table_row(&table,
                  (const char *[]){c->groups[i].group, tws_cell("%d", c->groups[i].runs),
                                   tws_cell("%.1f", c->groups[i].before), tws_cell("%.1f", c->groups[i].after)});
  return tws_table_print(cli, &table, err);
}

static tws_code print_json(const tws_case_choices *c, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-cases-measured-1");
  cJSON *groups = cJSON_AddArrayToObject(root, "groups"), *choices = cJSON_AddArrayToObject(root, "choices");
  for (int i = 0; i < c->group_count; i++) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "group", c->groups[i].group);
    cJSON_AddNumberToObject(item, "n", c->groups[i].runs);
    cJSON_AddNumberToObject(item, "mape_before", c->groups[i].before);
    cJSON_AddNumberToObject(item, "mape_others", c->groups[i].after);
    cJSON_AddItemToArray(groups, item);
  }
  for (int i = 0; i < c->count; i++) {
    const tws_case_choice *one = &c->choices[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "id", one->of->id);
    cJSON_AddNumberToObject(item, "measured_s", one->measured_s);
    for (int s = 0; s < TWS_SCALE_COUNT; s++) cJSON_AddNumberToObject(item, tws_scale_name(s), one->factor[s]);
    cJSON_AddNumberToObject(item, "own_ape", one->own);
    if (isfinite(one->others)) cJSON_AddNumberToObject(item, "others_mape", one->others);
    cJSON_AddItemToArray(choices, item);
  }
  return tws_out_json(root, err);
}

static tws_code within_tolerance(const tws_validate_options *o, const tws_case_choices *c, tws_error *err) {
  for (int i = 0; i < c->group_count && o->tolerance >= 0; i++)
    if (c->groups[i].after > o->tolerance)
      return tws_fail(err, TWS_NO, NULL, "the mean error of the other runs of %s is %.1f %%, the tolerance is %.3g %%",
                      c->groups[i].group, c->groups[i].after, o->tolerance);
  return TWS_OK;
}

tws_code tws_validate_measured(const tws_cli *cli, const tws_validate_options *o, tws_error *err) {
  tws_cases *cases = NULL;
  tws_case_choices choices = {0};
  tws_progress progress = tws_cli_progress(cli);
  TWS_TRY(tws_cases_load(o->cases, &cases, err));
  tws_code code = tws_cases_rescale(cases, o->group.item, o->group.count, &progress, &choices, err);
  if (code == TWS_OK) code = cli->json ? print_json(&choices, err) : print_choices(cli, &choices, err);
  if (code == TWS_OK) code = within_tolerance(o, &choices, err);
  tws_case_choices_free(&choices);
  tws_cases_destroy(cases);
  return code;
}
