// counts.h - what a call needs of the card, from the tile that the library chose for it.
#pragma once
#include "harness.h"

struct Counts { // of a call
  double flop;     // as the papers count
  double issued;   // with what whole blocks do beyond the mask and the ends
  double exps;
  double memory;   // bytes: every tensor once
  double l2_to_sm; // bytes that tiles bring in
  double sums;     // bytes of fp32 that the backward adds to dQ in L2
};
Counts count(const Problem &, bool backward, const fa3ptx_plan_info &);
