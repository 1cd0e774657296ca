// cpp/link/tcp_peer.hpp: one connection to another NIC, after the greeting: packets out, packets in.
//
//
// Sending: any thread, under send_mutex_, from out_. The payload is copied to out_ and sealed there, so that a change
//   of the application's memory in the meantime cannot invalidate the tag.
//   While a request of ours is unanswered, small packets are gathered until kBatchBytes of them wait, the next poll, or
//   a thread goes to sleep: the answer will wake a thread, which sends them. Answers wait for the next poll that finds
//   no new packet, so that they travel with the application's next frame. Neither waits once kBatchCost bytes of
//   payload depend on them.
// Receiving: the polling thread only. A payload reaches its destination after all of it has arrived and its seal has
//   opened. An answer that came with the last frame is left for the next round if there will be one: the caller that
//   waits for the frame goes first.
//   The NIC drops a peer that sends resolves and does not read the answers (kTcpAsksMax).
// Limits: a request beyond kTcpInFlightFrames or kTcpInFlightBytes is sent after earlier ones have been answered; the
//   NIC drops a peer that exceeds the limits.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "base/fd.hpp"
#include "base/lock.hpp"
#include "link/epoll.hpp"
#include "link/link.hpp"
#include "link/routes.hpp"
#include "link/tcp_auth.hpp"

namespace weft::link {

class TcpPeer;

// The calls that a connection makes to its link during receive().
class TcpControl {
 public:
  virtual ~TcpControl() = default;
  virtual wire::ResolveBody on_resolve(TcpPeer& peer, const wire::ResolveBody& asked) = 0;
  virtual void on_resolved(TcpPeer& peer, const wire::ResolveBody& answer) = 0;
  // True if a peer of `vni` may address this endpoint of our NIC.
  virtual bool may_name(uint32_t ep_index, uint32_t ep_generation, uint16_t vni) = 0;
  // True if a thread polls: an answer may then be left for the next round.
  [[nodiscard]] virtual bool polled() const noexcept = 0;
};

Status status_of_errno(int error) noexcept;

class TcpPeer final : public Peer {
 public:
  struct Call {  // a resolve() that waits for its answer
    wire::EpAddress address;
    std::shared_ptr<void> token;
    uint64_t deadline_ns = 0;
  };
  struct About {
    std::array<uint8_t, 16> uuid{};
    uint16_t vni = 0;
    bool outbound = false;
    wire::HostAddress host;    // the address for calls to the peer: as we called it, or its IP and port; or none
    wire::HostAddress remote;  // the other end of the connection
    wire::HostAddress us;      // outbound: our address as the peer sees it, unless a NAT translates it
  };
  TcpPeer(Link* link, Routes& routes, UniqueFd fd, const SessionKeys& keys, const About& about, EpollSet* set,
          uint64_t id);

  [[nodiscard]] std::string describe() const override;
  Status cma_copy(bool, std::span<const iovec>, std::span<const iovec>) override { return Status::unsupported; }

