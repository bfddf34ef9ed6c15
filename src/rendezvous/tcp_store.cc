// A small key-value store that rank 0 serves while ranks connect.
//
// Both ends first prove that they have the same secret, as on every connection (handshake.h).
// Without a secret everybody can: then whoever reaches the port can ask, and only its appetite is
// bounded.
//
// A request is a line "set KEY LENGTH" with LENGTH bytes behind it, "get KEY" or "add KEY AMOUNT";
// the answer is a line with a length and as many bytes. A get is answered when the key is there.
//
// Every rank comes once. One that comes again has left this life of the job before rank 0 did: it
// is not let in, and calls again until rank 0 serves the next.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "gradwire/error.h"
#include "net/addresses.h"
#include "net/handshake.h"
#include "rendezvous/store.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxValue = 65536;
constexpr std::size_t kMaxClients = 4096;
constexpr auto kFarewell = std::chrono::seconds(2);  // for ranks that still read when rank 0 leaves
constexpr std::size_t kMaxBytes = std::size_t{64} << 20;  // of all values
constexpr std::size_t kCrowd = 256;  // ranks that may call at once and not be turned away

/// The store is a job of its own, by whose id the secret becomes a key; ranks learn theirs from it.
Job job_of_store(const std::string& secret) {
  Job job = Job::random();
  job.set_key(secret);
  return job;
}

bool is_loopback_only(const std::vector<std::string>& addresses) {
  return std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) {
    return address.starts_with("127.") || address.starts_with("::1 ");
  });
}

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// "KEY LENGTH" of a set, "KEY AMOUNT" of an add.
template <class Number>
struct KeyLine {
  std::string key;
  Number number{};

  bool read(std::string_view rest) {
    const std::size_t space = rest.rfind(' ');
    if (space == std::string_view::npos) return false;
    key = rest.substr(0, space);
    return parse(rest.substr(space + 1), number);
  }
};

struct Client {
  FileDescriptor socket;
  std::string input;
  std::string waits_for;  // a key; empty: nothing
  bool waiting = false;
};

class Server {
 public:
  Server(Listener listener, const Identity& identity, Deadline deadline)
      : listener_(std::move(listener)),
        deadline_(deadline),
        stop_(eventfd(0, EFD_CLOEXEC)),
        acceptor_(
            identity, listener_.descriptors(), kCrowd,
            [this](std::uint32_t rank) {
              return came_.size() < kMaxClients && !came_.contains(rank);
            },
            [this](std::uint32_t rank, FileDescriptor socket, const Proof&) {
              came_.insert(rank);
              clients_.push_back({std::move(socket), {}, {}, false});
            }) {
    thread_ = std::jthread([this] {
      try {
        while (serve()) continue;
      } catch (const std::exception&) {  // no memory, or no random numbers
      }
      clients_.clear();
    });
  }
  ~Server() { eventfd_write(stop_.get(), 1); }

  const std::vector<std::string>& addresses() const { return listener_.addresses; }
  /// Callers who did not prove that they have the secret.
  std::size_t unproved() const { return unproved_; }

