/* Collectives and messages in the simulator, on plans made by hand: formulas, flows and messages agree, ports and NICs
 * bind, flows that share a link share its bandwidth. */
#include "tests/sim_plans.h"

START_TEST(fidelities_agree_without_contention) {
  static const tws_collective rings[] = {TWS_COLLECTIVE_ALL_REDUCE, TWS_COLLECTIVE_ALL_GATHER,
                                         TWS_COLLECTIVE_REDUCE_SCATTER};
  static maker m[16];
  machine one_node, one_each, paired;
  make_gpus(&one_node, 1, 8, 8);
  make_gpus(&one_each, 8, 1, 1);
  make_gpus(&paired, 1, 8, 8); /* with paired devices, a group of any size has its share of a port */
  paired.cluster.paired = 1;
  for (int i = 0; i < 3; i++) {
    for (int ranks = 2; ranks <= 8; ranks++) {
      for (double bytes = 840 * 64; bytes < 1e10; bytes *= 4096) { /* a multiple of all ring sizes */
        make_ring(m, ranks, rings[i], bytes, 0);
        const machine *machines[] = {&one_node, &one_each, &paired};
        for (int k = 0; k < 3; k++) {
          const double analytic = step(machines[k], m, ranks, TWS_FIDELITY_ANALYTIC);
          same(step(machines[k], m, ranks, TWS_FIDELITY_FLOW), analytic, 1e-6);
          same(step(machines[k], m, ranks, TWS_FIDELITY_MESSAGE), analytic, 1e-6);
        }
      }
    }
  }
  for (int i = 0; i < 2; i++) { /* chains: message by message, the pipeline fills first, which the formula ignores */
    const tws_collective chain = i ? TWS_COLLECTIVE_REDUCE : TWS_COLLECTIVE_BROADCAST;
    make_ring(m, 4, chain, 64e6, 0);
    const double analytic = step(&one_node, m, 4, TWS_FIDELITY_ANALYTIC);
    same(step(&one_node, m, 4, TWS_FIDELITY_FLOW), analytic, 1e-6);
    same(step(&one_node, m, 4, TWS_FIDELITY_MESSAGE), analytic, 0.04);
    for (int rank = 0; rank < 4; rank++) m[rank].ops[0].peer = 2; /* the same from another root */
    same(step(&one_node, m, 4, TWS_FIDELITY_FLOW), analytic, 1e-6);
    same(step(&one_node, m, 4, TWS_FIDELITY_MESSAGE), analytic, 0.04);
  }
  drop_machine(&one_node);
  drop_machine(&one_each);
  for (int rank = 0; rank < 2; rank++) { /* with paired devices a message uses the links of one pair only */
    begin(&m[rank], rank, 2);
    message(&m[rank], rank == 0 ? TWS_OP_SEND : TWS_OP_RECV, 1 - rank, 4e8);
  }
  for (int f = TWS_FIDELITY_ANALYTIC; f <= TWS_FIDELITY_MESSAGE; f++)
    same(step(&paired, m, 2, (tws_fidelity)f), 7 * 4e8 / port_bandwidth + 2e-6, 1e-6);
  drop_machine(&paired);
}
END_TEST

/* Rings of few nodes and many, with few bytes and many, agree at every fidelity; the largest difference is where a
 * segment takes about as long as a link's latency. */
START_TEST(rings_of_64_ranks_agree_at_every_fidelity) {
  static const tws_collective rings[] = {TWS_COLLECTIVE_ALL_REDUCE, TWS_COLLECTIVE_ALL_GATHER,
                                         TWS_COLLECTIVE_REDUCE_SCATTER};
  static maker m[64];
  for (int ranks = 4; ranks <= 64; ranks *= 2)
    for (int nodes = 1; nodes <= ranks; nodes *= 2)
      for (int nics = 1; nics <= ranks / nodes && nics <= 8; nics *= 8) {
        machine gpu;
        make_gpus(&gpu, nodes, ranks / nodes, nics);
        for (double bytes = 1 << 12; bytes < 1e9; bytes *= 8)
          for (int i = 0; i < (bytes < 1e6 ? 3 : 1); i++) {
            make_ring(m, ranks, rings[i], bytes, 0);
            const double analytic = step(&gpu, m, ranks, TWS_FIDELITY_ANALYTIC);
            const double flow = step(&gpu, m, ranks, TWS_FIDELITY_FLOW);
            same(step(&gpu, m, ranks, TWS_FIDELITY_MESSAGE), flow, 0.001);
            /* where rings share the ports of a node's devices, the formula only knows the ports' load */
            same(flow, analytic, nics == 1 || nodes == 1 ? 0.001 : 0.09);
          }
        drop_machine(&gpu);
      }
}
END_TEST

