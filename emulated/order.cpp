#include "emulated/order.h"

#include <atomic>
#include <numeric>
#include <utility>

#include "emulated/control.h"
#include "emulated/environment.h"

namespace emulated {

namespace {

std::atomic<uint64_t>& current_seed() {
  static std::atomic<uint64_t> seed{
      seed_of("TESSERA_EMULATED_ORDER", "0 ascending, 1 descending, others shuffled")};
  return seed;
}

// Counts the calls of set_order_seed. After such a call, each OS thread counts its launches from 0.
std::atomic<uint64_t> settings{0};

}  // namespace

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void set_order_seed(uint64_t seed) {
  current_seed() = seed;
  ++settings;
}

uint64_t order_seed() { return current_seed(); }

Order Order::of_next_launch() {
  thread_local uint64_t setting = 0;
  thread_local uint64_t launches = 0;
  if (std::exchange(setting, settings.load()) != setting) launches = 0;
  const uint64_t seed = order_seed();
  return Order(seed, mixed(seed) + mixed(++launches));
}

uint64_t next_random(uint64_t& state) { return mixed(state += 0x9E3779B97F4A7C15u); }

uint64_t Order::next() { return next_random(state_); }

void Order::prepare_blocks(uint64_t blocks) {
  blocks_ = blocks;
  first_ = 0;
  stride_ = 1;
  if (seed_ == 0 || blocks < 2) return;
  first_ = seed_ == 1 ? blocks - 1 : next() % blocks;
  stride_ = seed_ == 1 ? blocks - 1 : 1 + next() % (blocks - 1);
  while (std::gcd(stride_, blocks) != 1) ++stride_;
}

void Order::arrange(std::vector<uint16_t>& order) {
  std::iota(order.begin(), order.end(), uint16_t{0});
  if (seed_ == 0) return;
  const size_t size = order.size();
  if (seed_ == 1) {
    for (size_t i = 0; i < size; ++i) order[i] = static_cast<uint16_t>(size - 1 - i);
    return;
  }
  for (size_t i = size; i > 1; --i) {
    // The high bits of this product are a random number below i. A remainder would be slower.
    const auto j = static_cast<size_t>((next() >> 32) * i >> 32);
    std::swap(order[i - 1], order[j]);
  }
}

Order::Lanes Order::lanes() {
  if (seed_ == 0) return {0, 1};
  if (seed_ == 1) return {31, 31};
  const uint64_t bits = next();
  return {static_cast<unsigned>(bits % 32), static_cast<unsigned>(bits >> 8) | 1u};
}

}  // namespace emulated
