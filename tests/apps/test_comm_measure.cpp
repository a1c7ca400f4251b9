// Tests that comm_bench finds the elements that a communicator delivers wrongly. comm_bench.sh
// tests comm_bench over several ranks.
#include "apps/comm_bench/comm_measure.h"

#include <utility>

#include "tests/support/catch.h"
#include "tests/support/forwarding_communicator.h"

using namespace tessera;
using namespace tessera::apps;
using dist::Collective;

namespace {

// Makes one element of each collective's result wrong. An exchange delivers its chunk without the
// first element.
class SpoilingCommunicator : public test::ForwardingCommunicator {
 public:
  SpoilingCommunicator() : ForwardingCommunicator(dist::single_communicator()) {}

  dist::Work exchange(const Tensor& input, int contributors, Receive receive,
                      dist::Call call) override {
    const auto without_first = [receive](int source, int64_t begin, const Tensor& chunk) {
      receive(source, begin + 1, chunk.flat(1, chunk.elements()));
    };
    return inner().exchange(input, contributors, without_first, call);
  }
  dist::Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                            dist::Call call) override {
    inner().reduce_scatter(shard, input, contributors, call).wait();
    return spoil(shard);
  }
  dist::Work all_gather(const Tensor& buffer, dist::Call) override { return spoil(buffer); }
  dist::Work all_reduce(const Tensor& buffer, dist::Call) override { return spoil(buffer); }
  dist::Work broadcast(const Tensor& buffer, int, dist::Call) override { return spoil(buffer); }
  dist::Work exchange_v(const Tensor& input, const Tensor& output, dist::ExchangeCounts counts,
                        dist::Call call) override {
    inner().exchange_v(input, output, std::move(counts), call).wait();
    return spoil(output);
  }
  dist::Work all_gather_v(const Tensor& buffer, std::vector<int64_t>, dist::Call) override {
    return spoil(buffer);
  }
  dist::Work send_receive(const dist::Transfer& outgoing, const dist::Transfer& incoming,
                          dist::Call call) override {
    inner().send_receive(outgoing, incoming, call).wait();
    return spoil(incoming.buffer);
  }

 private:
  static dist::Work spoil(const Tensor& tensor) {
    // Only the measured f32 data is corrupted; the times gathered at the end stay correct.
    if (tensor.dtype() == DType::f32) tensor.data<float>()[tensor.elements() - 1] += 1;
    return {};
  }
};

constexpr Collective measured[] = {Collective::exchange, Collective::reduce_scatter,
                                   Collective::all_gather, Collective::all_reduce,
                                   Collective::broadcast,  Collective::exchange_v,
                                   Collective::all_gather_v, Collective::send_receive};

}  // namespace

TEST_CASE("a measurement counts wrong elements") {
  SpoilingCommunicator communicator;
  CommMeasurement measurement(communicator, {.max_bytes = 4096, .iterations = 3, .warmup = 1});
  for (const Collective collective : measured) {
    INFO(dist::collective_name(collective));
    const CommResult result = measurement.measure(collective, 1024);
    CHECK(result.wrong == 1);
    CHECK(result.bytes == 1024);
    CHECK(result.seconds > 0);
  }
}

TEST_CASE("a correct collective has no wrong elements") {
  const auto communicator = dist::single_communicator();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CommMeasurement measurement(
        *communicator, {.dtype = dtype, .max_bytes = 400'000, .iterations = 2, .warmup = 0});
    for (const Collective collective : measured) {
      if (collective == Collective::all_reduce && dtype != DType::f32) continue;
      for (const int64_t bytes : {4, 1000, 400'000}) {
        CHECK(measurement.measure(collective, bytes).wrong == 0);
      }
    }
  }
}

TEST_CASE("sizes that are too large or not whole pieces are refused, and so is a barrier") {
  const auto communicator = dist::single_communicator();
  CommMeasurement measurement(*communicator, {.max_bytes = 1000});
  CHECK_THROWS_AS(measurement.measure(Collective::all_gather, 1004), Error);
  CHECK_THROWS_AS(measurement.measure(Collective::all_gather, 10), Error);
  CHECK_THROWS_AS(measurement.measure(Collective::barrier, 100), Error);
  CHECK_THROWS_AS(measurement.measure(Collective::split, 100), Error);
}
