// Tests comm_bench's command line, and its arithmetic against values worked out by hand.
#include "apps/comm_bench/comm_bandwidth.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/comm_bench_options.h"
#include "core/error.h"
#include "tests/support/catch.h"

using namespace tessera;
using namespace tessera::apps;
using dist::Collective;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

namespace {

CommOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "comm_bench");
  return parse_comm_command_line(static_cast<int>(arguments.size()), arguments.data()).options;
}

}  // namespace

TEST_CASE("bandwidth is computed as in nccl-tests") {
  // 4 ranks move 4 MB in 1 ms, which is 4 GB/s. The data has one piece for each rank, and a rank
  // must send 3 of the 4 pieces. In an all-reduce it sends 3 pieces twice. In a broadcast or a
  // send_receive all the data counts once.
  const auto bus = [](Collective collective) {
    const Bandwidth speed = bandwidth(collective, 4'000'000, 4, 1e-3);
    CHECK(speed.algorithm == Approx(4.0));
    return speed.bus;
  };
  CHECK(bus(Collective::all_reduce) == Approx(6.0));
  CHECK(bus(Collective::reduce_scatter) == Approx(3.0));
  CHECK(bus(Collective::exchange) == Approx(3.0));
  CHECK(bus(Collective::all_gather) == Approx(3.0));
  CHECK(bus(Collective::broadcast) == Approx(4.0));
  CHECK(bus(Collective::exchange_v) == Approx(3.0));
  CHECK(bus(Collective::all_gather_v) == Approx(3.0));
  CHECK(bus(Collective::send_receive) == Approx(4.0));

  // 3 ranks, an odd number, move 1,500 bytes in 2 us, which is 0.75 GB/s.
  CHECK(bandwidth(Collective::all_gather, 1500, 3, 2e-6).bus == Approx(0.5));
  CHECK(bandwidth(Collective::all_reduce, 1500, 3, 2e-6).bus == Approx(1.0));
  // A single rank sends nothing.
  CHECK(bandwidth(Collective::all_reduce, 1000, 1, 1e-6).bus == 0);
  CHECK(bandwidth(Collective::all_reduce, 1000, 1, 1e-6).algorithm == Approx(1.0));
  CHECK_THROWS_AS(bus_factor(Collective::barrier, 2), Error);
}

TEST_CASE("an argument has one piece or all pieces, depending on the collective") {
  CHECK(argument_elements(Collective::all_gather, 24, 3) == 8);
  CHECK(argument_elements(Collective::reduce_scatter, 24, 3) == 8);
  CHECK(argument_elements(Collective::exchange, 24, 3) == 8);
  CHECK(argument_elements(Collective::all_reduce, 24, 3) == 24);
  CHECK(argument_elements(Collective::broadcast, 24, 3) == 24);
  CHECK(argument_elements(Collective::exchange_v, 24, 3) == 8);
  CHECK(argument_elements(Collective::all_gather_v, 24, 3) == 8);
  CHECK(argument_elements(Collective::send_receive, 24, 3) == 24);
}

TEST_CASE("sizes are rounded up to whole pieces, without repeats") {
  using Sizes = std::vector<int64_t>;
  CHECK(CommSizes{1024, 8192, 2}.in_units_of(8) == Sizes{1024, 2048, 4096, 8192});
  CHECK(CommSizes{1000, 100'000, 10}.in_units_of(12) == Sizes{1008, 10'008, 100'008});
  CHECK(CommSizes{1, 30, 2}.in_units_of(8) == Sizes{8, 16});
  CHECK(CommSizes{5, 5, 2}.in_units_of(4) == Sizes{8});
  CHECK(CommSizes{100, 1000, 4}.in_units_of(4) == Sizes{100, 400});
  const int64_t large = 4'000'000'000'000'000'000;
  CHECK(CommSizes{large / 2, large, 3}.in_units_of(4) == Sizes{large / 2});
  CHECK(CommSizes{large, large, 3}.in_units_of(4) == Sizes{large});
}

TEST_CASE("the median of an even number of values is the mean of the middle two") {
  CHECK(median({3.0}) == 3.0);
  CHECK(median({9.0, 1.0, 4.0}) == 4.0);
  CHECK(median({9.0, 1.0, 4.0, 2.0}) == 3.0);
  CHECK_THROWS_AS(median({}), Error);
}

TEST_CASE("comm_bench: defaults, and flags that select what is measured") {
  const CommOptions defaults = parse({});
  CHECK(defaults.sizes.min_bytes == 1024);
  CHECK(defaults.sizes.max_bytes == 128 << 20);
  CHECK(defaults.sizes.factor == 2);
  CHECK(defaults.collectives.size() == 8);
  CHECK(defaults.dtype == DType::f32);
  CHECK_FALSE(defaults.without_all_reduce);
  CHECK(defaults.devices.device == "auto");
  CHECK(defaults.groups == 0);
  CHECK(parse({"--groups", "2"}).groups == 2);

  const CommOptions half = parse({"--dtype", "bf16", "--min-bytes", "1k", "--max-bytes", "128M"});
  CHECK(half.dtype == DType::bf16);
  CHECK(half.sizes.min_bytes == 1000);
  CHECK(half.sizes.max_bytes == 128'000'000);
  CHECK(half.collectives ==
        std::vector{Collective::exchange, Collective::reduce_scatter, Collective::all_gather,
                    Collective::broadcast, Collective::exchange_v, Collective::all_gather_v,
                    Collective::send_receive});
  CHECK(half.without_all_reduce);

  const CommOptions one = parse({"--dtype", "f16", "--collective", "all_gather"});
  CHECK(one.dtype == DType::f16);
  CHECK(one.collectives == std::vector{Collective::all_gather});
  CHECK_FALSE(one.without_all_reduce);
}

TEST_CASE("comm_bench refuses what it cannot measure") {
  CHECK_THROWS_WITH(parse({"--min-bytes", "2k", "--max-bytes", "1k"}),
                    ContainsSubstring("--min-bytes is 2k, expected at most --max-bytes, 1k"));
  CHECK_THROWS_WITH(parse({"--factor", "1"}), ContainsSubstring("expected at least 2"));
  CHECK_THROWS_WITH(parse({"--iterations", "0"}), ContainsSubstring("expected at least 1"));
  CHECK_THROWS_WITH(parse({"--groups", "-1"}), ContainsSubstring("expected at least 0"));
  CHECK_THROWS_WITH(parse({"--warmup", "-1"}), ContainsSubstring("expected at least 0"));
  CHECK_THROWS_WITH(parse({"--collective", "all_reduce", "--dtype", "bf16"}),
                    ContainsSubstring("all_reduce sums only f32, --dtype is bf16"));
  for (const char* flag : {"--min-bytes", "--max-bytes"}) {
    for (const std::string size : {"0.5", "281474976710657", "4EB", "5EB"}) {
      CHECK_THROWS_WITH(parse({flag, size.c_str()}),
                        ContainsSubstring(fmt::format("{} is '{}', expected from 1 byte to 256 TiB",
                                                      flag, size)));
    }
  }
  CHECK(parse({"--max-bytes", "256TiB"}).sizes.max_bytes == int64_t{1} << 48);
  for (const char* size : {"", "0", "-1", "1X", "ten"}) {
    CHECK_THROWS_AS(parse({"--min-bytes", size}), InputError);
    CHECK_THROWS_AS(parse({"--max-bytes", size}), InputError);
  }
}
