// test_order.cpp - the order of the forward's tiles: each once, balanced, few heads at a time.
//
// The order is the kernels' own (ptx/sched.inc); this is the same arithmetic on the parameters that
// a plan holds.  That the kernels do as it says shows in their results: tests/test_kernels.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "ptx/abi_fwd.h"
#include "src/plan.h"
#include "src/validate.h"

using namespace fa3ptx;

namespace {

struct Shape {
  int batch, seqlen, heads, head_dim;
  bool causal;
};

struct Tile {
  uint32_t head; // over all batches
  int m_block;
};

struct Order {
  Plan plan;
  const Row *row;
  uint32_t m_blocks, tickets, paired_tickets, paired_heads;
  int32_t first_row;
  Divisor by_head_jobs, by_last_heads, by_heads, by_ctas;

  template <class T> T param(int offset) const {
    T value;
    memcpy(&value, plan.steps[0].params + offset, sizeof value);
    return value;
  }

  Order(const Shape &shape, int sms) : plan() {
    fa3ptx_forward_args a = {};
    a.struct_size = sizeof a;
    a.q.dtype = a.k.dtype = a.v.dtype = a.o.dtype = FA3PTX_BF16;
    a.batch = shape.batch, a.seqlen_q = a.seqlen_k = shape.seqlen;
    a.heads_q = a.heads_kv = shape.heads, a.head_dim = shape.head_dim;
    a.mask = shape.causal ? FA3PTX_MASK_CAUSAL : FA3PTX_MASK_NONE;
    Problem p;
    Error e = {};
    REQUIRE(validate(&a, Depth::SHAPES, p, e) == FA3PTX_OK);
    REQUIRE(make_plan(p, DeviceProps{sms}, plan, e) == FA3PTX_OK);
    row = &kRows[plan.row];
    REQUIRE(row->role == Role::FWD);
    m_blocks = param<uint32_t>(FWD_M_BLOCKS), tickets = param<uint32_t>(FWD_TICKETS);
    paired_tickets = param<uint32_t>(FWD_PAIRED_TICKETS);
    paired_heads = param<uint32_t>(FWD_PAIRED_HEADS);
    first_row = param<int32_t>(FWD_FIRST_ROW);
    by_head_jobs = param<Divisor>(FWD_BY_HEAD_JOBS);
    by_last_heads = param<Divisor>(FWD_BY_LAST_HEADS);
    by_heads = param<Divisor>(FWD_BY_HEADS), by_ctas = param<Divisor>(FWD_BY_CTAS);
  }

  static uint32_t quotient(uint32_t n, const Divisor &by) {
    return uint32_t(uint64_t(2 * n) * by.factor >> 32) >> by.shift;
  }
  int partner(int m_block) const { return int(m_blocks & ~1u) - 1 - m_block; }

  Tile decode(uint32_t ticket) const { // DECODE_TICKET
    const uint32_t job = ticket / 2;
    uint32_t head = quotient(job, by_head_jobs), up = job - head * by_head_jobs.d;
    if (row->mask == Mask::CAUSAL && 2 * job >= paired_tickets) {
      const uint32_t single = job - paired_tickets / 2;
      up = quotient(single, by_last_heads);
      head = paired_heads + single - up * by_last_heads.d;
    }
    const int m_block = int(m_blocks - 1 - up);
    return {head, ticket % 2 ? partner(m_block) : m_block};
  }

  std::vector<Tile> tiles_of(uint32_t cta) const { // FIRST_TICKET, NEXT_TICKET
    std::vector<Tile> tiles;
    uint32_t ticket = 2 * cta;
    while (ticket < tickets) {
      const Tile tile = decode(ticket);
      tiles.push_back(tile);
      if (row->mask == Mask::CAUSAL && ticket % 2 == 0 && partner(tile.m_block) >= 0 &&
          ticket < paired_tickets) {
        ticket++;
      } else {
        const uint32_t round = quotient(ticket / 2, by_ctas);
        ticket = 2 * ((round + 2) * by_ctas.d - 1 - (ticket / 2 - round * by_ctas.d));
      }
    }
    return tiles;
  }

  // Key blocks, and what else a tile costs: a block and a half (measured).
  double cost(const Tile &tile, const Shape &shape) const {
    const int64_t end = int64_t(tile.m_block + 1) * row->tile_m + first_row;
    const int64_t keys = shape.causal && end < shape.seqlen ? std::max<int64_t>(end, 1)
                                                            : shape.seqlen;
    return 1.5 + double((keys + row->tile_n - 1) / row->tile_n);
  }
};

const int kDims[] = {64, 128, 256};
const int kLengths[] = {65, 300, 512, 1024, 1500, 2048, 3000, 4096, 5000, 8192, 20000};

template <class Check> void each_shape(Check check) {
  for (int dim : kDims)
    for (int seqlen : kLengths)
      for (int heads : {1, 3, 8, 31, 64})
        for (int batch : {1, 3})
          for (bool causal : {false, true})
            for (int sms : {1, 7, 132})
              if (sms > 7 || seqlen <= 2048) check(Shape{batch, seqlen, heads, dim, causal}, sms);
}

} // namespace

