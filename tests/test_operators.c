/* ctest: sampled */
/* The table of operators: invariants of every row, and the page that is made from the table. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/optimizer.h"
#include "models/collective.h"
#include "models/network/module.h"
#include "models/operator.h"
#include "tests/page.h"
#include "tests/sample.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

static const char PAGE[] = TWS_TEST_DIR "/../docs/operators.md";

/* Check records every assertion in a file, which is too slow for this number of works: REQUIRE() reports failures
 * only. */
#define REQUIRE(condition, ...)                  \
  do {                                           \
    if (!(condition)) ck_abort_msg(__VA_ARGS__); \
  } while (0)

/* ---- the page ---- */

/* Prints an expression of the table without the program's prefixes and casts. */
static void print_expression(FILE *out, const char *text) {
  for (; *text; ++text) {
    if (strncmp(text, "TWS_", 4) == 0) text += 4;
    if (*text == '|') fputc('\\', out); /* ends a cell */
    fputc(*text, out);
  }
}

static void print_names(FILE *out, const char *what, const char *array, const char *const *names, int count,
                        const signed char *least) {
  if (count == 0) return;
  fprintf(out, "%s:", what);
  for (int i = 0; i < count; ++i)
    fprintf(out, "%s `%s[%d]` %s%s", i ? "," : "", array, i, names[i], least && !least[i] ? " (may be 0)" : "");
  fprintf(out, ".\n");
}

static void print_operand(FILE *out, const tws_operand_text *o) {
  const int scratch = o->content && strcmp(o->content, "SCRATCH") == 0;
  fprintf(out, "| %s | %s | ", o->name, o->access);
  print_expression(out, o->dtype);
  fprintf(out, " | ");
  if (scratch)
    fprintf(out, "`tws_work_workspace` bytes");
  else
    fprintf(out, "["), print_expression(out, o->shape), fprintf(out, "]");
  fprintf(out, " | ");
  if (o->when) print_expression(out, o->when);
  fprintf(out, " | ");
  const char *separator = "";
  if (o->adds_with) fprintf(out, "added to with %s", o->adds_with), separator = "; ";
  if (o->in_place) fprintf(out, "%smay be %s", separator, o->in_place), separator = "; ";
  if (o->content && !scratch && strcmp(o->content, "NUMBERS") != 0) {
    fprintf(out, "%sholds ", separator), separator = "; ";
    print_expression(out, o->content);
  }
  if (o->reads) {
    fprintf(out, "%sreads ", separator);
    print_expression(out, o->reads);
    fprintf(out, ", writes ");
    print_expression(out, o->writes);
  }
  fprintf(out, " |\n");
}

/* Prints a list with commas in place of |, which would end a cell of the page's table. */
static void print_list(FILE *out, const char *list) {
  for (; *list; ++list) fprintf(out, *list == '|' ? ", " : "%c", *list);
}

static const tws_kernel update_kernels[] = {
#define UPDATE_RULE(id, ...) TWS_KERNEL_##id,
#define FACTORED_RULE(id) TWS_KERNEL_##id,
#include "config/optimizers.def"
};

static void print_operator(FILE *out, const tws_operator *o) {
  fprintf(out, "\n## %s\n%s\n\n", o->identifier, o->summary);
  print_names(out, "Sizes", "d", o->dim, o->dims, o->least);
  print_names(out, "Parameters", "f", o->parameter, o->parameters, NULL);
  print_names(out, "Arguments", "a", o->argument, o->arguments, NULL);
  fprintf(out, "Flops: ");
  print_expression(out, o->flops);
  fprintf(out, ".\n\n| operand | access | type | shape | there when | |\n|---|---|---|---|---|---|\n");
  for (const tws_operand_text *operand = o->operand; operand->name; ++operand) print_operand(out, operand);
}

static void print_optimizers(FILE *out) {
  fprintf(out,
          "\n## Optimizers\nWords for `optimizer.type`, from `config/optimizers.def`; all take lr and weight_decay.\n\n"
          "| type | also | kernel | keeps | takes | betas | eps |\n|---|---|---|---|---|---|---|\n");
  for (int i = 0; i < TWS_OPTIMIZER_COUNT; ++i) {
    const tws_optimizer_row *row = tws_optimizer_of((tws_optimizer)i);
    fprintf(out, "| %s | ", row->type);
    print_list(out, row->aliases);
    fprintf(out, " | %s | ", tws_kernel_name(update_kernels[row->rule]));
    for (int k = 0; k < row->states; ++k) fprintf(out, "%s%s", k ? ", " : "", row->state[k]);
    fprintf(out, " | ");
    print_list(out, row->takes);
    if (tws_optimizer_has_argument(row, "betas"))
      fprintf(out, " | %g, %g |", row->beta1, row->beta2);
    else
      fprintf(out, " |  |");
    if (tws_optimizer_has_argument(row, "eps")) fprintf(out, " %g", row->epsilon);
    fprintf(out, " |\n");
  }
}