START_TEST(two_level_rings_are_bound_by_the_nics) {
  static maker m[16];
  for (int nics = 1; nics <= 8; nics *= 2) {
    machine gpu;
    make_gpus(&gpu, 2, 8, nics);
    make_ring(m, 16, TWS_COLLECTIVE_ALL_GATHER, 1.6e9, 0);
    const double expected = 15.0 / 16 * 1.6e9 / (nics * nic_bandwidth) + 5e-6; /* pieces queue before the NICs */
    same(step(&gpu, m, 16, TWS_FIDELITY_ANALYTIC), expected, 1e-6);
    same(step(&gpu, m, 16, TWS_FIDELITY_FLOW), expected, 1e-6);
    same(step(&gpu, m, 16, TWS_FIDELITY_MESSAGE), expected, 2e-3); /* steps of the ring wait for each other */
    /* one rank stands for all */
    make_ring(m, 16, TWS_COLLECTIVE_ALL_GATHER, 1.6e9, 1);
    same(step(&gpu, m, 1, TWS_FIDELITY_ANALYTIC), expected, 1e-6);
    same(step(&gpu, m, 1, TWS_FIDELITY_FLOW), expected, 1e-6);
    drop_machine(&gpu);
  }
  machine twice; /* a device with two NICs */
  make_gpus(&twice, 2, 1, 2);
  make_ring(m, 2, TWS_COLLECTIVE_ALL_GATHER, 1.6e9, 0);
  for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_MESSAGE; fidelity++)
    same(step(&twice, m, 2, (tws_fidelity)fidelity), 0.5 * 1.6e9 / (2 * nic_bandwidth) + 5e-6, 1e-6);
  drop_machine(&twice);
  machine wide; /* the network is faster than NVLink, so the ports are the bottleneck */
  make_gpus(&wide, 2, 2, 2);
  wide.cluster.inter.bandwidth = 1e12;
  make_ring(m, 4, TWS_COLLECTIVE_ALL_REDUCE, 4e8, 0);
  const double bound = 1.5 * 4e8 / port_bandwidth + 6 * (5e-6 + wide.cluster.intra.latency_s) / 2;
  same(step(&wide, m, 4, TWS_FIDELITY_ANALYTIC), bound, 1e-6);
  ck_assert_double_lt(step(&wide, m, 4, TWS_FIDELITY_FLOW), bound * (1 + 1e-6));
  same(step(&wide, m, 4, TWS_FIDELITY_FLOW), step(&wide, m, 4, TWS_FIDELITY_MESSAGE), 0.001);
  drop_machine(&wide);
}
END_TEST

/* In an all-to-all, segments for other nodes leave through the sender's NIC, and segments for its own node through its
 * port, at the same time. */
START_TEST(all_to_all_uses_ports_and_nics) {
  static maker m[8];
  machine gpu;
  for (int nodes = 1; nodes <= 8; nodes *= 2) {
    make_gpus(&gpu, nodes, 8 / nodes, 8 / nodes);
    make_ring(m, 8, TWS_COLLECTIVE_ALL_TO_ALL, 8e7, 0);
    const int near = 8 / nodes;
    const double bytes = fmax((near - 1) * 1e7 / port_bandwidth, (8 - near) * 1e7 / nic_bandwidth);
    const double analytic = step(&gpu, m, 8, TWS_FIDELITY_ANALYTIC);
    same(analytic, bytes + (nodes > 1 ? 5e-6 : 2e-6), 1e-9);
    same(step(&gpu, m, 8, TWS_FIDELITY_FLOW), analytic, 1e-9);
    drop_machine(&gpu);
  }
}
END_TEST

