/* Files of other tools: descriptions of nodes as clusters, logs of nccl-tests as tables of a profile. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/cluster.h"
#include "config/topology_import.h"
#include "models/hardware/nccl_tests.h"
#include "models/hardware/profile.h"
#include "tests/suite.h"

static tws_error err;

/* A file as NCCL_TOPO_DUMP_FILE writes it, shortened: two GPUs of a node (NVIDIA/nccl-tests, issue 256). */
static const char node[] =
    "<system version=\"1\">\n"
    " <cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"207\">\n"
    "  <!-- one switch of PCIe for each GPU and its NIC -->\n"
    "  <pci busid=\"0000:16:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "   <pci busid=\"0000:18:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "    <gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\">\n"
    "     <nvlink target=\"0000:07:00.0\" count=\"5\" tclass=\"0x068000\"/>\n"
    "     <nvlink target=\"0000:06:00.0\" count=\"5\" tclass=\"0x068000\"/>\n"
    "     <nvlink target=\"0000:05:00.0\" count=\"4\" tclass=\"0x068000\"/>\n"
    "     <nvlink target=\"0000:08:00.0\" count=\"4\" tclass=\"0x068000\"/>\n"
    "    </gpu>\n"
    "   </pci>\n"
    "   <pci busid=\"0000:19:00.0\" class=\"0x020000\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "    <nic><net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" port=\"1\" gdr=\"1\"/></nic>\n"
    "   </pci>\n"
    "  </pci>\n"
    " </cpu>\n"
    " <cpu numaid=\"1\" arch=\"x86_64\" vendor=\"GenuineIntel\">\n"
    "  <pci busid=\"0000:5a:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "   <pci busid=\"0000:5c:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "    <gpu dev=\"1\" sm=\"90\" rank=\"1\" gdr=\"1\">\n"
    "     <nvlink target=\"fffffff:ff:ff.0\" count=\"18\" tclass=\"0x068000\"/>\n"
    "    </gpu>\n"
    "   </pci>\n"
    "   <pci busid=\"0000:5d:00.0\" class=\"0x020000\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n"
    "    <nic><net name=\"mlx5_1\" dev=\"1\" speed=\"400000\" port=\"1\" gdr=\"1\"/></nic>\n"
    "   </pci>\n"
    "  </pci>\n"
    "  <nic><net name=\"eth0\" dev=\"2\" speed=\"10000\" port=\"0\" gdr=\"0\"/></nic>\n"
    " </cpu>\n"
    "</system>\n";

/* Output of nvidia-smi topo -m for A100 attached to switches, and for V100 without. */
static const char switched[] =
    "\t\033[4mGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n"
    "GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-31,64-95\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-31,64-95\t0\t\tN/A\n"
    "GPU2\tNV12\tNV12\t X \tNV12\tPXB\tSYS\t32-63\t1\t\tN/A\n"
    "GPU3\tNV12\tNV12\tNV12\t X \tPXB\tSYS\t32-63\t1\t\tN/A\n"
    "mlx5_0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\n"
    "\n"
    "Legend:\n"
    "  X    = Self\n";
static const char direct[] =
    "        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity\n"
    "GPU0      X     NV2    NV2    NV2    PIX     0-19\n"
    "GPU1     NV2     X     NV2    NV2    PIX     0-19\n"
    "GPU2     NV2    NV2     X     NV2    PIX     0-19\n"
    "GPU3     NV2    NV2    NV2     X     PIX     0-19\n";

static const char plain[] =
    "        GPU0    GPU1    GPU2    GPU3    CPU Affinity\n"
    "GPU0      X     PIX    SYS    SYS     0-9,20-29\n"
    "GPU1     PIX     X     SYS    SYS     0-9,20-29\n"
    "GPU2     SYS    SYS     X     PIX     10-19,30-39\n"
    "GPU3     SYS    SYS    PIX     X      10-19,30-39\n";

