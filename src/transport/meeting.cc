#include "transport/meeting.h"

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

/// Calls until somebody answers who knows the key.
Met call_until_taken(const Meeting& meeting, std::uint32_t peer) {
  bool other_key = false;
  while (Clock::now() < meeting.deadline) {
    if (FileDescriptor socket = meeting.call(peer)) {
      const Introduced result = introduce(meeting.side, peer, socket.get(), meeting.deadline);
      if (result.taken) return {std::move(socket), result.key};
      other_key |= result.other_key;
    }
    poll(nullptr, 0, 20);
  }
  throw late({peer}, other_key);
}

/// Answers until all higher ranks have come.
std::map<std::uint32_t, Met> receive_higher(const Meeting& meeting) {
  std::vector<std::uint32_t> missing;
  std::copy_if(meeting.peers.begin(), meeting.peers.end(), std::back_inserter(missing),
               [&](std::uint32_t peer) { return peer > meeting.side.me; });
  std::map<std::uint32_t, Met> arrived;
  Reception reception(
      meeting.side, meeting.listener, missing.size(),
      [&](std::uint32_t rank) { return std::count(missing.begin(), missing.end(), rank) > 0; },
      [&](std::uint32_t rank, FileDescriptor socket, const Proof& key) {
        arrived[rank] = {std::move(socket), key};
        std::erase(missing, rank);
      });
  while (!missing.empty()) {
    if (Clock::now() >= meeting.deadline) throw late(missing, false);
    std::vector<pollfd> polled;
    reception.add_to(polled);
    poll(polled.data(), polled.size(), std::min(milliseconds_until(meeting.deadline), 100));
    reception.look(polled);
  }
  return arrived;
}

}  // namespace

std::vector<Met> meet(const Meeting& meeting) {
  std::map<std::uint32_t, Met> met;
  for (const std::uint32_t peer : meeting.peers) {
    if (peer < meeting.side.me) met[peer] = call_until_taken(meeting, peer);
  }
  met.merge(receive_higher(meeting));
  std::vector<Met> in_order;
  for (const std::uint32_t peer : meeting.peers) {
    in_order.push_back(std::move(met[peer]));
    const int socket = in_order.back().socket.get();
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  }
  return in_order;
}

}  // namespace gradwire
