// A small key-value store that rank 0 serves while ranks connect.
//
// Both ends first prove that they have the same secret, as on every connection (handshake.h).
// Without a secret everybody can: then whoever reaches the port can ask, and only its appetite is
// bounded.
//
// A request is a line "set KEY LENGTH" with LENGTH bytes behind it, or "get KEY"; the answer to
// both is a line with a length and as many bytes. A get is answered when the key is there.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "gradwire/error.h"
#include "transport/file_descriptor.h"
#include "transport/handshake.h"
#include "transport/store.h"
#include "transport/tcp.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxValue = 65536;
constexpr std::size_t kMaxClients = 4096;
constexpr std::size_t kMaxBytes = std::size_t{64} << 20;  // of all values
constexpr std::size_t kCrowd = 256;  // ranks that may call at once and not be turned away

/// The store has no job of its own: ranks learn theirs from it.
Side side_of(const std::string& secret) {
  Side side{.job = {}, .purpose = Purpose::store, .me = 0};
  side.job.set_key(secret);
  return side;
}

/// "KEY LENGTH" of a set.
struct SetLine {
  std::string key;
  std::size_t length = 0;
};

bool parse_set(std::string_view rest, SetLine& line) {
  const std::size_t space = rest.rfind(' ');
  if (space == std::string_view::npos) return false;
  line.key = rest.substr(0, space);
  const std::string_view digits = rest.substr(space + 1);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), line.length);
  return error == std::errc() && end == digits.data() + digits.size() && line.length <= kMaxValue;
}

struct Client {
  FileDescriptor socket;
  std::string input;
  std::string waits_for;  // a key; empty: nothing
  bool waiting = false;
};

class Server {
 public:
  Server(std::uint16_t port, const std::string& secret)
      : listener_(listen_tcp("", port).socket),
        stop_(eventfd(0, EFD_CLOEXEC)),
        reception_(
            side_of(secret), listener_.get(), kCrowd,
            [this](std::uint32_t) { return clients_.size() < kMaxClients; },
            [this](std::uint32_t, FileDescriptor socket, const Proof&) {
              clients_.push_back({std::move(socket), {}, {}, false});
            }) {
    thread_ = std::jthread([this] { run(); });
  }
  ~Server() { eventfd_write(stop_.get(), 1); }

  /// Callers who did not prove that they have the secret.
  std::size_t unproved() const { return unproved_; }

 private:
  void run() {
    while (true) {
      std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}};
      for (const Client& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
      const std::size_t known = clients_.size();
      reception_.add_to(polled);
      poll(polled.data(), polled.size(), 1000);  // some callers' time may be up
      if (polled[0].revents != 0) return;
      for (std::size_t i = known; i-- > 0;) {
        if (polled[i + 1].revents == 0 || hear(clients_[i])) continue;
        clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      reception_.look(std::span(polled).subspan(known + 1));
      unproved_ = reception_.unproved();
      std::erase_if(clients_, [this](Client& client) { return !answer_waiting(client); });
    }
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
    if (line.starts_with("get ") && line.size() <= kMaxKey + 4) {
      client.waits_for = line.substr(4);
      client.waiting = true;
      client.input.erase(0, end + 1);
      return true;
    }
    SetLine set;
    if (!line.starts_with("set ") || !parse_set(std::string_view(line).substr(4), set))
      return false;
    if (client.input.size() < end + 1 + set.length) return true;
    if (!keep(set.key, client.input.substr(end + 1, set.length))) return false;
    client.input.erase(0, end + 1 + set.length);
    return reply(client, "");
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

  FileDescriptor listener_, stop_;
  Reception reception_;
  std::vector<Client> clients_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;  // of keys and values, about
  std::atomic<std::size_t> unproved_ = 0;
  std::jthread thread_;  // the last: it uses all others
};

class TcpStore final : public Store {
 public:
  TcpStore(const std::string& host, const std::string& port, bool serves, const std::string& secret,
           Deadline deadline)
      : where_(host + ":" + port) {
    if (serves) {
      server_ = std::make_unique<Server>(static_cast<std::uint16_t>(std::stoi(port)), secret);
    }
    const Side side = side_of(secret);
    while (true) {
      if (Clock::now() >= deadline) throw late("does not answer");
      socket_ = connect_tcp_host(serves ? "localhost" : host, port, deadline);
      const Introduced result =
          socket_ ? introduce(side, 0, socket_.get(), deadline) : Introduced{};
      if (result.taken) return;
      if (result.other_key) throw other_secret();
      poll(nullptr, 0, 20);
    }
  }

  void set(const std::string& key, const std::string& value, Deadline deadline) override {
    ask(fmt::format("set {} {}\n{}", key, value.size(), value), deadline);
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return ask(fmt::format("get {}\n", key), deadline);
  }

 private:
  Error late(const std::string& what) const {
    return {ErrorCode::timeout,
            fmt::format("the store {} {} before the deadline: is rank 0 running there, and do all "
                        "ranks use the same store?",
                        where_, what)};
  }
  Error not_all_came() const {
    const std::size_t unproved = server_ ? server_->unproved() : 0;
    return late(unproved == 0
                    ? "has no answer: not all ranks have come"
                    : fmt::format("has no answer: not all ranks have come, and {} callers "
                                  "did not prove that they have the secret,",
                                  unproved));
  }
  Error other_secret() const {
    return {ErrorCode::invalid_argument,
            fmt::format("rank 0, which serves the store {}, has another secret or none: give all "
                        "ranks the same",
                        where_)};
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
    throw Error(ErrorCode::io, fmt::format("what answers at {} is no store of gradwire", where_));
  }

  std::string where_;
  std::unique_ptr<Server> server_;
  FileDescriptor socket_;
};

}  // namespace

std::unique_ptr<Store> open_tcp_store(const std::string& host, const std::string& port, bool serves,
                                      const std::string& secret, Deadline deadline) {
  return std::make_unique<TcpStore>(host, port, serves, secret, deadline);
}

}  // namespace gradwire
