// Tests the parts on which relaunch bases its decisions: records within a stream of text, verdicts
// on jobs, and remaining hosts. Also tests relaunch's command line, and an early Ctrl-C.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

#include "apps/relaunch/hosts.h"
#include "apps/relaunch/job.h"
#include "apps/relaunch/rank_record.h"
#include "apps/relaunch/record_socket.h"
#include "apps/relaunch/verdict.h"
#include "apps/relaunch_options.h"
#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::apps;

namespace {

using Event = RankRecord::Event;
using Kind = Verdict::Kind;

RankRecord started(int rank) { return {.rank = rank, .event = Event::started}; }
RankRecord told(int rank, RunStatus status = {}) {
  return {.rank = rank, .event = Event::told, .was_told = true, .status = std::move(status)};
}
RankRecord killed(int rank, int signal, int64_t steps = 0, bool was_told = false) {
  return {.rank = rank,
          .event = Event::ended,
          .signal = signal,
          .was_told = was_told,
          .status = {.finished_steps = steps}};
}
RankRecord exited(int rank, int code, RunStatus status = {}) {
  return {.rank = rank, .event = Event::ended, .code = code, .status = std::move(status)};
}
RunStatus stalled(std::vector<int> absent, int64_t steps = 0) {
  return {.finished_steps = steps, .failure = RunFailure::stalled, .absent = std::move(absent)};
}

// Returns the verdict on a job of four ranks that have all started, then sent `records`.
Verdict of_four(std::vector<RankRecord> records, int code = 1) {
  JobEnd job{.code = code, .ranks = 4};
  for (int rank = 0; rank < 4; ++rank) job.records.push_back(started(rank));
  job.records.insert(job.records.end(), records.begin(), records.end());
  return judge(job);
}

std::vector<int> lost_in(const Verdict& verdict) {
  std::vector<int> ranks;
  for (const LostRank& lost : verdict.lost) ranks.push_back(lost.rank);
  return ranks;
}

RelaunchOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "relaunch");
  return parse_relaunch_command_line(static_cast<int>(arguments.size()), arguments.data()).options;
}

// Returns the error message that refuses the command line, or "nothing" if it is accepted.
std::string refusal(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("records are extracted from a stream, wherever it is split") {
  const RankRecord first{.rank = 3, .host = "a \"b\"", .status = stalled({1, 2}, 77)};
  const RankRecord second = killed(1, 9, 5);
  const std::string stream =
      "before\nmid" + record_text(first) + "line\n" + record_text(second) + "after";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    std::string text;
    std::vector<RankRecord> records;
    RecordFilter filter([&](std::string_view part) { text += part; },
                        [&](const RankRecord& record) { records.push_back(record); });
    for (size_t at = 0; at < stream.size(); at += piece) filter.feed(stream.substr(at, piece));
    filter.finish();
    REQUIRE(text == "before\nmidline\nafter");
    REQUIRE(records == std::vector{first, second});
  }
}

TEST_CASE("a record has the number of threads of the rank's program") {
  const RankRecord record{.rank = 1, .event = Event::ended, .status = {.threads = 3}};
  const auto parsed = parse_record(record_text(record));
  REQUIRE(parsed);
  CHECK(parsed->status.threads == 3);
}

TEST_CASE("an exit code of a shell counts as the signal that killed the shell's program") {
  const auto end_of = [](int wait_status, RunStatus status = {}) {
    RankRecord record{.event = Event::ended, .status = std::move(status)};
    set_end(record, wait_status);
    return std::pair(record.signal, record.code);
  };
  const auto exit_of = [](int code) { return code << 8; };  // the status that waitpid returns
  CHECK(end_of(exit_of(0)) == std::pair(0, 0));
  CHECK(end_of(exit_of(2)) == std::pair(0, 2));
  CHECK(end_of(exit_of(128)) == std::pair(0, 128));
  CHECK(end_of(exit_of(255)) == std::pair(0, 255));
  CHECK(end_of(SIGSEGV) == std::pair(SIGSEGV, 0));
  CHECK(end_of(exit_of(128 + SIGKILL)) == std::pair(SIGKILL, 0));
  CHECK(end_of(exit_of(128 + SIGKILL), {.failure = RunFailure::error}) == std::pair(0, 137));
}

TEST_CASE("a record interrupted by other output is text, and its next copy is taken") {
  const RankRecord first = killed(1, 9, 5);
  const RankRecord second = killed(2, 11, 7);
  const std::string a = record_text(first);
  const std::string b = record_text(second);
  std::string text;
  std::vector<RankRecord> records;
  RecordFilter filter([&](std::string_view part) { text += part; },
                      [&](const RankRecord& record) { records.push_back(record); });
  filter.feed(a.substr(0, 20) + b + a.substr(20));              // a record within a record
  filter.feed(a.substr(0, 30) + "words\n" + a.substr(30) + a);  // words within a record
  filter.feed(a + b + b);
  CHECK(records == std::vector{second, first});
  CHECK(text == a.substr(1, 19) + a.substr(20) + a.substr(1, 29) + "words\n" + a.substr(30));
}