static void print_collectives(FILE *out) {
  static const char *const roots[] = {"", "sends", "receives"};
  fprintf(out,
          "\n## Collectives\nFrom `models/collectives.def`; n is the number of ranks in the group. A rank sends and "
          "receives the stated number of times a segment's count of elements; of pairs with a root the n parts are the "
          "root's alone. Steps are messages that come one after another.\n\n"
          "| collective | | pattern | sends | receives | steps | root | sums | uneven |\n"
          "|---|---|---|---|---|---|---|---|---|\n");
  for (int c = 0; c < TWS_COLLECTIVE_COUNT; ++c) {
    const tws_collective_row *row = tws_collective_of((tws_collective)c);
    fprintf(out, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", row->name, row->summary, row->pattern_text,
            row->sends, row->receives, row->steps, roots[row->root], row->reduces ? "yes" : "",
            row->uneven ? "yes" : "");
  }
}

static char *page(void) {
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  ck_assert_ptr_nonnull(out);
  fprintf(
      out,
      "# Operators\n"
      "Every kernel that plans name, made from `models/operators.def` by the suite `operators` "
      "(`TWINSPEED_UPDATE=1 build/tests/test_operators` writes it again).\n\n"
      "dtype and dtype2 are the types of a work: of activations and parameters, and of what gradients are "
      "accumulated in or of the other side. flag(X) is whether the work has the flag X, EIGHT(type) that type with FP8 "
      "and "
      "dtype without. Tensors are row-major and "
      "contiguous. Parameters are of a work, arguments of one operation: they change what it computes, and not what it "
      "costs. WRITE overwrites; UPDATE reads and writes. Compulsory traffic, which costs are made from, is every "
      "operand once in or out, unless its row says what it reads and writes.\n");
  for (int k = 0; k < TWS_KERNEL_COUNT; ++k) print_operator(out, tws_operator_of((tws_kernel)k));
  print_optimizers(out);
  print_collectives(out);
  fclose(out);
  return text;
}

START_TEST(page_is_that_of_the_table) {
  char *expected = page();
  assert_page(PAGE, expected,
              "docs/operators.md is not what the tables say: TWINSPEED_UPDATE=1 build/tests/test_operators");
  free(expected);
}
END_TEST

/* ---- rows ---- */

static const tws_kernel_operand *find(const tws_kernel_operand *list, int count, const char *name, size_t length) {
  for (int i = 0; i < count; ++i)
    if (strlen(list[i].name) == length && strncmp(list[i].name, name, length) == 0) return &list[i];
  return NULL;
}

/* Asserts that an output may share memory only with inputs of its own size and type. */
static void check_in_place(const tws_kernel_operand *list, int count, const tws_kernel_operand *out) {
  REQUIRE(out->access == TWS_OPERAND_WRITE, "%s", out->name);
  for (const char *name = out->in_place; *name; name += strspn(name, ", ")) {
    const size_t length = strcspn(name, ",");
    const tws_kernel_operand *in = find(list, count, name, length);
    REQUIRE(in && in->access == TWS_OPERAND_READ && in->dtype == out->dtype && in->elements == out->elements,
            "%s cannot have the memory of %s", out->name, name);
    name += length;
  }
}

static void check_work(const tws_work *work) {
  tws_kernel_operand list[TWS_OPERATOR_OPERANDS];
  const tws_operator *row = tws_operator_of((tws_kernel)work->code);
  const int count = tws_work_operands(work, NULL, list);
  double bytes = 0;
  int parts = 0, text = 0;
  REQUIRE(count > 0, "%s has no operands", row->name);
  for (int i = 0; i < count; ++i) {
    const tws_kernel_operand *o = &list[i];
    while (row->operand[text].name && strcmp(row->operand[text].name, o->name) != 0) ++text;
    REQUIRE(row->operand[text].name != NULL, "%s: %s is out of order", row->name, o->name);
    REQUIRE(find(list, count, o->name, strlen(o->name)) == o, "%s: two operands are %s", row->name, o->name);
    REQUIRE(o->elements > 0 || o->content == TWS_HOLDS_SCRATCH, "%s: %s is empty", row->name, o->name);
    REQUIRE(o->content != TWS_HOLDS_SCRATCH || tws_work_workspace(work, TWS_BACKEND_HOST, 1) > 0, "%s", row->name);
    if (o->in_place) check_in_place(list, count, o);
    const double most = o->elements * (double)tws_dtype_bytes(o->dtype) * (o->access == TWS_OPERAND_UPDATE ? 2 : 1);
    parts |= o->moves_part;
    bytes += most;
  }
  REQUIRE(parts || tws_work_bytes(work) == bytes, "%s: %g bytes, its operands have %g", row->name, tws_work_bytes(work),
          bytes);
  REQUIRE(tws_work_flops(work) >= 0, "%s", row->name);
}

enum { OF = 5 };
static uint32_t first_of_sample(void) {
  uint32_t first = 0;
  while (!takes(first, OF)) first++;
  return first;
}

