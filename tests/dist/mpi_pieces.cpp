// Tests collectives with pieces of any length, and transfers between two ranks. Checks the received
// values, the number of bytes sent, and that invalid calls are refused.
#include <numeric>
#include <utility>

#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Returns the number of elements that `source` sends to `to`: `scale` times 0, 1, about a block
/// (256) or about four blocks. With a large scale, this may be more than a chunk.
int64_t length(int source, int to, int64_t scale) {
  const int64_t lengths[] = {0, 1, 255, 1003, 257};
  return scale * lengths[(3 * source + 2 * to) % 5];
}

std::vector<int64_t> lengths_from(int source, int64_t scale) {
  std::vector<int64_t> counts;
  for (int to = 0; to < job().size(); ++to) counts.push_back(length(source, to, scale));
  return counts;
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// Returns the header bytes of a call with this many peers.
int64_t headers_to(int64_t peers) { return over_nccl() ? 0 : mpi_header_bytes * peers; }

/// The counts of job().traffic() when this object was made. check() checks by how much the counts
/// have grown since then. `peers` is the number of ranks to which this rank has sent headers.
struct Sent {
  Sent()
      : calls(job().traffic().calls(Collective::send_receive)),
        data(job().traffic().bytes_sent(Traffic::gradients)),
        headers(job().traffic().bytes_sent(Traffic::headers)) {}
  void check(int64_t expected_calls, int64_t bytes, int64_t peers) const {
    const Sent now;
    CHECK(now.calls - calls == expected_calls);
    CHECK(now.data - data == bytes);
    CHECK(now.headers - headers == headers_to(peers));
  }
  int64_t calls;
  int64_t data;
  int64_t headers;
};

template <class T>
void check_exchange_v(int64_t scale) {
  const int rank = job().rank();
  ExchangeCounts counts{.send = lengths_from(rank, scale)};
  for (int s = 0; s < job().size(); ++s) counts.receive.push_back(length(s, rank, scale));
  const Tensor input = filled<T>(rank, sum(counts.send));
  const Tensor output = Tensor::zeros({sum(counts.receive)}, dtype_of<T>);
  const Counted counted(job());
  job().exchange_v(input, output, counts, {Traffic::gradients, 1}).wait();
  CHECK(counted.only(Collective::exchange_v, Traffic::gradients,
                     (input.elements() - length(rank, rank, scale)) *
                         static_cast<int64_t>(sizeof(T))));
  int64_t wrong = 0;
  int64_t begin = 0;
  for (int source = 0; source < job().size(); ++source) {
    const auto sent = lengths_from(source, scale);
    const int64_t first = std::accumulate(sent.begin(), sent.begin() + rank, int64_t{0});
    const int64_t elements = sent[static_cast<size_t>(rank)];
    wrong += differences<T>(output.flat(begin, begin + elements),
                            [&](int64_t i) { return value_at(source, first + i); });
    begin += elements;
  }
  CHECK(wrong == 0);
  CHECK(differences<T>(input, [&](int64_t i) { return value_at(rank, i); }) == 0);
}

template <class T>
void check_all_gather_v(const std::vector<int64_t>& counts) {
  const int rank = job().rank();
  const auto owner = [&](int64_t element) {
    int source = 0;
    while (element >= counts[static_cast<size_t>(source)]) {
      element -= counts[static_cast<size_t>(source++)];
    }
    return source;
  };
  const Tensor buffer = Tensor::zeros({sum(counts)}, dtype_of<T>);
  for (int64_t i = 0; i < buffer.elements(); ++i) {
    if (owner(i) == rank) buffer.data<T>()[i] = static_cast<T>(value_at(rank, i));
  }
  const Counted counted(job());
  job().all_gather_v(buffer, counts, {Traffic::parameters, 1}).wait();
  CHECK(counted.only(Collective::all_gather_v, Traffic::parameters,
                     (job().size() - 1) * counts[static_cast<size_t>(rank)] *
                         static_cast<int64_t>(sizeof(T))));
  CHECK(differences<T>(buffer, [&](int64_t i) { return value_at(owner(i), i); }) == 0);
}

}  // namespace