  // ---- sending
  Status send(wire::Frame& frame, std::span<const std::byte> payload);
  void send_control(wire::PacketType type, const wire::ResolveBody& body);
  void ping_if_silent();
  void ping();                  // also sends the waiting packets, as far as the kernel accepts them
  void say_goodbye() noexcept;  // before an orderly close, if the kernel accepts it
  // Sends the waiting packets, as far as the kernel accepts them. True: bytes went out.
  bool flush();
  [[nodiscard]] bool unflushed() const noexcept { return unflushed_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool full() const noexcept { return full_.load(std::memory_order_relaxed); }

  // ---- receiving
  size_t receive(FrameSink& sink, const std::shared_ptr<Peer>& self, TcpControl& control, size_t budget);
  // True if data was left for the next round. Any thread may call it; a thread that is about to sleep does.
  [[nodiscard]] bool has_buffered() const noexcept {
    return buffered_.load(std::memory_order_seq_cst) != Left::nothing;
  }
  // True if complete packets were left because the budget ended; no epoll event will announce them.
  [[nodiscard]] bool has_packets() const noexcept { return buffered_.load(std::memory_order_relaxed) == Left::packets; }

  // Why the connection is broken (the polling thread will drop it); ok: it is not broken.
  [[nodiscard]] Status broken() const noexcept { return broken_.load(std::memory_order_acquire); }
  [[nodiscard]] std::string why() const;
  void die(Status why);
  void give_up(Status status, const std::string& why) noexcept { fail(status, why); }
  // Adds the socket to the link's epoll set or removes it. In the set the socket costs its sender 0.2 us a packet, so
  // sockets that polls read anyway are kept out. Requires the link's lock.
  void watch(bool watched);
  void close_in_child() noexcept { fd_.reset(); }  // after fork(): the connection belongs to the parent

  const About about;
  const uint64_t id;
  std::map<uint64_t, Call> asked;  // guarded by the link's lock
  uint32_t asks_open = 0;          // guarded by the link's lock: unanswered resolves, including timed-out ones
  uint64_t next_ask = 1;
  bool crossed = false;  // guarded by the link's lock: a call of the peer was rejected because of this connection

 private:
  // Counts the unanswered requests of one direction. One thread at a time begins requests and one ends them, so neither
  // needs a locked instruction; each may undo its last step.
  class Requests {
   public:
    void begin(uint64_t cost, bool undo = false) noexcept { count(begun_, cost, undo); }
    void end(uint64_t cost, bool undo = false) noexcept { count(ended_, cost, undo); }
    // Exact except for the other thread's latest step. `ended` is read first, so the difference is never negative.
    [[nodiscard]] uint64_t open() const noexcept { return difference(&Sum::count); }
    [[nodiscard]] uint64_t open_bytes() const noexcept { return difference(&Sum::bytes); }

   private:
    struct Sum {
      std::atomic<uint64_t> count{0}, bytes{0};
    };
    static void count(Sum& sum, uint64_t cost, bool undo) noexcept {
      const auto add = [&](std::atomic<uint64_t>& to, uint64_t n) {
        to.store(to.load(std::memory_order_relaxed) + (undo ? -n : n), std::memory_order_release);
      };
      add(sum.count, 1);
      add(sum.bytes, cost);
    }
    [[nodiscard]] uint64_t difference(std::atomic<uint64_t> Sum::* of) const noexcept {
      const uint64_t ended = (ended_.*of).load(std::memory_order_acquire);
      return (begun_.*of).load(std::memory_order_acquire) - ended;
    }
    Sum begun_, ended_;
  };

  void fail(Status status, const std::string& why) noexcept;
  Status send_locked(wire::Frame& frame, std::span<const std::byte> payload);
  bool flush_locked();
  void want_out(bool wanted);
  [[nodiscard]] uint32_t wanted_events() const noexcept;
  std::byte* room(size_t bytes);  // at the end of out_; the caller fills it and advances out_end_
  [[nodiscard]] size_t out_bytes() const noexcept REQUIRES(send_mutex_) { return out_end_ - out_at_; }
  void clear_out() noexcept REQUIRES(send_mutex_) { out_at_ = out_end_ = 0; }
  void emit_done();  // writes answer_ as a packet of its own
  bool fill();
  bool take_done(TcpControl& control, const wire::DoneBody& done);
  void deliver_done(FrameSink& sink, const std::shared_ptr<Peer>& self);
  size_t parse(FrameSink& sink, const std::shared_ptr<Peer>& self, TcpControl& control, size_t budget);
  bool take_payload(FrameSink& sink, const std::shared_ptr<Peer>& self);
  size_t read(std::span<std::byte> into);
  bool opens(std::byte* at, size_t clear, size_t content);
  bool admit(wire::Frame& frame, TcpControl& control);
  void trace_source(wire::Frame& frame);

  Routes& routes_;
  UniqueFd fd_;
  SessionKeys keys_;  // send: guarded by send_mutex_; receive: the polling thread's
  EpollSet* set_;     // the link's set for connections

  RankedMutex<lock_rank::kTcpSend> send_mutex_;
  std::vector<std::byte> out_ GUARDED_BY(send_mutex_);
  size_t out_at_ GUARDED_BY(send_mutex_) = 0, out_end_ GUARDED_BY(send_mutex_) = 0;
  wire::DoneBody answer_ GUARDED_BY(send_mutex_);  // the last waiting answer: the next frame carries it
  uint64_t out_cost_ GUARDED_BY(send_mutex_) =
      0;  // bytes of payload that the packets in out_, and answer_, acknowledge or request
  bool wants_out_ GUARDED_BY(send_mutex_) = false, watched_ GUARDED_BY(send_mutex_) = false;
  std::atomic<bool> unflushed_{false}, spoke_{false}, full_{false};
  Requests ours_, theirs_;  // ours: begun under send_mutex_, ended by the polling thread; theirs: the reverse

  std::vector<std::byte> in_;
  size_t in_begin_ = 0, in_end_ = 0;
  wire::DoneBody taken_;  // a received answer that the NIC does not have yet
  enum class Left : uint8_t { nothing, answer, packets };
  std::atomic<Left> buffered_{Left::nothing};
  bool dry_ = false;
  bool long_ = false;  // the last packet's payload was long
  bool taking_ = false;
  wire::Frame frame_;  // the frame whose payload is being received
  uint64_t done_ = 0;
  std::vector<std::byte> collected_;
  uint32_t source_nic_ = wire::kUnknownNic, source_number_ = wire::kUnknownNic;

  std::atomic<Status> broken_{Status::ok};
  mutable RankedMutex<lock_rank::kTcpWhy> why_mutex_;
  std::string why_ GUARDED_BY(why_mutex_);
};

}  // namespace weft::link