START_TEST(rows_hold_together) {
  for (int k = 0; k < TWS_KERNEL_COUNT; ++k) {
    const tws_operator *row = tws_operator_of((tws_kernel)k);
    ck_assert_int_le(row->dims, TWS_WORK_DIMS);
    ck_assert_int_le(row->arguments, TWS_ARGUMENTS);
    for (int other = 0; other < k; ++other) ck_assert_str_ne(row->name, tws_kernel_name((tws_kernel)other));
    /* a third of the sets of the lower flags, and every 14745th set of all flags; under the sanitizers a seventh of the
     * former. A sample has one of five adjacent sets, under the sanitizers of 35: with steps of an odd number all flags
     * are set and clear equally often. */
    const uint32_t step = TWS_SANITIZED ? (takes_all() ? 7 : 7 * OF) : takes_all() ? 3 : OF;
    for (uint32_t flags = first_of_sample(); flags < 1U << TWS_KERNEL_FLAGS;
         flags += flags < 1U << 11 ? step : 4915 * step)
      for (int types = 0; types < 9; ++types) {
        /* sizes of a cache, and of its blocks and of biases, which are parameters of attention to it */
        const int caches = strncmp(row->name, "cache", 5) == 0 || k == TWS_KERNEL_LATENT_ATTENTION;
        const int tables = caches || strncmp(row->name, "attention", 9) == 0;
        const tws_work work = {.code = (uint8_t)k,
                               .dtype = (uint8_t)(types % 3),
                               .dtype2 = (uint8_t)(types / 3),
                               .flags = flags,
                               .d = {12, 4, 8, 2, 3, caches ? 5 : 0, caches ? 6 : 0, tables ? 4 : 0},
                               .f = {0, 0, 0, caches ? 8 : 0, 0, caches ? 4 : 0}};
        check_work(&work);
      }
  }
  tws_kernel_operand list[TWS_OPERATOR_OPERANDS];
  const tws_work copy = {.kind = 1};
  ck_assert_int_eq(tws_work_operands(&copy, NULL, list), 0);
  ck_assert_ptr_null(tws_operator_of(TWS_KERNEL_COUNT));
}
END_TEST

/* ---- module types ---- */

static const char *access_of(tws_binding_source source, int backward) {
  switch (source) {
    case TWS_BIND_OUT:
      return backward ? "READ" : "WRITE";
    case TWS_BIND_TAKE:
    case TWS_BIND_D_IN:
    case TWS_BIND_D_IN_PLACE:
    case TWS_BIND_D_PARAM:
      return "WRITE";
    case TWS_BIND_UPDATE:
    case TWS_BIND_D_IN_UPDATE:
    case TWS_BIND_RUNNING_UPDATE:
    case TWS_BIND_WORKSPACE:
    case TWS_BIND_METRICS:
      return "UPDATE";
    default:
      return "READ";
  }
}

static void module_kernel_fits(const char *type, const tws_module_kernel *k, int backward) {
  const tws_operator *row = tws_operator_of((tws_kernel)k->kernel);
  int i = 0;
  for (; k->binding[i].source != TWS_BIND_END; ++i) {
    const tws_operand_text *o = &row->operand[i];
    const tws_binding_source source = (tws_binding_source)k->binding[i].source;
    const char *access = access_of(source, backward);
    REQUIRE(o->name, "%s: %s has no operand %d", type, row->name, i);
    REQUIRE(source != TWS_BIND_NONE || o->when, "%s: %s needs %s", type, row->name, o->name);
    REQUIRE(source == TWS_BIND_NONE || strcmp(o->access, access) == 0, "%s: %s: %s is %s, not %s", type, row->name,
            o->name, o->access, access);
    REQUIRE(source != TWS_BIND_TAKE || o->in_place, "%s: %s cannot be in place", type, o->name);
  }
  for (; row->operand[i].name; ++i)
    REQUIRE(row->operand[i].when, "%s: %s lacks %s", type, row->name, row->operand[i].name);
}

/* Each kernel of a module has the operands of its row of the table, with the access that the row states. */
START_TEST(modules_give_kernels_their_operands) {
  int kernels = 0;
  for (int t = 0; t < TWS_MODULE_TYPE_COUNT; ++t) {
    const tws_module_row *row = tws_module_row_of((tws_module_type)t);
    REQUIRE(row->name && row->summary, "a type without a name");
    for (const tws_module_kernel *k = row->forward; k->binding[0].source; ++k, ++kernels)
      module_kernel_fits(row->name, k, 0);
    for (const tws_module_kernel *k = row->backward; k->binding[0].source; ++k, ++kernels)
      module_kernel_fits(row->name, k, 1);
  }
  ck_assert_int_gt(kernels, TWS_MODULE_TYPE_COUNT);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("operators");
  TCase *rows = tcase_create("rows");
  tcase_add_test(rows, rows_hold_together);
  tcase_add_test(rows, page_is_that_of_the_table);
  tcase_add_test(rows, modules_give_kernels_their_operands);
  suite_add_tcase(suite, rows);
  return run_suite(suite);
}