/* An all-to-all of 64 devices on 8 nodes takes the time of its messages, which all run at the same time. */
START_TEST(all_to_all_is_as_long_as_its_messages) {
  static maker m[64];
  machine gpu;
  make_gpus(&gpu, 8, 8, 8);
  for (double bytes = 6.4e4; bytes < 1e9; bytes *= 100) {
    make_ring(m, 64, TWS_COLLECTIVE_ALL_TO_ALL, bytes, 0);
    const double by_messages = step(&gpu, m, 64, TWS_FIDELITY_MESSAGE);
    same(step(&gpu, m, 64, TWS_FIDELITY_ANALYTIC), by_messages, 0.05);
    same(step(&gpu, m, 64, TWS_FIDELITY_FLOW), by_messages, 0.05);
  }
  drop_machine(&gpu);
}
END_TEST

/* An all-to-all whose messages are posted one after another: with few bytes the time of posting dominates. In two
 * steps, within nodes and then among ranks of equal index on all nodes, a rank posts 7 instead of 56 messages with
 * eight times the bytes, which is faster with few bytes, and slower with many, because these are sent twice. */
START_TEST(all_to_all_in_two_steps_posts_fewer_messages) {
  static maker flat[64], steps[64];
  machine gpu;
  make_gpus(&gpu, 8, 8, 8);
  gpu.cluster.message_s = 2e-6;
  for (double bytes = 6.4e4; bytes < 1e9; bytes *= 100) {
    double took[2][3];
    make_ring(flat, 64, TWS_COLLECTIVE_ALL_TO_ALL, bytes, 0);
    for (int rank = 0; rank < 64; rank++) {
      begin(&steps[rank], rank, 64);
      const uint32_t node = group(&steps[rank], 8, rank / 8 * 8, 1), like = group(&steps[rank], 8, rank % 8, 8);
      collective(&steps[rank], TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_TO_ALL, node, bytes);
      collective(&steps[rank], TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_TO_ALL, like, bytes);
    }
    for (int two = 0; two < 2; two++) {
      for (int f = 0; f < 3; f++) took[two][f] = step(&gpu, two ? steps : flat, 64, (tws_fidelity)f);
      same(took[two][TWS_FIDELITY_ANALYTIC], took[two][TWS_FIDELITY_MESSAGE], 0.05);
      same(took[two][TWS_FIDELITY_FLOW], took[two][TWS_FIDELITY_ANALYTIC], 1e-9);
    }
    if (bytes < 1e5) {
      same(took[0][TWS_FIDELITY_ANALYTIC], 55 * 2e-6 + bytes / 64 / nic_bandwidth + 5e-6, 1e-9);
      same(took[1][TWS_FIDELITY_ANALYTIC],
           7 * bytes / 8 / port_bandwidth + 2e-6 + 6 * 2e-6 + bytes / 8 / nic_bandwidth + 5e-6, 1e-9);
    } else {
      ck_assert_double_gt(took[1][TWS_FIDELITY_ANALYTIC], took[0][TWS_FIDELITY_ANALYTIC]);
    }
  }
  drop_machine(&gpu);
}
END_TEST

/* A runtime that sends each token once per node: with 128 experts on 64 ranks of 8 nodes, a token with 8 choices is
 * sent to 8 (1 - C(112, 8) / C(128, 8)) nodes, and to each rank of a node once from the rank where it arrived; with
 * experts from 2 of 8 groups it is sent to at most 2 nodes. At every fidelity links carry only these bytes. */
