// test_training.cpp - gradients as a caller uses them: finite differences through the C ABI, and a
// small attention layer trained in bf16.
#include <cmath>
#include <random>

#include "check.h"
#include "ref_cpu.h"
#include "storage.h"

// The loss is sum(dO o O), so its gradient is what the backward returns.  The step follows the
// signs of the gradient and is long enough for a 16-bit O to show it; the sum over many elements
// averages the rounding of O away.
DEVICE_CASE("the gradient predicts how the loss changes", Case::any_device, 120) {
  for (bool causal : {false, true}) {
    Problem p;
    p.batch = 2;
    p.seqlen_q = 48;
    p.seqlen_k = 80;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.causal = causal;
    p.dtype = FA3PTX_FP16;
    const Values values = make_values(p);
    const auto loss = [&](const Values &x) {
      const Outputs out = forward(p, x);
      double sum = 0;
      for (size_t i = 0; i < out.o.bits.size(); ++i)
        sum += double(from_storage(p.dtype, out.o.bits[i])) *
               from_storage(p.dtype, values.dout.bits[i]);
      return sum;
    };
    const Outputs gradient = backward(p, values, forward(p, values));
    const auto check = [&](const std::string &name, Dense Values::*input, const Dense &slope) {
      Values up = values, down = values;
      double predicted = 0;
      for (size_t i = 0; i < slope.bits.size(); ++i) {
        const float g = from_storage(p.dtype, slope.bits[i]);
        const float x = from_storage(p.dtype, (values.*input).bits[i]);
        const float step = g > 0 ? 0.02f : -0.02f;
        (up.*input).bits[i] = to_storage(p.dtype, x + step);
        (down.*input).bits[i] = to_storage(p.dtype, x - step);
        predicted += double(g) * (from_storage(p.dtype, (up.*input).bits[i]) -
                                  from_storage(p.dtype, (down.*input).bits[i]));
      }
      INFO(name);
      CHECK(std::fabs(loss(up) - loss(down) - predicted) <= 0.02 * predicted);
    };
    check("dQ", &Values::q, gradient.dq);
    check("dK", &Values::k, gradient.dk);
    check("dV", &Values::v, gradient.dv);
  }
}

namespace {

// One causal attention layer: Q, K, V = X Wq, X Wk, X Wv; loss = mean((O - target)^2) / 2.
// The weights are float in both runs; only attention itself runs in bf16 on the device or in
// float64 on the CPU.
constexpr int TOKENS = 64, HEADS = 2, DIM = 64, WIDTH = HEADS * DIM, INPUTS = 16, STEPS = 50;

using Matrix = std::vector<float>; // row-major

Matrix random_matrix(int rows, int columns, float deviation, std::mt19937 &engine) {
  std::normal_distribution<float> gauss(0, deviation);
  Matrix m(size_t(rows) * columns);
  for (float &x : m) x = gauss(engine);
  return m;
}

Matrix multiply(const Matrix &a, const Matrix &b, int rows, int depth, int columns) {
  Matrix c(size_t(rows) * columns);
  for (int i = 0; i < rows; ++i)
    for (int k = 0; k < depth; ++k)
      for (int j = 0; j < columns; ++j)
        c[size_t(i) * columns + j] += a[size_t(i) * depth + k] * b[size_t(k) * columns + j];
  return c;
}

Matrix transpose(const Matrix &a, int rows, int columns) {
  Matrix t(a.size());
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) t[size_t(j) * rows + i] = a[size_t(i) * columns + j];
  return t;
}

struct Attention { // (TOKENS, WIDTH) each, head h in columns [h * DIM, (h + 1) * DIM)
  Matrix o, dq, dk, dv;
};

Problem layer_problem() {
  Problem p;
  p.seqlen_q = p.seqlen_k = TOKENS;
  p.heads_q = p.heads_kv = HEADS;
  p.head_dim = DIM;
  p.causal = true;
  return p;
}

// Calls `f(index in the matrix, index in Dense)` for each element.
template <class F> void each_element(F f) {
  for (int h = 0; h < HEADS; ++h)
    for (int s = 0; s < TOKENS; ++s)
      for (int c = 0; c < DIM; ++c)
        f(size_t(s) * WIDTH + h * DIM + c, (size_t(h) * TOKENS + s) * DIM + c);
}

Dense stored(const Matrix &m) {
  Dense x(1, HEADS, TOKENS, DIM);
  each_element([&](size_t from, size_t to) { x.bits[to] = to_storage(FA3PTX_BF16, m[from]); });
  return x;
}

Matrix widened(const Dense &x) {
  Matrix m(x.bits.size());
  each_element([&](size_t to, size_t from) { m[to] = from_storage(FA3PTX_BF16, x.bits[from]); });
  return m;
}

