// check.cpp - see check.h.
#include "check.h"

#include <algorithm>

namespace {

Dense entry(const Dense &x, int b) {
  Dense one(1, x.heads, x.seqlen, x.dim);
  std::copy_n(x.bits.begin() + x.row(b, 0, 0), one.bits.size(), one.bits.begin());
  return one;
}

} // namespace

Values batch_entry(const Values &v, int b) {
  return {entry(v.q, b), entry(v.k, b), entry(v.v, b), entry(v.dout, b)};
}

Outputs batch_entry(const Outputs &all, int b) {
  Outputs one;
  one.o = entry(all.o, b);
  const size_t rows = size_t(all.o.heads) * all.o.seqlen;
  one.lse.assign(all.lse.begin() + b * rows, all.lse.begin() + (b + 1) * rows);
  return one;
}
