// When does a team leave its work to the caller? Prints what is wrong, and returns 0 where nothing
// is. The clock is the test's, so that no other process has a say in it.
#include <cstdio>

#include "team.h"

namespace {

using forerun::Clock;
using forerun::Losses;
using std::chrono::milliseconds;

int failures = 0;

void check(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "%s\n", what);
    ++failures;
}

// A team whose calls take what it is told.
class Told {
public:
    void call(double waited_ms, double worked_ms) {
        now_ += of(waited_ms) + of(worked_ms);
        losses_.add(now_, of(waited_ms), of(worked_ms));
    }
    void rest(double ms) { now_ += of(ms); }
    bool alone() const { return losses_.alone(now_); }
    // For how long the caller is alone after a lost core, to 10 ms.
    int alone_ms() {
        call(5, 0);
        int ms = 0;
        for (; alone(); ms += 10) rest(10);
        return ms;
    }

private:
    static Clock::duration of(double ms) {
        const std::chrono::duration<double, std::milli> given(ms);
        return std::chrono::duration_cast<Clock::duration>(given);
    }

    Clock::time_point now_ = Clock::time_point(std::chrono::hours(1));
    Losses losses_;
};

void test_short_waits() {
    Told team;
    check(!team.alone(), "it begins alone");
    for (int i = 0; i < 1000; ++i) team.call(0.9, 2);
    check(!team.alone(), "another process that works for a moment in each call ends its work");
    team.call(1.5, 0.1);
    check(!team.alone(), "one longer wait ends its work");
    for (int i = 0; i < 1000; ++i) team.call(0, 2);
    team.call(2.5, 0.1);
    check(team.alone(), "work long past makes up for a lost core");
}

void test_a_lost_core() {
    Told team;
    for (int i = 0; i < 3; ++i) team.call(0.9, 0.1);
    check(team.alone(), "calls that mostly wait, one after the other, are not noticed");
    team.rest(25);
    check(!team.alone(), "the caller stays alone");
    team.call(0.5, 0.1);
    check(!team.alone(), "what was lost before counts once more");
}

void test_times_alone() {
    Told team;
    for (int want : {20, 40, 80, 160, 320, 640, 640})
        check(team.alone_ms() == want, "times alone do not double up to 640 ms");
    team.rest(700);
    check(team.alone_ms() == 20, "after a time together the next time alone is not short again");
}

// Members that meet, whoever is late: only the last may leave, and a steady team has all of them.
void test_a_steady_team() {
    forerun::Team team(2, true);
    const auto late = [](void* context, int member) {
        if (member == 1) std::this_thread::sleep_for(milliseconds(4));
        static_cast<forerun::Team*>(context)->barrier(member);
    };
    for (int i = 0; i < 3; ++i) {
        team.run(late, &team);
        check(team.active() == 2, "a steady team leaves its work to the caller");
    }
}

}  // namespace

int main() {
    test_short_waits();
    test_a_lost_core();
    test_times_alone();
    test_a_steady_team();
    return failures != 0;
}
