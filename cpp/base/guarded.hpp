// cpp/base/guarded.hpp: what Clang's thread-safety analysis reads (`make locks`); nothing for other compilers.
//
// A member says which lock guards it (GUARDED_BY), a function which lock its caller holds (REQUIRES). The analysis
// does not follow a lock through a pointer that it cannot name: such a function is UNCHECKED, and says why.
#pragma once

#if defined(__clang__)
#define WEFT_THREAD_SAFETY(x) __attribute__((x))
#else
#define WEFT_THREAD_SAFETY(x)
#endif

#define GUARDED_BY(lock) WEFT_THREAD_SAFETY(guarded_by(lock))
#define PT_GUARDED_BY(lock) WEFT_THREAD_SAFETY(pt_guarded_by(lock))  // what the pointer points to, not the pointer
#define REQUIRES(...) WEFT_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) WEFT_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define RELEASE(...) WEFT_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) WEFT_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) WEFT_THREAD_SAFETY(release_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) WEFT_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define ASSERT_HELD(...) WEFT_THREAD_SAFETY(assert_capability(__VA_ARGS__))
#define LOCK_RETURNED(lock) WEFT_THREAD_SAFETY(lock_returned(lock))
#define LOCK_CLASS WEFT_THREAD_SAFETY(capability("lock"))
#define GUARD_CLASS WEFT_THREAD_SAFETY(scoped_lockable)
#define UNCHECKED WEFT_THREAD_SAFETY(no_thread_safety_analysis)
