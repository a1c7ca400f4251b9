// Tests groups of ranks: their members, every collective in two groups at once, the traffic of each
// group, and failures.
#include "dist/mesh.h"
#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;
using Catch::Matchers::ContainsSubstring;

namespace {

World world() {
  World result;
  result.rank = job().rank();
  result.size = job().size();
  // The shared_ptr does not own the job's communicator, which later tests need.
  result.communicator = std::shared_ptr<Communicator>(&job(), [](Communicator*) {});
  return result;
}

/// Makes every collective on one communicator, and checks the results. start() makes the calls, and
/// check() waits for them. Calls of another group can run between start() and check().
class AllCollectives {
 public:
  /// members[r] is the job rank of the process that has rank r in the communicator. Values are
  /// derived from job ranks.
  AllCollectives(Communicator& communicator, std::vector<int> members, int64_t elements)
      : communicator_(communicator), members_(std::move(members)), elements_(elements) {}

  void start() {
    const int ranks = communicator_.size();
    const int rank = communicator_.rank();
    const int64_t n = elements_;
    input_ = filled(own(), ranks * n);
    sums_ = Tensor::zeros({n});
    shard_ = Tensor::zeros({n});
    gathered_ = Tensor::zeros({ranks * n});
    gathered_.flat(rank * n, (rank + 1) * n).copy_from(filled(own(), n));
    reduced_ = filled(own(), n);
    broadcast_ = filled(own(), n);
    arrived_ = Tensor::zeros({ranks * n});
    passed_ = Tensor::zeros({n});
    const std::vector<int64_t> equal(static_cast<size_t>(ranks), n);
    uneven_ = Tensor::zeros({n});
    uneven_counts_.assign(static_cast<size_t>(ranks), 0);
    uneven_counts_.back() = n;
    if (rank == ranks - 1) uneven_.copy_from(filled(own(), n));

    works_.push_back(communicator_.exchange(
        input_, ranks,
        [sums = sums_](int, int64_t begin, const Tensor& chunk) {
          const Tensor host = chunk.to_host();
          const Tensor sum = sums.flat(begin, begin + chunk.elements());
          Tensor added = sum.to_host();
          for (int64_t i = 0; i < host.elements(); ++i) {
            added.data<float>()[i] += host.data<float>()[i];
          }
          sum.copy_from(added);
        },
        {Traffic::gradients, 0}));
    works_.push_back(communicator_.reduce_scatter(shard_, input_, ranks, {Traffic::gradients, 1}));
    works_.push_back(communicator_.all_gather(gathered_, {Traffic::parameters, 2}));
    works_.push_back(communicator_.all_reduce(reduced_, {}));
    works_.push_back(communicator_.broadcast(broadcast_, ranks - 1, {}));
    works_.push_back(communicator_.exchange_v(input_, arrived_, {equal, equal}, {}));
    works_.push_back(communicator_.all_gather_v(uneven_, uneven_counts_, {}));
    works_.push_back(communicator_.send_receive({input_.flat(0, n), (rank + 1) % ranks},
                                                {passed_, (rank + ranks - 1) % ranks}, {}));
  }

  void check() {
    for (const Work& work : works_) work.wait();
    communicator_.run([] {}).wait();
    const int ranks = communicator_.size();
    const int rank = communicator_.rank();
    const int64_t n = elements_;
    const auto sum_at_index = [&](int64_t i) {
      int64_t sum = 0;
      for (const int member : members_) sum += value_at(member, i);
      return sum;
    };
    const auto member = [&](int r) { return members_[static_cast<size_t>(r)]; };
    CHECK(differences(sums_, [&](int64_t i) { return sum_at_index(rank * n + i); }) == 0);
    CHECK(differences(shard_, [&](int64_t i) { return sum_at_index(rank * n + i); }) == 0);
    CHECK(differences(reduced_, sum_at_index) == 0);
    CHECK(differences(broadcast_, [&](int64_t i) { return value_at(member(ranks - 1), i); }) == 0);
    CHECK(differences(uneven_, [&](int64_t i) { return value_at(member(ranks - 1), i); }) == 0);
    CHECK(differences(passed_, [&](int64_t i) {
            return value_at(member((rank + ranks - 1) % ranks), i);
          }) == 0);
    for (int r = 0; r < ranks; ++r) {
      CHECK(differences(gathered_.flat(r * n, (r + 1) * n),
                        [&](int64_t i) { return value_at(member(r), i); }) == 0);
      CHECK(differences(arrived_.flat(r * n, (r + 1) * n),
                        [&](int64_t i) { return value_at(member(r), rank * n + i); }) == 0);
    }
    communicator_.barrier();
  }