TEST_CASE("exchange_v delivers pieces of any length, in rank order") {
  for (const int64_t scale : {0, 1, 40}) {
    CAPTURE(scale);
    check_exchange_v<float>(scale);
    check_exchange_v<int64_t>(scale);
    check_exchange_v<BFloat16>(scale);
  }
  if (!many_ranks()) check_exchange_v<float>(1 + 2 * chunk_elements() / 1003);
}

TEST_CASE("all_gather_v gathers pieces of any length, also of one rank alone") {
  const int ranks = job().size();
  std::vector<int64_t> counts = lengths_from(1, 1);
  check_all_gather_v<float>(counts);
  check_all_gather_v<uint8_t>(counts);
  check_all_gather_v<float>(std::vector<int64_t>(static_cast<size_t>(ranks), 0));
  counts.assign(static_cast<size_t>(ranks), 0);
  counts[static_cast<size_t>(ranks - 1)] = 100'003;
  check_all_gather_v<float>(counts);
}

TEST_CASE("a ring: each step sends to the next rank and receives from the one before") {
  const int ranks = job().size();
  const int rank = job().rank();
  for (const int64_t elements : {0, 1, 777, 300'000}) {
    Tensor own = filled(rank, elements);
    for (int step = 1; step <= ranks; ++step) {
      const Tensor next = Tensor::zeros({elements});
      const Sent sent;
      job().send_receive({own, (rank + 1) % ranks}, {next, (rank + ranks - 1) % ranks},
                         {Traffic::gradients, 0}).wait();
      // On two ranks the next rank is also the previous one, so there is one peer.
      sent.check(1, ranks == 1 ? 0 : own.bytes(), std::min(ranks - 1, 2));
      own = next;
      const int source = (rank - step % ranks + ranks) % ranks;
      CHECK(differences(own, [&](int64_t i) { return value_at(source, i); }) == 0);
    }
  }
}

TEST_CASE("sends and receives between pairs, beside collectives of all ranks") {
  const int ranks = job().size();
  const int rank = job().rank();
  const Tensor sum_of_ranks = Tensor::full({1000}, static_cast<float>(rank));
  const Work all = job().all_reduce(sum_of_ranks, {});
  const Sent sent;
  // Rank 0 sends to 1, then 1 to 2, ...; each rank passes on the data that it has received.
  const Tensor token = Tensor::zeros({513});
  if (rank > 0) job().receive(token, rank - 1, {Traffic::gradients, 0});
  if (rank == 0) token.copy_from(filled(7, 513));
  if (rank + 1 < ranks) job().send(token, rank + 1, {Traffic::gradients, 0});
  job().run([] {}).wait();
  const bool sends = rank + 1 < ranks;
  const bool receives = rank > 0;
  sent.check(int(sends) + int(receives), sends ? token.bytes() : 0,
             int(sends) + int(receives));
  CHECK(differences(token, [](int64_t i) { return value_at(7, i); }) == 0);
  all.wait();
  CHECK(sum_of_ranks.data<float>()[999] == static_cast<float>(ranks * (ranks - 1) / 2));
  job().barrier();
}

TEST_CASE("invalid counts and peers are refused, and the error names them") {
  const int ranks = job().size();
  const int rank = job().rank();
  const auto few = static_cast<size_t>(ranks);
  const Tensor x = Tensor::zeros({ranks});
  const Tensor y = Tensor::zeros({ranks});
  const std::vector<int64_t> ones(few, 1);
  const auto exchange = [&](std::vector<int64_t> send, std::vector<int64_t> receive) {
    job().exchange_v(x, y, {std::move(send), std::move(receive)}, {}).wait();
  };
  CHECK_THROWS_WITH(exchange(std::vector<int64_t>(few + 1, 1), ones),
                    ContainsSubstring("counts, expected one for each of"));
  CHECK_THROWS_WITH(exchange(ones, std::vector<int64_t>(few, 2)),
                    ContainsSubstring("add up to more"));
  std::vector<int64_t> negative = ones;
  negative[0] = -1;
  CHECK_THROWS_WITH(exchange(negative, ones), ContainsSubstring("-1 elements for rank 0"));
  if (ranks > 1) {
    std::vector<int64_t> shifted = ones;
    shifted[static_cast<size_t>(rank)] = 0;
    shifted[static_cast<size_t>((rank + 1) % ranks)] = 2;
    CHECK_THROWS_WITH(exchange(ones, shifted), ContainsSubstring("elements to itself"));
  }
  CHECK_THROWS_WITH(job().all_gather_v(x, std::vector<int64_t>(few, 2), {}),
                    ContainsSubstring("all_gather_v: a buffer of"));
  CHECK_THROWS_WITH(job().send(x, ranks, {}), ContainsSubstring("peer"));
  CHECK_THROWS_WITH(job().send(x, rank, {}),
                    ContainsSubstring("its own peer in only one direction"));
  CHECK_THROWS_WITH(job().send_receive({}, {}, {}), ContainsSubstring("neither"));
  CHECK_THROWS_WITH(job().send_receive({x, rank}, {y.flat(0, 0), rank}, {}),
                    ContainsSubstring("to itself, but expects"));
  job().barrier();  // refused calls send nothing, so the communicator still works
}

TEST_CASE("if a peer expects another length, the error names both, over MPI") {
  if (job().size() < 2 || over_nccl()) return;
  const int ranks = job().size();
  const int rank = job().rank();
  {
    const auto communicator = new_communicator();
    // Rank 1 expects one element more from rank 0 than rank 0 sends.
    std::vector<int64_t> counts(static_cast<size_t>(ranks), 0);
    counts[0] = rank == 1 ? 4 : 3;
    const Work work = communicator->all_gather_v(Tensor::zeros({counts[0]}), counts, {});
    const auto wait = [&] { work.wait(); };
    if (rank == 1) {
      CHECK_THROWS_WITH(wait(), ContainsSubstring("rank 0 sends 12 bytes of f32 to rank 1, which "
                                                  "expects 16 bytes of f32"));
    } else if (rank == 0) {
      CHECK_THROWS_WITH(wait(), ContainsSubstring("rank 0 sends 12 bytes of f32 to rank 1, which "
                                                  "expects other data"));
    } else {
      CHECK_NOTHROW(wait());
    }
    job().barrier();
  }
  {
    const auto communicator = new_communicator();
    const auto transfer = [&] {
      if (rank == 0) communicator->send(Tensor::zeros({2}, DType::bf16), 1, {}).wait();
      if (rank == 1) communicator->receive(Tensor::zeros({2}), 0, {}).wait();
    };
    if (rank == 1) {
      CHECK_THROWS_WITH(transfer(), ContainsSubstring("send_receive of other") &&
                                        ContainsSubstring("rank 0 sends 4 bytes of bf16 to rank 1, "
                                                          "which expects 8 bytes of f32"));
    } else if (rank == 0) {
      CHECK_THROWS_WITH(transfer(), ContainsSubstring("rank 0 sends 4 bytes of bf16 to rank 1, "
                                                      "which expects other data"));
    } else {
      CHECK_NOTHROW(transfer());
    }
    job().barrier();
  }
  {
    // Rank 0 sends while rank 1 makes a collective.
    const auto communicator = job().split(rank < 2 ? 0 : -1, rank, "of two");
    const auto call = [&] {
      if (rank == 0) {
        communicator->send(Tensor::zeros({2}), 1, {}).wait();
      } else {
        communicator->all_reduce(Tensor::zeros({2}), {}).wait();
      }
    };
    if (rank < 2) {
      CHECK_THROWS_WITH(call(), ContainsSubstring("ranks make different calls in group of two") &&
                                    ContainsSubstring("send_receive") &&
                                    ContainsSubstring("all_reduce"));
    }
    job().barrier();
  }
}
