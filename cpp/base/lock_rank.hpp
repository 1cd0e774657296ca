// cpp/base/lock_rank.hpp: every lock of Weft, in the one order in which a thread may take them: from the top of this
// table to its end. A thread never holds two locks of one rank. try_lock() does not wait, so it is free of the order.
//
// Two things are outside the table. A fork takes the locks of all NICs and slabs (Ranked::lock_at_fork). Locks in
// memory that processes share (mem/ledger, mem/gate, cpp/sync) are held only while no other lock is asked for.
//
// In builds with assertions each thread checks the order (base/lock.hpp); tests/meta/test_locks.py reads the table.
#pragma once

#include <cstdint>

namespace weft {

struct LockRank {
  uint16_t at;
  const char* name;
};

// Above each rank: what the lock guards; what a thread may hold when it asks for the lock.
namespace lock_rank {

// ---- the library for C programs: under no lock of the NIC ----
// The end of an endpoint, and of its groups.
inline constexpr LockRank kProviderJoins{1, "provider::Joins"};
// The NIC of the process, which is made under it.
inline constexpr LockRank kProviderNic{2, "provider: g_nic_lock"};
// The peers of a vector with authorization keys, which the helper's vector has as well; held while the helper is asked.
inline constexpr LockRank kProviderVector{3, "provider::Av::keyed_lock"};
// The connection to the policy helper: one question at a time.
inline constexpr LockRank kProviderHelper{4, "provider: g_helper_lock"};
// The numbers of a domain's keys.
inline constexpr LockRank kProviderKeys{5, "provider::Keys::lock"};
// The events of an event queue.
inline constexpr LockRank kProviderEvents{6, "provider::Eq::lock"};
// The connection requests that a program has not answered; under the lock of an event queue.
inline constexpr LockRank kProviderRequests{8, "provider::Fabric::requests_lock"};
// The endpoint that rejections leave from; under the lock of an event queue.
inline constexpr LockRank kProviderListener{9, "provider::Listener::lock"};

// ---- the NIC: held while locks of links and memory are taken ----
// The frame under way, and all that only the progress loop changes; under no lock.
inline constexpr LockRank kProgress{10, "Nic::progress_mutex_"};
// The thread that starts deferred work; under the progress lock.
inline constexpr LockRank kTriggerRun{20, "TriggerUnit::run_lock_"};
// Accesses to regions by the engine: quiesce() waits for them; under the progress lock.
inline constexpr LockRank kServe{30, "Nic::serve_lock_"};
// Nic::watched_, the counters whose pages are read; under the progress lock.
inline constexpr LockRank kWatched{40, "Nic::watched_mutex_"};
// A counter's page, and the reading of its words, which changes the counter; under watched_mutex_.
inline constexpr LockRank kCounterPage{50, "ClientMemory::page_mutex_"};
// Endpoints, counted regions, numbers of domains, and changes of what frames find by number; under the progress lock.
inline constexpr LockRank kObjects{60, "Nic::objects_mutex_"};
// All of a domain, its endpoints, flows and operations (an activity word of the memory table); under the locks above.
inline constexpr LockRank kDomain{70, "Domain::lock()"};
// Messages to a relaxed endpoint, kept in order; under the domain's lock.
inline constexpr LockRank kRelaxed{80, "RxPort::relaxed_lock_"};
// A receive context: match unit, buffers, flows. Its sink runs under it; under the domain's lock.
inline constexpr LockRank kRx{90, "RxContext::lock_"};
// What a port holds for receives, and pulls that wait; under the context's lock.
inline constexpr LockRank kHeld{100, "RxPort::held_lock_"};
// One look at the resting places at a time; under the progress lock.
inline constexpr LockRank kSegmentLook{110, "SegmentSet::look_mutex_"};
// Nic::mappings_ and abandoned_; under look_mutex_ and the progress lock.
inline constexpr LockRank kMappings{120, "Nic::mappings_mutex_"};
// Nic::known_, the peers that have sent messages; under the context's lock and the objects' mutex.
inline constexpr LockRank kKnown{130, "Nic::known_lock_"};

// ---- leaves of the NIC: under any lock above; none of these is held while another is taken, except as said ----
// The entries of receives in a completion queue.
inline constexpr LockRank kQueueReceived{140, "CompletionQueue::received_lock_"};
// Domain::received_ and news_.
inline constexpr LockRank kDomainReceived{150, "Domain::received_lock_"};
// Domain::late_counters_ and software_.
inline constexpr LockRank kDomainLate{160, "Domain::late_lock_"};
// Work that waits for counters: a counter changes under many locks.
inline constexpr LockRank kTrigger{170, "TriggerUnit::lock_"};
// The word to which a counter is written back.
inline constexpr LockRank kClientMemory{180, "ClientMemory::lock_"};
// Notices that wait for room at their peers.
inline constexpr LockRank kNotices{190, "Notices::lock_"};
// The pages of counts by NIC; files are made and claimed under it.
inline constexpr LockRank kTelemetry{200, "TelemetryPages::mutex_"};
// Events of connection management.
inline constexpr LockRank kCmEvents{210, "CmQueue::mutex_"};

// ---- links: under any lock above ----
// The link to the process itself: its queue of frames.
inline constexpr LockRank kSelf{220, "SelfLink::mutex_"};
// The tcp link: listener, callers, connections, reports.
inline constexpr LockRank kTcp{230, "TcpLink::mutex_"};
// What a tcp connection sends; under the link's mutex.
inline constexpr LockRank kTcpSend{240, "TcpPeer::send_mutex_"};
// Why a tcp connection broke; under both.
inline constexpr LockRank kTcpWhy{250, "TcpPeer::why_mutex_"};
// The shm link: listeners, connections, reports.
inline constexpr LockRank kShm{260, "ShmLink::mutex_"};
// The list of private rings that polls read; under the link's mutex.
inline constexpr LockRank kShmPrivate{270, "ShmLink::private_mutex_"};
// The consumer's side of a ring: a polling thread, and a thread that goes to sleep; under both.
inline constexpr LockRank kShmInbox{280, "Area::inbox_mutex"};
// Frames to a shm peer, in the order of their staged chunks; under the link's mutex.
inline constexpr LockRank kShmSubmit{290, "ShmPeer::submit_lock"};
// The free chunks of staging memory; under submit_lock.
inline constexpr LockRank kStaging{300, "Staging::lock_"};
// A table of routes; under the tcp link's mutex.
inline constexpr LockRank kRoutes{310, "Routes::lock_"};

// ---- memory: under any lock above ----
// Allocations of peers' devices that are open here.
inline constexpr LockRank kDevicesOpened{320, "Devices::mutex_"};
// Windows to device memory, which stay mapped during a copy; shared by copies.
inline constexpr LockRank kDeviceWindows{330, "Devices::windows_mutex_"};
// A CUDA device's context and idle streams.
inline constexpr LockRank kCuda{340, "CudaRuntime::Device::mutex"};
// A Level Zero device's command list.
inline constexpr LockRank kLevelZero{350, "ZeRuntime::Device::mutex"};
// Free entries of holds in the memory table.
inline constexpr LockRank kTableHolds{360, "Table::hold_mutex_"};
// Free slots, buffers and the index of the memory table.
inline constexpr LockRank kTable{370, "Table::mutex_"};
// The registration cache; no monitor is called under it.
inline constexpr LockRank kCache{380, "RegistrationCache::lock_"};
// Segments and their allocations; monitors are subscribed under it.
inline constexpr LockRank kSegments{390, "SegmentSet::mutex_"};
// The ranges for which a thread makes huge pages.
inline constexpr LockRank kHugePages{400, "PageFollower::State::mutex"};
// Pages that stay with the NIC over a fork.
inline constexpr LockRank kHeldPages{410, "HeldPages::mutex_"};
// Subscriptions and the patched code of libc; no hook takes it.
inline constexpr LockRank kMemhooks{420, "g_mutex of mem/memhooks.cpp"};
// Watched ranges and the reader's life; the reader never takes it.
inline constexpr LockRank kUserfaultfd{430, "UserfaultfdMonitor::mutex_"};
// The logs to which the reader reports; under the monitor's mutex.
inline constexpr LockRank kUserfaultfdLogs{440, "UserfaultfdMonitor::logs_lock_"};

// ---- base: under any lock ----
// The list of slabs.
inline constexpr LockRank kSlabs{450, "g_all_lock of base/slab.cpp"};
// A slab's blocks and free slots.
inline constexpr LockRank kSlab{460, "Slab::lock_"};

}  // namespace lock_rank
}  // namespace weft