START_TEST(tokens_go_once_to_a_node) {
  static maker m[64];
  machine gpu;
  make_gpus(&gpu, 8, 8, 8);
  gpu.cluster.message_s = 2e-6;
  ck_assert_int_eq(tws_profile_set_runtime(gpu.profile, tws_runtime_find("megatron-deepep"), NULL), TWS_OK);
  const double tokens = 4096.0 * 7168 * 2, slots = 8 * 1.25 * tokens;
  double missed = 1;
  for (int i = 0; i < 8; i++) missed *= (112.0 - i) / (128.0 - i);
  for (int grouped = 0; grouped < 2; grouped++) {
    make_ring(m, 64, TWS_COLLECTIVE_ALL_TO_ALL, slots, 0);
    for (int rank = 0; rank < 64; rank++) {
      int64_t *d = m[rank].works[0].d;
      d[1] = (int64_t)tokens, d[2] = 128, d[3] = 8, d[4] = grouped ? 8 : 0, d[5] = grouped ? 2 : 0;
    }
    const double nodes = grouped ? 2 : 8 * (1 - missed);
    const double analytic = step(&gpu, m, 64, TWS_FIDELITY_ANALYTIC);
    same(analytic, tokens * nodes * 7 / 8 / nic_bandwidth + 5e-6, 1e-9);
    same(step(&gpu, m, 64, TWS_FIDELITY_FLOW), analytic, 1e-9);
    same(step(&gpu, m, 64, TWS_FIDELITY_MESSAGE), analytic, 0.05);
  }
  drop_machine(&gpu);
}
END_TEST

/* Tokens that are sent to experts in 8 bits with scales have the same bytes at every fidelity, whether slots are sent
 * or tokens once; casts before and after the transfer read one type and write the other. The results return in their
 * own type, which is not confused with the 8-bit one. */
START_TEST(tokens_go_to_experts_in_8_bits) {
  static maker m[64];
  const double tokens = 4096.0 * 7168 * 2, slots = 8 * 1.25 * tokens, share = (1 + 4.0 / 128) / 2;
  for (int once = 0; once < 2; once++) {
    machine gpu;
    double took[2][3];
    make_gpus(&gpu, 8, 8, 8);
    if (once) ck_assert_int_eq(tws_profile_set_runtime(gpu.profile, tws_runtime_find("megatron-deepep"), NULL), TWS_OK);
    for (int both = 0; both < 2; both++) { /* there in 8 bits, and back */
      for (int rank = 0; rank < 64; rank++) {
        begin(&m[rank], rank, 64);
        const uint32_t all = group(&m[rank], 64, 0, 1);
        for (int back = 0; back <= both; back++) {
          collective(&m[rank], TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_TO_ALL, all, slots);
          int64_t *d = m[rank].works[back].d;
          d[1] = (int64_t)tokens, d[2] = 128, d[3] = 8, d[6] = back ? 0 : (int64_t)(slots * share);
        }
      }
      for (int f = 0; f < 3; f++) took[both][f] = step(&gpu, m, 64, (tws_fidelity)f);
      same(took[both][TWS_FIDELITY_FLOW], took[both][TWS_FIDELITY_ANALYTIC], 1e-9);
      same(took[both][TWS_FIDELITY_MESSAGE], took[both][TWS_FIDELITY_ANALYTIC], 0.05);
    }
    double missed[2] = {1, 1}; /* probability that a node, or a rank, has none of a token's experts */
    for (int i = 0; i < 8; i++) missed[0] *= (112.0 - i) / (128.0 - i), missed[1] *= (126.0 - i) / (128.0 - i);
    const double leaves = once ? tokens * 8 * (1 - missed[0]) * 7 / 8 : slots * 56 / 64,
                 cast = once ? tokens * (1 + 64 * (1 - missed[1])) : 2 * slots;
    same(took[0][TWS_FIDELITY_ANALYTIC], share * leaves / nic_bandwidth + 5e-6 + (1 + share) * cast / 4e9, 1e-9);
    same(took[1][TWS_FIDELITY_ANALYTIC] - took[0][TWS_FIDELITY_ANALYTIC], leaves / nic_bandwidth + 5e-6, 1e-9);
    drop_machine(&gpu);
  }
}
END_TEST

/* In a gather or scatter the root transfers as much as each rank of an all-to-all, and the other ranks send or receive
 * one segment. */
