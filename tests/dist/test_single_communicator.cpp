#include <algorithm>
#include <string>

#include "dist/communicator.h"
#include "tests/support/catch.h"
#include "tests/support/second_device_communicator.h"

using namespace tessera;
using namespace tessera::dist;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("with one rank, the result of every collective is the rank's own input") {
  const auto communicator = single_communicator(default_device());
  CHECK(communicator->rank() == 0);
  CHECK(communicator->size() == 1);
  CHECK(communicator->name() == "single");
  CHECK(communicator->staging_bytes() == 0);
  const Tensor x = Tensor::from<float>({3}, {1, 2, 3});

  int calls = 0;
  const auto receive = [&](int source, int64_t begin, const Tensor& chunk) {
    ++calls;
    CHECK(source == 0);
    CHECK(begin == 0);
    CHECK(chunk.raw() == x.raw());
    CHECK(chunk.elements() == 3);
  };
  const Work work = communicator->exchange(x, 1, receive, {Traffic::gradients, 0});
  CHECK(work.done());
  work.wait();
  CHECK(calls == 1);
  communicator->exchange(Tensor::zeros({0}), 1, receive, {}).wait();
  CHECK(calls == 1);

  const Tensor shard = Tensor::zeros({3});
  communicator->reduce_scatter(shard, x, 1, {}).wait();
  CHECK(shard.data<float>()[2] == 3);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor narrow = Tensor::empty({3}, dtype);
    visit_float(dtype, "test", [&]<class T>() {
      for (int i = 0; i < 3; ++i) narrow.data<T>()[i] = T(static_cast<float>(10 * i));
    });
    communicator->reduce_scatter(shard, narrow, 1, {}).wait();
    CHECK(shard.data<float>()[2] == 20);
  }
  communicator->all_gather(x, {}).wait();
  communicator->all_reduce(x, {}).wait();
  communicator->broadcast(x, 0, {}).wait();
  communicator->barrier();
  const Tensor y = Tensor::zeros({x.elements()});
  communicator->exchange_v(x, y, {{x.elements()}, {x.elements()}}, {}).wait();
  CHECK(y.data<float>()[1] == 2);
  y.copy_from(Tensor::zeros({y.elements()}));
  communicator->send_receive({x, 0}, {y, 0}, {}).wait();
  CHECK(y.data<float>()[1] == 2);
  communicator->all_gather_v(x, {x.elements()}, {}).wait();
  CHECK(x.data<float>()[1] == 2);
  // A failed call throws itself, and the communicator stays usable.
  CHECK_THROWS_WITH(communicator->run([] { fail("the body failed"); }), "the body failed");
  CHECK_THROWS_WITH(communicator->send(x, 0, {}),
                    ContainsSubstring("its own peer in only one direction"));
  const auto group = communicator->split(0, 0, "alone");
  CHECK(group->group() == "alone");
  CHECK(group->size() == 1);
  CHECK(communicator->split(-1, 0, "none") == nullptr);
  CHECK(gather_text(*communicator, "text") == std::vector<std::string>{"text"});
}

TEST_CASE("one rank sends nothing, and the ledger counts what ran") {
  const auto communicator = single_communicator(default_device());
  const Tensor x = Tensor::zeros({4});
  communicator->exchange(x, 1, [](int, int64_t, const Tensor&) {}, {Traffic::gradients, 0}).wait();
  communicator->all_gather(x, {Traffic::parameters, 0}).wait();
  communicator->all_gather(x, {Traffic::parameters, 1}).wait();
  const TrafficLedger& traffic = communicator->traffic();
  CHECK(traffic.bytes_sent() == 0);
  CHECK(traffic.calls(Collective::exchange) == 1);
  CHECK(traffic.calls(Collective::all_gather) == 2);
  CHECK(traffic.calls(Collective::reduce_scatter) == 0);
}

TEST_CASE("the traffic ledger counts by purpose and by collective") {
  TrafficLedger ledger;
  ledger.add(Collective::exchange, Traffic::gradients, 100);
  ledger.add(Collective::exchange, Traffic::norms, 8);
  ledger.add(Collective::all_gather, Traffic::gradients, 1);
  CHECK(ledger.bytes_sent(Traffic::gradients) == 101);
  CHECK(ledger.bytes_sent(Traffic::norms) == 8);
  CHECK(ledger.bytes_sent(Traffic::losses) == 0);
  CHECK(ledger.bytes_sent() == 109);
  CHECK(ledger.calls(Collective::exchange) == 2);
  ledger.reset();
  CHECK(ledger.bytes_sent() == 0);
  CHECK(ledger.calls(Collective::exchange) == 0);
  CHECK(traffic_name(Traffic::losses) == "losses");
  CHECK(traffic_name(Traffic::flags) == "flags");
  CHECK(traffic_name(Traffic::other) == "other");
  CHECK(collective_name(Collective::barrier) == "barrier");
}

TEST_CASE("a communicator allocates where its ranks compute", "[cpu]") {
  const auto host = single_communicator();
  CHECK(host->device() == Device{});
  CHECK(host->allocate(8, Category::communication)->device() == Device{});

  test::SecondDeviceCommunicator second(host);
  CHECK(second.device() == Device{DeviceType::cpu, 1});
  const int64_t before = memory_ledger().current(Category::communication);
  const auto storage = second.allocate(12, Category::communication);
  CHECK(storage->device() == second.device());
  CHECK(memory_ledger(second.device()).current(Category::communication) == 12);
  CHECK(memory_ledger().current(Category::communication) == before);

  // Collectives accept memory of cpu:1, since it is host memory.
  Tensor x = Tensor::unallocated({3}, DType::f32);
  x.attach(storage, 0);
  std::ranges::fill(x.values<float>(), 2.0f);
  const Tensor shard = Tensor::zeros({3});
  second.reduce_scatter(shard, x, 1, {}).wait();
  CHECK(shard.data<float>()[2] == 2);
}

TEST_CASE("with one rank, the same arguments are refused as with several") {
  const auto communicator = single_communicator(default_device());
  const Tensor x = Tensor::zeros({4});
  const auto ignore = [](int, int64_t, const Tensor&) {};
  CHECK_THROWS_AS(communicator->exchange(x, 0, ignore, {}), Error);
  CHECK_THROWS_AS(communicator->exchange(x, 2, ignore, {}), Error);
  CHECK_THROWS_AS(communicator->reduce_scatter(Tensor::zeros({3}), x, 1, {}), Error);
  CHECK_THROWS_AS(communicator->reduce_scatter(Tensor::zeros({4}, DType::i64), x, 1, {}), Error);
  CHECK_THROWS_WITH(communicator->reduce_scatter(x, Tensor::zeros({4}, DType::i64), 1, {}),
                    "reduce_scatter: an input of i64, expected f32, bf16 or f16");
  CHECK_THROWS_AS(communicator->all_reduce(Tensor::zeros({4}, DType::u8), {}), Error);
  CHECK_THROWS_AS(communicator->broadcast(x, 1, {}), Error);
}