static void read_back(const tws_node_description *n, const char *profile, int nodes, tws_cluster *out) {
  cJSON *root = tws_topology_cluster(n, "node", profile, nodes);
  char *text = cJSON_Print(root);
  tws_json *json;
  ck_assert_int_eq(tws_json_parse(text, strlen(text), "c.json", &json, &err), TWS_OK);
  ck_assert_msg(tws_cluster_from_json(json, out, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  cJSON_free(text);
  cJSON_Delete(root);
}

START_TEST(nodes_as_nccl_dumps_them) {
  tws_node_description n;
  tws_cluster c;
  ck_assert_msg(tws_topology_read(node, "node.xml", &n, &err) == TWS_OK, "%s", err.message);
  ck_assert(n.devices == 2 && n.links == 18 && !n.paired && n.sm == 90 && n.processors == 2 && n.sharers == 1);
  ck_assert(n.nics == 2 && n.nic_bandwidth == 50e9 && !n.amd); /* not the one of 10 Gbit/s */
  ck_assert_double_eq_tol(n.pcie_bandwidth, 63e9, 0.1e9);
  read_back(&n, NULL, 16, &c);
  ck_assert(c.nodes == 16 && c.devices_per_node == 2 && c.intra.bandwidth == 450e9 && c.inter.bandwidth == 50e9);
  ck_assert(c.nics_per_node == 2 && c.numa_nodes == 2 && c.message_s == 1e-6);
  ck_assert_str_eq(c.profile, "h100-sxm");
  ck_assert_int_eq(tws_topology_read("<system version=\"1\"><cpu numaid=\"0\"/></system>", "x", &n, &err), TWS_INVALID);
  ck_assert_int_eq(tws_topology_read("<system version=\"1\"><gpu dev=\"0\"", "x", &n, &err), TWS_INVALID);
}
END_TEST

START_TEST(nodes_as_nvidia_smi_prints_them) {
  tws_node_description n;
  tws_cluster c;
  ck_assert_msg(tws_topology_read(switched, "a.txt", &n, &err) == TWS_OK, "%s", err.message);
  ck_assert(n.devices == 4 && n.links == 12 && !n.paired && n.nics == 2 && n.processors == 2);
  read_back(&n, NULL, 1, &c);
  ck_assert(c.intra.bandwidth == 300e9 && c.inter.bandwidth == 25e9 && !c.paired);
  ck_assert_str_eq(c.profile, "a100-80gb");
  ck_assert_msg(tws_topology_read(direct, "v.txt", &n, &err) == TWS_OK, "%s", err.message);
  ck_assert(n.devices == 4 && n.links == 6 && n.paired && n.nics == 1);
  read_back(&n, "v100-16gb", 2, &c);
  ck_assert(c.paired && c.intra.bandwidth == 150e9 && tws_cluster_port(&c, 2) == 50e9);
  ck_assert_str_eq(c.profile, "v100-16gb");
  ck_assert(n.processors == 1); /* all have the same cores */
  /* without a column of NUMA nodes, devices with different cores are on different NUMA nodes; PIX: on the same PCIe
   * switch */
  ck_assert_msg(tws_topology_read(plain, "t4.txt", &n, &err) == TWS_OK, "%s", err.message);
  ck_assert(n.devices == 4 && n.links == 0 && n.processors == 2 && n.sharers == 2);
  read_back(&n, "a100-40gb", 1, &c);
  ck_assert(c.numa_nodes == 2 && c.devices_per_host_link == 2);
  ck_assert_int_eq(tws_topology_read("no matrix\n", "x", &n, &err), TWS_INVALID);
}
END_TEST

#define RANKS(host)                                                                    \
  "#  Rank  0 Group  0 Pid    880 on       a device  0 [0xa4] NVIDIA A100-SXM4-80GB\n" \
  "#  Rank  1 Group  0 Pid    881 on " host                                            \
  " device  1 [0xa9] NVIDIA A100-SXM4-80GB\n"                                          \
  "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
#define SUM(bytes, count, us)                                \
  "   " bytes "  " count "     float     sum      -1    " us \
  "  156.51  156.51      0    819.6  163.76  163.76      "   \
  "0\n"

START_TEST(logs_become_tables) {
  static const char log[] = "# Collective test starting: all_reduce_perf\n" RANKS("a") SUM(
      "134217728", "33554432", "857.6") SUM("536870912", "134217728", "2789.9") "# Avg bus bandwidth    : 179.465\n";
  tws_nccl_log read;
  tws_json *json;
  tws_profile *profile;
  cJSON *root;
  ck_assert_msg(tws_nccl_tests_read(log, "a.log", &read, &err) == TWS_OK, "%s", err.message);
  ck_assert(read.collective == TWS_COLLECTIVE_ALL_REDUCE && read.ranks == 2 && read.count == 2);
  ck_assert_msg(tws_nccl_tests_into(&read, "a.log", "a100-80gb", &root, &err) == TWS_OK, "%s", err.message);
  char *text = cJSON_Print(root);
  ck_assert_int_eq(tws_json_parse(text, strlen(text), "p.json", &json, &err), TWS_OK);
  ck_assert_msg(tws_profile_from_json(json, &profile, &err) == TWS_OK, "%s", err.message);
  ck_assert_ptr_nonnull(strstr(tws_profile_provenance(profile), "nccl-tests (a.log)"));
  tws_cluster cluster;
  ck_assert_int_eq(tws_cluster_load("dgx-a100", &cluster, &err), TWS_OK);
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_REDUCE, 2, 8, 536870912, 1),
                          2789.9e-6, 1e-9);
  tws_profile_destroy(profile);
  tws_json_destroy(json);
  cJSON_free(text);
  cJSON_Delete(root);
  /* a log that names no test reveals it by its columns: here each of two ranks gets half */
  ck_assert_int_eq(tws_nccl_tests_read(RANKS("a") SUM("134217728", "16777216", "857.6"), "b", &read, &err), TWS_OK);
  ck_assert_int_eq(read.collective, TWS_COLLECTIVE_REDUCE_SCATTER);
  static const struct {
    const char *log, *says;
  } bad[] = {
      {"nothing\n", "no row of nccl-tests"},
      {SUM("134217728", "33554432", "857.6"), "names 0 ranks"},
      {"# Rank 0 on a\n# Rank 1 on a\n" SUM("134217728", "33554432", "857.6"),
       "x.log:3: no line before this row says what its columns are"},
      {RANKS("a") "  1024  256  float  sum  21.00  0.05  0.05  0e+00  20.90  0.05  0.05  0e+00\n",
       "x.log:4: the row's columns are not those of the log's header line"},
      {RANKS("b") SUM("134217728", "33554432", "857.6"), "of several nodes"},
      {"# Collective test starting: alltoall_perf\n" RANKS("a") SUM("134217728", "33554432", "857.6"), "no table"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    err = (tws_error){0};
    ck_assert_int_eq(tws_nccl_tests_read(bad[i].log, "x.log", &read, &err), TWS_INVALID);
    ck_assert_msg(strstr(err.message, bad[i].says), "%s", err.message);
  }
}
END_TEST

/* Before 2021, logs of tests without a root have no column for it: the column after the sum is the time. */
START_TEST(logs_without_roots) {
  static const char ranks[] =
      "#   Rank  0 Pid 100 on a device  0 [0x3b] Tesla T4\n#   Rank  1 Pid 100 on a device  1 [0x86] Tesla T4\n"
      "#                                                     out-of-place                       in-place\n";
  static const char sums[] =
      "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
      "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
      "        1024           256   float     sum    21.00    0.05    0.05  0e+00    20.90    0.05    0.05  0e+00\n"
      "     1048576        262144   float     sum    310.5    3.38    3.38  0e+00    309.7    3.39    3.39  0e+00\n"
      "   134217728      33554432   float     sum    35012    3.83    3.83  0e+00    35010    3.83    3.83  0e+00\n";
  static const char roots[] =
      "#       size         count    type    root     time   algbw   busbw  error\n"
      "     1048576        262144   float       0    310.5    3.38    3.38  0e+00\n";
  static const double expected[3][2] = {{1024, 21e-6}, {1048576, 310.5e-6}, {134217728, 35012e-6}};
  char log[4096];
  tws_nccl_log read;
  snprintf(log, sizeof log, "%s%s", ranks, sums);
  ck_assert_msg(tws_nccl_tests_read(log, "2019.log", &read, &err) == TWS_OK, "%s", err.message);
  ck_assert(read.collective == TWS_COLLECTIVE_ALL_REDUCE && read.ranks == 2 && read.count == 3);
  for (int i = 0; i < 3; i++) {
    ck_assert_double_eq(read.samples[i][0], expected[i][0]);
    ck_assert_double_eq_tol(read.samples[i][1], expected[i][1], 1e-12);
  }
  snprintf(log, sizeof log, "%s%s", ranks, roots);
  ck_assert_msg(tws_nccl_tests_read(log, "2019.log", &read, &err) == TWS_OK, "%s", err.message);
  ck_assert(read.collective == TWS_COLLECTIVE_BROADCAST && read.count == 1);
  ck_assert_double_eq_tol(read.samples[0][1], 310.5e-6, 1e-12);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("imports");
  TCase *all = tcase_create("all");
  tcase_add_test(all, logs_without_roots);
  tcase_add_test(all, nodes_as_nccl_dumps_them);
  tcase_add_test(all, logs_without_roots);
  tcase_add_test(all, nodes_as_nvidia_smi_prints_them);
  tcase_add_test(all, logs_become_tables);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
