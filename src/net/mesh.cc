#include "net/mesh.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "gradwire/error.h"

namespace gradwire {
namespace {

Error late(const std::vector<std::uint32_t>& missing, bool other_key) {
  return {ErrorCode::timeout,
          fmt::format(
              "no connection with rank {} before the deadline: {}", fmt::join(missing, ", "),
              other_key ? "who answers has another key; give all ranks the same secret"
                        : "is it running, can it reach this host, and has it the same secret?")};
}

/// Calls until somebody answers who knows the key, once for every line.
std::vector<Met> call_until_taken(const Meeting& meeting, std::uint32_t peer) {
  std::vector<Met> met;
  bool other_key = false;
  std::size_t failures = 0;
  while (met.size() < meeting.lines) {
    if (Clock::now() >= meeting.deadline) throw late({peer}, other_key);
    FileDescriptor socket = meeting.call(peer, failures);
    const Introduced result =
        socket ? introduce(meeting.side, peer, socket.get(), meeting.deadline) : Introduced{};
    if (result.taken) {
      met.push_back({std::move(socket), result.key});
      continue;
    }
    other_key |= result.other_key;
    ++failures;
    keep_waiting();
    poll(nullptr, 0, 20);
  }
  return met;
}

/// Answers until all higher ranks have come, once for every line.
std::map<std::uint32_t, std::vector<Met>> receive_higher(const Meeting& meeting) {
  std::vector<std::uint32_t> missing;
  std::copy_if(meeting.peers.begin(), meeting.peers.end(), std::back_inserter(missing),
               [&](std::uint32_t peer) { return peer > meeting.side.me; });
  std::map<std::uint32_t, std::vector<Met>> met;
  Reception reception(
      meeting.side, meeting.listeners, missing.size(),
      [&](std::uint32_t rank) { return std::count(missing.begin(), missing.end(), rank) > 0; },
      [&](std::uint32_t rank, FileDescriptor socket, const Proof& key) {
        met[rank].push_back({std::move(socket), key});
        if (met[rank].size() == meeting.lines) std::erase(missing, rank);
      });
  while (!missing.empty()) {
    if (Clock::now() >= meeting.deadline) throw late(missing, false);
    std::vector<pollfd> polled;
    reception.add_to(polled);
    poll(polled.data(), polled.size(), milliseconds_until(meeting.deadline));
    reception.look(polled);
  }
  return met;
}

}  // namespace

std::vector<std::vector<Met>> meet(const Meeting& meeting) {
  std::map<std::uint32_t, std::vector<Met>> met;
  for (const std::uint32_t peer : meeting.peers) {
    if (peer < meeting.side.me) met[peer] = call_until_taken(meeting, peer);
  }
  met.merge(receive_higher(meeting));
  std::vector<std::vector<Met>> lines(meeting.lines);
  for (std::uint32_t line = 0; line < meeting.lines; ++line) {
    for (const std::uint32_t peer : meeting.peers) {
      lines[line].push_back(std::move(met[peer][line]));
      const int socket = lines[line].back().socket.get();
      fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    }
  }
  return lines;
}

}  // namespace gradwire
