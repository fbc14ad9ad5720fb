// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/call_log.h"

#include <algorithm>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::comm {

// Only calls that move nothing can be over on one rank while another one is still in that of the same number
// and waits: those, and what a rank finishes ahead of others, are few until somebody looks.
static constexpr std::uint64_t kKept = 32;

std::size_t CallLog::lane_of(const Call& call) {
  if (call.op != Op::Send && call.op != Op::Receive) return 0;
  return 1 + 2 * static_cast<std::size_t>(call.peer) + (call.op == Op::Send ? 0 : 1);
}

std::uint64_t CallLog::add(const Call& call) {
  Lane& lane = lanes_[lane_of(call)];
  const std::uint64_t number = lane.num++;
  if (lane.last.size() < kKept)
    lane.last.push_back(call);
  else
    lane.last[number % kKept] = call;
  return number;
}

const Call* CallLog::find(std::size_t lane, std::uint64_t number) const {
  const auto& [num, last] = lanes_[lane];
  return number < num && number + last.size() >= num ? &last[number % kKept] : nullptr;
}

// A line for each lane with calls: "lane first  op dtype count reduce peer microbatch message  op …".
std::string CallLog::to_text() const {
  std::string text;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto& [num, last] = lanes_[lane];
    if (num == 0) continue;
    text += concat(lane, " ", num - last.size());
    for (std::uint64_t number = num - last.size(); number < num; ++number) {
      const Call& call = last[number % kKept];
      text += concat(" ", static_cast<int>(call.op), " ", static_cast<int>(call.dtype), " ", call.count, " ",
                     static_cast<int>(call.reduce), " ", call.peer, " ", call.tag.microbatch, " ",
                     call.tag.message);
    }
    text += '\n';
  }
  return text;
}

CallLog CallLog::from_text(std::string_view text, int size) {
  CallLog log(size);
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::size_t index = 0;
    std::uint64_t first = 0;
    words >> index >> first;
    SHOAL_CHECK(words && index < log.lanes_.size(), Corrupt, "comm: a log of calls between ", size,
                " ranks has the line ", in_quotes(line));
    Lane& lane = log.lanes_[index];
    lane.num = first;
    std::vector<Call> calls;
    int op = 0, dtype = 0, reduce = 0;
    for (Call call; words >> op >> dtype >> call.count >> reduce >> call.peer >> call.tag.microbatch >>
                    call.tag.message;) {
      call.op = static_cast<Op>(op);
      call.dtype = static_cast<DType>(dtype);
      call.reduce = static_cast<ReduceOp>(reduce);
      calls.push_back(call);
    }
    SHOAL_CHECK(words.eof() && (calls.size() == kKept || (calls.size() < kKept && first == 0)), Corrupt,
                "comm: a log of calls has the line ", in_quotes(line));
    lane.last.resize(calls.size());
    for (const Call& call : calls) lane.last[lane.num++ % kKept] = call;
  }
  return log;
}

std::string difference(int rank, const CallLog& log, int other, const CallLog& other_log) {
  const auto compared = [&](std::size_t lane, std::size_t other_lane, const auto& are_same) -> std::string {
    const std::uint64_t end = std::min(log.num(lane), other_log.num(other_lane));
    for (std::uint64_t number = end - std::min(end, kKept); number < end; ++number) {
      const Call* call = log.find(lane, number);
      const Call* other_call = other_log.find(other_lane, number);
      if (call && other_call && !are_same(*call, *other_call))
        return mismatch(number, rank, *call, other, *other_call);
    }
    return "";
  };
  const auto to_or_from = [](int peer, Op op) { return CallLog::lane_of({.op = op, .peer = peer}); };
  std::string found = compared(0, 0, [](const Call& a, const Call& b) { return a == b; });
  if (found.empty())
    found = compared(to_or_from(other, Op::Send), to_or_from(rank, Op::Receive), is_one_message);
  if (found.empty())
    found = compared(to_or_from(other, Op::Receive), to_or_from(rank, Op::Send), is_one_message);
  return found;
}

}  // namespace shoal::comm