START_TEST(a_root_is_bound_by_its_port_or_nic) {
  static const tws_collective rooted[] = {TWS_COLLECTIVE_GATHER, TWS_COLLECTIVE_SCATTER};
  static maker m[8];
  machine gpu;
  for (int i = 0; i < 6; i++) {
    const int nodes = 1 << i / 2, near = 8 / nodes; /* 1, 2, 4 */
    make_gpus(&gpu, nodes, near, near);
    make_ring(m, 8, rooted[i % 2], 8e7, 0);
    for (int rank = 0; rank < 8; rank++) m[rank].ops[0].peer = 3;
    const double bytes = fmax((near - 1) * 1e7 / port_bandwidth, (8 - near) * 1e7 / nic_bandwidth);
    const double analytic = step(&gpu, m, 8, TWS_FIDELITY_ANALYTIC);
    same(analytic, bytes + (nodes > 1 ? 5e-6 : 2e-6), 1e-9);
    same(step(&gpu, m, 8, TWS_FIDELITY_FLOW), analytic, 1e-9);
    same(step(&gpu, m, 8, TWS_FIDELITY_MESSAGE), analytic, 1e-9);
    drop_machine(&gpu);
  }
}
END_TEST

START_TEST(contention_halves_bandwidth) {
  machine gpu;
  maker m[4];
  make_gpus(&gpu, 1, 4, 1);
  for (int rank = 0; rank < 4; rank++) {
    begin(&m[rank], rank, 4);
    const uint32_t all = group(&m[rank], 4, 0, 1);
    collective(&m[rank], TWS_STREAM_REDUCE, TWS_COLLECTIVE_REDUCE_SCATTER, all, 4e8);
    collective(&m[rank], TWS_STREAM_GATHER, TWS_COLLECTIVE_ALL_GATHER, all, 4e8);
  }
  const double bytes_s = 0.75 * 4e8 / port_bandwidth, latency_s = 3 * 2e-6;
  same(step(&gpu, m, 4, TWS_FIDELITY_ANALYTIC), bytes_s + latency_s, 1e-6);
  same(step(&gpu, m, 4, TWS_FIDELITY_FLOW), 2 * bytes_s + latency_s, 1e-6);
  for (int rank = 0; rank < 2; rank++) { /* a broadcast does not use the links to its root */
    begin(&m[rank], rank, 2);
    collective(&m[rank], TWS_STREAM_GATHER, TWS_COLLECTIVE_BROADCAST, group(&m[rank], 2, 0, 1), 4e8);
    message(&m[rank], rank == 1 ? TWS_OP_SEND : TWS_OP_RECV, 1 - rank, 4e8);
  }
  same(step(&gpu, m, 2, TWS_FIDELITY_FLOW), 4e8 / port_bandwidth + 2e-6, 1e-6);
  drop_machine(&gpu);

  make_gpus(&gpu, 2, 2, 1); /* ranks 0 and 1 send to the other node through one NIC */
  for (int rank = 0; rank < 4; rank++) {
    begin(&m[rank], rank, 4);
    message(&m[rank], rank < 2 ? TWS_OP_SEND : TWS_OP_RECV, (rank + 2) % 4, 1e8);
  }
  same(step(&gpu, m, 4, TWS_FIDELITY_ANALYTIC), 1e8 / nic_bandwidth + 5e-6, 1e-6);
  same(step(&gpu, m, 4, TWS_FIDELITY_FLOW), 2e8 / nic_bandwidth + 5e-6, 1e-6);
  drop_machine(&gpu);
}
END_TEST

/* Each leaf switch connects two nodes of two devices, and its uplinks carry a quarter of what its four NICs send: one
 * NIC's bandwidth. Rings on two NICs need twice that, and all-to-alls 6/7 of all four; within a leaf nothing is
 * slower. */
