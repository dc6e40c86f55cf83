#include "bench/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/clock.h"
#include "bench/peak.h"
#include "bench/rounds.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/kernels.h"

namespace weft::bench {
namespace {

// In [-1, 1].
std::vector<float> attention_values(int64_t count, uint64_t state) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    state = state * 6364136223846793005 + 1442695040888963407;
    value = static_cast<float>(state >> 40) * 0x1p-23f - 1.0f;
  }
  return values;
}

class AttentionProblem {
 public:
  explicit AttentionProblem(const AttentionShape& shape)
      : shape_(shape),
        qkv_(attention_values(3 * size(), 1)),
        d_out_(attention_values(size(), 2)),
        out_(static_cast<size_t>(size())),
        d_qkv_(qkv_.size()),
        stats_(static_cast<size_t>(2 * shape.batch * shape.heads * shape.tokens)),
        scores_(static_cast<size_t>(shape.tokens * shape.tokens)) {}

  void forward() { attention_forward(shape_, qkv_.data(), out_.data(), stats_.data()); }
  void backward() {
    attention_backward(shape_, qkv_.data(), stats_.data(), d_out_.data(), d_qkv_.data());
  }
  void in_three_steps() {
    for (int64_t batch = 0; batch < shape_.batch; ++batch) {
      for (int64_t head = 0; head < shape_.heads; ++head) run_head(batch, head);
    }
  }

  // out and dq of the first and the last token of each head, by the formula.
  void check() {
    forward();
    backward();
    for (int64_t batch = 0; batch < shape_.batch; ++batch) {
      for (int64_t head = 0; head < shape_.heads; ++head) {
        check_row(batch, head, 0);
        check_row(batch, head, shape_.tokens - 1);
      }
    }
    const std::vector<float> wanted = out_;
    in_three_steps();
    for (size_t i = 0; i < wanted.size(); ++i) expect_near("three steps", out_[i], wanted[i]);
  }

