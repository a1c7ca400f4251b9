// Measures AdamW over one contiguous range of parameters, against the best copy loop of this
// machine.
//
//   bench_adamw --parameters 124439808 --threads 1
//
// A pass of AdamW reads p, g, m, v and writes p, m, v: 28 bytes a parameter. Its bandwidth is
// compared with that of the fastest of these copy loops: plain, memcpy and, in a build for AVX-512,
// non-temporal stores. A copy counts as 8 bytes an element. With the default of --parameters, all
// buffers are larger than the caches. Passes and copies are timed alternately, after a warm-up
// round. Prints medians as one JSON object.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "core/context.h"
#include "core/ops/fill.h"
#include "optim/kernels/update.h"

namespace {

using namespace tessera;

double milliseconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void copy_plain(float* y, const float* x, int64_t n) {
  parallel_ranges(n, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = x[i];
  });
}

void copy_memcpy(float* y, const float* x, int64_t n) {
  parallel_ranges(n, 1, [=](int64_t begin, int64_t end) {
    std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

#if defined(__AVX512F__)
// Copies with stores that bypass the caches. Other stores first read the destination into a cache.
void copy_non_temporal(float* y, const float* x, int64_t n) {
  parallel_ranges(n / 16, 16, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin * 16; i < end * 16; i += 16) {
      _mm512_stream_ps(y + i, _mm512_loadu_ps(x + i));
    }
    _mm_sfence();
  });
}
#endif

struct Copy {
  const char* name;
  void (*loop)(float*, const float*, int64_t);
};

constexpr Copy copies[] = {{"plain", copy_plain},
                           {"memcpy", copy_memcpy},
#if defined(__AVX512F__)
                           {"non-temporal", copy_non_temporal}
#endif
};

}  // namespace

int main(int argc, char** argv) {
  int64_t parameters = 124439808;
  int threads = 1;
  int repeats = 9;
  CLI::App app("AdamW against a copy loop");
  app.add_option("--parameters", parameters)->check(CLI::PositiveNumber);
  app.add_option("--threads", threads)->check(CLI::PositiveNumber);
  app.add_option("--repeats", repeats)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  set_thread_count(threads);
  const int64_t n = (parameters + 255) / 256 * 256;
  const auto buffer = [n](float value) {
    Tensor x = Tensor::empty({n}, DType::f32, {}, Category::workspace);
    kernels::fill(current_context({}), x, value);
    return x;
  };
  const Tensor p = buffer(0.02f), g = buffer(1e-3f), m = buffer(0), v = buffer(0);
  const UpdateSegment segment{0, n, 0};
  const UpdateHyper hyper{.learning_rate = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f,
                          .weight_decay = 0.1f, .bias_correction1 = 0.1f,
                          .bias_correction2 = 0.05f};

  std::vector<double> update_ms;
  std::vector<std::vector<double>> copy_ms(std::size(copies));
  for (int i = 0; i < repeats + 1; ++i) {
    const double ms = milliseconds([&] {
      kernels::adam_update(current_context({}), p, m, v, g, std::span(&segment, 1),
                           std::span(&hyper, 1));
    });
    if (i > 0) update_ms.push_back(ms);  // the first round warms up
    for (size_t c = 0; c < std::size(copies); ++c) {
      const double time =
          milliseconds([&] { copies[c].loop(g.data<float>(), p.data<float>(), n); });
      if (i > 0) copy_ms[c].push_back(time);
    }
  }
  const double bytes = static_cast<double>(n);
  const double update_rate = 28 * bytes / median(update_ms) / 1e6;
  double best = 0;
  const char* best_name = "";
  for (size_t c = 0; c < std::size(copies); ++c) {
    const double rate = 8 * bytes / median(copy_ms[c]) / 1e6;
    if (rate > best) {
      best = rate;
      best_name = copies[c].name;
    }
  }
  fmt::print(R"({{"adamw_ms":{:.2f},"adamw_gb_per_s":{:.2f},"copy_gb_per_s":{:.2f},)"
             R"("copy":"{}","ratio":{:.3f}}})"
             "\n",
             median(update_ms), update_rate, best, best_name, update_rate / best);
  return 0;
}