 private:
  int own() const { return members_[static_cast<size_t>(communicator_.rank())]; }

  Communicator& communicator_;
  std::vector<int> members_;
  int64_t elements_;
  Tensor input_, sums_, shard_, gathered_, reduced_, broadcast_, arrived_, passed_, uneven_;
  std::vector<int64_t> uneven_counts_;
  std::vector<Work> works_;
};

}  // namespace

TEST_CASE("split: ranks of a color form a group in the order of their keys, or join none") {
  const int ranks = job().size();
  const int rank = job().rank();
  // Rank 0 is alone in its group. The other ranks form a group in reversed order.
  const auto group = job().split(rank == 0 ? 0 : 1, -rank, "reversed");
  REQUIRE(group != nullptr);
  CHECK(group->size() == (rank == 0 ? 1 : ranks - 1));
  CHECK(group->rank() == (rank == 0 ? 0 : ranks - 1 - rank));
  CHECK(group->group() == "reversed");
  CHECK(group->device() == job().device());
  // With equal keys, ranks keep their order.
  const auto same = job().split(3, 0, "same");
  CHECK(same->rank() == rank);
  CHECK(same->size() == ranks);
  const auto none = job().split(rank == 0 ? -1 : 0, 0, "without rank 0");
  CHECK((none == nullptr) == (rank == 0));
  if (none) CHECK(none->size() == ranks - 1);
  const auto split_without_name = [] { (void)job().split(0, 0, ""); };
  CHECK_THROWS_WITH(split_without_name(), ContainsSubstring("a group without a name"));
}