TEST_CASE("invalid and unfinished records are text") {
  std::string text;
  int records = 0;
  RecordFilter filter([&](std::string_view part) { text += part; },
                      [&](const RankRecord&) { ++records; });
  filter.feed("\x1e{\"rank\":1}\n\x1enonsense\n\x1e{\"rank\":\"x\"}\nkept\n");
  filter.feed("\x1e" + std::string(5000, 'x') + "\n");
  filter.feed("\x1e unfinished");
  filter.finish();
  CHECK(records == 0);
  CHECK(text == "{\"rank\":1}\nnonsense\n{\"rank\":\"x\"}\nkept\n" + std::string(5000, 'x') +
                    "\n unfinished");
}

TEST_CASE("the first rank to be killed is lost, and ranks that end because of it are not") {
  const Verdict verdict = of_four({exited(1, 1, {.failure = RunFailure::error}), killed(2, 9, 57),
                                   killed(3, 11, 57), told(0), killed(0, 15, 57, true)},
                                  137);
  CHECK(verdict.kind == Kind::lost_ranks);
  REQUIRE(lost_in(verdict) == std::vector{2});
  CHECK(verdict.lost[0].why == "was killed by SIGKILL");
  CHECK(verdict.lost[0].finished_steps == 57);
  CHECK(verdict.lost[0].signal == 9);
}

TEST_CASE("ranks that a stalled collective waits for are lost") {
  const Verdict hanging = of_four({exited(0, 1, stalled({2}, 9)), told(1), told(2), told(3)});
  CHECK(hanging.kind == Kind::lost_ranks);
  REQUIRE(lost_in(hanging) == std::vector{2});
  CHECK(hanging.lost[0].finished_steps == 9);

  // Rank 0 timed out waiting for ranks 2 and 3. Rank 2 waits for other ranks itself, so only rank 3
  // is lost.
  CHECK(lost_in(of_four({exited(0, 1, stalled({2, 3})), told(2, {.waits = true}), told(3)})) ==
        std::vector{3});
  // Only the stopped rank 2 is lost. It does not matter that rank 2 waited and rank 3 did not.
  RankRecord stopped = told(2, {.waits = true});
  stopped.stopped = true;
  CHECK(lost_in(of_four({exited(0, 1, stalled({2, 3})), stopped, told(3)})) == std::vector{2});
  CHECK(lost_in(of_four({exited(0, 1, stalled({2, 3})), told(2), told(3)})) == std::vector{2, 3});
  // Rank 2 has stalled while it waited for rank 3, so only rank 3 is lost.
  CHECK(lost_in(of_four({exited(0, 1, stalled({2, 3})), told(2, stalled({3}))})) == std::vector{3});
  // Rank 0 stalled before MPI had started, so it does not know which ranks it waits for. In this
  // case, stopped ranks are lost: here rank 2.
  CHECK(lost_in(of_four({exited(0, 1, stalled({})), told(1), stopped})) == std::vector{2});
  // If no rank of the job is named as absent, and none is stopped, no rank is lost: the job counts
  // as stalled.
  CHECK(of_four({exited(0, 1, stalled({4, -1}))}).kind == Kind::stalled);
  CHECK(of_four({exited(0, 1, stalled({}))}).kind == Kind::stalled);
}

TEST_CASE("ranks of a host that falls silent are lost") {
  CHECK(lost_in(of_four({told(0), told(1)}, 205)) == std::vector{2, 3});
  CHECK(lost_in(judge({.code = 1, .ranks = 2, .records = {started(0), told(0)}})) ==
        std::vector{1});
}

TEST_CASE("if mpirun hangs, silent ranks are lost, and so are ranks that others waited for") {
  const JobEnd job{.code = 137,
                   .ranks = 4,
                   .hung = true,
                   .records = {started(0), started(1), started(2), started(3),
                               exited(0, 1, stalled({2}, 5)), exited(1, 1, stalled({2}, 5))}};
  CHECK(lost_in(judge(job)) == std::vector{2, 3});
  // Ranks 2 and 3 are also lost if rank 0 gets an MPI error before it times out.
  JobEnd error = job;
  error.records = {started(0), started(1), exited(0, 1, {.failure = RunFailure::error}), told(1)};
  CHECK(lost_in(judge(error)) == std::vector{2, 3});
  error.records[2].status.failure = RunFailure::input;
  CHECK(judge(error).kind == Kind::failed);
}