 private:
  /// Does what there is to do; false when that was the last.
  bool serve() {
    std::vector<pollfd> polled{{leaves_ ? -1 : stop_.get(), POLLIN, 0}};
    for (const Client& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
    const std::size_t known = clients_.size();
    if (!leaves_) acceptor_.add_to(polled);
    const int a_second = 1000;  // some callers' time may be up
    poll(polled.data(), polled.size(), leaves_ ? milliseconds_until(deadline_) : a_second);
    for (std::size_t i = known; i-- > 0;) {
      if (polled[i + 1].revents == 0 || hear(clients_[i])) continue;
      clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (!leaves_) acceptor_.look(std::span(polled).subspan(known + 1));
    unproved_ = acceptor_.unproved();
    std::erase_if(clients_, [this](Client& client) { return !answer_waiting(client); });
    if (polled[0].revents != 0) leave();
    return !leaves_ || (!clients_.empty() && Clock::now() < deadline_);
  }

  /// Rank 0 is done. Others may still read what it was done with: that ranks do not fit together.
  void leave() {
    leaves_ = true;
    listener_.sockets.clear();
    deadline_ = std::min(deadline_, Clock::now() + kFarewell);
  }

  /// False when the client is to be forgotten.
  bool hear(Client& client) {
    char bytes[4096];
    const ssize_t n = recv(client.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
    client.input.append(bytes, static_cast<std::size_t>(n));
    if (client.input.size() > kMaxKey + kMaxValue + 64) return false;
    return obey(client);
  }

  bool obey(Client& client) {
    const std::size_t end = client.input.find('\n');
    if (end == std::string::npos) return client.input.size() <= kMaxKey + 32;
    const std::string line = client.input.substr(0, end);
    if (line.size() > kMaxKey + 32) return false;
    const std::string_view rest = std::string_view(line).substr(std::min<std::size_t>(4, end));
    if (line.starts_with("set ")) return obey_set(client, rest, end + 1);
    client.input.erase(0, end + 1);
    if (line.starts_with("add ")) return obey_add(client, rest);
    client.waits_for = rest;
    client.waiting = line.starts_with("get ");
    return client.waiting;
  }

  /// The value begins at `from` of what the client has said.
  bool obey_set(Client& client, std::string_view rest, std::size_t from) {
    KeyLine<std::size_t> set;
    if (!set.read(rest) || set.number > kMaxValue) return false;
    if (client.input.size() < from + set.number) return true;
    if (!keep(set.key, client.input.substr(from, set.number))) return false;
    client.input.erase(0, from + set.number);
    return reply(client, "");
  }

  bool obey_add(Client& client, std::string_view rest) {
    KeyLine<std::int64_t> add;
    std::int64_t sum = 0;
    if (!add.read(rest)) return false;
    const auto found = values_.find(add.key);
    if (found != values_.end() && !parse(found->second, sum)) return false;
    if (__builtin_add_overflow(sum, add.number, &sum)) return false;
    client.waiting = false;  // it gave up what it asked for before
    return keep(add.key, std::to_string(sum)) && reply(client, std::to_string(sum));
  }

  bool keep(const std::string& key, std::string value) {
    constexpr std::size_t kPerKey = 128;  // what the map needs, about
    const auto found = values_.find(key);
    const std::size_t freed =
        found != values_.end() ? kPerKey + key.size() + found->second.size() : 0;
    const std::size_t bytes = bytes_ - freed + kPerKey + key.size() + value.size();
    if (bytes > kMaxBytes) return false;
    values_[key] = std::move(value);
    bytes_ = bytes;
    return true;
  }

  /// False when the client is to be forgotten.
  bool answer_waiting(Client& client) {
    const auto found = client.waiting ? values_.find(client.waits_for) : values_.end();
    if (found == values_.end()) return true;
    client.waiting = false;
    return reply(client, found->second);
  }

  static bool reply(const Client& client, const std::string& value) {
    const std::string text = fmt::format("{}\n{}", value.size(), value);
    return send(client.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(text.size());
  }

  Listener listener_;
  Deadline deadline_;
  bool leaves_ = false;  // nobody is let in any more
  FileDescriptor stop_;
  Acceptor acceptor_;
  std::vector<Client> clients_;
  std::set<std::uint32_t> came_;  // ranks that have been let in
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;  // of keys and values, about
  std::atomic<std::size_t> unproved_ = 0;
  std::jthread thread_;  // the last: it uses all others
};

class TcpStore final : public Store {
 public:
  TcpStore(const std::string& host, const std::string& port, std::uint32_t rank,
           const std::string& secret, Deadline deadline)
      : where_(host + ":" + port) {
    const bool serves = rank == 0;
    Identity identity{.job = {}, .purpose = Purpose::store, .me = rank};
    if (serves) {
      identity.job = job_of_store(secret);
      server_ = std::make_unique<Server>(
          listen_tcp_host(host, static_cast<std::uint16_t>(std::stoi(port)), deadline), identity,
          deadline);
    }
    while (true) {
      if (Clock::now() >= deadline) throw late("does not answer");
      socket_ = serves ? connect_tcp_address(server_->addresses()[0], deadline)
                       : call(host, port, deadline);
      const HandshakeResult result =
          socket_ ? shake_hands_with_store(identity, secret, socket_.get(), deadline)
                  : HandshakeResult{};
      if (result.accepted) return;
      if (result.other_key) throw other_secret();
      keep_waiting();
      poll(nullptr, 0, 20);
    }
  }

  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    ask(fmt::format("set {} {}\n{}", key, value.size(), value), deadline);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return ask(fmt::format("get {}\n", key), deadline);
  }
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) override {
    std::int64_t sum = 0;
    if (!parse(ask(fmt::format("add {} {}\n", key, amount), deadline), sum)) throw no_store();
    return sum;
  }

 private:
  /// As `connect_tcp_host`, but a name that was resolved before is not what is missing.
  FileDescriptor call(const std::string& host, const std::string& port, Deadline deadline) {
    try {
      FileDescriptor socket = connect_tcp_host(host, port, deadline);
      resolved_ = true;
      return socket;
    } catch (const Error& error) {
      if (resolved_ && error.code() == ErrorCode::timeout) throw late("does not answer");
      throw;
    }
  }
  Error late(const std::string& what) const {
    return {
        ErrorCode::timeout,
        fmt::format("the store {} {} before the deadline: is rank 0 running there, do all ranks "
                    "use the same store, and each its own number?",
                    where_, what)};
  }
  Error not_all_came() const {
    std::string what = "has no answer: not all ranks have come";
    if (server_ && server_->unproved() > 0) {
      what += fmt::format(", and {} callers did not prove that they have the secret,",
                          server_->unproved());
    }
    if (server_ && is_loopback_only(server_->addresses())) {
      what += fmt::format(
          " (it listens on {}, which no other host reaches; this one has {}; there are ranks on "
          "other hosts? give an address that they reach)",
          server_->addresses()[0].substr(0, server_->addresses()[0].find(' ')), list_interfaces());
    }
    return late(what);
  }
  Error other_secret() const {
    return {ErrorCode::invalid_argument,
            fmt::format("rank 0, which serves the store {}, has another secret or none: give all "
                        "ranks the same",
                        where_)};
  }
  Error no_store() const {
    return {ErrorCode::io, fmt::format("what answers at {} is no store of gradwire", where_)};
  }
  static Error gone() {
    return {ErrorCode::peer_failed, "rank 0, which serves the store, is gone"};
  }

  void wait_for(short events, Deadline deadline) const {
    pollfd polled{socket_.get(), events, 0};
    if (poll(&polled, 1, milliseconds_until(deadline)) > 0) return;
    if (Clock::now() >= deadline) throw not_all_came();
  }

  void say(std::string_view request, Deadline deadline) const {
    while (!request.empty()) {
      wait_for(POLLOUT, deadline);
      const ssize_t n =
          send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN && errno != EINTR) throw gone();
      if (n > 0) request.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  std::string ask(const std::string& request, Deadline deadline) {
    say(request, deadline);
    std::string answer;
    while (answer.size() <= kMaxValue + 32) {
      const std::size_t end = answer.find('\n');
      if (end != std::string::npos) {
        const std::size_t length = std::strtoull(answer.c_str(), nullptr, 10);
        if (answer.size() == end + 1 + length) return answer.substr(end + 1);
      }
      wait_for(POLLIN, deadline);
      char bytes[4096];
      const ssize_t n = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) throw gone();
      if (n > 0) answer.append(bytes, static_cast<std::size_t>(n));
    }
    throw no_store();
  }

  std::string where_;
  bool resolved_ = false;  // the host's name, at least once
  std::unique_ptr<Server> server_;
  FileDescriptor socket_;
};

}  // namespace

std::unique_ptr<Store> open_tcp_store(const std::string& host, const std::string& port,
                                      std::uint32_t rank, const std::string& secret,
                                      Deadline deadline) {
  return std::make_unique<TcpStore>(host, port, rank, secret, deadline);
}

}  // namespace gradwire