TEST_CASE("every collective in two interleaved groups and the whole job at once") {
  const int ranks = job().size();
  const int rank = job().rank();
  std::vector<int> parity;  // the ranks with this rank's parity
  std::vector<int> below;  // the ranks of this rank's half of the job
  std::vector<int> all;
  const auto half = [&](int r) { return r < (ranks + 1) / 2; };
  for (int r = 0; r < ranks; ++r) {
    if (r % 2 == rank % 2) parity.push_back(r);
    if (half(r) == half(rank)) below.push_back(r);
    all.push_back(r);
  }
  const auto one = job().split(rank % 2, rank, "parity");
  const auto other = job().split(half(rank) ? 0 : 1, rank, "half");
  REQUIRE(one->size() == std::ssize(parity));
  REQUIRE(other->size() == std::ssize(below));
  for (const int64_t elements : {1, 256, 20'000}) {
    AllCollectives first(*one, parity, elements);
    AllCollectives second(*other, below, elements);
    AllCollectives whole(job(), all, elements);
    first.start();
    second.start();
    whole.start();
    second.check();
    whole.check();
    first.check();
  }
}

TEST_CASE("each group counts its own traffic") {
  const int rank = job().rank();
  const auto group = job().split(rank % 2, rank, "parity");
  const int64_t before = job().traffic().bytes_sent();
  const int64_t members = group->size();
  group->all_gather(Tensor::zeros({members * 10}), {Traffic::parameters, 0}).wait();
  CHECK(group->traffic().bytes_sent(Traffic::parameters) == (members - 1) * 40);
  CHECK(group->traffic().bytes_sent(Traffic::headers) ==
        (over_nccl() ? 0 : (members - 1) * mpi_header_bytes));
  CHECK(group->traffic().calls(Collective::all_gather) == 1);
  CHECK(job().traffic().bytes_sent() == before);
}

TEST_CASE("groups do not wait for each other, over MPI") {
  if (job().size() < 2 || over_nccl()) return;
  const int rank = job().rank();
  const auto one = job().split(0, rank, "one");
  const auto other = job().split(0, rank, "other");
  const Tensor a = Tensor::full({100}, 1.0f);
  const Tensor b = Tensor::full({100}, 2.0f);
  // Rank 0 starts the two reductions in one order, the other ranks in the opposite order. Each rank
  // waits first for the reduction that it started second.
  Communicator& first = rank == 0 ? *one : *other;
  Communicator& second = rank == 0 ? *other : *one;
  const Work earlier = first.all_reduce(rank == 0 ? a : b, {});
  const Work later = second.all_reduce(rank == 0 ? b : a, {});
  later.wait();
  earlier.wait();
  one->run([] {}).wait();
  other->run([] {}).wait();
  CHECK(a.data<float>()[99] == static_cast<float>(job().size()));
  CHECK(b.data<float>()[99] == static_cast<float>(2 * job().size()));
  // Rank 0 sends in `one` first, but rank 1 receives in `other` first. The unfinished send in `one`
  // must not block the transfer in `other`.
  if (rank == 0) {
    const Work sent = one->send(a, 1, {});
    other->send(b, 1, {}).wait();
    sent.wait();
  } else if (rank == 1) {
    other->receive(b, 0, {}).wait();
    one->receive(a, 0, {}).wait();
  }
  job().barrier();
}

TEST_CASE("if ranks of a group make different calls, the error names both and the group") {
  const int rank = job().rank();
  if (job().size() < 3 || over_nccl()) return;
  const auto group = job().split(rank == 0 ? -1 : 0, rank, "without 0");
  if (rank > 0) {
    const Tensor x = Tensor::zeros({group->size() * 2});
    const auto call = [&] {
      // Rank 1 of the job, which is rank 0 of the group, is the root.
      if (rank == 1) group->broadcast(x, 0, {Traffic::parameters, 5}).wait();
      if (rank > 1) group->all_gather(x, {Traffic::parameters, 5}).wait();
    };
    CHECK_THROWS_WITH(call(), ContainsSubstring("different calls in group without 0: rank") &&
                                  ContainsSubstring("broadcast of parameters, bucket 5") &&
                                  ContainsSubstring("from rank 1)") &&
                                  ContainsSubstring("rank 1 broadcast"));
  }
  job().barrier();
}

TEST_CASE("mesh: groups along axes, the last one varies fastest") {
  const int ranks = job().size();
  const int rank = job().rank();
  for (int columns = 1; columns <= ranks; ++columns) {
    if (ranks % columns != 0) continue;
    CAPTURE(columns);
    const Mesh mesh(world(), {{"replica", ranks / columns}, {"data", columns}});
    CHECK(mesh.coordinate("data") == rank % columns);
    CHECK(mesh.coordinate("replica") == rank / columns);
    CHECK(mesh.group("data").size == columns);
    CHECK(mesh.group("replica").size == ranks / columns);
    const Tensor ranks_of_row = Tensor::zeros({columns}, DType::i64);
    ranks_of_row.data<int64_t>()[rank % columns] = rank;
    mesh.group("data").communicator->all_gather(ranks_of_row, {}).wait();
    for (int c = 0; c < columns; ++c) {
      CHECK(ranks_of_row.values<int64_t>()[c] == rank / columns * columns + c);
    }
    // An axis of all ranks needs no second communicator.
    if (columns == ranks) CHECK(mesh.group("data").communicator.get() == &job());
  }
  const auto make = [](std::vector<Mesh::Axis> axes) { const Mesh mesh(world(), std::move(axes)); };
  CHECK_THROWS_WITH(make({{"data", ranks}, {"replica", 2}}),
                    ContainsSubstring("expected sizes whose product is"));
  CHECK_THROWS_WITH(make({{"data", 0}}), ContainsSubstring("axis data has 0 ranks"));
  CHECK_THROWS_WITH(make({{"data", ranks}, {"data", 1}}), ContainsSubstring("2 axes are called"));
  CHECK_THROWS_WITH(make({{"", ranks}}), ContainsSubstring("axis 0 has no name"));
  if (ranks > 1) CHECK_THROWS_WITH(make({}), ContainsSubstring("expected sizes whose product is"));
  const Mesh mesh(world(), {{"data", ranks}});
  CHECK_THROWS_WITH(mesh.group("tensor"), ContainsSubstring("there is no axis tensor"));
}

TEST_CASE("the error of a stalled group names the group and the ranks' numbers in the job") {
  const int ranks = job().size();
  const int rank = job().rank();
  if (ranks < 3 || over_nccl()) return;
  const auto group = job().split(rank == 0 ? -1 : 0, rank, "without 0");
  if (rank > 0) {
    group->set_timeout(0.3);
    const auto barrier = [&] { group->barrier(); };
    // Rank 1 of the job is rank 0 of the group. It does not call barrier().
    if (rank > 1) {
      CHECK_THROWS_WITH(barrier(), ContainsSubstring("barrier (call 1) in group without 0: nothing "
                                                     "has moved for 0.3 s (--comm-timeout)") &&
                                       (ContainsSubstring(": rank 1 has not made this call") ||
                                        ContainsSubstring(": ranks 1, ")));
    }
  }
  job().barrier();
}