TEST_CASE("after a crash of mpirun, the job restarts without the ranks known to be lost") {
  // Ranks 0 and 1 run on mpirun's host and report over the socket. Ranks 2 and 3 run on the host
  // "b" and rank 4 on the host "c". These three ranks report only that they have started.
  JobEnd job{.code = 139, .ranks = 5, .launcher_signal = 11};
  for (const auto& [rank, host] :
       {std::pair(0, "a"), {1, "a"}, {2, "b"}, {3, "b"}, {4, "c"}}) {
    job.records.push_back(started(rank));
    job.records.back().host = host;
  }
  CHECK(judge(job).kind == Kind::crashed);
  const auto with = [&job](std::vector<RankRecord> more) {
    JobEnd extended = job;
    extended.records.insert(extended.records.end(), more.begin(), more.end());
    return judge(extended);
  };
  const Verdict crash = with({killed(0, 9, 6, true), killed(1, 9, 7, true)});
  CHECK(crash.kind == Kind::crashed);
  CHECK(crash.why == "mpirun was killed by SIGSEGV");
  CHECK(lost_in(with({exited(1, 1, stalled({2}, 5)), killed(0, 9, 5, true)})) ==
        std::vector{2, 3});
  CHECK(lost_in(with({killed(1, 11, 5), killed(0, 9, 5, true)})) == std::vector{1});
  const RankRecord broken = exited(1, 1, {.failure = RunFailure::error});
  CHECK(with({broken}).kind == Kind::crashed);
  // Bad input, or a timeout that names absent ranks, decides the verdict even after another rank's
  // earlier error. A timeout that names no rank does not change the verdict.
  CHECK(lost_in(with({broken, exited(0, 1, stalled({4}, 5))})) == std::vector{4});
  CHECK(with({broken, exited(0, 1, stalled({}))}).kind == Kind::crashed);
  CHECK(with({broken, exited(0, 2, {.failure = RunFailure::input})}).kind == Kind::failed);
}

TEST_CASE("records arrive over the socket, and copies of a record are ignored") {
  RecordSocket socket;
  const RecordSender sender;
  CHECK(socket.next().empty());
  const RankRecord record = killed(1, 9, 5);
  int taken = 0;
  RecordFilter filter([](std::string_view) {}, [&](const RankRecord&) { ++taken; });
  filter.feed(record_text(record));
  for (int i = 0; i < 2; ++i) {
    REQUIRE(sender.send(record_text(record)));
    const auto arrived = parse_record(socket.next());
    REQUIRE(arrived == record);
    filter.take(*arrived);
  }
  CHECK(taken == 1);
  // If the socket stays full, send() refuses a record. No accepted record is lost.
  int sent = 0;
  while (sender.send(record_text(record))) REQUIRE(++sent < 100000);
  for (int i = 0; i < sent; ++i) REQUIRE(parse_record(socket.next()) == record);
  CHECK(socket.next().empty());
  setenv(record_socket_variable, "tessera-relaunch-nobody", 1);
  CHECK(RecordSender().send(record_text(record)));
}

// Ctrl-C is pressed before the job's mpirun has started, for example between two jobs. `sleep`
// stands for mpirun. The signal has SI_KERNEL, as a terminal's signals have. It is sent to this
// thread only, because other threads do not block it.
TEST_CASE("Ctrl-C that comes before mpirun starts ends the job") {
  SignalQueue signals({SIGCHLD, SIGINT});
  siginfo_t of_terminal{};
  of_terminal.si_code = SI_KERNEL;
  REQUIRE(::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), SIGINT, &of_terminal) == 0);
  CHECK(signals.pending(SIGINT));
  Asked asked;
  const JobEnd end = run_one_job({"sleep", "5"}, 1, signals, asked);
  CHECK(asked.to_interrupt);
  CHECK(end.launcher_signal == SIGINT);
  CHECK_FALSE(signals.pending(SIGINT));
}

TEST_CASE("failures that would happen again do not count as lost ranks") {
  CHECK(of_four({exited(2, 2, {.failure = RunFailure::input})}, 2).why == "rank 2 has bad input");
  // Rank 0 timed out while it waited for rank 2, which had bad input and reported it later.
  CHECK(of_four({exited(0, 1, stalled({2})), told(2, {.failure = RunFailure::input})}).why ==
        "rank 2 has bad input");
  CHECK(of_four({told(1, {.failure = RunFailure::error})}).kind == Kind::failed);
  CHECK(of_four({exited(2, 3)}, 3).why == "rank 2 ended with exit code 3");
  CHECK(judge({.code = 7, .ranks = 2}).why ==
        "mpirun ended with exit code 7 before any rank began");
  CHECK(of_four({}, 0).kind == Kind::finished);
}

