// Tests zero_plan's command line: accepted flags and refused flags.
#include "apps/zero_plan_options.h"

#include "apps/console/quantity.h"
#include "tests/support/catch.h"
#include "tests/support/plan_command_line.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::apps;
using test::parse_plan;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("quantities are read with their units") {
  CHECK(parse_bytes("--memory", "80GB") == 80'000'000'000);
  CHECK(parse_bytes("--memory", "24GiB") == int64_t{24} << 30);
  CHECK(parse_bytes("--memory", "1.5kB") == 1500);
  CHECK(parse_bytes("--memory", "2 MiB") == 2 << 20);
  CHECK(parse_bytes("--memory", "1000") == 1000);
  CHECK(parse_bytes("--memory", "3T") == 3'000'000'000'000);
  CHECK(parse_rate("--bandwidth", "25GB") == 25e9);
  CHECK(parse_rate("--bandwidth", "10GiB/s") == 10 * std::pow(1024.0, 3));
  CHECK(parse_flops("--flops", "400T") == 400e12);
  CHECK(parse_flops("--flops", "1.5e14") == 1.5e14);
  CHECK(parse_flops("--flops", "2E") == 2e18);
  CHECK(parse_seconds("--latency", "5us") == Approx(5e-6));
  CHECK(parse_seconds("--latency", "0.1ms") == Approx(1e-4));
  CHECK(parse_seconds("--latency", "30ns") == Approx(3e-8));
  CHECK(parse_seconds("--latency", "2s") == 2);
  CHECK(parse_seconds("--latency", "0") == 0);
  for (const char* text : {"", "GB", "-1GB", "0", "1GX", "1iB", "1KMB", "nan", "inf", "9e30"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_bytes("--memory", text), InputError);
  }
  CHECK_THROWS_AS(parse_rate("--bandwidth", "25Gb"), InputError);
  CHECK_THROWS_AS(parse_flops("--flops", "400TB"), InputError);
  CHECK_THROWS_AS(parse_seconds("--latency", "5min"), InputError);
  CHECK_THROWS_AS(parse_seconds("--latency", "-5us"), InputError);
}

TEST_CASE("a plan has the preset's defaults") {
  const PlanOptions options = parse_plan({"--preset", "gpt2"});
  CHECK(options.model.layers == 12);
  CHECK(options.run.batch.global == 480);
  CHECK(options.run.batch.micro == 4);
  CHECK(options.run.ranks == 1);
  CHECK(options.run.bucket_bytes == 4 << 20);
  CHECK(options.run.state_tensors == 2);
  CHECK(options.dtype == DType::f32);
  CHECK(options.stages == std::vector<int>{0, 1, 2, 3});
  CHECK(options.evaluates);
  CHECK_FALSE(options.memory.has_value());
  CHECK_FALSE(options.rates.has_value());
}

TEST_CASE("the staging in a plan depends on the device and the transport") {
  const optim::PlanInput on_cpu = parse_plan({"--ranks", "3"}).run;
  CHECK(on_cpu.device == Device{});
  CHECK(on_cpu.staging_bytes == dist::mpi_staging_bytes(3));
  const optim::PlanInput over_nccl = parse_plan({"--ranks", "3", "--device", "cuda"}).run;
  CHECK(over_nccl.device == Device{DeviceType::cuda, 0});
  CHECK(over_nccl.staging_bytes == dist::nccl_staging_bytes(3));
  // With MPI, the GPU holds one staging chunk of 1 MiB. The five chunks on the host (two for each
  // of the two peers, and one more) do not count in staging_bytes.
  CHECK(parse_plan({"--ranks", "3", "--device", "cuda", "--comm", "mpi"}).run.staging_bytes ==
        int64_t{1} << 20);
  CHECK(parse_plan({"--ranks", "3", "--device", "cuda", "--staging", "1KiB"}).run.staging_bytes ==
        1024);
}

TEST_CASE("the flags of zero_plan reach the plan") {
  const PlanOptions options =
      parse_plan({"--layers", "2", "--width", "64", "--heads", "2", "--context", "32",
                  "--vocab", "128", "--ranks", "1000000", "--ranks-per-node", "8",
                  "--precision", "bf16", "--grad-shard", "bf16", "--stage", "3",
                  "--global-batch", "16", "--micro-batch", "2", "--recompute", "--bucket-bytes",
                  "1024", "--reduction", "fast", "--optimizer", "sgd", "--offload", "optimizer",
                  "--memory", "80GB", "--bandwidth", "25GB", "--latency", "5us", "--flops",
                  "400T", "--node-bandwidth", "100GB", "--memory-bandwidth", "2TB", "--overlap",
                  "off", "--shared-cores", "--staging", "0"});
  CHECK(options.model.recompute);
  CHECK(options.dtype == DType::bf16);
  CHECK(options.run.sum_dtype == DType::bf16);
  CHECK(options.run.ranks == 1'000'000);
  CHECK(options.ranks_per_node == 8);
  CHECK(options.run.batch.micro_batches() == 8);
  CHECK(options.run.bucket_bytes == 1024);
  CHECK(options.run.reduction == optim::Reduction::fast);
  CHECK(options.run.state_tensors == 1);
  CHECK_FALSE(options.run.offload);  // a CPU's optimizer state is on the host anyway
  CHECK(options.idle_offload);
  const PlanOptions on_gpu = parse_plan({"--offload", "optimizer", "--device", "cuda"});
  CHECK(on_gpu.run.offload);
  CHECK_FALSE(on_gpu.idle_offload);
  CHECK(options.run.staging_bytes == 0);
  CHECK(options.stages == std::vector<int>{3});
  CHECK(options.memory == 80'000'000'000);
  REQUIRE(options.rates.has_value());
  CHECK(options.rates->flops == 400e12);
  CHECK(options.rates->bandwidth == 25e9);
  CHECK(options.rates->latency == Approx(5e-6));
  CHECK(options.rates->node_bandwidth == 100e9);
  CHECK(options.rates->memory_bandwidth == 2e12);
  CHECK(options.rates->ranks_per_node == 8);
  CHECK(options.rates->shared_cores);
  CHECK_FALSE(options.run.overlap);
  CHECK_FALSE(parse_plan({"--eval-every", "0"}).evaluates);
  CHECK(parse_plan({"--eval-every", "7"}).evaluates);
  CHECK(parse_plan({"--flops", "1T"}).rates->bandwidth == 0);  // one rank sends nothing
}

TEST_CASE("zero_plan refuses invalid flags in one line that says what is expected") {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases = {
      {{"--foo"}, "unknown flag --foo"},
      {{"stray"}, "unexpected argument 'stray'"},
      {{"--ranks", "0"}, "--ranks is 0, expected at least 1"},
      {{"--ranks", "1000001"}, "--ranks is 1000001, expected at most 1000000"},
      {{"--ranks-per-node", "0"}, "--ranks-per-node is 0"},
      {{"--stage", "4"}, "4"},
      {{"--precision", "fp8"}, "fp8"},
      {{"--grad-shard", "bf16"}, "--precision is fp32, expected bf16 or fp16"},
      {{"--layers", "0"}, "--layers is 0"},
      {{"--layers", "16385"}, "expected at most 16384"},
      {{"--width", "130"}, "--width 130 is not divisible by the default heads (4)"},
      {{"--preset", "huge"}, "expected one of nano, micro"},
      {{"--global-batch", "10", "--micro-batch", "4"},
       "--global-batch 10 is not a multiple of --micro-batch 4"},
      {{"--loss-rows", "-1"}, "--loss-rows is -1, expected at least 0"},
      {{"--eval-every", "-1"}, "--eval-every is -1, expected at least 0"},
      {{"--table", "9x4", "--lookups", "2", "--eval-every", "0"},
       "--eval-every is for a GPT, not for --table"},
      {{"--staging", "-1"}, "--staging is '-1', expected at least 0"},
      {{"--staging", "0.5"}, "--staging is '0.5', expected 0, or from 1 byte to 4 EB"},
      {{"--shared-cores"}, "--shared-cores is for the time of a step, which needs --flops too"},
      {{"--bucket-bytes", "0"}, "--bucket-bytes is '0'"},
      {{"--memory", "much"}, "--memory is 'much'"},
      {{"--memory", "0GB"}, "--memory is '0GB'"},
      {{"--flops", "1T", "--ranks", "2"}, "needs --bandwidth too"},
      {{"--bandwidth", "1GB"}, "--bandwidth is for the time of a step, which needs --flops too"},
      {{"--latency", "1us"}, "--latency is for the time"},
      {{"--flops", "-1T"}, "--flops is '-1T', expected more than 0"},
      {{"--flops", "1e-300"}, "--flops is '1e-300', expected from 1 to 1e24 a second"},
      {{"--flops", "1e300E"}, "--flops is '1e300E', expected from 1 to 1e24 a second"},
      {{"--flops", "1T", "--bandwidth", "0.5"}, "--bandwidth is '0.5', expected from 1"},
      {{"--flops", "1T", "--latency", "1e300"}, "--latency is '1e300', expected at most"},
      {{"--offload", "all"}, "all"},
      {{"--optimizer", "lion"}, "lion"},
      {{"--overlap", "maybe"}, "maybe"},
  };
  for (const auto& [arguments, expected] : cases) {
    const std::string message = test::message_of<InputError>([&] { parse_plan(arguments); });
    INFO(arguments[0] << " " << (arguments.size() > 1 ? arguments[1] : ""));
    CHECK_THAT(message, ContainsSubstring(expected));
    CHECK(message.find('\n') == std::string::npos);
  }
}