TEST_CASE("a divisor's reciprocal divides exactly") {
  std::vector<uint32_t> divisors = {1, 2, 3, 5, 7, 31, 64, 100, 641, 65535, 65536, 65537,
                                    (1u << 30) - 1, 1u << 30, (1u << 30) + 1, INT_MAX};
  for (uint32_t d : divisors) {
    const Divisor by(d);
    CAPTURE(d);
    CHECK(by.d == d);
    for (uint64_t near : {uint64_t(0), uint64_t(d), 2 * uint64_t(d), uint64_t(INT_MAX) / d * d,
                          uint64_t(INT_MAX) / 2, uint64_t(INT_MAX)})
      for (int64_t off = -2; off <= 2; off++) {
        const int64_t n = int64_t(near) + off;
        if (n < 0 || n > INT_MAX) continue;
        CHECK(Order::quotient(uint32_t(n), by) == uint32_t(n) / d);
      }
  }
}

TEST_CASE("every tile of every head is somebody's, once") {
  each_shape([](const Shape &shape, int sms) {
    const Order order(shape, sms);
    CAPTURE(shape.seqlen);
    CAPTURE(shape.heads);
    CAPTURE(shape.causal);
    CAPTURE(sms);
    std::vector<int> seen(size_t(shape.heads) * shape.batch * order.m_blocks);
    bool inside = true;
    for (uint32_t cta = 0; cta < order.plan.steps[0].grid[0]; cta++)
      for (const Tile &t : order.tiles_of(cta)) {
        const size_t at = size_t(t.head) * order.m_blocks + size_t(t.m_block);
        if (t.m_block < 0 || t.m_block >= int(order.m_blocks) || at >= seen.size()) inside = false;
        else seen[at]++;
      }
    CHECK(inside);
    CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    CHECK(order.by_heads.d == uint32_t(shape.heads));
    CHECK(order.by_ctas.d == order.plan.steps[0].grid[0]);
    // Rows: all of them, and no warpgroup of the first tile in part.
    CHECK(order.first_row <= 0);
    CHECK(order.first_row % 64 == 0);
    CHECK(order.first_row > -order.row->tile_m);
    CHECK(int64_t(order.m_blocks) * order.row->tile_m + order.first_row >= shape.seqlen);
  });
}

TEST_CASE("multiprocessors have nearly the same to do") {
  each_shape([](const Shape &shape, int sms) {
    const Order order(shape, sms);
    double most = 0, all = 0, longest = 0;
    size_t tiles = 0;
    for (uint32_t cta = 0; cta < order.plan.steps[0].grid[0]; cta++) {
      double mine = 0;
      for (const Tile &t : order.tiles_of(cta)) {
        const double cost = order.cost(t, shape);
        mine += cost, longest = std::max(longest, cost), tiles++;
      }
      most = std::max(most, mine), all += mine;
    }
    const double mean = all / sms, rounds = double(tiles) / sms;
    CAPTURE(shape.seqlen);
    CAPTURE(shape.heads);
    CAPTURE(shape.batch);
    CAPTURE(shape.head_dim);
    CAPTURE(shape.causal);
    CAPTURE(sms);
    CAPTURE(rounds);
    CAPTURE(most / mean);
    CHECK(most <= mean + longest);
    // Fewer tiles to a head than this: what they add up to is too coarse, whoever gets which.
    if (shape.causal && rounds >= 5 && order.m_blocks >= 8) CHECK(most <= mean * 1.05);
  });
}

TEST_CASE("causal: K and V in work at a time stay far below L2, whatever the length") {
  for (int dim : kDims)
    for (int seqlen : {2048, 4096, 8192, 16384, 65536}) {
      const Shape shape = {1, seqlen, 1 << 20 >> (seqlen / 1024 > 16 ? 14 : 13), dim, true};
      const Order order(shape, 132);
      CAPTURE(dim);
    CAPTURE(seqlen);
      uint32_t most = 0; // heads between the first and the last that a round of pairs touches
      for (uint32_t job = 0; 2 * job + 2 * 132 <= order.paired_tickets; job += 132)
        most = std::max(most, order.decode(2 * (job + 131)).head - order.decode(2 * job).head + 1);
      REQUIRE(most > 0);
      // A head's K and V; a round begins and ends within a head.
      const double head = 4.0 * seqlen * dim;
      CHECK((most - 1) * head <= std::max(head, 35e6));
    }
}