TEST_CASE("a host loses one place for each of its lost ranks") {
  const std::vector<Host> hosts = parse_hosts("a:2,b,c:1");
  CHECK(hosts == std::vector<Host>{{"a", 2}, {"b", 1}, {"c", 1}});
  CHECK(host_of(hosts, 1, "other") == 0);
  CHECK(host_of(hosts, 2, "other") == 1);
  CHECK(host_of(hosts, 0, "c") == 2);  // the host is found by the reported name, not by the rank
  CHECK(hosts_text(without_places(hosts, {1, 0})) == "a:1,c:1");
  CHECK(hosts_text(without_places(hosts, {2, 2})) == "a:2,b:1");
  for (const char* text :
       {"", "a,", "a:0", "a:x", ":2", "a:-1", "a:2,a:1", "a:99999999999", "::1", "a:1048576,b:1"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_hosts(text), InputError);
  }
}

TEST_CASE("relaunch reads its command line, and refuses invalid flags") {
  const RelaunchOptions options = parse(
      {"--hosts", "a:2,b:2", "--mpirun", "mpirun --mca btl tcp,self", "--", "train", "-n", "7"});
  CHECK(options.ranks == 4);
  CHECK(options.mpirun == std::vector<std::string>{"mpirun", "--mca", "btl", "tcp,self"});
  CHECK(options.command == std::vector<std::string>{"train", "-n", "7"});
  CHECK(parse({"-n", "3", "--min-ranks", "2", "--restarts", "0", "--", "x"}).min_ranks == 2);

  for (const std::vector<const char*>& own :
       {std::vector<const char*>{"train"}, {"-n", "2", "train"}, {"-n2", "train", "--data", "x"},
        {"--ranks=2", "train"}, {"--mpirun", "mpirun -v", "train", "--", "--data"}}) {
    CHECK(refusal(own).find("'train': write -- before the program to run: relaunch -n 4 --") == 0);
  }
  const char* const help[] = {"relaunch", "--help"};
  CHECK(parse_relaunch_command_line(2, help).help.find(
            "\nUsage: relaunch [OPTIONS] -- PROGRAM [ARGUMENTS]\n") != std::string::npos);
  CHECK(refusal({"-n", "2"}).find("the program to run is missing") == 0);
  CHECK(refusal({"--", "x"}).find("--ranks: give the number") == 0);
  CHECK(refusal({"-n", "0", "--", "x"}).find("--ranks is 0") == 0);
  CHECK(refusal({"-n", "2", "--min-ranks", "3", "--", "x"}).find("--min-ranks is 3") == 0);
  CHECK(refusal({"-n", "2", "--restarts", "-1", "--", "x"}).find("--restarts is -1") == 0);
  CHECK(refusal({"-n", "3", "--hosts", "a:2", "--", "x"})
            .find("--ranks is 3, but --hosts a:2 has places for 2") == 0);
  CHECK(refusal({"-n", "3", "--", "x", "--resume", "run/step-000000100"})
            .find("--resume run/step-") == 0);
  CHECK(refusal({"-n", "3", "--", "x", "--resume=never"}).find("--resume never") == 0);
  CHECK(parse({"-n", "3", "--", "x", "--resume", "latest"}).ranks == 3);
  const test::TemporaryFolder folder;
  const std::string config = folder.path("run.cfg");
  std::ofstream(config) << "steps = 4\nresume = never\n";
  CHECK(refusal({"-n", "3", "--", "x", "--config", config.c_str()}).find("--resume never") == 0);
  CHECK(refusal({"-n", "3", "--", "x", ("--config=" + config).c_str()}).find("--resume never") ==
        0);
  // The program may not be one of Tessera's. So its file may have very long values, and a `resume`
  // that is neither `never` nor an existing path.
  std::ofstream(config) << "note = " << std::string(300, 'a') << "\nresume = true\n";
  CHECK(parse({"-n", "3", "--", "x", "--config", config.c_str()}).ranks == 3);
  std::ofstream(config) << "resume = never\n";
  // A flag overrides the config file.
  CHECK(parse({"-n", "3", "--", "x", "--config", config.c_str(), "--resume", "latest"}).ranks == 3);
  // A file that is absent, or has another format, is left to the program.
  CHECK(parse({"-n", "3", "--", "x", "--config", "absent"}).ranks == 3);
  std::ofstream(config) << "{\"resume\": \"never\"}\n";
  CHECK(parse({"-n", "3", "--", "x", "--config", config.c_str()}).ranks == 3);
  CHECK(refusal({"-n", "3", "--mpirun", " ", "--", "x"}).find("--mpirun is empty") == 0);
}
