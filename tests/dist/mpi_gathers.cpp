#include "dist/nccl/cuda/host_gather.h"
#include "dist/stalled.h"
#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;

namespace {

template <class T>
void check_all_gather(int64_t piece) {
  const int ranks = job().size();
  const int rank = job().rank();
  const Tensor buffer = Tensor::empty({ranks * piece}, dtype_of<T>);
  int64_t i = 0;
  for (T& value : buffer.values<T>()) {
    const bool own = i >= rank * piece && i < (rank + 1) * piece;
    value = own ? static_cast<T>(value_at(rank, i)) : T{0};
    ++i;
  }
  const Counted counted(job());
  job().all_gather(buffer, {Traffic::parameters, 1}).wait();
  CHECK(differences<T>(buffer, [&](int64_t at) { return value_at(at / piece, at); }) == 0);
  CHECK(counted.only(Collective::all_gather, Traffic::parameters,
                     (ranks - 1) * piece * static_cast<int64_t>(sizeof(T))));
}

}  // namespace

TEST_CASE("all_gather brings every piece to every rank") {
  for (const int64_t piece : piece_sizes()) {
    INFO("piece " << piece);
    check_all_gather<float>(piece);
    check_all_gather<int64_t>(piece);
    check_all_gather<BFloat16>(piece);
  }
}

// A rank's piece of a buffer of bytes, such as flags, may have any length. So only the first rank's
// piece is sure to be aligned.
TEST_CASE("all_gather of a few bytes a rank") {
  for (const int64_t piece : {1, 2, 3, 5, 7, 31, 255, 257, 1001}) {
    INFO("piece " << piece);
    check_all_gather<uint8_t>(piece);
  }
}

// Over MPI, all_gather sends chunks of at most 1 MiB.
TEST_CASE("all_gather of many chunks") {
  check_all_gather<float>(many_ranks() ? 300'001 : 3'000'001);
}

TEST_CASE("broadcast from each rank") {
  const int ranks = job().size();
  for (int root = 0; root < ranks; ++root) {
    for (const int64_t elements : {0, 1, 1000, many_ranks() ? 300'001 : 2'100'003}) {
      INFO("root " << root << ", elements " << elements);
      const bool is_root = job().rank() == root;
      const Tensor buffer = is_root ? filled(root, elements) : Tensor::zeros({elements});
      const Counted counted(job());
      job().broadcast(buffer, root, {Traffic::other, -1}).wait();
      CHECK(differences(buffer, [&](int64_t i) { return value_at(root, i); }) == 0);
      CHECK(counted.only(Collective::broadcast, Traffic::other,
                         is_root ? (ranks - 1) * buffer.bytes() : 0));
    }
  }
}

TEST_CASE("texts of all ranks arrive on rank 0") {
  // gather_text sends long texts in rounds of at most 64 KiB a rank. Rank 1's text is empty, and
  // rank 2's takes several rounds.
  const auto text_of = [](int rank) {
    const size_t length = rank == 1 ? 0 : static_cast<size_t>(70'000 * (rank % 3) + rank + 5);
    std::string text(length, static_cast<char>('a' + rank));
    if (!text.empty()) text.back() = '.';
    return text;
  };
  const std::vector<std::string> texts = gather_text(job(), text_of(job().rank()));
  if (job().rank() != 0) {
    CHECK(texts.empty());
    return;
  }
  REQUIRE(texts.size() == static_cast<size_t>(job().size()));
  for (int r = 0; r < job().size(); ++r) CHECK(texts[static_cast<size_t>(r)] == text_of(r));
}

TEST_CASE("rank 0's text arrives on every rank") {
  for (const size_t length : {0, 5, 70'000}) {
    const std::string expected(length, 'x');
    CHECK(broadcast_text(job(), job().rank() == 0 ? expected : "not this one") == expected);
  }
}

TEST_CASE("all_gather_host gathers host memory, wherever the ranks compute") {
  constexpr int64_t piece = 3;
  const int ranks = job().size();
  const Tensor buffer = Tensor::zeros({ranks * piece}, DType::u8, Device{});
  const auto bytes = buffer.values<uint8_t>();
  std::fill_n(bytes.begin() + job().rank() * piece, piece, static_cast<uint8_t>(job().rank() + 1));
  const Counted counted(job());
  job().all_gather_host(buffer, {Traffic::flags, -1}).wait();
  for (int64_t i = 0; i < ranks * piece; ++i) CHECK(bytes[static_cast<size_t>(i)] == i / piece + 1);
  CHECK(counted.only(Collective::all_gather, Traffic::flags, (ranks - 1) * piece));
}

TEST_CASE("all_gather_host cannot be captured in a graph") {
  if (!job().captures()) TESSERA_SKIP("graphs are captured on CUDA, over NCCL");
  const Tensor flags = Tensor::zeros({job().size()}, DType::u8, Device{});
  const Counted counted(job());
  const auto gather = [&] { job().all_gather_host(flags, {Traffic::flags}).wait(); };
  CHECK_THROWS_WITH(job().capture(gather), Catch::Matchers::ContainsSubstring(
                                               "all_gather_host: in the capture of a graph"));
  gather();  // the communicator is still usable
  CHECK(counted.only(Collective::all_gather, Traffic::flags, job().size() - 1));
}

// The NCCL communicator's all_gather_host calls HostGather::all_gather. HostGather uses only MPI,
// so builds without CUDA can test it.
TEST_CASE("a gather of host memory refuses pieces of 2 GiB, which MPI cannot count") {
  const HostGather hosts;
  const Tensor buffer = Tensor::unallocated({job().size() * (int64_t{1} << 31)}, DType::u8);
  CHECK_THROWS_WITH(hosts.all_gather(buffer, {Traffic::flags}, 60),
                    "all_gather of flags: a piece of 2147483648 bytes in host memory, expected "
                    "less than 2 GiB");
}

TEST_CASE("a gather of host memory that times out keeps its buffer, which MPI may still write") {
  if (job().size() == 1) TESSERA_SKIP("one rank waits for nobody");
  const HostGather hosts;
  const Tensor buffer = Tensor::zeros({job().size()}, DType::u8, Device{});
  if (job().rank() == 0) {
    CHECK_THROWS_AS(hosts.all_gather(buffer, {Traffic::flags}, 0.2), StalledError);
    CHECK(buffer.storage().use_count() == 2);
  }
  job().barrier();
  if (job().rank() != 0) hosts.all_gather(buffer, {Traffic::flags}, 60);
}
