// A team of threads that run one function side by side, and wait for each other within it.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace forerun {

using Clock = std::chrono::steady_clock;

// Nothing is inline: this header is compiled for several instruction sets, and the linker keeps
// one copy.

// What a team loses by waiting for members whose cores others hold. Every wait then lasts until the
// scheduler brings a member back, and one thread alone is several times faster: so once calls have
// waited for longer than they worked, by more than others' short work explains, the caller works
// alone for a while.
class Losses {
public:
    bool alone(Clock::time_point now) const;  // whether a call that begins now is the caller's
    void add(Clock::time_point now, Clock::duration waited, Clock::duration worked);  // in a call

private:
    Clock::duration lost_{};  // to waiting, less what was worked since
    Clock::duration alone_for_{};  // the next time
    Clock::time_point alone_until_{};
};

// Between two calls members spin for about as long as a decoder needs to make the next one, and
// then sleep.
class Team {
public:
    Team(int threads, bool steady);  // steady: no call is left to the caller alone
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const;
    int active() const;  // members that run the present call: all, or the caller alone
    void run(void (*work)(void* context, int member), void* context);  // the caller is member 0
    void barrier(int member);  // for every active member, from within `work`

private:
    void end();
    void member(int number);
    bool idle(uint32_t seen) const;
    void wait_for_job(uint32_t seen);
    void wait_for_round(uint32_t round, int member);

    const int size_;
    const bool steady_;
    int active_ = 1;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
    alignas(64) std::atomic<uint32_t> job_{0};
    std::atomic<bool> ending_{false};
    std::atomic<int> asleep_{0};
    void (*work_)(void*, int) = nullptr;
    void* context_ = nullptr;
    Clock::duration waited_{};  // of the caller, in this call
    Losses losses_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> members_;
};

}  // namespace forerun
