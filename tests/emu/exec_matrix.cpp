// exec_matrix.cpp - ldmatrix, stmatrix, movmatrix, mma.sync (16-bit inputs).
#include "interp.h"
#include "numeric.h"

namespace emu {
namespace {

// Lane i holds of each 8x8 matrix of 16-bit elements: row i/4, columns 2(i%4) and +1; transposed:
// column i/4, rows 2(i%4) and +1. Lane 8k+r gives the address of row r of matrix k.
bool rowPlaces(Warp &w, const Instr &in, u32 n, Access acc, u8 *rows[32], Cta **cta) {
  u64 addr[kLanes];
  laneAddresses(w, in.addr, addr);
  for (u32 i = 0; i < 8 * n; ++i) {
    u32 off;
    *cta = resolveShared(w, in, addr[i], 16, 16, false, &off, int(i));
    if (!*cta) return false;
    rows[i] = (*cta)->smem.data() + off;
    // The four bytes c of row r belong to lane 4r + c, or, transposed, to two lanes.
    for (u32 c = 0; c < 4; ++c) {
      int lane = in.sel ? -1 : int((i & 7) * 4 + c);
      hzGeneric(w, in, **cta, off + 4 * c, 4, lane, acc);
    }
  }
  return true;
}

Step ldmatrix(Warp &w, const Instr &in, u32) {
  u8 *rows[32];
  Cta *cta;
  u32 n = u32(in.vec.size());
  if (!rowPlaces(w, in, n, Access::Read, rows, &cta)) return Step::Abort;
  u32 out[4][kLanes];
  for (u32 k = 0; k < n; ++k) {
    u16 mat[8][8];
    for (u32 r = 0; r < 8; ++r) memcpy(mat[r], rows[8 * k + r], 16);
    for (u32 l = 0; l < kLanes; ++l) {
      u32 g = l / 4, c = 2 * (l % 4);
      out[k][l] = in.sel ? u32(mat[c][g]) | u32(mat[c + 1][g]) << 16
                         : u32(mat[g][c]) | u32(mat[g][c + 1]) << 16;
    }
  }
  for (u32 k = 0; k < n; ++k) memcpy(w.dst<u32>(in.vec[k]), out[k], sizeof out[k]);
  return Step::Next;
}

Step stmatrix(Warp &w, const Instr &in, u32) {
  u8 *rows[32];
  Cta *cta;
  u32 n = u32(in.vec.size());
  if (!rowPlaces(w, in, n, Access::Write, rows, &cta)) return Step::Abort;
  for (u32 k = 0; k < n; ++k) {
    const u32 *v = w.src<u32>(in.vec[k]);
    u16 mat[8][8];
    for (u32 l = 0; l < kLanes; ++l) {
      u32 g = l / 4, c = 2 * (l % 4);
      (in.sel ? mat[c][g] : mat[g][c]) = u16(v[l]);
      (in.sel ? mat[c + 1][g] : mat[g][c + 1]) = u16(v[l] >> 16);
    }
    for (u32 r = 0; r < 8; ++r) memcpy(rows[8 * k + r], mat[r], 16);
  }
  ++w.cta->cluster->progress;
  return Step::Next;
}

Step movmatrix(Warp &w, const Instr &in, u32) {
  u16 mat[8][8];
  const u32 *a = w.src<u32>(in.a);
  for (u32 l = 0; l < kLanes; ++l) {
    mat[l / 4][2 * (l % 4)] = u16(a[l]);
    mat[l / 4][2 * (l % 4) + 1] = u16(a[l] >> 16);
  }
  u32 *d = w.dst<u32>(in.d);
  for (u32 l = 0; l < kLanes; ++l)
    d[l] = u32(mat[2 * (l % 4)][l / 4]) | u32(mat[2 * (l % 4) + 1][l / 4]) << 16;
  return Step::Next;
}

// ---- mma.sync.m16n8k{8,16}.f32.{f16,bf16} -----------------------------------------------------
// vec: d (4), vec2: a (2 or 4), b (1 or 2), c (4). sel: bf16
Step mma(Warp &w, const Instr &in, u32) {
  u32 k = u32(in.imm), na = k / 4, nb = k / 8;
  float A[16][16], B[16][8], D[16][8];
  auto value = [&](u32 raw, u32 hi) {
    u16 h = u16(hi ? raw >> 16 : raw);
    return in.sel ? fromBf16(h) : fromF16(h);
  };
  for (u32 l = 0; l < kLanes; ++l) {
    u32 g = l / 4, t = l % 4;
    for (u32 i = 0; i < na; ++i)
      for (u32 h = 0; h < 2; ++h)
        A[g + (i & 1) * 8][2 * t + h + (i >> 1) * 8] = value(w.src<u32>(in.vec2[i])[l], h);
    for (u32 i = 0; i < nb; ++i)
      for (u32 h = 0; h < 2; ++h)
        B[2 * t + h + i * 8][g] = value(w.src<u32>(in.vec2[na + i])[l], h);
    for (u32 i = 0; i < 4; ++i)
      D[g + (i >> 1) * 8][2 * t + (i & 1)] = w.src<float>(in.vec2[na + nb + i])[l];
  }
  for (u32 r = 0; r < 16; ++r)
    for (u32 c = 0; c < 8; ++c)
      for (u32 x = 0; x < k; ++x) D[r][c] += A[r][x] * B[x][c];
  for (u32 l = 0; l < kLanes; ++l)
    for (u32 i = 0; i < 4; ++i)
      w.dst<float>(in.vec[i])[l] = D[l / 4 + (i >> 1) * 8][2 * (l % 4) + (i & 1)];
  return Step::Next;
}

}  // namespace

bool decodeMatrix(Decoder &d, Instr &in) {
  const std::string &op = d.op();
  if (op == "ldmatrix" || op == "stmatrix") {
    bool load = op == "ldmatrix";
    size_t n = d.has("x1") ? 1 : d.has("x2") ? 2 : d.has("x4") ? 4 : 0;
    if (!n || !d.has("m8n8") || !d.has("b16")) d.unknown();
    in.sel = d.has("trans");
    in.addr = d.address(d.arg(load ? 1 : 0), d.spaceOf());
    const Arg &v = d.arg(load ? 0 : 1);
    if (v.kind != Arg::Vec) in.vec.push_back(load ? d.dst(v, Ty::B32) : d.src(v, Ty::B32));
    for (const Arg &e : v.elems)
      in.vec.push_back(load ? d.dst(e, Ty::B32) : d.src(e, Ty::B32));
    if (in.vec.size() != n) d.fail("number of registers does not fit .x1/.x2/.x4");
    in.flags |= kCollective;
    in.fn = load ? ldmatrix : stmatrix;
    return true;
  }
  if (op == "movmatrix") {
    in.d = d.dst(0, Ty::B32);
    in.a = d.src(1, Ty::B32);
    in.flags |= kCollective;
    in.fn = movmatrix;
    return true;
  }
  if (op != "mma") return false;
  bool k16 = d.has("m16n8k16"), bf = d.has("bf16");
  if ((!k16 && !d.has("m16n8k8")) || d.typeAt(0) != Ty::F32 || d.typeAt(3) != Ty::F32 ||
      (!bf && !d.has("f16")))
    d.unknown();
  in.imm = k16 ? 16 : 8;
  in.sel = bf;
  for (const Arg &e : d.arg(0).elems) in.vec.push_back(d.dst(e, Ty::F32));
  for (int i = 1; i < 4; ++i)
    for (const Arg &e : d.arg(i).elems)
      in.vec2.push_back(d.src(e, i < 3 ? Ty::B32 : Ty::F32));
  if (in.vec.size() != 4 || in.vec2.size() != (k16 ? 10u : 7u)) d.fail("wrong operand vectors");
  in.flags |= kCollective;
  in.fn = mma;
  return true;
}

}  // namespace emu