 private:
  int64_t size() const { return shape_.batch * shape_.tokens * shape_.width; }
  int64_t row_of(int64_t batch, int64_t token) const { return batch * shape_.tokens + token; }
  // part: 0 for q, 1 for k, 2 for v
  const float* at(int part, int64_t batch, int64_t head, int64_t token) const {
    return qkv_.data() + row_of(batch, token) * 3 * shape_.width + part * shape_.width +
           head * shape_.head_width();
  }
  MatrixView<const float> part_of(int part, int64_t batch, int64_t head) const {
    return {at(part, batch, head, 0), shape_.tokens, shape_.head_width(), 3 * shape_.width};
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(shape_.head_width())); }
  int64_t seen_by(int64_t token) const { return shape_.causal ? token + 1 : shape_.tokens; }

  void run_head(int64_t batch, int64_t head) {
    const MatrixView<float> scores(scores_.data(), shape_.tokens, shape_.tokens);
    LinearCall call;  // q kᵀ
    call.activations = part_of(0, batch, head);
    call.dense = part_of(1, batch, head);
    call.result = scores;
    multiply(call);
    parallel_for(shape_.tokens, [&](int64_t token) { softmax(scores.row(token), seen_by(token)); });
    call.product = Product::kBackwardData;  // p v
    call.activations = MatrixView<const float>(scores);
    call.dense = part_of(2, batch, head);
    call.result = MatrixView<float>(
        out_.data() + row_of(batch, 0) * shape_.width + head * shape_.head_width(), shape_.tokens,
        shape_.head_width(), shape_.width);
    multiply(call);
  }

  void softmax(float* row, int64_t seen) const {
    const auto factor = static_cast<float>(scale());
    const float most = *std::max_element(row, row + seen);
    float sum = 0;
    for (int64_t i = 0; i < seen; ++i) sum += row[i] = std::exp((row[i] - most) * factor);
    for (int64_t i = 0; i < seen; ++i) row[i] /= sum;
    std::fill(row + seen, row + shape_.tokens, 0.0f);
  }

  void check_row(int64_t batch, int64_t head, int64_t token) const {
    const int64_t seen = seen_by(token), width = shape_.head_width();
    const auto dot = [&](const float* a, const float* b) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(a[i]) * b[i];
      return sum;
    };
    const float* q = at(0, batch, head, token);
    const int64_t row = row_of(batch, token) * shape_.width + head * width;
    std::vector<double> p(static_cast<size_t>(seen)), dp(p.size());
    double sum = 0, mean = 0;
    for (int64_t j = 0; j < seen; ++j) {
      sum += p[static_cast<size_t>(j)] = std::exp(dot(q, at(1, batch, head, j)) * scale());
      dp[static_cast<size_t>(j)] = dot(d_out_.data() + row, at(2, batch, head, j));
    }
    for (double& one : p) one /= sum;
    for (size_t j = 0; j < p.size(); ++j) mean += p[j] * dp[j];
    for (int64_t i = 0; i < width; ++i) {
      double out = 0, dq = 0;
      for (int64_t j = 0; j < seen; ++j) {
        const auto at_j = static_cast<size_t>(j);
        out += p[at_j] * at(2, batch, head, j)[i];
        dq += p[at_j] * (dp[at_j] - mean) * at(1, batch, head, j)[i] * scale();
      }
      expect_near("out", out_[static_cast<size_t>(row + i)], out);
      const int64_t of_q = row_of(batch, token) * 3 * shape_.width + head * width + i;
      expect_near("dq", d_qkv_[static_cast<size_t>(of_q)], dq);
    }
  }

  static void expect_near(const char* what, double found, double wanted) {
    WEFT_CHECK(std::abs(found - wanted) <= 1e-3 * (1 + std::abs(wanted)),
               "bench: attention: {} is {}, by the formula {}", what, found, wanted);
  }

  AttentionShape shape_;
  std::vector<float> qkv_, d_out_, out_, d_qkv_, stats_, scores_;
};

void time_attention(int rounds, AttentionRecord& record) {
  AttentionProblem problem(record.shape);
  problem.check();
  std::vector<double> forward, backward, steps, ratios;
  for (Rounds all(rounds); all.next();) {
    forward.push_back(time_ms([&] { problem.forward(); }));
    steps.push_back(time_ms([&] { problem.in_three_steps(); }));
    backward.push_back(time_ms([&] { problem.backward(); }));
    ratios.push_back(steps.back() / forward.back());
  }
  record.forward_ms = spread_of(forward).median;
  record.backward_ms = spread_of(backward).median;
  record.steps_ms = spread_of(steps).median;
  record.ratio = spread_of(ratios);
  record.ratio.median = record.steps_ms / record.forward_ms;
}

double attention_flops(const AttentionShape& shape, double per_score) {
  const auto tokens = static_cast<double>(shape.tokens);
  const double left = shape.causal ? std::min(1.0, (1 + 64 / tokens) / 2) : 1.0;
  return per_score * static_cast<double>(shape.batch * shape.width) * tokens * tokens * left;
}

}  // namespace

double AttentionRecord::forward_flops() const { return attention_flops(shape, 4); }
double AttentionRecord::backward_flops() const { return attention_flops(shape, 10); }

std::vector<AttentionRecord> bench_attention(const std::vector<AttentionShape>& shapes, int rounds,
                                             const std::function<void(double)>& progress) {
  std::vector<AttentionRecord> records;
  for (const AttentionShape& shape : shapes) {
    AttentionRecord record{shape};
    record.peak_gflops = fma_peak_gflops(threads());
    time_attention(rounds, record);
    record.peak_gflops = std::max(record.peak_gflops, fma_peak_gflops(threads()));
    records.push_back(record);
    progress(static_cast<double>(records.size()) / static_cast<double>(shapes.size()));
  }
  return records;
}

}  // namespace weft::bench
