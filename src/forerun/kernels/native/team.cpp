#include "team.h"

#include <algorithm>

namespace forerun {
namespace {

using std::chrono::milliseconds;

constexpr int kBarrierSpins = 2000, kIdleSpins = 4000;  // about 30 and 60 microseconds
constexpr milliseconds kLost{2};  // more than a process takes that works for a moment and sleeps again
constexpr milliseconds kShortest{20}, kLongest{640};  // times alone; they double while stalls last

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

bool Losses::alone(Clock::time_point now) const { return now < alone_until_; }

void Losses::add(Clock::time_point now, Clock::duration waited, Clock::duration worked) {
    lost_ = std::max(Clock::duration::zero(), lost_ + waited - worked);
    if (lost_ < kLost) return;
    lost_ = {};
    if (now - alone_until_ > kLongest) alone_for_ = kShortest;
    alone_until_ = now + alone_for_;
    if (alone_for_ < kLongest) alone_for_ *= 2;
}

Team::Team(int threads, bool steady) : size_(threads < 1 ? 1 : threads), steady_(steady) {
    try {
        for (int number = 1; number < size_; ++number)
            members_.emplace_back([this, number] { member(number); });
    } catch (...) {  // no more threads to have
        end();
        throw;
    }
}

Team::~Team() { end(); }

void Team::end() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ending_.store(true);
    }
    wake_.notify_all();
    for (auto& thread : members_) thread.join();
}

int Team::size() const { return size_; }

int Team::active() const { return active_; }

void Team::run(void (*work)(void*, int), void* context) {
    const Clock::time_point start = Clock::now();
    active_ = losses_.alone(start) ? 1 : size_;
    if (active_ == 1) return work(context, 0);
    work_ = work;
    context_ = context;
    waited_ = {};
    job_.fetch_add(1);  // in one order with `asleep_`: a member sees the job, or is seen asleep
    if (asleep_.load() > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    work(context, 0);
    barrier(0);
    const Clock::time_point end = Clock::now();
    if (!steady_) losses_.add(end, waited_, end - start - waited_);
}

void Team::barrier(int member) {
    const int active = active_;  // of this call: after the last arrival the caller may go on
    if (active == 1) return;
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == active) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.store(round + 1, std::memory_order_release);
    } else {
        wait_for_round(round, member);
    }
}

void Team::wait_for_round(uint32_t round, int member) {
    const auto passed = [&] { return round_.load(std::memory_order_acquire) != round; };
    for (int spins = 0; spins < kBarrierSpins; ++spins) {
        if (passed()) return;
        pause();
    }
    const Clock::time_point start = Clock::now();
    while (!passed()) std::this_thread::yield();  // whoever is late may need this core
    if (member == 0) waited_ += Clock::now() - start;
}

bool Team::idle(uint32_t seen) const { return job_.load() == seen && !ending_.load(); }

void Team::wait_for_job(uint32_t seen) {
    for (int spins = 0; spins < kIdleSpins && idle(seen); ++spins) pause();
    if (!idle(seen)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1);
    wake_.wait(lock, [&] { return !idle(seen); });
    asleep_.fetch_sub(1);
}

void Team::member(int number) {
    for (uint32_t seen = 0;; ++seen) {
        wait_for_job(seen);
        if (ending_.load()) return;
        work_(context_, number);
        barrier(number);
    }
}

}  // namespace forerun