START_TEST(leaves_are_bottlenecks) {
  static maker m[16];
  machine plain, leaf;
  make_gpus(&plain, 8, 2, 2);
  make_gpus(&leaf, 8, 2, 2);
  leaf.cluster.leaf_nodes = 2;
  leaf.cluster.oversubscription = 4;
  make_ring(m, 16, TWS_COLLECTIVE_ALL_REDUCE, 1.6e9, 0);
  const double free_s = step(&plain, m, 16, TWS_FIDELITY_ANALYTIC), ring_s = step(&leaf, m, 16, TWS_FIDELITY_ANALYTIC);
  same(ring_s, 2 * free_s, 0.01);
  same(step(&leaf, m, 16, TWS_FIDELITY_FLOW), ring_s, 0.001);
  same(step(&leaf, m, 16, TWS_FIDELITY_MESSAGE), ring_s, 0.03);
  make_ring(m, 16, TWS_COLLECTIVE_ALL_TO_ALL, 1.6e9, 0);
  const double pairs_s = step(&leaf, m, 16, TWS_FIDELITY_ANALYTIC);
  same(pairs_s, 4 * 6 / 7.0 * step(&plain, m, 16, TWS_FIDELITY_ANALYTIC), 0.01);
  same(step(&leaf, m, 16, TWS_FIDELITY_FLOW), pairs_s, 0.03);
  make_ring(m, 4, TWS_COLLECTIVE_ALL_REDUCE, 1.6e9, 0);
  for (int f = TWS_FIDELITY_ANALYTIC; f <= TWS_FIDELITY_MESSAGE; f++)
    same(step(&leaf, m, 4, (tws_fidelity)f), step(&plain, m, 4, (tws_fidelity)f), 1e-9);
  drop_machine(&plain);
  drop_machine(&leaf);
}
END_TEST

/* Where rings reach half the bandwidth of messages, each takes the time of its formula alone; on a NIC that both use at
 * once, a byte of a ring takes as long as two bytes of messages. */
START_TEST(messages_may_be_faster_than_rings) {
  static maker m[4];
  machine gpu;
  make_gpus(&gpu, 4, 1, 1);
  gpu.cluster.message_bandwidth = 2 * nic_bandwidth;
  const double ring_s = 1.5 * 4e8 / nic_bandwidth + 6 * 5e-6, message_s = 3e8 / (2 * nic_bandwidth) + 5e-6;
  make_ring(m, 4, TWS_COLLECTIVE_ALL_REDUCE, 4e8, 0);
  for (int f = TWS_FIDELITY_ANALYTIC; f <= TWS_FIDELITY_MESSAGE; f++)
    same(step(&gpu, m, 4, (tws_fidelity)f), ring_s, 1e-6);
  for (int rings = 0; rings < 2; rings++) {
    for (int rank = 0; rank < 4; rank++) {
      begin(&m[rank], rank, 4);
      const uint32_t all = group(&m[rank], 4, 0, 1);
      if (rings) collective(&m[rank], TWS_STREAM_REDUCE, TWS_COLLECTIVE_ALL_REDUCE, all, 4e8);
      if (rank < 2) message(&m[rank], rank == 0 ? TWS_OP_SEND : TWS_OP_RECV, 1 - rank, 3e8);
    }
    same(step(&gpu, m, 4, TWS_FIDELITY_ANALYTIC), rings ? ring_s : message_s, 1e-6);
    same(step(&gpu, m, 4, TWS_FIDELITY_FLOW), rings ? ring_s + message_s - 5e-6 : message_s, 1e-3);
  }
  drop_machine(&gpu);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {fidelities_agree_without_contention,
                                rings_of_64_ranks_agree_at_every_fidelity,
                                two_level_rings_are_bound_by_the_nics,
                                all_to_all_uses_ports_and_nics,
                                all_to_all_is_as_long_as_its_messages,
                                all_to_all_in_two_steps_posts_fewer_messages,
                                tokens_go_once_to_a_node,
                                tokens_go_to_experts_in_8_bits,
                                a_root_is_bound_by_its_port_or_nic,
                                contention_halves_bandwidth,
                                leaves_are_bottlenecks,
                                messages_may_be_faster_than_rings};
  return run_sim_suite("sim_collectives", tests, sizeof tests / sizeof *tests);
}
