#include "apps/relaunch/rank_record.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace tessera::apps {
namespace {

constexpr char begin_record = '\x1e';    // ASCII's record separator
constexpr const char* end_or_begin = "\n\x1e";
constexpr size_t longest_record = 4096;  // bytes; longer lines are text

constexpr const char* event_names[] = {"started", "told", "ended"};

}  // namespace

void set_end(RankRecord& record, int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    record.signal = WTERMSIG(wait_status);
    return;
  }
  const int code = WEXITSTATUS(wait_status);
  const int signal = code - 128;
  const bool of_shell = record.status.failure == RunFailure::none && signal > 0 && signal < NSIG;
  (of_shell ? record.signal : record.code) = of_shell ? signal : code;
}

std::optional<RankRecord> parse_record(std::string_view text) {
  if (!text.starts_with(begin_record)) return std::nullopt;
  text.remove_prefix(1);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    RankRecord record{.rank = json.at("rank").get<int>()};
    const auto name = json.at("event").get<std::string>();
    if (name != event_names[0]) {
      record.event = name == event_names[1] ? RankRecord::Event::told : RankRecord::Event::ended;
    }
    record.host = json.at("host").get<std::string>();
    record.stopped = json.at("stopped").get<bool>();
    record.signal = json.at("signal").get<int>();
    record.code = json.at("code").get<int>();
    record.was_told = json.at("was_told").get<bool>();
    record.status.finished_steps = json.at("steps").get<int64_t>();
    record.status.failure = static_cast<RunFailure>(json.at("failure").get<int32_t>());
    record.status.waits = json.at("waits").get<bool>();
    record.status.threads = json.at("threads").get<int>();
    record.status.absent = json.at("absent").get<std::vector<int>>();
    return record;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

bool RankRecord::operator==(const RankRecord& other) const {
  return record_text(*this) == record_text(other);
}

std::string record_text(const RankRecord& record) {
  const nlohmann::json json = {{"rank", record.rank},
                               {"event", event_names[static_cast<size_t>(record.event)]},
                               {"host", record.host},
                               {"stopped", record.stopped},
                               {"signal", record.signal},
                               {"code", record.code},
                               {"was_told", record.was_told},
                               {"steps", record.status.finished_steps},
                               {"failure", static_cast<int32_t>(record.status.failure)},
                               {"waits", record.status.waits},
                               {"threads", record.status.threads},
                               {"absent", record.status.absent}};
  return begin_record + json.dump() + "\n";
}

void RecordFilter::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (begun_.empty()) {
      const size_t begin = bytes.find(begin_record);
      if (const std::string_view text = bytes.substr(0, begin); !text.empty()) text_(text);
      if (begin == std::string_view::npos) return;
      begun_ = begin_record;
      bytes.remove_prefix(begin + 1);
    }
    // Another record may begin inside this record and cut this record in two. Both parts of this
    // record are then passed on as text.
    const size_t end = bytes.find_first_of(end_or_begin);
    begun_ += bytes.substr(0, end);
    const bool cut = end != std::string_view::npos && bytes[end] == begin_record;
    if (begun_.size() > longest_record || cut) {
      finish();
      bytes.remove_prefix(std::min(end, bytes.size()));
      continue;
    }
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
    const std::string line = std::exchange(begun_, {});
    if (const auto record = parse_record(line)) {
      take(*record);
    } else {
      text_(line.substr(1) + "\n");
    }
  }
}

void RecordFilter::take(const RankRecord& record) {
  if (taken_.insert(record_text(record)).second) record_(record);
}

void RecordFilter::finish() {
  if (begun_.size() > 1) text_(std::string_view(begun_).substr(1));
  begun_.clear();
}

}  // namespace tessera::apps