template <class Loss>
Attention on_device(const Matrix &q, const Matrix &k, const Matrix &v, Loss gradient_of_loss) {
  const Problem p = layer_problem();
  Values values;
  values.q = stored(q), values.k = stored(k), values.v = stored(v);
  values.dout = Dense(1, HEADS, TOKENS, DIM);
  const Outputs out = forward(p, values);
  Attention a;
  a.o = widened(out.o);
  values.dout = stored(gradient_of_loss(a.o));
  const Outputs gradient = backward(p, values, out);
  a.dq = widened(gradient.dq), a.dk = widened(gradient.dk), a.dv = widened(gradient.dv);
  return a;
}

template <class Loss>
Attention in_float64(const Matrix &q, const Matrix &k, const Matrix &v, Loss gradient_of_loss) {
  Attention a;
  a.o = a.dq = a.dk = a.dv = Matrix(q.size());
  std::vector<float> head_q(q.size()), head_k(q.size()), head_v(q.size()), head_dout(q.size());
  std::vector<double> o(q.size()), lse(q.size()), dq(q.size()), dk(q.size()), dv(q.size());
  each_element([&](size_t from, size_t to) {
    head_q[to] = q[from], head_k[to] = k[from], head_v[to] = v[from];
  });
  const auto head = [&](int h) {
    Head x;
    const size_t at = size_t(h) * TOKENS * DIM;
    x.q = &head_q[at], x.k = &head_k[at], x.v = &head_v[at], x.dout = &head_dout[at];
    x.seqlen_q = x.seqlen_k = TOKENS;
    x.head_dim = x.head_dim_v = DIM;
    x.softmax_scale = layer_problem().scale();
    x.causal = true;
    return x;
  };
  for (int h = 0; h < HEADS; ++h)
    head_forward(head(h), FA3PTX_DTYPE_NONE, 0, TOKENS, &o[size_t(h) * TOKENS * DIM], &lse[0]);
  each_element([&](size_t to, size_t from) { a.o[to] = float(o[from]); });
  const Matrix dout = gradient_of_loss(a.o);
  each_element([&](size_t from, size_t to) { head_dout[to] = dout[from]; });
  for (int h = 0; h < HEADS; ++h) {
    const size_t at = size_t(h) * TOKENS * DIM;
    head_backward(head(h), FA3PTX_DTYPE_NONE, &dq[at], &dk[at], &dv[at]);
  }
  each_element([&](size_t to, size_t from) {
    a.dq[to] = float(dq[from]), a.dk[to] = float(dk[from]), a.dv[to] = float(dv[from]);
  });
  return a;
}

// The losses of STEPS steps of gradient descent.
template <class Run> std::vector<double> train(Run attention) {
  std::mt19937 engine(7);
  const Matrix x = random_matrix(TOKENS, INPUTS, 1, engine);
  const Matrix target = random_matrix(TOKENS, WIDTH, 1, engine);
  Matrix weights[3];
  for (Matrix &w : weights) w = random_matrix(INPUTS, WIDTH, 0.25f, engine);
  const Matrix x_t = transpose(x, TOKENS, INPUTS);
  std::vector<double> losses;
  for (int step = 0; step < STEPS; ++step) {
    Matrix projected[3];
    for (int i = 0; i < 3; ++i) projected[i] = multiply(x, weights[i], TOKENS, INPUTS, WIDTH);
    const auto gradient_of_loss = [&](const Matrix &o) {
      Matrix g(o.size());
      double loss = 0;
      for (size_t i = 0; i < o.size(); ++i) {
        g[i] = o[i] - target[i];
        loss += double(g[i]) * g[i];
      }
      losses.push_back(loss / 2 / double(o.size()));
      return g;
    };
    const Attention a = attention(projected[0], projected[1], projected[2], gradient_of_loss);
    const Matrix *slopes[3] = {&a.dq, &a.dk, &a.dv};
    for (int i = 0; i < 3; ++i) {
      const Matrix dw = multiply(x_t, *slopes[i], INPUTS, TOKENS, WIDTH);
      for (size_t j = 0; j < dw.size(); ++j) weights[i][j] -= 0.001f * dw[j];
    }
  }
  return losses;
}

} // namespace

DEVICE_CASE("fifty steps of training in bf16 follow float64", Case::any_device, 300) {
  const auto device_losses = train([](auto &...x) { return on_device(x...); });
  const auto reference_losses = train([](auto &...x) { return in_float64(x...); });
  CHECK(reference_losses.back() < 0.8 * reference_losses.front()); // it does learn something
  for (int step = 0; step < STEPS; ++step) {
    INFO("step ", step);
    const double want = reference_losses[step];
    CHECK(std::fabs(device_losses[step] - want) <= 0.01 * want);
  }
}
